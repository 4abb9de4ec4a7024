#include "actors/cluster/clients.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "config/json.hpp"
#include "config/json_text.hpp"
#include "net/channel/identity_watch.hpp"
#include "planning/strategies/quality_terms.hpp"

namespace ordermoe::actors {

namespace {

using net::peer_id;
using net::session_event;
using clock = std::chrono::steady_clock;

request_outcome failed(std::uint64_t ref, error why) {
  request_outcome outcome;
  outcome.request = ref;
  outcome.finish = "failed";
  outcome.problem = std::move(why);
  return outcome;
}

expert_answer not_run(std::uint64_t ref, std::string why) {
  expert_answer answer;
  answer.ref = ref;
  answer.code = errc::io;
  answer.problem = std::move(why);
  return answer;
}

/// What the node would take for a message that makes no sense, and end the whole connection for.
std::optional<error> senseless(const request_spec& spec, const std::string& as_sent) {
  const auto& stated = spec.quality_percent;
  if (stated && !(*stated >= 0 && *stated <= planning::most_stated_percent))
    return error{errc::out_of_range, fmt::format("a quality budget of {} %, expected 0 to {:g}",
                                                 *stated, planning::most_stated_percent)};
  if (as_sent.size() > most_message_bytes())
    return error{errc::out_of_range,
                 fmt::format("the request takes {} bytes, expected at most {}; shorten its text",
                             as_sent.size(), most_message_bytes())};
  if (const auto read = parse_submit(as_sent); !read) return read.error();
  return std::nullopt;
}

}  // namespace

bool is_refusal(const request_outcome& outcome) {
  constexpr std::int64_t at_once_ns = 50'000'000;
  return outcome.problem &&
         (outcome.problem->code == errc::failed || outcome.problem->code == errc::io) &&
         outcome.token_ids.empty() && outcome.done_ns - outcome.arrival_ns <= at_once_ns;
}

namespace {

/// Of a reply, without its ref. Error: what it tells as its problem.
result<std::string> reply_of(const nlohmann::ordered_json& told) {
  const auto problem = told.find("problem");
  if (problem == told.end()) return told.dump();
  return error{static_cast<errc>(problem->at("code").get<int>()),
               problem->at("message").get<std::string>()};
}

}  // namespace

class cluster_clients::content final : public net::transport_user {
 public:
  explicit content(std::vector<place> places) {
    for (auto& each : places) {
      auto& made = nodes_.emplace_back();
      made.name = std::move(each.name);
      made.at = std::move(each.at);
    }
  }
  ~content() override { stop(); }

