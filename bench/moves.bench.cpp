// Whether a rival has a better plan in its own space than the one that it is measured with.
//
// bench_moves CLUSTER MOVES [BUDGET]: random moves among chains of layer shards side by side (planning/shard_chains.hpp), in which
// every plan of `layer-shards` and `shard-chains` lies and what positions see of every plan of `parallax`; with a budget in per cent those of
// `static-pruning` for it, whose pruned experts stay as they are. The bundled model `lineage` on the cluster of that file; as JSON.
//
// Five walks of equally many moves set out from the five plans that answer a trial load fastest, of those that the rivals are
// prepared with and of what their planner finds for several loads. A move is one of everything that one change makes of a layout and that
// fits, each as likely; its layout answers the first 24 requests of the trial load that plans are chosen by, and is where the walk
// goes on if they take at most t longer than before, t from 3 % down to nothing at the end of the walk. What was tried before is not
// run again. The 16 layouts that answer these fastest answer all 64 requests, and the fastest of them and the rivals' own plans then
// another load: held-out texts, arrivals of another seed.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/arguments.hpp"
#include "config/random.hpp"
#include "planning/shard_chains.hpp"
#include "setup/preparation.hpp"
#include "setup/trials.hpp"
#include "setup/world.hpp"

namespace {

using namespace ordermoe;
using planning::chain_layout;

template <class T>
T take(result<T> value) {
  if (value) return std::move(*value);
  fmt::print(stderr, "bench_moves: {}\n", value.error().message);
  std::exit(1);
}

constexpr std::size_t n_walks = 5;
constexpr double furthest_back = 0.03;
constexpr std::size_t document_tokens = 256, held_out_tokens = 16384;
constexpr std::uint64_t seed = 1, judged_seed = 1001;

constexpr std::size_t of_walks = 24, n_finalists = 16;

/// A layout, and what it takes to answer the walks' load.
struct tried {
  chain_layout layout;
  double ms = 0;
};

/// Chains that nobody uses leave, and those that are alike are one, in the order of their users.
chain_layout tidied(const chain_layout& layout) {
  chain_layout kept;
  for (const auto used : layout.chain_of) {
    const auto& chain = layout.chains[used];
    const auto at = std::ranges::find(kept.chains, chain);
    kept.chain_of.push_back(static_cast<std::size_t>(at - kept.chains.begin()));
    if (at == kept.chains.end()) kept.chains.push_back(chain);
  }
  return kept;
}

std::string text_of(const chain_layout& layout) {
  std::string text;
  for (const auto& chain : layout.chains) {
    text += text.empty() ? "" : ", ";
    for (const auto& stage : chain)
      text += fmt::format("{}s{}:{}", &stage == chain.data() ? "" : "-", stage.server, stage.units);
  }
  text += "; users";
  for (const auto chain : layout.chain_of) text += fmt::format(" {}", chain);
  return text;
}

setup::world world_of(const char* cluster_file, job& work) {
  setup::world_options wanted;
  wanted.model = ORDERMOE_DATA "/models/lineage";
  wanted.cluster = cluster_file;
  return take(setup::load_world(wanted, work));
}

class search_by_trial {
 public:
  search_by_trial(const char* cluster_file, double budget)
      : content_(world_of(cluster_file, work_)),
        held_out_(take(setup::read_documents(ORDERMOE_DATA "/eval/held-out.txt", *content_.tokens,
                                             document_tokens, held_out_tokens))) {
    options_.quality_percent = budget;
    options_.concurrency = 4;
    constexpr std::array<const char*, 3> exact = {"layer-shards", "shard-chains", "parallax"};
    constexpr std::array<const char*, 1> pruning = {"static-pruning"};
    const std::span<const char* const> rivals =
        budget > 0 ? std::span<const char* const>(pruning) : exact;
    for (const auto* rival : rivals) {
      setup::preparation_request wanted;
      wanted.strategy = rival;
      wanted.options = options_;
      wanted.seed = seed;
      rivals_.emplace_back(rival, take(setup::prepare(content_, wanted, work_)));
    }
    with_plans_ = rivals_.front().second.service;
    if (!with_plans_.chosen.plan.pruned.empty()) pruned_ = with_plans_.chosen.plan.pruned.front();
    planners_ = make_planners();
  }

  nlohmann::ordered_json run(std::size_t n_moves) {
    auto starts = first_layouts();
    nlohmann::ordered_json told;
    told["pruned"] = n_pruned();
    double fastest_ms = 0;
    for (const auto& [name, ready] : rivals_) {
      const double ms = trial_ms(ready.service.chosen.plan),
                   judged = judged_ms(ready.service.chosen.plan);
      told["rivals"][name] = {{"trial_ms", ms}, {"judged_ms", judged}};
      fastest_ms = fastest_ms == 0 ? judged : std::min(fastest_ms, judged);
    }
    told["planned"] = {{"trial_ms", trial_ms(planner().to_plan(starts.front().layout))},
                       {"layouts", starts.size()}};
    random_stream random(seed);
    for (std::size_t i = 0; i < n_walks; ++i)
      walk(starts[std::min(i, starts.size() - 1)], n_moves / n_walks, random);
    told["moves"] = n_moves / n_walks * n_walks;
    told["different"] = known_.size();
    const auto best = best_of_finalists();
    const double judged = judged_ms(planner().to_plan(best.layout));
    told["best"] = {{"trial_ms", best.ms}, {"judged_ms", judged}, {"chains", text_of(best.layout)}};
    told["lower_percent"] = 100 * (1 - judged / fastest_ms);
    return told;
  }

 private:
  using planner_of = planning::shard_chain_planner;

  const planner_of& planner() const { return planners_.front(); }

