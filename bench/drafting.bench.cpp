// How often a model without most of its experts guesses what the whole model says: what drafting at one server would be worth.
//
// bench_drafting --model DIR [--profile FILE] [--cluster FILE] [--costs NAME] [--prompts N] [--tokens N] [--seed N] [--json]: of N pieces of the held-out text the model's own
// greedy continuations (ends of text are passed over) are what it says. Behind every position of them a drafter guesses the next 1 to 6 tokens, each from
// those before it that it guessed itself. Printed is how often the first 1 to 6 are all right, and how many tokens come of one pass of the whole
// model that checks 4 guesses: one more than are right. Drafters:
//
//   N of E    the model with N experts in every layer, an eighth to three quarters of them, the router choosing among these and gates
//             renormalised as the model does: chosen at random, by popularity in the profile, and greedily: from the better of the two the best of up to 16
//             exchanges in each layer, for the share of first guesses that are right on other pieces of the text
//   int4      all experts, in int4
//   half      every second layer without experts
//   look-up   what followed the last place where the last three tokens, or two, or one, stood before
//
// each with the whole model's keys and values of what is checked (`exact`), and with its own (`own`). With --cluster also what a guess and a pass are charged: a
// guess at one server that holds the drafter's experts, the fastest that has room for them, and passes of 1 to 7 rows along the pipeline of
// `layer-shards`, compute and network apart, waiting for nobody; several rows read the weights of the experts that they chose, counted on these texts.
// Then with how many guesses a pass is worth most, how many times as fast answers are than without, and from how many milliseconds of network a pass
// guessing pays at all.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/arguments.hpp"
#include "config/cluster.hpp"
#include "config/files.hpp"
#include "config/random.hpp"
#include "model/forward.hpp"
#include "model/reference.hpp"
#include "model/text/tokenizer.hpp"
#include "planning/cost_model.hpp"
#include "planning/profile.hpp"
#include "planning/strategies/strategies.hpp"

namespace {

using namespace ordermoe;
using namespace ordermoe::model;

constexpr std::size_t prompt_tokens = 48, most_guesses = 6;

struct arguments {
  std::string folder, profile, cluster, costs = "mixtral-8x7b";
  std::size_t n_prompts = 24, n_tokens = 32;
  std::uint64_t seed = 1;
  bool json = false;
};

[[noreturn]] void fail(const std::string& message) {
  fmt::print(stderr, "bench_drafting: {}\n", message);
  std::exit(1);
}

template <class T>
T take(result<T> made) {
  if (!made) fail(made.error().message);
  return std::move(*made);
}

arguments read_arguments(int argc, char** argv) {
  arguments given;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--json") {
      given.json = true;
      continue;
    }
    if (i + 1 == argc)
      fail(fmt::format("found '{}'; the source's first lines say what is expected", word));
    const std::string next = argv[++i];
    const auto number = [&] {
      const auto value = bench::number_above_zero(next);
      if (!value) fail(fmt::format("{}: found '{}', expected a number above 0", word, next));
      return *value;
    };
    if (word == "--model") {
      given.folder = next;
    } else if (word == "--profile") {
      given.profile = next;
    } else if (word == "--cluster") {
      given.cluster = next;
    } else if (word == "--costs") {
      given.costs = next;
    } else if (word == "--prompts") {
      given.n_prompts = number();
    } else if (word == "--tokens") {
      given.n_tokens = number();
    } else if (word == "--seed") {
      given.seed = number();
    } else {
      fail(fmt::format("found '{}'; the source's first lines say what is expected", word));
    }
  }
  if (given.folder.empty()) fail("expected --model DIR");
  if (given.profile.empty()) given.profile = given.folder + "/profile.json";
  return given;
}

/// [n_layers] bit e: expert e is there.
using expert_masks = std::vector<std::uint64_t>;

