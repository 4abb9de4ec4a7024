#include "bench/experiments/testbed/substitution_map.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace ordermoe::experiments::testbed {

namespace {

/// The fastest exact plan on each cluster of a setting.
struct exact_rows {
  std::map<std::uint64_t, const row*> fastest;

  void take(const row& measured) {
    if (measured.is_infeasible || !measured[metric::latency_ms]) return;
    auto& best = fastest[measured.what.seed];
    if (best == nullptr || *measured[metric::latency_ms] < *(*best)[metric::latency_ms])
      best = &measured;
  }

  /// What `measured` saves of the fastest on its cluster, in per cent; nothing where either was not measured.
  std::optional<double> saved_by(const row& measured) const {
    const auto best = fastest.find(measured.what.seed);
    if (best == fastest.end() || measured.is_infeasible || !measured[metric::latency_ms])
      return std::nullopt;
    return 100 * (1 - *measured[metric::latency_ms] / *(*best->second)[metric::latency_ms]);
  }

  std::string usual_name() const {
    std::map<std::string, std::size_t> times;
    for (const auto& [seed, best] : fastest) ++times[best->what.strategy];
    const auto most =
        std::ranges::max_element(times, {}, [](const auto& each) { return each.second; });
    return most == times.end() ? std::string() : most->first;
  }
};

struct of_budget {
  map_cell made;
  std::vector<double> saved, saved_by_pruning, increases, increases_by_pruning;
};

/// What a plan loses of its own model, in per cent: rows have it of the model as stored, exact plans of one precision all the same.
class own_losses {
 public:
  explicit own_losses(const std::vector<row>& rows) {
    for (const auto& each : rows)
      if (is_exact_rival(each.what) && each[metric::increase_percent])
        exact_.try_emplace(each.what.kept, *each[metric::increase_percent]);
  }

  std::optional<double> of(const row& measured) const {
    const auto exact = exact_.find(measured.what.kept);
    const auto& increase = measured[metric::increase_percent];
    if (!increase || exact == exact_.end()) return std::nullopt;
    // The same where it is the model as stored: no rounding is added to it.
    if (exact->second == 0) return increase;
    return 100 * ((100 + *increase) / (100 + exact->second) - 1);
  }

 private:
  std::map<precision, double> exact_;
};

/// Settings in which more than the budget is lost, and the most that is.
struct beyond {
  std::size_t n = 0, of = 0;
  double most = 0;

