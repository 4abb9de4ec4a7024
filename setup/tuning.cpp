#include "setup/tuning.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "setup/tried_prices.hpp"

namespace ordermoe::setup {

namespace {

// ns per nat. Below the least, a slot's 0.001 nats or so cost less than what a time is predicted by, and what seems faster need not
// be; above the highest, next to nothing is lost.
constexpr double least_price = 1e7, highest_price = 1e13;

/// A secant search on logarithmic scales for the price at which the spend meets the budget.
class price_search {
 public:
  price_search(double start_price, double budget_nats)
      : price_(std::log(std::clamp(start_price, least_price, highest_price))),
        target_(std::log(budget_nats)) {}

  double price() const { return price_; }
  /// Whether the last price spent about the same as the one before.
  bool is_flat() const { return is_flat_; }
  bool at_least() const { return price_ <= std::log(least_price); }

  /// What was spent at price(): another price follows.
  void note(double spent_nats) {
    const point here{price_, std::log(std::max(spent_nats, 1e-3 * std::exp(target_))), true};
    constexpr double hardly = 0.1, far = 0.5;
    is_flat_ = last_.known && std::abs(here.price - last_.price) > far &&
               std::abs(here.spend - last_.spend) < hardly;
    last_ = here;
    n_over_ = here.spend > target_ ? n_over_ + 1 : 0;
    if (here.spend > target_) {
      if (!over_.known || price_ > over_.price) over_ = here;
    } else if (!within_.known || price_ < within_.price) {
      within_ = here;
    }
    // What is within behind a dearer one that is not is not believed.
    if (over_.known && within_.known && within_.price <= over_.price) within_.known = false;
    if (over_.known && within_.known) return between();
    const auto& from = over_.known ? over_ : here;
    price_ = from.price;
    beyond(from);
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
    double step = (here.spend - target_) / elasticity + (over_.known ? 0.1 : -0.1);
    // What spends too much at price after price is far from the one that is sought.
    if (n_over_ > 1) step = std::max(step, n_over_ - 1.0);
    price_ += is_flat_ ? std::copysign(longest, step) : std::clamp(step, -longest, longest);
    price_ = std::clamp(price_, std::log(least_price), std::log(highest_price));
  }