/// The router's choice among the experts that are there.
slot_override among(const model_config& config, const expert_masks& there) {
  return [&config, &there](layer_id layer, std::size_t, std::span<const float> logits,
                           std::vector<executed_slot>& slots) {
    std::vector<float> open(logits.begin(), logits.end());
    const auto mask = there[layer.index()];
    for (std::size_t e = 0; e < open.size(); ++e)
      if (!((mask >> e) & 1u)) open[e] = -std::numeric_limits<float>::infinity();
    slots = routed_slots(open, config);
    // Where fewer are there than a row may have.
    std::erase_if(slots,
                  [&](const executed_slot& each) { return !((mask >> each.expert.index()) & 1u); });
  };
}

std::int32_t likeliest(const transformer& model, std::span<const float> hidden) {
  std::vector<float> scores(model.config().vocab_size);
  model.head(hidden, scores);
  return static_cast<std::int32_t>(std::ranges::max_element(scores) - scores.begin());
}

/// The hidden states of these tokens behind `first` others, whose rows the caches have.
std::vector<float> pass(const transformer& model, std::vector<kv_cache>& caches, std::size_t first,
                        std::span<const std::int32_t> ids, const slot_override& slots = {}) {
  std::vector<float> hidden(ids.size() * model.config().hidden_size);
  model.embed(ids, hidden);
  for (std::size_t l = 0; l < model.config().n_layers; ++l)
    run_layer(model, layer_id{l}, caches[l], {.first = first}, hidden, slots);
  return hidden;
}

/// A prompt and what the whole model says to it.
struct spoken {
  std::vector<std::int32_t> ids;
  std::vector<kv_cache> caches;  ///< The whole model's, of all ids but the last.
};

spoken speak(const transformer& model, std::span<const std::int32_t> prompt, std::size_t n) {
  spoken made{{prompt.begin(), prompt.end()}, make_caches(model, prompt.size() + n + most_guesses)};
  const auto width = model.config().hidden_size;
  std::size_t done = 0;
  while (made.ids.size() < prompt.size() + n + most_guesses) {
    const auto hidden = pass(model, made.caches, done, std::span(made.ids).subspan(done));
    done = made.ids.size();
    made.ids.push_back(likeliest(model, std::span(hidden).last(width)));
  }
  return made;
}

/// Copies rows [first, first + n) of every layer.
void copy_rows(const std::vector<kv_cache>& from, std::vector<kv_cache>& to, std::size_t first,
               std::size_t n) {
  std::vector<std::uint8_t> row(from.front().row_bytes());
  for (std::size_t l = 0; l < from.size(); ++l)
    for (std::size_t p = first; p < first + n; ++p) {
      from[l].read_bytes(p, row);
      to[l].put_bytes(p, row);
    }
}

/// How often the first 1 to 6 guesses are all right.
struct acceptance {
  std::array<double, most_guesses> all_right{};
  std::size_t n = 0;

  double share(std::size_t guesses) const {
    return all_right[guesses - 1] / static_cast<double>(n);
  }
  /// Of a pass that checks so many guesses: those that are right, and one more.
  double tokens_a_pass(std::size_t guesses) const {
    double sum = 1;
    for (std::size_t i = 1; i <= guesses; ++i) sum += share(i);
    return sum;
  }
  void note(std::size_t right) {
    for (std::size_t i = 0; i < right; ++i) ++all_right[i];
    ++n;
  }
};

struct drafter {
  std::string name;
  const transformer* model;
  slot_override slots;
};

