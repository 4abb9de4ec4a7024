#include "actors/cluster/node.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "actors/admin/identity_report.hpp"
#include "actors/admin/member_roll.hpp"
#include "actors/cluster/control.hpp"
#include "actors/cluster/node_clients.hpp"
#include "actors/cluster/node_experts.hpp"
#include "actors/cluster/node_figures.hpp"
#include "actors/cluster/session_outlet.hpp"
#include "actors/service/status_json.hpp"
#include "actors/session_frames.hpp"
#include "config/devices.hpp"
#include "config/json_text.hpp"
#include "config/log_events.hpp"
#include "planning/server_mask.hpp"

namespace ordermoe::actors {

namespace {

using net::lane;
using net::peer_id;
using net::session_event;
using nlohmann::ordered_json;

}  // namespace

class node::content final : public net::transport_user {
 public:
  explicit content(node_options options)
      : options_(std::move(options)),
        through_(std::make_shared<std::atomic<net::transport*>>(nullptr)),
        identity_(std::make_shared<net::identity_keeper>(options_.transport.identity,
                                                         options_.revocations)),
        plans_(options_.papers,
               [this](peer_id to, control_kind kind, std::uint64_t request, std::uint32_t attempt,
                      std::string payload) {
                 through_->load()->send(to, lane::control, static_cast<std::uint8_t>(kind), request,
                                        attempt, 0, std::move(payload));
               }),
        clients_(options_.server, options_.service.tokens,
                 options_.service.model->config().max_context, options_.log, speaker()),
        experts_(options_, through_, [this](peer_id client) { return clients_.may_ask(client); }) {}

  result<void> begin() {
    identity_->tell([through = through_](const auto& next) {
      if (auto* to = through->load()) to->use(next);
    });
    fill_in_members();
    fill_in_seat();
    if (auto let_go = keep_no_experts_twice(); !let_go) return let_go;
    auto service = service::start(options_.service);
    if (!service) return service.error();
    service_ = std::move(*service);
    clients_.use(*service_);
    experts_.open();
    if (const auto& how = options_.service.rehearsed)
      options_.transport.limits.parts = rehearsed(options_.transport.limits.parts, *how);
    auto transport = net::transport::start(options_.transport, *this);
    if (!transport) return transport.error();
    transport_ = std::move(*transport);
    through_->store(transport_.get());
    // The admin may have brought another since the transport was given the first.
    if (const auto now = identity_->now(); now != options_.transport.identity) transport_->use(now);
    through_->notify_all();
    asker_ = std::thread([this] { answer_asks(); });
    return {};
  }

  ~content() override { stop(); }

  void stop() {
    if (std::exchange(stopped_, true)) return;
    clients_.hush();
    if (transport_) transport_->stop();
    {
      const std::lock_guard lock(asks_mutex_);
      ending_ = true;
      asked_.notify_all();
    }
    if (asker_.joinable()) asker_.join();
    experts_.stop();
    if (service_) service_->stop();
  }

  /// What requests are checked against needs no experts: those of the start must not outlive the plan that needs them.
  result<void> keep_no_experts_twice() {
    if (!options_.coarser) return {};
    auto bare = options_.service.model->with_experts(
        *options_.coarser, [](layer_id, expert_id) { return false; },
        options_.service.chosen.whole_model);
    if (!bare) return bare.error();
    options_.service.model = std::move(*bare);
    return {};
  }

  std::uint64_t submit(request_spec spec, answer_sink sink) {
    spec.access = options_.server;
    return service_->submit(std::move(spec), std::move(sink));
  }
  void cancel(std::uint64_t request) { service_->cancel(request); }
  std::size_t outstanding() const { return service_->outstanding(); }
  bool is_refused_for_plan() const {
    if (n_up_ > 0) return false;
    auto refused = refused_for_plan_.load();
    for (peer_id peer = 0; options_.members && peer < options_.transport.peers.size(); ++peer)
      if (options_.members->is_absent(name_of(peer))) refused &= ~planning::server_bit(peer);
    return refused != 0;
  }
  const std::vector<net::address>& listens_at() const { return transport_->listens_at(); }
  result<void> close_trace() { return service_->close_trace(); }

