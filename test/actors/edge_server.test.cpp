#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "actors/server_actors.hpp"
#include "planning/serving/token_visits.hpp"
#include "test/actors/probe_server.hpp"

namespace ordermoe {

namespace {

using actors::request_phase;
using wire::frame_kind;
using wire::reserve_step;
using what = actors::peer_event::what;

constexpr std::uint64_t foreign = 50;  ///< A request of a user of server 0.
constexpr std::uint64_t own = 7;       ///< A request of a user of this server.
/// What `foreign` reserves here: eight positions at three layers.
constexpr std::int64_t foreign_bytes = 8 * 3 * test::probe_server::kv_row_bytes;

bool says(const std::string& text, const char* words) {
  return text.find(words) != std::string::npos;
}

struct one_server : test::probe_server {
  actors::edge_server_actor edge = keep(actors::spawn_edge_server(system(), context, id));

  /// Ends what it has spawned, too.
  ~one_server() { tell(edge, actors::stop_server{}); }

  void attach() {
    view->server = edge;
    tell(edge, actors::attach_view{view});
  }
  /// Under the first plan, admitting.
  void open() {
    attach();
    tell(edge, actors::resume_admission{});
  }
  /// These plans, by epoch; requests begin under the last, or the one of that epoch.
  void install(std::vector<std::shared_ptr<const actors::plan_in_force>> plans,
               std::uint64_t begins = 0,
               std::shared_ptr<const model::transformer> experts = nullptr) {
    actors::install_plans message;
    message.begins_under = begins > 0 ? begins : plans.back()->plan.epoch;
    message.plans = std::move(plans);
    message.number = ++n_installs;
    message.planner = planner.as<actors::planner_actor>();
    message.model = std::move(experts);
    tell(edge, std::move(message));
  }
  std::uint64_t n_installs = 0;
  actors::server_status status() {
    return ask<actors::edge_status>(edge, actors::status_query{}).content;
  }
  template <class Message>
  void receive(std::uint32_t from, const Message& content) {
    tell(edge, frame_from(from, content));
  }

  // ------------------------------------------------------------------------ requests of server 0

  wire::reservation ask_of(reserve_step step, std::uint32_t ask = 1,
                           std::uint32_t attempt = 0) const {
    wire::reservation made;
    made.request = foreign;
    made.attempt = attempt;
    made.ask = ask;
    made.step = step;
    made.server = id;
    made.access = 0;
    if (step == reserve_step::attempt || step == reserve_step::wait) made.bytes = foreign_bytes;
    made.lease_ns = 5'000'000'000;
    return made;
  }
  void reserve() { receive(0, ask_of(reserve_step::attempt)); }
  wire::token_state token_at(std::uint32_t first, std::uint32_t layer,
                             std::uint32_t attempt = 0) const {
    wire::token_state made;
    made.terms.request = foreign;
    made.terms.attempt = attempt;
    made.terms.prompt_tokens = 4;
    made.terms.given_tokens = 4;
    made.terms.max_new_tokens = 4;
    made.first = first;
    made.layer = layer;
    made.ids = {5};
    made.allowance = {0};
    if (layer > 0) made.hidden.assign(context->wire.hidden_size, 0.0f);
    return made;
  }
  /// At layer 0, with an output of a server to come.
  wire::token_state token_awaiting(std::uint32_t first, std::uint32_t server) const {
    auto made = token_at(first, 0);
    made.hidden.assign(context->wire.hidden_size, 0.0f);
    made.slots_of_row = {1};
    made.slots = {{server, server, 1.0f}};
    return made;
  }
  wire::expert_output output_for(std::uint32_t first, std::uint32_t layer) const {
    wire::expert_output made;
    made.token = {foreign, 0, 0, first};
    made.layer = layer;
    made.rows = {{0, wire::whole_row}};
    made.y.assign(context->wire.hidden_size, 1.0f);
    return made;
  }
  wire::kv_rows rows_of(std::uint32_t layer, std::uint32_t first = 0) const {
    wire::kv_rows made;
    made.layer = layer;
    made.blocks.push_back({foreign, 0, first, 1, {}});
    made.blocks[0].rows.resize(context->wire.kv_row_bytes);
    return made;
  }

  // ------------------------------------------------------------------------ requests of this server

  void submit(std::uint64_t number = own) {
    auto spec = std::make_shared<actors::request_spec>();
    spec->access = id;
    spec->prompt = {5, 6, 7};
    spec->max_new_tokens = 2;
    tell(edge, actors::submit_request{number, spec, client.as<actors::client_actor>()});
  }
  wire::reservation answer_of(std::uint32_t from, reserve_step step, std::uint32_t ask = 1,
                              std::uint64_t request = own) const {
    wire::reservation made;
    made.request = request;
    made.ask = ask;
    made.step = step;
    made.server = from;
    made.access = id;
    made.bytes = 50;
    return made;
  }
  /// Memory is granted everywhere.
  void grant() {
    receive(0, answer_of(0, reserve_step::granted));
    receive(2, answer_of(2, reserve_step::granted));
  }
  wire::progress_report token_of_own(std::uint32_t position, bool last = false) const {
    wire::progress_report made;
    made.request = own;
    made.access = id;
    made.position = position;
    made.id = 30;
    made.last = last;
    return made;
  }
  // ------------------------------------------------------------------------------ other servers

