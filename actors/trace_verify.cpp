#include "actors/trace_verify.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>

#include "actors/decide.hpp"
#include "actors/request.hpp"
#include "actors/token.hpp"
#include "actors/trace_fields.hpp"
#include "actors/trace_header.hpp"
#include "config/json.hpp"

namespace ordermoe::actors {

namespace {

using planning::server_mask;

constexpr std::size_t n_frame_kinds = 7;
/// Larger values on a line are refused, so that sums over a trace stay far from overflow.
constexpr std::uint32_t most_tokens = 1u << 24;
constexpr std::int64_t most_cost = 1'000'000'000'000;

std::size_t index_of(frame_kind kind) {
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
  loss_units budget = 0;
  bool has_stop_strings = false;
  std::vector<std::int64_t> kv_need;            ///< [n_servers]
  std::map<std::uint32_t, chunk_state> chunks;  ///< By first position.
  std::vector<attended_row> attended;           ///< [n_layers]
  std::optional<sampled_position> sampled;
  std::vector<std::pair<std::uint32_t, std::int64_t>> tokens;  ///< Server and time of each.
  loss_units spent = 0;

  bool in_place() const { return terms.continue_in_place != 0; }
};

struct slot_line {
  std::uint64_t request = 0, snapshot = 0;
  std::uint32_t attempt = 0, first = 0, position = 0, layer = 0, slot = 0, access = 0, server = 0;
  std::uint32_t residence = 0, target = 0, expert = 0, executor = 0;
  float gate = 0;
  loss_units loss = 0, allowance_left = 0, pool_left = 0;
  std::int64_t time_ns = 0;
};

/// Frames of one kind on one link.
struct frame_totals {
  std::int64_t frames = 0;
  std::int64_t rows = 0;  ///< Hidden states or KV rows.
  std::int64_t other_bytes = 0;
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
  std::array<frame_totals, n_frame_kinds> found, expected;
  std::int64_t kv_blocks = 0;
};

struct server_state {
  server_ledger ledger;
  std::int64_t batch_end_ns = 0, head_end_ns = -1;
  std::int64_t kv_ns = 0, kv_reserved = 0;
  std::uint64_t snapshot = 0;
  std::int64_t snapshot_ns = 0;
  // Virtual time: what can make something happen here.
  std::int64_t request_ns = -1, told_ns = -1;
  std::multiset<std::int64_t> arrivals;  ///< Of frames, those that are still to come.
  std::multiset<std::int64_t>
      load_arrivals;  ///< Of load frames, until the snapshot that takes each in.
  std::vector<std::int64_t> wait_ns;
  open_batch attention;
  std::vector<work_totals> attend_found, attend_expected;   ///< [n_layers]
  std::vector<std::int64_t> expert_found, expert_expected;  ///< [n_layers, n_experts]
  std::int64_t head_found = 0, head_expected = 0;
};

std::int64_t size_of(const auto& message) {
  return static_cast<std::int64_t>(encode(message).bytes.size());
}

class verifier {
 public:
  verifier(std::string place, std::string header) : place_(std::move(place)) { open(header); }

  bool failed() const { return problem_.has_value(); }
  const error& problem() const { return *problem_; }

  /// One line after the first; false once something does not hold.
  bool line(std::uint64_t number, std::string_view text) {
    number_ = number;
    const auto type = line_type(text);
    if (type == "slot") return on_slot(text);
    if (!slots_.empty()) return refuse("found a {} line, expected {}", type, next_slot());
    if (type == "transfer") return on_transfer(text);
    if (type == "batch") return on_batch(text);
    if (type == "snapshot") return on_snapshot(text);
    if (type == "kv") return on_kv(text);
    if (type == "token") return on_token(text);
    if (type == "request") return on_request(text);
    if (type == "done") return on_done(text);
    if (type == "link_ledger") return on_link_ledger(text);
    if (type == "server_ledger") return on_server_ledger(text);
    return refuse(
        "found a line of type '{}', expected request, snapshot, slot, batch, transfer, kv, token, "
        "done, link_ledger or server_ledger",
        type);
  }

  /// After the last line.
  bool finish(std::uint64_t number) {
    number_ = number;
    if (!slots_.empty()) return refuse("found the end of the trace, expected {}", next_slot());
    const auto n_ledgers = n() * (n() - 1) + n();
    if (ledgers_ != n_ledgers)
      return refuse("found {} ledger lines before the end, expected {}", ledgers_, n_ledgers);
    return true;
  }

  trace_summary summary;

 private:
  // ------------------------------------------------------------------------------------ refusals

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

  // -------------------------------------------------------------------------------------- header

  void open(const std::string& text) {
    if (auto checked = check_header(text); !checked) {
      problem_ = checked.error();
      return;
    }
    auto parsed = parse_header(text, place_);
    if (!parsed) {
      problem_ = parsed.error();
      return;
    }
    header_ = std::move(*parsed);
    if (header_.experts.n_layers != header_.plan.n_layers ||
        header_.experts.n_experts != header_.plan.n_experts) {
      refuse("profile: found {} layers of {} experts, expected the plan's {} of {}",
             header_.experts.n_layers, header_.experts.n_experts, header_.plan.n_layers,
             header_.plan.n_experts);
      return;
    }
    auto context = std::make_shared<run_context>();
    context->servers = header_.servers;
    context->costs = header_.costs;
    context->prices = planning::make_cost_model(header_.servers, header_.costs);
    auto tables = planning::selection_tables::build(header_.experts, header_.plan, context->prices,
                                                    header_.policy, header_.token_budget);
    if (!tables) {
      problem_ = at(place_ + ":1", tables.error());
      return;
    }
    view_.run = context;
    view_.placed = std::make_shared<const deployment>(
        deployment{header_.plan, planning::placement_index(header_.plan), std::move(*tables)});
    links_.resize(n() * n());
    servers_.resize(n());
    for (auto& server : servers_) {
      server.attend_found.resize(n_layers());
      server.attend_expected.resize(n_layers());
      server.expert_found.resize(n_layers() * n_experts());
      server.expert_expected.resize(n_layers() * n_experts());
    }
    for (std::size_t i = 0; i < links_.size(); ++i) {
      links_[i].ledger.from = static_cast<std::uint32_t>(i / n());
      links_[i].ledger.to = static_cast<std::uint32_t>(i % n());
    }
    grants_.resize(n() * n());
    members_.resize(n() * n());
    progress_bytes_ = size_of(progress_report{});
    reservation_bytes_ = size_of(reservation{});
    load_bytes_ = size_of(load_report{});
    kv_frame_bytes_ = size_of(kv_rows{});
    kv_block_bytes_ = size_of(kv_rows{0, {kv_block{}}}) - kv_frame_bytes_;
    summary.mode = header_.mode;
  }

  /// Refuses members that a header does not have.
  static void only_keys_of(const nlohmann::json& written, const json_value& value) {
    for (const auto& key : value.keys())
      if (!written.contains(key)) value.at(key).refuse("a field of this name", "none");
  }

