#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "config/json.hpp"
#include "net/wire/codec.hpp"
#include "planning/serving/decide.hpp"
#include "planning/serving/emulated_link.hpp"
#include "planning/serving/ledgers.hpp"
#include "planning/serving/load_board.hpp"
#include "planning/serving/plan_in_force.hpp"
#include "planning/serving/uplinks.hpp"
#include "planning/strategies/adaptation.hpp"
#include "trace/fields.hpp"
#include "trace/header.hpp"
#include "trace/lines.hpp"
#include "trace/verify.hpp"

/// What verify_trace keeps while it reads a trace, line by line; nothing outside trace/checker*.cpp and
/// trace/verify.cpp includes this.
///
///   checker.cpp            the header, the order of lines, what causes them
///   checker_requests.cpp   requests, their tokens and how they end
///   checker_decisions.cpp  decisions, recomputed, and what they make run and travel
///   checker_plans.cpp      plans and policies that come into force
///   checker_ledgers.cpp    batches, memory, transfers and ledgers, against what decisions imply
///
/// Where a request was given up (cancelled, or failed), work and frames of its last decisions may be
/// missing: from then on what runs and travels is not compared with decisions. Ledgers, budgets and
/// other requests' decisions still are.
namespace ordermoe::trace {

using namespace serving;
using namespace wire;
using planning::server_mask;

/// Larger values on a line are refused, so that sums over a trace stay far from overflow.
inline constexpr std::uint32_t most_tokens = 1u << 24;
/// Of what is not below zero; where 64 bits do not hold it, the most that they do, which no line has.
inline std::int64_t product_of(std::int64_t a, std::int64_t b) {
  std::int64_t made = 0;
  return __builtin_mul_overflow(a, b, &made) ? INT64_MAX : made;
}
/// That two servers are silent to each other before their session is over, and a little.
inline constexpr std::int64_t longest_silence_ns = 3'000'000'000;

inline std::size_t index_of(frame_kind kind) {
  return static_cast<std::size_t>(kind);
}

/// A prompt chunk or a decoding position on its way through the layers.
struct chunk_state {
  std::uint32_t first = 0, rows = 0;
  std::uint32_t layer = 0;      ///< The next one.
  std::uint32_t came_from = 0;  ///< Server that sent it to where it starts.
  std::uint32_t server = 0;     ///< Where it is.
  std::vector<loss_units> allowance;
  loss_units pool = 0;
  loss_units spent = 0;
  std::int64_t time_ns = 0;
};

/// A position whose logits are computed: the token line that must follow.
struct sampled_position {
  std::uint32_t position = 0;
  std::uint32_t server = 0;
  loss_units pool = 0;
  loss_units spent = 0;
  std::int64_t time_ns = 0;
};

/// The newest row of a sequence at one layer.
struct attended_row {
  std::uint32_t next = 0;  ///< Positions before it are attended.
  std::uint32_t server = 0;
  std::int64_t time_ns = 0;
};

struct request_state {
  request_terms terms;
  std::shared_ptr<const plan_in_force> placed;  ///< With the plan that it goes by.
  decoding_policy decoding;  ///< Of the run, with the request's own budget where it states one.
  loss_units budget = 0;
  std::int64_t admitted_ns = 0;
  bool has_stop_strings = false;
  std::optional<travelling_rules> sampling;
  bool tells_executions = false;
  std::vector<std::int64_t> kv_need;  ///< [n_servers]
  /// By first position. A prompt's chunks come here when they are first decided on: a line that says how long a prompt is takes
  /// no memory for it.
  std::map<std::uint32_t, chunk_state> chunks;
  std::set<std::uint32_t> begun;       ///< Those of the prompt that came, by first position.
  std::vector<attended_row> attended;  ///< [n_layers]
  std::optional<sampled_position> sampled;
  std::vector<std::pair<std::uint32_t, std::int64_t>> tokens;  ///< Server and time of each.
  loss_units spent = 0;

