#include "model/calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>

#include "config/position_buckets.hpp"
#include "config/random.hpp"
#include "model/architecture/routing.hpp"
#include "model/damage_samples.hpp"
#include "model/forward.hpp"
#include "model/replaced_experts.hpp"
#include "model/sampling.hpp"

namespace ordermoe::model {

namespace {

using set_key = std::vector<std::uint32_t>;

/// Sums over tokens at one layer, from which layer_statistics are made.
struct layer_sums {
  explicit layer_sums(std::size_t n, std::size_t n_copies)
      : copies(n_copies, copy_sums{std::vector<double>(n), std::vector<double>(n)}),
        gram(n * n),
        transitions(n * n),
        routed_regret(n * n),
        all_regret(n * n),
        activations(n),
        gate(n),
        squared_gate(n),
        routed_output(n) {}

  /// Squared distances of each expert to a coarser copy of it.
  struct copy_sums {
    std::vector<double> routed, all;
  };
  std::vector<copy_sums> copies;
  std::vector<double> gram;
  std::vector<std::uint64_t> transitions;
  std::vector<double> routed_regret, all_regret;
  std::vector<std::uint64_t> activations;
  std::vector<double> gate, squared_gate, routed_output;
  double all_output = 0;
  std::uint64_t rows = 0;  ///< That ran experts here.
  struct set_sum {
    std::uint64_t count = 0;
    std::vector<double> gate;
  };
  std::map<set_key, set_sum> sets;
  std::map<std::pair<set_key, set_key>, std::uint64_t> set_transitions;
};

double squared_distance(const float* a, const float* b, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += d * d;
  }
  return sum;
}

/// One document's state before the experts of one layer: everything that a substitution there
/// starts from.
struct before_experts {
  std::vector<float> hidden;  ///< [n, hidden_size], attention included.
  std::vector<float> normed;  ///< [n, hidden_size]
  std::vector<float> logits;  ///< [n, n_experts]
  slot_table routed;
};

/// `hidden` are all rows of a document; those that run no experts at this layer have an empty list
/// of slots.
before_experts prepare(const transformer& model, layer_id layer, std::size_t prompt,
                       std::span<const float> hidden) {
  const model_config& config = model.config();
  const std::size_t n = hidden.size() / config.hidden_size;
  before_experts state;
  state.hidden.assign(hidden.begin(), hidden.end());
  state.normed.resize(hidden.size());
  state.logits.resize(n * config.n_experts);
  state.routed.resize(n);
  kv_cache cache = model.make_cache(layer, n);
  const auto rows = rows_at(config, layer, cache, {0, prompt}, n);
  const auto here = std::span(state.hidden).first(rows.size() * config.hidden_size);
  const auto scores = std::span(state.logits).first(rows.size() * config.n_experts);
  model.attend(layer, rows, here);
  model.route(layer, rows, here, std::span(state.normed).first(here.size()), scores);
  for (std::size_t i = 0; i < rows.size(); ++i)
    state.routed[i] = routed_slots(scores.subspan(i * config.n_experts, config.n_experts), config);
  return state;
}

set_key key_of(const std::vector<executed_slot>& slots) {
  set_key key;
  for (const auto& slot : slots) key.push_back(slot.expert.value);
  std::ranges::sort(key);
  return key;
}

/// Adds one document at one layer to the sums; returns the hidden state after the layer.
std::vector<float> observe(const transformer& model, layer_id layer, const before_experts& state,
                           std::span<const coarser_copy> copies, layer_sums& sums) {
  const model_config& config = model.config();
  const std::size_t n_experts = config.n_experts;
  const std::size_t width = config.hidden_size;
  const std::size_t n = state.routed.size();
  std::vector<std::vector<float>> outputs(n_experts, std::vector<float>(n * width));
  std::vector<expert_rows> work;
  for (std::size_t e = 0; e < n_experts; ++e)
    work.push_back({expert_id{e}, state.normed, outputs[e]});
  model.run_experts(layer, work);
  std::vector<std::vector<float>> coarser_outputs(copies.empty() ? 0 : n_experts,
                                                  std::vector<float>(n * width));
  for (std::size_t e = 0; e < coarser_outputs.size(); ++e) work[e].output = coarser_outputs[e];
  for (std::size_t c = 0; c < copies.size(); ++c) {
    copies[c].run(layer, work);
    for (std::size_t e = 0; e < n_experts; ++e) {
      const auto& coarser = coarser_outputs[e];
      for (std::size_t i = 0; i < n; ++i) {
        const auto& slots = state.routed[i];
        if (slots.empty()) continue;
        const double d =
            squared_distance(outputs[e].data() + i * width, coarser.data() + i * width, width);
        sums.copies[c].all[e] += d;
        if (std::ranges::any_of(slots, [&](const auto& slot) { return slot.expert.index() == e; }))
          sums.copies[c].routed[e] += d;
      }
    }
  }

  std::vector<float> hidden = state.hidden;
  std::vector<double> p(n_experts);
  std::vector<float> block_output(width);
  for (std::size_t i = 0; i < n; ++i) {
    const auto logits = std::span<const float>(state.logits).subspan(i * n_experts, n_experts);
    const auto& slots = state.routed[i];
    if (slots.empty()) continue;
    ++sums.rows;
    softmax(logits, p);
    for (std::size_t a = 0; a < n_experts; ++a)
      for (std::size_t b = 0; b < n_experts; ++b)
        sums.gram[a * n_experts + b] +=
            static_cast<double>(logits[a]) * static_cast<double>(logits[b]);

    std::vector<float> gates;
    std::vector<const float*> parts;
    for (const auto& slot : slots) {
      gates.push_back(slot.gate);
      parts.push_back(outputs[slot.expert.index()].data() + i * width);
    }
    add_slots(std::span(hidden).subspan(i * width, width), gates, parts);
    weigh_slots(block_output, gates, parts);
    double output_norm = 0;
    for (const float x : block_output) output_norm += static_cast<double>(x) * x;
    sums.all_output += output_norm;

    for (std::size_t a = 0; a < n_experts; ++a)
      for (std::size_t b = 0; b < n_experts; ++b)
        sums.all_regret[a * n_experts + b] += std::max(0.0, p[a] - p[b]);
    for (const auto& slot : slots) {
      const std::size_t r = slot.expert.index();
      ++sums.activations[r];
      sums.gate[r] += slot.gate;
      sums.squared_gate[r] += static_cast<double>(slot.gate) * slot.gate;
      sums.routed_output[r] += output_norm;
      for (std::size_t b = 0; b < n_experts; ++b)
        sums.routed_regret[r * n_experts + b] += std::max(0.0, p[r] - p[b]);
    }
    const set_key key = key_of(slots);
    auto& set = sums.sets[key];
    set.gate.resize(key.size());
    ++set.count;
    for (const auto& slot : slots) {
      const auto member = std::ranges::find(key, slot.expert.value) - key.begin();
      set.gate[static_cast<std::size_t>(member)] += slot.gate;
    }
  }
  return hidden;
}

void observe_transitions(const slot_table& here, const slot_table& next, std::size_t n_experts,
                         layer_sums& sums) {
  for (std::size_t i = 0; i < here.size(); ++i) {
    if (here[i].empty() || next[i].empty()) continue;
    for (const auto& from : here[i])
      for (const auto& to : next[i])
        ++sums.transitions[from.expert.index() * n_experts + to.expert.index()];
    ++sums.set_transitions[{key_of(here[i]), key_of(next[i])}];
  }
}

/// Sets of one layer, most frequent first, and where each key went.
std::map<set_key, std::size_t> rank_sets(const layer_sums& sums, std::vector<observed_set>& sets) {
  std::vector<const set_key*> order;
  for (const auto& [key, sum] : sums.sets) order.push_back(&key);
  std::ranges::stable_sort(order, [&](const set_key* a, const set_key* b) {
    return sums.sets.at(*a).count > sums.sets.at(*b).count;
  });
  std::map<set_key, std::size_t> index;
  for (const set_key* key : order) {
    const auto& sum = sums.sets.at(*key);
    observed_set set;
    set.count = sum.count;
    for (std::size_t m = 0; m < key->size(); ++m) {
      set.experts.push_back(expert_id{(*key)[m]});
      set.mean_gate.push_back(sum.gate[m] / static_cast<double>(sum.count));
    }
    index[*key] = sets.size();
    sets.push_back(std::move(set));
  }
  return index;
}

layer_statistics conclude(const layer_sums& sums, std::size_t n_experts,
                          std::span<const coarser_copy> copies) {
  layer_statistics layer;
  for (const auto& copy : copies) layer.copies.push_back({copy.kept, {}, {}});
  layer.logit_gram = sums.gram;
  layer.activations = sums.activations;
  layer.gate_regret.resize(n_experts * n_experts);
  layer.mean_gate.resize(n_experts);
  layer.mean_squared_gate.resize(n_experts);
  for (std::size_t r = 0; r < n_experts; ++r) {
    const bool routed = sums.activations[r] > 0;
    const auto count =
        static_cast<double>(routed ? sums.activations[r] : std::max<std::uint64_t>(1, sums.rows));
    const double output = routed ? sums.routed_output[r] : sums.all_output;
    if (routed) {
      layer.mean_gate[r] = sums.gate[r] / count;
      layer.mean_squared_gate[r] = sums.squared_gate[r] / count;
    }
    for (std::size_t k = 0; k < n_experts; ++k) {
      const std::size_t at = r * n_experts + k;
      const double regret = routed ? sums.routed_regret[at] : sums.all_regret[at];
      layer.gate_regret[at] = regret / count;
    }
    for (std::size_t c = 0; c < sums.copies.size(); ++c) {
      const double distance = routed ? sums.copies[c].routed[r] : sums.copies[c].all[r];
      layer.copies[c].distance.push_back(output > 0 ? std::sqrt(distance / output) : 0);
    }
  }
  return layer;
}

/// A document as rows; an encoder-decoder has its first half in the encoder.
teacher_forced rows_of(const model_config& config, std::span<const std::int32_t> ids) {
  return as_rows(config, ids, std::max<std::size_t>(1, ids.size() / 2));
}

/// A document's hidden state after the last layer, from the one before `layer`.
std::vector<float> run_from(const transformer& model, std::size_t layer, std::vector<float> hidden,
                            const teacher_forced& text) {
  const model_config& config = model.config();
  for (std::size_t l = layer; l < config.n_layers; ++l) {
    kv_cache cache = model.make_cache(layer_id{l}, text.ids.size());
    run_layer(model, layer_id{l}, cache, {0, text.prompt}, hidden);
  }
  return hidden;
}

result<void> check_documents(const model_config& config,
                             std::span<const std::vector<std::int32_t>> documents) {
  if (documents.empty())
    return error{errc::out_of_range, "there is no calibration document; give at least one"};
  for (std::size_t d = 0; d < documents.size(); ++d) {
    const auto& ids = documents[d];
    if (ids.size() < 2 || ids.size() > config.max_context)
      return error{errc::out_of_range,
                   fmt::format("calibration document {} has {} tokens, allowed are 2 to {}; split "
                               "or drop it",
                               d, ids.size(), config.max_context)};
    for (const std::int32_t id : ids)
      if (id < 0 || static_cast<std::size_t>(id) >= config.vocab_size)
        return error{errc::out_of_range,
                     fmt::format("calibration document {} has the id {}, allowed are 0 to {}; use "
                                 "the model's own tokenizer",
                                 d, id, config.vocab_size - 1)};
  }
  return {};
}

/// One calibration, first of what router and experts do, then of what substituting does.
class calibration_run {
 public:
  calibration_run(const transformer& model, std::span<const std::vector<std::int32_t>> documents,
                  const calibration_options& options)
      : model_(model),
        config_(model.config()),
        documents_(documents),
        options_(options),
        sums_(config_.n_layers, layer_sums(config_.n_experts, options.copies.size())),
        samples_(config_.n_layers),
        copy_samples_(config_.n_layers,
                      std::vector<std::vector<damage_sample>>(options.copies.size())),
        left_out_samples_(config_.n_layers),
        n_left_out_(counts_to_leave_out(config_.top_k, options.damage_draws)) {
    found_.n_layers = config_.n_layers;
    found_.n_experts = config_.n_experts;
    found_.top_k = config_.top_k;
    for (const auto& ids : documents) {
      found_.n_tokens += ids.size();
      if (found_.n_damage_tokens >= options.damage_tokens) continue;
      found_.n_damage_tokens += ids.size();
      longest_measured_ = std::max(longest_measured_, ids.size());
      // Of an encoder-decoder no substitute has its effect where it runs.
      if (!config_.encoder_decoder)
        n_buckets_ = std::max(n_buckets_, n_position_buckets(ids.size()));
      ++n_damage_documents_;
    }
  }

