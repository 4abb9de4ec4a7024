// What a plan by what routers chose promises, and what it gives, in virtual time.
//
// bench_drift FROM TO SERVERS MEMORY_RATIO SEED...: the bundled model is calibrated on the documents of one domain
// (sums, records or prose of data/eval) and asked for another's, 48 beginnings of them at each server of a drawn cluster, one request
// in flight. Both plans are `ordermoe`'s at a zero budget for one request in flight. A line for each seed: what a decoded position is
// expected to take under the plan before, by its profile and by what was chosen; under the plan that goes by that; and what both
// take in emulation. The mean over positions of a server's users, weighted by their arrival share, is what both columns are about: an
// answer that ends by itself has one position more than tokens after its first. The last columns are both falls, and the measured
// one over the promised. What was chosen is counted as nodes count it, of decoded positions alone.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "actors/service/runtime.hpp"
#include "config/files.hpp"
#include "model/architecture/routing.hpp"
#include "model/forward.hpp"
#include "model/reference.hpp"
#include "planning/strategies/adaptation.hpp"
#include "setup/calibration.hpp"

namespace {

using namespace ordermoe;
using documents = std::vector<std::vector<std::int32_t>>;

template <class T>
T take(result<T> value) {
  if (value) return std::move(*value);
  fmt::print(stderr, "bench_drift: {}\n", value.error().message);
  std::exit(1);
}

const std::string folder = ORDERMOE_DATA "/models/lineage";

std::string domain_of(const std::string& document) {
  if (document.starts_with("Q:")) return "sums";
  return document.starts_with("{") ? "records" : "prose";
}

std::vector<std::string> documents_of(const std::string& file, const std::string& domain) {
  const auto text = take(read_file(ORDERMOE_DATA "/eval/" + file));
  std::vector<std::string> found;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find("\n\n", at), text.size());
    auto document = text.substr(at, end - at);
    at = end + 2;
    const auto first = document.find_first_not_of(" \n");
    if (first == std::string::npos) continue;
    document = document.substr(first, document.find_last_not_of(" \n") + 1 - first);
    if (domain_of(document) == domain) found.push_back(std::move(document));
  }
  return found;
}

struct bench {
  std::shared_ptr<const model::transformer> model = take(model::transformer::load(folder, {}));
  std::shared_ptr<const model::tokenizer> tokens = take(model::tokenizer::load(folder));
  cost_profile costs = take(named_cost_profile("mixtral-8x7b"));
  planning::profile profile;
  documents prompts;
  planning::measured_activation chosen;
  std::uint32_t new_tokens = 32;

