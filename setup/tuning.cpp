#include "setup/tuning.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

namespace ordermoe::setup {

namespace {

constexpr double least_price = 1e5,
                 highest_price = 1e13;  // ns per nat: next to nothing, next to never

/// A secant search on logarithmic scales for the price at which the spend meets the budget.
class price_search {
 public:
  price_search(double start_price, double budget_nats)
      : price_(std::log(std::clamp(start_price, least_price, highest_price))),
        target_(std::log(budget_nats)) {}

  double price() const { return price_; }
  bool at_least() const { return price_ <= std::log(least_price); }

  /// What was spent at price(): another price follows.
  void note(double spent_nats) {
    const point here{price_, std::log(std::max(spent_nats, 1e-3 * std::exp(target_))), true};
    if (here.spend > target_) {
      if (!over_.known || price_ > over_.price) over_ = here;
    } else if (!within_.known || price_ < within_.price) {
      within_ = here;
    }
    if (over_.known && within_.known)
      between();
    else
      beyond(here);
  }

 private:
  struct point {
    double price = 0, spend = 0;
    bool known = false;
  };

  void between() {
    const double width = within_.price - over_.price;
    const double share = (over_.spend - target_) / (over_.spend - within_.spend);
    price_ = over_.price + width * std::clamp(share, 0.1, 0.9);
  }

  void beyond(const point& here) {
    constexpr double elasticity = 0.7, longest = 4;  // of spend in price; steps of e^4 at most
    price_ += std::clamp((here.spend - target_) / elasticity + (over_.known ? 0.1 : -0.1), -longest,
                         longest);
    price_ = std::clamp(price_, std::log(least_price), std::log(highest_price));
  }

  double price_, target_;
  point over_, within_;
};

}  // namespace

actors::service_options tuned(actors::service_options service, const tuning& found) {
  auto& policy = service.chosen.policy;
  for (auto& layer : service.profile.layers) {
    layer.damage[static_cast<std::size_t>(policy.metric)] *= found.damage;
    for (auto& copy : layer.copies) copy.damage *= found.damage;
  }
  policy.price_ns_per_loss = found.price_ns_per_nat;
  return service;
}

tuning next_to_no_loss() {
  return {.price_ns_per_nat = highest_price};
}

result<tuning> tune(const actors::service_options& service, const tuning& start,
                    const scored_texts& texts, tuning_limits limits, const job& work,
                    const std::function<void()>& told) {
  const double nats = static_cast<double>(service.chosen.token_budget) / planning::units_per_loss;
  price_search search(start.price_ns_per_nat, nats);
  // The search is for price times damage: the more damage, the less a unit of it is to cost.
  double damage = 1;
  std::optional<double> best_price;
  tuning best{highest_price, start.damage};
  int left = limits.most_trials;
  const auto tell = [&] {
    --left;
    if (told) told();
  };
  while (left > 0) {
    const tuning here{std::exp(search.price()) / damage, start.damage * damage};
    const auto found = texts.score(tuned(service, here), work);
    if (!found) return found.error();
    tell();
    const double bound = found->bound();
    if (bound <= nats) {
      if (!best_price || search.price() < *best_price) {
        best_price = search.price();
        best = here;
      }
      if (bound >= nats * (1 - limits.tolerance) || search.at_least()) break;
    }
    if (found->increase > 0 && found->predicted > 0)
      damage *= std::clamp(found->increase / found->predicted, 0.25, 4.0);
    search.note(bound);
  }
  while (left > 0) tell();
  return best;
}

}  // namespace ordermoe::setup
