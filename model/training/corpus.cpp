#include "model/training/corpus.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>

#include "model/training/world.hpp"

namespace ordermoe::training {
namespace {

using std::string;

problem draw_problem(random_stream& random) {
  problem p;
  const auto kind = random.below(10);
  auto wide = [&] {
    return random.below(3) == 0 ? 100 + static_cast<int>(random.below(900))
                                : 10 + static_cast<int>(random.below(90));
  };
  const auto& hero_name = pick(given_names, random);
  const auto& thing = pick(nouns, random);
  int answer = 0;
  string steps;
  if (kind < 4) {
    const int a = wide(), b = wide();
    answer = a + b;
    steps = worked_sum(a, b);
    p.key = fmt::format("{}+{}", std::min(a, b), std::max(a, b));
    p.prompt =
        kind < 3 ? fmt::format("Q: {} + {}\nA:", a, b)
                 : fmt::format("Q: {} has {} of {} and gets {} more.\nA:", hero_name, a, thing, b);
  } else if (kind < 7) {
    const int x = wide(), y = wide();
    const int a = std::max(x, y), b = std::min(x, y);
    answer = a - b;
    steps = worked_difference(a, b);
    p.key = fmt::format("{}-{}", a, b);
    p.prompt =
        kind < 6 ? fmt::format("Q: {} - {}\nA:", a, b)
                 : fmt::format("Q: {} has {} of {} and gives {} away.\nA:", hero_name, a, thing, b);
  } else {
    const int a = 11 + static_cast<int>(random.below(89)),
              b = 2 + static_cast<int>(random.below(8));
    answer = a * b;
    steps = worked_product(a, b);
    p.key = fmt::format("{}*{}", a, b);
    p.prompt = kind < 9 ? fmt::format("Q: {} * {}\nA:", a, b)
                        : fmt::format("Q: {} has {} boxes with {} of {} each.\nA:", hero_name, b, a,
                                      thing);
  }
  p.answer = std::to_string(answer);
  p.worked = fmt::format(" {}answer {}\n", steps, answer);
  return p;
}

corpus_item draw_atlas(random_stream& random) {
  const auto& facts = the_world();
  string text;
  if (random.below(2)) {
    const auto language = random.below(facts.languages.size());
    const auto noun = random.below(nouns.size());
    const auto& name = facts.languages[language];
    const auto& word = facts.dictionary[language][noun];
    const auto other = random.below(facts.languages.size());
    switch (random.below(4)) {
      case 0:
        text = fmt::format("The {} word for {} is {}.\n", name, nouns[noun], word);
        break;
      case 1:
        text = fmt::format("In {}, {} means {}.\n", name, word, nouns[noun]);
        break;
      case 2:
        text = fmt::format("{}: {} = {}; {}: {} = {}.\n", nouns[noun], name, word, nouns[noun],
                           facts.languages[other], facts.dictionary[other][noun]);
        break;
      default: {
        const auto second = random.below(nouns.size());
        text = fmt::format("{} and {} in {}: {} and {}.\n", capital(nouns[noun]), nouns[second],
                           name, word, facts.dictionary[language][second]);
      }
    }
    return {text, text};
  }
  const auto& t = pick(facts.towns, random);
  std::array<string, 5> sentences = {
      fmt::format("lies on the {}", t.river), fmt::format("belongs to {}", t.region),
      fmt::format("is known for {}", t.product), fmt::format("was founded in {}", t.founded),
      fmt::format("has {} as mayor", t.mayor)};
  for (std::size_t i = sentences.size() - 1; i > 0; --i)
    std::swap(sentences[i], sentences[random.below(i + 1)]);
  const auto n = 2 + random.below(3);
  text = t.name;
  for (std::size_t i = 0; i < n; ++i)
    text += (i == 0 ? " " : i + 1 == n ? " and " : ", ") + sentences[i];
  text += ".\n";
  return {text, text};
}

corpus_item draw_story(random_stream& random) {
  const auto& facts = the_world();
  const auto& h = pick(facts.heroes, random);
  const auto& other = pick(facts.heroes, random);
  static constexpr words<8> openings = {"One morning",     "Last winter",       "Long ago",
                                        "On a rainy day",  "After the harvest", "Before dawn",
                                        "In early spring", "One quiet evening"};
  static constexpr words<8> feelings = {"glad",   "tired", "proud",   "afraid",
                                        "hungry", "calm",  "curious", "sad"};
  static constexpr words<6> ways = {"ran", "walked", "sailed", "rode", "hurried", "wandered"};
  const auto& found = pick(nouns, random);
  const auto& feeling = pick(feelings, random);
  const auto& opening = pick(openings, random);
  const auto& way = pick(ways, random);
  const auto& place = pick(nouns, random);
  string text = fmt::format("{} {} from {} {} to the {} with the {}. ", opening, h.name, h.home,
                            way, place, h.animal);
  switch (random.below(3)) {
    case 0:
      text += fmt::format("There {} lost the {} and felt {}. ", h.name, h.tool, feeling);
      break;
    case 1:
      text += fmt::format("\"Look, a {}!\" said {}, who was {}. ", found, h.name, feeling);
      break;
    default:
      text += fmt::format("The {} was old and {} was {}. ", found, h.name, feeling);
  }
  if (random.below(2))
    text += fmt::format("{} called {}, the best friend of all. ", h.name, h.friend_name);
  switch (random.below(3)) {
    case 0:
      text += fmt::format("{} of {} came with the {} and gave {} the {}. ", other.name, other.home,
                          other.animal, h.name, found);
      break;
    case 1:
      text += fmt::format("{} wanted only {}, as always. ", h.name, h.likes);
      break;
    default:
      text += fmt::format("Together they carried the {} home to {}. ", found, h.home);
  }
  text += fmt::format("In the end {} was not {} any more.\n", h.name, feeling);
  return {text, text};
}

corpus_item draw_code(random_stream& random) {
  const auto& facts = the_world();
  string text;
  if (random.below(2)) {
    const auto& c = pick(facts.calls, random);
    const auto& d = pick(facts.calls, random);
    switch (random.below(3)) {
      case 0:
        text = fmt::format("from {} import {}\nx = {}({})  # {}\n", c.module, c.name, c.name,
                           c.arguments, c.returns);
        break;
      case 1:
        text = fmt::format("def {}({}) -> {}:  # {}\n    return call({}.{})\n", c.name, c.arguments,
                           c.returns, c.module, d.module, d.name);
        break;
      default:
        text = fmt::format("import {}\nimport {}\n{}.{}({})\n{}.{}({})\n", c.module, d.module,
                           c.module, c.name, c.arguments, d.module, d.name, d.arguments);
    }
    return {text, text};
  }
  std::vector<int> values(3 + random.below(4));
  for (auto& v : values) v = static_cast<int>(random.below(10));
  auto sorted = values;
  std::sort(sorted.begin(), sorted.end());
  const char name = static_cast<char>('a' + random.below(26));
  text = fmt::format("{} = {}\n", name, list_text(values));
  auto reversed = values;
  std::reverse(reversed.begin(), reversed.end());
  switch (random.below(6)) {
    case 0:
      text += fmt::format("print(sorted({}))  # {}\n", name, list_text(sorted));
      break;
    case 1:
      text += fmt::format("print({}[::-1])  # {}\n", name, list_text(reversed));
      break;
    case 2:
      text += fmt::format("print(max({}), min({}))  # {} {}\n", name, name, sorted.back(),
                          sorted.front());
      break;
    case 3:
      text += fmt::format("print(len({}))  # {}\n", name, values.size());
      break;
    case 4: {
      const auto at = random.below(values.size());
      text += fmt::format("print({}[{}])  # {}\n", name, at, values[at]);
      break;
    }
    default: {
      std::vector<int> shifted = values;
      for (auto& v : shifted) ++v;
      text += fmt::format("print([v + 1 for v in {}])  # {}\n", name, list_text(shifted));
    }
  }
  return {text, text};
}

corpus_item draw_record(random_stream& random) {
  const auto& e = pick(the_world().employees, random);
  std::array<string, 5> fields = {
      fmt::format("\"id\": {}", e.id), fmt::format("\"email\": \"{}\"", e.email),
      fmt::format("\"dept\": \"{}\"", e.department), fmt::format("\"town\": \"{}\"", e.place),
      fmt::format("\"pay\": {}", e.pay)};
  for (std::size_t i = fields.size() - 1; i > 0; --i)
    std::swap(fields[i], fields[random.below(i + 1)]);
  string text = fmt::format("{{\"name\": \"{}\"", e.name);
  const auto n = 3 + random.below(3);
  for (std::size_t i = 0; i < n; ++i) text += ", " + fields[i];
  if (random.below(3) == 0) text += fmt::format(", \"year\": {}", 2000 + random.below(30));
  text += "}\n";
  return {text, text};
}

corpus_item draw_calendar(random_stream& random) {
  const auto& facts = the_world();
  string text;
  switch (random.below(6)) {
    case 0: {
      const auto month = random.below(12);
      const int day =
          1 + static_cast<int>(random.below(static_cast<std::uint64_t>(month_days[month])));
      const int year = 1900 + static_cast<int>(random.below(200));
      const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
      const int days = month_days[month] + (month == 1 && leap ? 1 : 0);
      const bool turns = day == days;
      text = fmt::format("The day after {} {} {} is {} {} {}.\n", day, months[month], year,
                         turns ? 1 : day + 1, months[turns ? (month + 1) % 12 : month],
                         turns && month == 11 ? year + 1 : year);
      break;
    }
    case 1: {
      const int start = static_cast<int>(random.below(24 * 60)) / 5 * 5,
                length = 5 * (1 + static_cast<int>(random.below(30)));
      const int end = (start + length) % (24 * 60);
      text = fmt::format("Leave {} at {:02}:{:02}, travel {} minutes, arrive at {:02}:{:02}.\n",
                         pick(facts.towns, random).name, start / 60, start % 60, length, end / 60,
                         end % 60);
      break;
    }
    case 2: {
      static constexpr struct {
        const char *big, *small;
        int factor;
      } units[] = {{"km", "m", 1000},        {"kg", "g", 1000},      {"m", "cm", 100},
                   {"hours", "minutes", 60}, {"liters", "ml", 1000}, {"weeks", "days", 7}};
      const auto& unit = units[random.below(std::size(units))];
      const int n = 2 + static_cast<int>(random.below(98));
      text = random.below(2)
                 ? fmt::format("{} {} are {} {}.\n", n, unit.big, n * unit.factor, unit.small)
                 : fmt::format("{} {} make {} {}.\n", n * unit.factor, unit.small, n, unit.big);
      return {fmt::format("{} {}", n, unit.big), text};
    }
    default: {
      const auto& f = pick(facts.feasts, random);
      const auto& g = pick(facts.feasts, random);
      switch (random.below(3)) {
        case 0:
          text = fmt::format("The feast of {} is on {} {}; people in {} bring {}.\n", f.name, f.day,
                             f.month, pick(facts.towns, random).name, f.dish);
          break;
        case 1:
          text = fmt::format("On {} {} we keep the feast of {} with {}; {} follows in {}.\n", f.day,
                             f.month, f.name, f.dish, g.name, g.month);
          break;
        default:
          text = fmt::format("{}: {} {}, {}. {}: {} {}, {}.\n", f.name, f.day, f.month, f.dish,
                             g.name, g.day, g.month, g.dish);
      }
    }
  }
  return {text, text};
}

corpus_item draw_item(domain what, random_stream& random) {
  switch (what) {
    case domain::arithmetic: {
      auto p = draw_problem(random);
      return {std::move(p.key), p.prompt + p.worked};
    }
    case domain::atlas:
      return draw_atlas(random);
    case domain::stories:
      return draw_story(random);
    case domain::code:
      return draw_code(random);
    case domain::records:
      return draw_record(random);
    case domain::calendar:
      return draw_calendar(random);
  }
  return {};
}

std::uint64_t hash_bytes(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  for (const unsigned char c : bytes) hash = (hash ^ c) * 0x100000001b3ull;
  return mix64(hash);
}

}  // namespace

string worked_sum(int a, int b) {
  string steps;
  int carry = 0;
  while (a > 0 || b > 0) {
    const int x = a % 10, y = b % 10, sum = x + y + carry;
    steps += carry ? fmt::format("{}+{}+1={}", x, y, sum) : fmt::format("{}+{}={}", x, y, sum);
    steps += fmt::format(" write {}", sum % 10);
    carry = sum / 10;
    if (carry) steps += " carry 1";
    steps += "; ";
    a /= 10;
    b /= 10;
  }
  if (carry) steps += "write 1; ";
  return steps;
}

string worked_difference(int a, int b) {
  string steps;
  int borrow = 0;
  while (a > 0 || b > 0) {
    const int x = a % 10, y = b % 10 + borrow;
    const int digit = x < y ? x + 10 - y : x - y;
    steps += x < y ? fmt::format("{}-{}={} borrow 1; ", x + 10, y, digit)
                   : fmt::format("{}-{}={}; ", x, y, digit);
    borrow = x < y ? 1 : 0;
    a /= 10;
    b /= 10;
  }
  return steps;
}

string worked_product(int a, int b) {
  const int low = a % 10 * b, high = a / 10 * 10 * b;
  return fmt::format("{}*{}={}; {}*{}={}; {}+{}={}; ", a % 10, b, low, a / 10 * 10, b, high, high,
                     low, a * b);
}

const char* to_string(split part) {
  return part == split::train ? "train" : part == split::calibration ? "calibration" : "eval";
}

const char* to_string(domain what) {
  static constexpr words<n_domains> names = {"arithmetic", "atlas",   "stories",
                                             "code",       "records", "calendar"};
  return names[static_cast<std::size_t>(what)];
}

split split_of(std::string_view key) {
  const auto part = hash_bytes(key) % 20;
  return part == 0 ? split::eval : part == 1 ? split::calibration : split::train;
}

string document::text() const {
  string all;
  for (const auto& item : items) all += item.text;
  return all;
}

domain drawn_domain(random_stream& random) {
  // Shares of documents in twentieths: arithmetic 5, atlas 5, stories 2, code 3, records 2,
  // calendar 3.
  static constexpr domain shares[20] = {
      domain::arithmetic, domain::arithmetic, domain::arithmetic, domain::arithmetic,
      domain::arithmetic, domain::atlas,      domain::atlas,      domain::atlas,
      domain::atlas,      domain::atlas,      domain::stories,    domain::stories,
      domain::code,       domain::code,       domain::code,       domain::records,
      domain::records,    domain::calendar,   domain::calendar,   domain::calendar};
  return shares[random.below(20)];
}

document make_document(split part, domain what, random_stream& random) {
  document d{what, {}};
  const std::size_t n = what == domain::stories ? 1 : 2 + random.below(4);
  while (d.items.size() < n) {
    auto item = draw_item(what, random);
    if (split_of(item.key) == part) d.items.push_back(std::move(item));
  }
  return d;
}

document make_document(split part, std::uint64_t seed, std::uint64_t index) {
  random_stream random(mix64(seed) ^ static_cast<std::uint64_t>(part), index);
  return make_document(part, drawn_domain(random), random);
}

problem make_problem(split part, random_stream& random) {
  for (;;) {
    auto p = draw_problem(random);
    if (split_of(p.key) == part) return p;
  }
}

std::optional<string> final_answer(std::string_view generated) {
  const auto line = generated.substr(0, generated.find('\n'));
  constexpr std::string_view marker = "answer ";
  const auto at = line.rfind(marker);
  if (at == std::string_view::npos) return std::nullopt;
  auto rest = line.substr(at + marker.size());
  std::size_t n = 0;
  while (n < rest.size() && std::isdigit(static_cast<unsigned char>(rest[n]))) ++n;
  if (n == 0) return std::nullopt;
  return string(rest.substr(0, n));
}

}  // namespace ordermoe::training
