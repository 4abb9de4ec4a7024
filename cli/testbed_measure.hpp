#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/experiments/testbed/row_file.hpp"
#include "cli/common.hpp"
#include "cli/comparison.hpp"

/// Points of the testbed's experiments, measured on the emulation.
namespace ordermoe::cli {

/// Of a trace while it is measured from.
inline constexpr const char* trace_prefix = ".trace";

/// [texts] losses of the load's scored texts by the model in one process: what strategies that never substitute say, too, to the bit. Errors: those of
/// model::token_losses; interrupted.
result<std::vector<std::vector<double>>> losses_of_model_alone(const setup::world& loaded,
                                                               const bundled_load& load);

/// What measurements depend on besides options and the model, by name: `build` (build_id(); null: unknown), and digests of `evaluation_data` (the
/// bundled prompts, texts and problems) and of `tuning_texts`. Error: io.
result<nlohmann::ordered_json> origin_of(const setup::world& loaded);

/// What all points of a folder have in common.
struct testbed_load {
  comparison_options of;  ///< Its rate is a point's.
  double sla_ms = 0;      ///< A request in time is answered within this.
  /// Trials and tuning while strategies are prepared: requests, and texts of the model's tuning texts; 0: all of these.
  std::size_t trial_requests = 64, tuning_texts = 0;
  bool choose_pruning = false;  ///< Of the strategies that can.
};

/// Loads what points need once, and measures them; measure() may be called from several threads.
class testbed_bench {
 public:
  /// `scratch`: an existing folder for traces, which are removed as soon as they are read.
  testbed_bench(world_flags flags, testbed_load load, std::filesystem::path scratch)
      : flags_(std::move(flags)), load_(std::move(load)), scratch_(std::move(scratch)) {}

  /// The model as stored, whatever points ask. Errors: those of load_world.
  result<void> open();
  const setup::world& stored() const { return worlds_.at(precision::stored).content; }
  /// Loads the model as the point has it kept, and with room for its prompts. Not while measure() runs.
  result<void> open(const experiments::testbed::point& what);

  /// Infeasible points make a row as well. Errors: those of setup::prepare and of running; interrupted.
  result<experiments::testbed::row> measure(const experiments::testbed::point& what, job& work);

 private:
  struct opened {
    setup::world content;
    /// With more positions; null: none was asked for.
    std::shared_ptr<const model::transformer> longer;
  };
  result<void> open(precision kept);
  setup::world world_of(const experiments::testbed::point& what) const;
  result<bundled_load> load_of(const experiments::testbed::point& what, const setup::world& here,
                               std::size_t n_requests) const;
  std::size_t requests_at(double rate) const;
  result<bool> bears(const experiments::testbed::point& what, job& work);
  result<experiments::testbed::row> measure_saturation(const experiments::testbed::point& what,
                                                       job& work);
  result<experiments::testbed::row> measure_at(const experiments::testbed::point& what,
                                               std::size_t n_requests, job& work);
  result<setup::prepared> prepare(const experiments::testbed::point& what, const setup::world& here,
                                  job& work);
  /// What points that differ in their horizon share.
  struct found_plan {
    planning::plan placed;
    std::optional<double> pruned_nats;  ///< strategy::pruned_nats
  };
  result<found_plan> base_plan(const experiments::testbed::point& what, const setup::world& here,
                               job& work);
  static found_plan plan_of(const setup::prepared& ready);
  result<void> compare_losses(const std::vector<double>& losses,
                              experiments::testbed::row& made) const;
  result<void> score_reference();

  world_flags flags_;
  testbed_load load_;
  std::filesystem::path scratch_;
  std::map<precision, opened> worlds_;
  std::vector<std::vector<double>> reference_;  ///< [documents] losses of the model as stored.
  std::mutex mutex_;                            ///< Of what follows.
  std::map<std::string, found_plan> plans_;
  std::size_t n_traces_ = 0;
};

}  // namespace ordermoe::cli
