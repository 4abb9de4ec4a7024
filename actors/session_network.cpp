#include "actors/session_network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "actors/context.hpp"
#include "actors/scheduling/virtual_time_worker.hpp"
#include "actors/session_frames.hpp"

namespace ordermoe::actors {

namespace {

net::session_config config_of(const simulated_sessions& options, const cluster& servers,
                              std::uint32_t self, std::uint32_t peer) {
  net::session_config config;
  config.self.cluster = servers.name;
  // By order, whatever their names are: the first end of a pair has the lower name, and dials.
  const auto name = [](std::uint32_t server) { return fmt::format("server-{:02}", server); };
  config.self.node = name(self);
  config.self.self.boot = 1;
  config.peer = name(peer);
  config.limits = options.limits;
  return config;
}

net::wire_rate rate_of(const cluster& servers, std::uint32_t from, std::uint32_t to) {
  const auto& link = servers.link(server_id{from}, server_id{to});
  return {link.bandwidth_bytes_per_s, link.latency_ns};
}

}  // namespace

/// What all pairs count together.
struct session_network::progress {
  std::vector<wire_strike> strikes;  ///< That are to come; the next one last.
  std::uint64_t frames = 0;
};

/// A pair, and the actor that moves it.
struct session_network::wire : std::enable_shared_from_this<session_network::wire> {
  std::array<std::uint32_t, 2> servers{};
  std::shared_ptr<progress> network;
  net::simulated_pair pair;
  wire_actor mover;
  bool awake = false;  ///< It has been told to look.
  std::array<std::uint64_t, 2> downs{};

  wire(std::uint32_t a, std::uint32_t b, const simulated_sessions& options, const cluster& all,
       std::shared_ptr<progress> shared)
      : servers{a, b},
        network(std::move(shared)),
        pair({config_of(options, all, a, b), config_of(options, all, b, a)},
             {rate_of(all, b, a), rate_of(all, a, b)}, options.wire,
             random_bits(options.seed, 0x77697265, a * max_servers + b)) {}

  void wake() {
    if (mover && !std::exchange(awake, true)) caf::anon_send(mover, wire_tick{});
  }

  bool send(std::size_t end, frame content) {
    const bool taken = send_frame(std::move(content), [&](auto&&... fields) {
      return pair.send(end, std::forward<decltype(fields)>(fields)...);
    });
    auto& coming = network->strikes;
    if (taken) ++network->frames;
    for (; taken && !coming.empty() && coming.back().after_frames <= network->frames;
         coming.pop_back())
      pair.strike(coming.back().kind);
    wake();
    return taken;
  }

  void used(std::size_t end, net::lane of, std::uint64_t bytes) {
    pair.used(end, of, bytes);
    wake();
  }

  /// What its edge server is told, in order.
  std::vector<peer_event> take_events(std::size_t end) {
    std::vector<peer_event> told;
    for (auto& event : pair.take_events(end)) {
      downs[end] += event.kind == net::session_event::what::down ? 1 : 0;
      if (auto made = event_of(event, servers[1 - end], servers[end],
                               [self = shared_from_this(), end](net::lane of, std::uint64_t bytes) {
                                 self->used(end, of, bytes);
                               }))
        told.push_back(std::move(*made));
    }
    return told;
  }
};

class session_network::outlet_of_one final : public frame_outlet {
 public:
  outlet_of_one(std::shared_ptr<wire> over, std::size_t end) : over_(std::move(over)), end_(end) {}
  bool send(frame content) override { return over_->send(end_, std::move(content)); }

