#include <boost/test/unit_test.hpp>

#include "selector_oracle.hpp"
#include "selector_worlds.hpp"

namespace ordermoe::planning {
namespace {

using namespace drawn;

struct agreement {
  std::size_t n = 0, n_equal = 0;
  double excess = 0, largest = 0;  ///< Relative, summed and most.

  void add(double found, double least) {
    ++n;
    const double scale = std::max(1e-300, std::abs(least));
    const double over = (found - least) / scale;
    n_equal += close(found, least);
    excess += over;
    largest = std::max(largest, over);
  }
  std::string shown() const {
    return std::to_string(n_equal) + " of " + std::to_string(n) + " equal, mean excess " +
           std::to_string(excess / static_cast<double>(n)) + ", largest " + std::to_string(largest);
  }
};

shape draw_wider_shape(random_stream& random) {
  const auto top_k = 2 + random.below(2);
  return {2 + random.below(2), 1 + random.below(3), top_k + random.below(top_k == 2 ? 4 : 2),
          top_k};
}

BOOST_AUTO_TEST_SUITE(selector_experts)

BOOST_AUTO_TEST_CASE(keyed_by_experts_the_tables_stay_close_to_their_recursion) {
  for (const auto rule :
       {candidate_rule::exact, candidate_rule::local_only, candidate_rule::router_restricted,
        candidate_rule::group, candidate_rule::any})
    for (const bool distinct : {false, true}) {
      agreement values, decisions;
      for (std::uint64_t seed = 1; seed <= 60; ++seed) {
        random_stream random(seed, 77);
        const auto of = draw_wider_shape(random);
        const auto w = draw_world(random, of);
        auto policy = draw_policy(random, of);
        policy.candidates = rule;
        policy.distinct = distinct;
        policy.residence = residence_choice::free;
        const auto budget = draw_budget(random);
        const auto tables = built(w, policy, budget, look_ahead_keys::experts);
        BOOST_TEST_REQUIRE((tables->keys() == look_ahead_keys::experts));
        selection_oracle oracle(w.experts, w.placed, w.costs, policy, budget, true,
                                look_ahead_keys::experts);
        for (std::size_t trial = 0; trial < 3; ++trial) {
          asked a(random, w, *tables, of,
                  budget == unbounded_budget
                      ? budget
                      : static_cast<loss_units>(random.unit() * static_cast<double>(budget)));
          const auto set = random.below(w.experts.layers[a.query.layer].sets.size());
          const auto bin = random.below(tables->bins());
          values.add(tables->value(a.query.access, a.query.layer, a.query.server, set, bin),
                     oracle.value(a.query.access, a.query.layer, a.query.server, set, bin));
          const auto made = tables->select(a.query);
          if (rule != candidate_rule::router_restricted)
            BOOST_TEST_REQUIRE(spent(made) <= std::max<loss_units>(0, a.query.budget_left));
          decisions.add(made.cost, oracle.decide(a.query).cost);
        }
      }
      BOOST_TEST_MESSAGE(to_string(rule) << (distinct ? " distinct" : "") << ": values "
                                         << values.shown() << "; decisions " << decisions.shown());
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ordermoe::planning
