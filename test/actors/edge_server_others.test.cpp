#include "net/session/session.hpp"
#include "planning/serving/load_board.hpp"
#include "test/actors/one_server.hpp"

namespace ordermoe {

BOOST_AUTO_TEST_SUITE(edge_server_others)

// --------------------------------------------------------------------------------- other servers

BOOST_AUTO_TEST_CASE(what_came_from_another_process_is_taken_in_and_its_receipt_ends) {
  one_server world;
  world.open();
  actors::peer_event event;
  event.server = 0;
  event.content = world.frame_from(0, world.ask_of(reserve_step::attempt));
  auto receipt = std::make_shared<int>();
  const std::weak_ptr<int> watched = receipt;
  event.receipt = std::move(receipt);
  caf::anon_send(world.edge, std::move(event));
  BOOST_TEST(!watched.expired());
  world.run_ready();
  BOOST_TEST(watched.expired());
  BOOST_TEST(world.reservations(0).size() == 1u);
  BOOST_TEST(world.status().reserved_bytes == foreign_bytes);
}

BOOST_AUTO_TEST_CASE(
    a_request_that_needs_an_absent_server_is_refused_by_its_name_until_it_is_back) {
  one_server world;
  world.open();
  world.happens(2, what::down);
  world.submit();
  BOOST_TEST(says(world.reason(), "server 2 (s2) is not connected"));
  BOOST_TEST(says(world.reason(), "request 7: "));
  BOOST_TEST((world.client.only<actors::answer_end>().outcome->problem->code == errc::failed));
  BOOST_TEST(world.status().requests.empty());
  BOOST_TEST(world.status().sequences.empty());
  world.happens(2, what::up);
  world.submit();
  BOOST_TEST((world.phase_of_own() == request_phase::reserving));
}

BOOST_AUTO_TEST_CASE(a_request_that_needs_no_absent_server_is_admitted) {
  one_server world;
  world.keep_rows_at(world.id, 0b110);
  world.open();
  world.happens(0, what::down);
  world.submit();
  BOOST_TEST((world.phase_of_own() == request_phase::reserving));
  BOOST_TEST(world.client.heard() == 0u);
}

BOOST_AUTO_TEST_CASE(with_a_seat_every_other_server_is_absent_at_first) {
  one_server world;
  world.context->seat.emplace();
  world.open();
  BOOST_TEST((world.status().away == std::vector<std::uint32_t>{0, 2}));
  world.happens(0, what::up);
  BOOST_TEST((world.status().away == std::vector<std::uint32_t>{2}));
  world.submit();
  BOOST_TEST(says(world.reason(), "server 2 (s2) is not connected"));
  world.happens(2, what::up);
  world.submit(own);
  BOOST_TEST((world.phase_of_own() == request_phase::reserving));
}

BOOST_AUTO_TEST_CASE(with_a_seat_loads_are_numbered_by_the_starts_of_the_server) {
  one_server world;
  world.context->seat.emplace();
  world.context->seat->boot = 3;
  world.open();
  world.tell(world.edge, actors::compute_load{8'000'000});
  BOOST_TEST(world.selector.only<wire::load_report>().number == (std::uint64_t{3} << 32) + 1);
}

BOOST_AUTO_TEST_CASE(
    a_link_that_is_not_as_believed_is_told_to_the_planner_and_everybody_who_is_there) {
  one_server world;
  world.context->seat.emplace();
  world.context->seat->boot = 3;
  world.open();
  world.install({world.plan_of_epoch(1)});
  const auto measure = [&](std::uint32_t to, std::int64_t latency_ns) {
    actors::peer_event event;
    event.kind = what::measured;
    event.server = to;
    event.link = {latency_ns, 5e6};
    world.tell(world.edge, std::move(event));
  };
  const auto told = [&](std::uint32_t to) {
    return world.decoded<wire::link_report>(to, frame_kind::links, wire::decode_links);
  };
  // Of its start before somebody may believe something yet.
  world.happens(0, what::up);
  BOOST_TEST(told(0).size() == 1u);
  BOOST_TEST((told(0).at(0) == wire::link_report{world.id, std::uint64_t{3} << 32, {{}, {}, {}}}));
  measure(2, 60'000'000);
  const auto report = world.planner.only<actors::links_told>().report;
  BOOST_TEST(report.server == world.id);
  BOOST_TEST(report.number == (std::uint64_t{3} << 32) + 1);
  BOOST_TEST(report.links.at(2).latency_ns == 60'000'000);
  BOOST_TEST(report.links.at(0).latency_ns == -1);
  BOOST_TEST(told(0).size() == 2u);
  BOOST_TEST((told(0).at(1) == report));
  BOOST_TEST(told(2).empty());
  // A little is not worth it.
  measure(2, 61'000'000);
  BOOST_TEST(world.planner.count<actors::links_told>() == 1u);
  // Whoever comes later hears of it.
  world.happens(2, what::up);
  BOOST_TEST(told(2).size() == 1u);
  measure(2, 2'000'000);
  BOOST_TEST(told(0).size() == 3u);
  BOOST_TEST(told(2).size() == 2u);
  BOOST_TEST(told(2).at(1).number == report.number + 1);
}

BOOST_AUTO_TEST_CASE(what_others_say_of_their_links_goes_to_the_planner) {
  one_server world;
  world.open();
  world.install({world.plan_of_epoch(1)});
  world.receive(2, wire::link_report{2, 1, {{7, 1e9}, {8, 2e9}, {}}});
  BOOST_TEST(world.planner.only<actors::links_told>().report.links.at(1).latency_ns == 8);
  world.receive(2, wire::link_report{0, 1, {{}, {}, {}}});
  BOOST_TEST(world.planner.count<actors::links_told>() == 1u);
  BOOST_TEST(world.status().refused_frames == 1u);
}

BOOST_AUTO_TEST_CASE(a_lost_server_ends_own_requests_with_rows_there_and_no_others) {
  one_server world;
  world.keep_rows_at(world.id, 0b110);
  world.open();
  world.submit();
  world.receive(2, world.answer_of(2, reserve_step::granted));
  BOOST_TEST((world.phase_of_own() == request_phase::running));
  world.happens(0, what::down);
  BOOST_TEST((world.phase_of_own() == request_phase::running));
  BOOST_TEST(world.client.heard() == 0u);
  world.happens(2, what::down);
  BOOST_TEST(world.finish() == "failed");
  BOOST_TEST(says(world.reason(), "server 2 (s2) is not connected"));
  BOOST_TEST(world.status().requests.empty());
  BOOST_TEST(world.status().sequences.empty());
}

BOOST_AUTO_TEST_CASE(a_request_that_is_held_is_refused_when_it_would_begin) {
  one_server world;
  world.attach();
  world.submit();
  world.happens(2, what::down);
  BOOST_TEST((world.phase_of_own() == request_phase::held));
  world.tell(world.edge, actors::resume_admission{});
  BOOST_TEST(says(world.reason(), "server 2 (s2) is not connected"));
}

BOOST_AUTO_TEST_CASE(of_a_server_that_is_lost_before_the_first_plan_only_its_absence_is_kept) {
  one_server world;
  const auto plan = std::exchange(world.view->placed, nullptr);
  world.attach();
  world.happens(2, what::down);
  world.install({plan});
  world.tell(world.edge, actors::resume_admission{});
  world.submit();
  BOOST_TEST(says(world.reason(), "server 2 (s2) is not connected"));
}

BOOST_AUTO_TEST_CASE(the_memory_of_a_lost_servers_users_is_given_back_and_no_others) {
  one_server world;
  world.keep_rows_at(0, 0b011);
  world.keep_rows_at(2, 0b110);
  world.open();
  world.reserve();
  auto ask = world.ask_of(reserve_step::attempt);
  ask.request = foreign + 1;
  ask.access = 2;
  world.receive(2, ask);
  BOOST_TEST(world.status().reserved_bytes == 2 * foreign_bytes);
  world.happens(0, what::down);
  BOOST_TEST(world.compute.only<actors::drop_sequence>().request == foreign);
  const auto left = world.status();
  BOOST_TEST(left.reserved_bytes == foreign_bytes);
  BOOST_REQUIRE_EQUAL(left.sequences.size(), 1u);
  BOOST_TEST(left.sequences[0].request == foreign + 1);
  // Nothing of it is here any more: a token that comes yet is late.
  world.receive(0, world.token_at(0, 0));
  BOOST_TEST(world.status().late_frames == 1u);
}

BOOST_AUTO_TEST_CASE(tokens_hear_of_a_lost_server_and_those_that_wait_for_it_end_their_request) {
  one_server world;
  world.keep_rows_at(0, 0b011);
  world.open();
  world.reserve();
  world.receive(0, world.token_awaiting(0, 2));
  world.receive(0, world.token_awaiting(1, 0));
  world.happens(2, what::down);
  const auto failures = world.failures(0);
  BOOST_REQUIRE_EQUAL(failures.size(), 1u);
  BOOST_TEST(failures[0].request == foreign);
  BOOST_TEST(failures[0].attempt == 0u);
  BOOST_TEST(failures[0].server == world.id);
  BOOST_TEST(says(failures[0].text, "server 2 (s2) is not connected"));
  BOOST_TEST(world.status().sequences.at(0).tokens == 1u);
}

BOOST_AUTO_TEST_CASE(a_token_that_comes_after_the_loss_of_what_it_awaits_ends_its_request_too) {
  one_server world;
  world.keep_rows_at(0, 0b011);
  world.open();
  world.reserve();
  world.happens(2, what::down);
  world.receive(0, world.token_awaiting(0, 2));
  BOOST_TEST(says(world.failures(0).at(0).text, "server 2 (s2) is not connected"));
  world.happens(2, what::up);
  world.receive(0, world.token_awaiting(1, 2));
  BOOST_TEST(world.failures(0).size() == 1u);
  BOOST_TEST(world.status().sequences.at(0).tokens == 1u);
}

BOOST_AUTO_TEST_CASE(owners_elsewhere_hear_of_a_loss_between_two_that_keep_their_rows) {
  one_server world;
  world.keep_rows_at(0, 0b011);
  world.open();
  world.reserve();
  world.happens(2, what::down);
  BOOST_TEST(world.failures(0).empty());  // None of its rows are there.
  one_server both;
  both.open();
  both.reserve();
  both.happens(2, what::down);
  const auto failures = both.failures(0);
  BOOST_REQUIRE_EQUAL(failures.size(), 1u);
  BOOST_TEST(failures[0].request == foreign);
  BOOST_TEST(says(failures[0].text, "server 2 (s2) is not connected"));
}

BOOST_AUTO_TEST_CASE(while_what_was_sent_waits_requests_are_held) {
  one_server world;
  world.keep_rows_at(world.id, 0b110);
  world.open();
  world.submit(own + 1);
  const auto running = world.reservations(2).size();
  world.happens(0, what::congested);
  world.happens(2, what::congested);
  world.submit();
  BOOST_TEST((world.phase_of_own() == request_phase::held));
  BOOST_TEST(world.reservations(2).size() == running);
  world.happens(0, what::relieved);
  BOOST_TEST((world.phase_of_own() == request_phase::held));
  // Another plan's start does not help.
  world.tell(world.edge, actors::resume_admission{});
  BOOST_TEST((world.phase_of_own() == request_phase::held));
  world.happens(2, what::relieved);
  BOOST_TEST((world.phase_of_own() == request_phase::reserving));
  BOOST_TEST(world.reservations(2).size() == running + 1);
}

BOOST_AUTO_TEST_CASE(a_lost_server_holds_up_nobody) {
  one_server world;
  world.keep_rows_at(world.id, 0b110);
  world.open();
  world.happens(0, what::congested);
  world.submit();
  BOOST_TEST((world.phase_of_own() == request_phase::held));
  world.happens(0, what::down);
  BOOST_TEST((world.phase_of_own() == request_phase::reserving));
}

BOOST_AUTO_TEST_CASE(what_is_said_of_no_other_server_has_no_effect) {
  one_server world;
  world.open();
  world.submit();
  world.grant();
  for (const std::uint32_t nobody : {world.id, world.n_servers, 64u})
    for (const auto kind : {what::down, what::congested}) world.happens(nobody, kind);
  BOOST_TEST((world.phase_of_own() == request_phase::running));
  world.submit(own + 1);
  BOOST_TEST(std::ranges::none_of(
      world.status().requests, [](const auto& each) { return each.phase == request_phase::held; }));
}

BOOST_AUTO_TEST_CASE(a_token_or_call_that_went_nowhere_ends_its_request_here) {
  for (const auto kind : {frame_kind::token, frame_kind::call}) {
    one_server world;
    world.open();
    world.submit();
    world.grant();
    world.tell(world.edge, actors::undeliverable{kind, 2, own, 1});
    BOOST_TEST((world.phase_of_own() == request_phase::running));  // Of no attempt that is live.
    world.tell(world.edge, actors::undeliverable{kind, 2, own, 0});
    BOOST_TEST(world.finish() == "failed");
    BOOST_TEST(says(world.reason(), "server 2 (s2) is not connected"));
  }
}

BOOST_AUTO_TEST_CASE(a_token_or_call_that_went_nowhere_is_told_to_an_owner_elsewhere) {
  for (const auto kind : {frame_kind::token, frame_kind::call}) {
    one_server world;
    world.open();
    world.reserve();
    world.tell(world.edge, actors::undeliverable{kind, 2, foreign, 1});
    world.tell(world.edge, actors::undeliverable{kind, 2, foreign + 1, 0});
    BOOST_TEST(world.failures(0).empty());
    world.tell(world.edge, actors::undeliverable{kind, 2, foreign, 0});
    const auto failures = world.failures(0);
    BOOST_REQUIRE_EQUAL(failures.size(), 1u);
    BOOST_TEST(failures[0].request == foreign);
    BOOST_TEST(failures[0].server == world.id);
    BOOST_TEST(failures[0].code == static_cast<std::uint8_t>(errc::failed));
    BOOST_TEST(says(failures[0].text, "server 2 (s2) is not connected"));
  }
}

BOOST_AUTO_TEST_CASE(rows_that_went_nowhere_end_every_request_that_keeps_some_there) {
  one_server world;
  world.open();
  world.reserve();
  // A frame has rows of several requests and names the first.
  world.tell(world.edge, actors::undeliverable{frame_kind::kv, 2, foreign + 9, 0});
  BOOST_TEST(world.failures(0).size() == 1u);
  one_server elsewhere;
  elsewhere.keep_rows_at(0, 0b011);
  elsewhere.open();
  elsewhere.reserve();
  elsewhere.tell(elsewhere.edge, actors::undeliverable{frame_kind::kv, 2, foreign, 0});
  BOOST_TEST(elsewhere.failures(0).empty());
}

BOOST_AUTO_TEST_CASE(rows_that_went_nowhere_end_own_requests_with_rows_there_too) {
  one_server world;
  world.open();
  world.submit();
  world.grant();
  BOOST_TEST((world.phase_of_own() == request_phase::running));
  world.tell(world.edge, actors::undeliverable{frame_kind::kv, 2, own + 9, 0});
  BOOST_TEST(world.finish() == "failed");
  BOOST_TEST(says(world.reason(), "server 2 (s2) is not connected"));
}

BOOST_AUTO_TEST_CASE(rows_that_no_session_takes_end_their_request_alone_and_say_why) {
  one_server world;
  world.open();
  world.submit();
  world.grant();
  world.reserve();
  world.tell(world.edge, actors::undeliverable{frame_kind::kv, 2, foreign, 0, 70u << 20});
  const auto failures = world.failures(0);
  BOOST_REQUIRE_EQUAL(failures.size(), 1u);
  BOOST_TEST(failures[0].request == foreign);
  BOOST_TEST(says(failures[0].text, "a kv frame of 73400320 bytes to server 2 (s2)"),
             failures[0].text);
  BOOST_TEST((world.phase_of_own() == request_phase::running));
}

BOOST_AUTO_TEST_CASE(many_rows_go_in_several_frames_where_sessions_carry_them) {
  constexpr std::size_t n = 140, bytes = 512 << 10;
  const std::size_t most =
      net::session_limits{}.largest_frame[static_cast<std::size_t>(net::lane::kv)];
  BOOST_REQUIRE_GT(n * bytes, most);
  const auto frames_of = [&](bool over_sessions, bool two_requests) {
    one_server world;
    if (over_sessions) world.context->seat.emplace();
    world.open();
    actors::kv_written written;
    written.content.layer = 2;
    for (std::uint32_t i = 0; i < n; ++i) {
      written.content.blocks.push_back({own, 0, i, 1, std::vector<std::uint8_t>(bytes)});
      // At layer 2 the rows of server 1's users are there and at server 2, of server 0's everywhere.
      written.access.push_back(two_requests && i == 0 ? 0 : world.id);
      written.epochs.push_back(1);
    }
    world.tell(world.edge, written);
    return world.sent(2, frame_kind::kv);
  };
  for (const bool two_requests : {false, true}) {
    BOOST_TEST(frames_of(false, two_requests).size() == 1u);
    const auto frames = frames_of(true, two_requests);
    BOOST_TEST(frames.size() > 10u);
    std::uint32_t next = 0;
    for (const auto& each : frames) {
      BOOST_TEST(each.bytes.size() < most / 8);
      BOOST_TEST(each.epoch == 1u);
      next += each.kv_rows;
    }
    BOOST_TEST(next == n);
  }
}

BOOST_AUTO_TEST_CASE(the_loss_of_one_that_a_token_called_before_it_left_ends_its_request) {
  const auto departed = [](std::uint32_t first, planning::server_mask called) {
    return actors::token_departed{{foreign, 0, 0, first}, serving::step_of(0, true), called};
  };
  // Server 2 has no rows of it, and server 0, where the token is now, may be connected to it.
  const auto begin = [](one_server& world) {
    world.keep_rows_at(0, 0b011);
    world.open();
    world.reserve();
    world.receive(0, world.token_at(0, 0));
  };
  {
    one_server world;
    begin(world);
    world.tell(world.edge, departed(0, 0b100));
    world.happens(2, what::down);
    const auto failures = world.failures(0);
    BOOST_REQUIRE_EQUAL(failures.size(), 1u);
    BOOST_TEST(failures[0].request == foreign);
    BOOST_TEST(says(failures[0].text, "server 2 (s2) is not connected"));
  }
  {
    one_server world;
    begin(world);
    world.tell(world.edge, departed(0, 0));
    world.happens(2, what::down);
    BOOST_TEST(world.failures(0).empty());
  }
  {
    // It was here again meanwhile, so that what it had called was in.
    one_server world;
    begin(world);
    world.tell(world.edge, departed(0, 0b100));
    world.receive(0, world.token_at(0, 2));
    world.happens(2, what::down);
    BOOST_TEST(world.failures(0).empty());
  }
  {
    // A later position of the answer is, while that of a prompt says nothing of those before.
    for (const std::uint32_t later : {2u, 4u}) {
      one_server world;
      begin(world);
      world.tell(world.edge, departed(0, 0b100));
      world.receive(0, world.token_at(later, 0));
      world.happens(2, what::down);
      BOOST_TEST(world.failures(0).size() == (later == 2 ? 1u : 0u));
    }
  }
}

BOOST_AUTO_TEST_CASE(decisions_name_a_server_that_is_away_only_where_they_have_to) {
  one_server world;
  // All experts on servers 1 and 2, but one on server 2 alone.
  auto content = world.plan();
  content.experts.clear();
  for (std::uint32_t layer = 0; layer < world.n_layers; ++layer)
    for (std::uint32_t expert = 0; expert < world.n_experts; ++expert)
      for (const std::size_t server : {1, 2}) {
        if (server == 1 && expert == 0) continue;
        planning::placed_expert each;
        each.server = server_id{server};
        each.layer = layer_id{layer};
        each.expert = expert_id{expert};
        content.experts.push_back(each);
      }
  world.view->placed = world.plan_of_epoch(1, std::move(content));
  const auto selecting = world.keep(actors::spawn_selector(world.system(), world.id));
  world.view->selector = selecting;
  world.open();
  world.tell(selecting, actors::decide_by{world.view, {world.view->placed}});
  const auto executor = [&](std::size_t wanted) {
    actors::select_query query;
    query.token = world.token.as<actors::token_actor>();
    query.epoch = 1;
    query.access = world.id;
    query.hidden = query.normed = {1};
    query.logits.assign(world.n_experts, 0);
    query.logits[wanted] = 9;
    query.logits[5] = 5;
    query.allowance = {0};
    world.tell(selecting, actors::select_batch{{query}});
    return world.token.take<actors::decided>().choice.rows.at(0).executed.at(0).server;
  };
  // There is so much to do here that it is worth the way.
  world.tell(world.edge, actors::compute_load{100'000'000});
  BOOST_TEST(executor(4) == 2u);
  world.happens(2, what::down);
  BOOST_TEST(executor(4) == 1u);
  BOOST_TEST(executor(0) == 2u);
  // What is told of waits meanwhile does not change that.
  world.tell(world.edge, actors::compute_load{200'000'000});
  BOOST_TEST(executor(4) == 1u);
  world.happens(2, what::up);
  BOOST_TEST(executor(4) == 2u);
}

BOOST_AUTO_TEST_CASE(other_frames_that_went_nowhere_end_nothing) {
  one_server world;
  world.open();
  world.submit();
  world.grant();
  for (const auto kind : {frame_kind::output, frame_kind::progress, frame_kind::reservation,
                          frame_kind::load, frame_kind::failure, frame_kind::links})
    world.tell(world.edge, actors::undeliverable{kind, 2, own, 0});
  BOOST_TEST((world.phase_of_own() == request_phase::running));
  BOOST_TEST(world.client.heard() == 0u);
}

// ------------------------------------------------------------------------------------------ load

BOOST_AUTO_TEST_CASE(loads_of_others_go_to_the_selector) {
  one_server world;
  world.open();
  world.receive(2, wire::load_report{2, 1, 77, {0, 0, 0}});
  BOOST_TEST(world.selector.only<wire::load_report>().wait_ns == 77);
  world.receive(2, wire::load_report{0, 1, 77, {0, 0, 0}});
  BOOST_TEST(world.status().refused_frames == 1u);
}

BOOST_AUTO_TEST_CASE(one_that_is_connected_again_does_not_believe_what_it_was_told_before) {
  serving::load_board believed(3);
  const auto told = [](const one_server& world, std::uint32_t to) {
    return world.decoded<wire::load_report>(to, frame_kind::load, wire::decode_load);
  };
  {
    one_server world;
    world.context->seat.emplace();
    world.open();
    for (const std::uint32_t peer : {0u, 2u}) world.happens(peer, what::up);
    BOOST_TEST(told(world, 0).empty());  // There is nothing that it could believe.
    world.tell(world.edge, actors::compute_load{8'000'000});
    BOOST_TEST(believed.take(told(world, 2).back()));
    world.happens(2, what::down);
    // The link gets it, and has no way to send it.
    world.tell(world.edge, actors::compute_load{0});
    const auto n = told(world, 2).size();
    world.happens(2, what::up);
    BOOST_REQUIRE_EQUAL(told(world, 2).size(), n + 1);
    BOOST_TEST(believed.take(told(world, 2).back()));
    BOOST_TEST(believed.wait_ns()[world.id] == 0);
    // And all the others, and its own selector.
    BOOST_TEST((told(world, 0).back() == told(world, 2).back()));
    BOOST_TEST((world.selector.all<wire::load_report>().back() == told(world, 2).back()));
    world.tell(world.edge, actors::compute_load{9'000'000});
    BOOST_TEST(believed.take(told(world, 2).back()));
  }
  one_server later;
  later.context->seat.emplace();
  later.context->seat->boot = 2;
  later.open();
  later.happens(2, what::up);
  BOOST_REQUIRE_EQUAL(told(later, 2).size(), 1u);
  BOOST_TEST(believed.take(told(later, 2).front()));
  BOOST_TEST(believed.wait_ns()[later.id] == 0);
}

BOOST_AUTO_TEST_CASE(while_it_works_it_asks_for_its_load_every_period) {
  one_server world;
  world.open();
  BOOST_TEST(!world.run_next());
  world.reserve();
  BOOST_TEST(world.compute.count<actors::tell_load>() == 0u);
  world.run_next();
  BOOST_TEST(world.time_ns() == world.load_period_ns);
  BOOST_TEST(world.compute.count<actors::tell_load>() == 1u);
}

BOOST_AUTO_TEST_CASE(with_a_seat_it_asks_when_the_thread_that_reads_the_network_says_so) {
  one_server world;
  std::vector<std::int64_t> asked;
  bool can = true;
  world.context->seat.emplace().look_at_load = [&](std::int64_t delay_ns) {
    asked.push_back(delay_ns);
    return can;
  };
  world.open();
  world.reserve();
  BOOST_TEST((asked == std::vector<std::int64_t>{world.load_period_ns}));
  // No timer of its own runs beside it: the next is another's.
  world.run_next();
  const auto since_ns = world.time_ns();
  BOOST_TEST(since_ns > world.load_period_ns);
  BOOST_TEST(world.compute.count<actors::tell_load>() == 0u);
  world.tell(world.edge, actors::load_tick{});
  BOOST_TEST(world.compute.count<actors::tell_load>() == 1u);
  can = false;
  world.tell(world.edge, actors::compute_load{8'000'000});
  BOOST_TEST(asked.size() == 2u);
  world.run_next();
  BOOST_TEST(world.time_ns() == since_ns + world.load_period_ns);
  BOOST_TEST(world.compute.count<actors::tell_load>() == 2u);
}

BOOST_AUTO_TEST_CASE(what_changed_of_its_load_is_told_to_everybody) {
  one_server world;
  world.with_monitor();
  world.open();
  constexpr std::int64_t told = 4'000'000, small = 499'999;
  world.tell(world.edge, actors::compute_load{small});
  BOOST_TEST(world.selector.heard() == 0u);  // As good as none.
  world.tell(world.edge, actors::link_load{world.id, 2, 0, 5, told});
  BOOST_TEST(world.monitor.only<actors::link_load>().wait_ns == told);
  world.tell(world.edge, actors::compute_load{2 * told});
  const auto report = world.selector.only<wire::load_report>();
  BOOST_TEST(report.server == world.id);
  BOOST_TEST(report.number == 1u);
  BOOST_TEST(report.wait_ns == 2 * told);
  BOOST_TEST(report.link_wait_ns[2] == told);
  BOOST_TEST((world.monitor.only<wire::load_report>() == report));
  for (const std::uint32_t peer : {0, 2})
    BOOST_TEST((world.decoded<wire::load_report>(peer, frame_kind::load, wire::decode_load).at(0) ==
                report));
  // A quarter more or less is no news.
  world.tell(world.edge, actors::compute_load{2 * told + told / 2 - 1});
  BOOST_TEST(world.selector.count<wire::load_report>() == 1u);
  world.tell(world.edge, actors::compute_load{2 * told + told / 2});
  BOOST_TEST(world.selector.count<wire::load_report>() == 2u);
}

BOOST_AUTO_TEST_CASE(the_wait_of_a_link_passes_with_time) {
  one_server world;
  world.open();
  world.tell(world.edge, actors::link_load{world.id, 2, 0, 5, 3'000'000});
  world.tell(world.edge, actors::compute_load{0});
  BOOST_TEST(world.selector.all<wire::load_report>().at(0).link_wait_ns[2] == 3'000'000);
  world.run_next();
  BOOST_TEST(world.time_ns() == world.load_period_ns);
  world.tell(world.edge, actors::compute_load{0});
  BOOST_TEST(world.selector.all<wire::load_report>().at(1).link_wait_ns[2] == 1'000'000);
  world.run_next();
  world.tell(world.edge, actors::compute_load{0});
  BOOST_TEST(world.selector.all<wire::load_report>().at(2).link_wait_ns[2] == 0);
  BOOST_TEST(!world.run_next());
}

BOOST_AUTO_TEST_CASE(ticks_go_on_while_somebody_waits_and_end_when_nobody_does) {
  one_server world;
  world.open();
  world.tell(world.edge, actors::compute_load{40});
  BOOST_TEST(world.run_next());
  world.tell(world.edge, actors::compute_load{0});
  BOOST_TEST(!world.run_next());
  world.tell(world.edge, actors::link_load{world.id, 2, 0, 5, 300});
  BOOST_TEST(world.run_next());
}

BOOST_AUTO_TEST_CASE(settled_it_asks_for_no_load_any_more) {
  one_server world;
  world.open();
  world.tell(world.edge, actors::compute_load{40});
  world.tell(world.edge, actors::settle_down{});
  world.run_all();
  BOOST_TEST(world.compute.count<actors::tell_load>() == 0u);
  world.tell(world.edge, actors::compute_load{50});
  BOOST_TEST(!world.run_next());
}

// ------------------------------------------------------------------------------------------- end

BOOST_AUTO_TEST_CASE(stopped_it_ends_with_every_actor_of_its_server) {
  one_server world;
  world.open();
  world.submit();
  world.tell(world.edge, actors::stop_server{});
  BOOST_TEST(world.compute.ended());
  BOOST_TEST(world.selector.ended());
  BOOST_TEST(world.links[0].ended());
  BOOST_TEST(world.links[2].ended());
  for (const auto& shard : world.shards) BOOST_TEST(shard.ended());
  BOOST_TEST(!world.recorder.ended());
  BOOST_TEST(world.client.heard() == 0u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
