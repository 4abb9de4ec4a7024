#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "actors/books.hpp"
#include "actors/messages.hpp"
#include "config/cluster.hpp"
#include "config/cost_profile.hpp"
#include "model/tokenizer.hpp"
#include "model/transformer.hpp"
#include "planning/cost_model.hpp"
#include "planning/plan.hpp"
#include "planning/selector.hpp"

/// What the actors of one run share. Everything here is set before the first plan is pushed and
/// does not change.
namespace ordermoe::actors {

enum class clock_kind { virtual_time, wall };

struct run_context {
  std::shared_ptr<const model::transformer> model;
  /// [n_servers] what each server's compute runs: `model`, or the same with the experts as the
  /// server keeps them.
  std::vector<std::shared_ptr<const model::transformer>> models;
  std::shared_ptr<const model::tokenizer> tokens;  ///< May be null: answers have no text.
  cluster servers;
  cost_profile costs;
  planning::cost_model prices;
  clock_kind clock = clock_kind::virtual_time;
  std::size_t chunk_rows = 64;  ///< Prompt rows that take one residence decision together.
  bool stream_kv = true;        ///< Off only in tests: proves that KV streaming is needed.
  bool keep_final_hidden = false;
  double allowance_factor = 1;      ///< A token may spend this many even shares of what is left.
  std::int64_t load_period_ns = 0;  ///< How often servers tell their waits; 0: never.
  std::int64_t request_timeout_ns =
      0;  ///< Deadline of one request; 0: none (virtual time finds stalls by itself).
  run_books* books = nullptr;
  std::uint32_t activation_report_rows = 256;  ///< A selector reports after this many rows.
  std::int64_t start_ns = 0;  ///< Clock reading that the trace and outcomes count from.

  const model::model_config& shape() const { return model->config(); }
  /// Rows between a prompt and the first sampled token: an encoder-decoder's decoder reads its
  /// start token there.
  std::uint32_t start_rows() const { return shape().encoder_decoder ? 1 : 0; }
  /// Where decoded positions begin.
  std::uint32_t decoded_layer() const {
    return shape().first_layer(model::row_kind::decoded).value;
  }
  wire_shape wire() const {
    return {shape().hidden_size, shape().kv_row_size() * model::bytes_per_number(model->kv())};
  }
};

/// A plan in force: what servers need of it. Named by the plan's epoch and `weights`.
struct deployment {
  planning::plan plan;
  planning::placement_index index;
  std::shared_ptr<const planning::selection_tables> tables;
  std::uint64_t weights = 0;                         ///< Counts the changes of omega in the run.
  std::shared_ptr<const planning::profile> experts;  ///< What the tables were built from.
};

/// One server as the actors on it see it; replaced as a whole when a plan is installed.
struct server_view {
  std::shared_ptr<const run_context> run;
  std::shared_ptr<const deployment> placed;
  std::uint32_t id = 0;
  edge_server_actor server;
  compute_actor compute;
  selector_actor selector;
  monitor_actor monitor;            ///< Empty where none runs.
  std::vector<link_actor> links;    ///< [n_servers]; the own entry is empty
  std::vector<shard_actor> shards;  ///< [n_layers]; empty where no expert of the layer is here

  /// Sends a frame from here to another server.
  void send(std::uint32_t to, frame content) const;
  /// The member of R_layer that a position of this access server's request starts at when coming
  /// from `from`.
  std::uint32_t start_server(std::uint32_t access, std::uint32_t from,
                             std::uint32_t layer = 0) const;
};

}  // namespace ordermoe::actors
