#include "actors/device/device.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "model/architecture/routing.hpp"
#include "test/actors/fixture.hpp"

namespace ordermoe {

namespace {

using actors::batch_queue;
using actors::work_kind;

batch_queue queue_of_tiny() {
  return batch_queue(test::tiny_model()->config());
}

actors::attend_work attention(std::uint64_t request, std::uint32_t first = 0, std::uint32_t n = 1) {
  actors::attend_work work;
  work.terms.request = request;
  work.terms.prompt_tokens = 4;
  work.terms.max_new_tokens = 4;
  work.first = first;
  work.n = n;
  work.ids.assign(n, 7);
  work.allowance.assign(n, 0);
  return work;
}

/// Batches that a device takes until each of n positions has been through all layers `passes` times. Position i joins when i times
/// `apart` batches were taken; each runs the attention of a layer, two experts that are the same for all, and the head.
std::size_t batches_of(std::size_t n, std::size_t passes, std::size_t apart) {
  struct position {
    std::uint32_t layer = 0;
    std::size_t experts_left = 0, passes = 0;
  };
  auto queue = queue_of_tiny();
  const auto n_layers = test::tiny_model()->config().n_layers;
  std::vector<position> positions(n);
  const auto attends = [&](std::uint64_t i) {
    queue.joinable(work_kind::attend, positions[i].layer, 0).attends.push_back(attention(i));
  };
  const auto goes_on = [&](std::uint64_t i) {
    if (++positions[i].layer < n_layers) return attends(i);
    actors::head_work head;
    head.hidden = {static_cast<float>(i)};
    queue.joinable(work_kind::head, 0, 0).heads.push_back(std::move(head));
  };
  std::size_t taken = 0, begun = 0;
  for (;; ++taken) {
    for (; begun < n && taken >= begun * apart; ++begun) attends(begun);
    const auto next = queue.take();
    if (next == nullptr) return taken;
    for (const auto& work : next->attends) {
      positions[work.terms.request].experts_left = 2;
      for (const std::uint32_t expert : {0, 1}) {
        auto call = std::make_shared<actors::running_call>();
        call->work.call.rows = {static_cast<std::uint32_t>(work.terms.request)};
        queue.joinable(work_kind::expert, next->layer, expert).experts.push_back({call, 1});
      }
    }
    for (const auto& share : next->experts)
      if (const auto i = share.call->work.call.rows.front(); --positions[i].experts_left == 0)
        goes_on(i);
    for (const auto& work : next->heads) {
      const auto i = static_cast<std::uint64_t>(work.hidden.front());
      positions[i].layer = 0;
      if (++positions[i].passes < passes) attends(i);
    }
  }
}

/// One row through two experts of layer 0 on this server; the second row through one of them alone.
actors::expert_work two_rows_of_experts() {
  actors::expert_work work;
  const auto width = test::tiny_model()->config().hidden_size;
  work.call.rows = {3, 5};
  work.call.whole = {1, 0};
  work.call.items = {{0, 0, 1, 0.75f}, {0, 1, 2, 0.25f}, {1, 1, 2, 0.5f}};
  for (std::size_t i = 0; i < 2 * width; ++i)
    work.call.x.push_back(static_cast<float>(i % 7) * 0.25f - 0.5f);
  return work;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(device)

BOOST_AUTO_TEST_CASE(work_joins_the_batch_that_waits_for_the_same_weights) {
  auto queue = queue_of_tiny();
  BOOST_TEST(queue.empty());
  BOOST_TEST(queue.take() == nullptr);
  auto& first = queue.joinable(work_kind::attend, 1, 0);
  BOOST_TEST(&queue.joinable(work_kind::attend, 1, 0) == &first);
  BOOST_TEST(&queue.joinable(work_kind::attend, 2, 0) != &first);
  BOOST_TEST(&queue.joinable(work_kind::expert, 1, 0) != &first);
  BOOST_TEST(&queue.joinable(work_kind::expert, 1, 0) != &queue.joinable(work_kind::expert, 1, 1));
  BOOST_TEST(&queue.joinable(work_kind::head, 0, 0) == &queue.joinable(work_kind::head, 0, 0));
  BOOST_TEST(queue.waiting().size() == 5u);
}

BOOST_AUTO_TEST_CASE(what_is_farthest_on_goes_first_but_what_can_join_it_before) {
  auto queue = queue_of_tiny();
  queue.joinable(work_kind::attend, 0, 0);
  queue.joinable(work_kind::expert, 2, 1);
  queue.joinable(work_kind::expert, 1, 3);
  queue.joinable(work_kind::expert, 2, 0);
  queue.joinable(work_kind::attend, 2, 0);
  const auto is_next = [&](work_kind kind, std::uint32_t layer, std::uint32_t expert) {
    const auto next = queue.take();
    return next->kind == kind && next->layer == layer && next->expert == expert;
  };
  BOOST_TEST(is_next(work_kind::attend, 2, 0));
  BOOST_TEST(is_next(work_kind::expert, 2, 1));  // As they came.
  BOOST_TEST(is_next(work_kind::expert, 2, 0));
  queue.joinable(work_kind::head, 0, 0);
  queue.joinable(work_kind::attend, 1, 0);
  BOOST_TEST(is_next(work_kind::head, 0, 0));
  BOOST_TEST(is_next(work_kind::attend, 1, 0));
  BOOST_TEST(is_next(work_kind::expert, 1, 3));
  BOOST_TEST(is_next(work_kind::attend, 0, 0));
  BOOST_TEST(queue.empty());
}

BOOST_AUTO_TEST_CASE(nothing_waits_for_more_than_a_pass_of_others) {
  auto queue = queue_of_tiny();
  const auto& shape = test::tiny_model()->config();
  queue.joinable(work_kind::attend, 0, 0);
  std::size_t before = 0;
  for (;; ++before) {
    queue.joinable(work_kind::head, 0, 0);
    if (queue.take()->kind == work_kind::attend) break;
    BOOST_REQUIRE(before < 1000u);
  }
  BOOST_TEST(before == shape.n_layers * (shape.n_experts + 1) + 1);
}

BOOST_AUTO_TEST_CASE(positions_that_began_apart_come_to_share_batches) {
  const auto n_layers = test::tiny_model()->config().n_layers;
  const std::size_t a_pass = 3 * n_layers + 1, passes = 20;
  BOOST_TEST(batches_of(1, passes, 0) == passes * a_pass);
  BOOST_TEST(batches_of(4, passes, 0) == passes * a_pass);
  // Each begins in the middle of another's layers. What comes together is less than a pass late, and ends as much later; as they
  // came it would be more than twice as many.
  BOOST_TEST(batches_of(4, passes, 4) <= (passes + 4) * a_pass);
}

BOOST_AUTO_TEST_CASE(
    batches_of_a_step_come_in_the_order_of_their_first_arrival_and_are_closed_then) {
  auto queue = queue_of_tiny();
  queue.joinable(work_kind::expert, 1, 3);
  queue.joinable(work_kind::expert, 1, 0);
  queue.joinable(work_kind::expert, 1, 3);
  const auto first = queue.take();
  BOOST_TEST(first->expert == 3u);
  auto& next = queue.joinable(work_kind::expert, 1, 3);
  BOOST_TEST(&next != first.get());
  BOOST_TEST(queue.take()->expert == 0u);
  BOOST_TEST(queue.take().get() == &next);
  BOOST_TEST(queue.empty());
}

BOOST_AUTO_TEST_CASE(attention_of_a_dropped_request_is_forgotten_and_that_of_others_stays) {
  auto queue = queue_of_tiny();
  queue.joinable(work_kind::attend, 0, 0).attends.push_back(attention(1));
  queue.joinable(work_kind::attend, 0, 0).attends.push_back(attention(2));
  queue.joinable(work_kind::attend, 1, 0).attends.push_back(attention(1));
  queue.joinable(work_kind::head, 0, 0);
  queue.drop(1);
  BOOST_TEST(queue.waiting().size() == 2u);
  // The batch that is gone is open again.
  queue.joinable(work_kind::attend, 1, 0).attends.push_back(attention(3));
  BOOST_TEST(queue.waiting().size() == 3u);
  queue.take();  // The head, then the later layer.
  queue.take();
  const auto left = queue.take();
  BOOST_REQUIRE_EQUAL(left->attends.size(), 1u);
  BOOST_TEST(left->attends[0].terms.request == 2u);
}

BOOST_AUTO_TEST_CASE(a_batch_is_used_again_once_nobody_holds_it_and_begins_empty) {
  auto queue = queue_of_tiny();
  queue.joinable(work_kind::attend, 0, 0).attends.push_back(attention(1));
  auto done = queue.take();
  auto held = done;
  queue.recycle(std::move(done));
  BOOST_TEST(&queue.joinable(work_kind::head, 0, 0) != held.get());
  const auto* memory = held.get();
  held->failed = error{};
  queue.recycle(std::move(held));
  auto& again = queue.joinable(work_kind::attend, 2, 0);
  BOOST_TEST(&again == memory);
  BOOST_TEST(again.attends.empty());
  BOOST_TEST(!again.failed.has_value());
  BOOST_TEST(again.layer == 2u);
}

BOOST_AUTO_TEST_CASE(a_batch_costs_its_rows_and_its_weights_once) {
  cost_profile costs;
  costs.attention_bytes = 1000;
  costs.attention_flops = 10;
  costs.attention_flops_per_context = 1;
  costs.kv_row_bytes = 5;
  costs.expert_flops = 30;
  costs.head_flops = 40;
  costs.head_bytes = 500;
  actors::batch batch;
  batch.attends = {attention(1, 4, 2), attention(2)};
  batch.count_cost(costs, 700, 8);
  BOOST_TEST(batch.rows == 3);
  // Positions 4 and 5 attend to 5 and 6 rows, position 0 to itself.
  BOOST_TEST(batch.flops == 3 * 10 + 5 + 6 + 1);
  BOOST_TEST(batch.bytes_read == 1000 + 6 * 5 + 1 * 5);
  batch.kind = work_kind::expert;
  batch.experts = {{nullptr, 2}, {nullptr, 3}};
  batch.count_cost(costs, 700, 8);
  BOOST_TEST(batch.rows == 5);
  BOOST_TEST(batch.flops == 150);
  BOOST_TEST(batch.bytes_read == 700);
  batch.kind = work_kind::head;
  batch.heads.resize(2);
  batch.heads[0].hidden.resize(8);
  batch.heads[1].hidden.resize(16);
  batch.count_cost(costs, 700, 8);
  BOOST_TEST(batch.rows == 3);
  BOOST_TEST(batch.flops == 120);
  BOOST_TEST(batch.bytes_read == 500);
}

BOOST_AUTO_TEST_CASE(a_call_is_complete_with_the_last_of_its_experts_and_sums_whole_rows) {
  const auto model = test::tiny_model();
  const auto width = model->config().hidden_size;
  actors::device device(model);
  auto call = std::make_shared<actors::running_call>();
  call->work = two_rows_of_experts();
  call->outputs.resize(3 * width);
  call->batches_left = 2;
  const auto run = [&](std::uint32_t expert, std::uint32_t n) {
    actors::batch batch;
    batch.kind = work_kind::expert;
    batch.expert = expert;
    batch.experts.push_back({call, n});
    device.run(batch);
    BOOST_TEST(!batch.failed.has_value());
    return batch.matters();
  };
  BOOST_TEST(!run(1, 1));
  BOOST_TEST(run(2, 2));
  const auto output = actors::assemble_output(*call, width);
  BOOST_REQUIRE_EQUAL(output.rows.size(), 2u);
  BOOST_TEST((output.rows[0] == wire::output_row{3, wire::whole_row}));
  BOOST_TEST((output.rows[1] == wire::output_row{5, 1}));
  // Each expert by itself, weighed here.
  const auto expert = [&](std::uint32_t id, std::size_t row) {
    std::vector<float> y(width);
    model->run_expert(layer_id{0}, expert_id{id},
                      std::span(call->work.call.x).subspan(row * width, width), y);
    return y;
  };
  const auto a = expert(1, 0), b = expert(2, 0), c = expert(2, 1);
  for (std::size_t i = 0; i < width; ++i) {
    BOOST_TEST(output.y[i] == 0.75f * a[i] + 0.25f * b[i], boost::test_tools::tolerance(1e-5f));
    BOOST_TEST(output.y[width + i] == c[i]);  // By itself it comes without its gate.
  }
}

BOOST_AUTO_TEST_CASE(a_failed_batch_fails_the_calls_that_wait_for_it) {
  actors::device device(test::tiny_model());
  auto call = std::make_shared<actors::running_call>();
  call->work = two_rows_of_experts();
  call->batches_left = 1;
  actors::batch batch;
  batch.kind = work_kind::expert;
  batch.expert = 1;
  batch.experts.push_back({call, 1});
  batch.rows = std::int64_t{1} << 57;  // More than a vector can have.
  device.run(batch);
  BOOST_TEST(batch.failed.has_value());
  BOOST_REQUIRE_EQUAL(batch.complete.size(), 1u);
  BOOST_TEST(call->failed.has_value());
}

BOOST_AUTO_TEST_CASE(logits_stay_while_somebody_reads_them_and_their_room_is_used_again_then) {
  const auto model = test::tiny_model();
  const auto width = model->config().hidden_size, vocabulary = model->config().vocab_size;
  actors::device device(model);
  const auto run = [&](float first) {
    actors::batch batch;
    batch.kind = work_kind::head;
    for (const float each : {first, first + 1}) {
      std::vector<float> hidden(width, 1.0f);
      hidden[0] = each;
      batch.heads.push_back({{}, std::move(hidden)});
    }
    device.run(batch);
    BOOST_REQUIRE(!batch.failed.has_value());
    BOOST_REQUIRE_EQUAL(batch.head_results.size(), 2u);
    return batch.head_results[1];
  };
  auto held = run(1);
  const std::vector<float> as_told(held.logits().begin(), held.logits().end());
  BOOST_TEST(as_told.size() == vocabulary);
  const auto other = run(5);
  BOOST_TEST(!std::ranges::equal(other.logits(), as_told));
  BOOST_TEST(std::ranges::equal(held.logits(), as_told));
  const auto* room = held.logits().data();
  held = {};
  const auto next = run(1);
  BOOST_TEST(next.logits().data() == room);
  BOOST_TEST(std::ranges::equal(next.logits(), as_told));
}

BOOST_AUTO_TEST_CASE(what_was_attended_is_told_with_its_rows_and_streamed_where_it_is_asked_for) {
  const auto model = test::tiny_model();
  const auto width = model->config().hidden_size;
  actors::device device(model);
  actors::batch batch;
  batch.attends = {attention(1, 0, 2), attention(2, 0, 1)};
  batch.attends[1].stream = true;
  batch.attends[1].terms.access = 6;
  device.run(batch);
  BOOST_REQUIRE(!batch.failed.has_value());
  BOOST_REQUIRE_EQUAL(batch.attended.size(), 2u);
  BOOST_TEST(batch.attended[0].hidden.size() == 2 * width);
  BOOST_TEST(batch.attended[1].key.request == 2u);
  BOOST_TEST(batch.attended[1].logits.size() == model->config().n_experts);
  BOOST_REQUIRE_EQUAL(batch.streamed.content.blocks.size(), 1u);
  const auto& block = batch.streamed.content.blocks[0];
  BOOST_TEST(block.request == 2u);
  BOOST_TEST(batch.streamed.access[0] == 6u);
  // Both requests began with the same id: rows that another server wrote serve as well as one's own.
  actors::device other(model);
  other.store({batch.streamed.content, 8});
  const auto second_row = [&](actors::device& on) {
    actors::batch next;
    next.attends = {attention(2, 1, 1)};
    on.run(next);
    BOOST_REQUIRE(!next.failed.has_value());
    return next.attended.at(0).hidden;
  };
  BOOST_TEST(second_row(other) == second_row(device), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(rows_beyond_a_cache_lose_their_request_and_nothing_else) {
  const auto model = test::tiny_model();
  actors::device device(model);
  const auto n_unserved = [&](std::uint64_t request, std::uint32_t first) {
    actors::batch batch;
    batch.attends = {attention(request, first, 1)};
    batch.attends[0].stream = true;
    device.run(batch);
    BOOST_REQUIRE(!batch.failed.has_value());
    return std::pair(batch.unserved.size(), std::move(batch.streamed.content));
  };
  auto [none, rows] = n_unserved(1, 0);
  BOOST_TEST(none == 0u);
  BOOST_TEST(n_unserved(2, 0).first == 0u);
  // The first one's cache has eight rows, and this says that there is room for thirty.
  rows.blocks.at(0).first = 20;
  device.store({rows, 30});
  BOOST_TEST(n_unserved(1, 1).first == 1u);
  BOOST_TEST(n_unserved(2, 1).first == 0u);
  // Nor has it room for what is to be attended there, whoever says so, with or without a cache yet.
  BOOST_TEST(n_unserved(2, 8).first == 1u);
  BOOST_TEST(n_unserved(3, 8).first == 1u);
}

BOOST_AUTO_TEST_CASE(rows_behind_others_that_are_not_there_lose_their_request_and_nothing_else) {
  actors::device device(test::tiny_model());
  const auto n_unserved = [&](std::vector<actors::attend_work> works) {
    actors::batch batch;
    batch.attends = std::move(works);
    device.run(batch);
    BOOST_REQUIRE(!batch.failed.has_value());
    return batch.unserved.size();
  };
  BOOST_TEST(n_unserved({attention(1, 2), attention(2)}) == 1u);
  BOOST_TEST(n_unserved({attention(2, 2), attention(3)}) == 1u);
  // They may come in the same batch, before them.
  BOOST_TEST(n_unserved({attention(4, 0, 2), attention(3, 1), attention(4, 2), attention(4, 3)}) ==
             0u);
  BOOST_TEST(n_unserved({attention(5, 1), attention(5, 0)}) == 2u);
}

BOOST_AUTO_TEST_CASE(a_part_of_a_prompt_before_an_encoder_loses_its_request_and_nothing_else) {
  const auto model = test::random_model(model::family::switch_transformers);
  actors::device device(model);
  const auto decoder =
      static_cast<std::uint32_t>(model->config().first_layer(model::row_kind::decoded).index());
  const auto n_unserved = [&](std::uint32_t layer, const actors::attend_work& work) {
    actors::batch batch;
    batch.layer = layer;
    batch.attends = {work, attention(work.terms.request + 100, 0, 4)};
    device.run(batch);
    BOOST_REQUIRE(!batch.failed.has_value());
    return batch.unserved.size();
  };
  BOOST_TEST(n_unserved(0, attention(1, 0, 4)) == 0u);
  BOOST_TEST(n_unserved(0, attention(2, 0, 3)) == 1u);
  BOOST_TEST(n_unserved(0, attention(3, 1, 3)) == 1u);
  BOOST_TEST(n_unserved(0, attention(4, 0, 5)) == 1u);
  BOOST_TEST(n_unserved(0, attention(5, 4, 1)) == 1u);
  BOOST_TEST(n_unserved(decoder, attention(6, 0, 3)) == 1u);
  BOOST_TEST(n_unserved(decoder, attention(1, 0, 4)) == 0u);
  BOOST_TEST(n_unserved(decoder, attention(1, 4, 1)) == 0u);
}

BOOST_AUTO_TEST_CASE(
    the_last_layer_leaves_of_positions_that_nobody_reads_their_keys_and_values_alone) {
  const auto model = test::tiny_model();
  const auto n_experts = model->config().n_experts;
  const auto last = static_cast<std::uint32_t>(model->config().n_layers - 1);
  actors::device all(model), leaving(model, true);
  // A chunk of three positions, of which so many were given; which of them have slots.
  const auto run = [&](actors::device& on, std::uint64_t request, std::uint32_t layer,
                       std::uint32_t given, bool score) {
    actors::batch batch;
    batch.layer = layer;
    batch.attends = {attention(request, 0, 3)};
    batch.attends[0].terms.given_tokens = given;
    batch.attends[0].terms.score = score ? 1 : 0;
    on.run(batch);
    BOOST_REQUIRE(!batch.failed.has_value());
    std::string slots;
    for (std::size_t i = 0; i < 3; ++i)
      slots +=
          model::has_slots(std::span(batch.attended.at(0).logits).subspan(i * n_experts, n_experts))
              ? 'x'
              : '-';
    return slots;
  };
  BOOST_TEST(run(all, 1, last, 3, false) == "xxx");
  BOOST_TEST(run(leaving, 1, last, 3, false) == "--x");
  BOOST_TEST(run(leaving, 2, last, 4, false) == "---");  // The last one comes in another chunk.
  BOOST_TEST(run(leaving, 3, last - 1, 4, false) == "xxx");
  BOOST_TEST(run(leaving, 4, last, 3, true) == "xxx");
  const auto next = [&](actors::device& on) {
    actors::batch batch;
    batch.layer = last;
    batch.attends = {attention(1, 3, 1)};
    batch.attends[0].terms.given_tokens = 3;
    on.run(batch);
    return batch.attended.at(0);
  };
  const auto expected = next(all), found = next(leaving);
  BOOST_TEST(found.hidden == expected.hidden, boost::test_tools::per_element());
  BOOST_TEST(found.logits == expected.logits, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(an_expert_that_went_with_the_plan_before_fails_its_batch_and_nothing_else) {
  model::load_options without;
  without.hosts = [](layer_id, expert_id expert) { return expert.index() != 1; };
  const auto other = model::transformer::load(ORDERMOE_TEST_DATA "/mixtral-tiny", without);
  BOOST_REQUIRE(other.has_value());
  actors::device tensors(test::tiny_model());
  tensors.use(*other);
  for (const std::uint32_t expert : {1u, 2u}) {
    auto queue = queue_of_tiny();
    auto call = std::make_shared<actors::running_call>();
    call->work = two_rows_of_experts();
    call->outputs.resize(3 * test::tiny_model()->config().hidden_size);
    call->batches_left = 2;
    queue.joinable(work_kind::expert, 0, expert).experts.push_back({call, expert});
    const auto content = queue.take();
    tensors.run(*content);
    BOOST_TEST(content->failed.has_value() == (expert == 1));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
