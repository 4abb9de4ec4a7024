#include "actors/cluster/client.hpp"

#include <fmt/format.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "planning/strategies/quality_terms.hpp"

namespace ordermoe::actors {

namespace {

using net::peer_id;
using net::session_event;
constexpr peer_id the_node = 0;

}  // namespace

class cluster_client::content final : public net::transport_user {
 public:
  using expert_sink = std::function<void(const expert_answer&)>;

  result<void> begin(std::shared_ptr<const net::tls_identity> identity, const net::address& at,
                     std::chrono::milliseconds longest, net::connections_maker carried_by) {
    net::transport_options options;
    options.identity = std::move(identity);
    options.carried_by = std::move(carried_by);
    options.peers = {{"", at}};
    options.is_client = true;
    // Whoever starts later is a later one: no count is kept.
    options.boot =
        static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                       std::chrono::system_clock::now().time_since_epoch())
                                       .count());
    auto transport = net::transport::start(std::move(options), *this);
    if (!transport) return transport.error();
    transport_ = std::move(*transport);
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, longest, [this] { return up_ || refused_; });
    if (up_) {
      lock.unlock();
      node_name_ = transport_->figures(the_node).name;
      return {};
    }
    if (problem_.empty()) return at_node(at, {errc::timed_out, "no answer"});
    return at_node(at, {refused_ ? errc::mismatch : errc::io, problem_});
  }

  ~content() override {
    if (transport_) transport_->stop();
  }

  const std::string& node_name() const { return node_name_; }
  bool is_up() const {
    const std::lock_guard lock(mutex_);
    return up_;
  }

  std::uint64_t submit(remote_request wanted, answer_sink sink) {
    std::unique_lock lock(mutex_);
    const auto ref = wanted.ref = next_++;
    wanted.tells_tokens = static_cast<bool>(sink.on_token);
    sinks_[ref].sink = std::move(sink);
    lock.unlock();
    // The node would take it for a message that makes no sense, and the whole connection with it.
    if (const auto& stated = wanted.spec.quality_percent;
        stated && !(*stated >= 0 && *stated <= planning::most_stated_percent))
      end(ref, failed(ref, {errc::out_of_range,
                            fmt::format("a quality budget of {} %, expected 0 to {:g}", *stated,
                                        planning::most_stated_percent)}));
    else if (!say(control_kind::submit, submit_text(wanted)))
      end(ref, failed(ref, {errc::io, gone_text()}));
    return ref;
  }

  void cancel(std::uint64_t request) { say(control_kind::cancel, cancel_text(request)); }

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

  result<std::string> status(std::chrono::milliseconds longest) {
    std::unique_lock lock(mutex_);
    status_.reset();
    lock.unlock();
    if (!say(control_kind::ask, {})) return error{errc::io, gone_text()};
    lock.lock();
    changed_.wait_for(lock, longest, [this] { return status_ || !up_; });
    if (status_) return *status_;
    if (!up_) return error{errc::io, fmt::format("{} went away: {}", node_name_, problem_)};
    return error{errc::timed_out, fmt::format("{} did not say how it is", node_name_)};
  }

  result<std::string> order(const std::string& verb, const std::string& arguments, bool dry_run,
                            std::chrono::milliseconds longest, const std::string& token) {
    std::unique_lock lock(mutex_);
    const auto ref = next_++;
    lock.unlock();
    nlohmann::ordered_json text{{"ref", ref},
                                {"verb", verb},
                                {"arguments", nlohmann::ordered_json::parse(arguments)},
                                {"dry_run", dry_run}};
    if (!token.empty()) text["token"] = token;
    if (!say(control_kind::order, text.dump())) return error{errc::io, gone_text()};
    lock.lock();
    changed_.wait_for(lock, longest, [&] { return replies_.contains(ref) || !up_; });
    auto found = replies_.extract(ref);
    if (!found.empty()) return std::move(found.mapped());
    if (!up_) return error{errc::io, fmt::format("{} went away: {}", node_name_, problem_)};
    return error{errc::timed_out, fmt::format("{} did not answer {}", node_name_, verb)};
  }

  void give(const bearer_order& order, order_sink sink) {
    std::unique_lock lock(mutex_);
    const auto ref = next_++;
    given_[ref] = std::move(sink);
    lock.unlock();
    if (!say(control_kind::order, order_text(ref, order)))
      end_order(ref, error{errc::io, gone_text()});
  }

  void run_expert(expert_ask ask, expert_sink sink) {
    std::unique_lock lock(mutex_);
    const auto ref = ask.ref = next_++;
    experts_[ref] = std::move(sink);
    lock.unlock();
    if (!transport_->send(the_node, net::lane::token,
                          static_cast<std::uint8_t>(control_kind::run_expert), 0, 0, 0,
                          encode(ask)))
      end_expert(not_run(ref, gone_text()));
  }

  // ------------------------------------------------------------------------- of the transport's thread

  void take(peer_id, std::vector<session_event> events) override {
    for (auto& event : events) switch (event.kind) {
        case session_event::what::up:
          set([&] { up_ = true; });
          break;
        case session_event::what::down:
          lose(event.text);
          break;
        case session_event::what::refused:
        case session_event::what::fault:
          set([&] {
            problem_ = event.text;
            refused_ = true;
          });
          break;
        case session_event::what::cut:
          // The node keeps nothing for a client that is cut off.
          lose(event.text);
          break;
        case session_event::what::frame:
          hear(event);
          transport_->used(the_node, event.header.of, net::session::frame_bytes(event.header));
          break;
        default:
          break;
      }
  }

  void client_came(peer_id, const net::certificate_name&) override {}

  void problem(const std::string&, const error& why) override {
    set([&] {
      problem_ = why.message;
      // Nothing that trying again would change.
      refused_ = why.code == errc::malformed || why.code == errc::mismatch;
    });
  }

 private:
  static error at_node(const net::address& at, error why) {
    why.message = fmt::format("cannot reach a node at {}: {}", net::to_string(at), why.message);
    return why;
  }

  std::string gone_text() const { return fmt::format("{} is not connected", node_name_); }

  bool say(control_kind kind, std::string text) {
    return transport_->send(the_node, net::lane::control, static_cast<std::uint8_t>(kind), 0, 0, 0,
                            std::move(text));
  }

  template <class Change>
  void set(Change change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }

  static request_outcome failed(std::uint64_t ref, error why) {
    request_outcome outcome;
    outcome.request = ref;
    outcome.finish = "failed";
    outcome.problem = std::move(why);
    return outcome;
  }

  /// Once, whoever is the first to say so.
  void end(std::uint64_t ref, const request_outcome& outcome) {
    std::unique_lock lock(mutex_);
    const auto found = sinks_.find(ref);
    if (found == sinks_.end() || std::exchange(found->second.ends, true)) return;
    const auto sink = std::move(found->second.sink);
    lock.unlock();
    if (sink.on_end) sink.on_end(outcome);
    lock.lock();
    sinks_.erase(ref);
    changed_.notify_all();
  }

  /// Once, whoever is the first to say so; false where nobody waits for it.
  bool end_order(std::uint64_t ref, const result<std::string>& reply) {
    std::unique_lock lock(mutex_);
    auto found = given_.extract(ref);
    lock.unlock();
    if (!found.empty()) found.mapped()(reply);
    return !found.empty();
  }

  static expert_answer not_run(std::uint64_t ref, std::string why) {
    expert_answer answer;
    answer.ref = ref;
    answer.code = errc::io;
    answer.problem = std::move(why);
    return answer;
  }

  /// Once, whoever is the first to say so.
  void end_expert(const expert_answer& answer) {
    std::unique_lock lock(mutex_);
    auto found = experts_.extract(answer.ref);
    lock.unlock();
    if (!found.empty()) found.mapped()(answer);
  }

  void lose(const std::string& why) {
    std::vector<std::uint64_t> left, experts, orders;
    set([&] {
      up_ = false;
      problem_ = why;
      for (const auto& [ref, sink] : sinks_) left.push_back(ref);
      for (const auto& [ref, sink] : experts_) experts.push_back(ref);
      for (const auto& [ref, sink] : given_) orders.push_back(ref);
    });
    for (const auto ref : orders)
      end_order(ref, error{errc::io, fmt::format("{} went away: {}", node_name_, why)});
    for (const auto ref : experts)
      end_expert(not_run(ref, fmt::format("{} went away: {}", node_name_, why)));
    for (const auto ref : left)
      end(ref, failed(ref, {errc::io, fmt::format("{} went away: {}", node_name_, why)}));
  }

  void hear(const session_event& event) {
    switch (static_cast<control_kind>(event.header.kind)) {
      case control_kind::token:
        if (const auto token = parse_token(event.text))
          return hand_out(*token);
        else
          return give_up(token.error());
      case control_kind::ended:
        if (const auto outcome = parse_ended(event.text))
          return end(outcome->request, *outcome);
        else
          return give_up(outcome.error());
      case control_kind::status:
        return set([&] { status_ = event.text; });
      case control_kind::reply:
        return take_reply(event.text);
      case control_kind::expert_ran:
        if (const auto answer = decode_expert_answer(event.text))
          return end_expert(*answer);
        else
          return give_up(answer.error());
      default:
        return;
    }
  }

  void take_reply(const std::string& text) {
    auto reply = nlohmann::ordered_json::parse(text, nullptr, false);
    if (!reply.is_object() || !reply.value("ref", nlohmann::ordered_json()).is_number_unsigned())
      return give_up({errc::malformed, "a reply without ref"});
    const auto ref = reply["ref"].get<std::uint64_t>();
    reply.erase("ref");
    const auto problem = reply.find("problem");
    const bool failed = problem != reply.end();
    if (failed &&
        (!problem->is_object() || !problem->value("code", nlohmann::ordered_json()).is_number() ||
         !problem->value("message", nlohmann::ordered_json()).is_string()))
      return give_up({errc::malformed, "a problem without code and message"});
    if (end_order(ref, reply.dump())) return;
    set([&] {
      replies_.emplace(
          ref, failed ? result<std::string>(error{static_cast<errc>((*problem)["code"].get<int>()),
                                                  (*problem)["message"].get<std::string>()})
                      : result<std::string>(reply.dump()));
    });
  }

  void hand_out(const answer_token& token) {
    std::unique_lock lock(mutex_);
    const auto found = sinks_.find(token.request);
    if (found == sinks_.end()) return;
    const auto on_token = found->second.sink.on_token;
    lock.unlock();
    if (on_token) on_token(token);
  }

  /// Whose answer it was is not known: all end.
  void give_up(const error& why) {
    transport_->leave(the_node, fmt::format("it says what makes no sense: {}", why.message));
  }

  struct waiting_answer {
    answer_sink sink;
    bool ends = false;
  };

  std::unique_ptr<net::transport> transport_;
  std::string node_name_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool up_ = false, refused_ = false;
  std::string problem_;
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, waiting_answer> sinks_;
  std::map<std::uint64_t, expert_sink> experts_;
  std::map<std::uint64_t, order_sink> given_;
  std::map<std::uint64_t, result<std::string>> replies_;
  std::optional<std::string> status_;
};

