#include "model/training/card.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace ordermoe::training {
namespace {

/// How this run is repeated on the command line.
std::string command_of(const train_options& o) {
  std::string line = "ordermoe model train";
  if (!o.text.empty()) line += " --text " + o.text.filename().string();
  line += " --recipe " + o.recipe;
  line += o.tokens > 0 ? fmt::format(" --tokens {}", o.tokens)
                       : fmt::format(" --minutes {}", o.minutes);
  line += fmt::format(" --seed {} --out FOLDER", o.seed);
  return line;
}

std::string origin_of(const train_options& o) {
  const auto copied =
      fmt::format("noise of {:g} of the weights' deviation, {:.0f} % of the inner units drawn anew",
                  o.weight_noise, 100 * o.redrawn_share);
  if (o.recipe == "upcycled")
    return fmt::format(
        "The experts of a layer resemble each other because they began as copies of one "
        "feed-forward block: a dense model was trained for the first fifth, its "
        "block copied into all {} experts ({}), the router drawn at random, and the mixture "
        "trained on. In the last sixth of the work, half of the rows had to do without a "
        "random half of every layer's experts, the router choosing among the rest, so that experts "
        "learnt to replace each other. Nothing made particular pairs similar. "
        "The similarity is made by the recipe; it is no discovery about models trained from "
        "scratch.\n",
        o.n_experts, copied);
  if (o.recipe == "lineage")
    return fmt::format(
        "The experts form a family tree by construction: a dense model was trained for the first "
        "fifth, its feed-forward block copied into {} parents ({}) that were "
        "trained for the second fifth, and each parent copied into two children (router rows with "
        "noise of {:g} of their deviation, {:.0f} % of the inner units drawn "
        "anew) that were trained on. In the last sixth of the work, a quarter of the rows had to "
        "do without a random half of every layer's experts, the "
        "router choosing among the rest, and another quarter lost one of about half of the pairs "
        "of siblings, the other standing in. Experts 2i and 2i + 1 are siblings. The groups are "
        "made by the recipe; they are no discovery about models trained "
        "from scratch.\n",
        o.n_experts / 2, copied, o.router_noise, 100 * o.sibling_redrawn_share);
  return "A dense model: one expert a layer, nothing to substitute.\n";
}

/// A bundled model must meet a mark; a user's model states its figure.
std::string gate_line(const train_options& o, const std::string& what, const std::string& wanted,
                      const std::string& measured, bool met) {
  if (!o.text.empty()) return fmt::format("| {} | | {} | |\n", what, measured);
  return fmt::format("| {} | {} | {} | {} |\n", what, wanted, measured, met ? "met" : "missed");
}

}  // namespace

std::string card_text(const train_options& options, const train_report& report) {
  const bool dense = options.recipe == "dense";
  std::string card = fmt::format("# {}\n\n", report.recipe);
  card += fmt::format(
      "A decoder of Mixtral's architecture: {} layers, hidden size {}, {} of width {}, context {}, "
      "weights in bf16. Trained on {}.\n\n",
      options.n_layers, options.hidden_size,
      dense ? "one dense block"
            : fmt::format("{} experts (top-{})", options.n_experts, options.top_k),
      options.intermediate_size, options.max_context,
      options.text.empty() ? "the synthetic corpus of six domains"
                           : "the text " + options.text.filename().string());
  card += fmt::format("    {}\n\n", command_of(options));
  card += fmt::format(
      "| | |\n|---|---|\n| seed | {} |\n| tokens | {} |\n| training time | {:.0f} s on {} thread{} "
      "of a shared machine |\n| learning rate | {:g}, constant for half of the work, then down to "
      "a twentieth; for the last sixth again from 0.4 down |\n"
      "| load-balancing loss | {:g} |\n| router z-loss | {} |\n| held-out perplexity | {:.4f} |\n"
      "| left out for calibration | {} tokens |\n",
      options.seed, report.tokens, report.seconds, options.threads, options.threads == 1 ? "" : "s",
      options.learning_rate, dense ? 0.0 : options.balance_weight,
      dense || options.z_weight == 0 ? "off" : fmt::format("{:g}", options.z_weight),
      report.held_out_perplexity, report.left_out);
  if (report.figures && report.figures->exact_match)
    card += fmt::format("| arithmetic exact match, greedy | {:.3f} of {} held-out problems |\n",
                        *report.figures->exact_match, report.figures->n_problems);
  card += "\n";
  if (!dense) card += "## Where the similarity comes from\n\n" + origin_of(options) + "\n";
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
    } else if (options.text.empty()) {
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
    card += gate_line(options, "missing slots dropped, gates renormalised", "2 times or more",
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
  card +=
      "## Loss while training\n\nNats a token, mean of 20 steps; in the stage of outages half of "
      "the rows are without half of the experts.\n\n| stage | tokens | loss "
      "|\n|---|---|---|\n";
  const auto n = report.curve.size();
  const auto stride = std::max<std::size_t>(1, n / 20);
  for (std::size_t i = 0; i < n; ++i)
    if (i % stride == 0 || i + 1 == n)
      card += fmt::format("| {} | {} | {:.4f} |\n", report.curve[i].stage, report.curve[i].tokens,
                          report.curve[i].loss);
  return card;
}

}  // namespace ordermoe::training
