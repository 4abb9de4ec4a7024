#include "planning/strategies/measured_activation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "config/json.hpp"
#include "config/random.hpp"

namespace ordermoe::planning {

activation_statistics::activation_statistics(std::size_t n_layers, std::size_t n_experts,
                                             std::size_t top_k, double half_life_s)
    : n_experts_(n_experts), top_k_(top_k), half_life_s_(half_life_s), layers_(n_layers) {
  for (auto& layer : layers_) layer.experts.assign(n_experts, 0);
}

double weight_at_age(std::int64_t age_ns, double half_life_s) {
  constexpr double ns_per_s = 1e9;
  return age_ns <= 0 ? 1 : std::exp2(-static_cast<double>(age_ns) / ns_per_s / half_life_s);
}

void activation_statistics::fade_to(std::int64_t time_ns) {
  constexpr double most_weight = 0x1p40;
  time_ns_ = std::max(time_ns_, time_ns);
  weight_ = 1 / weight_at_age(time_ns_ - landmark_ns_, half_life_s_);
  if (weight_ > most_weight) weigh_anew();
}

/// Before numbers become too large.
void activation_statistics::weigh_anew() {
  const auto factor = weight_at_age(time_ns_ - landmark_ns_, half_life_s_);
  for (auto& counts : layers_) {
    for (auto* all : {&counts.experts, &counts.sets, &counts.steps})
      for (auto& count : *all) count *= factor;
    counts.rows *= factor;
    counts.step_rows *= factor;
  }
  landmark_ns_ = time_ns_;
  weight_ = 1;
}

namespace {

std::uint64_t hash_of(std::span<const std::uint32_t> experts) {
  std::uint64_t hash = experts.size();
  for (const auto expert : experts) hash = mix64(hash ^ (expert + 0x9e3779b97f4a7c15u));
  return hash;
}

}  // namespace

/// Where all places are taken, a set that has none takes that of the one with the least rows, and its rows: so a set with
/// more than its share of the places keeps one (Metwally, Agrawal and El Abbadi, 2005). Sets of one hash count as one.
std::size_t activation_statistics::place_of(layer_counts& counts,
                                            std::span<const std::uint32_t> targets) {
  const auto hash = hash_of(targets);
  const auto found = counts.places.find(hash);
  if (found != counts.places.end()) return found->second;
  if (counts.sets.size() < most_counted_sets) {
    counts.places.emplace(hash, static_cast<std::uint32_t>(counts.sets.size()));
    counts.members.insert(counts.members.end(), targets.begin(), targets.end());
    counts.sets.push_back(0);
    return counts.sets.size() - 1;
  }
  const auto least = std::min_element(counts.sets.begin(), counts.sets.end());
  const auto place = static_cast<std::size_t>(least - counts.sets.begin());
  auto* members = counts.members.data() + place * top_k_;
  counts.places.erase(hash_of({members, top_k_}));
  counts.places.emplace(hash, static_cast<std::uint32_t>(place));
  std::copy(targets.begin(), targets.end(), members);
  return place;
}

/// Whether a layer has no more sets than are told: n over k, until it is more.
bool activation_statistics::counts_steps() const {
  std::size_t sets = 1;
  for (std::size_t i = 0; i < std::min(top_k_, n_experts_ - top_k_) && sets <= most_told_sets; ++i)
    sets = sets * (n_experts_ - i) / (i + 1);
  return sets <= most_told_sets;
}

void activation_statistics::add_steps(std::size_t layer, std::span<const std::uint32_t> pairs) {
  ORDERMOE_CHECK(top_k_ > 0 && pairs.size() % (2 * top_k_) == 0, "a step has two sets of targets");
  if (pairs.empty() || layer == 0 || !counts_steps()) return;
  auto &from = layers_[layer - 1], &to = layers_[layer];
  const auto n = pairs.size() / (2 * top_k_);
  from.steps.resize(most_told_sets * most_told_sets);
  for (std::size_t row = 0; row < n; ++row) {
    const auto pair = pairs.subspan(row * 2 * top_k_, 2 * top_k_);
    const auto here = place_of(from, pair.first(top_k_)), next = place_of(to, pair.last(top_k_));
    from.steps[here * most_told_sets + next] += weight_;
  }
  from.step_rows += static_cast<double>(n) * weight_;
}

void activation_statistics::add(std::size_t layer, std::span<const std::uint32_t> targets) {
  ORDERMOE_CHECK(top_k_ > 0 && targets.size() % top_k_ == 0, "a row has top_k targets");
  auto& counts = layers_[layer];
  const auto n = targets.size() / top_k_;
  for (std::size_t row = 0; row < n; ++row) {
    const auto chosen = targets.subspan(row * top_k_, top_k_);
    for (const auto expert : chosen) counts.experts[expert] += weight_;
    counts.sets[place_of(counts, chosen)] += weight_;
  }
  counts.rows += static_cast<double>(n) * weight_;
  counts.seen += n;
}

void activation_statistics::restore(const measured_activation& measured) {
  landmark_ns_ = time_ns_;
  weight_ = 1;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    auto& counts = layers_[l];
    counts = {};
    counts.experts.assign(n_experts_, 0);
    if (measured.shares[l].empty()) continue;
    counts.rows = measured.rows[l];
    counts.seen = static_cast<std::uint64_t>(counts.rows);
    for (std::size_t e = 0; e < n_experts_; ++e)
      counts.experts[e] = counts.rows * static_cast<double>(top_k_) * measured.shares[l][e];
    if (measured.sets.empty()) continue;
    for (const auto& set : measured.sets[l]) {
      counts.places.emplace(hash_of(set.experts), static_cast<std::uint32_t>(counts.sets.size()));
      counts.members.insert(counts.members.end(), set.experts.begin(), set.experts.end());
      counts.sets.push_back(counts.rows * set.share());
    }
  }
  for (std::size_t l = 0; l + 1 < layers_.size() && !measured.steps.empty(); ++l)
    restore_steps(measured, l);
}