  bool in_place() const { return terms.continue_in_place != 0; }
};

struct slot_record {
  std::uint64_t request = 0, snapshot = 0;
  std::uint32_t attempt = 0, first = 0, position = 0, layer = 0, slot = 0, access = 0, server = 0;
  std::uint32_t residence = 0, target = 0, expert = 0, executor = 0;
  float gate = 0;
  loss_units loss = 0, allowance_left = 0, pool_left = 0;
  std::int64_t time_ns = 0;
};

struct batch_record {
  std::string_view work;  ///< Into the line's text.
  std::uint32_t server = 0, layer = 0, expert = 0;
  std::int64_t rows = 0, flops = 0, bytes = 0, start_ns = 0, end_ns = 0;
};

struct transfer_record {
  std::uint32_t from = 0, to = 0;
  frame_kind kind = frame_kind::token;
  std::int64_t hidden = 0, kv = 0, other = 0, uncharged = 0, serialised = 0;  ///< Bytes.
  std::int64_t sent_ns = 0, start_ns = 0, end_ns = 0, arrival_ns = 0;
};

/// Frames of one kind on one link.
struct frame_totals {
  std::int64_t frames = 0;
  std::int64_t rows = 0;  ///< Hidden states or KV rows.
  std::int64_t other_bytes = 0;
  std::int64_t uncharged_bytes = 0;
};

struct work_totals {
  std::int64_t rows = 0, flops = 0, bytes = 0, batches = 0;
};

/// An attention batch whose rows have not all been decided on.
struct open_batch {
  std::uint64_t line = 0;
  std::uint32_t layer = 0;
  std::int64_t end_ns = -1;
  work_totals left;
  server_mask peers = 0;  ///< Servers that get its KV rows.
};

struct link_state {
  link_ledger ledger;
  std::int64_t sent_ns = 0, free_ns = 0;
  std::int64_t part_bytes = 0;    ///< That have come of a frame in parts.
  std::int64_t next_part_ns = 0;  ///< When the next part may be sent.
  std::array<frame_totals, n_frame_kinds> found, expected;
  std::int64_t kv_blocks = 0;
  // Between processes, of load reports:
  std::int64_t lost = 0;          ///< That did not leave.
  std::int64_t may_be_lost = 0;   ///< That were on their way when a session ended, at most.
  std::deque<std::int64_t> late;  ///< When the latest were sent, oldest first.
};

struct server_state {
  server_ledger ledger;
  std::int64_t batch_end_ns = 0, head_end_ns = -1;
  std::int64_t kv_ns = 0, kv_reserved = 0;
  std::uint64_t snapshot = 0;
  std::int64_t snapshot_ns = 0;
  std::int64_t installs = 0;          ///< Snapshots that took in other tables.
  std::vector<std::int64_t> reports;  ///< [n_servers] load reports that it took in, by reporter.
  std::uint64_t newest_request =
      0;  ///< Epoch of the plan that the latest request of its users goes by.
  /// By epoch: what its selector decides by, for each plan that it was asked about.
  std::map<std::uint64_t, std::shared_ptr<const plan_in_force>> placed;
  std::vector<link_spec> links;  ///< By which; empty: those of the header.
  // Virtual time: what can make something happen here.
  std::int64_t request_ns = -1, told_ns = -1;
  std::multiset<std::int64_t> arrivals;  ///< Of frames, those that are still to come.
  /// Of load frames, until the snapshot that takes each in.
  std::multiset<std::int64_t> load_arrivals;
  load_board loads;
  open_batch attention;
  std::vector<work_totals> attend_found, attend_expected;   ///< [n_layers]
  std::vector<std::int64_t> expert_found, expert_expected;  ///< [n_layers, n_experts]
  std::int64_t head_found = 0, head_expected = 0;
};

std::int64_t size_of(const auto& message) {
  return static_cast<std::int64_t>(wire::encode(message).bytes.size());
}

class verifier {
 public:
  verifier(std::string place, std::string header) : place_(std::move(place)) { open(header); }

  bool failed() const { return problem_.has_value(); }
  const error& problem() const { return *problem_; }

  /// One line after the first; false once something does not hold.
  bool line(std::uint64_t number, std::string_view text);

