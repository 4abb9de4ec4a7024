#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/books_types.hpp"
#include "actors/strategies.hpp"
#include "config/cluster.hpp"
#include "config/cost_profile.hpp"
#include "config/error.hpp"
#include "model/tokenizer.hpp"
#include "model/transformer.hpp"
#include "planning/profile.hpp"

/// The public face of the actor system: no CAF type in this header.
namespace ordermoe::actors {

enum class run_mode {
  emulated,  ///< Virtual time under CAF's testing scheduler: deterministic, links and servers
             ///< charged.
  local,     ///< Wall clock under CAF's normal scheduler, all servers in this process.
};
const char* to_string(run_mode mode);

/// One user's request as it enters the system.
struct request_spec {
  std::uint64_t number = 0;     ///< Unique in the run; stream of the sampler.
  std::uint32_t access = 0;     ///< Server that the user is connected to.
  std::int64_t arrival_ns = 0;  ///< After the start of the run.
  std::vector<std::int32_t> prompt;
  std::uint32_t max_new_tokens = 64;
  double temperature = 0;
  std::uint64_t sampling_seed = 0;
  std::vector<std::string> stop_strings;
  bool ignore_end_of_text = false;
  /// Teacher-forced: decodes `prompt` from its first token on, one position after the other, with
  /// the next id given instead of sampled, and reports each one's loss.
  bool score = false;
};

struct run_setup {
  std::shared_ptr<const model::transformer> model;
  std::shared_ptr<const model::tokenizer> tokens;  ///< May be null: answers have no text.
  cluster servers;
  cost_profile costs;
  planning::profile experts;
  strategy chosen;
  run_mode mode = run_mode::emulated;
  std::vector<request_spec> requests;
  std::filesystem::path trace;  ///< Empty: none.
  std::uint64_t seed = 0;       ///< Written into the trace.
  double quality_percent = 0;   ///< Written into the trace.
  std::size_t chunk_rows = 64;  ///< Prompt rows that take one residence decision together.
  bool stream_kv = true;        ///< Off only to prove that KV streaming is needed.
  bool keep_final_hidden = false;
  std::int64_t load_period_ns = 0;  ///< How often servers tell their queue waits; 0: never.
  std::int64_t request_timeout_ns = 120'000'000'000;  ///< Wall clock only.
  std::function<bool()> should_stop;
  std::function<void(std::size_t done, std::size_t total)> on_progress;
};

struct run_result {
  std::vector<request_outcome> outcomes;     ///< By request number.
  std::array<std::int64_t, 4> executions{};  ///< Slots by execution_kind.
  std::vector<link_ledger> links;
  std::vector<server_ledger> servers;
  double host_seconds = 0;    ///< Wall clock of this process, start to end.
  double tensor_seconds = 0;  ///< Of it inside tensor kernels (sum over servers).
};

/// Spreads requests over access servers by arrival share and over time as a Poisson process of
/// `rate` per second (0: all at once), from the seed alone.
void draw_arrivals(std::vector<request_spec>& requests, const cluster& servers, double rate,
                   std::uint64_t seed);

/// Runs the requests to the end. Errors: out_of_range for a prompt that does not fit the context or
/// vocabulary; infeasible where a request's KV never fits a server; timed_out where nothing moves
/// any more; interrupted.
result<run_result> run_requests(const run_setup& setup);

}  // namespace ordermoe::actors
