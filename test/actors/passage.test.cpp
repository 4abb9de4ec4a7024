#include "actors/passage.hpp"

#include <boost/test/unit_test.hpp>
#include <numeric>

#include "actors/compute.hpp"
#include "actors/server_actors.hpp"
#include "actors/token.hpp"
#include "test/actors/probe_server.hpp"

/// Positions that go from layer to layer without their token, at each of the actors that pass them on.
namespace ordermoe {

namespace {

constexpr std::uint64_t number = 7;

/// Server 1, at which experts 1 and 4 of every layer are.
struct server_of_riders : test::probe_server {
  server_of_riders() { context->clock = actors::clock_kind::wall; }

  /// The first position of an answer.
  wire::token_state state(std::uint64_t request = number) const {
    wire::token_state made;
    made.terms.request = request;
    made.terms.access = id;
    made.terms.prompt_tokens = 4;
    made.terms.given_tokens = 4;
    made.terms.max_new_tokens = 6;
    made.terms.continue_in_place = 1;
    made.first = 4;
    made.ids = {11};
    made.pool = 100;
    made.allowance = {40};
    made.ran.emplace();
    return made;
  }
  std::vector<float> row(float value) const {
    return std::vector<float>(context->wire.hidden_size, value);
  }
  std::shared_ptr<actors::passage> lent(wire::token_state content) const {
    auto made = std::make_shared<actors::passage>();
    made->token = token.as<actors::token_actor>();
    made->view = view;
    made->state = std::move(content);
    return made;
  }
  /// A token that runs here, and not only listens.
  actors::token_actor spawn(const wire::token_state& content) {
    actors::token_actor made;
    keep(system().spawn([&](caf::event_based_actor* self) {
      made = actors::spawn_token(*self, view, content, {});
    }));
    run_ready();
    keep(made);
    return made;
  }
};

/// A row after attention that wants these two experts at layer 1, and what its token lent.
actors::select_query query(const server_of_riders& world, std::vector<std::size_t> experts,
                           std::uint64_t request = number) {
  auto content = world.state(request);
  content.layer = 1;
  content.allowance.clear();
  actors::select_query made;
  made.token = world.token.as<actors::token_actor>();
  made.epoch = 1;
  made.key = {request, 0, 1, 4};
  made.access = 1;
  made.layer = 1;
  made.hidden = world.row(2);
  made.normed = world.row(3);
  made.logits.assign(server_of_riders::n_experts, 0);
  float logit = 9;
  for (const auto expert : experts) made.logits[expert] = logit--;
  made.allowance = {40};
  made.pool = 100;
  made.decodes = true;
  made.lent = world.lent(std::move(content));
  return made;
}

/// A sequence whose prompt's rows are there.
void open_after_prompt(server_of_riders& world, const actors::compute_actor& computing) {
  world.tell(computing, actors::open_sequence{number, 0});
  for (std::uint32_t layer = 0; layer < server_of_riders::n_layers; ++layer) {
    actors::store_kv rows;
    rows.capacity = 40;
    rows.content.layer = layer;
    rows.content.blocks.push_back({number, 0, 0, 4, {}});
    rows.content.blocks[0].rows.resize(4 * world.context->wire.kv_row_bytes);
    world.tell(computing, rows);
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(passage)

BOOST_AUTO_TEST_CASE(a_token_lends_a_position_whose_logits_are_read_on_the_wall_clock) {
  server_of_riders world;
  world.spawn(world.state());
  const auto work = world.compute.only<actors::attend_work>();
  BOOST_REQUIRE(work.lent != nullptr);
  BOOST_TEST((work.lent->token == work.token));
  BOOST_TEST((work.lent->view == world.view));
  BOOST_TEST((work.lent->state.ids == std::vector<std::int32_t>{11}));
  BOOST_TEST(work.lent->state.pool == 100);
  BOOST_TEST(work.lent->state.ran.has_value());

  const auto lends = [](const wire::token_state& content, actors::clock_kind clock) {
    server_of_riders other;
    other.context->clock = clock;
    other.spawn(content);
    return other.compute.only<actors::attend_work>().lent != nullptr;
  };
  BOOST_TEST(!lends(world.state(), actors::clock_kind::virtual_time));
  auto of_prompt = world.state();
  of_prompt.first = 3;
  BOOST_TEST(!lends(of_prompt, actors::clock_kind::wall));
  auto known = world.state();
  known.terms.given_tokens = 6;
  BOOST_TEST(!lends(known, actors::clock_kind::wall));
  auto chunk = world.state();
  chunk.ids = {11, 12};
  chunk.allowance = {40, 40};
  BOOST_TEST(!lends(chunk, actors::clock_kind::wall));
}

BOOST_AUTO_TEST_CASE(a_token_goes_on_from_where_its_state_came_back) {
  server_of_riders world;
  const auto token = world.spawn(world.state());
  auto back = world.compute.take<actors::attend_work>().lent;
  back->state.layer = 2;
  back->state.pool = 60;
  back->state.spent = 40;
  back->state.ran->front() = 5;
  actors::decided answer;
  answer.choice.residence = 2;
  answer.choice.pool_left = 50;
  answer.choice.rows.emplace_back();
  answer.choice.rows[0].executed.push_back({2, 5, 1.0f});
  answer.choice.rows[0].loss = 10;
  answer.hidden = world.row(2);
  answer.normed = world.row(3);
  answer.allowance = {40};
  answer.lent = std::move(back);
  world.tell(token, answer);
  const auto frames = world.sent(2, wire::frame_kind::token);
  BOOST_REQUIRE_EQUAL(frames.size(), 1u);
  const auto gone = *wire::decode_token(frames[0], world.context->wire);
  BOOST_TEST(gone.layer == 2u);
  BOOST_TEST(gone.pool == 50);
  BOOST_TEST(gone.spent == 50);
  BOOST_TEST(gone.allowance.at(0) == 30);
  BOOST_TEST(gone.ran->front() == 5u);
  BOOST_TEST((gone.hidden == world.row(2)));
  BOOST_TEST(world.server.only<actors::token_departed>().key.request == number);
}

BOOST_AUTO_TEST_CASE(a_token_samples_what_came_behind_the_last_layer) {
  server_of_riders world;
  const auto token = world.spawn(world.state());
  auto back = world.compute.take<actors::attend_work>().lent;
  back->state.layer = server_of_riders::n_layers;
  back->state.hidden = world.row(2);
  back->state.spent = 30;
  std::vector<float> logits(world.context->shape().vocab_size, 0.0f);
  logits[9] = 5;
  const auto n = logits.size();
  world.tell(token,
             actors::head_done{std::make_shared<const std::vector<float>>(logits), 0, n, back});
  const auto report = world.server.only<wire::progress_report>();
  BOOST_TEST(report.id == 9);
  BOOST_TEST(report.position == 5u);
  BOOST_TEST(report.spent == 30);
  // It lends the next position.
  const auto next = world.compute.only<actors::attend_work>();
  BOOST_TEST(next.first == 5u);
  BOOST_REQUIRE(next.lent != nullptr);
  BOOST_TEST((next.lent->state.ids == std::vector<std::int32_t>{9}));
}

BOOST_AUTO_TEST_CASE(work_that_fails_meanwhile_is_told_to_the_owner_by_its_token) {
  server_of_riders world;
  const auto token = world.spawn(world.state());
  world.tell(token, actors::work_failed{{errc::failed, "no memory"}});
  const auto told = world.server.only<wire::failure_report>();
  BOOST_TEST(told.request == number);
  BOOST_TEST(told.text == "no memory");
  BOOST_TEST((world.server.only<actors::token_departed>().key == wire::token_key{number, 0, 1, 4}));
}

BOOST_AUTO_TEST_CASE(the_selector_sends_what_stays_on_to_the_experts_and_gives_the_rest_back) {
  server_of_riders world;
  const auto selecting = world.keep(actors::spawn_selector(world.system(), server_of_riders::id));
  world.tell(selecting, actors::decide_by{world.view, {world.view->placed}});
  world.tell(selecting, actors::select_batch{{query(world, {4, 1}), query(world, {1, 4}, 8),
                                              query(world, {5, 4}, 9)}});
  const auto riding = world.shards[1].only<actors::expert_batch>();
  BOOST_REQUIRE_EQUAL(riding.calls.size(), 2u);
  const auto& first = riding.calls[0];
  BOOST_TEST((first.call.token == wire::token_key{number, 0, 1, 4}));
  BOOST_TEST(first.call.layer == 1u);
  BOOST_TEST(first.call.reply_to == server_of_riders::id);
  BOOST_REQUIRE_EQUAL(first.call.items.size(), 2u);
  BOOST_TEST(first.call.items[0].expert == 4u);
  BOOST_TEST(first.call.items[1].expert == 1u);
  BOOST_TEST((first.call.x == world.row(3)));
  BOOST_REQUIRE(first.lent != nullptr);
  BOOST_TEST((first.lent->state.hidden == world.row(2)));
  BOOST_TEST(first.lent->state.allowance.at(0) == 40);
  // Two slots of what the router chose.
  BOOST_TEST(std::accumulate(first.lent->state.ran->begin(), first.lent->state.ran->end(), 0u) ==
             2u);
  BOOST_TEST(riding.calls[1].lent->state.terms.request == 8u);

  const auto back = world.token.only<actors::decided>();
  BOOST_REQUIRE(back.lent != nullptr);
  BOOST_TEST(back.lent->state.terms.request == 9u);
  BOOST_TEST((back.hidden == world.row(2)));
}

BOOST_AUTO_TEST_CASE(a_shard_passes_on_what_its_plan_places_there) {
  server_of_riders world;
  const auto shard = world.keep(actors::spawn_shard(world.system(), world.view, 1));
  actors::expert_batch batch;
  for (const std::uint32_t expert : {1u, 5u, 4u}) {
    auto& each = batch.calls.emplace_back();
    each.call.layer = 1;
    each.call.rows = {0};
    each.call.items = {{0, 0, expert, 1.0f}};
    each.token = world.token.as<actors::token_actor>();
    each.lent = world.lent(world.state());
  }
  world.tell(shard, batch);
  BOOST_TEST(world.compute.only<actors::expert_batch>().calls.size() == 2u);
  const auto why = world.token.only<actors::work_failed>().what;
  BOOST_TEST(why.message.find("expert 5 of layer 1") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(what_experts_give_is_added_and_the_next_layer_follows_and_then_the_head) {
  server_of_riders world;
  // Lent all the same; a compute without a thread is one of virtual time.
  world.context->clock = actors::clock_kind::virtual_time;
  const auto computing = world.keep(
      actors::spawn_compute(world.system(), world.context, server_of_riders::id, nullptr));
  world.tell(computing, actors::attach_view{world.view});
  const auto call = [&](std::uint32_t layer) {
    auto content = world.state();
    content.layer = layer;
    content.hidden = world.row(2);
    actors::expert_work work;
    work.call.token = {number, 0, 1, 4};
    work.call.layer = layer;
    work.call.reply_to = server_of_riders::id;
    work.call.rows = {0};
    work.call.whole = {1};
    work.call.items = {{0, 0, 1, 0.5f}, {0, 1, 4, 0.5f}};
    work.call.x = world.row(0.5f);
    work.token = world.token.as<actors::token_actor>();
    return std::pair(work, content);
  };
  // What a token would have added, for comparison.
  const auto outputs = [&](std::uint32_t layer) {
    world.tell(computing, call(layer).first);
    world.run_all();
    return world.token.take<actors::arrived_output>().content.y;
  };
  for (std::uint32_t layer = 0; layer < server_of_riders::n_layers; ++layer) {
    open_after_prompt(world, computing);
    const auto added = outputs(layer);
    auto [work, content] = call(layer);
    work.lent = world.lent(content);
    actors::expert_batch batch;
    batch.calls.push_back(work);
    world.selector.forget();
    world.tell(computing, batch);
    auto wanted = world.row(2);
    for (std::size_t c = 0; c < wanted.size(); ++c) wanted[c] += added[c];
    if (layer + 1 < server_of_riders::n_layers) {
      world.run_all();
      const auto query = world.selector.only<actors::select_batch>().queries.at(0);
      BOOST_TEST(query.layer == layer + 1);
      BOOST_REQUIRE(query.lent != nullptr);
      BOOST_TEST((query.allowance == std::vector<loss_units>{40}));
      BOOST_TEST(query.pool == 100);
      // As if the token had added them, and asked for the next layer.
      world.selector.forget();
      open_after_prompt(world, computing);
      content.layer = layer + 1;
      content.hidden = wanted;
      world.tell(computing, actors::attention_of(work.token, *world.view, content));
      world.run_all();
      const auto same = world.selector.only<actors::select_batch>().queries.at(0);
      BOOST_TEST(same.lent == nullptr);
      BOOST_TEST((query.hidden == same.hidden));
      BOOST_TEST((query.logits == same.logits));
    } else {
      world.run_all();
      const auto done = world.token.only<actors::head_done>();
      BOOST_REQUIRE(done.lent != nullptr);
      BOOST_TEST((done.lent->state.hidden == wanted));
      BOOST_TEST(done.lent->state.layer == server_of_riders::n_layers);
      BOOST_TEST(done.logits().size() == world.context->shape().vocab_size);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
