#include "planning/plan.hpp"

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <limits>

#include "config/files.hpp"
#include "planning/placement.hpp"
#include "test/planning/instances.hpp"
#include "test/support/random_profile.hpp"

using namespace ordermoe;
using namespace ordermoe::planning;

namespace {

struct instance {
  planning::profile experts = random_profile(3, 4, 2, 7);
  cost_profile costs = instances::small_costs();
  cluster servers = instances::drawn_cluster(4, 3, 4, 2.0, 5);
  planning::plan placed = place_by_similarity(experts, servers, costs, {}).value();
};

/// The error of a plan after one change, checked against its cluster.
template <class Change>
error after(Change change) {
  instance given;
  change(given.placed);
  const auto checked = validate(given.placed, given.servers, given.costs);
  return checked ? error{errc::failed, ""} : checked.error();
}

void expect(const error& found, errc code, const std::string& path) {
  BOOST_TEST((found.code == code), found.message);
  BOOST_TEST(found.message.find(path) == 0, found.message << " does not open with " << path);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(plan)

BOOST_AUTO_TEST_CASE(the_index_agrees_with_the_list) {
  const instance given;
  const placement_index index(given.placed);
  for (std::size_t m = 0; m < 4; ++m)
    for (std::size_t l = 0; l < 3; ++l)
      for (std::size_t j = 0; j < 4; ++j)
        BOOST_TEST(index.hosts(m, l, j) ==
                   given.placed.hosts(server_id{m}, layer_id{l}, expert_id{j}));
}

BOOST_AUTO_TEST_CASE(residency_rules_name_the_access_server_or_all_servers) {
  const auto access = access_residency(3, 2);
  const auto roaming = roaming_residency(64, 2);
  BOOST_REQUIRE(access.size() == 3u && roaming.size() == 64u);
  for (std::size_t a = 0; a < 3; ++a)
    BOOST_TEST(access[a].layers == std::vector<server_mask>(2, server_mask{1} << a),
               boost::test_tools::per_element());
  BOOST_TEST(roaming[63].layers == std::vector<server_mask>(2, ~server_mask{0}),
             boost::test_tools::per_element());
  BOOST_TEST(roaming_residency(2, 1)[0].layers[0] == 3u);
}

BOOST_AUTO_TEST_CASE(a_plan_that_breaks_a_constraint_is_refused_with_its_path) {
  BOOST_TEST(after([](auto&) {}).message == "");
  expect(after([](auto& p) { p.experts[2].server = server_id{4}; }), errc::out_of_range,
         "experts[2].server");
  expect(after([](auto& p) { p.experts[2].layer = layer_id{3}; }), errc::out_of_range,
         "experts[2].layer");
  expect(after([](auto& p) { p.experts[2].expert = expert_id{4}; }), errc::out_of_range,
         "experts[2].expert");
  expect(after([](auto& p) { p.experts.push_back(p.experts.front()); }), errc::mismatch,
         "experts[");
  expect(after([](auto& p) {
           std::erase_if(p.experts, [](const auto& e) {
             return e.layer.index() == 1 && e.expert.index() == 2;
           });
         }),
         errc::infeasible, "experts");
  expect(after([](auto& p) { p.experts.clear(); }), errc::infeasible, "experts");
  expect(after([](auto& p) { p.n_layers = std::numeric_limits<std::size_t>::max(); }),
         errc::infeasible, "experts");
  expect(after([](auto& p) { p.n_servers = 65; }), errc::out_of_range, "n_servers");
  expect(after([](auto& p) { p.n_servers = 0; }), errc::out_of_range, "n_servers");
  expect(after([](auto& p) { p.residence[1].layers[2] = 0; }), errc::mismatch, "residence[1][2]");
  expect(after([](auto& p) { p.residence[1].layers[2] = 1u << 4; }), errc::out_of_range,
         "residence[1][2]");
  expect(after([](auto& p) { p.residence.pop_back(); }), errc::mismatch, "residence");
  expect(after([](auto& p) { p.residence[3].layers.pop_back(); }), errc::mismatch, "residence[3]");
  expect(after([](auto& p) { p.grouping.pop_back(); }), errc::mismatch, "grouping");
  expect(after([](auto& p) { p.grouping[1].group_of[0] = 9; }), errc::mismatch,
         "grouping[1].group_of[0]");
  expect(after([](auto& p) { p.grouping[1].groups.pop_back(); }), errc::mismatch, "grouping[1]");
  expect(after([](auto& p) { p.grouping[1].groups[0].dominant = 77; }), errc::mismatch,
         "grouping[1].groups[0].dominant");
  expect(after([](auto& p) { ++p.expert_bytes_used[2]; }), errc::mismatch, "expert_bytes_used[2]");
  expect(after([](auto& p) { ++p.expert_bytes_limit[2]; }), errc::mismatch,
         "expert_bytes_limit[2]");
  expect(after([](auto& p) { p.estimated_token_ns = -1; }), errc::out_of_range,
         "estimated_token_ns");
}

BOOST_AUTO_TEST_CASE(an_expert_needs_a_server_unless_every_router_is_without_it) {
  const auto without = [](auto& p) {
    std::erase_if(p.experts,
                  [](const auto& e) { return e.layer.index() == 1 && e.expert.index() == 2; });
    p.pruned.assign(4, {{{}, {2}, {}}});
    p.expert_bytes_used.assign(4, 0);
    for (const auto& e : p.experts) p.expert_bytes_used[e.server.index()] += 1000;
  };
  BOOST_TEST(after(without).message == "");
  const auto with = [&](auto change) {
    return after([&](auto& p) {
      without(p);
      change(p);
    });
  };
  expect(with([](auto& p) { p.pruned[3].layers[1].clear(); }), errc::infeasible, "experts");
  expect(with([](auto& p) { p.pruned.pop_back(); }), errc::mismatch, "pruned");
  expect(with([](auto& p) { p.pruned[2].layers.pop_back(); }), errc::mismatch, "pruned[2]");
  expect(with([](auto& p) { p.pruned[2].layers[0] = {4}; }), errc::out_of_range, "pruned[2][0]");
  expect(with([](auto& p) { p.pruned[2].layers[0] = {2, 1}; }), errc::mismatch, "pruned[2][0]");
  expect(with([](auto& p) {
           p.pruned[2].layers[0] = {0, 1, 2, 3};
         }),
         errc::mismatch, "pruned[2][0]");
}

BOOST_AUTO_TEST_CASE(what_is_in_a_hosts_memory_takes_none_of_the_servers) {
  BOOST_TEST(after([](auto& p) {
               auto& moved = p.experts.front();
               moved.reason = placement_reason::offload;
               p.expert_bytes_used[moved.server.index()] -= 1000;
             }).message == "");
  expect(after([](auto& p) { p.experts.front().reason = placement_reason::offload; }),
         errc::mismatch, "expert_bytes_used");
}

BOOST_AUTO_TEST_CASE(a_plan_for_other_servers_is_refused) {
  const instance given;
  const auto fewer = instances::drawn_cluster(3, 3, 4, 2.0, 5);
  const auto checked = validate(given.placed, fewer, given.costs);
  BOOST_REQUIRE(!checked.has_value());
  expect(checked.error(), errc::mismatch, "n_servers");

  auto smaller = given.servers;
  smaller.servers[1].memory_bytes -=
      given.placed.expert_bytes_limit[1] - given.placed.expert_bytes_used[1] + 123;
  const auto overfull = validate(given.placed, smaller, given.costs);
  BOOST_REQUIRE(!overfull.has_value());
  BOOST_TEST((overfull.error().code == errc::infeasible));
  BOOST_TEST(overfull.error().message.find(": 123 bytes are missing") != std::string::npos,
             overfull.error().message);
}

BOOST_AUTO_TEST_CASE(a_written_plan_reads_back_the_same) {
  instance given;
  given.placed.epoch = std::numeric_limits<std::uint64_t>::max();
  given.placed.estimated_token_ns = 1.0 / 3;
  std::size_t reason = 0;
  for (auto& placed : given.placed.experts)
    placed.reason = static_cast<placement_reason>(reason++ % 8);
  for (const auto& placed : given.placed.experts)
    if (placed.reason == placement_reason::offload)
      given.placed.expert_bytes_used[placed.server.index()] -= given.costs.expert_bytes;
  given.placed.pruned.assign(4, {{{1, 3}, {}, {0}}});
  const auto text = plan_json(given.placed);
  const auto read = parse_plan(text, "plan.json");
  BOOST_REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().message));
  BOOST_TEST(plan_json(*read) == text);
  BOOST_TEST(read->epoch == given.placed.epoch);
  BOOST_TEST((read->pruned == given.placed.pruned));
  BOOST_TEST(read->estimated_token_ns == given.placed.estimated_token_ns);
  BOOST_REQUIRE(read->experts.size() == given.placed.experts.size());
  for (std::size_t i = 0; i < read->experts.size(); ++i) {
    const auto &a = read->experts[i], &b = given.placed.experts[i];
    BOOST_TEST((a.server == b.server && a.layer == b.layer && a.expert == b.expert &&
                a.reason == b.reason && a.score == b.score));
  }
  for (std::size_t l = 0; l < 3; ++l) {
    BOOST_TEST(read->grouping[l].importance == given.placed.grouping[l].importance,
               boost::test_tools::per_element());
    BOOST_TEST(read->grouping[l].threshold == given.placed.grouping[l].threshold);
  }
  BOOST_TEST(validate(*read, given.servers, given.costs).has_value());
}

