#include "bench/experiments/testbed/point.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>

#include "planning/strategies/strategies.hpp"

namespace ordermoe::experiments::testbed {

namespace {

template <class Number>
std::string or_empty(const std::optional<Number>& value) {
  return value ? fmt::format("{}", *value) : std::string();
}

/// Reads cells one after the other; the first that is wrong is remembered.
class cell_reader {
 public:
  explicit cell_reader(const std::vector<std::string>& cells) : cells_(cells) {}

  const std::string& text() { return cells_[next_++]; }
  template <class Number>
  Number number() {
    const auto& column = point_columns()[next_];
    const auto& cell = cells_[next_++];
    Number value{};
    const auto* end = cell.data() + cell.size();
    const auto read = std::from_chars(cell.data(), end, value);
    if ((read.ec != std::errc() || read.ptr != end) && !problem_)
      problem_ = error{errc::malformed,
                       fmt::format("column {}: found '{}', expected a number", column, cell)};
    return value;
  }
  template <class Number>
  std::optional<Number> number_or_none() {
    if (!cells_[next_].empty()) return number<Number>();
    ++next_;
    return std::nullopt;
  }
  precision kept() {
    const auto read = parse_precision(text());
    if (!read && !problem_) problem_ = at("column experts", read.error());
    return read ? *read : precision::stored;
  }
  const std::optional<error>& problem() const { return problem_; }

 private:
  const std::vector<std::string>& cells_;
  std::size_t next_ = 0;
  std::optional<error> problem_;
};

}  // namespace

const std::vector<std::string>& point_columns() {
  static const std::vector<std::string> names{
      "strategy",     "budget_percent", "without",    "threshold", "horizon",     "experts",
      "memory_ratio", "servers",        "sites",      "site_ms",   "uplink_mbit", "message_us",
      "batch_us",     "prompt_tokens",  "rate_per_s", "seed"};
  return names;
}

std::vector<std::string> point_cells(const point& what) {
  return {what.strategy,
          fmt::format("{}", what.percent),
          what.without,
          or_empty(what.threshold),
          or_empty(what.horizon),
          to_string(what.kept),
          fmt::format("{}", what.memory_ratio),
          fmt::format("{}", what.n_servers),
          fmt::format("{}", what.n_sites),
          fmt::format("{}", what.site_ms),
          fmt::format("{}", what.uplink_mbit),
          fmt::format("{}", what.message_us),
          fmt::format("{}", what.batch_us),
          fmt::format("{}", what.prompt_tokens),
          fmt::format("{}", what.rate),
          fmt::format("{}", what.seed)};
}

result<point> point_of(const std::vector<std::string>& cells) {
  if (cells.size() != point_columns().size())
    return error{errc::malformed, fmt::format("found {} cells of a point, expected {}",
                                              cells.size(), point_columns().size())};
  cell_reader read(cells);
  point made;
  made.strategy = read.text();
  made.percent = read.number<double>();
  made.without = read.text();
  made.threshold = read.number_or_none<double>();
  made.horizon = read.number_or_none<std::size_t>();
  made.kept = read.kept();
  made.memory_ratio = read.number<double>();
  made.n_servers = read.number<std::size_t>();
  made.n_sites = read.number<std::size_t>();
  made.site_ms = read.number<double>();
  made.uplink_mbit = read.number<double>();
  made.message_us = read.number<double>();
  made.batch_us = read.number<double>();
  made.prompt_tokens = read.number<std::size_t>();
  made.rate = read.number<double>();
  made.seed = read.number<std::uint64_t>();
  if (read.problem()) return *read.problem();
  return made;
}

std::string key_of(const point& what) {
  return fmt::format("{}", fmt::join(point_cells(what), ","));
}

point normal_form(point what) {
  constexpr std::size_t any_top_k = 2;
  const auto* record = planning::find_strategy(what.strategy);
  if (record != nullptr && what.horizon == record->policy(any_top_k).horizon) what.horizon.reset();
  return what;
}

std::string variant_name(const point& what) {
  auto name = planning::printed_strategy_name(what.strategy);
  const auto* record = planning::find_strategy(what.strategy);
  if (record != nullptr && record->has_budget)
    name += what.percent < 0 ? std::string(" unbounded") : fmt::format(" {:g} %", what.percent);
  if (what.horizon == std::size_t{1}) name += " without look-ahead";
  if (!what.without.empty()) name += " without " + what.without;
  return name;
}

cost_profile costs_of(const point& what, cost_profile costs) {
  constexpr double ns_per_us = 1e3;
  if (what.message_us > 0) costs.message_ns = std::llround(what.message_us * ns_per_us);
  if (what.batch_us > 0) costs.batch_ns = std::llround(what.batch_us * ns_per_us);
  return costs;
}

cluster servers_of(const point& what, const cost_profile& costs, std::size_t n_layers,
                   std::size_t n_experts) {
  draw_options draw;
  draw.n_servers = what.n_servers;
  draw.seed = what.seed;
  draw.n_sites = what.n_sites;
  constexpr double bytes_per_mbit = 125e3;
  draw.uplink_bytes_per_s = what.uplink_mbit * bytes_per_mbit;
  draw.memory_ratio = what.memory_ratio;
  draw.costs = costs;
  draw.n_layers = n_layers;
  draw.n_experts = n_experts;
  auto drawn = draw_cluster(draw);
  if (what.n_sites < 2) return drawn;
  for (std::size_t i = 0; i < drawn.size(); ++i)
    for (std::size_t j = 0; j < drawn.size(); ++j)
      if (i % what.n_sites != j % what.n_sites)
        drawn.links[i * drawn.size() + j].latency_ns = std::llround(what.site_ms * 1e6);
  return drawn;
}

}  // namespace ordermoe::experiments::testbed