/// `own`: with the drafter's own keys and values of what is checked.
acceptance measure(const drafter& who, const std::vector<spoken>& texts, std::size_t n_tokens,
                   bool own) {
  acceptance found;
  const auto width = who.model->config().hidden_size;
  for (const auto& text : texts) {
    auto base = make_caches(*who.model, text.ids.size());
    if (own) pass(*who.model, base, 0, std::span(text.ids).first(text.ids.size() - 1), who.slots);
    const auto& known = own ? base : text.caches;
    auto caches = make_caches(*who.model, text.ids.size());
    copy_rows(known, caches, 0, prompt_tokens - 1);
    for (std::size_t p = prompt_tokens - 1; p + 1 < prompt_tokens + n_tokens; ++p) {
      std::size_t right = 0;
      for (auto id = text.ids[p]; right < most_guesses; ++right) {
        const auto hidden = pass(*who.model, caches, p + right, {&id, 1}, who.slots);
        id = likeliest(*who.model, std::span(hidden).last(width));
        if (id != text.ids[p + right + 1]) break;
      }
      found.note(right);
      copy_rows(known, caches, p, 1);
    }
  }
  return found;
}

acceptance look_up(const std::vector<spoken>& texts, std::size_t n_tokens) {
  acceptance found;
  for (const auto& text : texts)
    for (std::size_t p = prompt_tokens - 1; p + 1 < prompt_tokens + n_tokens; ++p) {
      std::optional<std::size_t> place;  // Of the token that followed.
      for (std::size_t length = 3; length > 0 && !place; --length)
        for (std::size_t end = p; end-- >= length && !place;)
          if (std::equal(&text.ids[end + 1 - length], &text.ids[end + 1],
                         &text.ids[p + 1 - length]))
            place = end + 1;
      std::size_t right = 0;
      // What was guessed goes on the text where a place runs into its end.
      while (place && right < most_guesses && text.ids[*place + right] == text.ids[p + 1 + right])
        ++right;
      found.note(right);
    }
  return found;
}

expert_masks random_masks(const model_config& config, std::size_t n, std::uint64_t seed) {
  random_stream draws(seed, n);
  expert_masks made(config.n_layers);
  for (auto& mask : made)
    while (static_cast<std::size_t>(std::popcount(mask)) < n)
      mask |= std::uint64_t{1} << draws.below(config.n_experts);
  return made;
}

expert_masks popular_masks(const planning::profile& known, std::size_t n) {
  expert_masks made;
  for (const auto& layer : known.layers) {
    std::vector<std::size_t> order(layer.activation.size());
    for (std::size_t e = 0; e < order.size(); ++e) order[e] = e;
    std::ranges::stable_sort(order, std::greater(), [&](auto e) { return layer.activation[e]; });
    std::uint64_t mask = 0;
    for (std::size_t i = 0; i < n; ++i) mask |= std::uint64_t{1} << order[i];
    made.push_back(mask);
  }
  return made;
}

/// Share of first guesses that are right, all positions of a text in one pass.
double first_right(const transformer& model, const std::vector<spoken>& texts,
                   const slot_override& slots) {
  std::size_t right = 0, n = 0;
  const auto width = model.config().hidden_size;
  for (const auto& text : texts) {
    auto caches = make_caches(model, text.ids.size());
    const auto hidden =
        pass(model, caches, 0, std::span(text.ids).first(text.ids.size() - 1), slots);
    for (std::size_t p = prompt_tokens - 1; p + 1 < text.ids.size(); ++p, ++n)
      right += likeliest(model, std::span(hidden).subspan(p * width, width)) == text.ids[p + 1];
  }
  return static_cast<double>(right) / static_cast<double>(n);
}

