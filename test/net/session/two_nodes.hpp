#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/random.hpp"
#include "net/session/session.hpp"

/// Two sessions and a wire between them that a seed delays, stalls and cuts, with what must hold of them.
namespace ordermoe::test {

/// One end: a session, its user, and the node's persistent boot counter.
struct node_end {
  std::string name, peer;
  net::session_limits limits;
  std::uint64_t boot = 1;
  std::optional<net::session> session;
  // What its user knows:
  std::uint64_t ups = 0;                              ///< Sessions that began here.
  std::array<std::uint64_t, net::n_lanes> n_sent{};   ///< In the present one, by the user's lane.
  std::array<std::uint64_t, net::n_lanes> n_taken{};  ///< Likewise.
  /// What may come next at least: in its lane, and as a large one.
  std::array<std::uint64_t, net::n_lanes> next{}, next_large{};
  std::array<std::uint64_t, net::n_lanes> n_short{};  ///< That came in their lane.
  std::uint64_t n_large = 0;                          ///< Taken since the start.
  std::optional<std::uint64_t> ups_of_peer;           ///< That the present one's frames came from.
  std::deque<net::frame_header> unused;               ///< Taken, and not used up yet.
  std::vector<net::session_event> events;             ///< All but frames, in order.

  net::session_config config() const {
    net::session_config config;
    config.self.cluster = "test";
    config.self.node = name;
    config.self.self.boot = boot;
    config.self.agreed = {{"model", "abc"}};
    config.peer = peer;
    config.limits = limits;
    return config;
  }
  void start(std::int64_t now_ns) { session.emplace(config(), now_ns); }
  std::size_t count(net::session_event::what kind) const {
    std::size_t n = 0;
    for (const auto& event : events) n += event.kind == kind ? 1 : 0;
    return n;
  }
};

class two_nodes {
 public:
  explicit two_nodes(net::session_limits limits = {}) {
    for (std::size_t i = 0; i < 2; ++i) {
      ends[i].name = std::string(1, i == 0 ? 'a' : 'b');
      ends[i].peer = std::string(1, i == 0 ? 'b' : 'a');
      ends[i].limits = limits;
      ends[i].start(now_ns);
    }
  }

  /// A connection: bytes on their way in each direction, and whether each end still has it.
  struct wire {
    net::stream which = net::stream::fast;
    std::array<std::string, 2> in_flight;  ///< To that end.
    std::array<bool, 2> attached{true, true};
    std::array<bool, 2> stalled{false, false};  ///< Towards that end.
  };

  std::array<node_end, 2> ends;
  std::map<std::uint32_t, wire> wires;
  std::int64_t now_ns = 0;
  std::string broken;  ///< What does not hold; empty: all does.

  std::uint32_t dial(std::size_t from, net::stream which, bool named = true) {
    const auto id = next_id_++;
    wires[id].which = which;
    for (std::size_t i = 0; i < 2; ++i)
      ends[i].session->connected(id, which, i == from, named ? ends[i].peer : "", now_ns);
    return id;
  }

  /// Both ends hear of it, or only one, and the other later.
  void cut(std::uint32_t id, bool tell_a = true, bool tell_b = true) {
    auto& gone = wires.at(id);
    gone.in_flight = {};
    for (std::size_t i = 0; i < 2; ++i)
      if (gone.attached[i] && (i == 0 ? tell_a : tell_b)) detach(id, i);
    clean();
  }

  void restart(std::size_t end) {
    for (auto& [id, each] : wires) {
      each.attached[end] = false;
      each.in_flight[end].clear();
    }
    auto& node = ends[end];
    ++node.boot;
    node.ups = 1000 * node.boot;
    forget(node);
    node.unused.clear();
    node.start(now_ns);
    clean();
  }

  bool send(std::size_t from, net::lane of, std::size_t size, std::size_t padding = 0) {
    auto& node = ends[from];
    const auto counter = node.n_sent[static_cast<std::size_t>(of)];
    std::string payload(size, static_cast<char>(counter));
    const auto kind = static_cast<std::uint8_t>(first_kind + static_cast<std::uint8_t>(of));
    if (!node.session->send(of, kind, node.ups, static_cast<std::uint32_t>(counter), 3, payload, 0,
                            padding))
      return false;
    ++node.n_sent[static_cast<std::size_t>(of)];
    return true;
  }

  /// What the sessions want to write goes on its way, at most so many bytes at a time.
  void pump(std::size_t most = 1u << 20) {
    for (std::size_t i = 0; i < 2; ++i) {
      for (auto& [id, each] : wires)
        if (each.attached[i]) ends[i].session->write(id, each.in_flight[1 - i], most, now_ns);
      for (const auto id : ends[i].session->take_closing()) close(id, i);
    }
    clean();
  }

