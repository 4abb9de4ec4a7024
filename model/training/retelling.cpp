#include "model/training/retelling.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "model/training/world.hpp"

namespace ordermoe::training {
namespace {

using std::string;

int between(random_stream& random, int low, int high) {
  return low + static_cast<int>(random.below(static_cast<std::uint64_t>(high - low + 1)));
}

/// One of those that `same` holds of, but not the one at `than`; that one where there is no other.
template <class List, class Same>
const auto& another(const List& list, const Same& same, std::size_t than, random_stream& random) {
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < list.size(); ++i)
    if (i != than && same(list[i])) others.push_back(i);
  return list[others.empty() ? than : pick(others, random)];
}

/// Two operations in a row, each worked out as a problem of the corpus is.
string told_arithmetic(random_stream& random) {
  const int a = between(random, 10, 99), b = between(random, 10, 99),
            c = between(random, 10, std::min(99, a + b));
  switch (random.below(4)) {
    case 0:
      return fmt::format("Q: {} + {} + {}\nA: {}{}answer {}\n", a, b, c, worked_sum(a, b),
                         worked_sum(a + b, c), a + b + c);
    case 1:
      return fmt::format("Q: {} + {} - {}\nA: {}{}answer {}\n", a, b, c, worked_sum(a, b),
                         worked_difference(a + b, c), a + b - c);
    case 2: {
      const auto& thing = pick(nouns, random);
      const auto& owner = pick(given_names, random);
      return fmt::format("Q: {} has {} of {}, gets {} more and gives {} away.\nA: {}{}answer {}\n",
                         owner, a, thing, b, c, worked_sum(a, b), worked_difference(a + b, c),
                         a + b - c);
    }
    default: {
      const int times = between(random, 2, 9);
      return fmt::format("Q: {} * {} + {}\nA: {}{}answer {}\n", a, times, c,
                         worked_product(a, times), worked_sum(a * times, c), a * times + c);
    }
  }
}

/// Facts of several towns, or languages, in one sentence.
string told_atlas(random_stream& random) {
  const auto& facts = the_world();
  const auto at = random.below(facts.towns.size());
  const auto& t = facts.towns[at];
  switch (random.below(4)) {
    case 0: {
      const auto first = random.below(facts.languages.size()),
                 second = (first + 1 + random.below(facts.languages.size() - 1)) %
                          facts.languages.size(),
                 noun = random.below(nouns.size());
      return fmt::format("The {} word for {} is {} and the {} word is {}.\n",
                         facts.languages[first], nouns[noun], facts.dictionary[first][noun],
                         facts.languages[second], facts.dictionary[second][noun]);
    }
    case 1: {
      const auto& other = another(
          facts.towns, [&](const town& each) { return each.river == t.river; }, at, random);
      return fmt::format("On the {} lie {}, founded in {}, and {}, founded in {}.\n", t.river,
                         t.name, t.founded, other.name, other.founded);
    }
    case 2:
      return fmt::format("{}, which lies on the {}, is known for {} and has {} as mayor.\n", t.name,
                         t.river, t.product, t.mayor);
    default: {
      const auto& other = another(
          facts.towns, [&](const town& each) { return each.region == t.region; }, at, random);
      return fmt::format("In {}, {} is known for {} and {} for {}.\n", t.region, t.name, t.product,
                         other.name, other.product);
    }
  }
}

/// What two heroes do together.
string told_story(random_stream& random) {
  const auto& facts = the_world();
  const auto at = random.below(facts.heroes.size());
  const auto& h = facts.heroes[at];
  const auto& other = another(
      facts.heroes, [](const hero&) { return true; }, at, random);
  const auto& found = pick(nouns, random);
  const auto& place = pick(nouns, random);
  string text = fmt::format("{} of {} and {} of {} carried the {} to the {}. ", h.name, h.home,
                            other.name, other.home, found, place);
  text += random.below(2)
              ? fmt::format("\"Look, the {}!\" said {}, and {} called {}. ", other.animal,
                            other.name, h.name, h.friend_name)
              : fmt::format("The {} and the {} came with them. ", h.animal, other.animal);
  text += random.below(2) ? fmt::format("There {} lost the {} and {} the {}. ", h.name, h.tool,
                                        other.name, other.tool)
                          : fmt::format("{} gave {} the {}. ", h.name, other.name, h.tool);
  return text + fmt::format("In the end {} wanted only {} and {} wanted {}.\n", h.name, h.likes,
                            other.name, other.likes);
}

/// Programs of a few more lines than those of the corpus.
string told_code(random_stream& random) {
  const auto& facts = the_world();
  if (random.below(2)) {
    const auto& c = pick(facts.calls, random);
    const auto& d = pick(facts.calls, random);
    return fmt::format("from {} import {}\nfrom {} import {}\nx = {}({})  # {}\ny = {}({})  # {}\n",
                       c.module, c.name, d.module, d.name, c.name, c.arguments, c.returns, d.name,
                       d.arguments, d.returns);
  }
  std::vector<int> values(static_cast<std::size_t>(between(random, 3, 6)));
  for (auto& v : values) v = between(random, 0, 9);
  auto sorted = values;
  std::sort(sorted.begin(), sorted.end());
  string text = fmt::format("a = {}\nb = sorted(a)\n", list_text(values));
  switch (random.below(3)) {
    case 0:
      return text +
             fmt::format("print(b)  # {}\nprint(len(b))  # {}\n", list_text(sorted), sorted.size());
    case 1:
      return text + fmt::format("print(b[0], b[-1])  # {} {}\n", sorted.front(), sorted.back());
    default:
      for (auto& v : sorted) ++v;
      return text + fmt::format("print([v + 1 for v in b])  # {}\n", list_text(sorted));
  }
}

/// Records in other orders, in lists, and by department.
string told_record(random_stream& random) {
  const auto& staff = the_world().employees;
  const auto at = random.below(staff.size());
  const auto& e = staff[at];
  switch (random.below(3)) {
    case 0: {
      const auto& other = another(
          staff, [](const employee&) { return true; }, at, random);
      return fmt::format("[{{\"name\": \"{}\", \"id\": {}}}, {{\"name\": \"{}\", \"id\": {}}}]\n",
                         e.name, e.id, other.name, other.id);
    }
    case 1:
      return fmt::format("{{\"id\": {}, \"pay\": {}, \"town\": \"{}\", \"name\": \"{}\"}}\n", e.id,
                         e.pay, e.place, e.name);
    default: {
      const auto& other = another(
          staff, [&](const employee& each) { return each.department == e.department; }, at, random);
      return fmt::format("{{\"dept\": \"{}\", \"email\": [\"{}\", \"{}\"]}}\n", e.department,
                         e.email, other.email);
    }
  }
}

/// Feasts by month, journeys with a stop, the day before, and smaller units.
string told_calendar(random_stream& random) {
  const auto& facts = the_world();
  switch (random.below(4)) {
    case 0: {
      const auto at = random.below(facts.feasts.size());
      const auto& f = facts.feasts[at];
      const auto& other = another(
          facts.feasts, [&](const feast& each) { return each.month == f.month; }, at, random);
      return fmt::format("In {} we keep the feast of {} with {} and the feast of {} with {}.\n",
                         f.month, f.name, f.dish, other.name, other.dish);
    }
    case 1: {
      const int start = between(random, 0, 200) * 5, first = between(random, 1, 30) * 5,
                second = between(random, 1, 30) * 5, end = start + first + second;
      const auto& stop = pick(facts.towns, random);
      const auto& begin = pick(facts.towns, random);
      return fmt::format(
          "Leave {} at {:02}:{:02}, travel {} minutes to {}, travel {} minutes, arrive at "
          "{:02}:{:02}.\n",
          begin.name, start / 60, start % 60, first, stop.name, second, end / 60, end % 60);
    }
    case 2: {
      const int weeks = between(random, 2, 40);
      return fmt::format("{} weeks are {} days and {} hours.\n", weeks, 7 * weeks, 24 * 7 * weeks);
    }
    default: {
      const auto month = random.below(months.size());
      const int day = between(random, 2, month_days[month]), year = between(random, 1900, 2099);
      return fmt::format("The day before {} {} {} is {} {} {}.\n", day, months[month], year,
                         day - 1, months[month], year);
    }
  }
}

string told(domain what, random_stream& random) {
  switch (what) {
    case domain::arithmetic:
      return told_arithmetic(random);
    case domain::atlas:
      return told_atlas(random);
    case domain::stories:
      return told_story(random);
    case domain::code:
      return told_code(random);
    case domain::records:
      return told_record(random);
    case domain::calendar:
      return told_calendar(random);
  }
  return {};
}

}  // namespace

document retold_document(std::uint64_t seed, std::uint64_t index) {
  random_stream random(mix64(mix64(seed) ^ 0x7265746f6c64), index);
  document d{drawn_domain(random), {}};
  const std::size_t n = d.what == domain::stories ? 1 : 2 + random.below(4);
  for (std::size_t i = 0; i < n; ++i) {
    auto text = told(d.what, random);
    d.items.push_back({text, text});
  }
  return d;
}

}  // namespace ordermoe::training
