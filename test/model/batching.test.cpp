#include <cmath>
#include <numeric>

#include "model/forward.hpp"
#include "model/reference.hpp"
#include "test/model/fixture.hpp"
#include "test/support/devices.hpp"

// A row's result has the same bits whatever shares its batch: the ground that exactness across
// servers stands on.

namespace {

namespace om = ordermoe::model;
using fixture::numbers;
using fixture::same_bits;
using ordermoe::expert_id;
using ordermoe::layer_id;

const om::load_options both_paths[] = {{.device = "cpu"},
                                       {.device = ordermoe::test::libtorch_device()}};

/// 64 sequences with `context` rows each in their caches at layer 0.
std::vector<om::kv_cache> filled_caches(const om::model_config& config, std::size_t n,
                                        std::size_t context) {
  std::vector<om::kv_cache> caches;
  for (std::size_t i = 0; i < n; ++i) {
    caches.emplace_back(context + 1, config.kv_row_size());
    for (std::size_t p = 0; p < context; ++p)
      caches[i].put(p, numbers(config.kv_row_size(), 1000 * i + p));
  }
  return caches;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(batching)

BOOST_AUTO_TEST_CASE(an_expert_gives_a_row_the_same_bits_alone_and_in_batches_of_2_to_64) {
  for (const auto& options : both_paths) {
    const auto model = fixture::need(om::transformer::load(fixture::tiny, options));
    const std::size_t width = model->config().hidden_size;
    const auto rows = numbers(64 * width, 1);
    for (std::size_t e = 0; e < model->config().n_experts; ++e) {
      std::vector<float> alone(64 * width);
      for (std::size_t i = 0; i < 64; ++i)
        model->run_expert(layer_id{1u}, expert_id{e}, std::span(rows).subspan(i * width, width),
                          std::span(alone).subspan(i * width, width));
      for (std::size_t n = 2; n <= 64; ++n) {
        std::vector<float> together(n * width);
        model->run_expert(layer_id{1u}, expert_id{e}, std::span(rows).first(n * width), together);
        BOOST_REQUIRE(same_bits(alone.data(), together.data(), together.size()));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(attention_gives_a_row_the_same_bits_alone_and_in_batches_of_2_to_64) {
  for (const auto& options : both_paths) {
    const auto model = fixture::need(om::transformer::load(fixture::tiny, options));
    const auto& config = model->config();
    const std::size_t width = config.hidden_size;
    // Every sequence is at a position of its own.
    const auto position = [](std::size_t i) { return i % 23; };
    auto caches = filled_caches(config, 64, 23);
    const auto rows = numbers(64 * width, 2);
    std::vector<float> alone = rows;
    std::vector<std::vector<float>> written;
    for (std::size_t i = 0; i < 64; ++i) {
      const om::attention_row row{&caches[i], position(i)};
      model->attend(layer_id{0u}, std::span(&row, 1), std::span(alone).subspan(i * width, width));
      const auto stored = caches[i].row(position(i));
      written.emplace_back(stored.begin(), stored.end());
    }
    for (std::size_t n = 2; n <= 64; ++n) {
      std::vector<om::attention_row> batch(n);
      for (std::size_t i = 0; i < n; ++i) batch[i] = {&caches[i], position(i)};
      std::vector<float> together(rows.begin(), rows.begin() + static_cast<long>(n * width));
      model->attend(layer_id{0u}, batch, together);
      BOOST_REQUIRE(same_bits(alone.data(), together.data(), together.size()));
      for (std::size_t i = 0; i < n; ++i)
        BOOST_REQUIRE(
            same_bits(written[i].data(), caches[i].row(position(i)).data(), config.kv_row_size()));
    }
  }
}

// The expert's first matrix, of 2^24 numbers, is wide enough for a device's matrix units, the others are not. An H200's were off by 3e-6
// of the largest number.
BOOST_AUTO_TEST_CASE(wide_layers_of_a_device_agree_with_the_kernels_and_keep_bits_in_batches) {
  auto options = fixture::small_model(om::family::mixtral);
  auto& shape = options.shape;
  shape.n_layers = 1;
  shape.n_experts = 2;
  shape.hidden_size = 2048;
  shape.intermediate_size = 4096;
  shape.n_heads = shape.n_kv_heads = 32;
  shape.head_dim = 64;
  const fixture::scratch_folder place;
  const auto folder = place.path() / "wide";
  fixture::need(om::write_random_model(folder, options));
  constexpr std::size_t most = 70, context = 40, width = 2048;
  const auto rows = numbers(most * width, 5);
  // Attention's update and the expert's output of n rows from `first` on, each at a position of its own.
  const auto pass = [&](const om::transformer& model, std::size_t first, std::size_t n) {
    auto caches = filled_caches(model.config(), first + n, context);
    std::vector<om::attention_row> batch;
    for (std::size_t i = first; i < first + n; ++i) batch.push_back({&caches[i], i % context});
    std::vector<float> hidden(&rows[first * width], &rows[first * width] + n * width);
    std::vector<float> output(n * width), normed(n * width), scores(n * shape.n_experts);
    model.attend(layer_id{0u}, batch, hidden);
    model.route(layer_id{0u}, hidden, normed, scores);
    model.run_expert(layer_id{0u}, expert_id{1u}, normed, output);
    hidden.insert(hidden.end(), output.begin(), output.end());
    return hidden;
  };
  const auto device = ordermoe::test::libtorch_device();
  const auto model = fixture::need(om::transformer::load(folder, {.device = device}));
  const auto kernels = fixture::need(om::transformer::load(folder));
  const auto all = pass(*model, 0, most), expected = pass(*kernels, 0, most);
  double largest = 0, size = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(all[i]) - expected[i]));
    size = std::max(size, std::abs(static_cast<double>(expected[i])));
  }
  BOOST_TEST_MESSAGE(device << ": largest difference " << largest << " of numbers up to " << size
                            << ", " << model->resident_bytes() << " bytes, the kernels' "
                            << kernels->resident_bytes());
  BOOST_TEST(largest < 1e-5 * size);
  for (const auto& [first, n] :
       {std::pair<std::size_t, std::size_t>{0, 1}, {1, 1}, {0, 7}, {0, 64}, {0, 65}}) {
    const auto part = pass(*model, first, n);
    BOOST_TEST(same_bits(&all[first * width], part.data(), n * width));
    BOOST_TEST(same_bits(&all[(most + first) * width], &part[n * width], n * width));
  }
}

BOOST_AUTO_TEST_CASE(router_and_head_give_a_row_the_same_bits_alone_and_in_batches) {
  const auto model = fixture::tiny_model();
  const auto& config = model->config();
  const std::size_t width = config.hidden_size;
  auto rows = numbers(64 * width, 3);
  std::vector<float> normed(64 * width), scores(64 * config.n_experts),
      words(64 * config.vocab_size);
  for (std::size_t i = 0; i < 64; ++i) {
    const auto row = std::span(rows).subspan(i * width, width);
    model->route(layer_id{2u}, row, std::span(normed).subspan(i * width, width),
                 std::span(scores).subspan(i * config.n_experts, config.n_experts));
    model->head(row, std::span(words).subspan(i * config.vocab_size, config.vocab_size));
  }
  for (std::size_t n = 2; n <= 64; ++n) {
    const auto batch = std::span(rows).first(n * width);
    std::vector<float> a(n * width), b(n * config.n_experts), c(n * config.vocab_size);
    model->route(layer_id{2u}, batch, a, b);
    model->head(batch, c);
    BOOST_REQUIRE(same_bits(normed.data(), a.data(), a.size()));
    BOOST_REQUIRE(same_bits(scores.data(), b.data(), b.size()));
    BOOST_REQUIRE(same_bits(words.data(), c.data(), c.size()));
  }
}

BOOST_AUTO_TEST_CASE(the_whole_model_gives_the_same_bits_token_by_token_and_in_chunks) {
  const auto model = fixture::tiny_model();
  const auto& config = model->config();
  std::vector<std::int32_t> ids(50);
  std::iota(ids.begin(), ids.end(), 7);
  const auto whole = fixture::need(om::logits(*model, ids));
  for (const std::size_t chunk : {1, 2, 3, 7, 16, 49}) {
    auto caches = om::make_caches(*model, ids.size());
    for (std::size_t first = 0; first < ids.size(); first += chunk) {
      const std::size_t n = std::min(chunk, ids.size() - first);
      std::vector<float> hidden(n * config.hidden_size);
      model->embed(std::span(ids).subspan(first, n), hidden);
      for (std::size_t l = 0; l < config.n_layers; ++l)
        om::run_layer(*model, layer_id{l}, caches[l], {.first = first}, hidden);
      std::vector<float> scores(n * config.vocab_size);
      model->head(hidden, scores);
      BOOST_REQUIRE(same_bits(&whole[first * config.vocab_size], scores.data(), scores.size()));
    }
  }
}

BOOST_AUTO_TEST_CASE(
    slots_of_a_long_prompt_run_some_hundreds_of_rows_at_a_time_and_give_the_same_bits) {
  const auto model = fixture::tiny_model();
  const auto& config = model->config();
  const std::size_t width = config.hidden_size, n_experts = config.n_experts;
  constexpr std::size_t n = 1100;  // Neither a multiple of what runs at once nor less.
  const auto normed = numbers(n * width, 6), start = numbers(n * width, 7);
  om::slot_table slots(n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < i % 3; ++j)  // None, one or two.
      slots[i].push_back(
          {expert_id{(i / 3 + j) % n_experts}, 0.25f + 0.5f * static_cast<float>(j)});
  auto whole = start;
  om::execute_slots(*model, layer_id{1u}, normed, slots, whole);
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<float> alone(&start[i * width], &start[i * width] + width);
    om::execute_slots(*model, layer_id{1u}, std::span(normed).subspan(i * width, width), {slots[i]},
                      alone);
    BOOST_REQUIRE(same_bits(&whole[i * width], alone.data(), width));
    BOOST_REQUIRE(same_bits(&start[i * width], alone.data(), width) == slots[i].empty());
  }
}

BOOST_AUTO_TEST_CASE(rows_of_several_sequences_in_one_step_do_not_mix) {
  const auto model = fixture::tiny_model();
  const auto& config = model->config();
  const std::size_t width = config.hidden_size;
  om::kv_cache first(3, config.kv_row_size()), second(3, config.kv_row_size());
  om::kv_cache first_alone(3, config.kv_row_size()), second_alone(3, config.kv_row_size());
  auto mixed = numbers(6 * width, 4);
  std::vector<float> a, b;
  for (std::size_t i = 0; i < 6; ++i) {
    auto& target = i % 2 == 0 ? a : b;
    target.insert(target.end(), &mixed[i * width], &mixed[i * width] + width);
  }
  // Positions come in no order; every row that is missing in a cache is in the call.
  const om::attention_row rows[] = {{&first, 2},  {&second, 0}, {&first, 0},
                                    {&second, 1}, {&first, 1},  {&second, 2}};
  const om::attention_row rows_a[] = {{&first_alone, 2}, {&first_alone, 0}, {&first_alone, 1}};
  const om::attention_row rows_b[] = {{&second_alone, 0}, {&second_alone, 1}, {&second_alone, 2}};
  model->attend(layer_id{0u}, rows, mixed);
  model->attend(layer_id{0u}, rows_a, a);
  model->attend(layer_id{0u}, rows_b, b);
  for (std::size_t i = 0; i < 6; ++i)
    BOOST_TEST(same_bits(&mixed[i * width], (i % 2 == 0 ? a : b).data() + i / 2 * width, width));
}

BOOST_AUTO_TEST_CASE(slots_are_summed_in_rank_order_before_they_are_added) {
  const float big[] = {1e8f};
  const float small[] = {1.0f};
  const float gates[] = {1.0f, 1.0f, -1.0f};
  const float* outputs[] = {big, small, big};
  float hidden[] = {0.5f};
  float sum[] = {7.0f};
  om::add_slots(hidden, gates, outputs);
  om::weigh_slots(sum, gates, outputs);
  // 1e8 swallows the 1, which any other order would keep; 0.5 is added to what is left.
  BOOST_TEST(sum[0] == 0.0f);
  BOOST_TEST(hidden[0] == 0.5f);
}

BOOST_AUTO_TEST_CASE(
    attention_reads_the_caches_rows_as_they_are_whatever_it_read_or_computed_before) {
  for (const auto& options : both_paths)
    for (const auto kept : {om::kv_precision::fp32, om::kv_precision::bf16}) {
      auto loading = options;
      loading.kv = kept;
      const auto model = fixture::need(om::transformer::load(fixture::tiny, loading));
      const auto& config = model->config();
      const std::size_t width = config.hidden_size;
      // Past a whole step of rows, some of which come from elsewhere, some in parts of a batch.
      constexpr std::size_t n = 70;
      const auto states = numbers(n * width, 7);
      auto made = model->make_cache(layer_id{0u}, n + 1);
      const auto attend = [&](om::kv_cache& cache, std::size_t first, std::size_t count) {
        std::vector<om::attention_row> rows;
        for (std::size_t p = first; p < first + count; ++p) rows.push_back({&cache, p});
        std::vector<float> hidden(states.begin() + static_cast<long>(first * width),
                                  states.begin() + static_cast<long>((first + count) * width));
        model->attend(layer_id{0u}, rows, hidden);
        return hidden;
      };
      attend(made, 0, 3);
      attend(made, 3, 40);
      for (std::size_t p = 43; p + 1 < n; ++p) made.put(p, numbers(config.kv_row_size(), p));
      // And some are put again, otherwise.
      for (const std::size_t p : {std::size_t{1}, std::size_t{60}})
        made.put(p, numbers(config.kv_row_size(), 1000 + p));
      auto fresh = model->make_cache(layer_id{0u}, n + 1);
      for (std::size_t p = 0; p + 1 < n; ++p) fresh.put(p, made.row(p));
      const auto found = attend(made, n - 1, 1), expected = attend(fresh, n - 1, 1);
      BOOST_TEST(same_bits(found.data(), expected.data(), found.size()));
      const auto row = made.row(n - 1), copy = fresh.row(n - 1);
      BOOST_TEST(same_bits(row.data(), copy.data(), row.size()));
    }
}

BOOST_AUTO_TEST_SUITE_END()
