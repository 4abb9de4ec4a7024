#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// Which of a strategy's plans are worth what tuning one to a budget takes.
namespace ordermoe::setup {

/// What is about the price of a plan of one kind says little of the price of another's.
enum class plan_kind : std::uint8_t {
  whole,  ///< No expert stands outside.
  core,  ///< More experts are outside than the budget would let `static-pruning` do without: positions have to go there at times.
  pruned_core,  ///< No more: as good as all of its positions can do without.
};
inline constexpr std::size_t n_plan_kinds = 3;

/// How a plan answers the trial load at about its price.
struct tried_plan {
  plan_kind of = plan_kind::whole;
  double ms = 0;       ///< Infinite where it does not fit.
  double lost_ms = 0;  ///< What a request's ledger counted, at that price.
};

/// So many at most are worth tuning: two of each kind where there are as many.
inline constexpr std::size_t most_tuned = 2 * n_plan_kinds;

/// Places of most_tuned of them, or of all, ascending: of each kind the fastest, and the one for which that takes least with what is lost priced, too, or where
/// that is the same one the next by that order; then the fastest of all that are left. At one price the plan that loses more is the faster one; but what a
/// ledger bounds goes by no price.
std::vector<std::size_t> worth_tuning(std::span<const tried_plan> tried);

/// Places of the fastest at the price that was sought for each, and of the fastest of another kind, or where there is none of the next: what was sought on few
/// texts misleads about all plans of a kind alike. One or none where there are no more.
std::vector<std::size_t> worth_judging(std::span<const tried_plan> sought);

}  // namespace ordermoe::setup