/// From those of these sets that guess better: in each layer the exchange of one expert that gains most, of up to 16 that are drawn, layer
/// after layer.
expert_masks greedy_masks(const transformer& model, std::vector<expert_masks> sets,
                          const std::vector<spoken>& texts, std::uint64_t seed) {
  constexpr std::size_t most_exchanges = 16;
  expert_masks made;
  double best = -1;
  for (auto& each : sets) {
    const double found = first_right(model, texts, among(model.config(), each));
    if (found > best) best = found, made = std::move(each);
  }
  random_stream draws(seed, 0x9d);
  const auto slots = among(model.config(), made);
  for (auto& mask : made) {
    const auto before = mask;
    std::vector<std::uint64_t> tried;
    for (std::size_t out = 0; out < model.config().n_experts; ++out)
      for (std::size_t in = 0; in < model.config().n_experts; ++in)
        if (((before >> out) & 1u) && !((before >> in) & 1u))
          tried.push_back((before & ~(std::uint64_t{1} << out)) | std::uint64_t{1} << in);
    for (std::size_t i = tried.size(); i > 1; --i) std::swap(tried[i - 1], tried[draws.below(i)]);
    tried.resize(std::min(tried.size(), most_exchanges));
    auto kept = before;
    for (const auto each : tried) {
      mask = each;
      const double found = first_right(model, texts, slots);
      if (found > best) best = found, kept = each;
    }
    mask = kept;
  }
  return made;
}

/// What is charged on a cluster.
struct priced {
  cluster servers;
  cost_profile costs;
  std::array<double, most_guesses + 1> compute_ms{};  ///< Of passes of 1 to 7 rows.
  double network_ms = 0;                              ///< Of any pass.
};

/// Experts that 1 to 7 rows one after the other choose in a layer, in the mean.
std::array<double, most_guesses + 1> experts_of_rows(const transformer& model,
                                                     const std::vector<spoken>& texts) {
  const auto& config = model.config();
  std::array<double, most_guesses + 1> found{};
  std::size_t n = 0;
  for (const auto& text : texts) {
    std::vector<std::vector<std::uint64_t>> chosen(config.n_layers);
    auto caches = make_caches(model, text.ids.size());
    pass(model, caches, 0, std::span(text.ids).first(text.ids.size() - 1),
         [&](layer_id layer, std::size_t, std::span<const float> logits,
             std::vector<executed_slot>& slots) {
           slots = routed_slots(logits, config);
           std::uint64_t mask = 0;
           for (const auto& each : slots) mask |= std::uint64_t{1} << each.expert.index();
           chosen[layer.index()].push_back(mask);
         });
    for (const auto& layer : chosen)
      for (std::size_t p = prompt_tokens; p + most_guesses < layer.size(); ++p, ++n) {
        std::uint64_t mask = 0;
        for (std::size_t i = 0; i <= most_guesses; ++i) {
          mask |= layer[p + i];
          found[i] += std::popcount(mask);
        }
      }
  }
  for (auto& each : found) each /= static_cast<double>(n);
  return found;
}

double compute_ms(const server_spec& server, const cost_profile& costs, std::size_t n_layers,
                  double experts, double rows, double slots, std::int64_t expert_bytes) {
  const auto whole = [](double value) { return static_cast<std::int64_t>(std::llround(value)); };
  const auto layer = compute_ns(server, whole(rows * static_cast<double>(costs.attention_flops)),
                                costs.attention_bytes) +
                     compute_ns(server, whole(slots * static_cast<double>(costs.expert_flops)),
                                whole(experts * static_cast<double>(expert_bytes)));
  return static_cast<double>(layer) * 1e-6 * static_cast<double>(n_layers);
}

double head_ms(const server_spec& server, const cost_profile& costs, double rows) {
  return static_cast<double>(compute_ns(server,
                                        std::llround(rows * static_cast<double>(costs.head_flops)),
                                        costs.head_bytes)) *
         1e-6;
}