  result<calibration_statistics> run() {
    const error stopped{errc::interrupted, "calibration was stopped; nothing of it is kept"};
    for (const auto& ids : documents_) {
      if (stopping()) return stopped;
      observe_document(ids);
    }
    conclude_observations();
    for (std::size_t d = 0; d < n_damage_documents_; ++d)
      if (!measure_document(documents_[d])) return stopped;
    conclude_damage();
    for (std::size_t d = 0; d < n_damage_documents_; ++d)
      if (!measure_unread(documents_[d])) return stopped;
    conclude_unread();
    if (options_.progress) options_.progress(1.0);
    return std::move(found_);
  }

 private:
  bool stopping() const { return options_.should_stop && options_.should_stop(); }

  /// Work in rows through a layer, roughly: observing runs every expert, a damage pass the rest of
  /// the layers.
  double observing() const {
    return static_cast<double>(found_.n_tokens) * static_cast<double>(config_.n_layers) *
           static_cast<double>(config_.n_experts) / static_cast<double>(config_.top_k);
  }
  double measuring() const {
    const auto n_layers = static_cast<double>(config_.n_layers);
    const auto passes =
        static_cast<double>(n_loss_metrics * options_.damage_draws + n_left_out_.size());
    const auto of_unread = static_cast<double>(
        1 + n_unread_buckets(longest_measured_) * (options_.damage_draws + n_left_out_.size()));
    return static_cast<double>(found_.n_damage_tokens) *
           (n_layers * (n_layers + 1) / 2 * passes + n_layers * of_unread);
  }
  void advance(double rows) {
    done_ += rows;
    if (options_.progress) options_.progress(std::min(1.0, done_ / (observing() + measuring())));
  }