  /// After the last line.
  bool finish(std::uint64_t number);

  trace_summary summary;

 private:
  // -------------------------------------------------------------------------------------- refusals

  template <class... Args>
  bool refuse(fmt::format_string<Args...> text, Args&&... args) {
    if (!problem_)
      problem_ = error{errc::failed, fmt::format("{}:{}: {}", place_, number_,
                                                 fmt::format(text, std::forward<Args>(args)...))};
    return false;
  }

  template <class Found, class Expected>
  bool same(std::string_view what, const Found& found, const Expected& expected) {
    return found == expected || refuse("{}: found {}, expected {}", what, found, expected);
  }

  bool malformed(const line_fields& fields) {
    if (!problem_)
      problem_ =
          error{errc::malformed, fmt::format("{}:{}: {}", place_, number_, fields.problem())};
    return false;
  }

  // ---------------------------------------------------------------------------------------- header

  void open(const std::string& text);
  void make_room();

  std::uint32_t n() const { return static_cast<std::uint32_t>(header_.servers.size()); }
  std::uint32_t n_layers() const { return static_cast<std::uint32_t>(header_.plan.n_layers); }
  std::uint32_t n_experts() const { return static_cast<std::uint32_t>(header_.plan.n_experts); }
  std::uint32_t top_k() const { return static_cast<std::uint32_t>(header_top_k_); }
  bool emulated() const { return header_.mode == run_mode::emulated; }
  link_state& link(std::uint32_t from, std::uint32_t to) { return links_[from * n() + to]; }
  frame_totals& expected(std::uint32_t from, std::uint32_t to, frame_kind kind);
  server_mask attention_members(const request_state& request, std::uint32_t layer) const;

  /// Lines are written as things happen: in virtual time in order, on the wall clock in the order
  /// of each writer.
  bool in_order(std::int64_t time_ns, std::int64_t& writer_ns);

  /// Virtual time stands still while a server works: whatever it writes comes at the moment of a
  /// request, of a frame's arrival, of a batch's end, or of its own load report.
  bool has_cause(std::uint32_t id, std::int64_t time_ns);
  request_state* find_request(std::uint64_t number);

  // -------------------------------------------------------------------------------------- requests

  bool on_request(std::string_view text);
  bool can_be_counted(std::int64_t positions);
  /// The plan that it says it goes by: no earlier one than the requests of its server before.
  bool take_plan(request_state& request, std::uint64_t epoch);
  /// What is in flight from this position on; null where nothing is.
  chunk_state* find_chunk(request_state& request, std::uint32_t first) const;
  /// A chunk of its prompt, where it starts.
  chunk_state begin_chunk(const request_state& request, std::uint32_t first) const;
  /// The first position of the prompt that nothing was decided on; nothing where all were.
  std::optional<std::uint32_t> first_waiting(const request_state& request) const;
  bool on_token(std::string_view text);
  /// The position that follows a token's.
  void begin_position(request_state& request, std::int32_t id, const sampled_position& from,
                      std::int64_t time_ns) const;
  bool on_done(std::string_view text);
  bool nothing_open(const request_state& request);
  /// The request was cancelled, or failed.
  bool give_up(const request_state& request, loss_units spent, std::int64_t time_ns);
  bool check_finish(const request_state& request, std::string_view finish, std::uint64_t tokens);

  /// Tokens count when they are at the access server, in the order of their positions.
  bool check_arrivals(const request_state& request, std::int64_t first_token, std::int64_t done);
  void expect_progress(const request_state& request, std::uint32_t from, bool of_token);
  void add_travelling(const request_state& request, token_state& state) const;

  // ------------------------------------------------------------------------------------- decisions

  std::string next_slot() const;
  bool read_slot(std::string_view text, slot_record& s, std::string_view& kind);
  bool on_slot(std::string_view text);

  /// The first slot of a chunk's decision at a layer.
  bool begin_decision(const slot_record& s);
  bool continues(const slot_record& s);

