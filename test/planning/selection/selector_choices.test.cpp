#include <array>
#include <bit>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <string_view>
#include <vector>

#include "config/random.hpp"
#include "planning/selection/selector.hpp"
#include "test/planning/selection/selector_worlds.hpp"

/// Decisions as they were recorded before the selector was made faster: whatever is done about its speed, every choice, its
/// time, its cost and the values behind it stay what they were, bit by bit and ties included. Worlds are drawn by arithmetic
/// alone, so that the record holds on every machine.
///
/// Who changes what is chosen on purpose prints the record anew: ORDERMOE_PRINT_CHOICES=1 with this test.
namespace ordermoe::planning {
namespace {

using namespace drawn;

/// A chain of what was chosen.
class record {
 public:
  void add(std::uint64_t bits) { chain_ = mix64(chain_ ^ bits); }
  void add(double number) { add(std::bit_cast<std::uint64_t>(number)); }
  void add(const decision& made) {
    add(std::uint64_t{made.residence});
    for (std::size_t j = 0; j < made.n_slots; ++j) {
      add(std::uint64_t{made.slots[j].server} << 32 | made.slots[j].expert);
      add(static_cast<std::uint64_t>(made.slots[j].loss));
    }
    add(made.time_ns);
    add(made.cost);
  }
  std::uint64_t value() const { return chain_; }

 private:
  std::uint64_t chain_ = 0;
};

constexpr shape shapes[] = {{2, 2, 3, 1},  {4, 3, 5, 2},  {3, 3, 5, 3},   {9, 2, 4, 2},
                            {12, 2, 9, 1}, {5, 2, 24, 1}, {8, 3, 200, 1}, {6, 2, 16, 2},
                            {8, 2, 40, 2}, {7, 3, 60, 4}, {10, 2, 64, 8}, {8, 2, 128, 8}};
constexpr std::size_t n_rules = 9;

/// A policy of this rule that the tables of this shape can hold, half of them with a price.
selection_policy draw_policy_of(candidate_rule rule, random_stream& random, const shape& of) {
  auto policy = draw_policy(random, of);
  policy.candidates = rule;
  if (rule == candidate_rule::here_or_target) policy.distinct = true;
  policy.price_follows_budget = true;
  if (random.below(2) == 0) policy.price_ns_per_loss = random.uniform(1e3, 1e5);
  // A drawn residency does not always let a token move with its slot.
  policy.residence = residence_choice::free;
  return policy;
}

/// What the snapshot has waiting, from a coarse grid, so that ties occur.
struct drawn_load {
  std::vector<std::int64_t> waits;
  std::vector<double> links;