  /// What parse_header takes on trust: names, kinds and ranges of the plain fields.
  result<void> check_header(const std::string& text) {
    auto parsed = json_document::parse(text, place_ + ":1");
    if (!parsed) return parsed.error();
    auto& document = **parsed;
    document.set_remedy("run again with --trace");
    const auto root = document.root();
    const auto written = nlohmann::json::parse(header_line(run_setup{}));
    only_keys_of(written, root);
    only_keys_of(written.at("costs"), root.at("costs"));
    only_keys_of(written.at("policy"), root.at("policy"));
    root.at("type").one_of({"run"});
    root.at("version").integer(1, 1);
    root.at("program").string();
    root.at("mode").one_of({"emulated", "local"});
    root.at("quality_percent").number();
    root.at("token_budget").integer(0, planning::unbounded_budget);
    root.at("allowance_factor").number(0);
    root.at("continue_in_place").boolean();
    root.at("chunk_rows").integer(1, 1 << 20);
    summary.seed = root.at("seed").unsigned_integer();
    summary.strategy = root.at("strategy").string();
    n_requests_ = root.at("requests").unsigned_integer();
    const auto costs = root.at("costs");
    costs.at("hidden_bytes").integer(1, most_cost);
    costs.at("kv_row_bytes").integer(1, most_cost);
    for (const auto* name :
         {"expert_bytes", "expert_flops", "attention_bytes", "attention_flops",
          "attention_flops_per_context", "embedding_bytes", "head_bytes", "head_flops"})
      costs.at(name).integer(0, most_cost);
    const auto policy = root.at("policy");
    policy.at("candidates").integer(0, static_cast<int>(planning::candidate_rule::any));
    policy.at("metric").integer(0, planning::n_loss_metrics - 1);
    policy.at("residence").integer(0, 1);
    policy.at("condition").integer(0, 1);
    policy.at("gates").integer(0, 1);
    policy.at("horizon").integer(0, 1 << 16);
    policy.at("budget_bins").integer(1, 1 << 16);
    for (const auto* name : {"omega_time", "omega_quality", "reference_ns"})
      policy.at(name).number(0);
    for (const auto* name : {"calibrated", "distinct", "price_attention", "price_waits"})
      policy.at(name).boolean();
    return document.outcome();
  }

  std::uint32_t n() const { return static_cast<std::uint32_t>(header_.servers.size()); }
  std::uint32_t n_layers() const { return static_cast<std::uint32_t>(header_.plan.n_layers); }
  std::uint32_t n_experts() const { return static_cast<std::uint32_t>(header_.plan.n_experts); }
  std::uint32_t top_k() const { return static_cast<std::uint32_t>(header_.top_k); }
  bool emulated() const { return header_.mode == run_mode::emulated; }
  link_state& link(std::uint32_t from, std::uint32_t to) { return links_[from * n() + to]; }
  frame_totals& expected(std::uint32_t from, std::uint32_t to, frame_kind kind) {
    return link(from, to).expected[index_of(kind)];
  }
  server_mask attention_members(const request_state& request, std::uint32_t layer) const {
    return header_.plan.residence[request.terms.access].layers[layer];
  }

  /// Lines are written as things happen: in virtual time in order, on the wall clock in the order
  /// of each writer.
  bool in_order(std::int64_t time_ns, std::int64_t& writer_ns) {
    if (time_ns < writer_ns)
      return refuse("time: found {} ns, expected at least {} ns, the line before by the same actor",
                    time_ns, writer_ns);
    writer_ns = time_ns;
    if (emulated() && time_ns < summary.duration_ns)
      return refuse("time: found {} ns, expected at least {} ns, that of the line before", time_ns,
                    summary.duration_ns);
    summary.duration_ns = std::max(summary.duration_ns, time_ns);
    if (ledgers_ > 0) return refuse("found an event, expected nothing but ledgers after a ledger");
    return true;
  }

  /// Virtual time stands still while a server works: whatever it writes comes at the moment of a
  /// request, of a frame's arrival, of a batch's end, or of its own load report.
  bool has_cause(std::uint32_t id, std::int64_t time_ns) {
    if (!emulated()) return true;
    auto& server = servers_[id];
    server.arrivals.erase(server.arrivals.begin(), server.arrivals.lower_bound(time_ns));
    return time_ns == server.request_ns || time_ns == server.told_ns ||
           time_ns == server.batch_end_ns || server.arrivals.contains(time_ns) ||
           refuse(
               "time: found {} ns, expected that of a request, an arrival, a batch's end or a load "
               "report at server {}",
               time_ns, id);
  }

  request_state* find_request(std::uint64_t number) {
    const auto found = requests_.find(number);
    if (found != requests_.end()) return &found->second;
    refuse("found request {}, which {}; expected one that is being answered", number,
           done_.contains(number) ? "is done" : "no request line announced");
    return nullptr;
  }

  // ------------------------------------------------------------------------------------ requests

  bool on_request(std::string_view text) {
    line_fields fields(text);
    request_state request;
    auto& terms = request.terms;
    terms.request = fields.integer<std::uint64_t>("request");
    terms.access = fields.integer<std::uint32_t>("access", 0, n() - 1);
    terms.prompt_tokens = fields.integer<std::uint32_t>("prompt_tokens", 1, most_tokens);
    terms.max_new_tokens = fields.integer<std::uint32_t>("max_new_tokens");
    const bool score = fields.boolean("score");
    request.has_stop_strings = fields.integer<std::uint32_t>("stop_strings") != 0;
    request.budget = fields.integer<loss_units>("budget", 0);
    const auto time = fields.amount("time_ns");
    if (!fields.end()) return malformed(fields);
    if (requests_.contains(terms.request) || done_.contains(terms.request))
      return refuse("found request {} a second time, expected each once", terms.request);
    std::int64_t own = 0;
    if (!in_order(time, own)) return false;
    servers_[terms.access].request_ns = time;
    terms.score = score;
    if (score && terms.prompt_tokens != 1)
      return refuse("prompt_tokens: found {}, expected 1 for a scored text", terms.prompt_tokens);
    terms.continue_in_place = header_.continue_in_place && !request.has_stop_strings;

    const auto positions = static_cast<loss_units>(terms.prompt_tokens) + terms.max_new_tokens;
    loss_units budget = planning::unbounded_budget;
    if (header_.token_budget < planning::unbounded_budget &&
        __builtin_mul_overflow(header_.token_budget, positions, &budget))
      return refuse("found {} positions, expected few enough for the budget", positions);
    if (!same("budget", request.budget, budget)) return false;
    request.kv_need = kv_need(header_.plan.residence[terms.access], n(),
                              static_cast<std::size_t>(positions), header_.costs.kv_row_bytes);
    for (std::uint32_t m = 0; m < n(); ++m)
      if (m != terms.access && request.kv_need[m] > 0) ++members_[terms.access * n() + m];
    request.attended.resize(n_layers());

    const auto rows_of_chunk = static_cast<std::uint32_t>(header_.chunk_rows);
    const auto start = view_.start_server(terms.access, terms.access);
    for (std::uint32_t first = 0; first < terms.prompt_tokens; first += rows_of_chunk) {
      chunk_state chunk;
      chunk.first = first;
      chunk.rows = std::min(rows_of_chunk, terms.prompt_tokens - first);
      chunk.came_from = terms.access;
      chunk.server = start;
      const bool last = first + chunk.rows == terms.prompt_tokens;
      const auto sharers = chunk.rows + (last ? terms.max_new_tokens : 0);
      chunk.pool = header_.token_budget >= planning::unbounded_budget
                       ? planning::unbounded_budget
                       : header_.token_budget * static_cast<loss_units>(sharers);
      chunk.allowance.assign(chunk.rows,
                             fair_allowance(chunk.pool, sharers, header_.allowance_factor));
      chunk.time_ns = time;
      request.chunks.emplace(first, std::move(chunk));
    }
    ++summary.requests;
    summary.scored_requests += score;
    summary.prompt_tokens += terms.prompt_tokens;
    requests_.emplace(terms.request, std::move(request));
    return true;
  }