  void calibrate(const std::string& domain) {
    constexpr std::size_t document_tokens = 256;
    std::string text;
    for (const auto& each : documents_of("calibration.txt", domain)) text += each + "\n\n";
    const auto ids = tokens->encode(text);
    setup::calibration_request wanted;
    wanted.folder = folder;
    wanted.model_name = "lineage";
    for (std::size_t at = 0; at + 2 < ids.size(); at += document_tokens) {
      const auto end = std::min(ids.size(), at + document_tokens);
      wanted.documents.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(at),
                                    ids.begin() + static_cast<std::ptrdiff_t>(end));
    }
    profile = take(setup::calibrate_model(*model, wanted));
  }

  /// Beginnings of documents that no calibration saw, as far as there are enough.
  void ask_for(const std::string& domain) {
    constexpr std::size_t most = 48, least_bytes = 8, most_tokens = 256;
    auto texts = documents_of("held-out.txt", domain);
    for (auto& more : documents_of("calibration.txt", domain)) texts.push_back(std::move(more));
    texts.resize(std::min(most, texts.size()));
    for (const auto& text : texts) {
      auto ids = tokens->encode(text.substr(0, std::max(least_bytes, text.size() / 2)));
      if (ids.size() > most_tokens) ids.resize(most_tokens);
      prompts.push_back(std::move(ids));
    }
  }

  /// What routers choose for the positions of the answers.
  void count() {
    const auto& shape = model->config();
    planning::activation_statistics seen(shape.n_layers, shape.n_experts, shape.top_k, 1e12);
    for (const auto& prompt : prompts) {
      model::generation_options options;
      options.max_new_tokens = new_tokens;
      auto answer = take(model::generate(*model, tokens.get(), prompt, options));
      auto ids = prompt;
      ids.insert(ids.end(), answer.token_ids.begin(), answer.token_ids.end());
      if (answer.reason != model::finish_reason::end_of_text) ids.pop_back();
      count_rows(ids, prompt.size(), seen);
    }
    chosen = seen.now();
  }

  void count_rows(std::vector<std::int32_t> ids, std::size_t first,
                  planning::activation_statistics& seen) {
    const auto& shape = model->config();
    std::vector<float> hidden(ids.size() * shape.hidden_size), normed(hidden.size());
    std::vector<float> logits(ids.size() * shape.n_experts);
    model->embed(ids, hidden);
    std::vector<std::vector<std::uint32_t>> before(ids.size());
    for (std::size_t l = 0; l < shape.n_layers; ++l) {
      const layer_id layer{l};
      auto cache = model->make_cache(layer, ids.size());
      const auto rows = model::rows_at(shape, layer, cache, {0, ids.size()}, ids.size());
      auto attended = hidden;
      model->attend(layer, rows, attended);
      model->route(layer, rows, attended, normed, logits);
      for (auto at = first; at < ids.size(); ++at) {
        std::vector<std::uint32_t> targets;
        for (const auto& slot : model::routed_slots(
                 std::span<const float>(logits).subspan(at * shape.n_experts, shape.n_experts),
                 shape))
          targets.push_back(slot.expert.value);
        std::ranges::sort(targets);
        seen.add(l, targets);
        before[at].insert(before[at].end(), targets.begin(), targets.end());
        if (l > 0) seen.add_steps(l, before[at]);
        before[at] = std::move(targets);
      }
      auto fresh = model->make_cache(layer, ids.size());
      model::run_layer(*model, layer, fresh, {0, ids.size()}, hidden);
    }
  }

  planning::strategy plan(const cluster& servers, const planning::profile& by) const {
    return take(planning::make_strategy("ordermoe", by, servers, costs, {}));
  }

  double expected_ms(const cluster& servers, const planning::profile& by,
                     const planning::plan& of) const {
    return planning::placement_cost_ns(by, of, servers, costs) * 1e-6;
  }

  /// Of a decoded position, with nobody else in flight.
  double emulated_ms(const cluster& servers, const planning::profile& by,
                     const planning::strategy& chosen_strategy) const {
    constexpr std::int64_t apart_ns = 60'000'000'000;
    actors::run_setup setup;
    setup.model = model;
    setup.servers = servers;
    setup.costs = costs;
    setup.profile = by;
    setup.chosen = chosen_strategy;
    for (std::uint32_t access = 0; access < servers.size(); ++access)
      for (const auto& prompt : prompts) {
        actors::request_spec spec;
        spec.access = access;
        spec.arrival_ns = static_cast<std::int64_t>(setup.requests.size()) * apart_ns;
        spec.prompt = prompt;
        spec.max_new_tokens = new_tokens;
        setup.requests.push_back(std::move(spec));
      }
    const auto run = take(actors::run_requests(setup));
    std::vector<double> ns(servers.size()), positions(servers.size());
    for (const auto& each : run.outcomes) {
      ns[each.access] += static_cast<double>(each.done_ns - each.first_token_ns);
      positions[each.access] += static_cast<double>(actors::further_tokens(each));
    }
    double mean = 0;
    for (std::size_t m = 0; m < servers.size(); ++m)
      mean += servers.servers[m].arrival_share * ns[m] / positions[m] * 1e-6;
    return mean;
  }

  void measure(std::size_t n_servers, double memory_ratio, std::uint64_t seed) const {
    draw_options drawn;
    drawn.n_servers = n_servers;
    drawn.seed = seed;
    drawn.memory_ratio = memory_ratio;
    drawn.costs = costs;
    const auto servers = draw_cluster(drawn);
    const auto measured = planning::with_measured_activation(profile, chosen);
    const auto before = plan(servers, profile), after = plan(servers, measured);
    const auto from = expected_ms(servers, measured, before.plan),
               to = expected_ms(servers, measured, after.plan);
    const auto took = emulated_ms(servers, profile, before),
               takes = emulated_ms(servers, measured, after);
    const auto promised = 1 - to / from, fell = 1 - takes / took;
    fmt::print(
        "{:>5}{:>10.2f}{:>10.2f}{:>10.2f} |{:>10.2f}{:>10.2f} |{:>9.1f} %{:>9.1f} %{:>7.2f}\n",
        seed, expected_ms(servers, profile, before.plan), from, to, took, takes, 100 * promised,
        100 * fell, fell / promised);
    std::fflush(stdout);
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    fmt::print(stderr, "bench_drift: expected FROM TO SERVERS MEMORY_RATIO SEED...\n");
    return 2;
  }
  bench world;
  world.calibrate(argv[1]);
  world.ask_for(argv[2]);
  world.count();
  fmt::print(
      "{} to {}, {} servers, room for {} copies: {} rows counted; ms of a decoded position\n",
      argv[1], argv[2], argv[3], argv[4], world.chosen.least_rows());
  fmt::print("{:>5}{:>10}{:>10}{:>10} |{:>10}{:>10} |{:>11}{:>11}{:>7}\n", "seed", "profile",
             "chosen", "plan anew", "took", "takes", "promised", "fell", "of it");
  for (int i = 5; i < argc; ++i)
    world.measure(static_cast<std::size_t>(std::atoi(argv[3])), std::atof(argv[4]),
                  static_cast<std::uint64_t>(std::atoll(argv[i])));
}