  result<std::string> status_json() {
    const auto status = service_->status_of_servers();
    if (!status) return status.error();
    const auto& server = status->servers.front();
    auto j = server_json(server);
    j["boot"] = options_.transport.boot;
    j["cluster"] = options_.transport.identity->name().cluster;
    j["time_ns"] = status->time_ns;
    j["model"] = model_digest();
    if (auto mixed = mixed_devices(options_.service.servers); !mixed.empty())
      j["mixed_devices"] = std::move(mixed);
    j["certificate"] = certificate_json(*identity_->now(), seconds_now());
    j["links"] = ordered_json::array();
    for (const auto& link : status->links) j["links"].push_back(link_json(link.ledger));
    j["peers"] = peers_json(server.away);
    if (const auto figures = service_->rehearsed())
      j["rehearsal"] = rehearsal_json(*options_.service.rehearsed, *figures);
    return json_text(j);
  }

  void give(const bearer_order& order, order_sink sink) {
    service_->administer("gateway", net::to_string(net::role::viewer), order_text(0, order),
                         [sink = std::move(sink)](const std::string& reply) {
                           auto told = ordered_json::parse(reply);
                           told.erase("ref");
                           sink(told.dump());
                         });
  }

  // ------------------------------------------------------------------------- of the transport's thread

  void take(peer_id from, std::vector<session_event> events) override {
    // Somebody may come before start() has stored it, and what follows would find no way out.
    through_->wait(nullptr);
    from < options_.transport.peers.size() ? take_from_server(from, std::move(events))
                                           : take_from_client(from, std::move(events));
  }

  void rest() override { service_->run_delivered(); }

  void client_came(peer_id id, const net::certificate_name& who) override {
    if (who.of == net::role::node) plans_.came(id);
    clients_.came(id, who);
  }

  void problem(const std::string& who, const error& why) override {
    log(log_event::connection_failed, {{"who", who}, {"why", why.message}});
  }

 private:
  std::uint32_t server_of(peer_id peer) const { return peer < options_.server ? peer : peer + 1; }
  const std::string& name_of(peer_id peer) const { return options_.transport.peers[peer].name; }

  void log(log_event event, std::vector<log_field> fields) const {
    options_.log.tell(event, std::move(fields));
  }

  void fill_in_seat() {
    cluster_seat seat;
    seat.server = options_.server;
    seat.boot = static_cast<std::uint32_t>(options_.transport.boot);
    // No request of the cluster has the number of another, now or before.
    seat.first_request = wire::first_request(options_.server, options_.transport.boot);
    const auto n = options_.transport.peers.size() + 1;
    seat.outlets.resize(n);
    for (peer_id peer = 0; peer + 1 < n; ++peer)
      seat.outlets[server_of(peer)] =
          std::make_shared<session_outlet>(through_, peer, options_.service);
    seat.turns = std::make_shared<session_turns>(through_);
    seat.look_at_load = [this](std::int64_t delay_ns) {
      auto* transport = through_->load();
      if (transport != nullptr) transport->after(delay_ns, [this] { service_->look_at_load(); });
      return transport != nullptr;
    };
    // Stamped: what a change of plan makes a server write comes after what led to it.
    seat.tell_admin = [through = through_, self = options_.server, trace = options_.service.sink](
                          std::uint32_t server, std::string text) {
      auto* transport = through->load();
      return transport != nullptr &&
             transport->send(server < self ? server : server - 1, lane::control,
                             static_cast<std::uint8_t>(control_kind::admin), 0, 0, 0,
                             std::move(text), trace ? trace->stamp() : 0);
    };
    seat.load = [this](std::uint64_t change, const auto& hosts) {
      return experts_.load(change, hosts);
    };
    seat.stop_loading = [this](std::uint64_t change) { experts_.stop_loading(change); };
    seat.adopt = [this](const planning::plan& plan) { return adopt(plan); };
    seat.log = options_.log;
    seat.identity = identity_;
    seat.kept = options_.kept;
    seat.keep = options_.keep;
    seat.measured = options_.measured;
    seat.counted = counted_before();
    seat.drift = options_.drift;
    seat.figures = [this] { return figures_json(); };
    seat.members = options_.members;
    options_.service.seat = std::move(seat);
  }

  /// What was counted before the process began, as old as it is by now.
  std::shared_ptr<const planning::measured_activation> counted_before() const {
    if (!options_.counted || !options_.counted_at_ms) return options_.counted;
    const auto age_ms = milliseconds_now() - *options_.counted_at_ms;
    if (age_ms < 0)
      log(log_event::counts_not_faded,
          {{"why", fmt::format("{} was written {:.3g} s after now, and counts as if it had been "
                               "written just now: set the clock of this host, or remove the file "
                               "to count anew",
                               kept_counts_name, -static_cast<double>(age_ms) * 1e-3)}});
    constexpr std::int64_t ns_per_ms = 1'000'000;
    const auto weight = planning::weight_at_age(std::max<std::int64_t>(0, age_ms) * ns_per_ms,
                                                options_.drift.half_life_s);
    return std::make_shared<const planning::measured_activation>(
        planning::faded(*options_.counted, weight));
  }

