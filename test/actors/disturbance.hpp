#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/reference.hpp"
#include "test/actors/living.hpp"

/// Runs whose emulated links treat frames badly, by seed. Every answer must be the reference's.
namespace ordermoe::test {

enum class mischief {
  duplicates,  ///< Every frame comes again, and again.
  delays,      ///< Some frames come up to 300 ms late.
  storm,       ///< Every frame 0 to 20 ms late, 30 % again and again, actors in any order.
  restarts,    ///< A storm, and requests begin again at random moments.
  drops        ///< Some frames never come.
};

inline const std::map<std::string, mischief>& mischiefs() {
  static const std::map<std::string, mischief> names{{"duplicates", mischief::duplicates},
                                                     {"delays", mischief::delays},
                                                     {"storm", mischief::storm},
                                                     {"restarts", mischief::restarts},
                                                     {"drops", mischief::drops}};
  return names;
}

/// Strategies whose answers are exact: `paper` and `ordermoe` at a budget of 0.
inline const std::vector<std::string>& exact_strategies() {
  static const std::vector<std::string> names{"exact", "layer-shards", "paper", "ordermoe"};
  return names;
}

/// A world for disturbed runs and what its requests must be answered with.
class disturbed_world {
 public:
  explicit disturbed_world(const std::string& strategy, double quality_percent = 0)
      : world_(strategy, quality_percent), spends_(quality_percent > 0) {
    world_.setup.chunk_rows = 4;
    world_.setup.keep_final_hidden = false;
    world_.add_requests(8, 6, 0.8, 12);
    for (std::size_t i = 0; i < world_.setup.requests.size(); ++i)
      reference_.push_back(reference_ids(*world_.setup.model, world_.setup.requests[i], i));
  }

  /// The requests state these in turn.
  void state_budgets(const std::vector<std::optional<double>>& percent) {
    for (std::size_t i = 0; i < world_.setup.requests.size(); ++i)
      world_.setup.requests[i].quality_percent = percent[i % percent.size()];
  }

  /// Planned anew, without so many experts.
  void prune(std::size_t n_experts) {
    auto& setup = world_.setup;
    planning::strategy_options options;
    options.cut = n_experts;
    auto made = planning::make_strategy(setup.chosen.name, setup.profile, setup.servers,
                                        setup.costs, options);
    BOOST_REQUIRE_MESSAGE(made, (made ? "" : made.error().message));
    BOOST_REQUIRE(!made->plan.pruned.empty());
    setup.chosen = std::move(*made);
    spends_ = true;
  }

  /// The requests are texts that are scored, behind prompts of one to five tokens.
  void score_texts();

  /// Empty where the run of this seed is as it must be; else what went wrong.
  std::string run(mischief kind, std::uint64_t seed) const;
  /// Attempts beyond the first, and requests that ended with an error, in the latest run.
  std::size_t later_attempts() const { return later_attempts_; }
  std::size_t failed() const { return failed_; }
  /// Of budgets, in the latest run.
  loss_units spent() const { return spent_; }

 private:
  actors::service_options options(mischief kind, std::uint64_t seed) const;

  world world_;
  bool spends_ = false;  ///< A budget allows answers that are not the reference's.
  std::vector<std::vector<std::int32_t>> reference_;
  std::vector<std::vector<double>> losses_;  ///< Of requests, where they are scored.
  mutable loss_units spent_ = 0;
  mutable std::size_t later_attempts_ = 0, failed_ = 0;
};

inline void disturbed_world::score_texts() {
  reference_.clear();
  std::uint32_t after = 0;
  for (auto& spec : world_.setup.requests) {
    spec.score = true;
    spec.scored_after = 1 + after++ % 5;
    for (std::int32_t id = 3; id < 10; ++id) spec.prompt.push_back(id);
    reference_.emplace_back(spec.prompt.begin() + spec.scored_after, spec.prompt.end());
    auto losses = model::token_losses(*world_.setup.model, spec.prompt);
    BOOST_REQUIRE(losses.has_value());
    losses_.emplace_back(losses->begin() + spec.scored_after - 1, losses->end());
  }
}

inline actors::service_options disturbed_world::options(mischief kind, std::uint64_t seed) const {
  auto world = world_;
  // Memory for one request at a time wherever requests wait for each other.
  if (kind == mischief::storm || kind == mischief::restarts) leave_memory_for_one_request(world);
  actors::service_options options = world.setup;
  auto& bad = options.bad_links;
  bad.seed = seed;
  switch (kind) {
    case mischief::duplicates:
      bad.repeated_share = 0.5;
      break;
    case mischief::delays:
      bad.most_delay_ns = 300'000'000;
      bad.delayed_share = 0.05;
      break;
    case mischief::storm:
    case mischief::restarts:
      bad.most_delay_ns = 20'000'000;
      bad.repeated_share = 0.3;
      options.order_seed = seed;
      break;
    case mischief::drops:
      bad.dropped_share = 0.003;
      break;
  }
  return options;
}

inline std::string disturbed_world::run(mischief kind, std::uint64_t seed) const {
  later_attempts_ = failed_ = 0;
  spent_ = 0;
  auto begun = actors::service::start(options(kind, seed));
  if (!begun) return begun.error().message;
  auto& service = **begun;
  std::vector<followed_request> requests(world_.setup.requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].spec = world_.setup.requests[i];
    service.submit(requests[i].spec, requests[i].sink());
  }
  random_stream draws(seed, 0x72657374617274);
  if (kind == mischief::restarts)
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto request = draws.below(requests.size());
      const auto after = static_cast<std::int64_t>(draws.below(1'500'000'000));
      service.at(requests[request].spec.arrival_ns + after,
                 [&service, request] { service.restart(request); });
    }
  if (!service.run_until([&] { return service.outstanding() == 0; }))
    return fmt::format("{} requests wait for ever", service.outstanding());
  // What a lost release left is given back when its lease is over.
  if (kind == mischief::drops) {
    bool later = false;
    service.at(service.now_ns() + 2 * 3'700'000'000'000, [&] { later = true; });
    service.run_until([&] { return later; });
  }
  if (auto settled = service.settle(); !settled) return settled.error().message;
  const auto status = service.status();
  if (!status) return status.error().message;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto& one = requests[i];
    if (!one.mistake.empty()) return fmt::format("request {}: {}", i, one.mistake);
    later_attempts_ += one.ended->attempts - 1;
    if (one.ended->problem) {
      ++failed_;
      if (kind != mischief::drops)
        return fmt::format("request {}: {}", i, one.ended->problem->message);
      continue;
    }
    spent_ += one.ended->spent;
    if (one.ended->spent > one.ended->budget)
      return fmt::format("request {}: spent {} of {}", i, one.ended->spent, one.ended->budget);
    const bool is_exact = !spends_ || one.spec.quality_percent == 0.0;
    if (is_exact && one.streamed != reference_[i]) return fmt::format("request {}: other ids", i);
    if (is_exact && one.spec.score && one.ended->losses != losses_[i])
      return fmt::format("request {}: other losses", i);
  }
  if (auto wrong = contradiction(*status); !wrong.empty()) return wrong;
  return left_behind(*status);
}

}  // namespace ordermoe::test