  double price_, target_;
  point over_, within_, last_;
  bool is_flat_ = false;
  int n_over_ = 0;  ///< Prices that spent more than the budget, one after the other.
};

}  // namespace

actors::service_options tuned(actors::service_options service, const tuning& found) {
  auto& policy = service.chosen.policy;
  for (auto& layer : service.profile.layers) {
    layer.damage[static_cast<std::size_t>(policy.metric)] *= found.damage;
    for (auto& copy : layer.copies) copy.damage *= found.damage;
    if (layer.left_out) layer.left_out->damage *= found.left_out;
  }
  policy.price_ns_per_loss = found.price_ns_per_nat;
  return service;
}

tuning next_to_no_loss() {
  return {.price_ns_per_nat = highest_price};
}

namespace {

/// Where a search for a price came.
struct searched {
  std::optional<tried_price> kept;  ///< Of those that were tried.
  tuning next;  ///< The last one where that was near enough, else what would follow.
};

/// Whether the ledger counts about as much as it should, or more than nothing.
bool is_counted(const trial_score& found) {
  constexpr double factor = 2;
  const double wanted = found.to_count();
  return wanted <= 0 || found.predicted <= 0 ||
         (found.predicted <= wanted * factor && wanted <= found.predicted * factor);
}

/// What the damage is multiplied by where so many times what was predicted was measured. Where that is more, all of it: substitutes in many
/// layers may lose many times what each alone does. Where it is less, a part: the ledger that counted too much may be what kept the loss low.
double correction(double ratio) {
  return ratio > 1 ? std::min(ratio, 64.0) : std::max(0.25, std::sqrt(ratio));
}

/// What the texts may lose a token with 95 % confidence, with what is pruned for everybody.
double aimed_nats(const actors::service_options& service) {
  const auto& chosen = service.chosen;
  return aimed_share * static_cast<double>(chosen.token_budget) / planning::units_per_loss +
         aimed_share * chosen.pruned_nats.value_or(0);
}

/// Of a budget that is to be kept on so many times these texts.
result<searched> search_price(const actors::service_options& service, const tuning& start,
                              const scored_texts& texts, double times_as_many, tuning_limits limits,
                              const job& work, const std::function<void()>& told) {
  const double nats = aimed_nats(service);
  // What is pruned loses the same at every price.
  constexpr double least_share = 1e-3;
  const double pruned = std::max(0.0, texts.pruned().increase);
  price_search search(start.price_ns_per_nat, std::max(nats - pruned, nats * least_share));
  // The search is for price times damage: the more damage, the less a unit of it is to cost.
  double damage = 1;
  std::vector<tried_price> tried;
  searched ended;
  int left = limits.most_trials;
  const auto tell = [&] {
    if (left-- > 0 && told) told();
  };
  const auto here = [&] {
    return tuning{std::exp(search.price()) / damage, start.damage * damage,
                  start.left_out * damage};
  };
  ended.next = here();
  while (left > 0 || (!ended.kept && left > -limits.most_more)) {
    const auto found = texts.score(tuned(service, ended.next), work);
    if (!found) return found.error();
    tell();
    const double bound = found->bound(times_as_many);
    tried.push_back({search.price(), ended.next, *found});
    ended.kept = lowest_kept(tried, nats, times_as_many);
    const bool is_kept = ended.kept && ended.kept->price == search.price();
    const bool is_least = search.at_least();
    search.note(bound - pruned);
    const bool is_near = bound >= nats * (1 - limits.tolerance) || is_least || search.is_flat();
    if (is_kept && is_near && is_counted(*found)) break;
    if (found->predicted > 0) damage *= correction(found->to_count() / found->predicted);
    ended.next = here();
  }
  while (left > 0) tell();
  return ended;
}

}  // namespace

result<bool> is_kept_at(const actors::service_options& service, const tuning& at,
                        const scored_texts& texts, const job& work) {
  const auto found = texts.score(tuned(service, at), work);
  if (!found) return found.error();
  return found->bound() <= aimed_nats(service);
}

actors::service_options unlimited(actors::service_options service) {
  constexpr planning::loss_units times = 1000;
  auto& budget = service.chosen.token_budget;
  budget =
      budget < planning::unbounded_budget / times ? budget * times : planning::unbounded_budget;
  return service;
}

result<std::optional<tuning>> recounted(const actors::service_options& service, const tuning& at,
                                        const scored_texts& texts, const job& work) {
  const auto found = texts.score(unlimited(tuned(service, at)), work);
  if (!found) return found.error();
  if (found->bound() > aimed_nats(service)) return std::optional<tuning>();
  // The search may have made it far too dear by now.
  constexpr double least = 1e-4, most = 64;
  const double ratio =
      found->predicted > 0 ? std::clamp(found->to_count() / found->predicted, least, most) : 1.0;
  return std::optional(tuning{at.price_ns_per_nat / ratio, at.damage * ratio, at.left_out * ratio});
}

result<tuning> tune(const actors::service_options& service, const tuning& start,
                    const scored_texts& texts, tuning_limits limits, const job& work,
                    const std::function<void()>& told) {
  const auto ended = search_price(service, start, texts, 1, limits, work, told);
  if (!ended) return ended.error();
  return ended->kept ? ended->kept->at : tuning{highest_price, start.damage, start.left_out};
}

result<tuning> tune_about(const actors::service_options& service, const tuning& start,
                          const scored_texts& texts, double times_as_many, tuning_limits limits,
                          const job& work, const std::function<void()>& told) {
  const auto ended = search_price(service, start, texts, times_as_many, limits, work, told);
  if (!ended) return ended.error();
  return ended->next;
}

}  // namespace ordermoe::setup