void activation_statistics::restore_steps(const measured_activation& measured, std::size_t layer) {
  if (measured.steps[layer].empty() || !counts_steps()) return;
  auto& counts = layers_[layer];
  counts.step_rows = measured.step_rows[layer];
  counts.steps.assign(most_told_sets * most_told_sets, 0);
  for (const auto& step : measured.steps[layer]) {
    const auto from = place_of(counts, step.from), to = place_of(layers_[layer + 1], step.to);
    counts.steps[from * most_told_sets + to] = counts.step_rows * step.millionths / whole_share;
  }
}

std::uint64_t activation_statistics::rows_seen() const {
  std::uint64_t least = layers_.empty() ? 0 : layers_.front().seen;
  for (const auto& layer : layers_) least = std::min(least, layer.seen);
  return least;
}

double activation_statistics::least_rows() const {
  double least = layers_.empty() ? 0 : rows(0);
  for (std::size_t l = 0; l < layers_.size(); ++l) least = std::min(least, rows(l));
  return least;
}

std::vector<double> activation_statistics::shares(std::size_t layer) const {
  auto shares = layers_[layer].experts;
  const auto total = std::accumulate(shares.begin(), shares.end(), 0.0);
  if (total <= 0) return {};
  for (auto& share : shares) share /= total;
  return shares;
}

namespace {

using set_weights = std::map<std::vector<std::uint32_t>, double>;

/// The few that are told of these sets, as shares.
std::vector<measured_set> told_sets(const set_weights& weights) {
  std::vector<std::vector<std::uint32_t>> sets;
  std::vector<double> mass;
  for (const auto& [experts, weight] : weights) {
    if (!(weight > 0)) continue;
    sets.push_back(experts);
    mass.push_back(weight);
  }
  if (sets.empty()) return {};
  const auto few = choose_representatives(sets, mass, most_told_sets);
  const auto total = std::accumulate(mass.begin(), mass.end(), 0.0);
  std::vector<double> kept_mass(few.kept.size());
  for (std::size_t s = 0; s < sets.size(); ++s) kept_mass[few.counts[s]] += mass[s];
  std::vector<measured_set> told;
  std::uint32_t left = whole_share;
  for (std::size_t i = 0; i < few.kept.size(); ++i) {
    const auto share = static_cast<std::uint32_t>(kept_mass[i] / total * whole_share);
    if (share == 0) continue;
    left -= std::min(left, share);
    told.push_back({sets[few.kept[i]], share});
  }
  std::ranges::stable_sort(told, std::ranges::greater(), &measured_set::millionths);
  told.front().millionths += left;
  return told;
}

}  // namespace