  bool on_token(std::string_view text) {
    line_fields fields(text);
    const auto number = fields.integer<std::uint64_t>("request");
    const auto attempt = fields.integer<std::uint32_t>("attempt");
    const auto position = fields.integer<std::uint32_t>("position");
    const auto id = fields.integer<std::int32_t>("id", 0);
    const auto server = fields.integer<std::uint32_t>("server", 0, n() - 1);
    const auto pool_left = fields.integer<loss_units>("pool_left", 0);
    const auto spent = fields.integer<loss_units>("spent", 0);
    const auto time = fields.amount("time_ns");
    if (!fields.end()) return malformed(fields);
    auto* request = find_request(number);
    if (request == nullptr) return false;
    if (!request->sampled)
      return refuse("found a token of request {}, expected the last layer of its position first",
                    number);
    const auto ready = *request->sampled;
    auto own = ready.time_ns;
    if (!same("attempt", attempt, 0u) || !same("position", position, ready.position) ||
        !same("server", server, ready.server) || !same("pool_left", pool_left, ready.pool) ||
        !same("spent", spent, ready.spent) || !in_order(time, own))
      return false;
    if (emulated() && servers_[server].head_end_ns != time)
      return refuse("time_ns: found {}, expected {}, the end of server {}'s latest head batch",
                    time, servers_[server].head_end_ns, server);
    request->sampled.reset();
    request->tokens.emplace_back(server, time);
    ++summary.new_tokens;
    const auto access = request->terms.access;
    if (server != access) expect_progress(server, access, request->terms.score ? 1 : 0);

    const auto next =
        successor(request->terms, id, position, pool_left, spent, header_.allowance_factor);
    chunk_state chunk;
    chunk.first = position;
    chunk.rows = 1;
    chunk.came_from = request->in_place() ? server : access;
    chunk.server = view_.start_server(access, chunk.came_from);
    chunk.allowance = next.allowance;
    chunk.pool = next.pool;
    chunk.spent = next.spent;
    chunk.time_ns = time;
    request->chunks.emplace(position, std::move(chunk));
    return true;
  }

  bool on_done(std::string_view text) {
    line_fields fields(text);
    const auto number = fields.integer<std::uint64_t>("request");
    const auto finish = fields.word("finish");
    const auto tokens = fields.integer<std::uint64_t>("tokens");
    const auto spent = fields.integer<loss_units>("spent", 0);
    const auto first_token = fields.amount("first_token_ns");
    const auto time = fields.amount("time_ns");
    if (!fields.end()) return malformed(fields);
    auto* request = find_request(number);
    if (request == nullptr) return false;
    // The time is that of the last token at the access server; the line waits for the reports of
    // all chunks of the prompt.
    if (!same("ledgers before the request is done", ledgers_, 0u)) return false;
    for (const auto& [first, chunk] : request->chunks) {
      const bool successor = first >= request->terms.prompt_tokens && chunk.layer == 0;
      if (!successor)
        return refuse("found request {} done, expected layer {} of its position {} first", number,
                      chunk.layer, first);
    }
    if (request->sampled)
      return refuse("found request {} done, expected the token of position {} first", number,
                    request->sampled->position);
    if (!check_finish(*request, finish, tokens)) return false;
    if (!same("spent", spent, request->spent)) return false;
    if (spent > request->budget)
      return refuse("spent: found {}, expected at most {}, the request's budget", spent,
                    request->budget);
    if (emulated() && !check_arrivals(*request, first_token, time)) {
      return false;
    } else if (first_token < request->tokens.front().second || time < first_token ||
               time < request->tokens.back().second) {
      return refuse(
          "first_token_ns and time_ns: found {} and {}, expected at least {} and {}, when "
          "the tokens were sampled",
          first_token, time, request->tokens.front().second, request->tokens.back().second);
    }
    summary.loss += spent;
    summary.duration_ns = std::max(summary.duration_ns, time);
    done_.insert(number);
    requests_.erase(number);
    return true;
  }

  bool check_finish(const request_state& request, std::string_view finish, std::uint64_t tokens) {
    const auto sampled = request.tokens.size();
    const auto most = std::max<std::size_t>(1, request.terms.max_new_tokens);
    if (sampled == 0) return refuse("found request done, expected a token at least");
    if (sampled > most) return refuse("found {} token lines, expected at most {}", sampled, most);
    if (request.terms.score)
      return same("finish", finish, "scored") && same("tokens", tokens, most);
    if (finish == "end_of_text") return same("tokens", tokens, sampled - 1);
    if (finish == "stop_string") {
      if (!request.has_stop_strings)
        return refuse(
            "finish: found stop_string, expected another reason: there is none to stop at");
      return same("tokens", tokens, sampled);
    }
    if (!same("tokens", tokens, sampled)) return false;
    return same("finish", finish, sampled >= request.terms.max_new_tokens ? "length" : "context");
  }

  /// Tokens count when they are at the access server, in the order of their positions.
  bool check_arrivals(const request_state& request, std::int64_t first_token, std::int64_t done) {
    std::int64_t earliest = 0, latest = 0;
    for (std::size_t i = 0; i < request.tokens.size(); ++i) {
      const auto [server, sampled] = request.tokens[i];
      auto low = sampled, high = sampled;
      if (server != request.terms.access) {
        const auto found = progress_.find({server, request.terms.access, sampled});
        if (found == progress_.end())
          return refuse(
              "found no progress frame from server {} to {} at {} ns, expected the one "
              "that carries a token",
              server, request.terms.access, sampled);
        std::tie(low, high) = found->second;
      }
      earliest = std::max(earliest, low);
      latest = std::max(latest, high);
      if (i == 0 && (first_token < earliest || first_token > latest))
        return refuse("first_token_ns: found {}, expected {}, when the token was at server {}",
                      first_token, latest, request.terms.access);
    }
    if (done < earliest || done > latest)
      return refuse("time_ns: found {}, expected {}, when the last token was at server {}", done,
                    latest, request.terms.access);
    return true;
  }

  void expect_progress(std::uint32_t from, std::uint32_t access, std::int64_t n_losses) {
    auto& frames = expected(from, access, frame_kind::progress);
    ++frames.frames;
    frames.other_bytes += progress_bytes_ + n_losses * static_cast<std::int64_t>(sizeof(double));
  }

  // ----------------------------------------------------------------------------------- decisions

  std::string next_slot() const {
    const auto& head = slots_.front();
    return fmt::format("slot {} of request {} position {} layer {}", slots_.size() % top_k(),
                       head.request, head.first + slots_.size() / top_k(), head.layer);
  }

  bool on_slot(std::string_view text) {
    line_fields fields(text);
    slot_line s;
    s.request = fields.integer<std::uint64_t>("request");
    s.attempt = fields.integer<std::uint32_t>("attempt");
    s.first = fields.integer<std::uint32_t>("first");
    s.position = fields.integer<std::uint32_t>("position");
    s.layer = fields.integer<std::uint32_t>("layer", 0, n_layers() - 1);
    s.slot = fields.integer<std::uint32_t>("slot", 0, top_k() - 1);
    s.access = fields.integer<std::uint32_t>("access", 0, n() - 1);
    s.server = fields.integer<std::uint32_t>("server", 0, n() - 1);
    s.residence = fields.integer<std::uint32_t>("residence", 0, n() - 1);
    s.target = fields.integer<std::uint32_t>("target", 0, n_experts() - 1);
    s.gate = fields.number("gate");
    s.expert = fields.integer<std::uint32_t>("expert", 0, n_experts() - 1);
    s.executor = fields.integer<std::uint32_t>("executor", 0, n() - 1);
    const auto kind = fields.word("kind");
    s.loss = fields.integer<loss_units>("loss", 0, planning::unbounded_budget);
    s.allowance_left = fields.integer<loss_units>("allowance_left");
    s.pool_left = fields.integer<loss_units>("pool_left");
    s.snapshot = fields.integer<std::uint64_t>("snapshot");
    s.time_ns = fields.amount("time_ns");
    if (s.slot == 0) fields.numbers("logits", n_experts(), logits_);
    if (!fields.end()) return malformed(fields);

    const auto expected_kind = classify(s.server, s.target, {s.executor, s.expert, s.loss});
    if (!same("kind", kind, to_string(expected_kind))) return false;
    ++summary.slots[static_cast<std::size_t>(expected_kind)];
    if (slots_.empty()) {
      if (!begin_decision(s)) return false;
    } else if (!continues(s)) {
      return false;
    }
    if (!view_.placed->index.hosts(s.executor, s.layer, s.expert))
      return refuse(
          "executor: found server {}, expected one where the plan places expert {} of "
          "layer {}",
          s.executor, s.expert, s.layer);
    slots_.push_back(s);
    if (slots_.size() < static_cast<std::size_t>(chunk_->rows) * top_k()) return true;
    const bool holds = end_decision();
    slots_.clear();
    logits_.clear();
    return holds;
  }

