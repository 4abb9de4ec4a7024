#include "bench/experiments/testbed/waiting.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/loss_units.hpp"
#include "planning/cost_model.hpp"
#include "trace/fields.hpp"

namespace ordermoe::experiments::testbed {

namespace {

struct executed {
  std::size_t expert = 0, executor = 0;
};

/// One decision about one decoded row.
struct decision {
  std::size_t position = 0, layer = 0, server = 0, residence = 0;
  std::int64_t time_ns = 0;
  std::vector<executed> slots;
};

struct way {
  double network_ns = 0, compute_ns = 0;
  double total() const { return network_ns + compute_ns; }
};

class token_times {
 public:
  token_times(const cluster& servers, const cost_profile& costs, const planning::plan& placed)
      : servers_(servers),
        costs_(costs),
        prices_(planning::make_cost_model(planning::with_precisions(servers, placed), costs)),
        n_experts_(placed.n_experts),
        n_layers_(placed.n_layers),
        offloaded_(planning::offloaded_flags(placed)) {}

  /// Of `before`, up to where `next` was decided.
  void add(const decision& before, const decision& next) {
    auto least = longest_way(before);
    least.compute_ns += prices_.attention_ns[next.server];
    if (next.position != before.position) {
      least.compute_ns += prices_.head_ns[before.residence];
      if (before.residence != next.server)
        least.network_ns += prices_.message(before.residence, next.server);
    }
    const auto taken = static_cast<double>(next.time_ns - before.time_ns);
    network_ns_ += least.network_ns;
    compute_ns_ += least.compute_ns;
    waiting_ns_ += taken - least.total();
    n_decisions_ += 1;
  }

  time_parts per_position() const {
    if (n_decisions_ == 0) return {};
    const double ms = 1e-6 * static_cast<double>(n_layers_) / n_decisions_;
    return {network_ns_ * ms, compute_ns_ * ms, waiting_ns_ * ms};
  }

 private:
  double batch_ns(std::size_t layer, const executed& slot) const {
    if (!offloaded_.empty() && offloaded_[slot.executor][layer * n_experts_ + slot.expert] != 0) {
      const auto& server = servers_.servers[slot.executor];
      return static_cast<double>(
          offloaded_ns(server, costs_.expert_flops, expert_bytes(server, costs_)));
    }
    return prices_.expert_ns[slot.executor];
  }

  /// Slots that share a substitute run once.
  static bool is_repeated(const std::vector<executed>& slots, std::size_t i) {
    const auto end = slots.begin() + static_cast<std::ptrdiff_t>(i);
    return std::any_of(slots.begin(), end, [&](const executed& before) {
      return before.expert == slots[i].expert && before.executor == slots[i].executor;
    });
  }

  /// Experts of one server run one after the other.
  way longest_way(const decision& made) const {
    way longest{prices_.hidden(made.server, made.residence), 0};
    std::vector<std::size_t> visited;
    for (const auto& slot : made.slots)
      if (std::ranges::find(visited, slot.executor) == visited.end())
        visited.push_back(slot.executor);
    for (const auto server : visited) {
      way there{prices_.hidden(made.server, server) + prices_.hidden(server, made.residence), 0};
      for (std::size_t i = 0; i < made.slots.size(); ++i)
        if (made.slots[i].executor == server && !is_repeated(made.slots, i))
          there.compute_ns += batch_ns(made.layer, made.slots[i]);
      if (there.total() > longest.total()) longest = there;
    }
    return longest;
  }

  const cluster& servers_;
  const cost_profile& costs_;
  planning::cost_model prices_;
  std::size_t n_experts_, n_layers_;
  std::vector<std::vector<std::uint8_t>> offloaded_;
  double network_ns_ = 0, compute_ns_ = 0, waiting_ns_ = 0, n_decisions_ = 0;
};

bool follows(const decision& before, const decision& next, std::size_t n_layers) {
  if (next.position == before.position) return next.layer == before.layer + 1;
  return next.position == before.position + 1 && next.layer == 0 && before.layer + 1 == n_layers;
}

/// The decisions of one request's decoded rows, one after the other.
struct request_path {
  std::size_t prompt_tokens = 0;
  std::optional<decision> before, open;
};

class path_reader {
 public:
  path_reader(token_times& times, std::size_t n_layers) : times_(times), n_layers_(n_layers) {}

  bool read(std::string_view line) {
    const auto type = trace::line_type(line);
    if (type == "slot") return read_slot(line);
    if (type != "request") return true;
    trace::line_fields fields(line);
    const auto request = fields.integer<std::uint64_t>("request");
    fields.integer<std::uint32_t>("access");
    requests_[request].prompt_tokens = fields.integer<std::uint32_t>("prompt_tokens", 1);
    return !fields.failed();
  }

  void finish() {
    for (auto& each : requests_) close(each.second);
  }

 private:
  bool read_slot(std::string_view line) {
    trace::line_fields fields(line);
    auto& path = requests_[fields.integer<std::uint64_t>("request")];
    fields.integer<std::uint32_t>("attempt");
    fields.integer<std::uint32_t>("first");
    decision made;
    made.position = fields.integer<std::uint32_t>("position");
    if (!fields.failed() && made.position < path.prompt_tokens) return true;
    made.layer = fields.integer<std::uint32_t>("layer");
    const auto slot = fields.integer<std::uint32_t>("slot");
    fields.integer<std::uint32_t>("access");
    made.server = fields.integer<std::uint32_t>("server");
    made.residence = fields.integer<std::uint32_t>("residence");
    fields.integer<std::uint32_t>("target");
    fields.number("gate");
    executed ran;
    ran.expert = fields.integer<std::uint32_t>("expert");
    ran.executor = fields.integer<std::uint32_t>("executor");
    const bool is_left_out = fields.word("kind") == "left_out";
    for (const auto* loss : {"loss", "allowance_left", "pool_left"})
      fields.integer<loss_units>(loss);
    fields.integer<std::uint64_t>("snapshot");
    made.time_ns = fields.amount("time_ns");
    if (fields.failed()) return false;
    if (slot == 0) {
      close(path);
      path.open = std::move(made);
    }
    if (path.open && !is_left_out) path.open->slots.push_back(ran);
    return true;
  }

  void close(request_path& path) {
    if (!path.open) return;
    if (path.before && follows(*path.before, *path.open, n_layers_))
      times_.add(*path.before, *path.open);
    path.before = std::move(path.open);
    path.open.reset();
  }

  token_times& times_;
  std::size_t n_layers_;
  std::map<std::uint64_t, request_path> requests_;
};

}  // namespace

result<time_parts> time_parts_of(const std::filesystem::path& trace, const cluster& servers,
                                 const cost_profile& costs, const planning::plan& placed) {
  std::ifstream lines(trace);
  if (!lines)
    return error{errc::io, fmt::format("{}: cannot be read; measure again", trace.string())};
  token_times times(servers, costs, placed);
  path_reader reader(times, placed.n_layers);
  std::string line;
  for (std::size_t number = 1; std::getline(lines, line); ++number)
    if (!reader.read(line))
      return error{errc::malformed,
                   fmt::format("{}:{}: found no line of a trace", trace.string(), number)};
  reader.finish();
  return times.per_position();
}

}  // namespace ordermoe::experiments::testbed
