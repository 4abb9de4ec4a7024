#include "net/session/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "net/session/pulse.hpp"

namespace ordermoe::net {

namespace {

constexpr std::size_t most_refusal_bytes = 1024;

/// Connections in a row that end for what the peer sent, with no new frame between them: what the two know of each
/// other does not fit together, and another connection would end likewise.
constexpr int most_faults = 3;

/// Bytes of a session's own word at most.
std::size_t most_bytes(session_word word) {
  switch (word) {
    case session_word::hello:
      return most_hello_bytes;
    case session_word::pulse:
      return pulse_bytes;
    case session_word::refusal:
    case session_word::goodbye:
      return most_refusal_bytes;
    case session_word::filler:
      return filler_bytes;
    case session_word::none:
    case session_word::padded:
    case session_word::part:
    case session_word::last_part:
    case session_word::last_padded_part:
      break;
  }
  return 0;
}

/// As the last bytes of a frame say that came in two pieces; 0 where there are none.
std::uint32_t padding_of(std::string_view begin, std::string_view end) {
  std::uint32_t added = 0;
  std::string mark(end.substr(end.size() - std::min(end.size(), padding_mark_bytes)));
  const auto missing = padding_mark_bytes - mark.size();
  if (missing > begin.size()) return 0;
  mark.insert(0, begin.substr(begin.size() - missing));
  std::memcpy(&added, mark.data(), padding_mark_bytes);
  return added;
}

}  // namespace

const char* to_string(session_event::what kind) {
  constexpr const char* names[] = {"up",      "resumed", "cut",   "suspect",   "heard",   "down",
                                   "refused", "fault",   "frame", "congested", "relieved"};
  return names[static_cast<std::size_t>(kind)];
}

session::session(session_config config, std::int64_t now_ns)
    : config_(std::move(config)), heard_ns_(now_ns), pulsed_ns_(now_ns) {
  // What one end may send is what the other takes.
  for (std::size_t i = 0; i < n_lanes; ++i) {
    const auto* name = to_string(static_cast<lane>(i));
    auto& agreed = config_.self.agreed;
    agreed.emplace_back(fmt::format("credit.{}", name), std::to_string(config_.limits.credit[i]));
    agreed.emplace_back(fmt::format("largest_frame.{}", name),
                        std::to_string(config_.limits.largest_frame[i]));
  }
}

session::connection* session::find(connection_id id) {
  const auto found = std::ranges::find(connections_, id, &connection::id);
  return found == connections_.end() ? nullptr : &*found;
}

const session::connection* session::find(connection_id id) const {
  const auto found = std::ranges::find(connections_, id, &connection::id);
  return found == connections_.end() ? nullptr : &*found;
}

session::connection* session::open_connection(stream which) {
  const auto found = std::ranges::find_if(connections_, [&](const connection& each) {
    return each.which == which && each.state == connection_phase::open;
  });
  return found == connections_.end() ? nullptr : &*found;
}

bool session::is_open(stream which) const {
  return std::ranges::any_of(connections_, [&](const connection& each) {
    return each.which == which && each.state == connection_phase::open;
  });
}

void session::tell(what kind, std::string text, frame_header header) {
  events_.push_back({kind, header, std::move(text)});
}

std::vector<session_event> session::take_events() {
  return std::exchange(events_, {});
}

// --------------------------------------------------------------------------------------- connections

void session::agree(std::string_view what, const std::string& value) {
  for (auto& [name, agreed] : config_.self.agreed)
    if (name == what) agreed = value;
}

void session::connected(connection_id id, stream which, bool dialled_here, std::string name,
                        std::int64_t now_ns) {
  connection fresh;
  fresh.id = id;
  fresh.which = which;
  fresh.dialled_here = dialled_here;
  fresh.name = std::move(name);
  fresh.since_ns = now_ns;
  fresh.said = config_.self;
  fresh.said.which = which;
  if (phase_ != phase::away) {
    fresh.said.other = peer_.self;
    fresh.said.other_life = peer_.life;
    for (std::size_t i = 0; i < n_lanes; ++i) fresh.said.expected[i] = in_[i].expected;
  }
  say(fresh, session_word::hello, hello_text(fresh.said));
  connections_.push_back(std::move(fresh));
}

void session::disconnected(connection_id id, std::int64_t, std::string_view why) {
  auto* gone = find(id);
  if (gone == nullptr) return;
  lose(*gone, std::string(why));
  std::erase_if(connections_, [&](const connection& each) { return each.id == id; });
}

void session::lose(connection& which, std::string why) {
  const bool carried = which.which == stream::fast && which.state == connection_phase::open;
  close(which);
  if (!carried || phase_ != phase::up) return;
  phase_ = phase::cut;
  tell(what::cut, std::move(why));
}

std::vector<session::connection_id> session::take_closing() {
  std::vector<connection_id> closing;
  for (auto& each : connections_)
    if (each.state == connection_phase::closing && !std::exchange(each.told_closing, true))
      closing.push_back(each.id);
  return closing;
}

void session::say(connection& to, session_word word, std::string_view text) {
  frame_header header;
  header.version = wire_version;
  header.word = word;
  header.of = to.which == stream::bulk ? lane::bulk : lane::control;
  header.length = static_cast<std::uint32_t>(text.size());
  put(header, to.out);
  to.out += text;
}

void session::fault(connection& from, std::string text) {
  tell(what::fault, fmt::format("{}, {} stream: {}", config_.peer, to_string(from.which), text));
  const bool of_session = from.state == connection_phase::open || from.goes_on;
  lose(from, text);
  if (of_session && ++faults_ >= most_faults)
    give_up(fmt::format("{} does not go on where this end is: {}", config_.peer, text));
}

void session::refuse(connection& from, const std::string& why) {
  tell(what::refused, why);
  say(from, session_word::refusal, std::string_view(why).substr(0, most_refusal_bytes));
  close(from);
}

// --------------------------------------------------------------------------------------------- input

void session::receive(connection_id id, std::string_view bytes, std::int64_t now_ns, bool drained) {
  auto* from = find(id);
  if (from == nullptr || from->state == connection_phase::closing) return;
  from->received += bytes.size();
  if (from->in.empty()) {
    // Whole frames are taken from where they are; only what is left of one is kept.
    const auto taken = take_input(*from, bytes, now_ns);
    from->in = bytes.substr(taken);
  } else {
    from->in += bytes;
    const auto taken = take_input(*from, from->in, now_ns);
    from->in.erase(0, taken);
  }
  if (const auto rate = from->arrivals.arrived(bytes.size(), now_ns, drained, round_trip_.value()))
    mib_ns_.add(static_cast<std::int64_t>(mib * 1e9 / *rate), now_ns);
}

/// What is taken may open or close connections, but adds and removes none.
std::size_t session::take_input(connection& from, std::string_view bytes, std::int64_t now_ns) {
  std::size_t at = 0;
  while (from.state != connection_phase::closing && bytes.size() - at >= header_bytes) {
    const auto header = get_header(bytes.substr(at));
    if (!check_header(from, header)) break;
    const bool goes_on = is_in_parts(header.word) && in_[index(header.of)].part_bytes > 0;
    if (!goes_on) expect_burst(from, header, from.received - (bytes.size() - at));
    if (bytes.size() - at < header_bytes + header.length) break;
    const auto payload = bytes.substr(at + header_bytes, header.length);
    at += header_bytes + header.length;
    take(from, header, payload, now_ns);
  }
  return at;
}

bool session::check_header(connection& from, const frame_header& header) {
  const auto refused = [&](std::string text) {
    fault(from, std::move(text));
    return false;
  };
  if (header.version != wire_version)
    return refused(fmt::format("version: found {}, expected {}", header.version, wire_version));
  if (index(header.of) >= n_lanes || stream_of(header.of) != from.which)
    return refused(fmt::format("lane: found {}, expected one of the stream", index(header.of)));
  constexpr auto last_word = session_word::last_padded_part;
  if (header.word > last_word)
    return refused(fmt::format("word: found {}, expected at most {}", static_cast<int>(header.word),
                               static_cast<int>(last_word)));
  if (is_in_parts(header.word) && header.of != lane::bulk)
    return refused(fmt::format("word: found a part of a frame in lane {}, expected it in lane {}",
                               to_string(header.of), to_string(lane::bulk)));
  if (header.word == session_word::filler && header.sequence > most_filler_parts)
    return refused(fmt::format("sequence: found {} parts of filler to come, expected at most {}",
                               header.sequence, most_filler_parts));
  const bool greets = header.word == session_word::hello;
  if (header.word != session_word::refusal && greets != (from.state == connection_phase::greeting))
    return refused(greets ? "found a second hello, expected frames"
                          : "found a frame, expected a hello first");
  const std::size_t most = is_of_user(header.word) ? config_.limits.largest_frame[index(header.of)]
                                                   : most_bytes(header.word);
  if (header.length > most)
    return refused(fmt::format("length: found {} bytes, expected at most {}", header.length, most));
  return true;
}

void session::take(connection& from, const frame_header& header, std::string_view payload,
                   std::int64_t now_ns) {
  // Bulk that still comes says nothing of the connection that tokens go over.
  if (from.which == stream::fast && (header.word == session_word::pulse || is_of_user(header.word)))
    heard_from_peer(now_ns);
  switch (header.word) {
    case session_word::hello:
      return take_hello(from, payload, now_ns);
    case session_word::refusal:
      tell(what::refused, fmt::format("{} refuses: {}", config_.peer, payload));
      return lose(from, "refused by the peer");
    case session_word::pulse:
      return take_pulse(from, payload, now_ns);
    case session_word::filler:
      return;
    case session_word::goodbye:
      return give_up(fmt::format("{} left: {}", config_.peer, payload));
    case session_word::none:
    case session_word::padded:
    case session_word::part:
    case session_word::last_part:
    case session_word::last_padded_part:
      return take_frame(from, header, payload);
  }
}

void session::heard_from_peer(std::int64_t now_ns) {
  heard_ns_ = now_ns;
  if (std::exchange(suspected_, false)) tell(what::heard);
}

void session::take_frame(connection& from, const frame_header& header, std::string_view payload) {
  auto& in = in_[index(header.of)];
  if (header.sequence < in.expected) return;  // It came over the connection before.
  if (header.sequence > in.expected)
    return fault(from, fmt::format("sequence of lane {}: found {}, expected {}",
                                   to_string(header.of), header.sequence, in.expected));
  const auto size = frame_bytes(header);
  const auto allowed = config_.limits.credit[index(header.of)];
  const bool alone = in.received_bytes == in.used_bytes;
  if (!alone && in.received_bytes - in.used_bytes + size > allowed)
    return fault(
        from, fmt::format("lane {}: found {} bytes beyond the credit of {}", to_string(header.of),
                          in.received_bytes - in.used_bytes + size - allowed, allowed));
  // Between the parts of a frame there is nothing else.
  const bool goes_on = in.part_bytes > 0;
  if (goes_on && !is_in_parts(header.word))
    return fault(from, fmt::format("lane {}: found another frame, expected the next part of one",
                                   to_string(header.of)));
  std::size_t padding = 0;
  if (is_padded(header.word)) {
    const auto length = in.parts.size() + payload.size();
    padding = padding_of(in.parts, payload);
    if (padding < padding_mark_bytes || padding > length)
      return fault(from, fmt::format("padding: found {} bytes of a frame of {}, expected {} to {}",
                                     padding, length, padding_mark_bytes, length));
  }
  faults_ = 0;
  ++in.expected;
  in.received_bytes += size;
  total_received_[index(header.of)] += size;
  if (!is_in_parts(header.word)) {
    tell(what::frame, std::string(payload.substr(0, payload.size() - padding)), header);
    return;
  }
  in.parts += payload;
  in.part_bytes += size;
  if (header.word == session_word::part) return;
  auto whole = header;
  whole.length = static_cast<std::uint32_t>(in.parts.size());
  // The user is done with the bytes of one frame; the headers of its parts are nobody's.
  in.used_bytes += std::exchange(in.part_bytes, 0) - frame_bytes(whole);
  in.parts.resize(in.parts.size() - padding);
  tell(what::frame, std::exchange(in.parts, {}), whole);
}

void session::take_pulse(connection& from, std::string_view payload, std::int64_t now_ns) {
  if (payload.size() != pulse_bytes)
    return fault(from,
                 fmt::format("pulse: found {} bytes, expected {}", payload.size(), pulse_bytes));
  pulse heard;
  std::memcpy(&heard, payload.data(), pulse_bytes);
  for (std::size_t i = 0; i < n_lanes; ++i) {
    const auto of = static_cast<lane>(i);
    auto& out = out_[i];
    if (heard.expected[i] > out.furthest || heard.used_bytes[i] > out.end_bytes)
      return fault(
          from, fmt::format("pulse: found frame {} and byte {} of lane {} confirmed, expected at "
                            "most frame {} and byte {}",
                            heard.expected[i], heard.used_bytes[i], to_string(of), out.furthest,
                            out.end_bytes));
    confirm(of, heard.expected[i]);
    out.used_bytes = std::max(out.used_bytes, heard.used_bytes[i]);
    note_congestion(of);
  }
  echo_ = heard.time_ns;
  echo_since_ns_ = now_ns;
  bytes_per_s_ = static_cast<double>(heard.bytes_per_s);
  pace_.measured(bytes_per_s_);
  if (heard.echo < 0 || heard.echo > now_ns || heard.held_ns < 0) return;
  const auto round_trip = now_ns - heard.echo - heard.held_ns;
  if (round_trip < 0) return;
  round_trip_.add(round_trip, now_ns);
  // The peer says the same one again where it has something else to say.
  if (std::exchange(judged_echo_, heard.echo) != heard.echo)
    pace_.heartbeat(round_trip - round_trip_.value(), round_trip_.value());
}

// ------------------------------------------------------------------------------------ how fast it is

void session::expect_burst(connection& from, const frame_header& header, std::uint64_t begin) {
  const auto bytes = frame_bytes(header);
  if (header.word == session_word::filler)
    from.arrivals.expect(begin + bytes * (header.sequence + 1));
  else if (header.word == session_word::part)
    from.arrivals.expect(begin + arrival_rate::least_burst_bytes);
  else if (bytes >= arrival_rate::least_burst_bytes)
    from.arrivals.expect(begin + bytes);
}

// --------------------------------------------------------------------------------------------- hello

void session::take_hello(connection& from, std::string_view text, std::int64_t now_ns) {
  auto theirs = parse_hello(text);
  if (!theirs) return refuse(from, theirs.error().message);
  const auto expected_name = from.name.empty() ? config_.peer : from.name;
  if (const auto why = disagreement(from.said, *theirs, expected_name))
    return refuse(from, why->message);
  if (const auto why = twin(*theirs)) return refuse(from, *why);
  // Of a session with another life of this end: in the one with this it had taken nothing yet.
  if (theirs->other != config_.self.self) theirs->expected = {};
  // Of an earlier life of the peer: it was on its way for long.
  if (phase_ != phase::away && theirs->self < peer_.self) return close(from);
  const bool same = phase_ != phase::away && theirs->self == peer_.self;
  if (from.which == stream::bulk && !same) return close(from);
  if (auto* other = open_connection(from.which); same && other != nullptr) {
    if (!supersedes(from, *other, now_ns)) return close(from);
    close(*other);
  }
  if (!same) {
    for (auto& each : connections_)
      if (each.state == connection_phase::open) close(each);
    begin(*theirs);
  } else if (!go_on(from, *theirs)) {
    return;
  }
  open(from, now_ns);
}

/// Two processes that count their starts alike would take each other's frames for their own.
std::optional<std::string> session::twin(const hello& theirs) const {
  const auto& self = config_.self;
  if (phase_ != phase::away && theirs.self == peer_.self && theirs.life != peer_.life)
    return fmt::format(
        "hello.boot: found {} of another process than the {} that is known; is a "
        "second one running, or was its count of starts lost?",
        theirs.self.boot, config_.peer);
  if (theirs.other > self.self || (theirs.other == self.self && theirs.other_life != self.life))
    return fmt::format(
        "hello.peer_boot: {} knows another process as {}, with boot {}; is a second "
        "one running, or was the count of starts lost?",
        config_.peer, self.node, theirs.other.boot);
  return std::nullopt;
}

bool session::supersedes(const connection& newer, const connection& open,
                         std::int64_t now_ns) const {
  if (newer.dialled_here == open.dialled_here) return true;
  // Both ends dialled at once: both keep the one of the lower name, unless it went silent.
  if (now_ns - heard_ns_ > 2 * config_.limits.heartbeat_ns) return true;
  return newer.dialled_here == (config_.self.node < config_.peer);
}

void session::begin(const hello& theirs) {
  if (phase_ != phase::away)
    tell(what::down, fmt::format("{} began anew: found boot {} generation {}, expected {} and {}",
                                 config_.peer, theirs.self.boot, theirs.self.generation,
                                 peer_.self.boot, peer_.self.generation));
  forget();
  peer_ = theirs;
  phase_ = phase::up;
  tell(what::up);
}

/// Sends again from where the peer is.
bool session::go_on(connection& with, const hello& theirs) {
  with.goes_on = true;
  for (std::size_t i = 0; i < n_lanes; ++i)
    if (stream_of(static_cast<lane>(i)) == with.which && theirs.expected[i] > out_[i].furthest) {
      fault(with,
            fmt::format("hello.expected: found {} of lane {}, expected at most {}",
                        theirs.expected[i], to_string(static_cast<lane>(i)), out_[i].furthest));
      return false;
    }
  for (std::size_t i = 0; i < n_lanes; ++i) {
    if (stream_of(static_cast<lane>(i)) != with.which) continue;
    auto& out = out_[i];
    confirm(static_cast<lane>(i), theirs.expected[i]);
    resent_frames_ += out.unsent - out.first;
    out.unsent = out.first;
  }
  if (phase_ == phase::cut && with.which == stream::fast) {
    phase_ = phase::up;
    tell(what::resumed);
  }
  return true;
}

void session::open(connection& which, std::int64_t now_ns) {
  which.state = connection_phase::open;
  if (which.which == stream::bulk) return;
  heard_from_peer(now_ns);
  pulse_is_due_ = true;
}

void session::give_up(std::string why) {
  if (phase_ == phase::away) return;
  forget();
  phase_ = phase::away;
  ++config_.self.self.generation;
  for (auto& each : connections_) close(each);
  tell(what::down, std::move(why));
}

void session::forget() {
  out_ = {};
  in_ = {};
  suspected_ = false;
  pulse_is_due_ = false;
  faults_ = 0;
  echo_ = -1;
  round_trip_.clear();
  mib_ns_.clear();
  bytes_per_s_ = 0;
  pace_ = {};
  next_part_ns_ = 0;
  judged_echo_ = -1;
  burst_ns_ = -1;
  filler_left_ = 0;
  sent_since_burst_ = false;
}

void session::leave(std::string_view why) {
  if (auto* fast = open_connection(stream::fast))
    say(*fast, session_word::goodbye, why.substr(0, most_refusal_bytes));
  give_up(std::string(why));
}

// ---------------------------------------------------------------------------------------------- time

void session::tick(std::int64_t now_ns, std::int64_t late_ns) {
  for (auto& each : connections_)
    if (each.state == connection_phase::greeting &&
        now_ns - each.since_ns >= config_.limits.hello_ns)
      refuse(each, fmt::format("no hello within {:g} s",
                               static_cast<double>(config_.limits.hello_ns) * 1e-9));
  if (phase_ == phase::away) return;
  heard_ns_ = std::min(now_ns, heard_ns_ + late_ns);
  const auto silent_ns = now_ns - heard_ns_;
  if (silent_ns >= config_.limits.dead_ns)
    return give_up(fmt::format("{} was silent for {:.1f} s", config_.peer,
                               static_cast<double>(silent_ns) * 1e-9));
  if (silent_ns >= config_.limits.suspect_ns && !std::exchange(suspected_, true))
    tell(what::suspect);
  if (now_ns - pulsed_ns_ >= config_.limits.heartbeat_ns) pulse_is_due_ = true;
  if (open_connection(stream::bulk) != nullptr && burst_is_due(now_ns)) begin_burst(now_ns);
}

std::int64_t session::next_tick_ns() const {
  auto next = std::numeric_limits<std::int64_t>::max();
  for (const auto& each : connections_)
    if (each.state == connection_phase::greeting)
      next = std::min(next, each.since_ns + config_.limits.hello_ns);
  if (phase_ == phase::away) return next;
  next = std::min(next, heard_ns_ + config_.limits.dead_ns);
  if (!suspected_) next = std::min(next, heard_ns_ + config_.limits.suspect_ns);
  if (phase_ == phase::up && !pulse_is_due_)
    next = std::min(next, pulsed_ns_ + config_.limits.heartbeat_ns);
  return next;
}

}  // namespace ordermoe::net
