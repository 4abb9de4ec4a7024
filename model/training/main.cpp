#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <fmt/format.h>

#include "model/training/evaluation_data.hpp"
#include "model/training/shapes.hpp"
#include "model/training/train.hpp"

namespace {
std::atomic<bool> stop{false};
}

/// ordermoe_train key=value ... or ordermoe_train evaluation-data FOLDER SEED: training without the
/// ordermoe command, for runs in the background.
int main(int argc, char** argv) {
  ordermoe::training::train_options options;
  if (argc == 4 && std::string(argv[1]) == "evaluation-data") {
    const auto written =
        ordermoe::training::write_evaluation_data(argv[2], std::strtoull(argv[3], nullptr, 10));
    if (!written) fmt::print(stderr, "{}\n", written.error().message);
    return written ? 0 : ordermoe::exit_code(written.error().code);
  }
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto cut = argument.find('=');
    const auto key = argument.substr(0, cut),
               value = cut == std::string::npos ? std::string() : argument.substr(cut + 1);
    const auto number = [&] { return std::strtod(value.c_str(), nullptr); };
    if (key == "out")
      options.out = value;
    else if (key == "text")
      options.text = value;
    else if (key == "state")
      options.state = value;
    else if (key == "dense")
      options.dense_state = value;
    else if (key == "plain")
      options.plain = value;
    else if (key == "device")
      options.device = value;
    else if (key == "shape") {  // Before what changes it.
      if (const auto known = ordermoe::training::use_shape(options, value); !known) {
        fmt::print(stderr, "{}\n", known.error().message);
        return 2;
      }
    } else if (key == "layers")
      options.n_layers = static_cast<std::size_t>(number());
    else if (key == "recipe")
      options.recipe = value;
    else if (key == "tokens")
      options.tokens = static_cast<std::uint64_t>(number());
    else if (key == "minutes")
      options.minutes = number();
    else if (key == "seed")
      options.seed = static_cast<std::uint64_t>(number());
    else if (key == "rate")
      options.learning_rate = number();
    else if (key == "rows")
      options.sequences_per_step = static_cast<std::size_t>(number());
    else if (key == "redrawn")
      options.redrawn_share = number();
    else if (key == "sibling_redrawn")
      options.sibling_redrawn_share = number();
    else if (key == "notes")
      options.notes = value;
    else if (key == "noise")
      options.weight_noise = number();
    else if (key == "router_noise")
      options.router_noise = number();
    else if (key == "z")
      options.z_weight = number();
    else if (key == "balance")
      options.balance_weight = number();
    else if (key == "inner")
      options.intermediate_size = static_cast<std::size_t>(number());
    else if (key == "threads")
      options.threads = static_cast<int>(number());
    else if (key == "measure")
      options.measure = number() != 0;
    else {
      fmt::print(stderr, "{}: not an option\n", argument);
      return 2;
    }
  }
  std::signal(SIGINT, [](int) { stop = true; });
  options.should_stop = [] { return stop.load(); };
  options.on_progress = [](const ordermoe::training::train_progress& p) {
    fmt::print(stderr, "{} step {} tokens {} {:.1f} % loss {:.4f} {:.0f} tokens/s\n", p.stage,
               p.step, p.tokens, 100 * p.share_done, p.loss, p.tokens_per_s);
  };
  const auto report = ordermoe::training::train(options);
  if (!report) {
    fmt::print(stderr, "{}\n", report.error().message);
    return ordermoe::exit_code(report.error().code);
  }
  fmt::print("held-out perplexity {:.4f} after {} tokens in {:.0f} s\n",
             report->held_out_perplexity, report->tokens, report->seconds);
  if (const auto& f = report->figures) {
    fmt::print(
        "dense {} stand-ins {:.4f} ({:.4f} to {:.4f}) dropped {:.4f} ({:.4f} to {:.4f}) exact "
        "match {}\n",
        f->dense_perplexity.value_or(0), f->stand_in_perplexity, f->stand_in_lowest,
        f->stand_in_highest, f->drop_perplexity, f->drop_lowest, f->drop_highest,
        f->exact_match.value_or(-1));
    fmt::print("router restricted {:.4f} ({:.4f} to {:.4f}) siblings {:.4f}\n",
               f->router_perplexity, f->router_lowest, f->router_highest,
               f->sibling_perplexity.value_or(0));
    fmt::print(
        "cosine median {:.3f} centred {:.3f}; siblings {:.3f} strangers {:.3f} centred {:.3f} "
        "{:.3f}\n",
        f->cosine_median, f->centred_median, f->sibling_cosine.value_or(0),
        f->stranger_cosine.value_or(0), f->sibling_centred.value_or(0),
        f->stranger_centred.value_or(0));
  }
}