  void happens(std::uint32_t peer, actors::peer_event::what kind) {
    actors::peer_event event;
    event.kind = kind;
    event.server = peer;
    tell(edge, std::move(event));
  }
  /// R_l of every layer is this, for users of `access`.
  void keep_rows_at(std::uint32_t access, planning::server_mask members) {
    auto content = view->placed->plan;
    content.residence[access].layers.assign(n_layers, members);
    view->placed = plan_of_epoch(1, std::move(content));
  }
  /// What the client of the one request that ended was told.
  std::string reason() const {
    const auto outcome = client.only<actors::answer_end>().outcome;
    return outcome->problem ? outcome->problem->message : outcome->finish;
  }
  std::vector<wire::failure_report> failures(std::uint32_t to) const {
    return decoded<wire::failure_report>(to, frame_kind::failure, wire::decode_failure);
  }
  request_phase phase_of_own() {
    const auto requests = status().requests;
    const auto found = std::ranges::find(requests, own, &actors::request_status::request);
    return found == requests.end() ? request_phase::ended : found->phase;
  }

  std::string finish() const { return client.only<actors::answer_end>().outcome->finish; }

  template <class Message>
  std::vector<Message> decoded(std::uint32_t to, frame_kind kind, const auto& decode) const {
    std::vector<Message> made;
    for (const auto& each : sent(to, kind)) made.push_back(*decode(each));
    return made;
  }
  std::vector<wire::reservation> reservations(std::uint32_t to) const {
    return decoded<wire::reservation>(to, frame_kind::reservation, wire::decode_reservation);
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(edge_server)

// ------------------------------------------------------------------------------------- its plan

BOOST_AUTO_TEST_CASE(before_its_first_plan_it_holds_requests_and_refuses_frames) {
  one_server world;
  world.view->placed = nullptr;
  world.attach();
  BOOST_TEST(!world.status().admitting);
  BOOST_TEST(world.status().name == "s1");
  wire::frame early;
  early.from = 0;
  early.to = world.id;
  world.tell(world.edge, early);
  BOOST_TEST(world.status().refused_frames == 1u);
  BOOST_TEST(world.recorder.count<actors::problem>() == 1u);
}

BOOST_AUTO_TEST_CASE(a_plan_reaches_compute_and_selector_and_the_planner_hears_of_it) {
  one_server world;
  world.view->placed = nullptr;
  world.attach();
  auto plan = world.plan_of_epoch(4);
  plan->policy = 2;
  world.install({plan});
  const auto installed = world.planner.only<actors::plans_installed>();
  BOOST_TEST(installed.number == 1u);
  BOOST_TEST(installed.server == world.id);
  const auto view = world.compute.only<actors::attach_view>().view;
  BOOST_TEST((view->placed == plan));
  const auto by = world.selector.only<actors::decide_by>();
  BOOST_TEST((by.view == view));
  BOOST_TEST(by.plans.size() == 1u);
  for (const auto& shard : view->shards) BOOST_TEST(static_cast<bool>(shard));
  BOOST_TEST(world.status().epoch == 4u);
  BOOST_TEST(world.status().policy == 2u);
}

BOOST_AUTO_TEST_CASE(shards_are_of_the_layers_that_the_plan_has_experts_of_here) {
  one_server world;
  world.attach();
  auto content = world.plan();
  for (auto& each : content.experts)
    if (each.layer == layer_id{1} && each.server == server_id{1}) each.server = server_id{0};
  world.install({world.plan_of_epoch(2, std::move(content))});
  const auto shards = world.compute.only<actors::attach_view>().view->shards;
  BOOST_TEST(static_cast<bool>(shards[0]));
  BOOST_TEST(!static_cast<bool>(shards[1]));
  BOOST_TEST(static_cast<bool>(shards[2]));
  for (const auto& before : world.shards) BOOST_TEST(before.ended());
}

BOOST_AUTO_TEST_CASE(another_policy_leaves_the_shards_of_the_plan) {
  one_server world;
  world.attach();
  auto plan = world.plan_of_epoch(1);
  plan->policy = 5;
  world.install({plan});
  for (const auto& before : world.shards) BOOST_TEST(!before.ended());
  BOOST_TEST(world.status().policy == 5u);
}

// ------------------------------------------------------------------------------ two plans at once

/// Between a plan and the next, under which users of server 0 keep rows at servers 0 and 1 alone.
struct between_plans : one_server {
  std::shared_ptr<const actors::plan_in_force> before = plan_of_epoch(1), after = next_plan();

  std::shared_ptr<const actors::plan_in_force> next_plan() const {
    auto content = plan();
    content.residence[0].layers = {0b011, 0b011, 0b011};
    content.residence[1].layers = {0b010, 0b010, 0b010};
    return plan_of_epoch(2, std::move(content));
  }
  template <class Message>
  void receive_under(std::uint64_t epoch, std::uint32_t from, const Message& content) {
    auto made = frame_from(from, content);
    made.epoch = epoch;
    tell(edge, made);
  }
  std::vector<std::uint64_t> epochs() { return status().epochs; }
  /// Of a token of `foreign`, for an expert that is here.
  wire::expert_call call_for(std::uint32_t layer) const {
    wire::expert_call call;
    call.token = {foreign, 0, 0, 0};
    call.layer = layer;
    call.rows = {0};
    call.whole = {1};
    call.items = {{0, 0, 4, 1.0f}};
    call.x.assign(context->wire.hidden_size, 0.5f);
    return call;
  }
};

BOOST_AUTO_TEST_CASE(requests_begin_under_the_plan_that_is_named_and_keep_to_it) {
  between_plans world;
  world.open();
  world.install({world.before, world.after}, 1);
  world.submit();
  world.install({world.before, world.after}, 2);
  world.submit(own + 1);
  const auto status = world.status();
  BOOST_TEST(status.epoch == 2u);
  BOOST_TEST(status.epochs.size() == 2u);
  BOOST_TEST(status.requests.at(0).epoch == 1u);
  BOOST_TEST(status.requests.at(1).epoch == 2u);
  // The first asks servers 0 and 2 for memory, under its plan; the second needs nobody else's.
  BOOST_TEST(world.sent(0, frame_kind::reservation).size() == 1u);
  BOOST_TEST(world.sent(2, frame_kind::reservation).at(0).epoch == 1u);
}

BOOST_AUTO_TEST_CASE(the_planner_hears_when_the_last_request_under_the_plan_before_has_ended) {
  between_plans world;
  world.open();
  world.submit();
  world.install({world.before, world.after}, 1);
  world.install({world.before, world.after}, 2);
  world.submit(own + 1);
  BOOST_TEST(world.planner.count<actors::requests_ended>() == 0u);
  world.tell(world.edge, actors::cancel_request{own});
  const auto ended = world.planner.only<actors::requests_ended>();
  BOOST_TEST(ended.epoch == 2u);
  BOOST_TEST(ended.server == world.id);
  world.tell(world.edge, actors::cancel_request{own + 1});
  BOOST_TEST(world.planner.count<actors::requests_ended>() == 1u);
}

BOOST_AUTO_TEST_CASE(requests_under_the_plan_before_end_by_name_and_no_others) {
  between_plans world;
  world.open();
  world.submit();
  world.install({world.before, world.after}, 2);
  world.submit(own + 1);
  world.tell(world.edge, actors::end_requests{2, "it took too long"});
  BOOST_REQUIRE_EQUAL(world.status().requests.size(), 1u);
  BOOST_TEST(world.status().requests[0].request == own + 1);
  BOOST_TEST(says(world.reason(), "it took too long"));
}

BOOST_AUTO_TEST_CASE(what_is_done_for_a_request_goes_by_its_plan) {
  between_plans world;
  world.open();
  world.install({world.before, world.after}, 1);
  // Told to begin or not: memory under the next plan is granted, and a token of it is here.
  world.receive_under(2, 0, world.ask_of(reserve_step::attempt));
  world.receive_under(2, 0, world.token_at(0, 0));
  BOOST_TEST(world.compute.only<actors::attend_work>().epoch == 2u);
  BOOST_TEST(world.sent(0, frame_kind::reservation).at(0).epoch == 2u);
  // Rows of it come from servers 0 and 1 alone; under the plan before all three keep them.
  world.receive_under(2, 2, world.rows_of(1));
  BOOST_TEST(world.compute.count<actors::store_kv>() == 0u);
  world.receive_under(2, 0, world.rows_of(1));
  BOOST_TEST(world.compute.count<actors::store_kv>() == 1u);
  const auto rows = world.rows_of(1);
  world.tell(world.edge, actors::kv_written{rows, {0}, {2}});
  BOOST_TEST(world.sent(2, frame_kind::kv).empty());
  world.tell(world.edge, actors::kv_written{rows, {0}, {1}});
  BOOST_TEST(world.sent(2, frame_kind::kv).size() == 1u);
  // Of both plans in one batch: one frame to each, under the later plan.
  auto both = rows;
  both.blocks.push_back(rows.blocks[0]);
  world.tell(world.edge, actors::kv_written{both, {0, 0}, {1, 2}});
  BOOST_TEST(world.sent(0, frame_kind::kv).at(2).epoch == 2u);
  BOOST_TEST(world.sent(2, frame_kind::kv).size() == 2u);
}

BOOST_AUTO_TEST_CASE(calls_run_at_the_shards_of_their_plan) {
  between_plans world;
  auto content = world.plan();
  for (auto& each : content.experts)
    if (each.server == server_id{1}) each.server = server_id{0};
  world.open();
  world.install({world.before, world.plan_of_epoch(2, std::move(content))}, 2);
  const auto call = world.call_for(1);
  world.receive_under(1, 0, call);
  BOOST_TEST(world.shards[call.layer].count<actors::expert_work>() == 1u);
  world.receive_under(2, 0, call);  // Not hosted under that plan.
  BOOST_TEST(world.status().refused_frames == 1u);
  BOOST_TEST(world.shards[call.layer].count<actors::expert_work>() == 1u);
}

BOOST_AUTO_TEST_CASE(a_plan_goes_once_nothing_is_under_it_and_what_comes_later_is_late) {
  between_plans world;
  world.open();
  world.reserve();
  world.install({world.before, world.after}, 2);
  world.planner.forget();
  world.install({world.after});
  // Its memory has not been given back.
  BOOST_TEST(world.planner.heard() == 0u);
  BOOST_TEST(world.epochs().size() == 2u);
  world.receive_under(1, 0, world.token_at(0, 0));
  BOOST_TEST(world.compute.count<actors::attend_work>() == 1u);
  world.receive_under(1, 0, world.ask_of(reserve_step::release));
  BOOST_TEST(world.planner.only<actors::plans_installed>().number == 2u);
  BOOST_TEST(world.epochs().size() == 1u);
  for (const auto& shard : world.shards) BOOST_TEST(shard.ended());
  world.receive_under(1, 0, world.token_at(0, 0));
  BOOST_TEST(world.status().late_frames == 1u);
  // Whoever is cut off from what the others know, and still waits for outputs, hears that there will be none.
  world.receive_under(1, 0, world.call_for(1));
  const auto outputs = world.sent(0, frame_kind::output);
  BOOST_REQUIRE_EQUAL(outputs.size(), 1u);
  BOOST_TEST(outputs[0].epoch == 1u);
  const auto output = wire::decode_output(outputs[0], world.context->wire);
  BOOST_REQUIRE(output.has_value());
  BOOST_TEST(says(output->problem, "let go of the plan of epoch 1"));
}

BOOST_AUTO_TEST_CASE(
    a_policy_that_comes_while_a_plan_waits_to_go_leaves_the_experts_that_were_to_come) {
  between_plans world;
  world.open();
  world.reserve();
  world.install({world.before, world.after}, 2);
  // Nobody looks into it.
  const auto something = std::make_shared<std::int64_t>(0);
  const std::shared_ptr<const model::transformer> experts(
      something, reinterpret_cast<const model::transformer*>(something.get()));
  world.install({world.after}, 2, experts);
  auto by_policy = world.plan_of_epoch(2, world.after->plan);
  by_policy->policy = 5;
  world.install({by_policy});
  world.compute.forget();
  world.receive_under(1, 0, world.ask_of(reserve_step::release));
  BOOST_TEST((world.compute.only<actors::attach_view>().model == experts));
  BOOST_TEST(world.status().policy == 5u);
  BOOST_TEST(world.epochs().size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_plan_that_was_given_up_goes_at_once) {
  between_plans world;
  world.open();
  world.install({world.before, world.after}, 1);
  world.install({world.before});
  BOOST_TEST(world.epochs().size() == 1u);
  BOOST_TEST(world.planner.count<actors::plans_installed>() == 2u);
  for (const auto& shard : world.shards) BOOST_TEST(!shard.ended());
  world.receive_under(2, 0, world.ask_of(reserve_step::attempt));
  BOOST_TEST(world.status().late_frames == 1u);
  BOOST_TEST(world.status().reserved_bytes == 0);
}

BOOST_AUTO_TEST_CASE(a_server_that_comes_back_between_plans_ends_requests_under_the_one_before) {
  between_plans world;
  world.context->seat.emplace();
  world.open();
  for (const std::uint32_t peer : {0u, 2u}) world.happens(peer, what::up);
  world.submit();
  world.install({world.before, world.after}, 2);
  world.submit(own + 1);
  world.happens(0, what::up);
  BOOST_REQUIRE_EQUAL(world.status().requests.size(), 1u);
  BOOST_TEST(world.status().requests[0].request == own + 1);
  BOOST_TEST(world.planner.count<actors::requests_ended>() == 1u);
}

// ------------------------------------------------------------------------------------- admission

BOOST_AUTO_TEST_CASE(requests_that_come_while_it_holds_begin_when_it_opens) {
  one_server world;
  world.attach();
  world.submit();
  BOOST_TEST(world.links[0].heard() == 0u);
  BOOST_TEST((world.status().requests.at(0).phase == request_phase::held));
  world.tell(world.edge, actors::resume_admission{});
  BOOST_TEST(world.status().admitting);
  BOOST_TEST((world.status().requests.at(0).phase == request_phase::reserving));
  BOOST_TEST(world.reservations(0).size() == 1u);
  BOOST_TEST(world.reservations(2).size() == 1u);
}

BOOST_AUTO_TEST_CASE(admission_is_held_once_nobody_is_in_flight) {
  one_server world;
  world.open();
  world.submit();
  world.tell(world.edge, actors::hold_admission{9, world.planner.as<actors::planner_actor>()});
  BOOST_TEST(world.planner.heard() == 0u);
  BOOST_TEST(!world.status().admitting);
  world.submit(own + 1);  // Waits.
  world.tell(world.edge, actors::cancel_request{own});
  const auto held = world.planner.only<actors::admission_held>();
  BOOST_TEST(held.change == 9u);
  BOOST_TEST(held.server == world.id);
  BOOST_TEST((world.status().requests.at(0).phase == request_phase::held));
  world.tell(world.edge, actors::resume_admission{});
  BOOST_TEST((world.status().requests.at(0).phase == request_phase::reserving));
}

BOOST_AUTO_TEST_CASE(with_nobody_in_flight_admission_is_held_at_once_and_told_once) {
  one_server world;
  world.open();
  world.tell(world.edge, actors::hold_admission{9, world.planner.as<actors::planner_actor>()});
  BOOST_TEST(world.planner.only<actors::admission_held>().change == 9u);
  world.submit();
  world.tell(world.edge, actors::cancel_request{own});
  BOOST_TEST(world.planner.heard() == 1u);
}

BOOST_AUTO_TEST_CASE(a_change_that_was_given_up_is_not_answered_any_more) {
  one_server world;
  world.open();
  world.submit();
  world.tell(world.edge, actors::hold_admission{9, world.planner.as<actors::planner_actor>()});
  world.tell(world.edge, actors::resume_admission{});
  BOOST_TEST(world.status().admitting);
  world.tell(world.edge, actors::cancel_request{own});
  BOOST_TEST(world.planner.heard() == 0u);
}

// -------------------------------------------------------------------------------------- requests

BOOST_AUTO_TEST_CASE(a_request_is_refused_with_the_reason_and_counted) {
  one_server world;
  world.open();
  const auto refused = [&](auto change) {
    auto spec = std::make_shared<actors::request_spec>();
    spec->access = world.id;
    spec->prompt = {5};
    change(*spec);
    world.client.forget();
    world.tell(world.edge,
               actors::submit_request{99, spec, world.client.as<actors::client_actor>()});
    const auto outcome = world.client.only<actors::answer_end>().outcome;
    BOOST_TEST(outcome->request == 99u);
    BOOST_TEST(outcome->finish == "failed");
    return outcome->problem->message;
  };
  BOOST_TEST(refused([](auto& spec) { spec.access = 2; }).find("this is server 1") !=
             std::string::npos);
  BOOST_TEST(refused([](auto& spec) { spec.prompt.clear(); }).find("no tokens") !=
             std::string::npos);
  BOOST_TEST(world.status().ended_requests == 2u);
  world.submit(99);
  BOOST_TEST(refused([](auto&) {}).find("is being answered") != std::string::npos);
  BOOST_TEST(world.status().requests.size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_drained_server_refuses_its_users_until_it_is_drained_no_more) {
  one_server world;
  world.open();
  world.submit(98);
  world.tell(world.edge, actors::drain_server{true});
  BOOST_TEST(world.status().drained);
  world.submit(99);
  const auto outcome = world.client.only<actors::answer_end>().outcome;
  BOOST_TEST(outcome->request == 99u);
  BOOST_TEST(says(outcome->problem->message, "is drained; ask another node"));
  // Those that it had go on.
  BOOST_TEST(world.status().requests.size() == 1u);
  world.tell(world.edge, actors::drain_server{false});
  BOOST_TEST(!world.status().drained);
  world.submit(99);
  BOOST_TEST(world.status().requests.size() == 2u);
}

BOOST_AUTO_TEST_CASE(a_request_lives_until_its_answer_ends_and_is_forgotten_then) {
  one_server world;
  world.open();
  world.submit();
  world.grant();
  BOOST_TEST((world.status().requests.at(0).phase == request_phase::running));
  BOOST_TEST(world.status().requests.at(0).prompt_tokens == 3u);
  // Its one chunk runs here.
  BOOST_TEST(world.compute.only<actors::attend_work>().ids.size() == 3u);
  world.tell(world.edge, world.token_of_own(3));
  world.tell(world.edge, world.token_of_own(3));  // The same again.
  BOOST_TEST(world.status().requests.at(0).new_tokens == 1u);
  world.receive(2, world.token_of_own(4, true));
  BOOST_TEST(world.finish() == "length");
  BOOST_TEST(world.status().requests.empty());
  BOOST_TEST(world.status().ended_requests == 1u);
  BOOST_TEST(world.status().sequences.empty());
  BOOST_TEST(world.compute.count<actors::drop_sequence>() == 1u);
  BOOST_TEST((world.reservations(0).back().step == reserve_step::release));
}

BOOST_AUTO_TEST_CASE(a_request_is_cancelled_or_begins_again_by_its_number) {
  one_server world;
  world.open();
  world.submit();
  world.grant();
  world.tell(world.edge, actors::restart_request{own + 1});
  BOOST_TEST(world.status().requests.at(0).attempt == 0u);
  world.tell(world.edge, actors::restart_request{own});
  BOOST_TEST(world.status().requests.at(0).attempt == 1u);
  BOOST_TEST((world.reservations(2).back().step == reserve_step::fence));
  world.tell(world.edge, actors::cancel_request{own + 1});
  BOOST_TEST(world.client.heard() == 0u);
  world.tell(world.edge, actors::cancel_request{own});
  BOOST_TEST(world.finish() == "cancelled");
}

BOOST_AUTO_TEST_CASE(what_a_request_says_of_itself_is_its_status) {
  one_server world;
  world.open();
  world.submit();
  world.tell(world.edge, actors::request_moved{own, request_phase::settling, 3});
  BOOST_TEST((world.status().requests.at(0).phase == request_phase::settling));
  BOOST_TEST(world.status().requests.at(0).attempt == 3u);
  world.tell(world.edge, actors::request_moved{own + 1, request_phase::ended, 0});
  BOOST_TEST(world.status().requests.size() == 1u);
  world.tell(world.edge, actors::request_moved{own, request_phase::ended, 3});
  BOOST_TEST(world.status().requests.empty());
}

BOOST_AUTO_TEST_CASE(at_its_deadline_a_request_ends_and_a_lease_gives_memory_back) {
  one_server world;
  world.open();
  world.submit();
  world.receive(0, world.ask_of(reserve_step::attempt));
  world.context->load_period_ns = 0;
  BOOST_TEST(world.run_next());
  BOOST_TEST(world.run_next());
  // The lease of five seconds ends before the deadline of a minute.
  const auto after_lease = world.status();
  BOOST_TEST(world.time_ns() == 5'000'000'000);
  BOOST_TEST(std::ranges::none_of(after_lease.sequences,
                                  [](const auto& each) { return each.request == foreign; }));
  BOOST_TEST(world.client.heard() == 0u);
  world.run_all();
  BOOST_TEST(world.finish() == "failed");
  const auto outcome = world.client.only<actors::answer_end>().outcome;
  BOOST_TEST(outcome->done_ns - outcome->arrival_ns == world.timeout_ns);
}

// --------------------------------------------------------------------------------------- memory

BOOST_AUTO_TEST_CASE(memory_is_granted_to_owners_elsewhere_and_told_over_their_link) {
  one_server world;
  world.open();
  world.reserve();
  const auto answers = world.reservations(0);
  BOOST_REQUIRE_EQUAL(answers.size(), 1u);
  BOOST_TEST((answers[0].step == reserve_step::granted));
  BOOST_TEST(world.compute.only<actors::open_sequence>().request == foreign);
  const auto sequence = world.status().sequences.at(0);
  BOOST_TEST(sequence.granted);
  BOOST_TEST(sequence.bytes == foreign_bytes);
  BOOST_TEST(world.status().reserved_bytes == foreign_bytes);
  world.receive(0, world.ask_of(reserve_step::release));
  BOOST_TEST(world.compute.only<actors::drop_sequence>().request == foreign);
  BOOST_TEST(world.status().sequences.empty());
  BOOST_TEST(world.status().ledger.kv_peak_bytes == foreign_bytes);
}

BOOST_AUTO_TEST_CASE(asks_of_own_requests_go_where_the_memory_is) {
  one_server world;
  world.open();
  auto ask = world.answer_of(2, reserve_step::attempt);
  world.tell(world.edge, ask);
  BOOST_TEST((world.reservations(2).at(0) == ask));
  ask.server = world.id;
  world.tell(world.edge, ask);
  BOOST_TEST(world.compute.count<actors::open_sequence>() == 1u);
  // No request of this number is here: what was granted is given back.
  BOOST_TEST(world.status().reserved_bytes == 0);
  BOOST_TEST(world.status().late_frames == 1u);
}

BOOST_AUTO_TEST_CASE(memory_that_is_granted_to_a_request_that_is_over_is_given_back) {
  one_server world;
  world.open();
  world.receive(2, world.answer_of(2, reserve_step::granted));
  const auto release = world.reservations(2).at(0);
  BOOST_TEST((release.step == reserve_step::release));
  BOOST_TEST(release.request == own);
  BOOST_TEST(release.ask == 1u);
  BOOST_TEST(world.status().late_frames == 1u);
  world.receive(2, world.answer_of(2, reserve_step::refused));
  BOOST_TEST(world.reservations(2).size() == 1u);
}

BOOST_AUTO_TEST_CASE(nobody_but_its_owner_speaks_for_a_sequence) {
  one_server world;
  world.open();
  world.reserve();
  auto stranger = world.ask_of(reserve_step::release);
  stranger.access = 2;
  world.receive(2, stranger);
  BOOST_TEST(world.status().reserved_bytes == foreign_bytes);
  BOOST_TEST(world.status().late_frames == 1u);
}

BOOST_AUTO_TEST_CASE(a_fence_ends_the_tokens_of_the_attempt_before_and_keeps_the_memory) {
  one_server world;
  world.open();
  world.reserve();
  world.receive(0, world.token_at(0, 0));
  BOOST_TEST(world.status().sequences.at(0).tokens == 1u);
  world.receive(0, world.ask_of(reserve_step::fence, 2, 1));
  BOOST_TEST(world.status().sequences.at(0).tokens == 0u);
  BOOST_TEST(world.status().sequences.at(0).attempt == 1u);
  BOOST_TEST((world.reservations(0).back().step == reserve_step::fenced));
  BOOST_TEST(world.compute.all<actors::open_sequence>().back().attempt == 1u);
  world.receive(0, world.token_at(1, 0));  // Late: of the attempt before.
  BOOST_TEST(world.status().sequences.at(0).tokens == 0u);
  world.receive(0, world.token_at(0, 0, 1));  // What was here then may come again.
  BOOST_TEST(world.status().sequences.at(0).tokens == 1u);
}

// --------------------------------------------------------------------------------------- tokens

BOOST_AUTO_TEST_CASE(a_token_starts_where_memory_is_held_for_it_and_once) {
  one_server world;
  world.open();
  world.receive(0, world.token_at(0, 0));
  BOOST_TEST(world.status().late_frames == 1u);
  world.reserve();
  world.receive(0, world.token_at(0, 0));
  world.receive(0, world.token_at(0, 0));
  world.receive(0, world.token_at(8, 0));  // The memory is for eight positions.
  BOOST_TEST(world.status().late_frames == 3u);
  BOOST_TEST(world.compute.count<actors::attend_work>() == 1u);
  world.tell(world.edge, actors::start_token{world.token_at(7, 0)});
  BOOST_TEST(world.compute.count<actors::attend_work>() == 2u);
  BOOST_TEST(world.status().sequences.at(0).tokens == 2u);
}

BOOST_AUTO_TEST_CASE(frames_that_name_another_access_server_touch_nothing) {
  one_server world;
  world.open();
  world.reserve();  // For a user of server 0.
  auto state = world.token_at(0, 1);
  state.terms.access = world.id;
  world.receive(0, state);
  BOOST_TEST(world.status().sequences.at(0).tokens == 0u);
  auto output = world.output_for(0, 1);
  output.token.access = world.id;
  world.receive(2, output);
  BOOST_TEST(world.status().sequences.at(0).parked_rows == 0u);
  BOOST_TEST(world.status().late_frames == 2u);
  BOOST_TEST(world.status().refused_frames == 0u);  // Nothing else is wrong with them.
}

BOOST_AUTO_TEST_CASE(a_token_that_departed_does_not_come_again_at_an_earlier_step) {
  one_server world;
  world.open();
  world.reserve();
  world.receive(0, world.token_at(0, 0));
  world.tell(world.edge, actors::token_departed{{foreign, 0, 0, 0}, serving::step_of(1, true)});
  BOOST_TEST(world.status().sequences.at(0).tokens == 0u);
  world.receive(0, world.token_at(0, 1));
  BOOST_TEST(world.status().late_frames == 1u);
  world.receive(0, world.token_at(0, 2));
  BOOST_TEST(world.status().sequences.at(0).tokens == 1u);
}

BOOST_AUTO_TEST_CASE(a_token_goes_on_as_the_next_position_where_that_may_be_here) {
  struct successor {
    std::uint32_t attempt, from, to;
    bool goes_on;
  };
  for (const auto& each : {successor{0, 0, 1, true}, successor{0, 0, 5, false},  // Has been here.
                           successor{0, 0, 8, false},     // Beyond the memory.
                           successor{1, 0, 1, false},     // Of another attempt.
                           successor{0, 5, 1, false}}) {  // Another actor's.
    one_server world;
    world.open();
    world.reserve();
    world.receive(0, world.token_at(0, 0));
    const auto token = world.compute.only<actors::attend_work>().token;
    world.receive(0, world.token_at(5, 0));
    const auto other = world.compute.all<actors::attend_work>().back().token;
    world.tell(world.edge, actors::token_succeeded{token,
                                                   {foreign, each.attempt, 0, each.from},
                                                   serving::step_of(2, true),
                                                   each.to,
                                                   serving::step_of(0, false)});
    const auto ended = [](const actors::token_actor& actor) {
      return caf::actor_cast<caf::abstract_actor*>(actor)->getf(
          caf::abstract_actor::is_terminated_flag);
    };
    BOOST_TEST(ended(token) == !each.goes_on);
    BOOST_TEST(!ended(other));
    // What comes for the next position goes to the actor that went on, and its old position is past.
    world.receive(0, world.token_at(0, 1));
    BOOST_TEST(world.status().late_frames == (each.attempt == 0 && each.from == 0 ? 1u : 0u));
    if (!each.goes_on) continue;
    world.receive(0, world.token_at(1, 0));
    BOOST_TEST(world.status().late_frames == 2u);
    world.receive(0, world.ask_of(reserve_step::fence, 2, 1));
    BOOST_TEST(ended(token));
  }
}

BOOST_AUTO_TEST_CASE(outputs_wait_for_their_token_or_go_to_it) {
  for (const bool over_a_link : {false, true}) {
    one_server world;
    world.open();
    world.reserve();
    const auto deliver = [&](const wire::expert_output& output) {
      if (over_a_link)
        world.receive(2, output);
      else
        world.tell(world.edge, actors::arrived_output{output, 2});
    };
    deliver(world.output_for(0, 0));
    BOOST_TEST(world.status().sequences.at(0).parked_rows == 1u);
    auto awaiting = world.token_at(0, 0);
    awaiting.hidden.assign(world.context->wire.hidden_size, 0.0f);
    awaiting.slots_of_row = {1};
    awaiting.slots = {{2, 2, 1.0f}};
    world.receive(0, awaiting);
    // It was awaited: layer 1 begins with it added.
    auto next = world.compute.take<actors::attend_work>();
    BOOST_TEST(next.layer == 1u);
    BOOST_TEST(next.hidden.at(0) == 1.0f);
    awaiting.first = 1;
    world.receive(0, awaiting);
    BOOST_TEST(world.compute.heard() == 0u);
    deliver(world.output_for(1, 0));
    BOOST_TEST(world.compute.only<actors::attend_work>().layer == 1u);
    deliver(world.output_for(8, 0));
    BOOST_TEST(world.status().late_frames == 1u);
  }
}

BOOST_AUTO_TEST_CASE(a_call_goes_to_the_shard_of_its_layer) {
  one_server world;
  world.open();
  wire::expert_call call;
  call.token = {foreign, 0, 0, 0};
  call.layer = 2;
  call.rows = {0};
  call.whole = {1};
  call.items = {{0, 0, 4, 1.0f}};
  call.x.assign(world.context->wire.hidden_size, 0.5f);
  world.receive(0, call);
  BOOST_TEST((world.shards[2].only<actors::expert_work>().call == call));
  BOOST_TEST(world.shards[2].only<actors::expert_work>().epoch == 1u);
  call.items[0].expert = 5;  // Of server 2.
  world.receive(0, call);
  BOOST_TEST(world.shards[2].heard() == 1u);
  BOOST_TEST(world.status().refused_frames == 1u);
}

BOOST_AUTO_TEST_CASE(a_report_of_a_request_that_is_over_is_late) {
  one_server world;
  world.open();
  world.tell(world.edge, world.token_of_own(3));
  BOOST_TEST(world.status().late_frames == 1u);
}

// ------------------------------------------------------------------------------------- failures

BOOST_AUTO_TEST_CASE(a_token_that_failed_here_is_told_to_its_request) {
  one_server world;
  world.open();
  world.submit();
  wire::failure_report report{own, 0, world.id, static_cast<std::uint8_t>(errc::failed), "why"};
  world.tell(world.edge, report);
  BOOST_TEST(world.finish() == "failed");
}

BOOST_AUTO_TEST_CASE(a_failure_elsewhere_ends_the_request_that_it_is_of) {
  one_server world;
  world.open();
  world.submit();
  wire::failure_report report{own + 1, 0, 2, static_cast<std::uint8_t>(errc::failed), "why"};
  world.receive(2, report);
  BOOST_TEST(world.client.heard() == 0u);
  report.request = own;
  world.receive(2, report);
  BOOST_TEST(world.finish() == "failed");
}

// --------------------------------------------------------------------------------------- KV rows

BOOST_AUTO_TEST_CASE(rows_written_here_go_to_the_other_members_of_the_layer) {
  one_server world;
  world.open();
  // Layer 1 of users of server 0: everybody; of users of server 1: servers 0 and 1.
  auto rows = world.rows_of(1);
  world.tell(world.edge, actors::kv_written{rows, {0}, {1}});
  BOOST_TEST(world.sent(0, frame_kind::kv).size() == 1u);
  BOOST_TEST(world.sent(2, frame_kind::kv).size() == 1u);
  rows.blocks.push_back(rows.blocks[0]);
  rows.blocks[1].request = own;
  world.tell(world.edge, actors::kv_written{rows, {0, 1}, {1, 1}});
  const auto decode = [&](const wire::frame& content) {
    return wire::decode_kv(content, world.context->wire);
  };
  const auto to_0 = world.decoded<wire::kv_rows>(0, frame_kind::kv, decode);
  const auto to_2 = world.decoded<wire::kv_rows>(2, frame_kind::kv, decode);
  BOOST_TEST(to_0.at(1).blocks.size() == 2u);
  BOOST_TEST(to_2.at(1).blocks.size() == 1u);
  BOOST_TEST(to_2.at(1).blocks[0].request == foreign);
}

BOOST_AUTO_TEST_CASE(rows_of_live_sequences_are_kept_and_others_are_late) {
  one_server world;
  world.open();
  world.receive(0, world.rows_of(1));
  BOOST_TEST(world.status().late_frames == 1u);
  world.reserve();
  world.receive(0, world.rows_of(1));
  const auto stored = world.compute.all<actors::store_kv>();
  BOOST_REQUIRE_EQUAL(stored.size(), 1u);
  BOOST_TEST(stored[0].content.blocks.size() == 1u);
  BOOST_TEST(stored[0].capacity == 40u);
  world.receive(0, world.rows_of(1, 8));  // Beyond its memory.
  BOOST_TEST(world.compute.count<actors::store_kv>() == 1u);
  BOOST_TEST(world.status().late_frames == 2u);
}

BOOST_AUTO_TEST_CASE(rows_belong_to_the_attempt_that_is_live) {
  one_server world;
  world.open();
  world.reserve();
  const auto rows_of_attempt = [&](std::uint32_t attempt) {
    auto rows = world.rows_of(1);
    rows.blocks[0].attempt = attempt;
    return rows;
  };
  world.receive(0, rows_of_attempt(1));
  BOOST_TEST(world.compute.count<actors::store_kv>() == 0u);
  world.receive(0, world.ask_of(reserve_step::fence, 2, 1));
  world.receive(0, rows_of_attempt(0));
  BOOST_TEST(world.compute.count<actors::store_kv>() == 0u);
  BOOST_TEST(world.status().late_frames == 2u);
  world.receive(0, rows_of_attempt(1));
  BOOST_TEST(world.compute.count<actors::store_kv>() == 1u);
}

BOOST_AUTO_TEST_CASE(rows_come_only_from_members_of_their_layer) {
  one_server world;
  auto content = world.plan();
  content.residence[0].layers[1] = 0b011;
  world.view->placed = world.plan_of_epoch(1, std::move(content));
  world.open();
  world.reserve();
  world.receive(2, world.rows_of(1));
  BOOST_TEST(world.compute.count<actors::store_kv>() == 0u);
  world.receive(2, world.rows_of(2));
  BOOST_TEST(world.compute.count<actors::store_kv>() == 1u);
}

// ---------------------------------------------------------------------------------------- frames

BOOST_AUTO_TEST_CASE(frames_that_make_no_sense_are_counted_and_told_ever_more_rarely) {
  one_server world;
  world.open();
  for (int i = 0; i < 5; ++i) {
    auto damaged = world.frame_from(0, world.token_at(0, 0));
    damaged.bytes.resize(damaged.bytes.size() / 2);
    world.tell(world.edge, damaged);
  }
  BOOST_TEST(world.status().refused_frames == 5u);
  std::vector<std::uint64_t> counts;
  for (const auto& each : world.recorder.all<actors::problem>()) {
    counts.push_back(each.count);
    BOOST_TEST((each.of == actors::problem::scope::peer));
    BOOST_TEST(each.peer == 0u);
    BOOST_TEST(each.server == world.id);
  }
  const std::vector<std::uint64_t> expected{1, 2, 4};
  BOOST_TEST(counts == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(frames_from_nowhere_to_others_or_of_no_kind_are_refused) {
  one_server world;
  world.open();
  auto content = world.frame_from(3, world.token_at(0, 0));
  world.tell(world.edge, content);
  content.from = 0;
  content.to = 2;
  world.tell(world.edge, content);
  content.to = world.id;
  content.kind = static_cast<frame_kind>(200);
  world.tell(world.edge, content);
  BOOST_TEST(world.status().refused_frames == 3u);
  BOOST_TEST(world.status().late_frames == 0u);
}

BOOST_AUTO_TEST_CASE(what_was_sent_under_another_plan_is_late) {
  one_server world;
  world.open();
  world.reserve();
  auto content = world.frame_from(0, world.token_at(0, 0));
  content.epoch = 2;
  world.tell(world.edge, content);
  BOOST_TEST(world.status().late_frames == 1u);
  BOOST_TEST(world.compute.count<actors::attend_work>() == 0u);
  auto ask = world.frame_from(0, world.ask_of(reserve_step::attempt));
  ask.epoch = 2;
  world.tell(world.edge, ask);
  BOOST_TEST(world.status().late_frames == 2u);
  auto failure = world.frame_from(0, wire::failure_report{7, 0, 0, 1, "too late"});
  failure.epoch = 2;
  world.tell(world.edge, failure);
  BOOST_TEST(world.status().late_frames == 3u);
  BOOST_TEST(world.status().refused_frames == 0u);
  // Memory is given back under any plan.
  auto release = world.frame_from(0, world.ask_of(reserve_step::release));
  release.epoch = 2;
  world.tell(world.edge, release);
  BOOST_TEST(world.status().reserved_bytes == 0);
}

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
  world.happens(0, what::up);
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
  measure(2, 60'000'000);
  const auto report = world.planner.only<actors::links_told>().report;
  BOOST_TEST(report.server == world.id);
  BOOST_TEST(report.number == (std::uint64_t{3} << 32) + 1);
  BOOST_TEST(report.links.at(2).latency_ns == 60'000'000);
  BOOST_TEST(report.links.at(0).latency_ns == -1);
  BOOST_TEST(told(0).size() == 1u);
  BOOST_TEST((told(0).at(0) == report));
  BOOST_TEST(told(2).empty());
  // A little is not worth it.
  measure(2, 61'000'000);
  BOOST_TEST(world.planner.count<actors::links_told>() == 1u);
  // Whoever comes later hears of it.
  world.happens(2, what::up);
  BOOST_TEST(told(2).size() == 1u);
  measure(2, 2'000'000);
  BOOST_TEST(told(0).size() == 2u);
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