  /// Virtual time: a decision comes when an attention batch with its rows ends, and earlier rows of
  /// the sequence are there by then.
  bool check_attention(const slot_record& s);
  /// What the actors must have decided, by what their server knew.
  chunk_decision decide_again(const slot_record& head) const;
  /// The slots of a row against the decision; `pool` goes down by their losses.
  bool check_row(std::uint32_t i, const chunk_decision& choice, loss_units& pool);
  bool end_decision();
  work_totals attention_work() const;

  /// Bytes of the ids that a teacher-forced token still carries.
  std::int64_t forced_bytes() const;
  void expect_attention(const slot_record& s);

  /// Virtual time: the rows of a batch are exactly those of the decisions at its end.
  bool take_from_batch(const slot_record& s);

  /// Closes the latest attention batch of a server: nothing of it may be left.
  bool close_batch(std::uint32_t id);

  /// What a decision makes run and travel.
  void expect_experts(const slot_record& s, const chunk_decision& choice);

  void expect_frame(std::uint32_t from, std::uint32_t to, frame_kind kind, std::size_t rows,
                    std::int64_t other_bytes);

  /// After the last layer.
  void end_chunk();
  bool on_begin(std::string_view text);
  bool on_snapshot(std::string_view text);
  /// A server tells everybody the same.
  bool same_as_told(const load_report& report);
  /// Where a position of a request starts when coming from `from`.
  std::uint32_t start_server(const request_state& request, std::uint32_t from) const {
    return nearest_member(attention_members(request, 0), from, prices_);
  }

  // ----------------------------------------------------------------------------- plans and weights

  static tables_id id_of(const plan_in_force& placed) { return {placed.plan.epoch, placed.policy}; }
  /// Tables for what is in force from now on; false where none can be built.
  bool put_in_force(std::shared_ptr<const planning::profile> profile, planning::plan placed,
                    std::uint64_t policy);
  /// Tables of a plan that is alive and a policy, built where they are asked for; null, and told why, where there are none.
  std::shared_ptr<const plan_in_force> tables_of(const tables_id& id);
  /// A selector takes in tables: those of the next policy, or of a plan that it had none of.
  bool on_install(std::string_view text);
  /// A selector takes in tables for other links.
  bool on_links(std::string_view text);
  bool on_lost(std::string_view text);
  bool on_parted(std::string_view text);
  /// Other tables are a snapshot that follows the one before, with the same waits.
  bool may_take_tables(server_state& server, std::string_view what, std::uint64_t snapshot,
                       std::int64_t time);
  /// Those of a plan and policy, for the links that the server goes by.
  bool take_tables(server_state& server, std::shared_ptr<const plan_in_force> placed);
  /// The tables of a plan and policy for the links that a server goes by; null and told why where there are none.
  std::shared_ptr<const plan_in_force> for_links_of(const server_state& server,
                                                    std::shared_ptr<const plan_in_force> placed);
  /// Before another comes into force: nobody goes by the one before the last any more.
  void forget_plan_before();
  /// Tables that every server is past, and of plans that nobody goes by, are never named again.
  void forget_tables();
  /// Eq. (45), recomputed from the requests of the window.
  bool on_weights(std::string_view text);
  bool on_policy(std::string_view text);
  /// A profile and a valid plan.
  bool read_plan(std::string_view content, std::optional<planning::profile>& experts,
                 std::optional<planning::plan>& placed);
  /// Another plan comes only where no request goes by the one before the last.
  bool on_plan(std::string_view text);
  /// What the monitor is told of a request that is done, for the window that it may be in.
  void remember_done(const request_state& request, std::uint64_t tokens, loss_units spent,
                     std::int64_t done_ns);

  // ------------------------------------------------------------------------------- work and memory

  bool read_batch(std::string_view text, batch_record& b);
  bool on_batch(std::string_view text);
  bool count_work(const batch_record& b);
  bool count_attention(const batch_record& b);
  bool count_expert(const batch_record& b);
  bool count_head(const batch_record& b);
  bool on_kv(std::string_view text);
  bool change_memory(std::uint64_t number, std::uint32_t id, std::int64_t change);

  // ------------------------------------------------------------------------------------- transfers

