#include <cmath>

#include "model/evaluation.hpp"
#include "model/expert_weights.hpp"
#include "model/forward.hpp"
#include "model/reference.hpp"
#include "test/model/fixture.hpp"

// What quantised weights do to whole models.

namespace {

namespace om = ordermoe::model;
using fixture::numbers;
using fixture::same_bits;
using ordermoe::expert_id;
using ordermoe::layer_id;

constexpr om::precision every_precision[] = {om::precision::stored, om::precision::bf16,
                                             om::precision::int8, om::precision::int4};

const fixture::fs::path models = fixture::fs::path(ORDERMOE_DATA) / "models";

double held_out_perplexity(const std::string& name, om::precision kept, std::size_t n_tokens,
                           om::precision dense = om::precision::stored) {
  om::load_options options;
  options.expert_precision = kept;
  options.dense_precision = dense;
  const auto model = fixture::need(om::transformer::load(models / name, options));
  const auto tokens = fixture::need(om::tokenizer::load(models / name));
  auto ids = tokens->encode(fixture::need(
      ordermoe::read_file(fixture::fs::path(ORDERMOE_DATA) / "eval" / "held-out.txt")));
  BOOST_REQUIRE_GE(ids.size(), n_tokens);
  ids.resize(n_tokens);
  const auto score =
      fixture::need(om::perplexity(om::windows(ids, 256), om::reference_losses(*model)));
  BOOST_TEST_MESSAGE(name << ", experts " << ordermoe::to_string(kept) << ", dense "
                          << ordermoe::to_string(dense) << ": perplexity " << score.perplexity
                          << " over " << score.n_tokens << " tokens");
  return score.perplexity;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(precision)

BOOST_AUTO_TEST_CASE(perplexity_rises_by_half_a_per_cent_at_eight_bits_and_three_at_four_at_most) {
  for (const std::string name : {"lineage", "upcycled"}) {
    const double stored = held_out_perplexity(name, om::precision::stored, 6144);
    const double eight = held_out_perplexity(name, om::precision::int8, 6144);
    const double four = held_out_perplexity(name, om::precision::int4, 6144);
    BOOST_TEST(eight < 1.005 * stored);
    BOOST_TEST(four < 1.03 * stored);
    // Neither is what it is compared with.
    BOOST_TEST(eight != stored);
    BOOST_TEST(four != eight);
  }
}

BOOST_AUTO_TEST_CASE(rows_rounded_to_bf16_keep_perplexity_within_a_thousandth) {
  for (const std::string name : {"lineage", "upcycled"}) {
    const double stored = held_out_perplexity(name, om::precision::stored, 6144);
    const double experts = held_out_perplexity(name, om::precision::bf16, 6144);
    const double all = held_out_perplexity(name, om::precision::bf16, 6144, om::precision::bf16);
    BOOST_TEST(std::abs(experts / stored - 1) < 0.001);
    BOOST_TEST(std::abs(all / stored - 1) < 0.001);
    BOOST_TEST(experts != stored);
    BOOST_TEST(all != experts);
  }
}

BOOST_AUTO_TEST_CASE(quantised_dense_parts_keep_perplexity_within_the_same_bounds) {
  for (const std::string name : {"lineage", "upcycled"}) {
    const double stored = held_out_perplexity(name, om::precision::stored, 6144);
    const double dense =
        held_out_perplexity(name, om::precision::stored, 6144, om::precision::int8);
    const double eight = held_out_perplexity(name, om::precision::int8, 6144, om::precision::int8);
    const double four = held_out_perplexity(name, om::precision::int4, 6144, om::precision::int8);
    BOOST_TEST(dense < 1.005 * stored);
    BOOST_TEST(eight < 1.005 * stored);
    BOOST_TEST(four < 1.03 * stored);
    BOOST_TEST(dense != stored);
    BOOST_TEST(eight != dense);
    const double all_four =
        held_out_perplexity(name, om::precision::int4, 6144, om::precision::int4);
    BOOST_TEST(all_four < 1.03 * stored);
    BOOST_TEST(all_four != four);
  }
}

BOOST_AUTO_TEST_CASE(dense_parts_at_any_precision_give_the_same_bits_token_by_token_and_in_chunks) {
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 40; ++i) ids.push_back(3 + i * 37 % 200);
  std::vector<float> as_stored;
  for (const auto kept : every_precision) {
    om::load_options options;
    options.expert_precision = om::precision::int8;
    options.dense_precision = kept;
    const auto model = fixture::need(om::transformer::load(fixture::tiny, options));
    const auto& config = model->config();
    const auto whole = fixture::need(om::logits(*model, ids));
    auto caches = om::make_caches(*model, ids.size());
    std::vector<float> hidden(config.hidden_size), row(config.vocab_size);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      model->embed(std::span(ids).subspan(i, 1), hidden);
      for (std::size_t l = 0; l < config.n_layers; ++l)
        om::run_layer(*model, layer_id{l}, caches[l], {i, ids.size()}, hidden);
      model->head(hidden, row);
      BOOST_REQUIRE(same_bits(row.data(), whole.data() + i * config.vocab_size, row.size()));
    }
    if (kept == om::precision::stored)
      as_stored = whole;
    else  // The checkpoint is bf16 already; rows are not.
      BOOST_TEST(!same_bits(as_stored.data(), whole.data(), whole.size()));
  }
}