  /// Nobody changes them before the transport is there: orders and other servers come through it.
  void fill_in_members() {
    if (!options_.members) return;
    const auto words = options_.members->now();
    for (auto& peer : options_.transport.peers) {
      peer.absent = options_.members->is_absent(peer.name);
      if (auto at = address_in(words, peer.name)) peer.at = std::move(*at);
    }
    options_.members->tell([this](const member_words& now) {
      for (peer_id peer = 0; peer < options_.transport.peers.size(); ++peer) {
        const auto word = now.find(name_of(peer));
        if (word == now.end()) continue;
        through_->load()->admit(peer, word->second.member, address_in(now, name_of(peer)));
      }
    });
  }

  /// Where somebody said that it is dialled.
  static std::optional<net::address> address_in(const member_words& words,
                                                const std::string& name) {
    const auto word = words.find(name);
    if (word == words.end()) return std::nullopt;
    auto at = net::parse_address(word->second.address);
    return at ? std::optional(std::move(*at)) : std::nullopt;
  }

  // --------------------------------------------------------------------------------------- other plans

  result<void> adopt(const planning::plan& plan) {
    experts_.adopt(plan);
    auto kept = options_.keep_plan(plan);
    if (!kept) return kept.error();
    // Written or not, it is in force: those that go by it come to be connected.
    through_->load()->agree("plan", kept->digest);
    return std::move(kept->written);
  }

  /// Of the admin's actor.
  std::string figures_json() const {
    if (through_->load() == nullptr) return "{}";
    return ordered_json{{"credit_bytes", credits_json(options_.transport.limits)},
                        {"peers", peers_json({})}}
        .dump();
  }

  /// `away`: as the edge server knows, who refuses what needs them.
  ordered_json peers_json(const std::vector<std::uint32_t>& away) const {
    auto peers = ordered_json::array();
    for (peer_id peer = 0; peer < options_.transport.peers.size(); ++peer) {
      const auto figures = transport_->figures(peer);
      ordered_json each{
          {"name", name_of(peer)},
          {"server", server_of(peer)},
          {"member", !options_.members || !options_.members->is_absent(name_of(peer))},
          {"up", figures.up && std::ranges::find(away, server_of(peer)) == away.end()}};
      each.update(session_json(figures));
      peers.push_back(std::move(each));
    }
    return peers;
  }

  // ------------------------------------------------------------------------------------- servers

  void take_from_server(peer_id from, std::vector<session_event> events) {
    std::vector<peer_event> for_server;
    for (auto& event : events) {
      log_session(from, event);
      note_plan(from, event);
      if (event.kind == session_event::what::down) experts_.lose(from);
      if (event.kind == session_event::what::up || event.kind == session_event::what::down)
        service_->admin_peer(server_of(from), event.kind == session_event::what::up);
      if (event.kind == session_event::what::frame &&
          static_cast<control_kind>(event.header.kind) == control_kind::admin) {
        if (options_.service.sink) options_.service.sink->observe(event.header.stamp);
        service_->admin_said(server_of(from), std::move(event.text));
        through_->load()->used(from, event.header.of, net::session::frame_bytes(event.header));
        continue;
      }
      if (event.kind == session_event::what::frame && node_experts::is_of_experts(event)) {
        experts_.take(from, event);
        continue;
      }
      if (event.kind == session_event::what::frame && event.header.of == lane::bulk &&
          !net::is_in_parts(event.header.word) && experts_.take_bulk(from, event))
        continue;
      if (event.kind == session_event::what::frame && options_.service.sink)
        options_.service.sink->observe(event.header.stamp);
      if (auto made = event_of(event, server_of(from), options_.server,
                               [through = through_, from](lane of, std::uint64_t bytes) {
                                 if (auto* transport = through->load())
                                   transport->used(from, of, bytes);
                               }))
        for_server.push_back(std::move(*made));
    }
    if (!for_server.empty()) service_->deliver(std::move(for_server));
  }

