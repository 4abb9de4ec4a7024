#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "test/net/channel/some_nodes.hpp"

/// Of who may come: clients, whoever is not expected, and certificates that are renewed or revoked.
namespace ordermoe::test {

inline void a_client_comes_is_told_sends_and_leaves(const some_nodes& with) {
  transport_end a;
  auto options = with.node("a", {});
  options.takes_clients = true;
  a.start(std::move(options));
  for (net::peer_id id = 0; id < 3; ++id) {
    transport_end ann;
    // Whoever answers there, or by name.
    ann.start(with.client("ann", {id == 0 ? "" : "a", a.at()}));
    BOOST_TEST(ann.wait_for(what::up));
    BOOST_TEST(ann.net().figures(0).name == "a");
    BOOST_TEST(a.wait_for(what::up, 1, id));
    const auto came = a.now().clients;
    BOOST_TEST_REQUIRE(came.size() == id + 1);
    BOOST_TEST(came.back().first == id);
    BOOST_TEST((came.back().second == net::certificate_name{"edge8", net::role::viewer, "ann"}));
    for (std::uint32_t i = 0; i < 50; ++i) {
      BOOST_TEST(ann.send(0, lane::control, 1, i));
      BOOST_TEST(a.send(id, lane::control, 1, i));
    }
    BOOST_TEST(a.wait([id](const state& now) { return now.frames(id) == 50; }));
    BOOST_TEST(ann.wait([](const state& now) { return now.frames(0) == 50; }));
    if (id == 2)
      a.net().leave(id, "that is enough");
    else
      ann.stop();
    BOOST_TEST(a.wait_for(what::down, 1, id));
    BOOST_TEST(!a.send(id, lane::control, 1, 50));
    if (id == 2) BOOST_TEST(ann.wait_for(what::down));
    if (id == 2) BOOST_TEST(has(ann.now().last(what::down), "that is enough"));
    BOOST_TEST(ann.now().broken.empty(), ann.now().broken);
    ann.stop();
    BOOST_TEST(a.now().count(what::down, id) == 1u);
  }
  BOOST_TEST(a.now().broken.empty(), a.now().broken);
  BOOST_TEST(a.now().problems.empty());
}

inline void who_is_not_expected_hears_so_at_its_own_end_once(const some_nodes& with) {
  transport_end b, mallory;
  b.start(with.node("b", {{"a", std::nullopt}}));
  mallory.start([&] {
    auto options = with.node("mallory", {{"b", b.at()}});
    options.listen.clear();
    return options;
  }());
  BOOST_TEST(mallory.wait_for(what::refused));
  BOOST_TEST(has(mallory.now().last(what::refused), ("b refuses: " + with.proof).c_str()));
  BOOST_TEST(comes_to_be([&] { return mallory.net().figures(0).connections >= 3; }));
  BOOST_TEST(mallory.now().count(what::refused) == 1u);
  BOOST_TEST(mallory.now().problems.empty());
  BOOST_TEST(b.now().problems.size() == 1u);
}

inline void another_than_was_dialled_is_refused_and_told_once(const some_nodes& with) {
  transport_end a, b;
  b.start(with.node("b", {{"a", std::nullopt}}));
  forwarder between;
  between.lead_to(b.at());
  a.start(with.node("a", {{"c", between.at()}}));
  BOOST_TEST(a.wait([](const state& now) { return !now.problems.empty(); }));
  BOOST_TEST(comes_to_be([&] { return b.net().figures(0).connections >= 3; }));
  const auto now = a.now();
  BOOST_TEST(now.problems.size() == 1u,
             now.problems.back().first + now.problems.back().second.message);
  BOOST_TEST((now.problems[0].second.code == errc::mismatch));
  BOOST_TEST(has(now.problems[0].first, "c (127.0.0.1:"), now.problems[0].first);
  BOOST_TEST(has(now.problems[0].second.message, "node/b, expected node c"));
  BOOST_TEST(now.events.empty());
}

inline std::string renew(const some_nodes& with, const std::string& name) {
  const auto before = net::renew(with.issued.file(""), name, {});
  BOOST_REQUIRE(before.has_value());
  return before->serial;
}

inline void revoke(const some_nodes& with, const std::string& name_or_serial) {
  BOOST_REQUIRE(net::revoke(with.issued.file(""), name_or_serial, net::revoke_which::all));
}

/// Under load: the certificate that the connections were made with is revoked after it was renewed.
inline void a_renewed_certificate_takes_the_place_of_a_revoked_one_and_nothing_is_lost(
    const some_nodes& with) {
  constexpr std::uint32_t n_each = 3000;
  two_ends ends(with);
  ends.up();
  std::vector<std::thread> threads;
  send_from_threads(ends.a, n_each, threads);
  send_from_threads(ends.b, n_each, threads);
  for (int round = 1; round <= 3; ++round) {
    auto& renewed = round % 2 == 0 ? ends.b : ends.a;
    const std::string name = round % 2 == 0 ? "b" : "a";
    const auto before = renew(with, name);
    renewed.net().use(with.issued.identity(name));
    revoke(with, before);
    for (auto* end : {&ends.a, &ends.b})
      end->net().use(with.issued.identity(end == &ends.a ? "a" : "b"));
    for (auto* end : {&ends.a, &ends.b})
      BOOST_TEST(end->wait_for(what::resumed, static_cast<std::size_t>(round)));
  }
  join(threads);
  BOOST_TEST(ends.both_have(2 * net::n_lanes * n_each));
  ends.check_whole(2 * net::n_lanes * n_each);
}

inline void who_is_revoked_is_out_within_5_s_and_in_again_with_another_certificate(
    const some_nodes& with) {
  two_ends ends(with, net::session_limits{});
  ends.up();
  revoke(with, "a");
  const auto begun = std::chrono::steady_clock::now();
  ends.b.net().use(with.issued.identity("b"));
  BOOST_TEST(ends.b.wait_for(what::down));
  BOOST_TEST(ends.a.wait_for(what::down));
  BOOST_TEST((std::chrono::steady_clock::now() - begun < std::chrono::seconds(5)));
  BOOST_TEST(comes_to_be([&] { return ends.between.n_come() >= 6; }));
  BOOST_TEST(ends.b.now().count(what::up) == 1u);
  std::size_t n_told = 0;
  for (const auto& [who, why] : ends.b.now().problems) n_told += has(why.message, "is revoked");
  BOOST_TEST(n_told <= 2u);  // Of the connections that there were, and of those that come.
  BOOST_TEST(n_told >= 1u);
  renew(with, "a");
  ends.a.net().use(with.issued.identity("a"));
  BOOST_TEST(ends.b.wait_for(what::up, 2));
  BOOST_TEST(ends.a.wait_for(what::up, 2));
  BOOST_TEST(ends.a.send(0, lane::token, 1, 0));
}

inline void a_client_that_is_left_before_it_introduced_itself_is_told_so(const some_nodes& with) {
  transport_end a, ann;
  auto options = with.node("a", {});
  options.takes_clients = true;
  a.leaves_clients = "nobody is let in";
  a.start(std::move(options));
  ann.start(with.client("ann", {"", a.at()}));
  BOOST_TEST(ann.wait_for(what::down));
  BOOST_TEST(has(ann.now().last(what::down), "nobody is let in"));
}

inline void a_client_that_is_revoked_is_gone_at_once(const some_nodes& with) {
  transport_end a, ann, ben, cid;
  auto options = with.node("a", {});
  options.takes_clients = true;
  a.start(std::move(options));
  ann.start(with.client("ann", {"", a.at()}));
  ben.start(with.client("ben", {"", a.at()}));
  auto before_it_came = with.client("cid", {"", a.at()});
  BOOST_TEST(a.wait([](const state& now) { return now.count(what::up) == 2; }));
  const auto id = a.now().clients[0].second.name == "ann" ? 0u : 1u;
  revoke(with, "ann");
  revoke(with, "cid");
  a.net().use(with.issued.identity("a"));
  BOOST_TEST(a.wait_for(what::down, 1, id));
  BOOST_TEST(ben.send(0, lane::control, 1, 0));
  BOOST_TEST(a.wait([&](const state& now) { return now.frames(1 - id) == 1; }));
  BOOST_TEST(a.now().count(what::down) == 1u);
  // Nor does one that comes afterwards become a client, even for a moment.
  cid.start(std::move(before_it_came));
  BOOST_TEST(a.wait([](const state& now) {
    return std::ranges::any_of(now.problems, [](const auto& each) {
      return has(each.second.message, "/cid") && has(each.second.message, "is revoked");
    });
  }));
  BOOST_TEST(a.now().clients.size() == 2u);
}

}  // namespace ordermoe::test