BOOST_AUTO_TEST_CASE(masks_of_64_servers_survive_the_file) {
  instance given;
  given.placed.n_servers = 64;
  given.placed.expert_bytes_used.resize(64);
  given.placed.expert_bytes_limit.resize(64);
  given.placed.residence = roaming_residency(64, 3);
  given.placed.residence[7].layers[1] = server_mask{1} << 63 | 1;
  const auto read = parse_plan(plan_json(given.placed), "plan.json");
  BOOST_REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().message));
  BOOST_TEST(read->residence[7].layers[1] == (server_mask{1} << 63 | 1));
  BOOST_TEST(read->residence[6].layers[1] == ~server_mask{0});
}

BOOST_AUTO_TEST_CASE(every_truncation_is_an_error) {
  const instance given;
  const auto text = plan_json(given.placed);
  for (std::size_t length = 0; length + 1 < text.size(); length += 3)
    BOOST_REQUIRE(!parse_plan(text.substr(0, length), "p").has_value());
}

BOOST_AUTO_TEST_CASE(corrupted_bytes_never_give_an_invalid_plan) {
  const instance given;
  const auto text = plan_json(given.placed);
  random_stream random(3);
  std::size_t n_refused = 0;
  for (int i = 0; i < 2000; ++i) {
    auto other = text;
    for (std::uint64_t n = 1 + random.below(3); n > 0; --n)
      other[random.below(other.size())] = static_cast<char>(random.below(256));
    const auto read = parse_plan(other, "p");
    if (!read)
      ++n_refused;
    else
      BOOST_TEST(validate(*read).has_value());
  }
  BOOST_TEST(n_refused > 1000u);
}

BOOST_AUTO_TEST_CASE(an_unknown_reason_is_refused_with_its_path) {
  const instance given;
  auto text = plan_json(given.placed);
  text.replace(text.find("\"mandatory\""), 11, "\"chance\"");
  const auto read = parse_plan(text, "p.json");
  BOOST_REQUIRE(!read.has_value());
  BOOST_TEST(read.error().message.find("p.json: experts[0].reason") == 0, read.error().message);
}

BOOST_AUTO_TEST_CASE(a_plan_is_read_from_a_file) {
  const instance given;
  const auto path = std::filesystem::temp_directory_path() / "ordermoe-test-plan.json";
  BOOST_REQUIRE(write_file(path, plan_json(given.placed)).has_value());
  const auto read = read_plan(path);
  std::filesystem::remove(path);
  BOOST_TEST(read.has_value());
  BOOST_TEST(!read_plan(path).has_value());
}

BOOST_AUTO_TEST_SUITE_END()