  /// The first slot of a chunk's decision at a layer.
  bool begin_decision(const slot_line& s) {
    request_ = find_request(s.request);
    if (request_ == nullptr) return false;
    const auto found = request_->chunks.find(s.first);
    if (found == request_->chunks.end())
      return refuse("found a slot of request {} from position {}, expected {}", s.request, s.first,
                    request_->chunks.empty()
                        ? std::string("a token line first")
                        : fmt::format("position {}", request_->chunks.begin()->first));
    chunk_ = &found->second;
    auto& at_server = servers_[s.server];
    if (!same("attempt", s.attempt, 0u) || !same("layer", s.layer, chunk_->layer) ||
        !same("position", s.position, chunk_->first) || !same("slot", s.slot, 0u) ||
        !same("access", s.access, request_->terms.access))
      return false;
    if (s.server != chunk_->server)
      return refuse("server: found {}, expected {}, {}", s.server, chunk_->server,
                    s.layer == 0 ? "the member of R_0 where the position starts"
                                 : "the residence after the layer before");
    if (!((attention_members(*request_, s.layer) >> s.server) & 1u))
      return refuse("server: found {}, expected a member of R_{} for access server {}", s.server,
                    s.layer, s.access);
    const auto held = held_.find({s.request, s.server});
    if (held == held_.end())
      return refuse(
          "found attention of request {} on server {}, expected KV memory reserved there "
          "first",
          s.request, s.server);
    if (at_server.snapshot == 0) return refuse("found a decision, expected a snapshot line first");
    if (!same("snapshot", s.snapshot, at_server.snapshot)) return false;
    if (s.time_ns < chunk_->time_ns)
      return refuse("time_ns: found {}, expected at least {}, that of the step before", s.time_ns,
                    chunk_->time_ns);
    if (emulated() && !check_attention(s)) return false;
    return in_order(s.time_ns, at_server.snapshot_ns);
  }

  bool continues(const slot_line& s) {
    const auto& head = slots_.front();
    const auto index = slots_.size();
    const bool belongs =
        s.request == head.request && s.attempt == head.attempt && s.first == head.first &&
        s.layer == head.layer && s.access == head.access && s.server == head.server &&
        s.residence == head.residence && s.snapshot == head.snapshot && s.time_ns == head.time_ns &&
        s.slot == index % top_k() && s.position == head.first + index / top_k();
    return belongs ||
           refuse(
               "found slot {} of request {} position {} layer {} at server {}, expected {} of "
               "the same decision",
               s.slot, s.request, s.position, s.layer, s.server, next_slot());
  }

  /// Virtual time: a decision comes when an attention batch with its rows ends, and earlier rows of
  /// the sequence are there by then.
  bool check_attention(const slot_line& s) {
    const auto& batch = servers_[s.server].attention;
    if (batch.end_ns != s.time_ns || batch.layer != s.layer)
      return refuse(
          "time_ns: found a decision of layer {} at {} ns, expected an attention batch of "
          "server {} to end then",
          s.layer, s.time_ns, s.server);
    const auto& before = request_->attended[s.layer];
    if (!same("position", s.first, before.next)) return false;
    if (before.next == 0 || before.server == s.server) return true;
    const auto& path = header_.servers.link(server_id{before.server}, server_id{s.server});
    if (s.time_ns <= before.time_ns + path.latency_ns)
      return refuse(
          "time_ns: found {}, expected later than {} + {}, when KV rows of position {} "
          "can be here from server {}",
          s.time_ns, before.time_ns, path.latency_ns, before.next - 1, before.server);
    return true;
  }

  bool end_decision() {
    const auto& head = slots_.front();
    decide_input input;
    input.layer = head.layer;
    input.server = head.server;
    input.access = head.access;
    input.n_experts = n_experts();
    input.top_k = top_k();
    input.logits = logits_;
    input.allowance = chunk_->allowance;
    input.pool = chunk_->pool;
    input.wait_ns = servers_[head.server].wait_ns;
    const auto choice = decide(*view_.placed->tables, input);
    const auto last = number_;
    auto pool = chunk_->pool;
    for (std::uint32_t i = 0; i < chunk_->rows; ++i) {
      const auto& row = choice.rows[i];
      auto allowance = chunk_->allowance[i];
      number_ = last - slots_.size() + 1 + static_cast<std::uint64_t>(i) * top_k();
      if (!same("slots of the recomputed decision", row.choice.n_slots, top_k())) return false;
      for (std::uint32_t j = 0; j < top_k(); ++j, ++number_) {
        const auto& s = slots_[i * top_k() + j];
        const auto& slot = row.choice.slots[j];
        if (!same("target of the router", s.target, row.targets[j]) ||
            !same("gate of the router", s.gate, row.target_gates[j]) ||
            !same("residence of the recomputed decision", s.residence, choice.residence) ||
            !same("expert of the recomputed decision", s.expert, slot.expert) ||
            !same("executor of the recomputed decision", s.executor, slot.server) ||
            !same("loss of the recomputed decision", s.loss, slot.loss))
          return false;
        allowance -= s.loss;
        pool -= s.loss;
        if (!same("allowance_left", s.allowance_left, allowance) ||
            !same("pool_left", s.pool_left, pool))
          return false;
        if (allowance < 0 || pool < 0)
          return refuse(
              "loss: found {}, which leaves an allowance of {} and a pool of {}; expected "
              "none below 0",
              s.loss, allowance, pool);
      }
      chunk_->allowance[i] = allowance;
    }
    number_ = last;
    summary.decisions += chunk_->rows;
    chunk_->spent += chunk_->pool - pool;
    request_->spent += chunk_->pool - pool;
    chunk_->pool = pool;
    expect_attention(head);
    if (emulated() && !take_from_batch(head)) return false;
    expect_experts(head, choice);
    request_->attended[head.layer] = {chunk_->first + chunk_->rows, head.server, head.time_ns};
    chunk_->time_ns = head.time_ns;
    chunk_->server = choice.residence;
    if (++chunk_->layer == n_layers()) end_chunk();
    return true;
  }

  work_totals attention_work() const {
    const std::int64_t rows = chunk_->rows, first = chunk_->first;
    const auto& costs = header_.costs;
    return {rows,
            rows * costs.attention_flops +
                costs.attention_flops_per_context * (rows * first + rows * (rows + 1) / 2),
            (first + rows) * costs.kv_row_bytes, 0};
  }

  /// Ids that a teacher-forced token still carries.
  std::size_t forced_left() const {
    const auto& terms = request_->terms;
    if (terms.score == 0) return 0;
    return terms.prompt_tokens + terms.max_new_tokens - (chunk_->first + chunk_->rows);
  }

  void expect_attention(const slot_line& s) {
    if (s.layer == 0 && chunk_->came_from != s.server) {
      token_state state;
      state.ids.resize(chunk_->rows);
      state.allowance.resize(chunk_->rows);
      state.forced.resize(forced_left());
      auto& frames = expected(chunk_->came_from, s.server, frame_kind::token);
      ++frames.frames;
      frames.other_bytes += size_of(state);
    }
    const auto work = attention_work();
    auto& total = servers_[s.server].attend_expected[s.layer];
    total.rows += work.rows;
    total.flops += work.flops;
    total.bytes += work.bytes;
    const auto members = attention_members(*request_, s.layer);
    for (std::uint32_t peer = 0; peer < n(); ++peer) {
      if (peer == s.server || !((members >> peer) & 1u)) continue;
      expected(s.server, peer, frame_kind::kv).rows += chunk_->rows;
      ++link(s.server, peer).kv_blocks;
    }
  }

