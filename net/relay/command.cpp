#include "net/relay/command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <sstream>
#include <vector>

namespace ordermoe::net {

namespace {

using what = relay_command::what;

constexpr auto all_commands =
    "delay to|back MS, rate to|back MBIT, stall to|back, release to|back, "
    "cut [after to|back BYTES] [refuse MS], flip to|back [CHANCE], status or quit";

/// The words of a line, taken from the front.
class words {
 public:
  explicit words(std::string_view line) {
    std::istringstream in{std::string(line)};
    std::copy(std::istream_iterator<std::string>(in), {}, std::back_inserter(all_));
  }
  bool done() const { return next_ == all_.size(); }
  /// Empty: there is none.
  std::string take() { return done() ? "" : all_[next_++]; }
  bool take_if(std::string_view word) {
    const bool found = !done() && all_[next_] == word;
    next_ += found ? 1 : 0;
    return found;
  }

 private:
  std::vector<std::string> all_;
  std::size_t next_ = 0;
};

error found(const std::string& word, const std::string& expected) {
  return {errc::usage, word.empty() ? fmt::format("found the line's end, expected {}", expected)
                                    : fmt::format("found '{}', expected {}", word, expected)};
}

result<direction> take_direction(words& line) {
  const auto word = line.take();
  for (const auto of : {direction::to, direction::back})
    if (word == to_string(of)) return of;
  return found(word, "to (the target) or back");
}

result<double> take_number(words& line, double most, const char* unit) {
  const auto word = line.take();
  double value = 0;
  const auto* end = word.data() + word.size();
  const auto read = std::from_chars(word.data(), end, value);
  if (read.ec == std::errc{} && read.ptr == end && value >= 0 && value <= most) return value;
  return found(word, fmt::format("0 to {:g}{}", most, unit));
}

result<std::uint64_t> take_bytes(words& line) {
  const auto word = line.take();
  std::uint64_t value = 0;
  const auto* end = word.data() + word.size();
  const auto read = std::from_chars(word.data(), end, value);
  if (read.ec == std::errc{} && read.ptr == end && value > 0) return value;
  return found(word, "a whole number of bytes above 0");
}

result<void> take_cut(words& line, cut_options& how) {
  if (line.take_if("after")) {
    const auto of = take_direction(line);
    if (!of) return of.error();
    const auto bytes = take_bytes(line);
    if (!bytes) return bytes.error();
    how.of = *of;
    how.after_bytes = *bytes;
  }
  if (line.take_if("refuse")) {
    const auto ms = take_number(line, most_delay_ms, " ms");
    if (!ms) return ms.error();
    how.refuse_ns = nanoseconds(*ms);
  }
  return {};
}

/// The direction, and the number where the command has one.
result<void> take_change(words& line, relay_command& into) {
  const auto of = take_direction(line);
  if (!of) return of.error();
  into.of = *of;
  if (into.kind == what::flip && line.done()) into.kind = what::flip_next;
  if (into.kind != what::delay && into.kind != what::rate && into.kind != what::flip) return {};
  const auto value = into.kind == what::delay  ? take_number(line, most_delay_ms, " ms")
                     : into.kind == what::rate ? take_number(line, most_rate_mbit, " Mbit/s")
                                               : take_number(line, 1, ", the chance of a byte");
  if (!value) return value.error();
  into.value = *value;
  return {};
}

result<what> take_kind(words& line) {
  constexpr std::pair<const char*, what> names[] = {
      {"delay", what::delay}, {"rate", what::rate},     {"stall", what::stall},
      {"cut", what::cut},     {"flip", what::flip},     {"release", what::release},
      {"quit", what::quit},   {"status", what::status},
  };
  const auto word = line.take();
  for (const auto& [name, kind] : names)
    if (word == name) return kind;
  return found(word, all_commands);
}

}  // namespace

std::uint64_t bytes_per_s(double mbit_per_s) {
  if (mbit_per_s == 0) return 0;
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::llround(mbit_per_s * 125'000)));
}

std::int64_t nanoseconds(double ms) {
  return std::llround(ms * 1e6);
}

result<relay_command> parse_relay_command(std::string_view text) {
  words line(text);
  relay_command read;
  const auto kind = take_kind(line);
  if (!kind) return kind.error();
  read.kind = *kind;
  if (*kind == what::cut) {
    if (auto taken = take_cut(line, read.how); !taken) return taken.error();
  } else if (*kind != what::status && *kind != what::quit) {
    if (auto taken = take_change(line, read); !taken) return taken.error();
  }
  if (!line.done()) return found(line.take(), "the line's end");
  return read;
}

link_conditions changed(link_conditions from, const relay_command& by) {
  if (by.kind == what::delay) from.delay_ns = nanoseconds(by.value);
  if (by.kind == what::rate) from.rate_bytes_per_s = bytes_per_s(by.value);
  if (by.kind == what::stall) from.stalled = true;
  if (by.kind == what::release) from.stalled = false;
  if (by.kind == what::flip) from.flip_chance = by.value;
  return from;
}

result<void> apply(const relay_command& command, relay& to) {
  switch (command.kind) {
    case what::status:
    case what::quit:
      break;
    case what::cut:
      to.cut(command.how);
      break;
    case what::flip_next:
      to.flip_next(command.of);
      break;
    default:
      return to.set(command.of, changed(to.conditions(command.of), command));
  }
  return {};
}

}  // namespace ordermoe::net