priced price(const arguments& given, const transformer& model, const planning::profile& known,
             const std::vector<spoken>& texts) {
  priced made{take(read_cluster(given.cluster)), take(named_cost_profile(given.costs))};
  const auto plan =
      take(planning::make_strategy("layer-shards", known, made.servers, made.costs, {})).plan;
  const auto prices = planning::make_cost_model(made.servers, made.costs);
  const auto top_k = static_cast<double>(model.config().top_k);
  const auto experts = experts_of_rows(model, texts);
  const auto at = [&](std::size_t layer) {
    return static_cast<std::size_t>(std::countr_zero(plan.residence.front().layers[layer]));
  };
  for (std::size_t l = 0; l < plan.n_layers; ++l) {
    const auto& server = made.servers.servers[at(l)];
    for (std::size_t i = 0; i < experts.size(); ++i) {
      const auto rows = static_cast<double>(i + 1);
      made.compute_ms[i] += compute_ms(server, made.costs, 1, experts[i], rows, rows * top_k,
                                       made.costs.expert_bytes);
      if (l + 1 == plan.n_layers) made.compute_ms[i] += head_ms(server, made.costs, rows);
    }
    made.network_ms += prices.hidden(at(l), at((l + 1) % plan.n_layers)) * 1e-6;
  }
  return made;
}

/// What guessing is worth.
struct worth {
  std::size_t guesses = 0;  ///< At which it is worth most.
  double times = 0;         ///< As fast as without.
  double even_ms =
      0;  ///< Of network a pass from which some number of guesses is faster than none; infinity: never.
};

worth worth_of(const priced& where, const acceptance& found, double guess_ms) {
  worth best;
  best.even_ms = std::numeric_limits<double>::infinity();
  const double alone = where.compute_ms[0];
  for (std::size_t k = 1; k <= most_guesses; ++k) {
    const double tokens = found.tokens_a_pass(k);
    const double compute = static_cast<double>(k) * guess_ms + where.compute_ms[k];
    const double times = tokens * (alone + where.network_ms) / (compute + where.network_ms);
    if (times > best.times) best.guesses = k, best.times = times;
    if (tokens > 1)
      best.even_ms =
          std::min(best.even_ms, std::max(0.0, (compute - tokens * alone) / (tokens - 1)));
  }
  return best;
}

/// One guess at the fastest server that has room for so many experts of every layer; none where there is none.
std::optional<double> guess_ms(const priced& where, const model_config& config, double experts,
                               double slots, precision kept) {
  const auto bytes = expert_bytes(where.costs, kept);
  std::optional<double> least;
  for (const auto& server : where.servers.servers) {
    const auto room = expert_memory_bytes(server, where.costs, config.n_layers);
    if (static_cast<double>(room) <
        experts * static_cast<double>(bytes) * static_cast<double>(config.n_layers))
      continue;
    const auto ms = compute_ms(server, where.costs, config.n_layers, slots, 1, slots, bytes) +
                    head_ms(server, where.costs, 1);
    if (!least || ms < *least) least = ms;
  }
  return least;
}

}  // namespace

