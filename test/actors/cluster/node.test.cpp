#include "actors/cluster/node.hpp"

#include "actors/cluster/remote_experts.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <set>

#include "test/actors/cluster/nodes.hpp"

namespace ordermoe {

namespace {

using net::session_event;
using test::asked_requests;
using test::bare_end;
using test::eventually;
using test::nodes;
using test::request_of;
using test::says;

void check_answered(const nodes& cluster, const asked_requests& asked) {
  for (const auto& each : asked.all()) {
    BOOST_REQUIRE(each.ended.has_value());
    BOOST_TEST(!each.ended->problem.has_value(),
               (each.ended->problem ? each.ended->problem->message : ""));
    BOOST_TEST(each.streamed == test::reference_ids(cluster.model(), each.spec, 0),
               boost::test_tools::per_element());
  }
}

/// Some failed, each for want of this server, and whatever was complete before is as the reference's.
void check_failed_for_want_of(const nodes& cluster, const asked_requests& asked, const char* name) {
  BOOST_TEST(asked.n_failed() > 0u);
  for (const auto& each : asked.all()) {
    const auto& why = each.ended->problem;
    if (!why) {
      BOOST_TEST(each.streamed == test::reference_ids(cluster.model(), each.spec, 0),
                 boost::test_tools::per_element());
      continue;
    }
    BOOST_TEST(each.ended->finish == "failed");
    BOOST_TEST(says(why->message, fmt::format("({}) is not connected", name)), why->message);
  }
}

/// Whether sessions have sent, of each frame, a header and so many times what is charged for it.
bool sends_what_is_charged(const nlohmann::json& status, std::uint32_t self, std::int64_t stretch) {
  for (const auto& link : status.at("links")) {
    auto expected =
        static_cast<std::int64_t>(net::header_bytes) * link.at("frames").get<std::int64_t>();
    for (const auto& [kind, bytes] : link.at("charged_bytes").items())
      expected += stretch * bytes.get<std::int64_t>();
    const auto to = link.at("to").get<std::uint32_t>();
    const auto& lanes = status.at("peers")[to < self ? to : to - 1].at("lanes");
    for (const auto* lane : {"token", "kv", "load"})
      expected -= lanes.at(lane).at("sent_bytes").get<std::int64_t>();
    if (expected != 0) return false;
  }
  return true;
}

/// More than a machine answers while another thread says a word.
constexpr std::uint32_t many = 100, long_answer = 55;

void ask_many(asked_requests& asked) {
  for (std::uint32_t i = 0; i < many; ++i) asked.ask(request_of(i, long_answer));
}

/// Node 0 alone is real; server 1, which keeps rows of its users, only listens.
struct half_cluster : nodes {
  bare_end* other = nullptr;
  explicit half_cluster(bool takes_in = true) {
    place_by_hand();
    if (!takes_in) limits.credit[static_cast<std::size_t>(net::lane::token)] = 2048;
    other = &start_bare(1, takes_in);
    start(0);
    await_up(0, {1});
    BOOST_REQUIRE(eventually([&] { return other->is_up(); }));
  }
  std::size_t n_in(const char* phase) {
    const auto status = status_of(0);
    return static_cast<std::size_t>(std::ranges::count_if(
        status.at("requests"), [&](const auto& each) { return each.at("phase") == phase; }));
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(node)

BOOST_AUTO_TEST_CASE(three_nodes_answer_with_the_ids_of_the_reference) {
  for (const std::string strategy : {"exact", "ordermoe"}) {
    BOOST_TEST_CONTEXT(strategy) {
      nodes cluster(strategy);
      cluster.start_all();
      std::vector<std::unique_ptr<actors::cluster_client>> clients;
      std::deque<asked_requests> asked;
      for (std::uint32_t m = 0; m < nodes::n; ++m) {
        clients.push_back(cluster.client(m));
        BOOST_TEST(clients.back()->node_name() == nodes::name_of(m));
        auto& of_node = asked.emplace_back(*clients.back());
        for (std::uint32_t i = 0; i < 6; ++i) of_node.ask(request_of(10 * m + i));
      }
      for (auto& each : asked) each.await_all();
      for (const auto& each : asked) check_answered(cluster, each);
      std::int64_t frames = 0;
      for (std::uint32_t m = 0; m < nodes::n; ++m) {
        const auto status = cluster.status_of(m);
        BOOST_TEST(status.at("ended_requests") == 6);
        BOOST_TEST(status.at("refused_frames") == 0);
        for (const auto& link : status.at("links")) frames += link.at("frames").get<std::int64_t>();
        for (const auto& each : asked[m].all()) BOOST_TEST(each.ended->access == m);
      }
      BOOST_TEST(frames > 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_status_says_who_a_node_is_and_whom_it_is_connected_to) {
  nodes cluster;
  cluster.place_by_hand();
  cluster.start_all();
  const auto client = cluster.client(1);
  const auto text = client->status(test::patience);
  BOOST_REQUIRE_MESSAGE(text, (text ? "" : text.error().message));
  const auto status = nlohmann::json::parse(*text);
  BOOST_TEST(status.at("name") == "s1");
  BOOST_TEST(status.at("server") == 1);
  BOOST_TEST(status.at("boot") == 1);
  BOOST_TEST(status.at("cluster") == "edge3");
  BOOST_TEST(status.at("admitting") == true);
  BOOST_TEST(status.at("requests").empty());
  BOOST_TEST(status.at("kv_bytes").get<std::int64_t>() > 0);
  BOOST_REQUIRE_EQUAL(status.at("peers").size(), 2u);
  for (const std::size_t i : {0u, 1u}) {
    const auto& peer = status.at("peers")[i];
    BOOST_TEST(peer.at("server") == 2 * i);
    BOOST_TEST(peer.at("name") == nodes::name_of(static_cast<std::uint32_t>(2 * i)));
    BOOST_TEST(peer.at("up") == true);
    BOOST_TEST(peer.at("boot") == 1);
    BOOST_TEST(peer.at("lanes").contains("token"));
  }
}

BOOST_AUTO_TEST_CASE(rows_go_by_a_lane_of_their_own) {
  nodes cluster;
  cluster.place_by_hand();
  cluster.start_all();
  const auto client = cluster.client(0);
  asked_requests asked(*client);
  asked.ask(request_of(0));
  asked.await_all();
  check_answered(cluster, asked);
  const auto to_1 = cluster.status_of(0).at("peers")[0].at("lanes");
  for (const auto* lane : {"token", "kv"})
    BOOST_TEST(to_1.at(lane).at("sent_bytes").get<std::int64_t>() > 0);
  BOOST_TEST(to_1.at("bulk").at("sent_bytes") == 0);
}

BOOST_AUTO_TEST_CASE(rehearsing_nodes_answer_alike_in_the_charged_time_and_send_the_charged_bytes) {
  nodes cluster;
  cluster.rehearsed = rehearsal{2, 3};
  cluster.place_by_hand();
  cluster.start_all();
  const auto client = cluster.client(0);
  asked_requests asked(*client);
  for (std::uint32_t i = 0; i < 3; ++i) asked.ask(request_of(i, 4));
  asked.await_all();
  check_answered(cluster, asked);
  for (const std::uint32_t m : {0u, 1u}) {
    const auto told = cluster.status_of(m).at("rehearsal");
    BOOST_TEST(told.at("dilation") == 2);
    BOOST_TEST(told.at("stretch") == 3);
    BOOST_TEST(told.at("batches").get<std::int64_t>() > 0);
    BOOST_TEST(told.at("exceeded").get<std::int64_t>() <= told.at("batches").get<std::int64_t>());
    // Once nothing is on its way between what counts and what sends.
    BOOST_TEST(eventually([&] { return sends_what_is_charged(cluster.status_of(m), m, 3); }));
  }
  // The prompt's chunk and three positions, one after the other, at each layer.
  const auto n_layers = static_cast<std::int64_t>(cluster.model().config().n_layers);
  for (const auto& each : asked.all())
    BOOST_TEST(each.ended->done_ns - each.ended->arrival_ns >=
               2 * 4 * n_layers * cluster.least_attention_ns());
}

BOOST_AUTO_TEST_CASE(a_text_is_encoded_by_the_node) {
  const auto tokens = model::tokenizer::load(ORDERMOE_TEST_DATA "/mixtral-tiny");
  BOOST_REQUIRE(tokens.has_value());
  nodes cluster;
  cluster.place_by_hand();
  cluster.tokens = *tokens;
  cluster.start_all();
  const auto client = cluster.client(0);
  asked_requests asked(*client);
  auto spec = request_of(0);
  spec.prompt.clear();
  asked.ask(spec, "some text");
  asked.ask(spec, "");
  asked.await_all();
  spec.prompt = (*tokens)->encode("some text");
  BOOST_TEST(asked.all()[0].streamed == test::reference_ids(cluster.model(), spec, 0),
             boost::test_tools::per_element());
  BOOST_TEST(asked.all()[0].ended->text != "");
  BOOST_REQUIRE(asked.all()[1].ended->problem.has_value());
  BOOST_TEST(says(asked.all()[1].ended->problem->message, "the prompt has no tokens"));
}

BOOST_AUTO_TEST_CASE(what_one_node_cannot_answer_is_told_to_its_client_alone) {
  nodes cluster;
  cluster.place_by_hand();
  cluster.start_all();
  const auto client = cluster.client(0);
  asked_requests asked(*client);
  auto spec = request_of(0);
  spec.prompt.clear();
  asked.ask(spec, "some text");  // It has no tokenizer.
  spec.prompt = {1 << 20};
  asked.ask(spec);
  asked.ask(request_of(1));
  asked.await_all();
  const auto problem = [&](std::size_t i) { return asked.all()[i].ended->problem->message; };
  BOOST_TEST(says(problem(0), "no tokenizer; send ids"));
  BOOST_TEST(says(problem(1), "vocabulary"));
  BOOST_TEST(!asked.all()[2].ended->problem.has_value());
}

// ---------------------------------------------------------------------------- clients and requests

BOOST_AUTO_TEST_CASE(a_request_has_a_number_that_no_other_of_the_cluster_ever_has) {
  half_cluster cluster;
  const auto client = cluster.client(0);
  asked_requests asked(*client);
  asked.ask(request_of(0));
  asked.ask(request_of(1));
  BOOST_REQUIRE(eventually([&] { return cluster.n_in("reserving") == 2; }));
  const auto requests = cluster.status_of(0).at("requests");
  const auto first = std::uint64_t{1} << 56 | std::uint64_t{1} << 32;
  BOOST_TEST(requests[0].at("request") == first);
  BOOST_TEST(requests[1].at("request") == first + 1);
  // Beside how busy it is and whom it does not reach.
  const auto of_requests = [&] {
    auto frames = cluster.other->frames();
    std::erase_if(frames, [](const auto& each) {
      return each.header.kind == static_cast<std::uint8_t>(wire::frame_kind::load);
    });
    return frames;
  };
  BOOST_REQUIRE(eventually([&] { return of_requests().size() == 2; }));
  std::set<std::uint64_t> told;
  for (const auto& each : of_requests()) {
    BOOST_TEST((each.header.of == net::lane::token));
    BOOST_TEST(each.header.kind == static_cast<std::uint8_t>(wire::frame_kind::reservation));
    BOOST_TEST(each.header.attempt == 0u);
    told.insert(each.header.request);
  }
  BOOST_TEST((told == std::set{first, first + 1}));
}

BOOST_AUTO_TEST_CASE(a_cancelled_request_ends_and_others_wait_on) {
  half_cluster cluster;
  const auto client = cluster.client(0);
  asked_requests asked(*client);
  for (std::uint32_t i = 0; i < 3; ++i) asked.ask(request_of(i));
  BOOST_REQUIRE(eventually([&] { return cluster.n_in("reserving") == 3; }));
  asked.cancel(1);
  BOOST_REQUIRE(eventually([&] { return client->outstanding() == 2; }));
  BOOST_TEST(asked.all()[1].ended->finish == "cancelled");
  BOOST_TEST(eventually([&] { return cluster[0].outstanding() == 2; }));
  asked.cancel(1);  // Again, and one that never was.
  client->cancel(99);
  asked.cancel(0);
  asked.cancel(2);
  asked.await_all();
}

BOOST_AUTO_TEST_CASE(the_requests_of_a_client_that_goes_away_are_cancelled) {
  half_cluster cluster;
  auto client = cluster.client(0);
  const auto other = cluster.client(0, "bob");
  asked_requests asked(*client), others(*other);
  for (std::uint32_t i = 0; i < 5; ++i) asked.ask(request_of(i));
  others.ask(request_of(9));
  BOOST_REQUIRE(eventually([&] { return cluster.n_in("reserving") == 6; }));
  client.reset();
  BOOST_REQUIRE(eventually([&] { return cluster[0].outstanding() == 1; }));
  BOOST_TEST(other->outstanding() == 1u);
  BOOST_TEST(cluster.n_in("reserving") == 1u);
}

BOOST_AUTO_TEST_CASE(a_viewer_is_told_how_a_node_is_and_gets_no_answer) {
  half_cluster cluster;
  const auto viewer = cluster.client(0, "eve", net::role::viewer);
  asked_requests asked(*viewer);
  asked.ask(request_of(0));
  asked.await_all();
  const auto& why = asked.all()[0].ended->problem;
  BOOST_REQUIRE(why.has_value());
  BOOST_TEST((why->code == errc::usage));
  BOOST_TEST(says(why->message, "a viewer's certificate asks for no answers"));
  BOOST_TEST(cluster[0].outstanding() == 0u);
  BOOST_TEST(viewer->status(test::patience).has_value());
}

BOOST_AUTO_TEST_CASE(a_client_that_makes_no_sense_is_ended_and_others_go_on) {
  half_cluster cluster;
  const auto other = cluster.client(0);
  asked_requests others(*other);
  others.ask(request_of(0));
  BOOST_REQUIRE(eventually([&] { return cluster.n_in("reserving") == 1; }));
  struct nonsense {
    std::uint8_t kind;
    const char* text;
    const char* answer;
  };
  const auto submit = static_cast<std::uint8_t>(actors::control_kind::submit),
             cancel = static_cast<std::uint8_t>(actors::control_kind::cancel),
             token = static_cast<std::uint8_t>(actors::control_kind::token);
  for (const auto& each :
       {nonsense{submit, "garbage", "submit"}, nonsense{submit, "{\"ref\": 1}", "submit: found"},
        nonsense{cancel, "[]", "cancel"},
        nonsense{token, "{}", "a message of kind 66, expected submit"},
        nonsense{0, "", "a message of kind 0, expected submit"},
        nonsense{255, "\xff", "a message of kind 255, expected submit"}}) {
    BOOST_TEST_CONTEXT(static_cast<int>(each.kind) << ": " << each.text) {
      bare_end client;
      client.start(cluster.dialling(0));
      BOOST_REQUIRE(eventually([&] { return client.is_up(); }));
      client.send(0, net::lane::control, each.kind, each.text);
      BOOST_REQUIRE(eventually([&] { return !client.events(session_event::what::down).empty(); }));
      BOOST_TEST(says(client.events(session_event::what::down)[0].text, each.answer),
                 client.events(session_event::what::down)[0].text);
    }
  }
  BOOST_TEST(cluster.log_of(0).has("client.refused client=bob why=\"a message of kind 255"));
  BOOST_TEST(other->outstanding() == 1u);
  BOOST_TEST(other->status(test::patience).has_value());
}

BOOST_AUTO_TEST_CASE(experts_run_for_a_client_wherever_they_are) {
  nodes cluster;
  cluster.place_by_hand();
  cluster.start_all();
  const auto& model = cluster.model();
  const auto& shape = model.config();
  const auto width = shape.hidden_size;
  // More than a message holds, so that there are several pieces.
  const auto n = actors::most_row_bytes / sizeof(float) / width + 3;
  std::vector<float> rows(n * width);
  random_stream draws(5);
  for (float& x : rows) x = static_cast<float>(draws.uniform(-1, 1));
  // Server 2 has no expert at all.
  for (const std::uint32_t m : {0u, 2u}) {
    const actors::remote_experts experts(cluster.client(m), width);
    for (std::size_t l = 0; l < shape.n_layers; ++l) {
      std::vector<std::vector<float>> outputs(shape.n_experts, std::vector<float>(rows.size()));
      std::vector<model::expert_rows> work;
      for (std::size_t e = 0; e < shape.n_experts; ++e)
        work.push_back({expert_id{e}, rows, outputs[e]});
      experts.run(layer_id{l}, precision::stored, work);
      for (std::size_t e = 0; e < shape.n_experts; ++e) {
        std::vector<float> expected(rows.size());
        model.run_expert(layer_id{l}, expert_id{e}, rows, expected);
        BOOST_TEST(outputs[e] == expected);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(experts_that_cannot_be_run_are_named_and_the_client_stays) {
  nodes cluster;
  cluster.place_by_hand();
  cluster.start_all();
  const auto width = cluster.model().config().hidden_size;
  const std::vector<float> rows(width, 1);
  std::vector<float> output(width);
  const auto problem_of = [&](std::shared_ptr<actors::cluster_client> client, std::size_t expert) {
    const actors::remote_experts experts(std::move(client), width);
    const model::expert_rows work{expert_id{expert}, rows, output};
    try {
      experts.run(layer_id{0}, precision::stored, {&work, 1});
    } catch (const model::expert_failure& failed) {
      return failed.why;
    }
    return error{errc::failed, "it ran"};
  };
  const auto viewer = problem_of(cluster.client(0, "eve", net::role::viewer), 0);
  BOOST_TEST((viewer.code == errc::usage));
  BOOST_TEST(says(viewer.message, "a viewer's certificate runs no experts"), viewer.message);
  const std::shared_ptr<actors::cluster_client> client = cluster.client(0);
  cluster.stop(1);
  BOOST_REQUIRE(eventually([&] { return cluster.log_of(0).has("session.down peer=s1"); }));
  const auto gone = problem_of(client, 1);
  BOOST_TEST((gone.code == errc::io));
  BOOST_TEST(says(gone.message, "expert 1 of layer 0 is on s1, not connected with s0"),
             gone.message);
  BOOST_TEST(problem_of(client, 0).message == "it ran");
}

BOOST_AUTO_TEST_CASE(an_ask_for_an_expert_that_makes_no_sense_ends_that_client_alone) {
  nodes cluster;
  cluster.place_by_hand();
  cluster.start_all();
  const auto width = cluster.model().config().hidden_size;
  actors::expert_ask beyond, ragged;
  beyond.expert = 99;
  beyond.rows.resize(width);
  ragged.rows.resize(width + 1);
  for (const auto& bytes : {std::string("garbage"), encode(beyond), encode(ragged)}) {
    bare_end client;
    client.start(cluster.dialling(0));
    BOOST_REQUIRE(eventually([&] { return client.is_up(); }));
    BOOST_TEST(client.send(0, net::lane::token,
                           static_cast<std::uint8_t>(actors::control_kind::run_expert), bytes));
    BOOST_REQUIRE(eventually([&] { return !client.events(session_event::what::down).empty(); }));
    BOOST_TEST(says(client.events(session_event::what::down).front().text, "an ask for"));
  }
  const auto other = cluster.client(0);
  BOOST_TEST(other->status(test::patience).has_value());
}

BOOST_AUTO_TEST_CASE(two_answers_of_one_client_have_two_numbers) {
  half_cluster cluster;
  bare_end client;
  client.start(cluster.dialling(0));
  BOOST_REQUIRE(eventually([&] { return client.is_up(); }));
  actors::remote_request wanted;
  wanted.ref = 4;
  wanted.spec = request_of(0);
  const auto text = actors::submit_text(wanted);
  client.say(actors::control_kind::submit, text);
  client.say(actors::control_kind::submit, text);
  BOOST_REQUIRE(eventually([&] { return client.frames().size() == 1; }));
  const auto ended = actors::parse_ended(client.frames()[0].text);
  BOOST_REQUIRE(ended.has_value());
  BOOST_TEST(ended->request == 4u);
  BOOST_TEST(says(ended->problem->message, "ref 4 is being answered"));
  BOOST_TEST(cluster[0].outstanding() == 1u);
  // When it has ended the number is free again.
  client.say(actors::control_kind::cancel, actors::cancel_text(4));
  BOOST_REQUIRE(eventually([&] { return client.frames().size() == 2; }));
  BOOST_TEST(actors::parse_ended(client.frames()[1].text)->finish == "cancelled");
  client.say(actors::control_kind::submit, text);
  BOOST_REQUIRE(eventually([&] { return cluster.n_in("reserving") == 1; }));
  BOOST_TEST(client.frames().size() == 2u);
}

BOOST_AUTO_TEST_CASE(tokens_are_told_as_they_come_where_a_client_wants_them) {
  nodes cluster;
  cluster.place_by_hand();
  cluster.start_all();
  for (const bool wants : {true, false}) {
    bare_end client;
    client.start(cluster.dialling(1));
    BOOST_REQUIRE(eventually([&] { return client.is_up(); }));
    actors::remote_request wanted;
    wanted.spec = request_of(0);
    wanted.tells_tokens = wants;
    client.say(actors::control_kind::submit, actors::submit_text(wanted));
    const auto is_last = [&](const session_event& each) {
      return each.header.kind == static_cast<std::uint8_t>(actors::control_kind::ended);
    };
    BOOST_REQUIRE(eventually([&] { return std::ranges::any_of(client.frames(), is_last); }));
    const auto frames = client.frames();
    const auto ended = actors::parse_ended(frames.back().text);
    BOOST_REQUIRE(ended.has_value());
    BOOST_TEST(!ended->token_ids.empty(), (ended->problem ? ended->problem->message : ""));
    BOOST_TEST(frames.size() == 1 + (wants ? ended->token_ids.size() : 0));
  }
}

BOOST_AUTO_TEST_CASE(a_client_that_does_not_read_is_ended) {
  nodes cluster;
  cluster.place_by_hand();
  cluster.limits.credit[static_cast<std::size_t>(net::lane::control)] = 4096;
  cluster.start(1);
  bare_end client(false);
  client.start(cluster.dialling(1));
  BOOST_REQUIRE(eventually([&] { return client.is_up(); }));
  BOOST_REQUIRE(eventually([&] {
    client.say(actors::control_kind::ask, {});
    return !client.events(session_event::what::down).empty();
  }));
  BOOST_TEST(says(client.events(session_event::what::down)[0].text, "does not read"));
}

BOOST_AUTO_TEST_CASE(a_client_may_say_ever_more_where_it_is_taken_in) {
  nodes cluster;
  cluster.place_by_hand();
  cluster.limits.credit[static_cast<std::size_t>(net::lane::control)] = 4096;
  cluster.start(1);
  bare_end client;
  client.start(cluster.dialling(1));
  BOOST_REQUIRE(eventually([&] { return client.is_up(); }));
  for (std::size_t i = 1; i <= 200; ++i) {
    client.say(actors::control_kind::ask, {});
    BOOST_REQUIRE(eventually([&] { return client.n_frames() == i; }));
  }
}

// ----------------------------------------------------------------------------------- other servers

BOOST_AUTO_TEST_CASE(requests_wait_while_another_server_takes_nothing_in) {
  half_cluster cluster(false);
  bare_end client;
  client.start(cluster.dialling(0));
  BOOST_REQUIRE(eventually([&] { return client.is_up(); }));
  // Each takes one frame of a hundred bytes or so to the other.
  actors::remote_request wanted;
  wanted.spec = request_of(0);
  BOOST_REQUIRE(eventually([&] {
    client.say(actors::control_kind::submit, actors::submit_text(wanted));
    ++wanted.ref;
    return cluster.n_in("held") > 0;
  }));
  cluster.other->take_in();
  BOOST_REQUIRE(eventually([&] { return cluster.n_in("reserving") == wanted.ref; }));
  BOOST_TEST(client.frames().empty());
}

BOOST_AUTO_TEST_CASE(what_another_server_sends_wrongly_is_counted_and_told) {
  half_cluster cluster;
  const auto refused = [&] { return cluster.status_of(0).at("refused_frames").get<int>(); };
  const auto send = [&](std::uint8_t kind) {
    BOOST_TEST(cluster.other->send(0, net::lane::token, kind, "damaged", 7, 1));
  };
  send(static_cast<std::uint8_t>(wire::frame_kind::progress));
  BOOST_REQUIRE(eventually([&] { return refused() == 1; }));
  send(200);
  BOOST_REQUIRE(eventually([&] { return refused() == 2; }));
  const auto client = cluster.client(0);
  asked_requests asked(*client);
  asked.ask(request_of(0));
  BOOST_REQUIRE(eventually([&] { return cluster.n_in("reserving") == 1; }));
}

BOOST_AUTO_TEST_CASE(another_server_may_send_ever_more_where_it_is_taken_in) {
  half_cluster cluster(false);  // Of a small credit.
  for (int i = 1; i <= 100; ++i)
    cluster.other->send(0, net::lane::token, static_cast<std::uint8_t>(wire::frame_kind::progress),
                        "damaged", 7, 1);
  BOOST_TEST(eventually([&] { return cluster.status_of(0).at("refused_frames") == 100; }));
}

BOOST_AUTO_TEST_CASE(a_server_that_ends_or_begins_anew_ends_the_requests_that_need_it) {
  for (const bool comes_back : {false, true}) {
    half_cluster cluster;
    const auto client = cluster.client(0);
    asked_requests asked(*client);
    for (std::uint32_t i = 0; i < 4; ++i) asked.ask(request_of(i));
    BOOST_REQUIRE(eventually([&] { return cluster.n_in("reserving") == 4; }));
    cluster.other->stop();
    if (comes_back) cluster.start_bare(1);
    asked.await_all();
    BOOST_TEST(asked.n_failed() == 4u);
    check_failed_for_want_of(cluster, asked, "s1");
    BOOST_TEST(cluster.log_of(0).has("session.down peer=s1"));
    if (!comes_back) continue;
    cluster.await_up(0, {1});
    BOOST_TEST(cluster.status_of(0).at("peers")[0].at("boot") == 2);
    asked.ask(request_of(5));
    BOOST_REQUIRE(eventually([&] { return cluster.n_in("reserving") == 1; }));
  }
}

BOOST_AUTO_TEST_CASE(a_lost_server_ends_what_needs_it_and_nothing_else_and_comes_back) {
  nodes cluster;
  cluster.place_by_hand();
  cluster.start_all();
  const auto client_0 = cluster.client(0);
  {
    // Nothing of server 0's users is at server 2.
    asked_requests asked(*client_0);
    ask_many(asked);
    BOOST_REQUIRE(eventually([&] { return asked.any_token(); }));
    cluster.stop(2);
    asked.await_all();
    check_answered(cluster, asked);
  }
  cluster.start(2);
  for (const std::uint32_t m : {0, 1, 2}) cluster.await_up(m, {0, 1, 2});
  BOOST_TEST(cluster.status_of(2).at("boot") == 2);
  const auto client_2 = cluster.client(2);
  {
    // Rows of server 0's users are at server 1; server 2's tokens call experts there.
    asked_requests at_0(*client_0), at_2(*client_2);
    ask_many(at_0);
    ask_many(at_2);
    BOOST_REQUIRE(eventually([&] { return at_0.any_token() && at_2.any_token(); }));
    cluster.stop(1);
    at_0.await_all();
    at_2.await_all();
    check_failed_for_want_of(cluster, at_0, "s1");
    check_failed_for_want_of(cluster, at_2, "s1");
  }
  {
    asked_requests refused(*client_0);
    refused.ask(request_of(0));
    refused.await_all();
    BOOST_REQUIRE_EQUAL(refused.n_failed(), 1u);
    check_failed_for_want_of(cluster, refused, "s1");
  }
  cluster.start(1);
  for (const std::uint32_t m : {0, 1, 2}) cluster.await_up(m, {0, 1, 2});
  BOOST_TEST(cluster.status_of(0).at("peers")[0].at("boot") == 2);
  asked_requests at_0(*client_0), at_2(*client_2);
  for (std::uint32_t i = 0; i < 4; ++i) at_0.ask(request_of(i));
  for (std::uint32_t i = 0; i < 4; ++i) at_2.ask(request_of(i));
  at_0.await_all();
  at_2.await_all();
  check_answered(cluster, at_0);
  check_answered(cluster, at_2);
  // Nothing of what was lost is kept.
  for (const std::uint32_t m : {0, 1, 2})
    BOOST_TEST(eventually([&] { return cluster.status_of(m).at("reserved_bytes") == 0; }));
}

BOOST_AUTO_TEST_CASE(a_client_whose_node_ends_hears_so_and_asks_again_when_it_is_back) {
  nodes cluster;
  cluster.place_by_hand();
  cluster.start_all();
  const auto client = cluster.client(1);
  asked_requests asked(*client);
  ask_many(asked);
  cluster.stop(1);
  asked.await_all();
  BOOST_TEST(asked.n_failed() > 0u);
  for (const auto& each : asked.all())
    if (each.ended->problem)
      BOOST_TEST(says(each.ended->problem->message, "s1 went away"), each.ended->problem->message);
  asked_requests nobody(*client);
  nobody.ask(request_of(0));
  nobody.await_all();
  // Or it went away meanwhile: where its last word was lost it is missed some time later.
  BOOST_REQUIRE(nobody.all()[0].ended->problem.has_value());
  BOOST_TEST(says(nobody.all()[0].ended->problem->message, "s1 "));
  cluster.start(1);
  BOOST_REQUIRE(eventually([&] { return client->status(test::patience).has_value(); }));
  cluster.await_up(1, {0, 2});
  asked_requests again(*client);
  again.ask(request_of(0));
  again.await_all();
  check_answered(cluster, again);
}

BOOST_AUTO_TEST_CASE(nodes_of_two_plans_refuse_each_other_and_say_in_what_they_differ) {
  nodes cluster;
  cluster.plan_digest[1] = "another plan";
  cluster.start(1);
  cluster.start(0);
  for (const std::uint32_t m : {0, 1}) {
    BOOST_REQUIRE(eventually([&] { return cluster.log_of(m).has("plan"); }));
    const auto line = cluster.log_of(m).with("plan");
    BOOST_TEST(says(line, "one plan"), line);
    BOOST_TEST(says(line, "another plan"), line);
    BOOST_TEST(says(line, nodes::name_of(1 - m)), line);
    BOOST_TEST(!cluster.status_of(m).at("peers")[0].at("up").get<bool>());
  }
}

BOOST_AUTO_TEST_CASE(a_node_that_cannot_listen_or_serve_says_why) {
  nodes cluster;
  cluster.start(1);
  auto options = cluster.options(0);
  options.transport.listen = {cluster.at(1)};
  const auto taken = actors::node::start(options);
  BOOST_REQUIRE(!taken.has_value());
  BOOST_TEST((taken.error().code == errc::io));
  BOOST_TEST(says(taken.error().message, net::to_string(cluster.at(1))));
  options = cluster.options(0);
  options.service.mode = actors::run_mode::emulated;
  const auto emulated = actors::node::start(options);
  BOOST_REQUIRE(!emulated.has_value());
  BOOST_TEST((emulated.error().code == errc::unsupported));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