  /// Virtual time: the rows of a batch are exactly those of the decisions at its end.
  bool take_from_batch(const slot_line& s) {
    auto& batch = servers_[s.server].attention;
    const auto work = attention_work();
    batch.left.rows -= work.rows;
    batch.left.flops -= work.flops;
    batch.left.bytes -= work.bytes;
    batch.peers |= attention_members(*request_, s.layer) & ~(server_mask{1} << s.server);
    if (batch.left.rows < 0)
      return refuse("rows: found {} more decided here than line {} attended, expected as many",
                    -batch.left.rows, batch.line);
    return true;
  }

  /// Closes the latest attention batch of a server: nothing of it may be left.
  bool close_batch(std::uint32_t id) {
    auto& batch = servers_[id].attention;
    if (batch.end_ns < 0) return true;
    if (batch.left.rows != 0 || batch.left.flops != 0 || batch.left.bytes != 0)
      return refuse(
          "found {} rows, {} FLOPs and {} bytes of the batch at line {} left over, expected "
          "decisions that account for all of it",
          batch.left.rows, batch.left.flops, batch.left.bytes, batch.line);
    for (std::uint32_t peer = 0; peer < n(); ++peer)
      if ((batch.peers >> peer) & 1u) ++expected(id, peer, frame_kind::kv).frames;
    batch = {};
    return true;
  }

  /// What a decision makes run and travel.
  void expect_experts(const slot_line& s, const chunk_decision& choice) {
    const auto residence = choice.residence;
    std::vector<expert_call> calls(n());
    std::vector<expert_output> outputs(n());
    token_state state;
    for (const auto& row : choice.rows) {
      const bool whole = std::all_of(row.executed.begin(), row.executed.end(), [&](const auto& e) {
        return e.server == row.executed[0].server;
      });
      server_mask visited = 0;
      for (const auto& e : row.executed) {
        ++servers_[e.server].expert_expected[s.layer * n_experts() + e.expert];
        const bool first_here = !((visited >> e.server) & 1u);
        visited |= server_mask{1} << e.server;
        auto& call = calls[e.server];
        call.items.emplace_back();
        if (first_here) {
          call.rows.push_back(0);
          call.whole.push_back(0);
        }
        if (first_here || !whole) outputs[e.server].rows.emplace_back();
        state.slots.emplace_back();
      }
    }
    for (std::uint32_t m = 0; m < n(); ++m) {
      if (calls[m].items.empty()) continue;
      if (m != s.server) {
        auto& frames = expected(s.server, m, frame_kind::call);
        ++frames.frames;
        frames.rows += static_cast<std::int64_t>(calls[m].rows.size());
        frames.other_bytes += size_of(calls[m]);
      }
      if (m != residence) {
        auto& frames = expected(m, residence, frame_kind::output);
        ++frames.frames;
        frames.rows += static_cast<std::int64_t>(outputs[m].rows.size());
        frames.other_bytes += size_of(outputs[m]);
      }
    }
    if (residence == s.server) return;
    state.ids.resize(chunk_->rows);
    state.allowance.resize(chunk_->rows);
    state.slots_of_row.resize(chunk_->rows);
    state.forced.resize(forced_left());
    auto& frames = expected(s.server, residence, frame_kind::token);
    ++frames.frames;
    frames.rows += chunk_->rows;
    frames.other_bytes += size_of(state);
  }

  /// After the last layer.
  void end_chunk() {
    const auto& terms = request_->terms;
    const auto end = chunk_->first + chunk_->rows;
    const auto server = chunk_->server;
    const bool prompt_ends = end >= terms.prompt_tokens;
    if (prompt_ends) {
      servers_[server].head_expected += 1;
      request_->sampled = {end, server, chunk_->pool, chunk_->spent, chunk_->time_ns};
    } else if (server != terms.access) {
      expect_progress(server, terms.access, 0);
    }
    request_->chunks.erase(chunk_->first);
    chunk_ = nullptr;
  }

  bool on_snapshot(std::string_view text) {
    line_fields fields(text);
    const auto id = fields.integer<std::uint32_t>("server", 0, n() - 1);
    const auto snapshot = fields.integer<std::uint64_t>("snapshot");
    const auto time = fields.amount("time_ns");
    std::vector<std::int64_t> wait_ns;
    fields.amounts("wait_ns", n(), wait_ns);
    if (!fields.end()) return malformed(fields);
    auto& server = servers_[id];
    if (!same("snapshot", snapshot, server.snapshot + 1) || !in_order(time, server.snapshot_ns))
      return false;
    std::size_t changed = 0;
    for (std::uint32_t m = 0; m < n(); ++m)
      changed += wait_ns[m] != (server.snapshot == 0 ? 0 : server.wait_ns[m]);
    if (changed > (server.snapshot == 0 ? 0u : 1u))
      return refuse("wait_ns: found {} waits changed, expected those of one load report", changed);
    if (emulated() && snapshot > 1) {
      const auto taken_in = server.load_arrivals.find(time);
      if (taken_in != server.load_arrivals.end())
        server.load_arrivals.erase(taken_in);
      else
        server.told_ns = time;
    }
    server.snapshot = snapshot;
    server.wait_ns = std::move(wait_ns);
    ++summary.snapshots;
    return true;
  }

  // ------------------------------------------------------------------------------ work and memory

  bool on_batch(std::string_view text) {
    line_fields fields(text);
    const auto id = fields.integer<std::uint32_t>("server", 0, n() - 1);
    const auto work = fields.word("work");
    const auto layer = fields.integer<std::uint32_t>("layer", 0, n_layers() - 1);
    const auto expert = fields.integer<std::uint32_t>("expert", 0, n_experts() - 1);
    const auto rows = fields.integer<std::int64_t>("rows", 1, most_tokens);
    const auto flops = fields.amount("flops");
    const auto bytes = fields.amount("bytes");
    const auto start = fields.amount("start_ns");
    const auto end = fields.amount("end_ns");
    if (!fields.end()) return malformed(fields);
    auto& server = servers_[id];
    const auto& costs = header_.costs;
    if (start < server.batch_end_ns)
      return refuse("start_ns: found {}, expected at least {}, when server {} was free", start,
                    server.batch_end_ns, id);
    if (end < start) return refuse("end_ns: found {}, expected at least {}", end, start);
    if (emulated() && !same("end_ns - start_ns", end - start,
                            compute_ns(header_.servers.servers[id], flops, bytes)))
      return false;
    if (!in_order(end, server.batch_end_ns)) return false;
    if (work == "attend") {
      if (!same("expert", expert, 0u) || (emulated() && !close_batch(id))) return false;
      auto& total = server.attend_found[layer];
      total.rows += rows;
      total.flops += flops;
      total.bytes += bytes;
      ++total.batches;
      server.attention = {number_, layer, end, {rows, flops, bytes - costs.attention_bytes, 0}, 0};
    } else if (work == "expert") {
      if (!same("flops", flops, rows * costs.expert_flops) ||
          !same("bytes", bytes, costs.expert_bytes))
        return false;
      const auto index = layer * n_experts() + expert;
      server.expert_found[index] += rows;
      if (server.expert_found[index] > server.expert_expected[index])
        return refuse(
            "rows: found {} run so far by expert {} of layer {} on server {}, expected at "
            "most the {} decided",
            server.expert_found[index], expert, layer, id, server.expert_expected[index]);
    } else if (work == "head") {
      if (!same("layer", layer, 0u) || !same("expert", expert, 0u) ||
          !same("flops", flops, rows * costs.head_flops) || !same("bytes", bytes, costs.head_bytes))
        return false;
      server.head_found += rows;
      server.head_end_ns = end;
    } else {
      return refuse("work: found {}, expected attend, expert or head", work);
    }
    auto& ledger = server.ledger;
    ++ledger.batches;
    ledger.rows += rows;
    ledger.flops += flops;
    ledger.bytes_read += bytes;
    ledger.busy_ns += end - start;
    ++summary.batches;
    summary.compute_busy_ns += end - start;
    return true;
  }

