#pragma once

#include <boost/test/unit_test.hpp>
#include <string>
#include <utility>

#include "test/net/channel/some_nodes.hpp"

/// Of the member list: who is let in and who is not, whatever connections are made of. As in transport_cases.hpp.
namespace ordermoe::test {

inline net::transport_peer no_member(const std::string& name) {
  net::transport_peer made{name, std::nullopt};
  made.absent = true;
  return made;
}

inline void hears_that_it_is_no_member(transport_end& end, const std::string& name,
                                       const some_nodes& with) {
  BOOST_TEST(end.wait_for(what::refused));
  const auto told = end.now().last(what::refused);
  const auto expected = "a refuses: " + with.proof + " ordermoe://edge8/node/" + name +
                        ", expected a node of the member list";
  BOOST_TEST(has(told, expected.c_str()), told);
  BOOST_TEST(end.now().count(what::up) == 0u);
}

inline void who_is_no_member_is_kept_out_until_it_is_one(const some_nodes& with) {
  transport_end a, b, c;
  c.start(with.node("c", {{"a", std::nullopt}}));
  // a knows neither that c is there nor where.
  a.start(with.node("a", {{"b", std::nullopt}, no_member("c")}));
  auto dials = with.node("b", {{"a", a.at()}});
  dials.listen.clear();
  b.start(std::move(dials));
  BOOST_TEST(a.wait_for(what::up, 1, 0));
  a.net().admit(1, false, c.at());
  BOOST_TEST(a.send(0, lane::token, 1, 0));
  BOOST_TEST(b.wait([](const state& now) { return now.frames(0) == 1; }));
  BOOST_TEST(c.now().events.empty());
  a.net().admit(1, true, std::nullopt);
  BOOST_TEST(a.wait_for(what::up, 1, 1));
  BOOST_TEST(a.send(1, lane::token, 1, 0));
  a.net().admit(1, false, std::nullopt);
  BOOST_TEST(a.wait_for(what::down, 1, 1));
  BOOST_TEST(c.wait_for(what::down));
  BOOST_TEST(has(c.now().last(what::down), "no member of the cluster any more"));
  a.net().admit(1, true, std::nullopt);
  BOOST_TEST(a.wait_for(what::up, 2, 1));
  BOOST_TEST(a.now().count(what::down, 0) == 0u);
}

inline void a_node_that_joins_is_a_client_for_as_long_as_it_is_a_member(const some_nodes& with) {
  transport_end a, b, c, d, e;
  auto options = with.node("a", {{"b", std::nullopt}, {"c", std::nullopt}, no_member("d")});
  options.takes_clients = true;
  a.start(std::move(options));
  const auto joining = [&](const char* name) {
    auto made = with.node(name, {{"a", a.at()}});
    made.listen.clear();
    made.agreed.clear();
    made.is_client = true;
    made.dials_for = net::dial_purpose::joining;
    return made;
  };
  b.start(joining("b"));
  c.start(joining("c"));
  BOOST_TEST_REQUIRE(a.wait([](const state& now) { return now.count(what::up) == 2; }));
  net::peer_id of_c = 0;
  for (const auto& [id, who] : a.now().clients) {
    BOOST_TEST(id >= 3u);
    BOOST_TEST((who.of == net::role::node));
    if (who.name == "c") of_c = id;
  }
  // One that was removed, and one that never was there.
  d.start(joining("d"));
  e.start(joining("e"));
  hears_that_it_is_no_member(d, "d", with);
  hears_that_it_is_no_member(e, "e", with);
  // Of those that are there, the one that is removed goes.
  a.net().admit(0, false, std::nullopt);
  BOOST_TEST(b.wait_for(what::down));
  BOOST_TEST(has(b.now().last(what::down), "no member of the cluster any more"));
  BOOST_TEST(c.send(0, lane::control, 1, 0));
  BOOST_TEST(a.wait([&](const state& now) { return now.frames(of_c) == 1; }));
  BOOST_TEST(a.now().count(what::down, of_c) == 0u);
  BOOST_TEST(a.now().count(what::up) == 2u);
}

inline void who_is_no_member_is_turned_away_where_it_dials(const some_nodes& with) {
  transport_end a, d;
  a.start(with.node("a", {no_member("d")}));
  auto dials = with.node("d", {{"a", a.at()}});
  dials.listen.clear();
  d.start(std::move(dials));
  hears_that_it_is_no_member(d, "d", with);
  BOOST_TEST(a.now().count(what::up) == 0u);
  a.net().admit(0, true, std::nullopt);
  BOOST_TEST(a.wait_for(what::up));
}

}  // namespace ordermoe::test
