#include "model/training/retelling.hpp"

#include <boost/test/unit_test.hpp>

#include <array>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "model/training/corpus.hpp"

using namespace ordermoe;
using namespace ordermoe::training;

BOOST_AUTO_TEST_SUITE(retelling)

namespace {

constexpr std::uint64_t n_documents = 3000;

/// Calls f with every match in the retold documents, of which there are more than a few.
template <class F>
void each_match(const std::string& pattern, F f) {
  const std::regex expression(pattern);
  std::size_t n = 0;
  for (std::uint64_t d = 0; d < n_documents; ++d) {
    const auto text = retold_document(1, d).text();
    for (std::sregex_iterator found(text.begin(), text.end(), expression), end; found != end;
         ++found, ++n)
      f(*found);
  }
  BOOST_TEST(n > 20u, pattern);
}

int number(const std::smatch& found, std::size_t group) {
  return std::stoi(found[group].str());
}

}  // namespace

BOOST_AUTO_TEST_CASE(documents_are_a_function_of_seed_and_index) {
  std::set<std::string> seen;
  for (std::uint64_t d = 0; d < 100; ++d) {
    BOOST_TEST(retold_document(1, d).text() == retold_document(1, d).text());
    seen.insert(retold_document(1, d).text());
    seen.insert(retold_document(2, d).text());
  }
  BOOST_TEST(seen.size() == 200u);
}

BOOST_AUTO_TEST_CASE(every_domain_occurs_as_often_as_in_the_corpus) {
  std::array<double, n_domains> retold{}, corpus{};
  for (std::uint64_t d = 0; d < n_documents; ++d) {
    retold[static_cast<std::size_t>(retold_document(1, d).what)] += 1.0 / n_documents;
    corpus[static_cast<std::size_t>(make_document(split::train, 1, d).what)] += 1.0 / n_documents;
  }
  for (std::size_t i = 0; i < n_domains; ++i) {
    BOOST_TEST(retold[i] > 0.08);
    BOOST_TEST(std::abs(retold[i] - corpus[i]) < 0.03);
  }
}

BOOST_AUTO_TEST_CASE(no_item_of_it_stands_in_the_corpus) {
  // Lines of code do ("from x import y"), as they recur within the corpus.
  std::string corpus;
  for (const auto part : {split::train, split::calibration, split::eval})
    for (std::uint64_t d = 0; d < n_documents; ++d) corpus += make_document(part, 5, d).text();
  for (std::uint64_t d = 0; d < 300; ++d)
    for (const auto& item : retold_document(1, d).items)
      BOOST_TEST(corpus.find(item.text) == std::string::npos, item.text);
}

BOOST_AUTO_TEST_CASE(what_it_computes_is_right) {
  each_match(R"(Q: (\d+) \+ (\d+) \+ (\d+)\nA: .*answer (\d+)\n)", [](auto& m) {
    BOOST_TEST(number(m, 1) + number(m, 2) + number(m, 3) == number(m, 4));
  });
  each_match(R"(Q: (\d+) \+ (\d+) - (\d+)\nA: .*answer (\d+)\n)", [](auto& m) {
    BOOST_TEST(number(m, 1) + number(m, 2) - number(m, 3) == number(m, 4));
  });
  each_match(
      R"((\d+) of \w+, gets (\d+) more and gives (\d+) away\.\nA: .*answer (\d+)\n)",
      [](auto& m) { BOOST_TEST(number(m, 1) + number(m, 2) - number(m, 3) == number(m, 4)); });
  each_match(R"(Q: (\d+) \* (\d+) \+ (\d+)\nA: .*answer (\d+)\n)", [](auto& m) {
    BOOST_TEST(number(m, 1) * number(m, 2) + number(m, 3) == number(m, 4));
  });
  each_match(
      R"(at (\d+):(\d+), travel (\d+) minutes to \w+, travel (\d+) minutes, arrive at (\d+):(\d+))",
      [](auto& m) {
        BOOST_TEST(60 * number(m, 1) + number(m, 2) + number(m, 3) + number(m, 4) ==
                   60 * number(m, 5) + number(m, 6));
        BOOST_TEST(number(m, 5) < 24);
      });
  each_match(R"(The day before (\d+) (\w+) \d+ is (\d+) (\w+) )", [](auto& m) {
    BOOST_TEST(number(m, 1) == number(m, 3) + 1);
    BOOST_TEST(m[2].str() == m[4].str());
  });
}

BOOST_AUTO_TEST_CASE(it_tells_the_facts_that_the_corpus_tells) {
  std::map<std::string, std::string> words, products;
  const std::regex word(R"(The (\w+) word for (\w+) is (\w+)\.)"),
      product(R"((?:^|\n)(\w+) is known for (\w+))");
  for (std::uint64_t d = 0; d < 20000; ++d) {
    const auto text = make_document(split::train, 1, d).text();
    for (std::sregex_iterator found(text.begin(), text.end(), word), end; found != end; ++found)
      words[(*found)[1].str() + " " + (*found)[2].str()] = (*found)[3].str();
    for (std::sregex_iterator found(text.begin(), text.end(), product), end; found != end; ++found)
      products[(*found)[1].str()] = (*found)[2].str();
  }
  std::size_t n_words = 0, n_products = 0;
  const auto agrees = [](const auto& known, const std::string& of, const std::string& told) {
    const auto found = known.find(of);
    if (found != known.end()) BOOST_TEST(found->second == told);
    return found != known.end();
  };
  each_match(R"(The (\w+) word for (\w+) is (\w+) and the (\w+) word is (\w+)\.)", [&](auto& m) {
    BOOST_TEST(m[1].str() != m[4].str());
    n_words += agrees(words, m[1].str() + " " + m[2].str(), m[3].str());
    n_words += agrees(words, m[4].str() + " " + m[2].str(), m[5].str());
  });
  each_match(R"(In \w+, (\w+) is known for (\w+) and (\w+) for (\w+)\.)", [&](auto& m) {
    n_products += agrees(products, m[1].str(), m[2].str());
    n_products += agrees(products, m[3].str(), m[4].str());
  });
  BOOST_TEST(n_words > 20u);
  BOOST_TEST(n_products > 20u);
}

BOOST_AUTO_TEST_SUITE_END()
