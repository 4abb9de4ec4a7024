#include "setup/kept_activation.hpp"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>

#include "config/files.hpp"

/// What a node keeps of what routers chose.
namespace ordermoe::setup {

namespace {

namespace fs = std::filesystem;

const std::string profile = "a profile's digest";
const std::string counts =
    R"({"rows":[4,0],"shares":[[0.5,0.25,0.25],[]],"sets":[[[0,1,1000000]],[]]})";

struct kept_file {
  fs::path folder;
  model::model_config shape;

  kept_file() {
    std::string pattern = (fs::temp_directory_path() / "ordermoe-kept-XXXXXX").string();
    BOOST_REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    folder = pattern;
    shape.n_layers = 2;
    shape.n_experts = 3;
    shape.top_k = 2;
  }
  ~kept_file() { fs::remove_all(folder); }

  result<kept_activation> read(const std::string& text, const std::string& of = profile) const {
    BOOST_REQUIRE(write_file(folder / "counts.json", text).has_value());
    return read_kept_activation(folder / "counts.json", of, shape);
  }
  kept_activation good(const std::string& text) const {
    auto made = read(text);
    BOOST_REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().message));
    return std::move(*made);
  }
};

}  // namespace

}  // namespace ordermoe::setup

namespace ordermoe {

using namespace setup;

BOOST_AUTO_TEST_SUITE(kept_activation)

BOOST_AUTO_TEST_CASE(what_was_counted_is_read_with_when_it_was) {
  const kept_file file;
  const auto dated = file.good(kept_counts_text(profile, counts, 1'765'000'000'123));
  BOOST_REQUIRE(dated.content != nullptr);
  BOOST_TEST(dated.content->rows == (std::vector<double>{4, 0}), boost::test_tools::per_element());
  BOOST_TEST((dated.written_ms == std::optional<std::int64_t>(1'765'000'000'123)));
  const auto undated = file.good(kept_activation_text(profile, counts));
  BOOST_REQUIRE(undated.content != nullptr);
  BOOST_TEST((*undated.content == *dated.content));
  BOOST_TEST(!undated.written_ms.has_value());
}

BOOST_AUTO_TEST_CASE(files_of_earlier_builds_are_read) {
  const kept_file file;
  // As they were written before a version stood in them.
  const auto before = file.good(
      R"({"profile":"a profile's digest","activation":"{\"rows\":[1,0],\"shares\":[[1,0,0],[]]}"})");
  BOOST_REQUIRE(before.content != nullptr);
  BOOST_TEST(before.content->rows[0] == 1);
  BOOST_TEST(!before.written_ms.has_value());
}

BOOST_AUTO_TEST_CASE(nothing_is_there_without_a_file_or_beside_another_profile) {
  const kept_file file;
  const auto none = read_kept_activation(file.folder / "counts.json", profile, file.shape);
  BOOST_REQUIRE(none.has_value());
  BOOST_TEST(none->content == nullptr);
  const auto other = file.read(kept_counts_text(profile, counts, 5), "another profile's digest");
  BOOST_REQUIRE(other.has_value());
  BOOST_TEST(other->content == nullptr);
  BOOST_TEST(!other->written_ms.has_value());
}

BOOST_AUTO_TEST_CASE(what_does_not_read_names_the_file_and_what_to_do) {
  const kept_file file;
  const auto refused = [&](std::string text, const std::string& from, const std::string& to,
                           const std::string& words) {
    if (!from.empty()) {
      const auto at = text.find(from);
      BOOST_REQUIRE(at != std::string::npos);
      text.replace(at, from.size(), to);
    }
    const auto made = file.read(text);
    BOOST_REQUIRE_MESSAGE(!made.has_value(), text);
    for (const auto& each :
         {(file.folder / "counts.json").string(), words, std::string("remove it")})
      BOOST_TEST(made.error().message.find(each) != std::string::npos,
                 "'" << made.error().message << "' has no '" << each << "'");
  };
  const auto good = kept_counts_text(profile, counts, 5);
  // Of a later build.
  refused(good, R"("version":2)", R"("version":3)", "version: found 3");
  refused(good, R"("version":2)", R"("version":0)", "version: found 0");
  refused(good, R"("version":2)", R"("version":"2")", "version");
  refused(good, R"("version":2)", R"("version":1)", "written_ms");
  refused(good, R"("written_ms":5)", R"("written_ms":-5)", "written_ms");
  refused(good, R"("written_ms":5)", R"("written_ms":1e300)", "written_ms");
  refused(good, R"("written_ms":5,)", "", "written_ms");
  refused(good, R"("written_ms")", R"("written")", "written");
  refused(good, "[4,0]", "[4]", "another shape");
  refused(good, "[4,0]", "[-4,0]", "rows");
  refused("half", "", "", "counts.json");
  refused("[]", "", "", "counts.json");
  for (std::size_t n = 7; n + 2 < good.size(); n += 7)
    BOOST_TEST(!file.read(good.substr(0, n)).has_value());
}

BOOST_AUTO_TEST_CASE(a_file_of_a_node_that_ended_before_it_wrote_is_none) {
  const kept_file file;
  BOOST_TEST((file.good("").content == nullptr));
  BOOST_TEST(!file.read("{").has_value());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
