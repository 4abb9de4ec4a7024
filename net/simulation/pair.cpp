#include "net/simulation/pair.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

namespace ordermoe::net {

namespace {

constexpr std::int64_t least_backoff_ns = 50'000'000, most_backoff_ns = 2'000'000'000;
constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();

/// What a frame's stamp says it is: of which session of its sender, which of the lane that its user sent it in, and its bytes.
struct frame_stamp {
  std::uint64_t life = 0;  ///< 16 bits.
  lane of = lane::control;
  std::uint32_t number = 0;  ///< 24 bits.
  std::uint64_t bytes = 0;   ///< 20 bits of a hash.

  std::uint64_t packed() const {
    return life << 48 | static_cast<std::uint64_t>(of) << 44 | std::uint64_t{number} << 20 | bytes;
  }
};

constexpr std::uint64_t low_bits(std::uint64_t value, int n) {
  return value & ((std::uint64_t{1} << n) - 1);
}

std::uint64_t hash_of(std::string_view payload) {
  return low_bits(std::hash<std::string_view>{}(payload), 20);
}

frame_stamp unpacked(std::uint64_t stamp) {
  return {stamp >> 48, static_cast<lane>(low_bits(stamp >> 44, 4)),
          static_cast<std::uint32_t>(low_bits(stamp >> 20, 24)), low_bits(stamp, 20)};
}

}  // namespace

const char* to_string(wire_fault kind) {
  constexpr const char* names[] = {"cut",           "cut unequally", "stall",
                                   "stall one way", "stall one",     "flip",
                                   "dial again",    "change rate",   "silence"};
  return names[static_cast<std::size_t>(kind)];
}

simulated_pair::simulated_pair(std::array<session_config, 2> ends, std::array<wire_rate, 2> towards,
                               wire_options options, std::uint64_t seed)
    : configs_(std::move(ends)), towards_(towards), options_(options), draws_(seed) {
  for (std::size_t i = 0; i < 2; ++i) make_session(i, configs_[i].self.self.boot);
}

void simulated_pair::make_session(std::size_t end, std::uint64_t boot) {
  auto config = configs_[end];
  config.self.self.boot = boot;
  config.self.life = draws_.bits();
  sessions_[end].emplace(std::move(config), now_ns_);
  auto& seen = witnesses_[end];
  seen = next_life(seen);
  dials_[end] = {};
}

simulated_pair::witness simulated_pair::next_life(const witness& before) {
  witness next;
  next.life = before.life + 1;
  next.largest = before.largest;
  return next;
}

// ------------------------------------------------------------------------------------------ users

bool simulated_pair::send(std::size_t end, lane of, std::uint8_t kind, std::uint64_t request,
                          std::uint32_t attempt, std::uint32_t epoch, std::string payload) {
  if (!sessions_[end]) return false;
  auto& seen = witnesses_[end];
  const auto stamp =
      frame_stamp{low_bits(seen.life, 16), of, seen.sent[index(of)], hash_of(payload)}.packed();
  const std::uint64_t size = header_bytes + payload.size();
  if (!sessions_[end]->send(of, kind, request, attempt, epoch, std::move(payload), stamp))
    return false;
  ++seen.sent[index(of)];
  seen.largest[index(of)] = std::max(seen.largest[index(of)], size);
  ++counts_.frames;
  return true;
}

void simulated_pair::used(std::size_t end, lane of, std::uint64_t bytes) {
  uses_.push_back({at_next_advance, end, of, bytes});
}

std::vector<session_event> simulated_pair::take_events(std::size_t end) {
  return std::exchange(events_[end], {});
}

bool simulated_pair::at_rest() const {
  if (!uses_.empty()) return false;
  for (const auto& each : sessions_)
    for (std::size_t i = 0; each && i < n_lanes; ++i) {
      const auto of = static_cast<lane>(i);
      if (each->outstanding_bytes(of) + each->waiting_bytes(of) > 0) return false;
    }
  return true;
}

// ------------------------------------------------------------------------------------------- time

void simulated_pair::advance(std::int64_t now_ns) {
  now_ns_ = now_ns;
  strike_what_is_due();
  tick_and_use();
  dial_where_due();
  for (bool moved = true; moved;) {
    moved = false;
    for (auto& each : connections_)
      for (std::size_t end = 0; end < 2; ++end) {
        moved |= deliver(each, end);
        moved |= write(each, end);
      }
    for (std::size_t end = 0; end < 2; ++end) close_what_ends(end);
  }
  forget_connections();
  check_credit();
  for (std::size_t end = 0; end < 2; ++end) {
    if (!sessions_[end]) continue;
    auto events = sessions_[end]->take_events();
    watch(end, events);
    for (auto& each : events) events_[end].push_back(std::move(each));
  }
  check_all_came();
}

std::int64_t simulated_pair::next_ns() const {
  auto next = never;
  for (const auto& each : strikes_) next = std::min(next, each.at_ns);
  for (const auto& each : uses_) next = std::min(next, each.at_ns);
  for (std::size_t end = 0; end < 2; ++end) {
    if (!sessions_[end]) continue;
    next = std::min(next, std::max(now_ns_ + 1, sessions_[end]->next_tick_ns()));
    for (const auto which : {stream::fast, stream::bulk}) {
      if ((end == 1 && !options_.both_dial) || has_way(end, which)) continue;
      if (which == stream::bulk && sessions_[end]->now_in() != session::phase::up) continue;
      next = std::min(next, dials_[end][static_cast<std::size_t>(which)].next_ns);
    }
  }
  for (const auto& each : connections_)
    for (std::size_t end = 0; end < 2; ++end) {
      const auto& way = each.to[end];
      if (!way.queue.empty())
        next = std::min(next, std::max({way.queue.front().at_ns, way.stalled_until_ns,
                                        stalled_until_ns_[end]}));
      const auto from = 1 - end;
      if (!each.attached[from] || way.in_flight >= options_.buffer_bytes || !sessions_[from])
        continue;
      if (sessions_[from]->has_output(each.id, now_ns_)) next = std::min(next, now_ns_);
      const auto paced_ns = sessions_[from]->next_bulk_ns();
      if (each.which == stream::bulk && paced_ns > now_ns_) next = std::min(next, paced_ns);
    }
  return next;
}

void simulated_pair::tick_and_use() {
  for (auto& each : sessions_)
    if (each && each->next_tick_ns() <= now_ns_) each->tick(now_ns_);
  for (auto& each : uses_)
    if (each.at_ns == at_next_advance) each.at_ns = now_ns_ + below(options_.most_use_delay_ns);
  for (const auto& each : uses_)
    if (each.at_ns <= now_ns_ && sessions_[each.end])
      sessions_[each.end]->used(each.of, each.bytes);
  std::erase_if(uses_, [this](const late_use& each) { return each.at_ns <= now_ns_; });
}

// ------------------------------------------------------------------------------------ connections

bool simulated_pair::has_way(std::size_t end, stream which) const {
  return std::ranges::any_of(connections_, [&](const connection& each) {
    if (each.which != which) return false;
    const auto& queue = each.to[end].queue;
    return each.attached[end] ||
           (each.dialler == end && !queue.empty() && queue.front().kind == what::opened);
  });
}

void simulated_pair::dial_where_due() {
  for (std::size_t end = 0; end < (options_.both_dial ? 2 : 1); ++end)
    for (const auto which : {stream::fast, stream::bulk}) {
      if (!sessions_[end] || has_way(end, which)) continue;
      if (which == stream::bulk && sessions_[end]->now_in() != session::phase::up) continue;
      if (now_ns_ < dials_[end][static_cast<std::size_t>(which)].next_ns) continue;
      // Nobody listens there.
      if (sessions_[1 - end])
        dial(end, which);
      else
        retry_later(end, which);
    }
}

/// The one who dials knows the other a way sooner than it is known there.
simulated_pair::connection& simulated_pair::dial(std::size_t from, stream which) {
  auto& made = connections_.emplace_back();
  made.id = next_id_++;
  made.which = which;
  made.dialler = from;
  const auto there = towards_[1 - from].delay_ns, back = towards_[from].delay_ns;
  made.to[from].queue.push_back({now_ns_ + there + back, what::opened, {}});
  made.to[1 - from].queue.push_back({now_ns_ + 2 * there + back, what::opened, {}});
  ++counts_.connections;
  return made;
}

/// A connection that is there already, with what is said over it first.
void simulated_pair::dial_at_last(std::size_t from) {
  auto& made = dial(from, stream::fast);
  made.to[from].queue.clear();
  attach(made, from);
  write(made, from);
}

void simulated_pair::retry_later(std::size_t end, stream which) {
  auto& state = dials_[end][static_cast<std::size_t>(which)];
  state.backoff_ns = std::clamp(2 * state.backoff_ns, least_backoff_ns, most_backoff_ns);
  state.next_ns = now_ns_ + state.backoff_ns / 2 + below(state.backoff_ns);
}

/// Whether something arrived.
bool simulated_pair::deliver(connection& over, std::size_t end) {
  auto& way = over.to[end];
  bool moved = false;
  while (!way.queue.empty() && std::max({way.queue.front().at_ns, way.stalled_until_ns,
                                         stalled_until_ns_[end]}) <= now_ns_) {
    auto next = std::move(way.queue.front());
    way.queue.pop_front();
    moved = true;
    switch (next.kind) {
      case what::opened:
        attach(over, end);
        break;
      case what::bytes:
        way.in_flight -= next.text.size();
        for (std::string_view left = next.text; !left.empty() && over.attached[end];) {
          sessions_[end]->receive(over.id, left.substr(0, options_.read_bytes), now_ns_);
          left.remove_prefix(std::min(options_.read_bytes, left.size()));
        }
        break;
      case what::closed:
        detach(over, end, "closed by the peer");
        break;
    }
  }
  return moved;
}

void simulated_pair::attach(connection& over, std::size_t end) {
  if (!sessions_[end]) return put_end(over, 1 - end, 0);
  over.attached[end] = true;
  sessions_[end]->connected(over.id, over.which, over.dialler == end, configs_[end].peer, now_ns_);
}

void simulated_pair::detach(connection& over, std::size_t end, std::string_view why) {
  if (!std::exchange(over.attached[end], false)) return;
  sessions_[end]->disconnected(over.id, now_ns_, why);
  retry_later(end, over.which);
}

/// What the session has to say goes on its way, as far as there is room.
bool simulated_pair::write(connection& over, std::size_t end) {
  auto& way = over.to[1 - end];
  bool moved = false;
  while (over.attached[end] && way.in_flight < options_.buffer_bytes &&
         sessions_[end]->has_output(over.id, now_ns_)) {
    scratch_.clear();
    if (sessions_[end]->write(over.id, scratch_, options_.chunk_bytes, now_ns_) == 0) break;
    if (std::exchange(flips_next_[1 - end], false)) flip_a_bit(scratch_);
    put(over, 1 - end, scratch_);
    moved = true;
  }
  return moved;
}

/// Connections that a session closes, behind their last words.
void simulated_pair::close_what_ends(std::size_t end) {
  if (!sessions_[end]) return;
  for (const auto id : sessions_[end]->take_closing()) {
    const auto over = std::ranges::find(connections_, id, &connection::id);
    if (over == connections_.end() || !over->attached[end]) continue;
    scratch_.clear();
    sessions_[end]->write(id, scratch_, options_.chunk_bytes, now_ns_);
    put(*over, 1 - end, scratch_);
    put_end(*over, 1 - end, 0);
    detach(*over, end, "closed");
  }
}

void simulated_pair::put(connection& over, std::size_t to, std::string_view bytes) {
  auto& way = over.to[to];
  way.in_flight += bytes.size();
  if (over.cut) return;
  const auto& rate = towards_[to];
  while (!bytes.empty()) {
    const auto part = bytes.substr(0, options_.chunk_bytes);
    bytes.remove_prefix(part.size());
    way.free_ns =
        std::max(now_ns_, way.free_ns) +
        static_cast<std::int64_t>(static_cast<double>(part.size()) * 1e9 / rate.bytes_per_s);
    const auto before = way.queue.empty() ? 0 : way.queue.back().at_ns;
    way.queue.push_back(
        {std::max(before, way.free_ns + rate.delay_ns), what::bytes, std::string(part)});
  }
}

void simulated_pair::put_end(connection& over, std::size_t to, std::int64_t after_ns) {
  if (over.cut) return;
  auto& queue = over.to[to].queue;
  const auto before = queue.empty() ? 0 : queue.back().at_ns;
  queue.push_back({std::max(before, now_ns_ + towards_[to].delay_ns) + after_ns, what::closed, {}});
}

void simulated_pair::forget_connections() {
  std::erase_if(connections_, [](const connection& each) {
    const auto opens = [](const direction& way) {
      return std::ranges::any_of(way.queue,
                                 [](const item& next) { return next.kind == what::opened; });
    };
    return !each.attached[0] && !each.attached[1] && !opens(each.to[0]) && !opens(each.to[1]);
  });
}

// ----------------------------------------------------------------------------------------- faults

void simulated_pair::strike_what_is_due() {
  const auto way_ns = towards_[0].delay_ns + towards_[1].delay_ns;
  for (auto& each : strikes_)
    if (each.at_ns == at_next_advance) each.at_ns = now_ns_ + below(2 * way_ns);
  for (std::size_t i = 0; i < strikes_.size(); ++i)
    if (strikes_[i].at_ns <= now_ns_) strike_now(strikes_[i].kind);
  std::erase_if(strikes_, [this](const struck& each) { return each.at_ns <= now_ns_; });
}

void simulated_pair::strike_now(wire_fault kind) {
  ++counts_.faults[static_cast<std::size_t>(kind)];
  const auto stall = [this](std::size_t end, std::int64_t ns) {
    stalled_until_ns_[end] = std::max(stalled_until_ns_[end], now_ns_ + ns);
  };
  const auto dead_ns = configs_[0].limits.dead_ns;
  switch (kind) {
    case wire_fault::cut:
    case wire_fault::cut_unequally:
      if (auto* which = any_connection())
        cut(*which, kind == wire_fault::cut ? 0 : below(options_.most_stall_ns));
      return;
    case wire_fault::stall: {
      const auto ns = below(options_.most_stall_ns);
      stall(0, ns);
      return stall(1, ns);
    }
    case wire_fault::stall_one_way:
      return stall(draws_.below(2), below(options_.most_stall_ns));
    case wire_fault::stall_one:
      if (auto* which = any_connection()) stall_one(*which, draws_.below(2));
      return;
    case wire_fault::flip:
      if (!options_.tls)
        flips_next_[draws_.below(2)] = true;
      else if (auto* which = any_connection())
        flip(*which);
      return;
    case wire_fault::dial_again: {
      const auto from = draws_.below(2);
      const auto which = one_in(4) ? stream::bulk : stream::fast;
      if (sessions_[0] && sessions_[1] &&
          (which == stream::fast || sessions_[from]->now_in() == session::phase::up))
        if (auto& made = dial(from, which); one_in(2)) stall_one(made, draws_.below(2));
      return;
    }
    case wire_fault::change_rate:
      for (auto& each : towards_) {
        each.bytes_per_s = std::clamp(each.bytes_per_s * draws_.uniform(0.1, 3), 1e5, 1e10);
        each.delay_ns = below(30'000'000);
      }
      return;
    case wire_fault::silence: {
      const auto ns = dead_ns + 100'000'000 + below(dead_ns);
      one_in(3) ? stall(draws_.below(2), ns) : (stall(0, ns), stall(1, ns));
      return;
    }
  }
}

/// Most often the fast one.
simulated_pair::connection* simulated_pair::any_connection() {
  std::vector<connection*> some;
  for (auto& each : connections_)
    for (int i = each.which == stream::fast ? 4 : 1; i > 0 && !each.cut; --i) some.push_back(&each);
  return some.empty() ? nullptr : some[draws_.below(some.size())];
}

void simulated_pair::stall_one(connection& which, std::size_t towards) {
  auto& until = which.to[towards].stalled_until_ns;
  until = std::max(until, now_ns_ + below(options_.most_stall_ns));
}

void simulated_pair::cut(connection& which, std::int64_t later_at_one_end_ns) {
  const auto later = draws_.below(2);
  for (std::size_t end = 0; end < 2; ++end) {
    auto& way = which.to[end];
    keep_prefix(way, draws_.below(way.in_flight + 1));
    put_end(which, end, end == later ? later_at_one_end_ns : 0);
  }
  which.cut = true;
}

/// What is further back never arrives.
void simulated_pair::keep_prefix(direction& of, std::size_t bytes) {
  auto left = bytes;
  std::deque<item> kept;
  for (auto& each : of.queue) {
    if (each.kind == what::closed) break;
    if (each.kind == what::bytes) {
      if (left == 0) break;
      each.text.resize(std::min(left, each.text.size()));
      left -= each.text.size();
    }
    kept.push_back(std::move(each));
  }
  of.queue = std::move(kept);
}

/// TLS finds it where it arrives; what is before it is whole, and so is the other direction.
void simulated_pair::flip(connection& which) {
  const auto end = draws_.below(2);
  auto& way = which.to[end];
  keep_prefix(way, draws_.below(way.in_flight + 1));
  for (const auto each : {end, 1 - end}) put_end(which, each, 0);
  which.cut = true;
}

/// In what a session checks itself: the rest of a frame is its user's, and no session can tell.
void simulated_pair::flip_a_bit(std::string& frames) {
  // length, version, lane, word, sequence
  constexpr std::size_t checked[] = {0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  std::vector<std::size_t> places;
  for (std::size_t at = 0; at + header_bytes <= frames.size();) {
    const auto header = get_header(std::string_view(frames).substr(at));
    for (const auto place : checked) places.push_back(at + place);
    if (!is_in_parts(header.word) && header.word != session_word::none)
      places.push_back(at + header_bytes + draws_.below(std::max(1u, header.length)));
    at += header_bytes + header.length;
  }
  std::erase_if(places, [&](std::size_t place) { return place >= frames.size(); });
  if (places.empty()) return;
  auto& byte = frames[places[draws_.below(places.size())]];
  byte = static_cast<char>(byte ^ (1 << draws_.below(8)));
}

void simulated_pair::end(std::size_t which, ending how) {
  if (!sessions_[which]) return;
  if (how == ending::process && sessions_[1 - which] && one_in(2)) dial_at_last(which);
  for (auto& each : connections_) {
    each.to[which] = {};
    if (how == ending::process && !each.cut) {
      auto& way = each.to[1 - which];
      if (one_in(2)) keep_prefix(way, draws_.below(way.in_flight + 1));
      put_end(each, 1 - which, 0);
      if (one_in(2)) stall_one(each, 1 - which);
    } else if (how == ending::machine) {
      each.to[1 - which].queue.clear();
    }
    each.attached[which] = false;
    each.cut = true;
  }
  sessions_[which].reset();
  events_[which].clear();
  std::erase_if(uses_, [&](const late_use& each) { return each.end == which; });
}

void simulated_pair::start(std::size_t which, std::uint64_t boot) {
  if (!sessions_[which]) make_session(which, boot);
}

// ----------------------------------------------------------------------------------- what must hold

void simulated_pair::watch(std::size_t end, std::vector<session_event>& events) {
  using kind = session_event::what;
  auto& seen = witnesses_[end];
  for (const auto& event : events) switch (event.kind) {
      case kind::frame:
        check_frame(end, event);
        break;
      case kind::up:
        seen = next_life(seen);
        dials_[end] = {};
        break;
      case kind::resumed:
        ++counts_.resumed;
        dials_[end] = {};
        break;
      case kind::down:
        ++counts_.downs;
        break;
      case kind::congested:
        ++counts_.congested;
        break;
      case kind::fault:
        if (options_.tls) breach(fmt::format("a fault: {}", event.text));
        break;
      default:
        break;
    }
}

/// Every frame once, as it was sent, and of one session of the peer; those of a lane in their order, and so those that the
/// session took out of their lane because they are large.
void simulated_pair::check_frame(std::size_t end, const session_event& event) {
  if (!options_.tls) return;
  auto& seen = witnesses_[end];
  const auto stamp = unpacked(event.header.stamp);
  if (!seen.life_of_peer) seen.life_of_peer = stamp.life;
  const bool is_large = is_in_parts(event.header.word);
  auto& next = (is_large ? seen.next_large : seen.next)[index(stamp.of)];
  const bool is_of_lane =
      is_large ? stamp.of == lane::token || stamp.of == lane::kv : stamp.of == event.header.of;
  // Parts take numbers of lane bulk, and large frames of their lanes: elsewhere none is missing.
  const bool is_next =
      stamp.of == lane::token || stamp.of == lane::kv ? stamp.number >= next : stamp.number == next;
  const bool in_sequence = is_large || stamp.of == lane::bulk ||
                           event.header.sequence == seen.n_short[index(stamp.of)]++;
  const bool fits = is_of_lane && is_next && in_sequence && stamp.life == *seen.life_of_peer;
  if (!fits || stamp.bytes != hash_of(event.text))
    return breach(
        fmt::format("{}, lane {}: found frame {} of lane {} of session {}, expected at least frame "
                    "{} of session {}{}",
                    configs_[end].self.node, to_string(event.header.of), stamp.number,
                    to_string(stamp.of), stamp.life, next, *seen.life_of_peer,
                    fits ? ", and found other bytes than were sent" : ""));
  next = stamp.number + 1;
  ++seen.taken[index(stamp.of)];
}

/// Where nothing is on its way any more.
void simulated_pair::check_all_came() {
  const auto is_up = [](const std::optional<session>& each) {
    return each && each->now_in() == session::phase::up;
  };
  if (!options_.tls || !std::ranges::all_of(sessions_, is_up) || !at_rest()) return;
  for (std::size_t end = 0; end < 2; ++end)
    for (std::size_t i = 0; i < n_lanes; ++i)
      if (witnesses_[end].sent[i] != witnesses_[1 - end].taken[i])
        breach(fmt::format("{}, lane {}: {} frames came, expected {}", configs_[1 - end].self.node,
                           to_string(static_cast<lane>(i)), witnesses_[1 - end].taken[i],
                           witnesses_[end].sent[i]));
}

/// But for one frame alone.
void simulated_pair::check_credit() {
  if (!options_.tls) return;
  for (std::size_t end = 0; end < 2; ++end)
    for (std::size_t i = 0; sessions_[end] && i < n_lanes; ++i) {
      const auto outstanding = sessions_[end]->outstanding_bytes(static_cast<lane>(i));
      const auto most = std::max(configs_[end].limits.credit[i], witnesses_[end].largest[i]);
      if (outstanding > most)
        breach(fmt::format("{}, lane {}: {} bytes are outstanding, expected at most {}",
                           configs_[end].self.node, to_string(static_cast<lane>(i)), outstanding,
                           most));
    }
}

}  // namespace ordermoe::net