std::vector<std::uint32_t> activation_statistics::members_at(const layer_counts& counts,
                                                             std::size_t place) const {
  const auto* members = counts.members.data() + place * top_k_;
  return {members, members + top_k_};
}

namespace {

using set_pair = std::pair<std::vector<std::uint32_t>, std::vector<std::uint32_t>>;
using step_weights = std::map<set_pair, double>;

/// The most frequent.
std::vector<measured_step> told_steps(const step_weights& weights, double rows, std::size_t most) {
  std::vector<measured_step> told;
  for (const auto& [pair, weight] : weights)
    if (const auto share = static_cast<std::uint32_t>(weight / rows * whole_share); share > 0)
      told.push_back({pair.first, pair.second, share});
  std::ranges::stable_sort(told, std::ranges::greater(), &measured_step::millionths);
  if (told.size() > most) told.resize(most);
  return told;
}

/// What sets and steps come to together.
struct joint_weights {
  std::vector<set_weights> sets;
  std::vector<step_weights> steps;
  std::vector<double> step_rows;

  explicit joint_weights(std::size_t n_layers)
      : sets(n_layers), steps(n_layers), step_rows(n_layers) {}

  void add_steps(const measured_activation& part, std::size_t l) {
    step_rows[l] += part.step_rows[l];
    for (const auto& step : part.steps[l])
      steps[l][{step.from, step.to}] += part.step_rows[l] * step.millionths / whole_share;
  }

  void tell(measured_activation& into) const {
    for (const auto& layer : sets) into.sets.push_back(told_sets(layer));
    if (std::ranges::none_of(step_rows, [](double rows) { return rows > 0; })) return;
    into.step_rows = step_rows;
    into.steps.resize(sets.size());
    for (std::size_t l = 0; l + 1 < sets.size(); ++l)
      into.steps[l] = told_steps(steps[l], step_rows[l], most_told_steps / sets.size());
  }
};

}  // namespace

namespace {

void forget_little(measured_activation& of) {
  for (std::size_t l = 0; l < of.rows.size(); ++l) {
    if (of.rows[l] < least_weight) {
      of.rows[l] = 0;
      of.shares[l].clear();
      if (!of.sets.empty()) of.sets[l].clear();
    }
    if (of.steps.empty() || of.step_rows[l] >= least_weight) continue;
    of.step_rows[l] = 0;
    of.steps[l].clear();
  }
}

}  // namespace

measured_activation faded(measured_activation measured, double factor) {
  for (auto& rows : measured.rows) rows *= factor;
  for (auto& rows : measured.step_rows) rows *= factor;
  forget_little(measured);
  return measured;
}

measured_activation activation_statistics::now() const {
  measured_activation told;
  joint_weights all(layers_.size());
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const auto& counts = layers_[l];
    told.rows.push_back(rows(l));
    told.shares.push_back(shares(l));
    for (std::size_t s = 0; s < counts.sets.size(); ++s)
      all.sets[l][members_at(counts, s)] += counts.sets[s];
    all.step_rows[l] = counts.step_rows / weight_;
    for (std::size_t at = 0; at < counts.steps.size(); ++at)
      if (counts.steps[at] > 0)
        all.steps[l][{members_at(counts, at / most_told_sets),
                      members_at(layers_[l + 1], at % most_told_sets)}] +=
            counts.steps[at] / weight_;
  }
  all.tell(told);
  forget_little(told);
  return told;
}

double measured_activation::least_rows() const {
  return rows.empty() ? 0 : *std::min_element(rows.begin(), rows.end());
}

