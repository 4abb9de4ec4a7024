#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "net/wire/messages.hpp"
#include "planning/plan.hpp"
#include "planning/profile.hpp"
#include "planning/serving/decide.hpp"
#include "planning/serving/ledgers.hpp"
#include "planning/strategies/adaptation.hpp"

/// The lines of trace.jsonl that the actors write; docs/TRACE.md states every field.
namespace ordermoe::trace {

class line_fields;

/// What a decision was made of, besides the tables.
struct decided_rows {
  wire::token_key key;
  std::uint32_t access = 0;
  std::uint32_t layer = 0;
  std::span<const float> logits;          ///< [n, n_experts]
  std::span<const loss_units> allowance;  ///< [n]
  loss_units pool = 0;
};

/// Which tables: a plan and a policy by their numbers.
struct tables_id {
  std::uint64_t epoch = 0, policy = 0;
  friend auto operator<=>(const tables_id&, const tables_id&) = default;
};

/// One line for each slot of each row; the row's router logits are in the line of its slot 0.
std::string decision_line(const decided_rows& rows, std::uint32_t server, std::uint64_t snapshot,
                          std::int64_t time_ns, const serving::chunk_decision& choice);
/// A selector begins, without waits.
std::string first_snapshot_line(std::uint32_t server, std::int64_t time_ns);
/// A selector takes in a load report.
std::string snapshot_line(std::uint32_t server, std::uint64_t snapshot, std::int64_t time_ns,
                          const wire::load_report& report);
/// A selector takes in other tables; its waits stay.
std::string install_line(std::uint32_t server, std::uint64_t snapshot, const tables_id& tables,
                         std::int64_t time_ns);
/// A selector takes in tables of the same plan and policy for links as they are known now, row-major [from][to].
std::string links_line(std::uint32_t server, std::uint64_t snapshot,
                       std::span<const link_spec> links, std::int64_t time_ns);
/// The planner puts another plan in force.
std::string plan_line(const tables_id& tables, const planning::plan& placed,
                      const planning::profile& profile, std::string_view reason,
                      const planning::weight_move& move, std::int64_t time_ns);
/// The planner puts other weights in force, those of eq. (45) after a window of requests.
std::string weights_line(const tables_id& tables, double kappa,
                         const planning::selection_weights& weights,
                         std::span<const std::uint64_t> requests, std::int64_t time_ns);
/// The planner puts another policy in force, by order.
std::string policy_line(const tables_id& tables, const planning::selection_policy& policy,
                        std::int64_t time_ns);

/// What travels with a request's tokens besides their states and makes their frames longer.
struct travelling_rules {
  std::uint32_t biases = 0;      ///< How many ids have one.
  bool counts_answered = false;  ///< A penalty counts the answer so far.
  std::uint32_t logprobs = 0;    ///< How many come back with each token.
  friend bool operator==(const travelling_rules&, const travelling_rules&) = default;
};
/// A request begins.
struct begun_request {
  std::uint64_t request = 0;
  std::uint32_t access = 0;
  std::uint32_t prompt_tokens = 0, max_new_tokens = 0;
  bool score = false;
  std::size_t stop_strings = 0;
  loss_units budget = 0;
  std::uint64_t epoch = 0;  ///< Of the plan that it goes by.
  /// Average units a position, where the request states its own.
  std::optional<loss_units> token_budget = {};
  std::optional<travelling_rules> sampling = {};  ///< Where more than a temperature chooses.
  bool tells_executions = false;                  ///< Tokens say what ran for them.
};
std::string request_line(const begun_request& request, std::int64_t time_ns);
/// The fields of such a line from `biases` to `tells_executions`, where it has them.
void read_travelling(line_fields& fields, begun_request& request);
std::string token_line(const wire::progress_report& report, std::uint32_t server,
                       std::int64_t time_ns);

/// A request ends.
struct ended_request {
  std::uint64_t request = 0;
  std::string_view finish;
  std::size_t tokens = 0;
  loss_units spent = 0;
  std::int64_t first_token_ns = 0, done_ns = 0;
};
std::string done_line(const ended_request& request);
/// KV memory of a request is reserved or given back.
std::string memory_line(std::uint32_t server, std::uint64_t request, std::int64_t change_bytes,
                        std::int64_t reserved_bytes, std::int64_t time_ns);
/// A batch ends.
struct ended_batch {
  std::uint32_t server = 0;
  std::string_view work;
  std::uint32_t layer = 0, expert = 0;
  std::int64_t rows = 0, flops = 0, bytes = 0;
  std::int64_t start_ns = 0, end_ns = 0;
};
std::string batch_line(const ended_batch& batch);
/// A frame enters a link, or the last part of one.
struct sent_frame {
  std::uint32_t from = 0, to = 0;
  wire::frame_kind kind = wire::frame_kind::token;
  std::int64_t hidden_bytes = 0, kv_bytes = 0, other_bytes = 0;
  std::int64_t uncharged_bytes = 0;  ///< Written where there are any.
  std::int64_t serialised_bytes = 0;
  std::int64_t sent_ns = 0, start_ns = 0, end_ns = 0, arrival_ns = 0;
};
std::string transfer_line(const sent_frame& frame);
/// A part of a frame enters a link that is not its last: the frame's own line comes with that one.
std::string part_line(std::uint32_t from, std::uint32_t to, std::int64_t bytes,
                      std::int64_t sent_ns, std::int64_t start_ns, std::int64_t end_ns);
/// Behind the line of a frame that did not leave, since the server at the link's other end is not connected.
std::string lost_line(std::uint32_t from, std::uint32_t to, wire::frame_kind kind,
                      std::int64_t time_ns);
/// A server's session with another is over, and what was on its way between them may be lost.
std::string parted_line(std::uint32_t server, std::uint32_t peer, std::int64_t time_ns);
/// Before the ledgers: how many requests were answered.
std::string closing_line(std::uint64_t requests);
std::string ledger_line(const serving::link_ledger& ledger);
std::string ledger_line(const serving::server_ledger& ledger);

}  // namespace ordermoe::trace