  result<void> begin(std::shared_ptr<const net::tls_identity> identity,
                     net::connections_maker carried_by) {
    net::transport_options options;
    options.identity = identity;
    options.carried_by = std::move(carried_by);
    for (const auto& each : nodes_) options.peers.push_back({each.name, each.at});
    options.is_client = true;
    options.rests = false;
    // Whoever starts later is a later one: no count is kept.
    options.boot =
        static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                       std::chrono::system_clock::now().time_since_epoch())
                                       .count());
    auto transport = net::transport::start(std::move(options), *this);
    if (!transport) return transport.error();
    transport_ = std::move(*transport);
    through_ = transport_.get();
    through_.notify_all();
    identity_ = std::make_unique<net::identity_watch>(
        std::move(identity), [this](const auto& next) { transport_->use(next); });
    return {};
  }

  void stop() {
    if (!transport_) return;
    identity_.reset();
    transport_->stop();
    std::unique_lock lock(mutex_);
    has_stopped_ = true;
    for (auto& each : nodes_) {
      each.up = false;
      ++each.n_lost;
      each.n_outstanding = 0;
    }
    // What they hold ends without the lock: it may be anything.
    const auto sinks = std::exchange(sinks_, {});
    const auto experts = std::exchange(experts_, {});
    const auto given = std::exchange(given_, {});
    changed_.notify_all();
    lock.unlock();
  }

  result<void> await_one(std::chrono::milliseconds longest) {
    std::unique_lock lock(mutex_);
    const auto any_up = [this] { return std::ranges::any_of(nodes_, &node_seen::up); };
    changed_.wait_for(lock, longest,
                      [&] { return any_up() || std::ranges::all_of(nodes_, &node_seen::refused); });
    if (any_up()) return {};
    const node_seen* told = nullptr;
    for (const auto& each : nodes_)
      if (told == nullptr || !each.problem.empty() || told->problem.empty()) told = &each;
    if (told == nullptr) return error{errc::not_found, "there is no node to reach"};
    const bool is_silent = told->problem.empty();
    return error{is_silent       ? errc::timed_out
                 : told->refused ? errc::mismatch
                                 : errc::io,
                 fmt::format("cannot reach a node at {}: {}", net::to_string(told->at),
                             is_silent ? "no answer" : told->problem)};
  }

  std::size_t size() const { return nodes_.size(); }
  std::string name(std::size_t node) const {
    const std::lock_guard lock(mutex_);
    return nodes_[node].name;
  }
  bool is_up(std::size_t node) const {
    const std::lock_guard lock(mutex_);
    return nodes_[node].up;
  }
  std::size_t n_up() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(std::ranges::count_if(nodes_, &node_seen::up));
  }
  std::string problem(std::size_t node) const {
    const std::lock_guard lock(mutex_);
    return nodes_[node].up ? std::string() : nodes_[node].problem;
  }

  // --------------------------------------------------------------------------------- answers to requests

  std::uint64_t submit(std::size_t node, remote_request wanted, answer_sink sink) {
    return submit(std::unique_lock(mutex_), node, std::move(wanted), std::move(sink));
  }

  std::uint64_t submit_to_any(remote_request wanted, answer_sink sink) {
    std::unique_lock lock(mutex_);
    if (const auto best = least_busy({}))
      return submit(std::move(lock), *best, std::move(wanted), std::move(sink), true);
    const auto ref = next_++;
    lock.unlock();
    if (sink.on_end)
      on_its_thread([told = failed(ref, {errc::io, "no node of the cluster is connected"}),
                     sink = std::move(sink)] { sink.on_end(told); });
    return ref;
  }

  void cancel(std::uint64_t request) {
    std::unique_lock lock(mutex_);
    const auto found = sinks_.find(request);
    if (found == sinks_.end()) return;
    const auto node = found->second.node;
    found->second.again.reset();
    found->second.is_cancelled = true;
    lock.unlock();
    say(node, control_kind::cancel, cancel_text(request));
  }

  void cancel_all() {
    std::vector<std::uint64_t> all;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [ref, sink] : sinks_) all.push_back(ref);
    }
    for (const auto ref : all) cancel(ref);
  }

  std::size_t outstanding() const {
    const std::lock_guard lock(mutex_);
    return sinks_.size();
  }

  bool wait(const std::function<bool()>& done, const std::function<bool()>& pause) {
    while (!done()) {
      if (pause && pause()) return done();
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::milliseconds(10));
    }
    return true;
  }

  // -------------------------------------------------------------------------------- status, orders, experts

  std::vector<result<std::string>> statuses(const std::vector<std::size_t>& nodes,
                                            std::chrono::milliseconds longest) {
    const auto until = clock::now() + longest;
    std::vector<status_asked> asked;
    for (const auto node : nodes) {
      std::unique_lock lock(mutex_);
      nodes_[node].status.reset();
      asked.push_back({node, nodes_[node].n_lost, false});
      lock.unlock();
      asked.back().is_sent = say(node, control_kind::ask, {});
    }
    std::vector<result<std::string>> told;
    for (const auto& each : asked) told.push_back(await_status(each, until));
    return told;
  }

  result<std::string> order(std::size_t node, const std::string& verb, const std::string& arguments,
                            bool dry_run, std::chrono::milliseconds longest,
                            const std::string& token) {
    std::unique_lock lock(mutex_);
    const auto ref = next_++;
    const auto& to = nodes_[node];
    const auto lost_before = to.n_lost;
    awaited_.insert(ref);
    lock.unlock();
    nlohmann::ordered_json text{{"ref", ref},
                                {"verb", verb},
                                {"arguments", nlohmann::ordered_json::parse(arguments)},
                                {"dry_run", dry_run}};
    if (!token.empty()) text["token"] = token;
    const bool is_sent = say(node, control_kind::order, json_text(text));
    lock.lock();
    if (is_sent)
      changed_.wait_for(lock, longest, [&] {
        return replies_.contains(ref) || is_lost(to, lost_before) || is_interrupted_;
      });
    awaited_.erase(ref);
    auto found = replies_.extract(ref);
    if (!found.empty()) return std::move(found.mapped());
    if (!is_sent) return not_connected(to);
    if (is_interrupted_) return interrupted();
    if (is_lost(to, lost_before)) return gone(to);
    return error{errc::timed_out, fmt::format("{} did not answer {}", to.name, verb)};
  }

  void interrupt() {
    const std::lock_guard lock(mutex_);
    is_interrupted_ = true;
    changed_.notify_all();
  }

  void give(std::size_t node, const bearer_order& order, order_sink sink) {
    std::unique_lock lock(mutex_);
    const auto ref = next_++;
    given_[ref] = {node, std::move(sink)};
    lock.unlock();
    if (!say(node, control_kind::order, order_text(ref, order)))
      end_order(node, ref, not_connected(node));
  }

  void run_expert(std::size_t node, expert_ask ask, expert_sink sink) {
    std::unique_lock lock(mutex_);
    const auto ref = ask.ref = next_++;
    experts_[ref] = {node, std::move(sink)};
    lock.unlock();
    if (!transport_->send(static_cast<peer_id>(node), net::lane::token,
                          static_cast<std::uint8_t>(control_kind::run_expert), 0, 0, 0,
                          encode(ask)))
      end_expert(node, not_run(ref, not_connected(node).message));
  }

  // ------------------------------------------------------------------------- of the transport's thread

  void take(peer_id from, std::vector<session_event> events) override {
    // Somebody may answer before begin() has stored it.
    through_.wait(nullptr);
    const auto turns = turns_now();
    if (turns) turns->begin();
    take_all(from, events);
    if (turns) turns->end();
  }

  void client_came(peer_id, const net::certificate_name&) override {}
  void problem(const std::string&, const error&) override {}

  void could_not_reach(peer_id node, const error& why) override {
    // Nothing that trying again would change soon.
    set_problem(node, why.message, why.code == errc::malformed || why.code == errc::mismatch);
  }

  void tell_in(told_turns turns) {
    const std::lock_guard lock(mutex_);
    turns_ = std::make_shared<const told_turns>(std::move(turns));
  }

 private:
  std::shared_ptr<const told_turns> turns_now() const {
    const std::lock_guard lock(mutex_);
    return turns_;
  }

  void take_all(peer_id from, const std::vector<session_event>& events) {
    std::array<std::uint64_t, net::n_lanes> used{};
    for (const auto& event : events) switch (event.kind) {
        case session_event::what::up:
          came(from);
          break;
        case session_event::what::down:
        case session_event::what::cut:
          // The node keeps nothing for a client that is cut off.
          lose(from, event.text);
          break;
        case session_event::what::refused:
        case session_event::what::fault:
          set_problem(from, event.text, true);
          break;
        case session_event::what::frame:
          hear(from, event);
          used[static_cast<std::size_t>(event.header.of)] +=
              net::session::frame_bytes(event.header);
          break;
        default:
          break;
      }
    for (std::size_t i = 0; i < used.size(); ++i)
      if (used[i] > 0) transport_->used(from, static_cast<net::lane>(i), used[i]);
  }

  /// A node as it is seen from here.
  struct node_seen {
    std::string name;
    net::address at;
    bool up = false, refused = false;
    std::string problem;
    std::uint64_t n_lost = 0;  ///< How often: whoever waits for it sees that it changed.
    std::size_t n_outstanding = 0;
    clock::time_point passed_over_until;  ///< It does not take requests, as far as is known.
    std::optional<result<std::string>> status;
  };
  struct waiting_answer {
    std::size_t node = 0;
    std::shared_ptr<const answer_sink> sink;  ///< Null once it is told its end.
    /// As it was sent, where another node may be asked that is not among those that were; none once a token came or it was cancelled.
    std::optional<std::string> again = {};
    bool is_cancelled = false;  ///< A node that is asked behind it has to hear of it, too.
    std::vector<std::size_t> asked = {};
    std::vector<std::int32_t> told_ids = {};  ///< Of tokens.
    std::string told_text = {};
  };
  template <class Sink>
  struct waiting {
    std::size_t node = 0;
    Sink sink;
  };

  struct status_asked {
    std::size_t node = 0;
    std::uint64_t lost_before = 0;
    bool is_sent = false;
  };

  result<std::string> await_status(const status_asked& asked, clock::time_point until) {
    std::unique_lock lock(mutex_);
    const auto& from = nodes_[asked.node];
    if (!asked.is_sent)
      return error{errc::io, fmt::format("{} is not connected{}{}", from.name,
                                         from.problem.empty() ? "" : ": ", from.problem)};
    const auto lost = [&] { return is_lost(from, asked.lost_before); };
    changed_.wait_until(lock, until, [&] { return from.status || lost() || is_interrupted_; });
    if (from.status) return *from.status;
    if (is_interrupted_) return interrupted();
    if (lost()) return gone(from);
    return error{errc::timed_out, fmt::format("{} did not say how it is", from.name)};
  }

  static bool is_lost(const node_seen& node, std::uint64_t lost_before) {
    return !node.up || node.n_lost != lost_before;
  }
  static error gone(const node_seen& node) {
    return {errc::io, fmt::format("{} went away: {}", node.name, node.problem)};
  }
  static error interrupted() {
    return {errc::interrupted, "whoever asked ends, and waits no longer"};
  }
  static error not_connected(const node_seen& node) {
    return {errc::io, fmt::format("{} is not connected", node.name)};
  }
  error not_connected(std::size_t node) const {
    const std::lock_guard lock(mutex_);
    return not_connected(nodes_[node]);
  }

  bool say(std::size_t node, control_kind kind, std::string text) {
    return transport_->send(static_cast<peer_id>(node), net::lane::control,
                            static_cast<std::uint8_t>(kind), 0, 0, 0, std::move(text));
  }

  std::uint64_t submit(std::unique_lock<std::mutex> lock, std::size_t node, remote_request wanted,
                       answer_sink sink, bool to_any = false) {
    const auto ref = wanted.ref = next_++;
    wanted.tells_tokens = static_cast<bool>(sink.on_token);
    lock.unlock();
    auto text = submit_text(wanted);
    const auto why = senseless(wanted.spec, text);
    waiting_answer waits{node, std::make_shared<const answer_sink>(std::move(sink))};
    if (to_any && !why) {
      waits.again = text;
      waits.asked = {node};
    }
    lock.lock();
    sinks_[ref] = std::move(waits);
    ++nodes_[node].n_outstanding;
    const bool up = nodes_[node].up;
    lock.unlock();
    const auto end_soon = [&](const error& problem) {
      on_its_thread([this, node, told = failed(ref, problem)] { end(node, told); });
    };
    if (why)
      end_soon(*why);
    else if (!up || !say(node, control_kind::submit, std::move(text)))
      end_soon(not_connected(node));
    return ref;
  }

  /// Sinks are called by the transport's thread alone, so that never two are at a time; by whoever asks where it has ended.
  void on_its_thread(std::function<void()> what) {
    std::unique_lock lock(mutex_);
    const bool has_stopped = has_stopped_;
    lock.unlock();
    if (has_stopped)
      what();
    else
      transport_->after(0, std::move(what));
  }

  /// Of the nodes that are connected and were not asked, one with the fewest requests of this client; those that refused one lately
  /// only where there is no other.
  std::optional<std::size_t> least_busy(const std::vector<std::size_t>& asked) const {
    const auto now = clock::now();
    const auto worth = [&](const node_seen& each) {
      return std::pair(each.passed_over_until > now, each.n_outstanding);
    };
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i].up || std::ranges::find(asked, i) != asked.end()) continue;
      if (!best || worth(nodes_[i]) < worth(nodes_[*best])) best = i;
    }
    return best;
  }

  /// Whether another node is asked in the place of one that refuses. The lock is given up then.
  bool goes_elsewhere(std::unique_lock<std::mutex>& lock, std::uint64_t ref,
                      waiting_answer& waits) {
    constexpr std::chrono::seconds passed_over(1);
    nodes_[waits.node].passed_over_until = clock::now() + passed_over;
    const auto next = least_busy(waits.asked);
    if (!next) return false;
    --nodes_[waits.node].n_outstanding;
    ++nodes_[*next].n_outstanding;
    waits.node = *next;
    waits.asked.push_back(*next);
    auto text = *waits.again;
    lock.unlock();
    if (!say(*next, control_kind::submit, std::move(text)))
      end(*next, failed(ref, not_connected(*next)));
    else if (is_cancelled(ref))
      say(*next, control_kind::cancel, cancel_text(ref));  // Again: it may have come before.
    return true;
  }

  bool is_cancelled(std::uint64_t ref) {
    const std::lock_guard lock(mutex_);
    const auto found = sinks_.find(ref);
    return found != sinks_.end() && found->second.is_cancelled;
  }

  void came(peer_id from) {
    auto name = transport_->figures(from).name;
    const std::lock_guard lock(mutex_);
    auto& node = nodes_[from];
    node.name = std::move(name);
    node.up = true;
    node.refused = false;
    node.problem.clear();
    changed_.notify_all();
  }

  void set_problem(peer_id from, const std::string& why, bool refused) {
    const std::lock_guard lock(mutex_);
    nodes_[from].problem = why;
    nodes_[from].refused = refused;
    changed_.notify_all();
  }

  void lose(peer_id from, const std::string& why) {
    std::vector<std::uint64_t> requests, experts, orders;
    const auto collect = [from](const auto& all, std::vector<std::uint64_t>& into) {
      for (const auto& [ref, each] : all)
        if (each.node == from) into.push_back(ref);
    };
    std::unique_lock lock(mutex_);
    auto& node = nodes_[from];
    node.up = false;
    ++node.n_lost;
    node.problem = why;
    collect(sinks_, requests);
    collect(experts_, experts);
    collect(given_, orders);
    // What it may have begun is not asked of another.
    for (const auto ref : requests) sinks_[ref].again.reset();
    const auto told = gone(node);
    changed_.notify_all();
    lock.unlock();
    // They may have been done, and are not to be given again unseen.
    const error unanswered{
        errc::timed_out,
        told.message +
            "; `ordermoe admin audit` tells whether the order was begun, and what came of it"};
    for (const auto ref : orders) end_order(from, ref, unanswered);
    for (const auto ref : experts) end_expert(from, not_run(ref, told.message));
    for (const auto ref : requests) end(from, failed(ref, told));
  }

  void hear(peer_id from, const session_event& event) {
    switch (static_cast<control_kind>(event.header.kind)) {
      case control_kind::token:
        if (const auto token = parse_token(event.text))
          return hand_out(from, *token);
        else
          return give_up(from, token.error());
      case control_kind::ended:
        if (const auto outcome = parse_ended(event.text))
          return end(from, *outcome);
        else
          return give_up(from, outcome.error());
      case control_kind::status: {
        auto told = read_status(event.text);
        const std::lock_guard lock(mutex_);
        nodes_[from].status = std::move(told);
        changed_.notify_all();
        return;
      }
      case control_kind::reply:
        return take_reply(from, event.text);
      case control_kind::expert_ran:
        if (const auto answer = decode_expert_answer(event.text))
          return end_expert(from, *answer);
        else
          return give_up(from, answer.error());
      default:
        return;
    }
  }

  void take_reply(peer_id from, const std::string& text) {
    auto reply = parse_told(text);
    if (!reply.is_object() || !reply.value("ref", nlohmann::ordered_json()).is_number_unsigned())
      return give_up(from, {errc::malformed, "a reply without ref"});
    const auto ref = reply["ref"].get<std::uint64_t>();
    reply.erase("ref");
    const auto problem = reply.find("problem");
    if (problem != reply.end() &&
        (!problem->is_object() || !problem->value("code", nlohmann::ordered_json()).is_number() ||
         !problem->value("message", nlohmann::ordered_json()).is_string()))
      return give_up(from, {errc::malformed, "a problem without code and message"});
    if (end_order(from, ref, reply.dump())) return;
    const std::lock_guard lock(mutex_);
    if (!awaited_.contains(ref)) return;  // It came too late.
    replies_.emplace(ref, reply_of(reply));
    changed_.notify_all();
  }

  void hand_out(peer_id from, const answer_token& token) {
    std::unique_lock lock(mutex_);
    const auto found = sinks_.find(token.request);
    if (found == sinks_.end() || found->second.node != from) return;
    const auto sink = found->second.sink;
    found->second.again.reset();
    found->second.told_ids.push_back(token.id);
    found->second.told_text += token.text;
    lock.unlock();
    if (sink && sink->on_token) sink->on_token(token);
  }

  /// Whose answer it was is not known: all of that node end.
  void give_up(peer_id from, const error& why) {
    transport_->leave(from, fmt::format("it says what makes no sense: {}", why.message));
  }

  /// Once, whoever is the first to say so.
  void end(std::size_t from, request_outcome outcome) {
    std::unique_lock lock(mutex_);
    const auto found = sinks_.find(outcome.request);
    if (found == sinks_.end() || found->second.node != from) return;
    if (found->second.again && is_refusal(outcome)) {
      if (goes_elsewhere(lock, outcome.request, found->second)) return;
      outcome.problem->code = errc::io;  // Some node may take it later.
    }
    // Of an end that no node tells, or tells without the tokens, what it had told before.
    if (outcome.token_ids.empty() && !found->second.told_ids.empty()) {
      outcome.token_ids = std::move(found->second.told_ids);
      outcome.text = std::move(found->second.told_text);
    }
    const auto sink = std::exchange(found->second.sink, nullptr);
    lock.unlock();
    if (!sink) return;
    if (sink->on_end) sink->on_end(outcome);
    lock.lock();
    if (sinks_.erase(outcome.request) > 0) --nodes_[from].n_outstanding;
    changed_.notify_all();
  }

  /// Once, whoever is the first to say so; false where nobody waits for it.
  bool end_order(std::size_t from, std::uint64_t ref, const result<std::string>& reply) {
    return end_once(given_, from, ref, reply);
  }
  void end_expert(std::size_t from, const expert_answer& answer) {
    end_once(experts_, from, answer.ref, answer);
  }
  template <class Sink, class Told>
  bool end_once(std::map<std::uint64_t, waiting<Sink>>& all, std::size_t from, std::uint64_t ref,
                const Told& told) {
    std::unique_lock lock(mutex_);
    const auto found = all.find(ref);
    if (found == all.end() || found->second.node != from) return false;
    const auto sink = std::move(found->second.sink);
    all.erase(found);
    lock.unlock();
    sink(told);
    return true;
  }

  std::unique_ptr<net::identity_watch> identity_;  ///< Null once it is stopped.
  std::unique_ptr<net::transport> transport_;
  std::atomic<net::transport*> through_ = nullptr;  ///< The same, for its own thread to wait for.
  mutable std::mutex mutex_;                        ///< Of everything below.
  std::condition_variable changed_;
  std::vector<node_seen> nodes_;             ///< As many as at first.
  std::shared_ptr<const told_turns> turns_;  ///< Null: nobody cares.
  std::uint64_t next_ = 0;
  std::unordered_map<std::uint64_t, waiting_answer> sinks_;
  std::map<std::uint64_t, waiting<expert_sink>> experts_;
  std::map<std::uint64_t, waiting<order_sink>> given_;
  std::set<std::uint64_t> awaited_;  ///< Orders whose replies somebody waits for.
  std::map<std::uint64_t, result<std::string>> replies_;
  bool is_interrupted_ = false, has_stopped_ = false;
};