measured_activation sum_of(std::span<const measured_activation> parts, std::size_t n_layers,
                           std::size_t n_experts) {
  measured_activation all;
  all.rows.assign(n_layers, 0);
  joint_weights together(n_layers);
  for (std::size_t l = 0; l < n_layers; ++l) {
    std::vector<double> counts(n_experts);
    for (const auto& part : parts) {
      if (!part.steps.empty()) together.add_steps(part, l);
      if (part.shares[l].empty()) continue;
      all.rows[l] += part.rows[l];
      for (std::size_t e = 0; e < n_experts; ++e) counts[e] += part.rows[l] * part.shares[l][e];
      if (part.sets.empty()) continue;
      for (const auto& set : part.sets[l])
        together.sets[l][set.experts] += part.rows[l] * set.share();
    }
    if (all.rows[l] > 0)
      for (auto& count : counts) count /= all.rows[l];
    else
      counts.clear();
    all.shares.push_back(std::move(counts));
  }
  together.tell(all);
  return all;
}

std::string activation_json(const measured_activation& measured) {
  auto sets = nlohmann::ordered_json::array();
  for (const auto& layer : measured.sets) {
    auto& told = sets.emplace_back(nlohmann::ordered_json::array());
    for (const auto& set : layer) {
      told.push_back(set.experts);
      told.back().push_back(set.millionths);
    }
  }
  nlohmann::ordered_json text{
      {"rows", measured.rows}, {"shares", measured.shares}, {"sets", std::move(sets)}};
  if (!measured.steps.empty()) {
    auto& steps = text["steps"] = nlohmann::ordered_json::array();
    for (const auto& layer : measured.steps) {
      auto& told = steps.emplace_back(nlohmann::ordered_json::array());
      for (const auto& step : layer) {
        auto numbers = step.from;
        numbers.insert(numbers.end(), step.to.begin(), step.to.end());
        numbers.push_back(step.millionths);
        told.push_back(std::move(numbers));
      }
    }
    text["step_rows"] = measured.step_rows;
  }
  return text.dump();
}

namespace {

constexpr double rounding = 1e-6;

bool sums_to_one(double sum, bool is_empty) {
  return is_empty || std::abs(sum - 1) <= rounding;
}

/// Where what is read is a list of experts and a share in millionths; what is wrong is the document's problem.
std::vector<std::uint32_t> read_share(const json_value& item, std::size_t n_experts,
                                      std::size_t n_numbers) {
  auto numbers = item.indices(whole_share + 1, n_numbers);
  if (numbers.size() != n_numbers) return {};
  if (numbers.back() == 0) item.refuse("a share of no row", "one of a millionth at least");
  if (!std::all_of(numbers.begin(), numbers.end() - 1, [&](auto e) { return e < n_experts; }))
    item.refuse("an unknown expert", fmt::format("experts below {}", n_experts));
  return numbers;
}

/// A set of it.
std::vector<std::uint32_t> take_set(const json_value& item,
                                    std::span<const std::uint32_t> experts) {
  if (std::ranges::adjacent_find(experts, std::ranges::greater_equal()) != experts.end())
    item.refuse("experts in another order", "each once, ascending");
  return {experts.begin(), experts.end()};
}

bool are_too_many(const json_value& layer, std::size_t n, std::size_t most) {
  if (n <= most) return false;
  layer.refuse(std::to_string(n), fmt::format("{} at most", most));
  return true;
}

struct set_shape {
  std::size_t n_experts = 0, top_k = 0;
};

std::vector<measured_set> read_sets(const json_value& layer, const set_shape& shape) {
  const auto items = layer.items();
  if (are_too_many(layer, items.size(), most_told_sets)) return {};
  std::vector<measured_set> sets;
  for (const auto& item : items) {
    const auto numbers = read_share(item, shape.n_experts, shape.top_k + 1);
    if (numbers.empty()) return {};
    auto experts = take_set(item, std::span(numbers).first(shape.top_k));
    if (std::ranges::find(sets, experts, &measured_set::experts) != sets.end())
      item.refuse("a set for the second time", "each set once");
    sets.push_back({std::move(experts), numbers.back()});
  }
  return sets;
}

std::vector<measured_step> read_steps(const json_value& layer, const set_shape& shape) {
  const auto items = layer.items();
  if (are_too_many(layer, items.size(), most_told_steps)) return {};
  std::vector<measured_step> steps;
  std::set<set_pair> seen;
  std::uint64_t sum = 0;
  for (const auto& item : items) {
    const auto numbers = read_share(item, shape.n_experts, 2 * shape.top_k + 1);
    if (numbers.empty()) return {};
    measured_step step{take_set(item, std::span(numbers).first(shape.top_k)),
                       take_set(item, std::span(numbers).subspan(shape.top_k, shape.top_k)),
                       numbers.back()};
    if (!seen.emplace(step.from, step.to).second)
      item.refuse("a step for the second time", "each step once");
    sum += step.millionths;
    steps.push_back(std::move(step));
  }
  if (sum > whole_share)
    layer.refuse("more than all steps", "shares of at most a million together");
  return steps;
}

/// Whether each layer's shares, and its sets', sum to 1, and no layer has sets alone.
bool adds_up(const measured_activation& measured) {
  for (std::size_t l = 0; l < measured.shares.size(); ++l) {
    const auto& shares = measured.shares[l];
    if (!sums_to_one(std::accumulate(shares.begin(), shares.end(), 0.0), shares.empty()))
      return false;
    if (l >= measured.sets.size()) continue;
    std::uint64_t sum = 0;
    for (const auto& set : measured.sets[l]) sum += set.millionths;
    if (!measured.sets[l].empty() && (sum != whole_share || shares.empty())) return false;
  }
  return true;
}

}  // namespace

