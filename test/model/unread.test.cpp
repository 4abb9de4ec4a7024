#include <algorithm>
#include <numeric>
#include <set>

#include "model/architecture/routing.hpp"
#include "model/checkpoint/random_model.hpp"
#include "model/forward.hpp"
#include "model/reference.hpp"
#include "test/model/fixture.hpp"

// Rows whose hidden state nobody reads behind the last layer: what they leave, and what they leave undone.

namespace {

namespace om = ordermoe::model;
using fixture::same_bits;
using ordermoe::layer_id;
using ordermoe::precision;

const fixture::fs::path golden = fixture::fs::path(ORDERMOE_TEST_DATA) / "golden";

constexpr om::family decoders[] = {om::family::mixtral, om::family::qwen2_moe,
                                   om::family::qwen3_moe, om::family::olmoe};

/// Queries as wide as a part of a block, as whole blocks, and as one and a half.
struct heads {
  std::size_t n_heads, n_kv_heads, head_dim;
};
constexpr heads head_shapes[] = {{2, 1, 16}, {4, 2, 16}, {4, 4, 32}, {6, 2, 16}};

std::vector<std::shared_ptr<const om::transformer>> models(const fixture::scratch_folder& place) {
  std::vector<std::shared_ptr<const om::transformer>> made;
  for (const auto kind : decoders)
    for (std::size_t i = 0; i < std::size(head_shapes); ++i) {
      auto options = fixture::small_model(kind, 3 + i);
      options.shape.n_heads = head_shapes[i].n_heads;
      options.shape.n_kv_heads = head_shapes[i].n_kv_heads;
      options.shape.head_dim = head_shapes[i].head_dim;
      if (kind != om::family::qwen3_moe)
        options.shape.hidden_size = head_shapes[i].n_heads * head_shapes[i].head_dim;
      const auto folder = place.path() / (std::string(om::to_string(kind)) + std::to_string(i));
      fixture::need(om::write_random_model(folder, options));
      om::load_options loading;
      if (i % 2 == 1) loading.dense_precision = precision::int8;
      if (i % 2 == 1) loading.kv = om::kv_precision::bf16;
      made.push_back(fixture::need(om::transformer::load(folder, loading)));
    }
  // Layers of several blocks, of which the last has the experts.
  made.push_back(fixture::need(om::transformer::load(golden / "qwen2-moe-mixed")));
  return made;
}

std::vector<std::int32_t> text(std::size_t n) {
  std::vector<std::int32_t> ids(n);
  std::iota(ids.begin(), ids.end(), 40);
  return ids;
}

/// A text through all layers in chunks; behind the last layer only the last `n_read` rows are read.
struct passed {
  std::vector<om::kv_cache> caches;
  std::vector<float> read;               ///< Hidden states of those.
  std::set<std::size_t> routed_at_last;  ///< Positions that ran experts in the last layer.
};

passed pass(const om::transformer& model, std::size_t n_tokens, std::size_t chunk,
            std::size_t n_read) {
  const auto& config = model.config();
  const auto ids = text(n_tokens);
  passed made{om::make_caches(model, n_tokens + 8), {}, {}};
  for (std::size_t first = 0; first < n_tokens; first += chunk) {
    const std::size_t n = std::min(chunk, n_tokens - first);
    const std::size_t read_from = std::max(first, n_tokens - n_read);
    const std::size_t unread = std::min(n, read_from - first);
    std::vector<float> hidden(n * config.hidden_size);
    model.embed(std::span(ids).subspan(first, n), hidden);
    for (std::size_t l = 0; l < config.n_layers; ++l)
      om::run_layer(model, layer_id{l}, made.caches[l], {first, n_tokens, unread}, hidden,
                    [&](layer_id layer, std::size_t position, auto, auto&) {
                      if (layer.index() + 1 == config.n_layers)
                        made.routed_at_last.insert(position);
                    });
    made.read.insert(made.read.end(),
                     hidden.begin() + static_cast<std::ptrdiff_t>(unread * config.hidden_size),
                     hidden.end());
  }
  return made;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(unread)

BOOST_AUTO_TEST_CASE(they_leave_the_keys_and_values_they_leave_otherwise_and_what_is_read_stays) {
  const fixture::scratch_folder place;
  constexpr std::size_t n_tokens = 37;
  for (const auto& model : models(place)) {
    const auto& config = model->config();
    BOOST_TEST_CONTEXT(om::to_string(config.kind)
                       << ", " << config.n_heads << " heads of " << config.head_dim) {
      const auto all = pass(*model, n_tokens, n_tokens, n_tokens);
      for (const std::size_t chunk : {1, 5, 36, 37})
        for (const std::size_t n_read : {1, 7, 37}) {
          const auto some = pass(*model, n_tokens, chunk, n_read);
          const std::size_t numbers = n_read * config.hidden_size;
          BOOST_REQUIRE(some.read.size() == numbers);
          BOOST_TEST(
              same_bits(some.read.data(), all.read.data() + all.read.size() - numbers, numbers));
          for (std::size_t l = 0; l < config.n_layers; ++l)
            for (std::size_t p = 0; p < n_tokens; ++p)
              BOOST_REQUIRE((some.caches[l].row(p) == all.caches[l].row(p)));
        }
    }
  }
}

BOOST_AUTO_TEST_CASE(they_run_no_experts_and_keep_the_hidden_state_that_they_came_with) {
  const fixture::scratch_folder place;
  constexpr std::size_t n_tokens = 12;
  for (const auto& model : models(place)) {
    const auto& config = model->config();
    const std::size_t width = config.hidden_size;
    BOOST_TEST((pass(*model, n_tokens, 5, 1).routed_at_last == std::set<std::size_t>{11}));
    BOOST_TEST(pass(*model, n_tokens, 5, n_tokens).routed_at_last.size() == n_tokens);

    const layer_id last{config.n_layers - 1};
    auto cache = model->make_cache(last, n_tokens);
    auto rows = om::rows_at(config, last, cache, {0, n_tokens, 0}, n_tokens);
    for (const std::size_t i : {0, 3, 4, 9}) rows[i].unread = true;
    const auto before = fixture::numbers(n_tokens * width, 5);
    auto hidden = before;
    std::vector<float> normed(before.size(), 7.0f), scores(n_tokens * config.n_experts);
    model->attend(last, rows, hidden);
    model->route(last, rows, hidden, normed, scores);
    for (std::size_t i = 0; i < n_tokens; ++i) {
      // What the blocks before its last one make of a row, that one's key and value are made of.
      if (config.sparse_blocks.empty())
        BOOST_TEST(same_bits(&hidden[i * width], &before[i * width], width) == rows[i].unread);
      BOOST_TEST((normed[i * width] == 7.0f) == rows[i].unread);
      BOOST_TEST(om::has_slots(std::span<const float>(scores).subspan(
                     i * config.n_experts, config.n_experts)) == !rows[i].unread);
    }
  }
}

BOOST_AUTO_TEST_CASE(of_an_encoder_decoder_every_row_is_read) {
  const auto model = fixture::need(om::transformer::load(golden / "switch"));
  const auto& config = model->config();
  constexpr std::size_t n_tokens = 9;
  const auto all = pass(*model, n_tokens, n_tokens, n_tokens);
  const auto some = pass(*model, n_tokens, n_tokens, 1);
  BOOST_TEST(same_bits(some.read.data(), &all.read[(n_tokens - 1) * config.hidden_size],
                       config.hidden_size));
  BOOST_TEST((some.routed_at_last == all.routed_at_last));
  const layer_id last{config.n_layers - 1};
  const auto prompt = n_tokens / 2;
  const auto before = fixture::numbers(n_tokens * config.hidden_size, 5);
  std::vector<std::vector<float>> found;
  for (const bool unread : {false, true}) {
    auto cache = model->make_cache(last, n_tokens);
    auto rows = om::rows_at(config, last, cache, {0, prompt, 0}, n_tokens);
    for (auto& row : rows) row.unread = unread;
    auto hidden = before;
    std::vector<float> normed(before.size()), scores(n_tokens * config.n_experts);
    model->attend(last, rows, hidden);
    model->route(last, rows, hidden, normed, scores);
    for (const auto* each : {&normed, &scores})
      hidden.insert(hidden.end(), each->begin(), each->end());
    found.push_back(std::move(hidden));
  }
  BOOST_TEST(same_bits(found[0].data(), found[1].data(), found[0].size()));
}

BOOST_AUTO_TEST_CASE(an_answer_is_that_of_a_text_whose_rows_are_all_read) {
  const fixture::scratch_folder place;
  for (const auto& model : models(place)) {
    const std::size_t vocabulary = model->config().vocab_size;
    om::generation_options options;
    options.max_new_tokens = 6;
    std::size_t n_answered = 0;
    for (const std::size_t n_prompt : {17, 18, 19, 20, 21, 22}) {
      auto ids = text(n_prompt);
      const auto answer = fixture::need(om::generate(*model, nullptr, ids, options));
      n_answered += answer.token_ids.size();
      for (const auto id : answer.token_ids) {
        const auto logits = fixture::need(om::logits(*model, ids));
        const auto last = std::span(logits).last(vocabulary);
        BOOST_TEST((std::ranges::max_element(last) - last.begin() == id));
        ids.push_back(id);
      }
    }
    BOOST_TEST(n_answered > 0);
  }
}

BOOST_AUTO_TEST_SUITE_END()
