#include "model/calibration.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "config/position_buckets.hpp"
#include "model/architecture/routing.hpp"
#include "model/checkpoint/safetensors.hpp"
#include "model/reference.hpp"
#include "test/model/fixture.hpp"

namespace {

namespace om = ordermoe::model;
using fixture::check_error;
using fixture::tiny_model;
using ordermoe::errc;
using ordermoe::expert_id;
using ordermoe::layer_id;

constexpr std::size_t n_experts = 6;

std::vector<std::vector<std::int32_t>> documents() {
  ordermoe::random_stream random(31);
  std::vector<std::vector<std::int32_t>> made;
  for (const std::size_t length : {30, 12, 45, 2, 20}) {
    std::vector<std::int32_t> ids{1};
    while (ids.size() < length) ids.push_back(static_cast<std::int32_t>(3 + random.below(317)));
    made.push_back(std::move(ids));
  }
  return made;
}

const om::calibration_statistics& statistics() {
  static const auto made =
      fixture::need(om::calibrate(*tiny_model(), documents(), {.damage_tokens = 60}));
  return made;
}

/// Router logits of every token at a layer, in the order of the documents.
std::vector<std::vector<float>> router_logits(std::size_t layer) {
  std::vector<std::vector<float>> rows;
  for (const auto& ids : documents())
    fixture::need(om::logits(*tiny_model(), ids,
                             [&](layer_id l, std::size_t, std::span<const float> logits,
                                 std::vector<om::executed_slot>&) {
                               if (l.index() == layer)
                                 rows.emplace_back(logits.begin(), logits.end());
                             }));
  return rows;
}

/// The tiny model with all experts of a layer made equal to its first.
std::shared_ptr<const om::transformer> model_of_equal_experts(
    const fixture::scratch_folder& folder) {
  const auto source = fixture::need(om::checkpoint::open_folder(fixture::tiny));
  std::vector<om::tensor_data> tensors;
  for (const auto& [name, view] : source->tensors()) {
    const auto at = name.find(".experts.");
    const auto* content = &view;
    if (at != std::string::npos)
      content = source->find(name.substr(0, at) + ".experts.0" + name.substr(name.find(".w", at)));
    BOOST_REQUIRE(content != nullptr);
    tensors.push_back({name, view.type, view.shape, om::to_bytes(content->to_fp32(), view.type)});
  }
  std::filesystem::copy_file(fixture::tiny / "config.json", folder.path() / "config.json");
  BOOST_REQUIRE(om::write_safetensors(folder.path() / "model.safetensors", tensors));
  return fixture::need(om::transformer::load(folder.path()));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(calibration)

BOOST_AUTO_TEST_CASE(counts_add_up) {
  const auto& found = statistics();
  BOOST_TEST(found.n_tokens == 109u);
  BOOST_TEST(found.n_layers == 3u);
  for (std::size_t l = 0; l < 3; ++l) {
    const auto& layer = found.layers[l];
    const auto total = [](const auto& counts) {
      return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
    };
    BOOST_TEST(total(layer.activations) == 2 * found.n_tokens);
    BOOST_TEST(total(layer.transitions) == (l + 1 < 3 ? 4 * found.n_tokens : 0));
    std::uint64_t set_count = 0;
    std::vector<std::uint64_t> by_expert(n_experts, 0);
    for (const auto& set : layer.sets) {
      set_count += set.count;
      BOOST_TEST(std::ranges::is_sorted(set.experts));
      BOOST_TEST(std::abs(set.mean_gate[0] + set.mean_gate[1] - 1.0) < 1e-6);
      for (const auto e : set.experts) by_expert[e.index()] += set.count;
    }
    BOOST_TEST(set_count == found.n_tokens);
    BOOST_TEST(by_expert == layer.activations, boost::test_tools::per_element());
    BOOST_TEST(
        std::ranges::is_sorted(layer.sets, std::ranges::greater{}, &om::observed_set::count));
    if (l + 1 == 3) {
      BOOST_TEST(layer.set_transitions.empty());
      continue;
    }
    std::vector<std::uint64_t> leaving(layer.sets.size(), 0),
        arriving(found.layers[l + 1].sets.size(), 0);
    for (const auto& move : layer.set_transitions) {
      leaving.at(move.from) += move.count;
      arriving.at(move.to) += move.count;
    }
    for (std::size_t s = 0; s < leaving.size(); ++s) BOOST_TEST(leaving[s] == layer.sets[s].count);
    for (std::size_t s = 0; s < arriving.size(); ++s)
      BOOST_TEST(arriving[s] == found.layers[l + 1].sets[s].count);
  }
}

BOOST_AUTO_TEST_CASE(router_statistics_are_those_of_the_logits) {
  for (std::size_t l = 0; l < 3; ++l) {
    const auto rows = router_logits(l);
    BOOST_REQUIRE_EQUAL(rows.size(), statistics().n_tokens);
    std::vector<double> gram(36, 0), gate(6, 0);
    std::vector<double> regret(36, 0);
    std::vector<std::uint64_t> count(6, 0);
    for (const auto& row : rows) {
      double total = 0;
      for (const float x : row) total += std::exp(static_cast<double>(x));
      for (std::size_t a = 0; a < 6; ++a)
        for (std::size_t b = 0; b < 6; ++b) gram[a * 6 + b] += static_cast<double>(row[a]) * row[b];
      for (const auto& slot : om::choose_experts(row, 2, om::gate_rule::renormalised)) {
        const std::size_t r = slot.expert.index();
        ++count[r];
        gate[r] += slot.gate;
        for (std::size_t k = 0; k < 6; ++k)
          regret[r * 6 + k] += std::max(
              0.0, (std::exp(static_cast<double>(row[r])) - std::exp(static_cast<double>(row[k]))) /
                       total);
      }
    }
    const auto& layer = statistics().layers[l];
    const auto close = [](double a, double b) {
      return std::abs(a - b) <= 1e-9 * (1 + std::abs(b));
    };
    for (std::size_t i = 0; i < 36; ++i) {
      BOOST_TEST(close(layer.logit_gram[i], gram[i]));
      if (count[i / 6] > 0)
        BOOST_TEST(close(layer.gate_regret[i], regret[i] / static_cast<double>(count[i / 6])));
    }
    BOOST_TEST(count == layer.activations, boost::test_tools::per_element());
    for (std::size_t e = 0; e < 6; ++e)
      if (count[e] > 0)
        BOOST_TEST(close(layer.mean_gate[e], gate[e] / static_cast<double>(count[e])));
  }
}

BOOST_AUTO_TEST_CASE(the_baseline_is_the_mean_loss) {
  double nats = 0;
  std::size_t n = 0;
  for (const auto& ids : documents())
    for (const double loss : fixture::need(om::token_losses(*tiny_model(), ids))) {
      nats += loss;
      ++n;
    }
  BOOST_TEST(std::abs(statistics().baseline_nats - nats / static_cast<double>(n)) < 1e-12);
}

BOOST_AUTO_TEST_CASE(damage_is_measured_where_experts_differ) {
  const auto& found = statistics();
  BOOST_TEST(found.n_damage_tokens == 87u);
  // As far as the longest of these documents, of 45 tokens, has whole buckets.
  BOOST_TEST(found.position_damage.size() == 5u);
  for (const double factor : found.position_damage) BOOST_TEST(factor > 0.0);
  for (const auto& layer : found.layers)
    for (const auto& damage : layer.damage) {
      BOOST_TEST(damage.mean_predicted > 0.0);
      BOOST_TEST(damage.mean_divergence > 0.0);
      BOOST_TEST(damage.standard_error > 0.0);
      BOOST_TEST(std::abs(damage.coefficient - damage.mean_divergence / damage.mean_predicted) <
                 1e-9 * std::abs(damage.coefficient));
    }
}

BOOST_AUTO_TEST_CASE(equal_experts_do_no_damage) {
  const fixture::scratch_folder folder;
  const auto model = model_of_equal_experts(folder);
  const auto found = fixture::need(om::calibrate(*model, documents(), {.damage_tokens = 60}));
  for (const auto& layer : found.layers) {
    const auto& damage =
        layer.damage[static_cast<std::size_t>(ordermoe::loss_metric::router_logit)];
    BOOST_TEST(damage.mean_predicted > 0.0);
    BOOST_TEST(damage.mean_divergence == 0.0);
    BOOST_TEST(damage.coefficient == 0.0);
  }
}

// With two experts a token it is the one with the lower gate, whichever draw.
BOOST_AUTO_TEST_CASE(a_slot_left_out_does_what_the_model_does_without_it) {
  const auto& found = statistics();
  for (std::size_t l = 0; l < found.n_layers; ++l) {
    double divergence = 0, predicted = 0, n_predicted = 0;
    for (std::size_t d = 0; d < 3; ++d) {
      const auto ids = documents()[d];
      const auto exact = fixture::need(om::logits(*tiny_model(), ids));
      const auto without = fixture::need(om::logits(
          *tiny_model(), ids,
          [&](layer_id layer, std::size_t position, std::span<const float>,
              std::vector<om::executed_slot>& slots) {
            if (layer.index() != l) return;
            const auto last = slots[1].gate <= slots[0].gate ? 1 : 0;
            const double gate = slots[static_cast<std::size_t>(last)].gate;
            if (position + 1 < ids.size())
              predicted += gate * gate *
                           found.position_damage[std::min(ordermoe::position_bucket(position),
                                                          found.position_damage.size() - 1)];
            slots.erase(slots.begin() + last);
            slots[0].gate = 1;
          }));
      const auto n = exact.size() / ids.size();
      for (std::size_t i = 0; i + 1 < ids.size(); ++i)
        divergence += om::kl_divergence(std::span<const float>(exact).subspan(i * n, n),
                                        std::span<const float>(without).subspan(i * n, n));
      n_predicted += static_cast<double>(ids.size() - 1);
    }
    const auto& left_out = found.layers[l].left_out;
    BOOST_TEST(left_out.mean_divergence == divergence / n_predicted,
               boost::test_tools::tolerance(1e-4));
    BOOST_TEST(left_out.coefficient == divergence / predicted, boost::test_tools::tolerance(1e-4));
    BOOST_TEST(left_out.standard_error > 0.0);
  }
}

// With two experts a token it is the one with the lower gate, whichever draw.
BOOST_AUTO_TEST_CASE(what_runs_within_a_prompt_does_what_the_model_does_behind_it) {
  const auto& found = statistics();
  // The longest of these documents has 45 tokens, of which a prompt may have 22.
  BOOST_REQUIRE(found.unread.size() == 5u);
  for (const std::size_t bucket : {2, 3, 4}) {
    const std::size_t n_unread = (1u << bucket) - 1;
    double divergence = 0, predicted = 0, n_behind = 0;
    for (std::size_t d = 0; d < 3; ++d) {
      const auto ids = documents()[d];
      if (ids.size() / 2 < n_unread) continue;
      const auto exact = fixture::need(om::logits(*tiny_model(), ids));
      const auto without = fixture::need(
          om::logits(*tiny_model(), ids,
                     [&](layer_id layer, std::size_t position, std::span<const float>,
                         std::vector<om::executed_slot>& slots) {
                       if (position >= n_unread) return;
                       const auto last = slots[1].gate <= slots[0].gate ? 1 : 0;
                       const double gate = slots[static_cast<std::size_t>(last)].gate;
                       predicted += gate * gate * found.layers[layer.index()].left_out.coefficient;
                       slots.erase(slots.begin() + last);
                       slots[0].gate = 1;
                     }));
      const auto n = exact.size() / ids.size();
      for (std::size_t i = n_unread; i + 1 < ids.size(); ++i)
        divergence += om::kl_divergence(std::span<const float>(exact).subspan(i * n, n),
                                        std::span<const float>(without).subspan(i * n, n));
      n_behind += static_cast<double>(ids.size() - 1 - n_unread);
    }
    const auto& left_out = found.unread[bucket].left_out;
    BOOST_TEST(left_out.mean_divergence == divergence / n_behind,
               boost::test_tools::tolerance(1e-4));
    BOOST_TEST(left_out.coefficient == divergence / predicted, boost::test_tools::tolerance(1e-4));
    BOOST_TEST(left_out.standard_error > 0.0);
    const auto& substituted = found.unread[bucket].substituted;
    BOOST_TEST(substituted.mean_predicted > 0.0);
    BOOST_TEST(substituted.mean_divergence > 0.0);
    BOOST_TEST(substituted.coefficient != left_out.coefficient);
  }
  for (const std::size_t bucket : {0, 1})
    BOOST_TEST(found.unread[bucket].left_out.coefficient == found.unread[2].left_out.coefficient);
}

// D^2 of a copy, spelt out on the rows that the router sends to each expert.
BOOST_AUTO_TEST_CASE(a_coarser_copy_is_as_far_as_its_outputs_and_the_same_weights_are_no_distance) {
  om::load_options loading;
  loading.expert_precision = ordermoe::precision::int4;
  const auto coarse = fixture::need(om::transformer::load(fixture::tiny, loading));
  om::calibration_options options{.damage_tokens = 60};
  options.copies = {om::copy_of(ordermoe::precision::int8, tiny_model()),
                    om::copy_of(ordermoe::precision::int4, coarse)};
  const auto found = fixture::need(om::calibrate(*tiny_model(), documents(), options));
  const auto& config = tiny_model()->config();
  for (std::size_t l = 0; l < config.n_layers; ++l) {
    const auto& layer = found.layers[l];
    BOOST_TEST_REQUIRE(layer.copies.size() == 2u);
    for (const double d : layer.copies[0].distance) BOOST_TEST(d == 0.0);
    BOOST_TEST(layer.copies[0].damage.mean_predicted == 0.0);
    BOOST_TEST(layer.copies[0].damage.mean_divergence == 0.0);
    BOOST_TEST(layer.copies[1].damage.mean_predicted > 0.0);
    BOOST_TEST(layer.copies[1].damage.mean_divergence > 0.0);
  }
  std::vector<double> distance(n_experts, 0), output(n_experts, 0);
  for (const auto& ids : documents()) {
    std::vector<float> hidden(ids.size() * config.hidden_size), normed(hidden.size());
    std::vector<float> logits(ids.size() * n_experts);
    tiny_model()->embed(ids, hidden);
    auto cache = tiny_model()->make_cache(layer_id{0u}, ids.size());
    std::vector<om::attention_row> rows;
    for (std::size_t i = 0; i < ids.size(); ++i) rows.push_back({&cache, i});
    tiny_model()->attend(layer_id{0u}, rows, hidden);
    tiny_model()->route(layer_id{0u}, hidden, normed, logits);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto x =
          std::span<const float>(normed).subspan(i * config.hidden_size, config.hidden_size);
      std::vector<double> sum(config.hidden_size, 0);
      const auto slots = om::choose_experts(
          std::span<const float>(logits).subspan(i * n_experts, n_experts), 2, config.gates);
      for (const auto& slot : slots) {
        std::vector<float> fine(config.hidden_size), rough(config.hidden_size);
        tiny_model()->run_expert(layer_id{0u}, slot.expert, x, fine);
        coarse->run_expert(layer_id{0u}, slot.expert, x, rough);
        for (std::size_t c = 0; c < fine.size(); ++c) {
          distance[slot.expert.index()] += std::pow(static_cast<double>(fine[c]) - rough[c], 2);
          sum[c] += static_cast<double>(slot.gate) * fine[c];
        }
      }
      for (const auto& slot : slots)
        for (const double y : sum) output[slot.expert.index()] += y * y;
    }
  }
  for (std::size_t e = 0; e < n_experts; ++e)
    if (output[e] > 0)
      BOOST_TEST(found.layers[0].copies[1].distance[e] == std::sqrt(distance[e] / output[e]),
                 boost::test_tools::tolerance(1e-5));
}

BOOST_AUTO_TEST_CASE(the_same_seed_repeats_and_another_draws_other_experts) {
  const auto again =
      fixture::need(om::calibrate(*tiny_model(), documents(), {.damage_tokens = 60}));
  const auto other =
      fixture::need(om::calibrate(*tiny_model(), documents(), {.damage_tokens = 60, .seed = 2}));
  const auto& first = statistics().layers[1].damage[0];
  BOOST_TEST(again.layers[1].damage[0].coefficient == first.coefficient);
  BOOST_TEST(other.layers[1].damage[0].coefficient != first.coefficient);
  BOOST_TEST(other.layers[1].logit_gram == statistics().layers[1].logit_gram,
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(progress_rises_to_one_and_a_stop_is_an_error) {
  double last = 0;
  om::calibration_options options{.damage_tokens = 30};
  options.progress = [&](double share) {
    BOOST_TEST(share >= last);
    BOOST_TEST(share <= 1.0);
    last = share;
  };
  fixture::need(om::calibrate(*tiny_model(), documents(), options));
  BOOST_TEST(last == 1.0);
  int asked = 0;
  options.progress = {};
  options.should_stop = [&] { return ++asked > 7; };
  check_error(om::calibrate(*tiny_model(), documents(), options), errc::interrupted, {});
}

BOOST_AUTO_TEST_CASE(documents_that_do_not_fit_are_refused_by_number) {
  const auto refuse = [](const std::vector<std::int32_t>& bad, const std::string& word) {
    const std::vector<std::vector<std::int32_t>> both{{1, 2, 3}, bad};
    check_error(om::calibrate(*tiny_model(), both), errc::out_of_range, {"document 1", word});
  };
  refuse({1}, "1 tokens");
  refuse(std::vector<std::int32_t>(65, 3), "65 tokens");
  refuse({1, 320}, "320");
  refuse({1, -7}, "-7");
  check_error(om::calibrate(*tiny_model(), {}), errc::out_of_range, {"no calibration document"});
}

BOOST_AUTO_TEST_SUITE_END()