  /// Sessions that are up, and which others the plan keeps from being.
  void note_plan(peer_id from, const session_event& event) {
    if (event.kind == session_event::what::up) {
      ++n_up_;
      refused_for_plan_ &= ~planning::server_bit(from);
    }
    if (event.kind == session_event::what::down && n_up_ > 0) --n_up_;
    if (event.kind == session_event::what::refused &&
        event.text.find("hello.plan: ") != std::string::npos)
      refused_for_plan_ |= planning::server_bit(from);
  }

  void log_session(peer_id from, const session_event& event) const {
    const auto told = [&](log_event what) { log(what, {{"peer", name_of(from)}}); };
    const auto told_why = [&](log_event what) {
      log(what, {{"peer", name_of(from)}, {"why", event.text}});
    };
    switch (event.kind) {
      case session_event::what::up:
        return told(log_event::session_up);
      case session_event::what::down:
        return told_why(log_event::session_down);
      case session_event::what::refused:
        return told_why(log_event::session_refused);
      case session_event::what::fault:
        return told_why(log_event::session_fault);
      case session_event::what::cut:
        return told_why(log_event::session_cut);
      case session_event::what::resumed:
        return told(log_event::session_resumed);
      case session_event::what::suspect:
        return told(log_event::session_suspect);
      case session_event::what::heard:
        return told(log_event::session_heard);
      case session_event::what::frame:
      case session_event::what::congested:
      case session_event::what::relieved:
        return;
    }
  }

  // ------------------------------------------------------------------------------------- clients

  void take_from_client(peer_id from, std::vector<session_event> events) {
    for (const auto& event : events) switch (event.kind) {
        case session_event::what::frame:
          answer_client(from, event);
          through_->load()->used(from, event.header.of, net::session::frame_bytes(event.header));
          break;
        case session_event::what::down:
          plans_.left(from);
          experts_.forget(from);
          clients_.gone(from);
          break;
        case session_event::what::congested:
          through_->load()->leave(from, "it does not read what it asked for");
          clients_.log_refusal(from, "it does not read what it asked for");
          break;
        case session_event::what::refused:
        case session_event::what::fault:
          clients_.log_refusal(from, event.text);
          break;
        default:
          break;
      }
  }

  void answer_client(peer_id from, const session_event& event) {
    const auto refused = [&](const error& why) {
      through_->load()->leave(from, why.message);
      clients_.log_refusal(from, why.message);
    };
    if (plans_.is_here(from)) {
      if (auto taken = plans_.take(from, event.header, event.text); !taken) refused(taken.error());
      return;
    }
    switch (static_cast<control_kind>(event.header.kind)) {
      case control_kind::submit:
        if (auto wanted = parse_submit(event.text))
          return clients_.submit(from, std::move(*wanted));
        else
          return refused(wanted.error());
      case control_kind::cancel:
        if (const auto ref = parse_cancel(event.text))
          return clients_.cancel(from, *ref);
        else
          return refused(ref.error());
      case control_kind::run_expert:
        if (auto asked = experts_.take_ask(from, event.text); !asked) return refused(asked.error());
        return;
      case control_kind::order:
        return clients_.order(from, event.text);
      case control_kind::ask: {
        const std::lock_guard lock(asks_mutex_);
        asks_.push_back(from);
        asked_.notify_one();
        return;
      }
      default:
        return refused(
            {errc::malformed, fmt::format("a message of kind {}, expected submit, cancel, "
                                          "ask, order or run_expert",
                                          static_cast<int>(event.header.kind))});
    }
  }

  void say(peer_id to, control_kind kind, std::string text) const {
    speaker()(to, kind, std::move(text));
  }

  /// It says nothing before the transport is known.
  node_clients::speak speaker() const {
    return [through = through_](peer_id to, control_kind kind, std::string text) {
      if (auto* transport = through->load())
        transport->send(to, lane::control, static_cast<std::uint8_t>(kind), 0, 0, 0,
                        std::move(text));
    };
  }

  std::string model_digest() const {
    for (const auto& [what, value] : options_.transport.agreed)
      if (what == "model") return value;
    return {};
  }

  // ---------------------------------------------------------------------------------- once a second