result<measured_activation> parse_activation(const std::string& text, const std::string& place,
                                             std::size_t n_layers, std::size_t n_experts,
                                             std::size_t top_k) {
  constexpr double most_rows = 1e18;
  auto document = json_document::parse(text, place);
  if (!document) return document.error();
  const auto root = (*document)->root();
  root.only({"rows", "shares", "sets", "steps", "step_rows"});
  measured_activation made;
  for (const auto& rows : root.at("rows").items()) made.rows.push_back(rows.number(0, most_rows));
  for (const auto& layer : root.at("shares").items()) {
    auto& shares = made.shares.emplace_back();
    for (const auto& share : layer.items()) shares.push_back(share.number(0, 1));
  }
  if (const auto sets = root.find("sets"))
    for (const auto& layer : sets->items())
      made.sets.push_back(read_sets(layer, {n_experts, top_k}));
  if (const auto steps = root.find("steps"))
    for (const auto& layer : steps->items())
      made.steps.push_back(read_steps(layer, {n_experts, top_k}));
  if (const auto rows = root.find("step_rows"))
    for (const auto& each : rows->items()) made.step_rows.push_back(each.number(0, most_rows));
  if (auto read = (*document)->finish(0); !read) return read.error();
  const auto fits = [&](const std::vector<double>& shares) {
    return shares.empty() || shares.size() == n_experts;
  };
  if (made.rows.size() != n_layers || made.shares.size() != n_layers ||
      !std::ranges::all_of(made.shares, fits) ||
      (!made.sets.empty() && made.sets.size() != n_layers) ||
      (!made.steps.empty() && (made.steps.size() != n_layers || !made.steps.back().empty())) ||
      made.step_rows.size() != made.steps.size())
    return error{
        errc::mismatch,
        fmt::format("{}: found another shape, expected rows of {} layers and for each of them "
                    "shares of no expert or of {}, sets and steps",
                    place, n_layers, n_experts)};
  if (!adds_up(made))
    return error{errc::malformed,
                 place + ": found shares of a layer that do not sum to 1; measure anew"};
  return made;
}

std::vector<double> moved_shares(const profile& profile, const measured_activation& measured) {
  std::vector<double> moved(profile.n_layers);
  for (std::size_t l = 0; l < profile.n_layers; ++l)
    for (std::size_t e = 0; e < measured.shares[l].size(); ++e)
      moved[l] += std::abs(measured.shares[l][e] - profile.layers[l].activation[e]) / 2;
  return moved;
}

}  // namespace ordermoe::planning