  std::vector<float> embedded(const teacher_forced& text) const {
    std::vector<float> hidden(text.ids.size() * config_.hidden_size);
    model_.embed(text.ids, hidden);
    return hidden;
  }

  void observe_document(const std::vector<std::int32_t>& ids) {
    const auto text = rows_of(config_, ids);
    auto hidden = embedded(text);
    slot_table before;
    for (std::size_t l = 0; l < config_.n_layers; ++l) {
      const auto state = prepare(model_, layer_id{l}, text.prompt, hidden);
      hidden = observe(model_, layer_id{l}, state, options_.copies, sums_[l]);
      if (l > 0) observe_transitions(before, state.routed, config_.n_experts, sums_[l - 1]);
      before = state.routed;
    }
    for (const double loss : target_losses(model_, text, hidden)) baseline_ += loss;
    n_predicted_ += text.targets.size();
    advance(observing() * static_cast<double>(ids.size()) / static_cast<double>(found_.n_tokens));
  }

  void conclude_observations() {
    found_.baseline_nats = baseline_ / static_cast<double>(n_predicted_);
    std::vector<std::map<set_key, std::size_t>> set_index(config_.n_layers);
    for (std::size_t l = 0; l < config_.n_layers; ++l) {
      found_.layers.push_back(conclude(sums_[l], config_.n_experts, options_.copies));
      set_index[l] = rank_sets(sums_[l], found_.layers[l].sets);
      similarity_.push_back(cosines(found_.layers[l].logit_gram, config_.n_experts));
    }
    for (std::size_t l = 0; l + 1 < config_.n_layers; ++l) {
      auto& layer = found_.layers[l];
      layer.transitions = sums_[l].transitions;
      for (const auto& [keys, count] : sums_[l].set_transitions)
        layer.set_transitions.push_back(
            {set_index[l].at(keys.first), set_index[l + 1].at(keys.second), count});
      std::ranges::sort(layer.set_transitions, [](const auto& a, const auto& b) {
        return std::pair(a.from, a.to) < std::pair(b.from, b.to);
      });
    }
  }