cluster_client::cluster_client(std::unique_ptr<content> made) : content_(std::move(made)) {}
cluster_client::~cluster_client() = default;

result<std::unique_ptr<cluster_client>> cluster_client::connect(
    std::shared_ptr<const net::tls_identity> identity, const net::address& at,
    std::chrono::milliseconds longest, net::connections_maker carried_by) {
  auto made = std::make_unique<content>();
  if (auto begun = made->begin(std::move(identity), at, longest, std::move(carried_by)); !begun)
    return begun.error();
  return std::unique_ptr<cluster_client>(new cluster_client(std::move(made)));
}

const std::string& cluster_client::node_name() const {
  return content_->node_name();
}
bool cluster_client::is_up() const {
  return content_->is_up();
}
std::uint64_t cluster_client::submit(remote_request wanted, answer_sink sink) {
  return content_->submit(std::move(wanted), std::move(sink));
}
void cluster_client::cancel(std::uint64_t request) {
  content_->cancel(request);
}
void cluster_client::cancel_all() {
  content_->cancel_all();
}
std::size_t cluster_client::outstanding() const {
  return content_->outstanding();
}
bool cluster_client::wait(const std::function<bool()>& done, const std::function<bool()>& pause) {
  return content_->wait(done, pause);
}
void cluster_client::run_expert(expert_ask ask, std::function<void(const expert_answer&)> sink) {
  content_->run_expert(std::move(ask), std::move(sink));
}
result<std::string> cluster_client::order(const std::string& verb, const std::string& arguments,
                                          bool dry_run, std::chrono::milliseconds longest,
                                          const std::string& token) {
  return content_->order(verb, arguments, dry_run, longest, token);
}
void cluster_client::give(const bearer_order& order, order_sink sink) {
  content_->give(order, std::move(sink));
}
result<std::string> cluster_client::status(std::chrono::milliseconds longest) {
  return content_->status(longest);
}

}  // namespace ordermoe::actors