  bool read_kind(std::string_view name, frame_kind& kind);
  bool read_transfer(std::string_view text, transfer_record& t);
  /// A load report between processes.
  static void note_late(link_state& path, std::int64_t sent_ns);
  bool on_transfer(std::string_view text);
  bool on_part(std::string_view text);
  bool has_reason(const transfer_record& t, const link_state& path);
  bool may_send_part(const transfer_record& t, const link_state& path);
  std::int64_t start_of(const transfer_record& t, const link_state& path, std::int64_t bytes);
  bool is_in_parts(const transfer_record& t) const;
  bool check_times(const transfer_record& t, link_state& path);
  bool check_sizes(const transfer_record& t);

  // --------------------------------------------------------------------------------------- ledgers

  bool on_answered(std::string_view text);
  bool on_link_ledger(std::string_view text);
  bool on_server_ledger(std::string_view text);

  /// Before the first ledger: everything that was begun is over, and what links and servers wrote
  /// is what the decisions imply.
  bool settle();
  bool settle_server(std::uint32_t id);
  bool settle_link(std::uint32_t from, std::uint32_t to);

  /// A request asks each member once, is answered, may give back, wait and be answered again, and
  /// gives back at the end: more frames go out than come back by the number of grants.
  bool settle_reservations();

  /// Every server tells all others at once, and each report is a snapshot where it is taken in.
  bool settle_load();
  bool settle_reports(std::uint32_t from, std::uint32_t to, std::int64_t taken);

  std::string place_;
  std::uint64_t number_ = 1;
  std::optional<error> problem_;
  trace_header header_;
  std::size_t header_top_k_ = 0;
  planning::cost_model prices_;
  std::optional<shared_uplinks> uplinks_;        ///< Where an emulation has some.
  std::shared_ptr<const plan_in_force> placed_;  ///< The latest.
  /// By epoch, two at most: the latest that came into force, and the one before.
  std::map<std::uint64_t, std::shared_ptr<const plan_in_force>> plans_;
  /// By epoch and policy: those that were asked for.
  std::map<tables_id, std::shared_ptr<const plan_in_force>> tables_;
  std::map<std::uint64_t, planning::selection_policy> policies_;  ///< By version.
  std::int64_t planner_ns_ = 0;
  std::map<std::uint64_t, std::vector<double>> position_ns_;  ///< By epoch, once asked for.
  /// Done, with a budget, in no window yet; and the plan under which.
  std::map<std::uint64_t,
           std::pair<planning::answered_request, std::shared_ptr<const plan_in_force>>>
      observed_;
  /// By reporter and number: load reports that not every server has taken in, and how many have.
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::pair<load_report, std::uint32_t>> told_;
  bool closing_ = false;  ///< The line that says how many requests were answered is read.
  bool strict_ = true;    ///< No request was given up.
  std::map<std::uint64_t, request_state> requests_;  ///< Not done.
  std::set<std::uint64_t> done_;
  std::set<std::uint64_t> given_up_;
  std::vector<link_state> links_;  ///< [from, to]
  std::vector<std::vector<std::uint8_t>>
      offloaded_;  ///< planning::offloaded_flags of the first plan.
  std::vector<server_state> servers_;
  /// KV bytes by request, server.
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::int64_t> held_;
  /// [access, server], reservations granted; requests
  std::vector<std::int64_t> grants_, members_;
  /// Earliest and latest arrival of progress frames by from, to and time sent.
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::int64_t>,
           std::pair<std::int64_t, std::int64_t>>
      progress_;
  std::int64_t reservation_bytes_ = 0, load_bytes_ = 0, links_bytes_ = 0;
  std::int64_t kv_frame_bytes_ = 0, kv_block_bytes_ = 0;
  /// Serialised bytes of a row; the first one tells.
  std::int64_t hidden_width_ = 0, kv_width_ = 0;
  std::uint32_t ledgers_ = 0;

  // The decision that is being read.
  request_state* request_ = nullptr;
  chunk_state* chunk_ = nullptr;
  std::vector<slot_record> slots_;
  std::vector<float> logits_;
};

}  // namespace ordermoe::trace
