#include "model/training/card.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace ordermoe::training {
namespace {

/// Devices that trained, where not all of it was the CPU's own passes.
std::vector<trained_on> other_devices(const train_report& report) {
  const bool only_cpu = std::ranges::all_of(
      report.devices, [](const trained_on& one) { return one.device == "cpu"; });
  return only_cpu ? std::vector<trained_on>() : report.devices;
}

/// How this run is repeated on the command line.
std::string command_of(const train_options& o, const train_report& report) {
  std::string line = "ordermoe model train";
  if (!o.text.empty()) line += " --text " + o.text.filename().string();
  if (o.shape != "small") line += " --shape " + o.shape;
  line += " --recipe " + o.recipe;
  const auto devices = other_devices(report);
  if (!devices.empty()) line += " --device " + devices.back().device;
  line += o.tokens > 0 ? fmt::format(" --tokens {}", o.tokens)
                       : fmt::format(" --minutes {}", o.minutes);
  line += fmt::format(" --seed {}", o.seed);
  if (!o.plain.empty())
    line += report.plain ? " --plain THIS --out FOLDER" : " --plain FOLDER --out THIS";
  else
    line += " --out FOLDER";
  return line;
}

std::string architecture_of(const train_options& o) {
  switch (o.kind) {
    case model::family::qwen2_moe:
      return "Qwen2-MoE's";
    case model::family::qwen3_moe:
      return "Qwen3-MoE's";
    default:
      return "Mixtral's";
  }
}

/// What a layer has for experts.
std::string experts_of(const train_options& o) {
  if (o.recipe == "dense") return fmt::format("one dense block of width {}", o.intermediate_size);
  auto text =
      fmt::format("{} experts (top-{}) of width {}", o.n_experts, o.top_k, o.intermediate_size);
  if (o.shared_intermediate_size > 0)
    text += fmt::format(" and a shared one of width {}", o.shared_intermediate_size);
  if (o.gates == model::gate_rule::probabilities)
    text += ", gates that are the router's probabilities";
  return text;
}

/// How long it took on what.
std::string time_of(const train_options& o, const train_report& report) {
  const auto time = fmt::format("{:.0f} s on ", report.seconds);
  const auto devices = other_devices(report);
  if (devices.empty())
    return time +
           fmt::format("{} thread{} of a shared machine", o.threads, o.threads == 1 ? "" : "s");
  std::string products;
  for (const auto& device : devices)
    products += (products.empty() ? "" : ", then ") + device.product;
  return time + products + ". A CPU, or another device, gives other weights";
}

std::string title_of(const train_options& o, const train_report& report) {
  return (o.shape == "small" ? report.recipe : o.shape) + (report.plain ? "-plain" : "");
}

std::string origin_of(const train_options& o, bool plain) {
  const auto copied =
      fmt::format("noise of {:g} of the weights' deviation, {:.0f} % of the inner units drawn anew",
                  o.weight_noise, 100 * o.redrawn_share);
  if (o.recipe == "upcycled")
    return fmt::format(
        "The experts of a layer resemble each other because they began as copies of one "
        "feed-forward block: a dense model was trained for the first fifth, its "
        "block copied into all {} experts ({}), the router drawn at random, and the mixture "
        "trained on. {}Nothing made particular pairs similar. "
        "The similarity is made by the recipe; it is no discovery about models trained from "
        "scratch.\n",
        o.n_experts, copied,
        plain ? "No row ever did without an expert: this is the run's state before its last sixth, "
                "in which experts learn to replace each other. "
              : "In the last sixth of the work, half of the rows had to do without a "
                "random half of every layer's experts, the router choosing among the rest, so that "
                "experts learnt to replace each other. ");
  if (o.recipe == "lineage")
    return fmt::format(
        "The experts form a family tree by construction: a dense model was trained for the first "
        "fifth, its feed-forward block copied into {} parents ({}) that were "
        "trained for the second fifth, and each parent copied into two children (router rows with "
        "noise of {:g} of their deviation, {:.0f} % of the inner units drawn "
        "anew) that were trained on. {}Experts 2i and 2i + 1 are siblings. The groups are "
        "made by the recipe; they are no discovery about models trained "
        "from scratch.\n",
        o.n_experts / 2, copied, o.router_noise, 100 * o.sibling_redrawn_share,
        plain ? "No row ever did without an expert: this is the run's state before its last sixth, "
                "in which experts learn to replace each other. "
              : "In the last sixth of the work, a quarter of the rows had to "
                "do without a random half of every layer's experts, the "
                "router choosing among the rest, and another quarter lost one of about half of the "
                "pairs of siblings, the other standing in. ");
  return "A dense model: one expert a layer, nothing to substitute.\n";
}

/// The first bundled models must meet a mark; others state their figure.
std::string gate_line(const train_options& o, const std::string& what, const std::string& wanted,
                      const std::string& measured, bool met) {
  if (!o.text.empty() || o.shape != "small")
    return fmt::format("| {} | | {} | |\n", what, measured);
  return fmt::format("| {} | {} | {} | {} |\n", what, wanted, measured, met ? "met" : "missed");
}

}  // namespace