  drawn_load(random_stream& random, const selection_tables& tables, const shape& of)
      : links(busy_links(random, tables.link_ns())) {
    for (std::size_t m = 0; m < of.n_servers; ++m)
      waits.push_back(static_cast<std::int64_t>(1000 * random.below(4)));
  }
};

void record_decisions(record& into, random_stream& random, const world& w,
                      const selection_tables& tables, const shape& of) {
  const auto budget = tables.token_budget();
  for (std::size_t trial = 0; trial < 6; ++trial) {
    const auto left =
        budget == unbounded_budget || random.below(4) == 0
            ? budget
            : static_cast<loss_units>(random.unit() * 1.2 * static_cast<double>(budget));
    asked a(random, w, tables, of, left);
    const drawn_load load(random, tables, of);
    if (random.below(3) != 0) a.query.wait_ns = load.waits;
    if (random.below(3) != 0) a.query.link_ns = load.links;
    if (random.below(4) == 0)
      a.query.residences = 1 + random.below((std::uint64_t{1} << of.n_servers) - 1);
    into.add(tables.select(a.query));
  }
  for (std::size_t layer = 0; layer < of.n_layers; ++layer)
    into.add(tables.value(random.below(of.n_servers), layer, random.below(of.n_servers), 0,
                          random.below(tables.bins())));
}

/// Worlds of one shape under one rule.
std::uint64_t recorded(const shape& of, candidate_rule rule) {
  record made;
  const std::size_t n_worlds = of.n_experts < 32 ? 24 : of.top_k == 1 ? 6 : 4;
  for (std::uint64_t seed = 1; seed <= n_worlds; ++seed) {
    random_stream random(seed, 81);
    auto w = draw_world(random, of);
    // Half the worlds let attention run everywhere, as plans of `ordermoe` often do.
    if (seed % 2 == 0) {
      for (auto& members : w.placed.residence)
        members.layers.assign(of.n_layers, all_servers(of.n_servers));
    }
    if (seed % 3 == 0) draw_copies(random, w);
    const auto policy = draw_policy_of(rule, random, of);
    const auto budget = draw_budget(random);
    const auto keys =
        of.top_k > 1 && seed % 2 == 1 ? look_ahead_keys::experts : look_ahead_keys::automatic;
    record_decisions(made, random, w, *built(w, policy, budget, keys), of);
  }
  return made.value();
}

/// [shape, rule]
constexpr std::uint64_t expected[std::size(shapes)][n_rules] = {
    {0xf2c92a8d7095d3e2, 0x0493ec27bd43b555, 0x2d9f67c4a77f9789, 0x01836737b15ae963,
     0x0849e377c5bd0e52, 0xf8102e51c1ef7a42, 0xb5d20393bc030dae, 0x366c5afe148adc89,
     0xf2c92a8d7095d3e2},
    {0x7313cedd26eab6de, 0x0bba0ea11612b115, 0xe26a5ec6c530f623, 0x6d66dded80c2327c,
     0x46d7fcd942764f8d, 0x5024c6d7bf140c11, 0x3a848cb3d8fb0975, 0x27d744716b906c6a,
     0xda46f4ec4a9dd348},
    {0xe3ef0e47db50b232, 0xac951dda470c60e2, 0xd9856e99d48dcfc8, 0xeb080f3f738aabdd,
     0xbcbea7350a905e18, 0xed9f667d6ecab903, 0xaa4647c46d00dc11, 0x21e075707f71c4a9,
     0xb7e79e04504716dc},
    {0x310b0dfaabbe49b4, 0xbd3d3fd4531d7b24, 0x2b2365eabbd5036f, 0xee299409fd32054a,
     0x121e0295d60946d6, 0x55e2b985d71c9d02, 0x9c0dd4c4eed70784, 0x183e16ccd4ea7fe7,
     0xb73bbfdc2c8b3a83},
    {0xe596f9b1c154ef01, 0x30f14c5717ff866b, 0xb21f46bf179da835, 0xe405fffaeebd21e5,
     0xc0b763934575d1f4, 0x440481d0946dbc98, 0x48656ed4c24d953f, 0x68b6d36a13dd6a04,
     0xe596f9b1c154ef01},
    {0x23a42e2970eedc1e, 0x77de01edda1601bc, 0x10b4d2b22a1463e3, 0xb5148eccfc9029d7,
     0xa985ae6020569d32, 0x0ec712bb8eff37d9, 0x3bf96d1756c072db, 0xf6d95fbe62d84b2d,
     0x23a42e2970eedc1e},
    {0xd33aaf68c4bee79a, 0x9f0469536371bfe6, 0x1dbff0c55185f3c8, 0x2cfe7231725524b8,
     0xf13aaf1dd12f344a, 0x4a413568fe949e73, 0xb4dd73e4a4a4eca7, 0x0e20a53c2c8b74c9,
     0xd33aaf68c4bee79a},
    {0xc3663ec371df37b1, 0xb99966ee7643e7db, 0x36c0ac9a4426a083, 0xbf46282f612d26d4,
     0xbbb151a264186410, 0xab6479b0d31b5d5d, 0xe4721ae57b99eb2a, 0x14c70b6bbff9c69f,
     0xebb38f1a2f30edf6},
    {0x9642735a0773de90, 0x2e2213f34dc5f225, 0x6bee6aa47af1026a, 0xe21558733674f69b,
     0xe4b5dad17c401b38, 0xd160c9fd176aadf1, 0xc642dbea01ffc32f, 0x8cd26c6331a6bb49,
     0x21afa3161df232a4},
    {0xd1b69458ee3cbd16, 0xc0b1005e0fb13f66, 0x256fa2db08f4af51, 0x4fb4ea4e4216d135,
     0x1457e7fa0ab89530, 0x795344cd2605db75, 0x4aba4861ae3be289, 0x32dafe9ad6552c15,
     0x92f258217fc5a8f2},
    {0xa65ceada01a7d5b3, 0xeb251d8c7bb1a80c, 0x312d4fa594e73409, 0xf370436a3e506ab0,
     0x1b7aba3d8f981174, 0x73c7f8762620c40f, 0x4d2c4ef0aec4d1e6, 0x7b0fef3fc100a697,
     0x3ff8382500891bcf},
    {0x80465a22c0a7ba9c, 0xa66a46e81d340718, 0x48f5049c6f672d1b, 0x5cad3e6e96e8e3e9,
     0x2a025c94804564a3, 0x44316649b38c447b, 0x97e158fc271b71ce, 0x3201951b7bc6b748,
     0x31778363048945d8},
};

BOOST_AUTO_TEST_SUITE(selector_choices)

BOOST_AUTO_TEST_CASE(every_choice_and_its_cost_are_those_of_the_record) {
  const bool prints = std::getenv("ORDERMOE_PRINT_CHOICES") != nullptr;
  for (std::size_t i = 0; i < std::size(shapes); ++i)
    for (std::size_t r = 0; r < n_rules; ++r) {
      const auto& of = shapes[i];
      const auto rule = static_cast<candidate_rule>(r);
      const auto found = recorded(of, rule);
      if (prints) {
        std::cout << (r == 0 ? "{" : "") << "0x" << std::hex << std::setw(16) << std::setfill('0')
                  << found << (r + 1 == n_rules ? "},\n" : ", ") << std::dec;
        continue;
      }
      BOOST_TEST(found == expected[i][r], of.n_servers << " servers, " << of.n_layers << " layers, "
                                                       << of.n_experts << " experts at top-"
                                                       << of.top_k << ", " << to_string(rule));
    }
}

/// Any expert, or none: whether sets or experts are keys.
BOOST_AUTO_TEST_CASE(slots_are_left_out_as_recorded) {
  record made;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    random_stream random(seed, 83);
    const auto top_k = 2 + random.below(3);
    const shape of{2 + random.below(7), 1 + random.below(3), top_k + 2 + random.below(10), top_k};
    auto w = draw_world(random, of);
    if (seed % 3 == 0) draw_copies(random, w);
    auto policy = draw_policy_of(candidate_rule::any, random, of);
    policy.may_leave_out = true;
    const auto keys = seed % 2 == 1 ? look_ahead_keys::experts : look_ahead_keys::automatic;
    record_decisions(made, random, w, *built(w, policy, draw_budget(random), keys), of);
  }
  if (std::getenv("ORDERMOE_PRINT_CHOICES") != nullptr)
    std::cout << "left out: 0x" << std::hex << made.value() << std::dec << "\n";
  BOOST_TEST(made.value() == 0x7405e22cd93c5513u);
}

/// A slot that takes the token along, the paper's rule at top-1.
BOOST_AUTO_TEST_CASE(a_token_that_moves_with_its_slot_does_so_as_recorded) {
  record made;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    random_stream random(seed, 82);
    const shape of{2 + random.below(9), 1 + random.below(3), 2 + random.below(12), 1};
    auto w = draw_world(random, of);
    for (auto& members : w.placed.residence)
      members.layers.assign(of.n_layers, all_servers(of.n_servers));
    auto policy = draw_policy_of(random.below(2) == 0 ? candidate_rule::group : candidate_rule::any,
                                 random, of);
    policy.residence = residence_choice::with_slot;
    record_decisions(made, random, w, *built(w, policy, draw_budget(random)), of);
  }
  if (std::getenv("ORDERMOE_PRINT_CHOICES") != nullptr)
    std::cout << "with_slot: 0x" << std::hex << made.value() << std::dec << "\n";
  BOOST_TEST(made.value() == 0x24c3a6d0a369ff16u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ordermoe::planning