  /// Bytes arrive: at most so many on each connection, fewer by chance where there are draws.
  void arrive(std::size_t most = 1u << 20, random_stream* draws = nullptr) {
    for (std::size_t i = 0; i < 2; ++i)
      for (auto& [id, each] : wires) {
        auto& bytes = each.in_flight[i];
        if (!each.attached[i] || each.stalled[i] || bytes.empty()) continue;
        const auto n = std::min(draws != nullptr ? draws->below(most) : most, bytes.size());
        const auto part = bytes.substr(0, n);
        bytes.erase(0, n);
        ends[i].session->receive(id, part, now_ns);
      }
    // A connection that one end closed is closed at the other once what was said before has arrived.
    for (auto& [id, each] : wires)
      for (std::size_t i = 0; i < 2; ++i)
        if (each.attached[i] && !each.attached[1 - i] && each.in_flight[i].empty() &&
            heard_closed_.contains({id, i}))
          detach(id, i);
    for (std::size_t i = 0; i < 2; ++i) take(i);
    clean();
  }

  /// `late_ns`: of it, both ends stood still.
  void advance(std::int64_t ns, std::int64_t late_ns = 0) {
    now_ns += ns;
    for (auto& end : ends) end.session->tick(now_ns, late_ns);
    for (std::size_t i = 0; i < 2; ++i) take(i);
  }

  /// The user is done with frames that it took.
  void use(std::size_t end, std::size_t most = 1u << 20) {
    auto& node = ends[end];
    for (; most > 0 && !node.unused.empty(); --most) {
      node.session->used(node.unused.front().of, net::session::frame_bytes(node.unused.front()));
      node.unused.pop_front();
    }
  }

  /// Everything moves for so long, in steps of a millisecond.
  void run(std::int64_t ns) {
    for (std::int64_t passed = 0; passed < ns; passed += 1'000'000) {
      pump();
      arrive();
      for (std::size_t i = 0; i < 2; ++i) use(i);
      advance(1'000'000);
    }
  }

  bool both_up() const {
    return ends[0].session->now_in() == net::session::phase::up &&
           ends[1].session->now_in() == net::session::phase::up;
  }

 private:
  void close(std::uint32_t id, std::size_t end) {
    auto& each = wires.at(id);
    ends[end].session->write(id, each.in_flight[1 - end], 1u << 20, now_ns);
    heard_closed_.insert({id, 1 - end});
    detach(id, end);
  }
  void detach(std::uint32_t id, std::size_t end) {
    wires.at(id).attached[end] = false;
    ends[end].session->disconnected(id, now_ns, "cut");
    take(end);
  }
  void clean() {
    std::erase_if(wires, [](const auto& each) {
      return !each.second.attached[0] && !each.second.attached[1];
    });
  }

  void breach(std::string text) {
    if (broken.empty()) broken = std::move(text);
  }

  void take(std::size_t end) {
    auto& node = ends[end];
    for (auto& event : node.session->take_events()) {
      if (event.kind == net::session_event::what::frame) {
        take_frame(node, event);
        continue;
      }
      if (event.kind == net::session_event::what::up) {
        ++node.ups;
        forget(node);
      }
      if (event.kind == net::session_event::what::up ||
          event.kind == net::session_event::what::down)
        node.unused.clear();
      if (event.kind == net::session_event::what::fault)
        breach(fmt::format("fault: {}", event.text));
      node.events.push_back(std::move(event));
    }
  }

  static void forget(node_end& node) {
    node.n_sent = node.n_taken = node.next = node.next_large = node.n_short = {};
    node.ups_of_peer.reset();
  }

  /// Each frame of the peer's session once, as it was sent, and in the order of its lane, but for large ones, which have an order of
  /// their own.
  void take_frame(node_end& node, const net::session_event& event) {
    const auto of = static_cast<std::size_t>(event.header.kind) - first_kind;
    if (of >= net::n_lanes)
      return breach(fmt::format("{}: another header than was sent", node.name));
    const bool is_large = net::is_in_parts(event.header.word);
    const std::uint64_t counter = event.header.attempt;
    ++node.n_taken[of];
    node.n_large += is_large ? 1 : 0;
    if (!node.ups_of_peer) node.ups_of_peer = event.header.request;
    if (event.header.request != *node.ups_of_peer)
      breach(fmt::format("{}: frames of two sessions in one", node.name));
    auto& next = (is_large ? node.next_large : node.next)[of];
    // Parts take numbers of lane bulk.
    const bool in_sequence = is_large || event.header.of == net::lane::bulk ||
                             event.header.sequence == node.n_short[of]++;
    if (counter < next || !in_sequence ||
        (!is_large && of != static_cast<std::size_t>(event.header.of)))
      breach(fmt::format("{}: another frame than the next of {}", node.name,
                         net::to_string(event.header.of)));
    next = counter + 1;
    if (event.text.find_first_not_of(static_cast<char>(counter)) != std::string::npos ||
        (event.header.word == net::session_word::none && event.text.size() != event.header.length))
      breach(fmt::format("{}: other bytes than were sent", node.name));
    if (event.header.epoch != 3) breach(fmt::format("{}: another header than was sent", node.name));
    node.unused.push_back(event.header);
  }

  static constexpr std::uint8_t first_kind = 7;  ///< Of lane control.
  std::uint32_t next_id_ = 1;
  std::set<std::pair<std::uint32_t, std::size_t>> heard_closed_;
};

}  // namespace ordermoe::test
