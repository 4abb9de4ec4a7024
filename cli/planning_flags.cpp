#include "cli/planning_flags.hpp"

#include <fmt/format.h>

namespace ordermoe::cli {

CLI::Option* add_trial_requests(CLI::App& command, std::size_t& requests) {
  return command
      .add_option("--trial-requests", requests,
                  "Requests that candidate plans answer in virtual time before one is taken; fewer "
                  "take less time to plan, and tell plans apart less surely")
      ->check(whole_from(1, 100'000))
      ->capture_default_str();
}

void planning_flags::add(CLI::App& command) {
  add_strategy(command, strategy,
               "How experts are placed and chosen; default: ordermoe, or that of --plan");
  command
      .add_option("--quality-budget", quality,
                  "Perplexity increase allowed, in per cent, or unbounded; default: 0, or that "
                  "of --plan")
      ->check([](const std::string& text) {
        return text.empty() ? "found nothing, expected a number of per cent, or unbounded" : "";
      });
  command
      .add_option("--horizon", horizon,
                  "Look-ahead depth in layers; 0, or more than there are: the whole model")
      ->check(whole_from(0, 1'000'000));
  command
      .add_option("--residency", residency,
                  "Where attention may run: access or roaming; default: the plan's")
      ->check(CLI::IsMember({"access", "roaming"}));
  ablation.add(command);
  command.add_option("--rate", rate, "Requests per second, Poisson; 0: all at once")
      ->check(number_from(0, 1e6))
      ->capture_default_str();
  add_search_steps(command, search_steps);
  add_trial_requests(command, trial_requests);
}

result<void> check_strategy(const setup::preparation_request& request) {
  const auto& name = request.strategy;
  const auto* record = planning::find_strategy(name);
  if (!record->has_budget && request.options.quality_percent != 0)
    return error{errc::usage,
                 fmt::format("--quality-budget: {} has no budget; leave it out, or choose {}", name,
                             planning::strategies_with_budget())};
  if (request.options.choose_precision && !record->uses_coarser_copies)
    return error{errc::usage, fmt::format("--choose-precision: {} keeps experts as the model has "
                                          "them; leave it out, or choose ordermoe",
                                          name)};
  if (request.options.choose_precision && request.options.plan)
    return error{errc::usage,
                 "--choose-precision: the plan of --plan says how servers keep experts; leave it "
                 "out"};
  if (request.options.choose_pruning && !record->tries_cores)
    return error{
        errc::usage,
        fmt::format(
            "--choose-pruning: {} does not choose what it leaves out; leave it out, or "
            "choose {}",
            name, planning::strategies_for_which([](const auto& one) { return one.tries_cores; }))};
  if (request.options.choose_pruning && request.options.plan)
    return error{errc::usage,
                 "--choose-pruning: the plan of --plan says which experts there are; leave it out"};
  return {};
}

result<setup::preparation_request> planning_flags::request(
    const world_flags& world, double concurrency,
    const std::optional<setup::plan_file>& given) const {
  setup::preparation_request made;
  made.strategy = !strategy.empty() ? strategy : given ? given->origin.strategy : made.strategy;
  made.seed = world.seed;
  made.options.seed = world.seed;
  made.options.search_steps = search_steps;
  made.options.dry_run_requests = trial_requests;
  made.options.concurrency = concurrency;
  made.options.expected_rate = rate;
  made.options.choose_precision = world.choose_precision;
  made.options.choose_pruning = world.choose_pruning;
  made.options.horizon = horizon;
  if (!residency.empty()) made.options.residency = residency;
  if (given && !ablation.leaves_out("substitution"))
    made.options.quality_percent = given->origin.quality_percent;
  if (!quality.empty()) {
    const auto percent = parse_quality(quality);
    if (!percent) return percent.error();
    made.options.quality_percent = *percent;
  }
  if (auto good = ablation.apply(made); !good) return good.error();
  if (given) {
    auto with_plan = setup::request_with(*given, std::move(made));
    if (!with_plan) return with_plan.error();
    made = std::move(*with_plan);
  }
  if (auto good = check_strategy(made); !good) return good.error();
  return made;
}

namespace {

result<setup::world_options> options_for(const world_flags& flags,
                                         const std::optional<setup::plan_file>& given,
                                         const setup::preparation_request& request) {
  auto options = flags.options();
  if (!options) return options;
  if (given) options->plan_precisions = given->plan.expert_precision;
  options->has_budget = request.options.quality_percent != 0;
  return options;
}

result<setup::world> load_for(const setup::world_options& options,
                              const std::optional<setup::plan_file>& given) {
  auto loaded = load_world(options);
  if (!loaded) return loaded;
  if (given)
    if (auto fits = setup::check_made_for(*given, *loaded); !fits) return fits.error();
  return loaded;
}

}  // namespace

result<setup::world> load_world(const world_flags& flags,
                                const std::optional<setup::plan_file>& given,
                                const setup::preparation_request& request) {
  auto options = options_for(flags, given, request);
  if (!options) return options.error();
  return load_for(*options, given);
}

result<setup::world> load_world_to_plan(const world_flags& flags,
                                        const std::optional<setup::plan_file>& given,
                                        const setup::preparation_request& request,
                                        std::shared_ptr<const model::expert_source> elsewhere) {
  auto options = options_for(flags, given, request);
  if (!options) return options.error();
  options->only_plans = true;
  options->makes_profile = planning::find_strategy(request.strategy)->needs_profile;
  options->runs_model = setup::runs_model(request, setup::lacks_profile(*options));
  if (elsewhere && (options->choose_precision || options->expert_precision != precision::stored ||
                    options->dense_precision != precision::stored))
    return error{
        errc::unsupported,
        "--connect: plans keep experts as the model has them; leave --choose-precision and "
        "other precisions out"};
  options->elsewhere = std::move(elsewhere);
  return load_for(*options, given);
}

}  // namespace ordermoe::cli