 private:
  std::shared_ptr<wire> over_;
  std::size_t end_;
};

session_network::session_network(const simulated_sessions& options, const cluster& servers)
    : n_(static_cast<std::uint32_t>(servers.size())),
      progress_(std::make_shared<progress>()),
      wires_(servers.size() * servers.size()),
      boots_(servers.size(), 1) {
  progress_->strikes = options.strikes;
  std::ranges::stable_sort(progress_->strikes, std::greater{}, &wire_strike::after_frames);
  for (std::uint32_t a = 0; a < n_; ++a)
    for (std::uint32_t b = a + 1; b < n_; ++b)
      wires_[a * n_ + b] = std::make_shared<wire>(a, b, options, servers, progress_);
}

session_network::~session_network() = default;

const std::shared_ptr<session_network::wire>& session_network::wire_between(std::uint32_t a,
                                                                            std::uint32_t b) const {
  return wires_[std::min(a, b) * n_ + std::max(a, b)];
}

wire_actor session_network::between(std::uint32_t a, std::uint32_t b) const {
  return wire_between(a, b)->mover;
}

std::shared_ptr<frame_outlet> session_network::outlet(std::uint32_t from, std::uint32_t to) const {
  return std::make_shared<outlet_of_one>(wire_between(from, to), from < to ? 0 : 1);
}

void session_network::end(std::uint32_t server, net::simulated_pair::ending how) {
  for (std::uint32_t peer = 0; peer < n_; ++peer) {
    if (peer == server) continue;
    const auto& over = wire_between(server, peer);
    over->pair.end(server < peer ? 0 : 1, how);
    over->wake();
  }
}

void session_network::start(std::uint32_t server, boot_count count) {
  if (count == boot_count::kept) ++boots_[server];
  for (std::uint32_t peer = 0; peer < n_; ++peer) {
    if (peer == server) continue;
    const auto& over = wire_between(server, peer);
    over->pair.start(server < peer ? 0 : 1, boots_[server]);
    over->wake();
  }
}

sessions_status session_network::status() const {
  sessions_status told;
  told.downs.resize(wires_.size());
  for (const auto& each : wires_) {
    if (!each) continue;
    const auto& counts = each->pair.counts();
    for (std::size_t i = 0; i < net::n_wire_faults; ++i) told.counts.faults[i] += counts.faults[i];
    told.counts.frames += counts.frames;
    told.counts.connections += counts.connections;
    told.counts.resumed += counts.resumed;
    told.counts.downs += counts.downs;
    told.counts.congested += counts.congested;
    for (std::size_t end = 0; end < 2; ++end)
      told.downs[each->servers[end] * n_ + each->servers[1 - end]] = each->downs[end];
    told.at_rest = told.at_rest && each->pair.at_rest();
    if (told.broken.empty()) told.broken = each->pair.broken();
  }
  return told;
}

namespace {

/// Moves one pair's wires, and hands out what arrives.
template <class Wire>
struct wire_state {
  wire_actor::pointer self = nullptr;
  std::shared_ptr<const service_context> context;
  std::shared_ptr<Wire> over;
  std::array<edge_server_actor, 2> servers;
  static constexpr auto none = std::numeric_limits<std::int64_t>::max();
  std::int64_t work_ns = none, timer_ns = none;  ///< Of the ticks that are to come.

  ~wire_state() {
    if (over) over->mover = nullptr;
  }

  void attach(const attach_view& message) {
    servers[message.view->id == over->servers[0] ? 0 : 1] = message.view->server;
  }

  void tick() {
    over->awake = false;
    const auto now = now_ns(self) - context->start_ns;
    if (work_ns <= now) work_ns = none;
    if (timer_ns <= now) timer_ns = none;
    over->pair.advance(now);
    for (std::size_t end = 0; end < 2; ++end)
      for (auto& event : over->take_events(end))
        if (servers[end]) self->send(servers[end], std::move(event));
    set_tick(now);
  }

  /// A run waits for what is on its way, and not for the next heartbeat.
  void set_tick(std::int64_t now) {
    const auto next = std::max(now, over->pair.next_ns());
    if (next == none) return;
    const bool rests = over->pair.at_rest();
    auto& set = rests ? timer_ns : work_ns;
    if (set <= next) return;
    set = next;
    send_later(self, caf::actor_cast<wire_actor>(self), next - now, wire_tick{},
               rests ? later::timer : later::work);
  }
};

}  // namespace

std::vector<wire_actor> session_network::spawn(
    caf::actor_system& system, const std::shared_ptr<const service_context>& context) {
  std::vector<wire_actor> movers;
  for (const auto& each : wires_) {
    if (!each) continue;
    each->mover = system.spawn(
        [context, over = each](
            wire_actor::stateful_pointer<wire_state<wire>> self) -> wire_actor::behavior_type {
          auto& state = self->state;
          state.self = self;
          state.context = context;
          state.over = over;
          return {
              [&state](const attach_view& message) { state.attach(message); },
              [&state](wire_tick) { state.tick(); },
          };
        });
    movers.push_back(each->mover);
    each->wake();
  }
  return movers;
}

}  // namespace ordermoe::actors
