#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <string>
#include <utility>

#include "actors/server_actors.hpp"
#include "config/files.hpp"
#include "test/actors/probe_server.hpp"
#include "trace/sink.hpp"

namespace ordermoe {

namespace {

/// The link from server 1 to server 2, 1 ns for each byte and 1 us of way.
struct one_link : test::probe_server {
  test::probe far{*this};
  actors::link_actor link;

  void spawn() {
    link = keep(actors::spawn_link(system(), context, id, 2));
    tell(link, actors::attach_view{view});
    auto other = std::make_shared<actors::server_view>(*view);
    other->id = 2;
    other->server = far.as<actors::edge_server_actor>();
    tell(link, actors::attach_view{other});
  }
  void send(const wire::frame& content) { tell(link, content); }
};

/// A way out that keeps what it is given.
struct kept_outlet final : actors::frame_outlet {
  std::vector<wire::frame> sent;
  bool is_there = true;
  bool send(wire::frame content) override {
    if (is_there) sent.push_back(std::move(content));
    return is_there;
  }
};

/// 300 bytes: 100 for one row of hidden state as serialised, 200 of others; charged 100 + 200.
wire::frame some_frame(std::string mark = "x") {
  wire::frame made;
  made.kind = wire::frame_kind::call;
  made.hidden_rows = 1;
  made.value_bytes = 160;
  made.bytes = std::string(360 - mark.size(), '.') + mark;
  return made;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(link)

BOOST_AUTO_TEST_CASE(a_frame_is_charged_by_the_cost_profile_and_comes_when_it_has_crossed) {
  one_link world;
  world.spawn();
  world.send(some_frame());
  BOOST_TEST(world.far.heard() == 0u);
  BOOST_TEST(world.run_next());
  const auto came = world.far.only<wire::frame>();
  // 100 charged for the row, 360 - 160 for the rest.
  BOOST_TEST(world.time_ns() == 300 + 1000);
  BOOST_TEST(came.from == 1u);
  BOOST_TEST(came.to == 2u);
  BOOST_TEST(came.bytes.size() == 360u);
  const auto status = world.ask<actors::link_status>(world.link, actors::status_query{});
  BOOST_TEST(status.ledger.from == 1u);
  BOOST_TEST(status.ledger.to == 2u);
  BOOST_TEST(status.ledger.total.messages == 1);
  BOOST_TEST(status.ledger.total.hidden_bytes == 100);
  BOOST_TEST(status.ledger.total.kv_bytes == 0);
  BOOST_TEST(status.ledger.total.other_bytes == 200);
  BOOST_TEST(status.ledger.total.serialised_bytes == 360);
  BOOST_TEST(status.ledger.total.busy_ns == 300);
}

BOOST_AUTO_TEST_CASE(what_a_frame_tells_uncharged_is_in_the_trace_as_such) {
  one_link world;
  const auto path = std::filesystem::temp_directory_path() /
                    ("ordermoe-link-" + std::to_string(::getpid()) + ".jsonl");
  auto opened = trace::sink::open(path);
  BOOST_REQUIRE(opened.has_value());
  world.context->trace = std::move(*opened);
  world.spawn();
  auto content = some_frame();
  content.uncharged_bytes = 8;
  world.send(content);
  BOOST_REQUIRE(world.context->trace->close().has_value());
  const auto text = read_file(path);
  std::filesystem::remove(path);
  BOOST_REQUIRE(text.has_value());
  BOOST_TEST(text->find(R"("other_bytes":192,"uncharged_bytes":8,"serialised_bytes":360,)") !=
                 std::string::npos,
             *text);
}

BOOST_AUTO_TEST_CASE(kv_rows_are_charged_as_such) {
  one_link world;
  world.spawn();
  wire::frame rows;
  rows.kind = wire::frame_kind::kv;
  rows.kv_rows = 3;
  rows.value_bytes = 40;
  rows.bytes = std::string(50, '.');
  world.send(rows);
  world.run_all();
  BOOST_TEST(world.time_ns() == 3 * world.kv_row_bytes + 10 + 1000);
}

BOOST_AUTO_TEST_CASE(frames_come_in_order_one_after_the_other) {
  one_link world;
  world.spawn();
  world.send(some_frame("a"));
  world.send(some_frame("b"));
  const auto status = world.ask<actors::link_status>(world.link, actors::status_query{});
  BOOST_TEST(status.wait_ns == 600);
  world.run_all();
  const auto came = world.far.all<wire::frame>();
  BOOST_REQUIRE_EQUAL(came.size(), 2u);
  BOOST_TEST(came[0].bytes.back() == 'a');
  BOOST_TEST(came[1].bytes.back() == 'b');
  BOOST_TEST(world.time_ns() == 600 + 1000);
}

BOOST_AUTO_TEST_CASE(its_own_server_hears_of_waits_that_it_cannot_know) {
  one_link world;
  world.context->load_period_ns = 1600;  // Less than 400 ns are not told apart.
  world.spawn();
  world.send(some_frame());
  BOOST_TEST(world.server.count<actors::link_load>() == 0u);
  world.advance_ns(100);
  world.send(some_frame());
  const auto load = world.server.only<actors::link_load>();
  BOOST_TEST(load.from == 1u);
  BOOST_TEST(load.to == 2u);
  BOOST_TEST(load.time_ns == 100);
  BOOST_TEST(load.busy_ns == 600);
  BOOST_TEST(load.wait_ns == 500);
  world.send(some_frame());
  BOOST_TEST(world.server.count<actors::link_load>() == 1u);
  world.send(some_frame());
  BOOST_TEST(world.server.count<actors::link_load>() == 2u);
  BOOST_TEST(world.far.count<actors::link_load>() == 0u);
}

BOOST_AUTO_TEST_CASE(where_no_loads_are_told_it_tells_none) {
  one_link world;
  world.context->load_period_ns = 0;
  world.spawn();
  for (int i = 0; i < 100; ++i) world.send(some_frame());
  BOOST_TEST(world.server.heard() == 0u);
}

BOOST_AUTO_TEST_CASE(a_disturbed_link_delivers_what_the_disturbance_says) {
  one_link world;
  world.context->bad_links.seed = 1;
  world.context->bad_links.repeated_share = 0.9;
  world.context->bad_links.meddle = [](wire::frame& content, std::uint64_t) {
    content.bytes.back() = '!';
  };
  world.spawn();
  world.send(some_frame());
  world.run_all();
  const auto came = world.far.all<wire::frame>();
  BOOST_TEST(came.size() > 1u);
  for (const auto& each : came) BOOST_TEST(each.bytes.back() == '!');
  const auto status = world.ask<actors::link_status>(world.link, actors::status_query{});
  BOOST_TEST(status.ledger.total.messages == 1);
}

BOOST_AUTO_TEST_CASE(on_the_wall_clock_frames_are_handed_on_at_once) {
  one_link world;
  world.context->clock = actors::clock_kind::wall;
  world.spawn();
  world.send(some_frame());
  BOOST_TEST(world.far.count<wire::frame>() == 1u);
  const auto status = world.ask<actors::link_status>(world.link, actors::status_query{});
  BOOST_TEST(status.ledger.total.serialised_bytes == 360);
  BOOST_TEST(status.ledger.total.busy_ns == 0);
  BOOST_TEST(status.wait_ns == 0);
}

BOOST_AUTO_TEST_CASE(to_another_process_frames_go_by_their_outlet_and_are_counted) {
  one_link world;
  world.context->clock = actors::clock_kind::wall;
  const auto outlet = std::make_shared<kept_outlet>();
  world.context->seat.emplace().outlets = {nullptr, nullptr, outlet};
  world.spawn();
  auto content = some_frame();
  content.request = 7;
  content.epoch = 3;
  world.send(content);
  BOOST_REQUIRE_EQUAL(outlet->sent.size(), 1u);
  BOOST_TEST(outlet->sent[0].bytes == content.bytes);
  BOOST_TEST(outlet->sent[0].epoch == 3u);
  BOOST_TEST(outlet->sent[0].from == 1u);
  BOOST_TEST(outlet->sent[0].to == 2u);
  BOOST_TEST(world.far.heard() == 0u);
  BOOST_TEST(world.server.heard() == 0u);
  const auto status = world.ask<actors::link_status>(world.link, actors::status_query{});
  BOOST_TEST(status.ledger.total.messages == 1);
  BOOST_TEST(status.ledger.total.serialised_bytes == 360);
}

BOOST_AUTO_TEST_CASE(where_the_outlet_is_away_its_own_server_hears_what_was_lost) {
  one_link world;
  world.context->clock = actors::clock_kind::wall;
  const auto outlet = std::make_shared<kept_outlet>();
  outlet->is_there = false;
  world.context->seat.emplace().outlets = {nullptr, nullptr, outlet};
  world.spawn();
  auto content = some_frame();
  content.request = 7;
  content.attempt = 2;
  world.send(content);
  const auto lost = world.server.only<actors::undeliverable>();
  BOOST_TEST((lost.kind == wire::frame_kind::call));
  BOOST_TEST(lost.to == 2u);
  BOOST_TEST(lost.request == 7u);
  BOOST_TEST(lost.attempt == 2u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