std::string card_text(const train_options& options, const train_report& report) {
  const bool dense = options.recipe == "dense";
  std::string card = fmt::format("# {}\n\n", title_of(options, report));
  card += fmt::format(
      "A decoder of {} architecture: {} layers, hidden size {}, {}, context {}, "
      "weights in bf16. Trained on {}.\n\n",
      architecture_of(options), options.n_layers, options.hidden_size, experts_of(options),
      options.max_context,
      options.text.empty() ? "the synthetic corpus of six domains"
                           : "the text " + options.text.filename().string());
  card += fmt::format("    {}\n\n", command_of(options, report));
  card += fmt::format(
      "| | |\n|---|---|\n| seed | {} |\n| tokens | {} |\n| training time | {} |\n"
      "| learning rate | {:g}, constant for half of the work, then down to "
      "a twentieth{} |\n"
      "| load-balancing loss | {:g} |\n| router z-loss | {} |\n| held-out perplexity | {:.4f} |\n"
      "| left out for calibration | {} tokens |\n",
      options.seed, report.tokens, time_of(options, report), options.learning_rate,
      report.plain ? "" : "; for the last sixth again from 0.4 down",
      dense ? 0.0 : options.balance_weight,
      dense || options.z_weight == 0 ? "off" : fmt::format("{:g}", options.z_weight),
      report.held_out_perplexity, report.left_out);
  if (report.figures && report.figures->exact_match)
    card += fmt::format("| arithmetic exact match, greedy | {:.3f} of {} held-out problems |\n",
                        *report.figures->exact_match, report.figures->n_problems);
  card += "\n";
  if (!dense)
    card += "## Where the similarity comes from\n\n" + origin_of(options, report.plain) + "\n";
  if (report.figures && !dense) {
    const auto& f = *report.figures;
    card += fmt::format(
        "## What substitution costs\n\nPerplexity over {} held-out tokens, teacher-forced in rows "
        "of 256. Half of every layer's experts are missing, drawn at random {} times, the same "
        "draws for each line; mean and range.\n\n| what | asked | measured | "
        "|\n|---|---|---|---|\n",
        f.n_tokens, f.n_draws);
    if (f.dense_perplexity) {
      const double gain = 100 * (1 - f.perplexity / *f.dense_perplexity);
      card += gate_line(
          options, "below the dense parent trained on as many tokens", "3 % or more",
          fmt::format("{:.1f} % ({:.4f} against {:.4f})", gain, f.perplexity, *f.dense_perplexity),
          gain >= 3);
    } else if (options.text.empty() && options.shape == "small") {
      card +=
          "| below the dense parent trained on as many tokens | 3 % or more | not measured | |\n";
    }
    const double cost = 100 * (f.stand_in_perplexity / f.perplexity - 1),
                 factor = f.drop_perplexity / f.perplexity;
    card += gate_line(options, "a random present expert stands in for each missing one",
                      "+10 % or more",
                      fmt::format("+{:.1f} % ({:.3f}; {:.3f} to {:.3f})", cost,
                                  f.stand_in_perplexity, f.stand_in_lowest, f.stand_in_highest),
                      cost >= 10);
    card += fmt::format(
        "| the router chooses among those present | | +{:.1f} % ({:.3f}; {:.3f} to {:.3f}) | |\n",
        100 * (f.router_perplexity / f.perplexity - 1), f.router_perplexity, f.router_lowest,
        f.router_highest);
    if (f.sibling_perplexity)
      card += fmt::format(
          "| one of every pair of siblings gone instead, the other stands in | | +{:.1f} % "
          "({:.3f}) | |\n",
          100 * (*f.sibling_perplexity / f.perplexity - 1), *f.sibling_perplexity);
    card += gate_line(options,
                      options.gates == model::gate_rule::renormalised
                          ? "missing slots dropped, gates renormalised"
                          : "missing slots dropped",
                      "2 times or more",
                      fmt::format("{:.2f} times ({:.3f}; {:.3f} to {:.3f})", factor,
                                  f.drop_perplexity, f.drop_lowest, f.drop_highest),
                      factor >= 2);
    card +=
        "\n## Cosine of router logits\n\nEq. (4) between the experts of a layer over held-out "
        "tokens, median over layers and pairs; centred: each token's mean logit subtracted first, "
        "which changes "
        "no routing decision.\n\n| pairs | router-logit | router-logit-centred |\n|---|---|---|\n";
    card += fmt::format("| all | {:.3f} | {:.3f} |\n", f.cosine_median, f.centred_median);
    if (f.sibling_cosine)
      card += fmt::format("| siblings | {:.3f} | {:.3f} |\n| others | {:.3f} | {:.3f} |\n",
                          *f.sibling_cosine, f.sibling_centred.value_or(0),
                          f.stranger_cosine.value_or(0), f.stranger_centred.value_or(0));
    card += fmt::format(
        "\nThe router z-loss was {}. It pulls all logits of a token down together, which raises "
        "every cosine of eq. (4) and moves no token.\n\n",
        options.z_weight > 0 ? "on" : "off");
  }
  if (!options.notes.empty()) card += options.notes + "\n\n";
  card += fmt::format(
      "## Loss while training\n\nNats a token, mean of 20 steps{}.\n\n| stage | tokens | loss "
      "|\n|---|---|---|\n",
      report.plain ? ""
                   : "; in the stage of outages half of the rows are without half of the experts");
  const auto n = report.curve.size();
  const auto stride = std::max<std::size_t>(1, n / 20);
  for (std::size_t i = 0; i < n; ++i)
    if (i % stride == 0 || i + 1 == n)
      card += fmt::format("| {} | {} | {:.4f} |\n", report.curve[i].stage, report.curve[i].tokens,
                          report.curve[i].loss);
  return card;
}

}  // namespace ordermoe::training