cluster_clients::cluster_clients(std::unique_ptr<content> made) : content_(std::move(made)) {}
cluster_clients::~cluster_clients() = default;

result<std::unique_ptr<cluster_clients>> cluster_clients::start(
    std::shared_ptr<const net::tls_identity> identity, std::vector<place> nodes,
    net::connections_maker carried_by) {
  auto made = std::make_unique<content>(std::move(nodes));
  if (auto begun = made->begin(std::move(identity), std::move(carried_by)); !begun)
    return begun.error();
  return std::unique_ptr<cluster_clients>(new cluster_clients(std::move(made)));
}

void cluster_clients::stop() {
  content_->stop();
}
result<void> cluster_clients::await_one(std::chrono::milliseconds longest) {
  return content_->await_one(longest);
}
void cluster_clients::tell_in(told_turns turns) {
  content_->tell_in(std::move(turns));
}
std::size_t cluster_clients::size() const {
  return content_->size();
}
std::string cluster_clients::name(std::size_t node) const {
  return content_->name(node);
}
bool cluster_clients::is_up(std::size_t node) const {
  return content_->is_up(node);
}
std::size_t cluster_clients::n_up() const {
  return content_->n_up();
}
std::string cluster_clients::problem(std::size_t node) const {
  return content_->problem(node);
}
std::uint64_t cluster_clients::submit(std::size_t node, remote_request wanted, answer_sink sink) {
  return content_->submit(node, std::move(wanted), std::move(sink));
}
std::uint64_t cluster_clients::submit_to_any(remote_request wanted, answer_sink sink) {
  return content_->submit_to_any(std::move(wanted), std::move(sink));
}
void cluster_clients::cancel(std::uint64_t request) {
  content_->cancel(request);
}
void cluster_clients::cancel_all() {
  content_->cancel_all();
}
std::size_t cluster_clients::outstanding() const {
  return content_->outstanding();
}
bool cluster_clients::wait(const std::function<bool()>& done, const std::function<bool()>& pause) {
  return content_->wait(done, pause);
}
void cluster_clients::run_expert(std::size_t node, expert_ask ask, expert_sink sink) {
  content_->run_expert(node, std::move(ask), std::move(sink));
}
result<std::string> cluster_clients::order(std::size_t node, const std::string& verb,
                                           const std::string& arguments, bool dry_run,
                                           std::chrono::milliseconds longest,
                                           const std::string& token) {
  return content_->order(node, verb, arguments, dry_run, longest, token);
}
void cluster_clients::interrupt() {
  content_->interrupt();
}
void cluster_clients::give(std::size_t node, const bearer_order& order, order_sink sink) {
  content_->give(node, order, std::move(sink));
}
result<std::string> cluster_clients::status(std::size_t node, std::chrono::milliseconds longest) {
  return std::move(content_->statuses({node}, longest).front());
}
std::vector<result<std::string>> cluster_clients::statuses(std::chrono::milliseconds longest) {
  std::vector<std::size_t> all(size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  return content_->statuses(all, longest);
}

}  // namespace ordermoe::actors