  /// False where it was stopped.
  bool measure_document(const std::vector<std::int32_t>& ids) {
    const auto text = rows_of(config_, ids);
    const auto n_targets = static_cast<double>(text.targets.size());
    measured_once_ += n_targets;
    measured_ += n_targets * static_cast<double>(options_.damage_draws);
    auto hidden = embedded(text);
    std::vector<before_experts> states;
    for (std::size_t l = 0; l < config_.n_layers; ++l) {
      states.push_back(prepare(model_, layer_id{l}, text.prompt, hidden));
      hidden = states[l].hidden;
      execute_slots(model_, layer_id{l}, states[l].normed, states[l].routed, hidden);
    }
    const auto exact = target_logits(model_, text, hidden);
    for (std::size_t l = 0; l < config_.n_layers; ++l) {
      for (std::size_t c = 0; c < options_.copies.size(); ++c) {
        if (stopping()) return false;
        copy_samples_[l][c].push_back(copy_damage(l, c, states[l], text, exact));
      }
      for (const auto n_out : n_left_out_) {
        if (stopping()) return false;
        left_out_samples_[l].push_back(left_out_damage(l, n_out, states[l], text, exact));
        advance(static_cast<double>(ids.size() * (config_.n_layers - l)));
      }
      for (std::size_t draw = 0; draw < options_.damage_draws; ++draw) {
        if (stopping()) return false;
        const auto available = draw_available(config_.n_experts, options_.seed, l, draw);
        for (std::size_t m = 0; m < n_loss_metrics; ++m)
          samples_[l][m].push_back(substitution_damage(l, static_cast<loss_metric>(m), available,
                                                       states[l], text, exact));
        advance(static_cast<double>(ids.size() * n_loss_metrics * (config_.n_layers - l)));
      }
    }
    return true;
  }

