#include "net/channel/peer_book.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <random>

#include "net/channel/tls_connections.hpp"

namespace ordermoe::net {

namespace {

constexpr std::size_t most_written_at_once = 64 * 1024;  ///< Bytes written in one go.
constexpr std::int64_t dial_ns = 5'000'000'000;          ///< That an attempt to connect may take.
constexpr std::int64_t quiet_ns = 60'000'000'000;  ///< That the same problem is not told again.
constexpr std::size_t most_told = 64;              ///< Problems that are told in this time.

/// What the calling thread has sent and not written yet.
struct sending_turn {
  const peer_book* of = nullptr;  ///< Null: it writes at once.
  std::vector<peer_ptr> unwritten;
  std::int64_t since_ns = 0;  ///< Of the first of them.
};
thread_local sending_turn this_turn;

}  // namespace

std::uint64_t peer_book::random_life() {
  return mix64(std::random_device()() | std::uint64_t{std::random_device()()} << 32);
}

result<void> peer_book::begin() {
  const auto make = options_.carried_by ? options_.carried_by : tls_connections;
  auto made = make({options_.identity, 4 * options_.limits.dead_ns, dial_ns, options_.dials_for,
                    options_.busy_poll_ns},
                   *this);
  if (!made) return made.error();
  connections_ = std::move(*made);
  for (std::size_t i = 0; i < options_.peers.size(); ++i) add_member(i);
  for (const auto& where : options_.listen) {
    const auto at = connections_->listen(where);
    if (!at) return at.error();
    listens_at_.push_back(*at);
  }
  connections_->post([this] { tick(); });
  started_ = true;
  connections_->start();
  return {};
}

void peer_book::stop() {
  if (!std::exchange(started_, false)) return;
  connections_->post([this] { end(); });
  connections_->join();
}

// ------------------------------------------------------------------------------------------ sending

bool peer_book::send(peer_id to, lane of, std::uint8_t kind, std::uint64_t request,
                     std::uint32_t attempt, std::uint32_t epoch, std::string payload,
                     std::uint64_t stamp, std::size_t padding) {
  const auto found = find(to);
  if (!found) return false;
  const auto lock = hold(*found);
  if (!found->link ||
      !found->link->send(of, kind, request, attempt, epoch, std::move(payload), stamp, padding))
    return false;
  push(found);
  return true;
}

void peer_book::used(peer_id from, lane of, std::uint64_t bytes) {
  const auto found = find(from);
  if (!found) return;
  const auto lock = hold(*found);
  if (found->link && found->link->used(of, bytes)) push(found);
}

void peer_book::begin_turn() {
  this_turn.of = this;
}

void peer_book::flush(std::int64_t held_ns) {
  if (this_turn.of != this || this_turn.unwritten.empty()) return;
  if (held_ns > 0 && steady_ns() - this_turn.since_ns < held_ns) return;
  for (const auto& each : this_turn.unwritten) {
    const auto lock = hold(*each);
    write_all(each);
    dispatch_later(each);
  }
  this_turn.unwritten.clear();
}

void peer_book::after(std::int64_t ns, std::function<void()> what) {
  const auto wait = [this, ns, what = std::move(what)] {
    connections_->after(ns, [this, what] {
      if (ending_) return;
      call_user(what);
      rest_later();
    });
  };
  connections_->on_own_thread() ? wait() : connections_->post(wait);
}

void peer_book::agree(std::string_view what, const std::string& value) {
  for (const auto& each : members_) {
    const auto lock = hold(*each);
    if (each->link) each->link->agree(what, value);
  }
}

void peer_book::use(std::shared_ptr<const tls_identity> identity) {
  connections_->post([this, identity = std::move(identity)] { adopt(identity); });
}

void peer_book::admit(peer_id node, bool member, std::optional<address> at) {
  connections_->post([this, node, member, at = std::move(at)] {
    if (ending_ || node >= members_.size()) return;
    const auto& whom = members_[node];
    if (at) whom->spec.at = at;
    whom->dials = dials(whom->spec);
    for (auto& state : whom->dialled) state.next_ns = 0;
    if (std::exchange(whom->spec.absent, !member) != !member && !member) dismiss(whom);
  });
}

void peer_book::leave(peer_id client, std::string_view why) {
  connections_->post([this, client, why = std::string(why)] {
    if (const auto found = find(client)) give_up(found, why);
  });
}

peer_figures peer_book::figures(peer_id of) const {
  peer_figures told;
  const auto found = find(of);
  if (!found) return told;
  const auto lock = hold(*found);
  told.written_bytes = found->written_bytes;
  told.read_bytes = found->read_bytes;
  told.writes = found->writes;
  told.reads = found->reads;
  told.connections = found->n_connections;
  told.name = found->spec.name;
  if (!found->connections.empty()) told.serial = found->connections.back()->serial();
  if (!found->link) return told;
  const auto& link = *found->link;
  told.up = link.now_in() == session::phase::up;
  told.self = link.peer().self;
  told.round_trip_ns = link.round_trip_ns();
  told.bytes_per_s = link.bytes_per_s();
  told.resent_frames = link.resent_frames();
  for (std::size_t i = 0; i < n_lanes; ++i) {
    const auto each = static_cast<lane>(i);
    told.lanes[i] = {link.sent_bytes(each), link.received_bytes(each), link.outstanding_bytes(each),
                     link.waiting_bytes(each)};
  }
  return told;
}

// ------------------------------------------------------------------------------------------ peers

void peer_book::add_member(std::size_t i) {
  auto made = std::make_shared<peer>();
  made->id = static_cast<peer_id>(i);
  made->spec = options_.peers[i];
  made->dials = dials(made->spec);
  if (!made->spec.name.empty()) make_session(*made, made->spec.name, options_.agreed, 0);
  members_.push_back(std::move(made));
}

bool peer_book::dials(const transport_peer& to) const {
  const auto& self = options_.identity->name().name;
  return to.at.has_value() && (options_.is_client || options_.listen.empty() || self < to.name);
}

void peer_book::make_session(peer& of, const std::string& name, std::vector<agreement> agreed,
                             std::uint64_t generation) {
  session_config config;
  config.self.cluster = options_.identity->name().cluster;
  config.self.node = options_.identity->name().name;
  config.self.self = {options_.boot, generation};
  config.self.life = life_;
  config.self.agreed = std::move(agreed);
  config.peer = name;
  config.limits = options_.limits;
  of.link.emplace(std::move(config), steady_ns());
}

peer_ptr peer_book::find(peer_id id) const {
  if (id < members_.size()) return members_[id];
  const std::lock_guard lock(clients_mutex_);
  const auto found = clients_.find(id);
  return found == clients_.end() ? nullptr : found->second;
}

std::vector<peer_ptr> peer_book::everybody() const {
  auto all = members_;
  const std::lock_guard lock(clients_mutex_);
  for (const auto& [id, client] : clients_) all.push_back(client);
  return all;
}

std::unique_lock<reader_first> peer_book::hold(peer& which) const {
  if (!connections_->on_own_thread()) return std::unique_lock(which.mutex);
  which.mutex.lock_first();
  return {which.mutex, std::adopt_lock};
}

// ---------------------------------------------------------------------------------------- dispatch

void peer_book::push(const peer_ptr& to) {
  if (this_turn.of != this) return write_all(to);
  auto& unwritten = this_turn.unwritten;
  if (unwritten.empty()) this_turn.since_ns = steady_ns();
  if (std::ranges::find(unwritten, to) == unwritten.end()) unwritten.push_back(to);
}

bool peer_book::holds() const {
  return this_turn.of == this && !this_turn.unwritten.empty();
}

void peer_book::end_turn() {
  flush();
  this_turn.of = nullptr;
}

void peer_book::tell_user(const peer& of, std::vector<session_event> events) {
  call_user([&] { user_.take(of.id, std::move(events)); });
  rest_later();
}

void peer_book::rest_later() {
  if (!options_.rests || std::exchange(rest_is_due_, true)) return;
  // Behind whatever else can be read now.
  connections_->post([this] { rest(); });
}

void peer_book::rest() {
  if (std::exchange(rest_is_due_, false)) call_user([this] { user_.rest(); });
}

namespace {

void trouble_is_over(peer& with) {
  with.told.clear();
  for (auto& each : with.dialled) {
    each.backoff_ns = dialling::least_backoff_ns;
    each.told.clear();
  }
}

/// A refusal that was told before.
bool is_stale(peer& of, const session_event& event) {
  const bool refused =
      event.kind == session_event::what::refused || event.kind == session_event::what::fault;
  return refused && !of.told.is_new(event.text);
}

}  // namespace

void peer_book::dispatch(const peer_ptr& of) {
  if (ending_) return;
  std::vector<session_event> events;
  {
    const auto lock = hold(*of);
    of->dispatches = false;
    if (of->link) events = of->link->take_events();
  }
  bool up = false, cut = false, down = false;
  for (const auto& event : events) {
    up |= event.kind == session_event::what::up;
    cut |= event.kind == session_event::what::cut;
    down |= event.kind == session_event::what::down;
    if (event.kind == session_event::what::up || event.kind == session_event::what::resumed)
      trouble_is_over(*of);
  }
  std::erase_if(events, [&](const session_event& each) { return is_stale(*of, each); });
  if (events.empty()) return;
  tell_user(*of, std::move(events));
  if (up && !down && !of->given_up.empty()) return give_up(of, of->given_up);
  // Nothing of a client outlives its connection.
  if (of->is_client && cut && !down) return give_up(of, "its connection is closed");
  if (of->is_client && down) forget(of);
}

void peer_book::dispatch_later(const peer_ptr& of) {
  if (!of->link->has_events() || std::exchange(of->dispatches, true)) return;
  connections_->post([this, of] { dispatch(of); });
}

void peer_book::give_up(const peer_ptr& of, const std::string& why) {
  {
    const auto lock = hold(*of);
    // A client that still introduces itself has no session yet that could end.
    if (of->is_client && of->link && of->link->now_in() == session::phase::away) of->given_up = why;
    if (of->link) of->link->leave(why);
    write_all(of);
  }
  dispatch(of);
}

void peer_book::forget(const peer_ptr& client) {
  std::vector<connection_ptr> open;
  {
    const auto lock = hold(*client);
    open = client->connections;
  }
  // Known no more before they end, so that its end is not told again.
  {
    const std::lock_guard lock(clients_mutex_);
    clients_.erase(client->id);
  }
  for (const auto& each : open) finish(each, "the session is over");
}

void peer_book::tell(const std::string& who, const error& why) {
  call_user([&] { user_.problem(who, why); });
}

void peer_book::tell_once(const std::string& who, const error& why) {
  const auto now = steady_ns();
  std::erase_if(told_, [&](const auto& each) { return now - each.second >= quiet_ns; });
  const auto host = who.substr(0, who.rfind(':'));
  if (told_.size() < most_told &&
      told_.emplace(fmt::format("{}: {}", host, why.message), now).second)
    tell(who, why);
}

// ----------------------------------------------------------------------------------------- writing

void peer_book::write_all(const peer_ptr& to) {
  if (!to->link) return;
  for (const auto& each : to->connections) write(*to, each);
  for (const auto id : to->link->take_closing())
    for (const auto& each : to->connections)
      if (each->id == id) begin_closing(*to, *each);
  for (const auto& each : to->connections)
    if (each->closing && !each->closed && put_out(*to, *each))
      connections_->post([this, each] { finish(each, "closed"); });
  await_pace(to);
  if (!connections_->on_own_thread()) dispatch_later(to);
}

void peer_book::await_pace(const peer_ptr& of) {
  const auto at_ns = of->link->next_bulk_ns();
  // Where it has come, the connection has no room, and tells when it has.
  if (at_ns == std::numeric_limits<std::int64_t>::max() || at_ns <= steady_ns() ||
      std::exchange(of->awaits_pace, true))
    return;
  const auto wait = [this, of, at_ns] {
    connections_->after(at_ns - steady_ns(), [this, of] {
      const auto lock = hold(*of);
      of->awaits_pace = false;
      if (!ending_) write_all(of);
    });
  };
  connections_->on_own_thread() ? wait() : connections_->post(wait);
}

void peer_book::begin_closing(peer& to, connection& with) {
  with.closing = true;
  with.closing_since_ns = steady_ns();
  to.scratch.clear();
  to.link->write(with.id, to.scratch, most_written_at_once, steady_ns());
  if (with.put(to.scratch)) with.end();
}

void peer_book::write(peer& to, const connection_ptr& with) {
  if (with->closed || with->closing || !with->problem.empty()) return;
  auto& link = *to.link;
  while (put_out(to, *with) && link.has_output(with->id, steady_ns())) {
    to.scratch.clear();
    link.write(with->id, to.scratch, most_written_at_once, steady_ns());
    if (auto sealed = with->put(to.scratch); !sealed) {
      connections_->post([this, with, why = sealed.error().message] { finish(with, why); });
      return;
    }
  }
}

bool peer_book::put_out(peer& to, connection& with) {
  const bool all = with.write();
  if (with.written_bytes > 0) ++to.writes;
  to.written_bytes += std::exchange(with.written_bytes, 0);
  return all;
}

}  // namespace ordermoe::net
