#include "planning/optimum/program_builder.hpp"

#include <algorithm>
#include <limits>

namespace ordermoe::planning::programming {

namespace {

constexpr double unbounded = std::numeric_limits<double>::max();
constexpr double ms_per_ns = 1e-6;

}  // namespace

/// Rows first, since columns name them; columns in the order of x, u, y.
placement_builder::placement_builder(const placement_model& model, program_paths paths)
    : model_(model), paths_(paths), layers_(model.n_layers()) {
  for (std::size_t m = 0; m < model.n_servers(); ++m)
    if (model.room()[m] > 0) useful_.push_back(static_cast<std::uint8_t>(m));
  linked_.resize(model.n_layers() * model.n_experts() * useful_.size());
  add_placement_rows();
  if (paths_ == program_paths::free) add_path_rows();
  for (std::size_t l = 0; l < model.n_layers(); ++l) add_service_rows(l);
  add_placement();
  for (std::size_t l = 0; l < model.n_layers(); ++l) add_paths(l);
  for (std::size_t l = 0; l < model.n_layers(); ++l) add_ways(l);
}

std::vector<placement_builder::pair> placement_builder::pairs_of(std::size_t layer) const {
  std::vector<pair> pairs;
  const auto n = model_.n_servers();
  for (std::size_t s = 0; s < n; ++s) {
    if (paths_ == program_paths::at_access) {
      if (model_.arrival_share(s) > 0) pairs.push_back({s, s, model_.arrival_share(s)});
      continue;
    }
    for (std::size_t t = 0; t < n; ++t)
      if (model_.n_layers() > 1 || s == t) pairs.push_back({s, t, 1});
  }
  return pairs;
}

void placement_builder::add_placement_rows() {
  for (const auto m : useful_)
    memory_rows_.push_back(program_.add_row(0, static_cast<double>(model_.room()[m])));
  for (std::size_t i = 0; i < model_.n_layers() * model_.n_experts(); ++i)
    copy_rows_.push_back(program_.add_row(1, static_cast<double>(useful_.size())));
}

void placement_builder::add_path_rows() {
  path_row_ = program_.add_row(1, 1);
  for (std::size_t i = 0; i < model_.n_layers() * model_.n_servers(); ++i)
    node_rows_.push_back(program_.add_row(0, 0));
}

void placement_builder::add_service_rows(std::size_t layer) {
  auto& here = layers_[layer];
  here.pairs = pairs_of(layer);
  const bool is_free = paths_ == program_paths::free;
  const auto n_sets = model_.n_sets(layer);
  for (std::size_t i = 0; i < here.pairs.size() * n_sets; ++i)
    here.sum_rows.push_back(is_free ? program_.add_row(0, 0) : program_.add_row(1, 1));
  const auto blocks = is_free ? 1 : here.pairs.size();
  for (std::size_t block = 0; block < blocks; ++block)
    for (std::size_t q = 0; q < n_sets; ++q)
      for (const auto e : model_.targets(layer, q))
        for (std::size_t i = 0; i < useful_.size(); ++i) {
          here.link_rows.push_back(program_.add_row(-unbounded, 0));
          linked_[(layer * model_.n_experts() + e) * useful_.size() + i].push_back(
              here.link_rows.back());
        }
}

void placement_builder::add_placement() {
  for (std::size_t each = 0; each < model_.n_layers() * model_.n_experts(); ++each)
    for (std::size_t i = 0; i < useful_.size(); ++i) {
      program_.add_column(0, 0, 1, true);
      program_.add_entry(memory_rows_[i], 1);
      program_.add_entry(copy_rows_[each], 1);
      for (const auto row : linked_[each * useful_.size() + i]) program_.add_entry(row, -1);
    }
}

void placement_builder::add_paths(std::size_t layer) {
  const auto& here = layers_[layer];
  const auto n_sets = model_.n_sets(layer), n = model_.n_servers();
  for (std::size_t p = 0; p < here.pairs.size(); ++p) {
    const auto [from, to, weight] = here.pairs[p];
    const double attention = weight * model_.prices().attention_ns[from] * ms_per_ns;
    if (paths_ == program_paths::at_access) {
      constant_ms_ += attention;
      continue;
    }
    program_.add_column(attention, 0, 1, true);
    if (layer == 0) program_.add_entry(path_row_, 1);
    const auto leaves = node_rows_[layer * n + from];
    const auto comes = node_rows_[(layer + 1) % model_.n_layers() * n + to];
    if (leaves != comes) {
      program_.add_entry(leaves, -1);
      program_.add_entry(comes, 1);
    }
    for (std::size_t q = 0; q < n_sets; ++q) program_.add_entry(here.sum_rows[p * n_sets + q], -1);
  }
}

double placement_builder::way_ms(std::size_t layer, const pair& between,
                                 const std::vector<std::uint8_t>& servers) const {
  const auto [from, to, weight] = between;
  double ns = model_.way_ns(from, to, servers);
  if (layer + 1 == model_.n_layers())
    ns = std::min(model_.way_ns(from, from, servers) + model_.end_ns(from, to),
                  ns + model_.end_ns(to, to));
  return weight * ns * ms_per_ns;
}

void placement_builder::add_ways(std::size_t layer) {
  for (std::size_t p = 0; p < layers_[layer].pairs.size(); ++p)
    for (std::size_t q = 0; q < model_.n_sets(layer); ++q) add_ways_of_set(layer, p, q);
}

/// Every choice of a server for each slot.
void placement_builder::add_ways_of_set(std::size_t layer, std::size_t number, std::size_t set) {
  const auto& here = layers_[layer];
  const auto n_sets = model_.n_sets(layer), n_slots = model_.n_slots(), n = useful_.size();
  const std::size_t block = paths_ == program_paths::free ? 0 : number;
  std::vector<std::size_t> at(n_slots, 0);
  std::vector<std::uint8_t> servers(n_slots);
  while (true) {
    for (std::size_t j = 0; j < n_slots; ++j) servers[j] = useful_[at[j]];
    program_.add_column(model_.probability(layer, set) * way_ms(layer, here.pairs[number], servers),
                        0, unbounded, false);
    program_.add_entry(here.sum_rows[number * n_sets + set], 1);
    for (std::size_t j = 0; j < n_slots; ++j)
      program_.add_entry(here.link_rows[((block * n_sets + set) * n_slots + j) * n + at[j]], 1);
    std::size_t j = 0;
    while (j < n_slots && ++at[j] == n) at[j++] = 0;
    if (j == n_slots) return;
  }
}

std::vector<double> placement_builder::start_of(const std::vector<server_mask>& hosts,
                                                const residence_path& path) const {
  std::vector<double> values;
  for (const auto on : hosts)
    for (const auto m : useful_) values.push_back(static_cast<double>((on >> m) & 1u));
  if (paths_ == program_paths::at_access) return values;
  for (std::size_t l = 0; l < model_.n_layers(); ++l)
    for (const auto& [from, to, weight] : layers_[l].pairs)
      values.push_back(path[l] == from && path[(l + 1) % path.size()] == to ? 1 : 0);
  return values;
}

std::vector<server_mask> placement_builder::hosts_in(const std::vector<double>& values) const {
  std::vector<server_mask> hosts(model_.n_layers() * model_.n_experts(), 0);
  std::size_t column = 0;
  for (auto& on : hosts)
    for (const auto m : useful_)
      if (values[column++] > 0.5) on |= server_bit(m);
  return hosts;
}

}  // namespace ordermoe::planning::programming