  /// Rows whose loss counts: a decoder's last position predicts nothing.
  static std::size_t n_counted(const teacher_forced& text) {
    return text.first + text.targets.size();
  }

  std::size_t bucket_of(std::size_t row) const {
    return std::min(position_bucket(row), n_buckets_ - 1);
  }

  /// Of what the state before `layer` leads to from the exact logits.
  void add_divergence(std::size_t layer, std::vector<float> changed, const teacher_forced& text,
                      std::span<const float> exact, damage_sample& sample) const {
    const auto logits =
        target_logits(model_, text, run_from(model_, layer, std::move(changed), text));
    const auto n = config_.vocab_size;
    for (std::size_t i = 0; i < text.targets.size(); ++i)
      sample.divergence[bucket_of(text.first + i)] +=
          kl_divergence(exact.subspan(i * n, n), std::span<const float>(logits).subspan(i * n, n));
  }

  damage_sample copy_damage(std::size_t layer, std::size_t copy, const before_experts& state,
                            const teacher_forced& text, std::span<const float> exact) const {
    damage_sample sample(n_buckets_);
    const auto& distance = found_.layers[layer].copies[copy].distance;
    for (std::size_t i = 0; i < n_counted(text); ++i)
      for (const auto& slot : state.routed[i])
        sample.predicted[bucket_of(i)] += std::pow(slot.gate * distance[slot.expert.index()], 2);
    std::vector<float> changed = state.hidden;
    execute_slots(config_, options_.copies[copy].run, layer_id{layer}, state.normed, state.routed,
                  changed);
    add_divergence(layer + 1, std::move(changed), text, exact, sample);
    return sample;
  }