  void take(const std::optional<interval>& lost, double percent) {
    if (!lost) return;
    ++of;
    n += lost->median > percent;
    most = std::max(most, lost->median);
  }
  std::string told() const {
    return n == 0 ? fmt::format("in none of {}", of)
                  : fmt::format("in {} of {} ({:.2f} % at most)", n, of, most);
  }
};

struct counted {
  std::size_t n = 0, pays = 0;
};

std::string shares(const std::vector<const map_cell*>& cells, std::string setting_parts::*part) {
  std::vector<std::pair<std::string, counted>> parts;
  for (const auto* cell : cells) {
    const auto name = setting_of(cell->where).*part;
    auto found = std::ranges::find(parts, name, [](const auto& each) { return each.first; });
    if (found == parts.end()) found = parts.insert(parts.end(), {name, {}});
    ++found->second.n;
    found->second.pays += cell->saved_percent->median > pays_from_percent;
  }
  std::vector<std::string> texts;
  for (const auto& [name, count] : parts)
    texts.push_back(fmt::format("{} {} of {}", name, count.pays, count.n));
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

bool is_exact_rival(const point& what) {
  const auto& name = what.strategy;
  return name == "exact" || name == "layer-shards" || name == "shard-chains" ||
         name == "parallax" || (name == "ordermoe" && what.percent == 0);
}

std::vector<map_cell> map_of(const experiment& of, const std::vector<row>& rows) {
  std::map<std::string, exact_rows> exact;
  for (const auto& each : rows)
    if (is_exact_rival(each.what)) exact[place_name(of.swept, each.what)].take(each);
  const own_losses losses(rows);
  std::vector<of_budget> found;
  for (const auto& each : rows) {
    if (each.what.strategy != "ordermoe" || is_exact_rival(each.what)) continue;
    const auto setting = place_name(of.swept, each.what);
    auto place = std::ranges::find_if(found, [&](const of_budget& one) {
      return one.made.setting == setting && one.made.where.percent == each.what.percent;
    });
    if (place == found.end()) {
      place = found.insert(found.end(), of_budget{});
      place->made.setting = setting;
      place->made.where = each.what;
      place->made.fastest_exact = exact[setting].usual_name();
    }
    if (each.is_infeasible || !each[metric::latency_ms]) continue;
    ++place->made.n_clusters;
    place->made.n_pruned_forms += each.form == pruned_form;
    place->made.n_core_forms += each.form == core_form;
    const bool is_ours =
        each.form == own_form || each.form == core_form || each.form == pruned_form;
    place->made.n_rival_forms += !each.form.empty() && !is_ours;
    if (const auto lost = losses.of(each)) place->increases.push_back(*lost);
    if (const auto saved = exact[setting].saved_by(each))
      place->saved.push_back(*saved);
    else
      ++place->made.n_without_exact;
  }
  for (const auto& each : rows) {
    if (each.what.strategy != "static-pruning") continue;
    const auto setting = place_name(of.swept, each.what);
    const auto place = std::ranges::find_if(found, [&](const of_budget& one) {
      return one.made.setting == setting && one.made.where.percent == each.what.percent;
    });
    if (place == found.end()) continue;
    if (const auto saved = exact[setting].saved_by(each)) place->saved_by_pruning.push_back(*saved);
    if (const auto lost = losses.of(each)) place->increases_by_pruning.push_back(*lost);
  }
  std::vector<map_cell> cells;
  for (auto& each : found) {
    each.made.saved_percent = over_clusters(each.saved);
    each.made.saved_by_pruning_percent = over_clusters(each.saved_by_pruning);
    each.made.increase_percent = over_clusters(each.increases);
    each.made.increase_by_pruning_percent = over_clusters(each.increases_by_pruning);
    cells.push_back(std::move(each.made));
  }
  return cells;
}

std::vector<std::string> map_sentences(const std::vector<map_cell>& cells) {
  std::map<double, std::vector<const map_cell*>> by_budget;
  for (const auto& cell : cells)
    if (cell.saved_percent) by_budget[cell.where.percent].push_back(&cell);
  std::vector<std::string> made;
  for (const auto& [percent, all] : by_budget) {
    std::size_t pays = 0, forms = 0, cores = 0, pruned_forms = 0, clusters = 0;
    counted pruned;
    beyond lost, lost_by_pruning;
    for (const auto* cell : all) {
      lost.take(cell->increase_percent, percent);
      lost_by_pruning.take(cell->increase_by_pruning_percent, percent);
      if (const auto& saved = cell->saved_by_pruning_percent) {
        ++pruned.n;
        pruned.pays += saved->median > pays_from_percent;
      }
      pays += cell->saved_percent->median > pays_from_percent;
      forms += cell->n_rival_forms;
      cores += cell->n_core_forms;
      pruned_forms += cell->n_pruned_forms;
      clusters += cell->n_clusters;
    }
    made.push_back(fmt::format(
        "A budget of {:g} % saves more than {:g} % of the fastest exact plan's latency in {} of {} "
        "settings; by precision and memory: {}; by network: {}; by load: {}. It took an exact "
        "rival's plan on {} of {} clusters, chains of what pruning keeps, with the rest beside "
        "them, on {}{}. Pruning alone (static-pruning) saves as much in {} "
        "of "
        "{}.{}",
        percent, pays_from_percent, pays, all.size(), shares(all, &setting_parts::memory),
        shares(all, &setting_parts::network), shares(all, &setting_parts::load), forms, clusters,
        cores,
        pruned_forms > 0 ? fmt::format(", and one of static-pruning on {}", pruned_forms) : "",
        pruned.pays, pruned.n,
        lost.of == 0
            ? std::string()
            : fmt::format(" More than {:g} % of perplexity was lost {}, by static-pruning {}.",
                          percent, lost.told(), lost_by_pruning.told())));
  }
  return made;
}

}  // namespace ordermoe::experiments::testbed