  bool on_kv(std::string_view text) {
    line_fields fields(text);
    const auto id = fields.integer<std::uint32_t>("server", 0, n() - 1);
    const auto number = fields.integer<std::uint64_t>("request");
    const auto change = fields.integer<std::int64_t>("change_bytes");
    const auto reserved = fields.amount("reserved_bytes");
    const auto time = fields.amount("time_ns");
    if (!fields.end()) return malformed(fields);
    auto& server = servers_[id];
    if (!in_order(time, server.kv_ns) || !has_cause(id, time)) return false;
    const auto held = held_.find({number, id});
    if (change > 0) {
      const auto* request = find_request(number);
      if (request == nullptr) return false;
      if (held != held_.end())
        return refuse("found memory for request {} a second time, expected it given back first",
                      number);
      if (!same("change_bytes", change, request->kv_need[id])) return false;
      held_[{number, id}] = change;
      if (request->terms.access != id) ++grants_[request->terms.access * n() + id];
    } else {
      if (held == held_.end())
        return refuse("found memory of request {} given back, expected it reserved first", number);
      if (!same("change_bytes", change, -held->second)) return false;
      held_.erase(held);
    }
    server.kv_reserved += change;
    if (!same("reserved_bytes", reserved, server.kv_reserved)) return false;
    const auto limit = header_.servers.servers[id].kv_bytes;
    if (reserved > limit)
      return refuse(
          "reserved_bytes: found {}, expected at most {}, what server {} keeps for KV rows",
          reserved, limit, id);
    server.ledger.kv_peak_bytes = std::max(server.ledger.kv_peak_bytes, reserved);
    ++summary.kv_changes;
    return true;
  }

  // ----------------------------------------------------------------------------------- transfers

  bool on_transfer(std::string_view text) {
    line_fields fields(text);
    const auto from = fields.integer<std::uint32_t>("from", 0, n() - 1);
    const auto to = fields.integer<std::uint32_t>("to", 0, n() - 1);
    const auto name = fields.word("frame");
    const auto hidden = fields.amount("hidden_bytes");
    const auto kv = fields.amount("kv_bytes");
    const auto other = fields.amount("other_bytes");
    const auto serialised = fields.amount("serialised_bytes");
    const auto sent = fields.amount("sent_ns");
    const auto start = fields.amount("start_ns");
    const auto end = fields.amount("end_ns");
    const auto arrival = fields.amount("arrival_ns");
    if (!fields.end()) return malformed(fields);
    if (from == to) return refuse("to: found {}, expected another server", to);
    std::size_t kind = 0;
    while (kind < n_frame_kinds && name != to_string(static_cast<frame_kind>(kind))) ++kind;
    if (kind == n_frame_kinds)
      return refuse(
          "frame: found {}, expected token, call, output, kv, progress, reservation or "
          "load",
          name);
    auto& path = link(from, to);
    if (!in_order(sent, path.sent_ns) || !has_cause(from, sent)) return false;
    if (emulated()) {
      const auto& spec = header_.servers.link(server_id{from}, server_id{to});
      if (!same("start_ns", start, std::max(sent, path.free_ns)) ||
          !same("end_ns", end, start + transfer_ns(spec, hidden + kv + other)) ||
          !same("arrival_ns", arrival, end + spec.latency_ns))
        return false;
    } else if (!same("start_ns", start, sent) || !same("end_ns", end, sent) ||
               !same("arrival_ns", arrival, sent)) {
      return false;
    }
    path.free_ns = end;
    if (!check_sizes(static_cast<frame_kind>(kind), hidden, kv, other, serialised)) return false;
    auto& found = path.found[kind];
    ++found.frames;
    found.rows += hidden / header_.costs.hidden_bytes + kv / header_.costs.kv_row_bytes;
    found.other_bytes += other;
    path.ledger.total += {1, hidden, kv, other, serialised, end - start};
    if (!emulated()) return true;
    servers_[to].arrivals.insert(arrival);
    if (static_cast<frame_kind>(kind) == frame_kind::load)
      servers_[to].load_arrivals.insert(arrival);
    if (static_cast<frame_kind>(kind) == frame_kind::progress) {
      auto [place, added] = progress_.try_emplace({from, to, sent}, arrival, arrival);
      if (!added) place->second.second = arrival;
    }
    return true;
  }

  bool check_sizes(frame_kind kind, std::int64_t hidden, std::int64_t kv, std::int64_t other,
                   std::int64_t serialised) {
    const auto& costs = header_.costs;
    const bool carries_kv = kind == frame_kind::kv;
    const bool carries_hidden =
        kind == frame_kind::token || kind == frame_kind::call || kind == frame_kind::output;
    if (hidden % costs.hidden_bytes != 0 || (hidden > 0 && !carries_hidden) ||
        (hidden == 0 && (kind == frame_kind::call || kind == frame_kind::output)))
      return refuse("hidden_bytes: found {} in a {} frame, expected {}", hidden, to_string(kind),
                    carries_hidden ? fmt::format("a multiple of {}", costs.hidden_bytes) : "0");
    if (kv % costs.kv_row_bytes != 0 || (kv > 0) != carries_kv)
      return refuse("kv_bytes: found {} in a {} frame, expected {}", kv, to_string(kind),
                    carries_kv ? fmt::format("a multiple of {}", costs.kv_row_bytes) : "0");
    const auto rows = carries_kv ? kv / costs.kv_row_bytes : hidden / costs.hidden_bytes;
    auto& width = carries_kv ? kv_width_ : hidden_width_;
    const auto values = serialised - other;
    if (width == 0 && rows > 0 && values > 0 && values % rows == 0) width = values / rows;
    if (!same("serialised_bytes - other_bytes", values, rows * width)) return false;
    if (rows > 0 && values <= 0)
      return refuse("serialised_bytes: found no bytes of {} rows, expected some", rows);
    if (kind == frame_kind::reservation) return same("other_bytes", other, reservation_bytes_);
    if (kind == frame_kind::load) return same("other_bytes", other, load_bytes_);
    return true;
  }

  // ------------------------------------------------------------------------------------- ledgers

  bool on_link_ledger(std::string_view text) {
    line_fields fields(text);
    const auto from = fields.integer<std::uint32_t>("from", 0, n() - 1);
    const auto to = fields.integer<std::uint32_t>("to", 0, n() - 1);
    traffic t;
    t.messages = fields.amount("messages");
    t.hidden_bytes = fields.amount("hidden_bytes");
    t.kv_bytes = fields.amount("kv_bytes");
    t.other_bytes = fields.amount("other_bytes");
    t.serialised_bytes = fields.amount("serialised_bytes");
    t.busy_ns = fields.amount("busy_ns");
    if (!fields.end()) return malformed(fields);
    if (ledgers_ == 0 && !settle()) return false;
    if (ledgers_ >= n() * (n() - 1)) return refuse("found a link's ledger, expected a server's");
    const auto expected_from = ledgers_ / (n() - 1);
    const auto skip = ledgers_ % (n() - 1);
    if (!same("from", from, expected_from) || !same("to", to, skip + (skip >= from ? 1 : 0)))
      return false;
    ++ledgers_;
    const auto& total = link(from, to).ledger.total;
    summary.charged += total;
    return same("messages", t.messages, total.messages) &&
           same("hidden_bytes", t.hidden_bytes, total.hidden_bytes) &&
           same("kv_bytes", t.kv_bytes, total.kv_bytes) &&
           same("other_bytes", t.other_bytes, total.other_bytes) &&
           same("serialised_bytes", t.serialised_bytes, total.serialised_bytes) &&
           same("busy_ns", t.busy_ns, total.busy_ns);
  }