  damage_sample left_out_damage(std::size_t layer, std::size_t n_out, const before_experts& state,
                                const teacher_forced& text, std::span<const float> exact) const {
    slot_table slots = state.routed;
    damage_sample sample(n_buckets_);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].size() <= n_out) continue;
      const auto logits =
          std::span<const float>(state.logits).subspan(i * config_.n_experts, config_.n_experts);
      const double predicted = leave_out(n_out, config_.gates, logits, slots[i]);
      if (i < n_counted(text)) sample.predicted[bucket_of(i)] += predicted;
    }
    std::vector<float> changed = state.hidden;
    execute_slots(model_, layer_id{layer}, state.normed, slots, changed);
    add_divergence(layer + 1, std::move(changed), text, exact, sample);
    return sample;
  }

  damage_sample substitution_damage(std::size_t layer, loss_metric kind,
                                    const std::vector<char>& available, const before_experts& state,
                                    const teacher_forced& text,
                                    std::span<const float> exact) const {
    const std::size_t n_experts = config_.n_experts;
    slot_table slots = state.routed;
    damage_sample sample(n_buckets_);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].empty()) continue;
      const auto logits = std::span<const float>(state.logits).subspan(i * n_experts, n_experts);
      const double predicted =
          substitute(kind, config_.gates, similarity_[layer], available, logits, slots[i]);
      if (i < n_counted(text)) sample.predicted[bucket_of(i)] += predicted;
    }
    std::vector<float> changed = state.hidden;
    execute_slots(model_, layer_id{layer}, state.normed, slots, changed);
    add_divergence(layer + 1, std::move(changed), text, exact, sample);
    return sample;
  }

  void conclude_damage() {
    constexpr auto nats = static_cast<std::size_t>(loss_metric::token_gate);
    std::vector<std::vector<damage_sample>> by_layer;
    for (const auto& layer : samples_) by_layer.push_back(layer[nats]);
    const auto factors = position_factors(by_layer);
    if (n_buckets_ > 1) found_.position_damage = factors;
    // The paper's loss knows no positions.
    const std::vector<double> alike(n_buckets_, 1);
    for (std::size_t l = 0; l < config_.n_layers; ++l) {
      for (std::size_t m = 0; m < n_loss_metrics; ++m)
        found_.layers[l].damage[m] =
            conclude(samples_[l][m], m == nats ? factors : alike, measured_);
      const auto n_passes = static_cast<double>(n_left_out_.size());
      found_.layers[l].left_out =
          conclude(left_out_samples_[l], factors, measured_once_ * n_passes);
      for (std::size_t c = 0; c < options_.copies.size(); ++c)
        found_.layers[l].copies[c].damage = conclude(copy_samples_[l][c], factors, measured_once_);
    }
  }

  /// Has a row at a layer run something else than it is routed to; returns the nats that are predicted of it.
  using replacement = std::function<double(std::size_t layer, std::span<const float> logits,
                                           std::vector<executed_slot>& slots)>;

  /// Of what the first `n_unread` rows run in place of their experts, in all layers, and what that does behind them.
  damage_sample unread_damage(const teacher_forced& text, std::size_t n_unread,
                              std::span<const float> exact, const replacement& replace) const {
    damage_sample sample(1);
    auto hidden = embedded(text);
    for (std::size_t l = 0; l < config_.n_layers; ++l) {
      auto state = prepare(model_, layer_id{l}, text.prompt, hidden);
      for (std::size_t i = 0; i < n_unread; ++i) {
        if (state.routed[i].empty()) continue;
        const auto logits =
            std::span<const float>(state.logits).subspan(i * config_.n_experts, config_.n_experts);
        sample.predicted[0] += replace(l, logits, state.routed[i]);
      }
      hidden = std::move(state.hidden);
      execute_slots(model_, layer_id{l}, state.normed, state.routed, hidden);
    }
    const auto logits = target_logits(model_, text, hidden);
    const auto n = config_.vocab_size;
    for (std::size_t i = n_unread; i < text.targets.size(); ++i)
      sample.divergence[0] +=
          kl_divergence(exact.subspan(i * n, n), std::span<const float>(logits).subspan(i * n, n));
    return sample;
  }

  /// The third, which begins at position 3: of shorter prompts little is predicted.
  static constexpr std::size_t first_unread_bucket = 2;
  static constexpr std::size_t n_unread_of(std::size_t bucket) {
    return (std::size_t{1} << bucket) - 1;
  }
  /// Up to half of a document.
  std::size_t n_unread_buckets(std::size_t n_positions) const {
    if (config_.encoder_decoder) return 0;
    const auto n = position_bucket(n_positions / 2) + 1;
    return n > first_unread_bucket ? n : 0;
  }

  /// False where it was stopped.
  bool measure_unread(const std::vector<std::int32_t>& ids) {
    const auto n_buckets = n_unread_buckets(ids.size());
    if (n_buckets == 0) return true;
    if (stopping()) return false;
    const auto text = rows_of(config_, ids);
    const auto exact = target_logits(model_, text, run_from(model_, 0, embedded(text), text));
    const auto pass = static_cast<double>(ids.size() * config_.n_layers);
    advance(pass);
    unread_.resize(std::max(unread_.size(), n_buckets));
    for (auto b = first_unread_bucket; b < n_buckets; ++b) {
      const auto n_unread = n_unread_of(b);
      unread_[b].n_behind += static_cast<double>(text.targets.size() - n_unread);
      for (std::size_t draw = 0; draw < options_.damage_draws; ++draw) {
        if (stopping()) return false;
        unread_[b].substituted.push_back(unread_substituted(text, n_unread, exact, draw));
        advance(pass);
      }
      for (const auto n_out : n_left_out_) {
        if (stopping()) return false;
        unread_[b].left_out.push_back(unread_left_out(text, n_unread, exact, n_out));
        advance(pass);
      }
    }
    return true;
  }

  damage_sample unread_substituted(const teacher_forced& text, std::size_t n_unread,
                                   std::span<const float> exact, std::size_t draw) const {
    return unread_damage(
        text, n_unread, exact,
        [&](std::size_t layer, std::span<const float> logits, std::vector<executed_slot>& slots) {
          constexpr auto nats = loss_metric::token_gate;
          const auto available = draw_available(config_.n_experts, options_.seed, layer, draw);
          return found_.layers[layer].damage[static_cast<std::size_t>(nats)].coefficient *
                 substitute(nats, config_.gates, similarity_[layer], available, logits, slots);
        });
  }

  damage_sample unread_left_out(const teacher_forced& text, std::size_t n_unread,
                                std::span<const float> exact, std::size_t n_out) const {
    return unread_damage(
        text, n_unread, exact,
        [&](std::size_t layer, std::span<const float> logits, std::vector<executed_slot>& slots) {
          if (slots.size() <= n_out) return 0.0;
          return found_.layers[layer].left_out.coefficient *
                 leave_out(n_out, config_.gates, logits, slots);
        });
  }

  void conclude_unread() {
    const std::vector<double> alike(1, 1);
    for (auto b = first_unread_bucket; b < unread_.size(); ++b) {
      const auto& of = unread_[b];
      const auto n_draws = static_cast<double>(options_.damage_draws);
      const auto n_passes = static_cast<double>(n_left_out_.size());
      found_.unread.push_back({conclude(of.substituted, alike, of.n_behind * n_draws),
                               conclude(of.left_out, alike, of.n_behind * n_passes)});
    }
    if (!found_.unread.empty())
      found_.unread.insert(found_.unread.begin(), first_unread_bucket, found_.unread.front());
  }

  const transformer& model_;
  const model_config& config_;
  std::span<const std::vector<std::int32_t>> documents_;
  const calibration_options& options_;
  calibration_statistics found_;
  std::size_t n_damage_documents_ = 0;
  std::size_t longest_measured_ = 0;  ///< Of these.
  std::size_t n_buckets_ = 1;
  std::vector<layer_sums> sums_;
  double baseline_ = 0;
  std::uint64_t n_predicted_ = 0;
  std::vector<std::vector<double>> similarity_;  ///< [layers] of cosines().
  std::vector<std::array<std::vector<damage_sample>, n_loss_metrics>> samples_;  ///< [layers]
  std::vector<std::vector<std::vector<damage_sample>>> copy_samples_;  ///< [layers][copies]
  std::vector<std::vector<damage_sample>> left_out_samples_;           ///< [layers]
  struct unread_samples {
    std::vector<damage_sample> substituted, left_out;
    double n_behind = 0;  ///< Tokens, once for all draws.
  };
  /// [buckets], measured from first_unread_bucket on.
  std::vector<unread_samples> unread_;
  std::vector<std::size_t> n_left_out_;      ///< Slots of a row that each pass leaves out.
  double measured_ = 0, measured_once_ = 0;  ///< Tokens, over all draws and of one.
  double done_ = 0;
};

}  // namespace

coarser_copy copy_of(precision kept, std::shared_ptr<const transformer> model) {
  return {kept, [model = std::move(model)](layer_id layer, std::span<const expert_rows> work) {
            model->run_experts(layer, work);
          }};
}

std::vector<double> cosines(std::span<const double> gram, std::size_t n) {
  std::vector<double> similarity(n * n);
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = 0; b < n; ++b) {
      const double scale = std::sqrt(gram[a * n + a] * gram[b * n + b]);
      similarity[a * n + b] = a == b      ? 1.0
                              : scale > 0 ? std::clamp(gram[a * n + b] / scale, -1.0, 1.0)
                                          : 0.0;
    }
  return similarity;
}

result<calibration_statistics> calibrate(const transformer& model,
                                         std::span<const std::vector<std::int32_t>> documents,
                                         const calibration_options& options) {
  if (auto checked = check_documents(model.config(), documents); !checked) return checked.error();
  try {
    return calibration_run(model, documents, options).run();
  } catch (const expert_failure& failed) {
    return failed.why;
  }
}

}  // namespace ordermoe::model
