#include "model/training/world.hpp"

#include <cctype>
#include <iterator>
#include <set>

#include <fmt/format.h>

namespace ordermoe::training {
namespace {

using std::string;

constexpr std::uint64_t world_seed = 0x6f72646572;

constexpr words<24> products = {"wool",   "glass", "salt",    "cheese",  "timber",  "copper",
                                "honey",  "paper", "silk",    "pottery", "cider",   "leather",
                                "amber",  "tin",   "candles", "rope",    "linen",   "barley",
                                "pearls", "slate", "ink",     "clocks",  "violins", "saffron"};
constexpr words<12> departments = {"optics",  "payroll",  "archive", "harbor",
                                   "legal",   "research", "kitchen", "garage",
                                   "library", "energy",   "weather", "printing"};

string syllables(random_stream& random, std::size_t n) {
  static constexpr const char* onsets[] = {"b", "d", "f", "g", "k", "l",  "m",  "n",  "p",
                                           "r", "s", "t", "v", "z", "br", "tr", "st", "kl"};
  static constexpr const char* vowels[] = {"a", "e", "i", "o", "u"};
  static constexpr const char* codas[] = {"", "", "", "n", "r", "l", "s", "k"};
  string word;
  for (std::size_t i = 0; i < n; ++i) {
    word += onsets[random.below(std::size(onsets))];
    word += vowels[random.below(std::size(vowels))];
  }
  word += codas[random.below(std::size(codas))];
  return word;
}

}  // namespace

string capital(string word) {
  word[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(word[0])));
  return word;
}

string list_text(const std::vector<int>& values) {
  string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i)
    text += (i ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

world::world() {
  random_stream random(world_seed);
  std::set<string> used;
  auto fresh = [&](std::size_t n) {
    string word;
    do word = syllables(random, n);
    while (!used.insert(word).second);
    return word;
  };
  std::vector<string> rivers, regions;
  for (int i = 0; i < 32; ++i) rivers.push_back(capital(fresh(2)));
  for (int i = 0; i < 16; ++i) regions.push_back(capital(fresh(2)) + "land");
  // Braces evaluate their elements from left to right, so the draws below have one order
  // everywhere.
  auto one_of = [&](const auto& list) { return string(list[random.below(list.size())]); };
  for (int i = 0; i < 320; ++i) {
    const string given = one_of(given_names), family = capital(syllables(random, 1));
    towns.push_back({capital(fresh(2)), one_of(rivers), one_of(regions), one_of(products),
                     given + " " + family, 1100 + static_cast<int>(random.below(800))});
  }
  for (int i = 0; i < 6; ++i) {
    languages.push_back(capital(fresh(2)) + "ish");
    dictionary.emplace_back();
    for (std::size_t n = 0; n < nouns.size(); ++n) dictionary.back().push_back(fresh(2));
  }
  for (int i = 0; i < 240; ++i) {
    const string given = one_of(given_names), family = capital(fresh(2));
    string mail = given + "." + family;
    for (auto& c : mail) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    employees.push_back({given + " " + family, mail + "@" + one_of(departments) + ".example",
                         one_of(departments), towns[random.below(towns.size())].name,
                         1000 + static_cast<int>(random.below(9000)),
                         2000 + 50 * static_cast<int>(random.below(80))});
  }
  static constexpr words<12> parameters = {"host",  "port", "path",  "mode",  "size",  "name",
                                           "depth", "rate", "index", "limit", "color", "width"};
  static constexpr words<6> types = {"int", "str", "bool", "list", "float", "None"};
  for (int m = 0; m < 12; ++m) {
    const string module = fresh(2);
    for (int f = 0; f < 16; ++f) {
      string arguments;
      const auto n = 1 + random.below(3);
      for (std::size_t a = 0; a < n; ++a) {
        arguments += (a ? ", " : "") + one_of(parameters);
        if (random.below(2)) arguments += fmt::format("={}", 1 + random.below(99));
      }
      const string verb = syllables(random, 1), object = one_of(parameters);
      calls.push_back({module, verb + "_" + object, arguments, one_of(types)});
    }
  }
  for (const auto* name : given_names)
    heroes.push_back({name, one_of(nouns), towns[random.below(towns.size())].name, one_of(nouns),
                      one_of(given_names), one_of(nouns)});
  for (int i = 0; i < 120; ++i) {
    const auto month = random.below(12);
    feasts.push_back(
        {capital(fresh(2)), months[month], one_of(nouns),
         1 + static_cast<int>(random.below(static_cast<std::uint64_t>(month_days[month])))});
  }
}

const world& the_world() {
  static const world facts;
  return facts;
}

}  // namespace ordermoe::training