int main(int argc, char** argv) {
  const auto given = read_arguments(argc, argv);
  const auto model = take(transformer::load(given.folder));
  const auto coarse = take(transformer::load(given.folder, {.expert_precision = precision::int4}));
  const auto known = take(planning::read_profile(given.profile));
  const auto tokens = take(tokenizer::load(given.folder));
  const auto& config = model->config();
  if (config.encoder_decoder || config.n_experts > 64)
    fail(given.folder + ": expected a decoder of at most 64 experts a layer");
  const auto ids = tokens->encode(take(read_file(ORDERMOE_DATA "/eval/held-out.txt")));
  // Those that experts are chosen on come behind the others.
  const std::size_t n_chosen_on = std::max<std::size_t>(1, given.n_prompts / 3);
  const auto stride = ids.size() / (given.n_prompts + n_chosen_on);
  if (stride < prompt_tokens)
    fail("the held-out text has not so many pieces; ask for fewer --prompts");
  std::vector<spoken> texts, others;
  for (std::size_t i = 0; i < given.n_prompts + n_chosen_on; ++i)
    (i < given.n_prompts ? texts : others)
        .push_back(
            speak(*model, std::span(ids).subspan(i * stride, prompt_tokens), given.n_tokens));
  std::optional<priced> where;
  if (!given.cluster.empty()) where = price(given, *model, known, texts);

  nlohmann::ordered_json report{
      {"model", given.folder}, {"prompts", given.n_prompts}, {"tokens", given.n_tokens}};
  if (!given.json)
    fmt::print(
        "{}: {} positions; how often the first 1 to 6 guesses are all right, and tokens of a pass "
        "that checks four\n",
        given.folder, given.n_prompts * given.n_tokens);
  if (where) {
    report["pass_compute_ms"] = where->compute_ms;
    report["pass_network_ms"] = where->network_ms;
    if (!given.json)
      fmt::print("passes of 1 to 7 rows take {:.1f} ms of compute, and {:.1f} of network\n",
                 fmt::join(where->compute_ms, ", "), where->network_ms);
  }
  const auto tell = [&](const std::string& name, const char* keys, const acceptance& found,
                        std::optional<double> ms) {
    nlohmann::ordered_json row{{"drafter", name}, {"keys_and_values", keys}};
    std::string line = fmt::format("{:<24} {:<6}", name, keys);
    for (std::size_t i = 1; i <= most_guesses; ++i) {
      row["all_right"].push_back(found.share(i));
      line += fmt::format(" {:.2f}", found.share(i));
    }
    row["tokens_of_four"] = found.tokens_a_pass(4);
    line += fmt::format("  {:.2f}", found.tokens_a_pass(4));
    if (where && ms) {
      const auto of = worth_of(*where, found, *ms);
      row["guess_ms"] = *ms;
      row["guesses"] = of.guesses;
      row["times_as_fast"] = of.times;
      row["even_ms"] = nullptr;
      if (!std::isinf(of.even_ms)) row["even_ms"] = of.even_ms;
      line += fmt::format("  a guess {:.1f} ms; with {} {:.2f} times as fast; pays from {:.0f} ms",
                          *ms, of.guesses, of.times, of.even_ms);
    } else if (where) {
      line += "  fits no server";
    }
    report["rows"].push_back(row);
    if (!given.json) fmt::print("{}\n", line), std::fflush(stdout);
  };
  const auto both = [&](const drafter& who, std::optional<double> ms) {
    for (const bool own : {false, true})
      tell(who.name, own ? "own" : "exact", measure(who, texts, given.n_tokens, own), ms);
  };
  const auto top_k = config.top_k;
  tell("look-up", "", look_up(texts, given.n_tokens), where ? std::optional(0.0) : std::nullopt);
  for (const std::size_t eighths : {1, 2, 4, 6}) {
    const auto n = std::max<std::size_t>(1, config.n_experts * eighths / 8);
    const auto slots = static_cast<double>(std::min(n, top_k));
    const auto ms = where
                        ? guess_ms(*where, config, static_cast<double>(n), slots, precision::stored)
                        : std::nullopt;
    const auto at_random = random_masks(config, n, given.seed), popular = popular_masks(known, n);
    const std::pair<const char*, expert_masks> sets[] = {
        {"at random", at_random},
        {"popular", popular},
        {"greedy", greedy_masks(*model, {at_random, popular}, others, given.seed)}};
    for (const auto& [how, masks] : sets)
      both({fmt::format("{} of {}, {}", n, config.n_experts, how), model.get(),
            among(config, masks)},
           ms);
  }
  const auto all = static_cast<double>(config.n_experts), slots = static_cast<double>(top_k);
  both({"int4", coarse.get(), {}},
       where ? guess_ms(*where, config, all, slots, precision::int4) : std::nullopt);
  both({"half", model.get(),
        [&](layer_id layer, std::size_t, std::span<const float> logits,
            std::vector<executed_slot>& of) {
          of.clear();
          if (layer.index() % 2 == 0) of = routed_slots(logits, config);
        }},
       where ? guess_ms(*where, config, all / 2, slots / 2, precision::stored) : std::nullopt);
  if (given.json) fmt::print("{}\n", report.dump(2));
}