  std::size_t n_pruned() const {
    std::size_t n = 0;
    for (const auto& layer : pruned_.layers) n += layer.size();
    return n;
  }

  /// For as many requests in flight as are expected, and fewer, and more; layers have the same units in all.
  std::vector<planner_of> make_planners() const {
    std::vector<planner_of> made;
    for (const double others : {3.0, 0.75, 6.0}) {
      planning::shard_chain_options layouts;
      layouts.concurrency = 1 + others;
      layouts.pruned = pruned_;
      made.emplace_back(content_.profile, content_.servers, content_.costs, layouts);
    }
    return made;
  }

  /// Those that the rivals are prepared with, as far as they hold whole layers, and those that their planner finds, fastest first.
  std::vector<tried> first_layouts() {
    constexpr std::size_t n_of_each = 12;
    std::vector<tried> found;
    const auto add = [&](const chain_layout& layout) {
      const auto here = tidied(layout);
      if (!planner().fits(here)) return;
      if (std::ranges::none_of(found, [&](const tried& one) { return one.layout == here; }))
        found.push_back({here, walk_ms(here)});
    };
    for (const auto& [name, ready] : rivals_)
      if (const auto layout = layout_of(ready.service.chosen.plan)) add(*layout);
    for (const auto& each : planners_)
      for (const auto& layout : each.search(n_of_each)) add(layout);
    std::ranges::stable_sort(found, {}, &tried::ms);
    return found;
  }

  /// The chain that the users of each access server go through; none where a layer is not wholly where its attention is.
  std::optional<chain_layout> layout_of(const planning::plan& content) const {
    const planning::placement_index index(content);
    chain_layout layout;
    for (std::size_t a = 0; a < content.n_servers; ++a) {
      planning::shard_chain chain;
      for (std::size_t l = 0; l < content.n_layers; ++l) {
        const auto server =
            static_cast<std::size_t>(std::countr_zero(content.residence[a].layers[l]));
        std::size_t n_here = 0;
        for (std::size_t e = 0; e < content.n_experts; ++e) n_here += index.hosts(server, l, e);
        const auto n_left =
            content.n_experts - (pruned_.layers.empty() ? 0 : pruned_.layers[l].size());
        if (n_here < n_left) return std::nullopt;
        const auto of_unit = content.n_experts / planner().units_per_layer();
        const auto units = (n_left + of_unit - 1) / of_unit;
        if (!chain.empty() && chain.back().server == server)
          chain.back().units += units;
        else
          chain.push_back({server, units});
      }
      layout.chains.push_back(std::move(chain));
      layout.chain_of.push_back(a);
    }
    return layout;
  }

  double trial_ms(const planning::plan& content) {
    return take(setup::trial_load_ms(with(content), options_, content_.tuning_texts, work_));
  }
  /// Of the load of walks.
  double walk_ms(const chain_layout& layout) {
    const auto [at, is_new] = known_.try_emplace(text_of(layout));
    if (is_new) {
      auto fewer = options_;
      fewer.dry_run_requests = of_walks;
      at->second = {layout, take(setup::trial_load_ms(with(planner().to_plan(layout)), fewer,
                                                      content_.tuning_texts, work_))};
    }
    return at->second.ms;
  }
  double judged_ms(const planning::plan& content) {
    auto service = with(content);
    service.seed = judged_seed;
    return take(setup::trial_load_ms(service, options_, held_out_, work_));
  }
  actors::service_options with(planning::plan content) {
    if (!pruned_.layers.empty()) content.pruned.assign(content.n_servers, pruned_);
    auto service = with_plans_;
    service.chosen.plan = std::move(content);
    return service;
  }

  void walk(const tried& start, std::size_t n_moves, random_stream& random) {
    auto here = start;
    auto near = planner().neighbours(here.layout);
    for (std::size_t i = 0; i < n_moves && !near.empty(); ++i) {
      const auto layout = tidied(near[random.below(near.size())]);
      const double ms = walk_ms(layout);
      const double back =
          furthest_back * (1 - static_cast<double>(i + 1) / static_cast<double>(n_moves));
      if (ms > here.ms * (1 + back)) continue;
      here = {layout, ms};
      near = planner().neighbours(here.layout);
    }
  }

  /// By the whole trial load.
  tried best_of_finalists() {
    std::vector<tried> all;
    for (const auto& [text, each] : known_) all.push_back(each);
    std::ranges::stable_sort(all, {}, &tried::ms);
    all.resize(std::min(all.size(), n_finalists));
    for (auto& each : all) each.ms = trial_ms(planner().to_plan(each.layout));
    return *std::ranges::min_element(all, {}, &tried::ms);
  }

  job work_;
  setup::world content_;
  setup::token_documents held_out_;
  planning::strategy_options options_;
  std::vector<std::pair<std::string, setup::prepared>> rivals_;
  actors::service_options with_plans_;
  planning::pruned_experts pruned_;
  std::vector<planner_of> planners_;
  std::map<std::string, tried> known_;  ///< By text.
};

}  // namespace

int main(int argc, char** argv) {
  const auto n_moves = argc > 2 ? ordermoe::bench::number_above_zero(argv[2]) : std::nullopt;
  const auto budget = argc > 3 ? ordermoe::bench::number_above_zero(argv[3]) : std::nullopt;
  if (!n_moves || argc > 4 || (argc > 3 && !budget)) {
    fmt::print(stderr, "usage: bench_moves CLUSTER MOVES [BUDGET in per cent]\n");
    return 2;
  }
  search_by_trial moves(argv[1], static_cast<double>(budget.value_or(0)));
  fmt::print("{}\n", moves.run(*n_moves).dump(2));
}
