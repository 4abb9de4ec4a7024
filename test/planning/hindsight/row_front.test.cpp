#include "planning/hindsight/row_front.hpp"

#include <boost/test/unit_test.hpp>
#include <map>
#include <set>

#include "config/random.hpp"
#include "test/support/seeds.hpp"

using namespace ordermoe;
using namespace ordermoe::planning;

namespace {

struct instance {
  cost_model prices;
  row_choices row;
  std::size_t from = 0, to = 0;
};

instance drawn_instance(random_stream& random, std::size_t n_slots) {
  instance drawn;
  const auto n = 1 + random.below(3);
  auto& prices = drawn.prices;
  prices.n_servers = n;
  for (std::size_t from = 0; from < n; ++from)
    for (std::size_t to = 0; to < n; ++to)
      prices.hidden_ns.push_back(from == to ? 0 : static_cast<double>(1 + random.below(6)));
  for (std::size_t m = 0; m < n; ++m)
    prices.expert_ns.push_back(static_cast<double>(1 + random.below(4)));
  drawn.from = random.below(n);
  drawn.to = random.below(n);
  auto& row = drawn.row;
  row.distinct = random.below(2) == 0;
  row.one_slot_runs = random.below(4) == 0;
  row.with_slot = n_slots == 1 && random.below(2) == 0;
  const bool leaves = random.below(3) == 0;
  for (std::size_t j = 0; j < n_slots; ++j) {
    row_slot slot;
    for (std::uint32_t e = 0; e < 4; ++e)
      for (std::size_t m = 0; m < n; ++m)
        if (random.below(3) != 0)
          slot.places.push_back(
              {static_cast<loss_units>(random.below(3) == 0 ? 0 : random.below(9)), e,
               static_cast<std::uint8_t>(m), random.below(5) == 0});
    if (leaves) {
      slot.may_be_left_out = random.below(std::uint64_t{1} << n);
      slot.loss_left_out = static_cast<loss_units>(1 + random.below(20));
    }
    row.slots.push_back(std::move(slot));
  }
  return drawn;
}

/// The least loss by time of every assignment there is.
std::map<double, loss_units> enumerated(const instance& of) {
  std::map<double, loss_units> least;
  const auto& prices = of.prices;
  std::vector<const slot_place*> taken;
  const auto fill = [&](const auto& self, loss_units loss) -> void {
    const auto j = taken.size();
    if (j == of.row.slots.size()) {
      std::map<std::size_t, std::set<std::uint32_t>> run;
      for (const auto* place : taken)
        if (place != nullptr) run[place->server].insert(place->expert);
      if (run.empty() && of.row.one_slot_runs) return;
      double ns = prices.hidden(of.from, of.to);
      for (const auto& [m, experts] : run)
        ns = std::max(ns, prices.hidden(of.from, m) +
                              static_cast<double>(experts.size()) * prices.expert_ns[m] +
                              prices.hidden(m, of.to));
      const auto known = least.emplace(ns, loss).first;
      known->second = std::min(known->second, loss);
      return;
    }
    const auto& slot = of.row.slots[j];
    for (const auto& place : slot.places) {
      if (place.at_token_alone && place.server != of.from) continue;
      if (of.row.with_slot && place.server != of.to) continue;
      bool is_taken = false;
      for (const auto* other : taken)
        is_taken = is_taken || (other != nullptr && other->expert == place.expert);
      if (is_taken && of.row.distinct) continue;
      taken.push_back(&place);
      self(self, loss + place.loss);
      taken.pop_back();
    }
    if (((slot.may_be_left_out >> of.from) & 1u) == 0) return;
    taken.push_back(nullptr);
    self(self, loss + slot.loss_left_out);
    taken.pop_back();
  };
  fill(fill, 0);
  // Only what loses less than all that is faster.
  loss_units best = forbidden;
  std::erase_if(least, [&](const auto& point) {
    const bool worse = point.second >= best;
    best = std::min(best, point.second);
    return worse;
  });
  return least;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(row_front)

BOOST_AUTO_TEST_CASE(a_front_is_that_of_all_assignments) {
  const auto range = test::seeds(600);
  std::size_t longest = 0;
  for (auto seed = range.first; seed <= range.last; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      random_stream random(seed, 2);
      auto drawn = drawn_instance(random, 1 + seed % 4);
      const auto expected = enumerated(drawn);
      row_fronts::sort(drawn.row);
      row_fronts fronts(drawn.prices);
      const auto& found = fronts.between(drawn.row, drawn.from, drawn.to);
      BOOST_REQUIRE(found.size() == expected.size());
      longest = std::max(longest, found.size());
      auto point = found.begin();
      for (const auto& [ns, loss] : expected) {
        BOOST_TEST(point->ns == ns);
        BOOST_TEST(point->loss == loss);
        BOOST_TEST(point->least_loss == loss);
        ++point;
      }
    }
  }
  if (range.last - range.first + 1 >= 100) BOOST_TEST(longest >= 4u);
}

BOOST_AUTO_TEST_CASE(a_search_that_is_given_up_is_a_bound_and_says_so) {
  std::size_t given_up = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      random_stream random(seed, 3);
      auto drawn = drawn_instance(random, 3);
      const auto expected = enumerated(drawn);
      row_fronts::sort(drawn.row);
      row_fronts fronts(drawn.prices, 3);
      const auto found = fronts.between(drawn.row, drawn.from, drawn.to);
      for (const auto& [ns, loss] : expected) {
        loss_units reached = forbidden, bound = forbidden;
        for (const auto& point : found)
          if (point.ns <= ns) {
            reached = std::min(reached, point.loss);
            bound = std::min(bound, point.least_loss);
          }
        BOOST_TEST(reached >= loss);
        BOOST_TEST(bound <= loss);
        given_up += reached != bound;
      }
    }
  }
  BOOST_TEST(given_up > 0u);
}

BOOST_AUTO_TEST_SUITE_END()
