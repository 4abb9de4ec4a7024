#include "bench/experiments/testbed/experiment_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "planning/strategies/strategies.hpp"

namespace ordermoe::experiments::testbed {

namespace {

constexpr std::size_t to_the_end = 0;

/// At the main budget where the strategy has one.
point of(std::string_view strategy, std::uint64_t seed) {
  point made;
  made.strategy = strategy;
  made.seed = seed;
  if (planning::find_strategy(strategy)->has_budget) made.percent = main_budget;
  return made;
}

point with(point made, double percent) {
  made.percent = percent;
  return made;
}
point without(point made, const char* part) {
  made.without = part;
  return made;
}
point looking_ahead(point made, std::size_t horizon) {
  made.horizon = horizon;
  return made;
}

using names = std::initializer_list<std::string_view>;
using points = std::vector<point>;

/// Every strategy that there is at one budget or several, and what the paper calls its internal variants.
points everything(scale how_much, std::uint64_t seed) {
  points made;
  for (const auto& record : planning::strategy_records()) {
    if (record.name == "ordermoe") made.push_back(with(of(record.name, seed), 0));
    if (record.has_budget && how_much == scale::whole)
      for (const double percent : {1., 3.}) made.push_back(with(of(record.name, seed), percent));
    made.push_back(of(record.name, seed));
    if (record.name != "paper") continue;
    made.push_back(looking_ahead(of(record.name, seed), 1));
    made.push_back(without(of(record.name, seed), "redundancy"));
  }
  return made;
}

points horizons(scale how_much, std::uint64_t seed) {
  points made;
  // Its own horizon is 3, which `overall` measures as the strategy is.
  const std::vector<std::size_t> depths = how_much == scale::whole
                                              ? std::vector<std::size_t>{1, 2, 3, 4, 5, to_the_end}
                                              : std::vector<std::size_t>{1, 2, 3, 5, to_the_end};
  for (const auto depth : depths) made.push_back(looking_ahead(of("paper", seed), depth));
  // ordermoe looks to the end by itself.
  const std::vector<std::size_t> ours =
      how_much == scale::whole ? depths : std::vector<std::size_t>{1, to_the_end};
  for (const auto depth : ours) made.push_back(looking_ahead(of("ordermoe", seed), depth));
  return made;
}

points thresholds(scale how_much, std::uint64_t seed) {
  points made{of("paper", seed)};
  const std::vector<double> tried = how_much == scale::whole
                                        ? std::vector<double>{0.5, 0.6, 0.7, 0.8, 0.9}
                                        : std::vector<double>{0.5, 0.9};
  for (const auto threshold : tried) {
    auto one = of("paper", seed);
    one.threshold = threshold;
    made.push_back(std::move(one));
  }
  return made;
}

/// The strategies at each value of what is swept; `set` writes it.
template <class Value, class Set>
points sweep(names strategies, const std::vector<Value>& values, std::uint64_t seed,
             const Set& set) {
  points made;
  for (const auto strategy : strategies)
    for (const auto& value : values) {
      auto one = of(strategy, seed);
      set(one, value);
      made.push_back(std::move(one));
    }
  return made;
}

points memories(scale how_much, std::uint64_t seed) {
  const auto set = [](point& one, double ratio) { one.memory_ratio = ratio; };
  if (how_much == scale::quick)
    return sweep<double>({"layer-shards", "popularity", "paper", "ordermoe"}, {1.25, 2, 3}, seed,
                         set);
  return sweep<double>(
      {"exact", "layer-shards", "shard-chains", "popularity", "local-tuned", "paper", "ordermoe"},
      {1, 1.25, 1.5, 1.75, 2, 2.5, 3}, seed, set);
}

points ablations(scale, std::uint64_t seed) {
  const auto paper = of("paper", seed), ours = of("ordermoe", seed);
  return {paper,
          looking_ahead(paper, 1),
          without(paper, "redundancy"),
          without(paper, "dispersion"),
          with(paper, 0),
          ours,
          looking_ahead(ours, 1),
          with(ours, 0)};
}

points loads(scale how_much, std::uint64_t seed) {
  const auto set = [](point& one, double rate) { one.rate = rate; };
  if (how_much == scale::quick)
    return sweep<double>({"exact", "layer-shards", "moe2", "paper", "ordermoe"}, {1, 4, 8}, seed,
                         set);
  return sweep<double>({"exact", "layer-shards", "shard-chains", "popularity", "wdmoe", "moe2",
                        "edge-llm", "paper", "ordermoe"},
                       {1, 2, 3, 4, 6, 8, 16}, seed, set);
}

/// As many requests and as much memory a server as at eight of them with two and a half times the model's: four have a
/// quarter more than the model then. Exactly the model's never fits, since experts do not divide servers' memory.
points scaled(scale how_much, std::uint64_t seed) {
  const auto set = [](point& one, std::size_t servers) {
    one.n_servers = servers;
    one.memory_ratio = 2.5 * static_cast<double>(servers) / 8;
    one.rate = static_cast<double>(servers) / 2;
  };
  if (how_much == scale::quick)
    return sweep<std::size_t>({"exact", "layer-shards", "moe2", "paper", "ordermoe"}, {4, 16}, seed,
                              set);
  return sweep<std::size_t>(
      {"exact", "layer-shards", "shard-chains", "popularity", "moe2", "paper", "ordermoe"},
      {4, 6, 8, 10, 12, 16}, seed, set);
}

struct site_spread {
  std::size_t n_sites;
  double ms;
};

points networks(scale how_much, std::uint64_t seed) {
  const auto set = [](point& one, const site_spread& spread) {
    one.n_sites = spread.n_sites;
    one.site_ms = spread.ms;
  };
  if (how_much == scale::quick)
    return sweep<site_spread>({"exact", "layer-shards", "paper", "ordermoe"}, {{1, 0}, {2, 40}},
                              seed, set);
  return sweep<site_spread>(
      {"exact", "layer-shards", "shard-chains", "static-pruning", "moe2", "local-tuned", "paper",
       "ordermoe"},
      {{1, 0}, {2, 10}, {2, 20}, {2, 40}, {2, 80}, {3, 40}, {4, 10}, {4, 20}, {4, 40}, {4, 80}},
      seed, set);
}

/// Links as drawn, 1 to 10 Gbps, behind uplinks that all of a server's share.
points uplinks(scale how_much, std::uint64_t seed) {
  const auto set = [](point& one, double mbit) { one.uplink_mbit = mbit; };
  if (how_much == scale::quick)
    return sweep<double>({"exact", "layer-shards", "paper", "ordermoe"}, {50, 1000}, seed, set);
  return sweep<double>({"exact", "layer-shards", "shard-chains", "parallax", "static-pruning",
                        "moe2", "local-tuned", "paper", "ordermoe"},
                       {50, 100, 250, 500, 1000}, seed, set);
}

points coarse_memories(scale how_much, std::uint64_t seed) {
  const auto set = [](point& one, double ratio) {
    one.kept = precision::int4;
    one.memory_ratio = ratio;
  };
  if (how_much == scale::quick)
    return sweep<double>({"layer-shards", "static-pruning", "offload", "ordermoe"}, {0.7, 1.25, 2},
                         seed, set);
  return sweep<double>({"layer-shards", "shard-chains", "parallax", "static-pruning", "moe2",
                        "offload", "paper", "ordermoe"},
                       {0.5, 0.7, 0.85, 1, 1.25, 1.5, 2}, seed, set);
}

/// What the emulation leaves out otherwise: each message and each batch takes so long besides what it carries or computes.
points overheads(scale how_much, std::uint64_t seed) {
  const auto set = [](point& one, double us) { one.message_us = one.batch_us = us; };
  if (how_much == scale::quick)
    return sweep<double>({"exact", "layer-shards", "ordermoe"}, {0, 100}, seed, set);
  return sweep<double>({"exact", "layer-shards", "shard-chains", "parallax", "static-pruning",
                        "moe2", "local-tuned", "paper", "ordermoe"},
                       {0, 10, 30, 100, 300}, seed, set);
}

/// Fewer requests where each is longer, so that the servers can bear them.
points prompts(scale how_much, std::uint64_t seed) {
  const auto set = [](point& one, std::size_t tokens) {
    one.prompt_tokens = tokens;
    one.rate = 1;
  };
  if (how_much == scale::quick)
    return sweep<std::size_t>({"exact", "layer-shards", "ordermoe"}, {64, 1024}, seed, set);
  return sweep<std::size_t>(
      {"exact", "layer-shards", "shard-chains", "parallax", "static-pruning", "paper", "ordermoe"},
      {64, 256, 1024, 4096}, seed, set);
}

points saturations(scale how_much, std::uint64_t seed) {
  points made;
  const auto add = [&](std::string_view strategy, std::optional<double> percent = {}) {
    made.push_back(of(strategy, seed));
    made.back().rate = to_saturation;
    if (percent) made.back().percent = *percent;
  };
  if (how_much == scale::quick) {
    add("layer-shards");
    add("ordermoe", 0);
    return made;
  }
  for (const auto* strategy : {"exact", "layer-shards", "shard-chains", "parallax", "popularity",
                               "static-pruning", "moe2", "paper"})
    add(strategy);
  for (const double percent : {0., 1., main_budget}) add("ordermoe", percent);
  return made;
}

/// Every setting with what an exact rival can be, and `ordermoe` and `static-pruning` with the budgets that are compared.
points settings_of_the_map(scale how_much, std::uint64_t seed) {
  struct kept_memory {
    precision kept;
    double ratio;
  };
  struct network {
    std::size_t n_sites;
    double site_ms, uplink_mbit;
  };
  const bool is_whole = how_much == scale::whole;
  const auto memories =
      is_whole ? std::vector<kept_memory>{{precision::stored, 1.25},
                                          {precision::stored, 2},
                                          {precision::int4, 0.7},
                                          {precision::int4, 2}}
               : std::vector<kept_memory>{{precision::stored, 1.25}, {precision::stored, 3}};
  const auto ways = is_whole ? std::vector<network>{{1, 0, 0}, {0, 0, 0}, {0, 0, 100}, {2, 40, 0}}
                             : std::vector<network>{{0, 0, 0}};
  const auto rates = is_whole ? std::vector<double>{1, 8} : std::vector<double>{4};
  points made;
  for (const auto& memory : memories)
    for (const auto& way : ways)
      for (const auto rate : rates) {
        const auto add = [&](std::string_view strategy, std::optional<double> percent = {}) {
          auto one = of(strategy, seed);
          one.kept = memory.kept;
          one.memory_ratio = memory.ratio;
          one.n_sites = way.n_sites;
          one.site_ms = way.site_ms;
          one.uplink_mbit = way.uplink_mbit;
          one.rate = rate;
          if (percent) one.percent = *percent;
          made.push_back(std::move(one));
        };
        for (const auto* strategy : {"exact", "layer-shards", "shard-chains", "parallax"})
          if (is_whole || std::string_view(strategy) == "layer-shards") add(strategy);
        for (const double percent : {0., 1., main_budget})
          if (is_whole || percent != 1.) add("ordermoe", percent);
        for (const double percent : {1., main_budget})
          if (is_whole) add("static-pruning", percent);
      }
  return made;
}

using m = metric;

const experiment table[] = {
    {"overall",
     "How do all strategies compare in latency, traffic and throughput?",
     "Fig. 4",
     "",
     axis::nothing,
     figure_kind::bars,
     {m::latency_ms, m::traffic_mb_per_1k, m::throughput_tokens_per_s, m::network_ms, m::compute_ms,
      m::waiting_ms},
     everything},
    {"execution",
     "Where do experts run, and what does that do to quality?",
     "Fig. 5",
     "The bundled models' own text and arithmetic stand for the paper's three data sets.",
     axis::nothing,
     figure_kind::stacked,
     {m::local_exact, m::local_substitute, m::remote_exact, m::remote_substitute, m::left_out,
      m::increase_percent, m::exact_match, m::budget_spent},
     everything},
    {"horizon",
     "What does looking further ahead bring?",
     "Fig. 7",
     "",
     axis::horizon,
     figure_kind::lines,
     {m::latency_ms, m::traffic_mb_per_1k, m::network_ms, m::compute_ms, m::waiting_ms,
      m::increase_percent},
     horizons},
    {"thresholds",
     "One similarity threshold for all layers, or one that falls with depth?",
     "Fig. 8",
     "The variant without a threshold in its name has one that falls from 0.9 to 0.5.",
     axis::threshold,
     figure_kind::scatter,
     {m::latency_ms, m::increase_percent, m::local_substitute, m::remote_substitute, m::coverage},
     thresholds},
    {"memory",
     "What does memory for more copies bring?",
     "Fig. 9",
     "",
     axis::memory_ratio,
     figure_kind::lines,
     {m::coverage, m::latency_ms, m::traffic_mb_per_1k, m::increase_percent},
     memories},
    {"ablation",
     "What does each part contribute?",
     "Fig. 10",
     "",
     axis::nothing,
     figure_kind::bars,
     {m::latency_ms, m::traffic_mb_per_1k, m::increase_percent, m::network_ms, m::compute_ms,
      m::waiting_ms},
     ablations},
    {"load",
     "How do strategies bear more requests?",
     "Fig. 11",
     "The paper's 10 to 80 requests a second stand at a tenth here, 1 to 8: 4 is its 40. Each "
     "strategy plans for the rate at hand.",
     axis::rate,
     figure_kind::lines,
     {m::latency_ms, m::within_sla, m::throughput_tokens_per_s, m::network_ms, m::compute_ms,
      m::waiting_ms},
     loads},
    {"servers",
     "Does latency grow with the number of servers?",
     "Fig. 12(a)",
     "Memory and requests grow with the servers: at eight of them 2.5 times the model's memory, so "
     "that it fits on four. What a decision costs, Fig. 12(b), is measured by bench_selector.",
     axis::servers,
     figure_kind::lines,
     {m::latency_ms, m::traffic_mb_per_1k, m::local_exact, m::local_substitute, m::network_ms,
      m::compute_ms, m::waiting_ms},
     scaled},
    {"network",
     "What if servers stand at several sites?",
     "",
     "Between sites the bandwidth is as drawn, 1 to 10 Gbps; within one, 0.2 to 1 ms.",
     axis::site_ms,
     figure_kind::lines,
     {m::latency_ms, m::traffic_mb_per_1k, m::network_ms, m::compute_ms, m::waiting_ms,
      m::increase_percent},
     networks},
    {"uplinks",
     "What if all links of a server share its uplink?",
     "",
     "Links are as drawn, 1 to 10 Gbps between the hosts, and each at most as fast as an uplink; "
     "what a server sends, and what it gets, goes through its uplink one after the other.",
     axis::uplink_mbit,
     figure_kind::lines,
     {m::latency_ms, m::traffic_mb_per_1k, m::network_ms, m::compute_ms, m::waiting_ms,
      m::increase_percent},
     uplinks},
    {"memory-int4",
     "What if experts are kept in int4, down to half of the model's memory?",
     "",
     "Memory is over that of the model with int4 experts; increases of perplexity are over the "
     "model as stored, and so are those of strategies that run every expert as it is kept.",
     axis::memory_ratio,
     figure_kind::lines,
     {m::latency_ms, m::increase_percent, m::network_ms, m::compute_ms, m::waiting_ms},
     coarse_memories},
    {"overheads",
     "What if every message between servers and every batch costs time of its own?",
     "",
     "Both cost as much: of a message its sender's time, of a batch its server's. Elsewhere "
     "neither does.",
     axis::overhead_us,
     figure_kind::lines,
     {m::latency_ms, m::network_ms, m::compute_ms, m::waiting_ms, m::increase_percent},
     overheads},
    {"prompts",
     "Does it matter how long prompts are?",
     "",
     "One request a second. Bundled models were trained on 512 positions: beyond these what they "
     "say, and which experts they choose, is not what a model would that was.",
     axis::prompt_tokens,
     figure_kind::lines,
     {m::ttft_ms, m::tpot_ms, m::latency_ms, m::traffic_mb_per_1k},
     prompts},
    {"saturation",
     "How many requests a second are answered in time?",
     "",
     "The highest rate at which 95 % are answered within the SLA, to a fifth; each strategy plans "
     "for the rate that is tried, and everything else in the row is measured at the rate found.",
     axis::nothing,
     figure_kind::bars,
     {m::saturating_rate, m::throughput_tokens_per_s, m::latency_ms, m::latency_p95_ms,
      m::busiest_server, m::increase_percent},
     saturations},
    {"map",
     "For which memory, precision, network and load does substitution pay?",
     "",
     "Latency of ordermoe with a budget below that of the fastest exact plan of the same setting: "
     "of exact, layer-shards, shard-chains, parallax and ordermoe without a budget. Beside it what "
     "static-pruning saves with the same budget.",
     axis::setting,
     figure_kind::map,
     {m::latency_ms, m::increase_percent, m::network_ms, m::compute_ms, m::waiting_ms},
     settings_of_the_map}};

}  // namespace

const char* title_of(axis which) {
  switch (which) {
    case axis::horizon:
      return "look-ahead horizon, layers";
    case axis::threshold:
      return "similarity threshold";
    case axis::memory_ratio:
      return "memory for experts over the model's";
    case axis::rate:
      return "requests per second";
    case axis::servers:
      return "servers";
    case axis::site_ms:
      return "between sites, ms";
    case axis::uplink_mbit:
      return "uplink of a server, Mbit/s";
    case axis::overhead_us:
      return "each message and each batch, us";
    case axis::prompt_tokens:
      return "tokens of a prompt";
    case axis::setting:
      return "setting";
    case axis::nothing:
      break;
  }
  return "";
}

setting_parts setting_of(const point& what) {
  std::string network = "as drawn";
  if (what.uplink_mbit > 0)
    network = fmt::format("uplinks {:g} Mbit/s", what.uplink_mbit);
  else if (what.n_sites == 1)
    network = "one site";
  else if (what.n_sites > 1)
    network = fmt::format("{} sites {:g} ms", what.n_sites, what.site_ms);
  return {fmt::format("{} {:g}", to_string(what.kept), what.memory_ratio), std::move(network),
          fmt::format("{:g}/s", what.rate)};
}

std::optional<double> place_on(axis which, const point& what) {
  switch (which) {
    case axis::horizon:
      if (!what.horizon) return std::nullopt;
      // The end comes behind the depths that are tried.
      return *what.horizon == to_the_end ? 6.0 : static_cast<double>(*what.horizon);
    case axis::threshold:
      return what.threshold;
    case axis::memory_ratio:
      return what.memory_ratio;
    case axis::rate:
      return what.rate;
    case axis::servers:
      return static_cast<double>(what.n_servers);
    case axis::site_ms:
      return what.site_ms;
    case axis::uplink_mbit:
      return what.uplink_mbit;
    case axis::overhead_us:
      return what.message_us;
    case axis::prompt_tokens:
      // Each place is twice the one before.
      return std::log2(static_cast<double>(std::max<std::size_t>(1, what.prompt_tokens)));
    case axis::setting:
    case axis::nothing:
      break;
  }
  return std::nullopt;
}

std::string place_name(axis which, const point& what) {
  const auto place = place_on(which, what);
  if (which == axis::horizon && what.horizon == to_the_end) return "all";
  if (which == axis::threshold && !place) return "by layer";
  if (which == axis::site_ms && what.n_sites == 1) return "one site";
  if (which == axis::setting) {
    const auto parts = setting_of(what);
    return fmt::format("{}, {}, {}", parts.memory, parts.network, parts.load);
  }
  if (which == axis::prompt_tokens) return fmt::format("{}", what.prompt_tokens);
  return place ? fmt::format("{:g}", *place) : std::string();
}

std::span<const experiment> experiments() {
  return table;
}

const experiment* find_experiment(std::string_view name) {
  const auto found = std::ranges::find(table, name, &experiment::name);
  return found == std::end(table) ? nullptr : &*found;
}

std::string series_of(const experiment& of, const point& what) {
  auto bare = what;
  if (of.swept == axis::horizon) bare.horizon.reset();
  auto name = variant_name(bare);
  if (of.swept == axis::site_ms && what.n_sites > 1)
    name += fmt::format(", {} sites", what.n_sites);
  return name;
}

}  // namespace ordermoe::experiments::testbed