  bool on_server_ledger(std::string_view text) {
    line_fields fields(text);
    const auto id = fields.integer<std::uint32_t>("server", 0, n() - 1);
    server_ledger found;
    found.batches = fields.amount("batches");
    found.rows = fields.amount("rows");
    found.flops = fields.amount("flops");
    found.bytes_read = fields.amount("bytes");
    found.busy_ns = fields.amount("busy_ns");
    found.kv_peak_bytes = fields.amount("kv_peak_bytes");
    if (!fields.end()) return malformed(fields);
    if (ledgers_ == 0 && !settle()) return false;
    if (ledgers_ < n() * (n() - 1))
      return refuse("found a server's ledger, expected the {} of links first", n() * (n() - 1));
    if (!same("server", id, ledgers_ - n() * (n() - 1))) return false;
    ++ledgers_;
    const auto& total = servers_[id].ledger;
    return same("batches", found.batches, total.batches) && same("rows", found.rows, total.rows) &&
           same("flops", found.flops, total.flops) &&
           same("bytes", found.bytes_read, total.bytes_read) &&
           same("busy_ns", found.busy_ns, total.busy_ns) &&
           same("kv_peak_bytes", found.kv_peak_bytes, total.kv_peak_bytes);
  }

  /// Before the first ledger: everything that was begun is over, and what links and servers wrote
  /// is what the decisions imply.
  bool settle() {
    if (!requests_.empty())
      return refuse("found the ledgers, expected request {} to be done first",
                    requests_.begin()->first);
    if (!same("requests", summary.requests, n_requests_)) return false;
    if (!held_.empty())
      return refuse("found the ledgers, expected server {} to have the memory of request {} back",
                    held_.begin()->first.second, held_.begin()->first.first);
    for (std::uint32_t id = 0; id < n(); ++id)
      if (!settle_server(id)) return false;
    for (std::uint32_t from = 0; from < n(); ++from)
      for (std::uint32_t to = 0; to < n(); ++to)
        if (from != to && !settle_link(from, to)) return false;
    return settle_reservations() && settle_load();
  }

  bool settle_server(std::uint32_t id) {
    auto& server = servers_[id];
    if (emulated() && !close_batch(id)) return false;
    if (server.snapshot == 0) return refuse("found no snapshot of server {}, expected one", id);
    const auto& costs = header_.costs;
    for (std::uint32_t layer = 0; layer < n_layers(); ++layer) {
      const auto where = fmt::format("attention of layer {} on server {}", layer, id);
      const auto& found = server.attend_found[layer];
      const auto& decided = server.attend_expected[layer];
      if (!same(where + ", rows of batches against those decided", found.rows, decided.rows) ||
          !same(where + ", FLOPs", found.flops, decided.flops) ||
          !same(where + ", bytes", found.bytes,
                decided.bytes + found.batches * costs.attention_bytes))
        return false;
      for (std::uint32_t expert = 0; expert < n_experts(); ++expert) {
        const auto index = layer * n_experts() + expert;
        if (!same(fmt::format("expert {} of layer {} on server {}, rows of batches against those "
                              "decided",
                              expert, layer, id),
                  server.expert_found[index], server.expert_expected[index]))
          return false;
      }
    }
    return same(fmt::format("head of server {}, rows of batches against those needed", id),
                server.head_found, server.head_expected);
  }

  bool settle_link(std::uint32_t from, std::uint32_t to) {
    auto& path = link(from, to);
    for (const auto kind : {frame_kind::token, frame_kind::call, frame_kind::output, frame_kind::kv,
                            frame_kind::progress}) {
      const auto& found = path.found[index_of(kind)];
      auto implied = path.expected[index_of(kind)];
      if (kind == frame_kind::kv) {
        // On the wall clock a decision does not tell which batch attended its rows.
        if (!emulated()) implied.frames = found.frames;
        implied.other_bytes = implied.frames * kv_frame_bytes_ + path.kv_blocks * kv_block_bytes_;
      }
      const auto where = fmt::format("{} frames from server {} to {}", to_string(kind), from, to);
      if (!same(where + ", against those that the decisions imply", found.frames, implied.frames) ||
          !same(where + ", rows", found.rows, implied.rows) ||
          !same(where + ", other bytes", found.other_bytes, implied.other_bytes))
        return false;
    }
    return true;
  }

  /// A request asks each member once, is answered, may give back, wait and be answered again, and
  /// gives back at the end: more frames go out than come back by the number of grants.
  bool settle_reservations() {
    const auto count = [&](std::uint32_t from, std::uint32_t to) {
      return link(from, to).found[index_of(frame_kind::reservation)].frames;
    };
    for (std::uint32_t a = 0; a < n(); ++a)
      for (std::uint32_t b = a + 1; b < n(); ++b) {
        const auto there = grants_[a * n() + b], back = grants_[b * n() + a];
        if (!same(fmt::format("reservation frames from server {} to {} less those back", a, b),
                  count(a, b) - count(b, a), there - back))
          return false;
        const auto least = members_[a * n() + b] + members_[b * n() + a] + back;
        if (count(b, a) < least)
          return refuse("found {} reservation frames from server {} to {}, expected at least {}",
                        count(b, a), b, a, least);
      }
    return true;
  }

  /// Every server tells all others at once, and each report is a snapshot where it is taken in.
  bool settle_load() {
    if (n() == 1) return true;
    const auto count = [&](std::uint32_t from, std::uint32_t to) {
      return link(from, to).found[index_of(frame_kind::load)].frames;
    };
    for (std::uint32_t to = 0; to < n(); ++to) {
      if (!servers_[to].load_arrivals.empty())
        return refuse(
            "found no snapshot of server {} at {} ns, expected one that takes in the load "
            "report that arrived then",
            to, *servers_[to].load_arrivals.begin());
      std::int64_t reports = count(to, to == 0 ? 1 : 0);
      for (std::uint32_t from = 0; from < n(); ++from) {
        if (from == to) continue;
        if (!same(fmt::format("load frames from server {} to {}", from, to), count(from, to),
                  count(from, from == 0 ? 1 : 0)))
          return false;
        reports += count(from, to);
      }
      if (!same(fmt::format("snapshots of server {} after the first", to),
                static_cast<std::int64_t>(servers_[to].snapshot) - 1, reports))
        return false;
    }
    return true;
  }

  std::string place_;
  std::uint64_t number_ = 1;
  std::optional<error> problem_;
  trace_header header_;
  server_view view_;  ///< Without actors: plan, tables and prices of the run.
  std::uint64_t n_requests_ = 0;
  std::map<std::uint64_t, request_state> requests_;  ///< Not done.
  std::set<std::uint64_t> done_;
  std::vector<link_state> links_;  ///< [from, to]
  std::vector<server_state> servers_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::int64_t>
      held_;  ///< KV bytes by request, server.
  std::vector<std::int64_t> grants_,
      members_;  ///< [access, server], reservations granted; requests
  /// Earliest and latest arrival of progress frames by from, to and time sent.
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::int64_t>,
           std::pair<std::int64_t, std::int64_t>>
      progress_;
  std::int64_t progress_bytes_ = 0, reservation_bytes_ = 0, load_bytes_ = 0;
  std::int64_t kv_frame_bytes_ = 0, kv_block_bytes_ = 0;
  std::int64_t hidden_width_ = 0,
               kv_width_ = 0;  ///< Serialised bytes of a row; the first one tells.
  std::uint32_t ledgers_ = 0;