BOOST_AUTO_TEST_CASE(dense_parts_take_the_bytes_of_their_precision) {
  const auto bytes = [](om::precision kept) {
    om::load_options options;
    options.dense_precision = kept;
    return fixture::need(om::transformer::load(fixture::tiny, options))->resident_bytes();
  };
  const auto config = fixture::tiny_model()->config();
  const std::size_t width = config.hidden_size, heads = config.n_heads * config.head_dim;
  const auto of = [&](om::weight_storage storage) {
    const auto matrix = [&](std::size_t n_out, std::size_t n_in) {
      return om::packed_layout{n_out, n_in}.bytes(storage);
    };
    return config.n_layers * (matrix(heads + 2 * config.kv_width(), width) + matrix(width, heads)) +
           matrix(config.vocab_size, width);
  };
  const std::size_t others = bytes(om::precision::bf16) - of(om::weight_storage::bf16);
  BOOST_TEST(bytes(om::precision::int8) == others + of(om::weight_storage::int8));
  BOOST_TEST(bytes(om::precision::int4) == others + of(om::weight_storage::int4));
}

BOOST_AUTO_TEST_CASE(an_expert_at_any_precision_gives_a_row_the_same_bits_alone_and_in_batches) {
  for (const auto kept : every_precision) {
    om::load_options options;
    options.expert_precision = kept;
    const auto model = fixture::need(om::transformer::load(fixture::tiny, options));
    const std::size_t width = model->config().hidden_size;
    const auto rows = numbers(150 * width, 1);
    std::vector<float> alone(rows.size());
    for (std::size_t i = 0; i < 150; ++i)
      model->run_expert(layer_id{1u}, expert_id{2u}, std::span(rows).subspan(i * width, width),
                        std::span(alone).subspan(i * width, width));
    for (const std::size_t n : {2, 3, 7, 31, 64, 128, 129, 150}) {
      std::vector<float> together(n * width);
      model->run_expert(layer_id{1u}, expert_id{2u}, std::span(rows).first(n * width), together);
      BOOST_REQUIRE(same_bits(alone.data(), together.data(), together.size()));
    }
  }
}

BOOST_AUTO_TEST_CASE(every_expert_can_have_a_precision_of_its_own) {
  const auto of = [](layer_id layer, expert_id expert) {
    return every_precision[(layer.index() + expert.index()) % 4];
  };
  om::load_options mixed;
  mixed.precision_of = of;
  const auto model = fixture::need(om::transformer::load(fixture::tiny, mixed));
  const auto& config = model->config();
  const auto row = numbers(config.hidden_size, 3);
  for (const auto kept : every_precision) {
    om::load_options options;
    options.expert_precision = kept;
    const auto whole = fixture::need(om::transformer::load(fixture::tiny, options));
    for (std::size_t l = 0; l < config.n_layers; ++l)
      for (std::size_t e = 0; e < config.n_experts; ++e) {
        if (of(layer_id{l}, expert_id{e}) != kept) continue;
        std::vector<float> a(row.size()), b(row.size());
        model->run_expert(layer_id{l}, expert_id{e}, row, a);
        whole->run_expert(layer_id{l}, expert_id{e}, row, b);
        BOOST_TEST(same_bits(a.data(), b.data(), a.size()));
      }
  }
}

BOOST_AUTO_TEST_CASE(bytes_of_an_expert_are_those_of_its_packed_matrices) {
  // Mixtral: three matrices of 4096 x 14336, whole blocks and groups: 16, 8 and 4.5 bits a weight,
  // and an fp32 scale for each of the 2 * 14336 + 4096 outputs at 8 bits.
  om::model_config mixtral;
  mixtral.hidden_size = 4096;
  mixtral.intermediate_size = 14336;
  constexpr std::size_t n = 3 * 4096 * 14336;
  BOOST_TEST(om::expert_bytes(mixtral, om::precision::stored) == 2 * n);
  BOOST_TEST(om::expert_bytes(mixtral, om::precision::bf16) == 2 * n);
  BOOST_TEST(om::expert_bytes(mixtral, om::precision::int8) == n + 4 * (2 * 14336 + 4096));
  BOOST_TEST(om::expert_bytes(mixtral, om::precision::int4) == n * 9 / 16);
  for (const auto kept : {om::precision::bf16, om::precision::int8, om::precision::int4}) {
    const auto weights = numbers(40 * 24, 5);
    const om::expert_weights made(weights, weights, weights, 40, 24, {}, kept);
    BOOST_TEST(made.bytes() == om::expert_bytes(40, 24, kept));
  }
}

BOOST_AUTO_TEST_CASE(libtorch_is_refused_quantised_weights_by_name) {
  om::load_options options;
  options.device = "libtorch:cpu";
  options.expert_precision = om::precision::int4;
  fixture::check_error(om::transformer::load(fixture::tiny, options), ordermoe::errc::unsupported,
                       {"int4", "cpu", "kernels"});
  options.expert_precision = om::precision::stored;
  options.dense_precision = om::precision::int8;
  fixture::check_error(om::transformer::load(fixture::tiny, options), ordermoe::errc::unsupported,
                       {"dense", "int8", "kernels"});
  options.dense_precision = om::precision::stored;
  options.precision_of = [](layer_id, expert_id expert) {
    return expert.index() == 1 ? om::precision::int8 : om::precision::stored;
  };
  fixture::check_error(om::transformer::load(fixture::tiny, options), ordermoe::errc::unsupported,
                       {"int8", "kernels"});
}

BOOST_AUTO_TEST_CASE(precisions_are_named_and_read_back) {
  for (const auto kept : every_precision)
    BOOST_TEST((fixture::need(ordermoe::parse_precision(ordermoe::to_string(kept))) == kept));
  fixture::check_error(ordermoe::parse_precision("int3"), ordermoe::errc::usage, {"int3", "int8"});
}

BOOST_AUTO_TEST_SUITE_END()