  /// Half of the round trip is this direction's.
  void tell_links() {
    // What is rehearsed is charged at the cluster file's scale, and links are found as they were made for it.
    const auto how = options_.service.rehearsed.value_or(rehearsal{});
    for (peer_id peer = 0; peer < options_.transport.peers.size(); ++peer) {
      const auto figures = transport_->figures(peer);
      if (!figures.up || figures.round_trip_ns < 0) continue;
      service_->measured(options_.server, server_of(peer),
                         {static_cast<std::int64_t>(static_cast<double>(figures.round_trip_ns) /
                                                    (2 * how.dilation)),
                          figures.bytes_per_s * how.dilation / how.stretch});
    }
  }

  static std::int64_t milliseconds_now() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
  static std::int64_t seconds_now() { return milliseconds_now() / 1000; }

  /// To this node's own admin, who tells operators and other nodes.
  void tell_admin(const char* event, ordered_json about) {
    service_->admin_said(options_.server,
                         json_text(ordered_json{{"event", event}, {"about", std::move(about)}}));
  }

  void look_at_identity() {
    const auto changed = identity_->look();
    if (!changed)
      tell_admin("identity.files_broken", {{"why", changed.error().message}});
    else if (*changed)
      tell_admin("identity.changed", change_json(**changed));
    warn_of_certificate();
  }

  /// Once a day, and once for each certificate.
  void warn_of_certificate() {
    const auto now = seconds_now();
    const auto told = certificate_json(*identity_->now(), now);
    const auto serial = told["serial"].get<std::string>();
    if (serial == warned_of_ && now - warned_s_ < 86'400) return;
    warned_of_ = serial;
    warned_s_ = now;
    if (told["expires_soon"].get<bool>()) tell_admin("identity.expires_soon", told);
    if (told["revoked"].get<bool>()) tell_admin("identity.revoked", told);
  }

  /// Actors are asked on a thread that may wait; in between it looks at the links and the certificates.
  void answer_asks() {
    constexpr std::chrono::seconds look_again(1);
    auto looked = std::chrono::steady_clock::now() - look_again;
    std::unique_lock lock(asks_mutex_);
    for (;;) {
      asked_.wait_for(lock, look_again, [this] { return ending_ || !asks_.empty(); });
      if (ending_) return;
      const auto askers = std::exchange(asks_, {});
      lock.unlock();
      if (const auto now = std::chrono::steady_clock::now(); now - looked >= look_again) {
        looked = now;
        look_at_identity();
        if (options_.believes_measures) tell_links();
      }
      if (askers.empty()) {
        lock.lock();
        continue;
      }
      const auto status = status_json();
      for (const auto asker : askers)
        say(asker, control_kind::status,
            status ? status_that_fits(*status)
                   : json_text(ordered_json{{"problem", status.error().message}}));
      lock.lock();
    }
  }

  node_options options_;
  std::shared_ptr<std::atomic<net::transport*>> through_;
  std::shared_ptr<net::identity_keeper> identity_;
  std::string warned_of_;  ///< Serial; of the asking thread, as the next.
  std::int64_t warned_s_ = 0;
  std::unique_ptr<service> service_;
  std::unique_ptr<net::transport> transport_;
  std::mutex asks_mutex_;
  std::condition_variable asked_;
  std::vector<peer_id> asks_;
  plan_desk plans_;  ///< Of the transport's thread.
  node_clients clients_;
  node_experts experts_;
  std::atomic<std::size_t> n_up_ = 0;
  std::atomic<planning::server_mask> refused_for_plan_ = 0;  ///< By peer.
  bool ending_ = false;
  bool stopped_ = false;
  std::thread asker_;
};

node::node(std::unique_ptr<content> made) : content_(std::move(made)) {}
node::~node() = default;

result<std::unique_ptr<node>> node::start(node_options options) {
  auto made = std::make_unique<content>(std::move(options));
  if (auto begun = made->begin(); !begun) return begun.error();
  return std::unique_ptr<node>(new node(std::move(made)));
}

std::uint64_t node::submit(request_spec spec, answer_sink sink) {
  return content_->submit(std::move(spec), std::move(sink));
}
void node::cancel(std::uint64_t request) {
  content_->cancel(request);
}
result<std::string> node::status_json() {
  return content_->status_json();
}
void node::give(const bearer_order& order, order_sink sink) {
  content_->give(order, std::move(sink));
}
std::size_t node::outstanding() const {
  return content_->outstanding();
}
bool node::is_refused_for_plan() const {
  return content_->is_refused_for_plan();
}
const std::vector<net::address>& node::listens_at() const {
  return content_->listens_at();
}
result<void> node::close_trace() {
  return content_->close_trace();
}
void node::stop() {
  content_->stop();
}

}  // namespace ordermoe::actors