  // The decision that is being read.
  request_state* request_ = nullptr;
  chunk_state* chunk_ = nullptr;
  std::vector<slot_line> slots_;
  std::vector<float> logits_;
};

// ------------------------------------------------------------------------------------------- file

/// Lines of a file, one at a time.
class line_source {
 public:
  explicit line_source(const std::filesystem::path& path) : file_(path, std::ios::binary) {}
  bool is_open() const { return file_.is_open(); }
  /// False at the end. A last line without its newline is told by `is_complete`.
  bool next(std::string& text) {
    if (!std::getline(file_, text)) return false;
    complete_ = !file_.eof();
    bytes_ += text.size() + (complete_ ? 1 : 0);
    return true;
  }
  bool is_complete() const { return complete_; }
  bool is_bad() const { return file_.bad(); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::ifstream file_;
  std::uint64_t bytes_ = 0;
  bool complete_ = true;
};

class sha256 {
 public:
  sha256() { EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr); }
  void add(std::string_view text) { EVP_DigestUpdate(context_.get(), text.data(), text.size()); }
  std::string hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    EVP_DigestFinal_ex(context_.get(), digest, &size);
    std::string text;
    for (unsigned int i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_{EVP_MD_CTX_new(),
                                                                   EVP_MD_CTX_free};
};

struct sealed_lines {
  std::uint64_t lines = 0;  ///< Before the closing one.
  std::uint64_t bytes = 0;
  std::string sha256;
};

/// The closing line against all lines before it.
result<sealed_lines> check_seal(const std::filesystem::path& path,
                                const std::function<void(std::uint64_t)>& tell) {
  line_source source(path);
  if (!source.is_open())
    return error{std::filesystem::exists(path) ? errc::io : errc::not_found,
                 fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno))};
  sha256 hash;
  std::string text, last;
  std::uint64_t n = 0;
  while (source.next(text)) {
    if (n > 0) {
      last += '\n';
      hash.add(last);
    }
    std::swap(text, last);
    if (++n % 4096 == 0) tell(source.bytes());
  }
  if (source.is_bad()) return error{errc::io, fmt::format("{}: reading failed", path.string())};
  const auto refuse = [&](const std::string& what) {
    return error{errc::malformed,
                 fmt::format("{}:{}: {}; the trace is cut short or was changed, run "
                             "again",
                             path.string(), std::max<std::uint64_t>(n, 1), what)};
  };
  if (n == 0 || line_type(last) != "end")
    return refuse("found no closing line, expected one of type end");
  if (!source.is_complete()) return refuse("found no newline after the closing line");
  line_fields fields(last);
  const auto lines = fields.integer<std::uint64_t>("lines");
  const auto claimed = std::string(fields.word("sha256"));
  if (!fields.end()) return refuse(fields.problem());
  if (lines != n - 1) return refuse(fmt::format("lines: found {}, expected {}", lines, n - 1));
  const auto digest = hash.hex();
  if (claimed != digest)
    return refuse(
        fmt::format("sha256: found {}, expected {}, that of the lines before", claimed, digest));
  return sealed_lines{n - 1, source.bytes(), digest};
}

}  // namespace

result<trace_summary> verify_trace(const std::filesystem::path& path,
                                   const verify_progress& progress) {
  std::error_code ignored;
  const auto size = static_cast<double>(std::max<std::uintmax_t>(
      1, std::filesystem::is_regular_file(path, ignored) ? std::filesystem::file_size(path, ignored)
                                                         : 1));
  const auto tell = [&](double bytes) {
    if (progress) progress(std::min(1.0, bytes / size));
  };
  // Hashing takes little of the time that recomputing does.
  constexpr double hash_share = 0.1;
  const auto seal =
      check_seal(path, [&](std::uint64_t bytes) { tell(hash_share * static_cast<double>(bytes)); });
  if (!seal) return seal.error();

  line_source source(path);
  std::string text;
  if (!source.next(text)) return error{errc::io, fmt::format("{}: reading failed", path.string())};
  verifier checks(path.string(), text);
  if (checks.failed()) return checks.problem();
  for (std::uint64_t number = 2; number <= seal->lines; ++number) {
    if (!source.next(text))
      return error{errc::io, fmt::format("{}: reading failed", path.string())};
    if (!checks.line(number, text)) return checks.problem();
    if (number % 1024 == 0)
      tell(size * hash_share + (1 - hash_share) * static_cast<double>(source.bytes()));
  }
  if (!checks.finish(seal->lines + 1)) return checks.problem();
  auto summary = std::move(checks.summary);
  summary.lines = seal->lines;
  summary.bytes = seal->bytes;
  summary.sha256 = seal->sha256;
  tell(size);
  return summary;
}

std::string summary_text(const trace_summary& s) {
  std::string text =
      fmt::format("The trace holds: {} lines, {} bytes, sha256 {}\n", s.lines, s.bytes, s.sha256);
  text += fmt::format("  run         {} mode, strategy {}, seed {}, {:.3f} s\n", to_string(s.mode),
                      s.strategy, s.seed, static_cast<double>(s.duration_ns) * 1e-9);
  text += fmt::format("  requests    {}, {} of them scored; {} prompt tokens, {} new tokens\n",
                      s.requests, s.scored_requests, s.prompt_tokens, s.new_tokens);
  text +=
      fmt::format("  decisions   {} recomputed; predicted loss {} units\n", s.decisions, s.loss);
  text += "  slots      ";
  for (std::size_t kind = 0; kind < s.slots.size(); ++kind)
    text += fmt::format(" {} {}{}", s.slots[kind], to_string(static_cast<execution_kind>(kind)),
                        kind + 1 < s.slots.size() ? "," : "\n");
  text += fmt::format(
      "  links       {} messages; {} bytes of hidden states, {} of KV rows, {} other; "
      "busy {:.3f} s\n",
      s.charged.messages, s.charged.hidden_bytes, s.charged.kv_bytes, s.charged.other_bytes,
      static_cast<double>(s.charged.busy_ns) * 1e-9);
  text += fmt::format(
      "  servers     {} batches, {} snapshots, {} KV reservations and releases; busy "
      "{:.3f} s\n",
      s.batches, s.snapshots, s.kv_changes, static_cast<double>(s.compute_busy_ns) * 1e-9);
  return text;
}

std::string summary_json(const trace_summary& s) {
  nlohmann::ordered_json slots, charged, line;
  for (std::size_t kind = 0; kind < s.slots.size(); ++kind)
    slots[to_string(static_cast<execution_kind>(kind))] = s.slots[kind];
  charged["messages"] = s.charged.messages;
  charged["hidden_bytes"] = s.charged.hidden_bytes;
  charged["kv_bytes"] = s.charged.kv_bytes;
  charged["other_bytes"] = s.charged.other_bytes;
  charged["serialised_bytes"] = s.charged.serialised_bytes;
  charged["busy_ns"] = s.charged.busy_ns;
  line["holds"] = true;
  line["mode"] = to_string(s.mode);
  line["strategy"] = s.strategy;
  line["seed"] = s.seed;
  line["lines"] = s.lines;
  line["bytes"] = s.bytes;
  line["sha256"] = s.sha256;
  line["requests"] = s.requests;
  line["scored_requests"] = s.scored_requests;
  line["prompt_tokens"] = s.prompt_tokens;
  line["new_tokens"] = s.new_tokens;
  line["decisions"] = s.decisions;
  line["slots"] = slots;
  line["loss"] = s.loss;
  line["snapshots"] = s.snapshots;
  line["batches"] = s.batches;
  line["kv_changes"] = s.kv_changes;
  line["links"] = charged;
  line["compute_busy_ns"] = s.compute_busy_ns;
  line["duration_ns"] = s.duration_ns;
  return line.dump() + "\n";
}

}  // namespace ordermoe::actors
