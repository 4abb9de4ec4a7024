#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "net/session/pulse.hpp"
#include "net/session/session.hpp"

// Of a session: what it writes.
namespace ordermoe::net {

namespace {

/// Of a burst: what a known link carries in this time, but enough to tell anything and no more than it takes.
constexpr double burst_s = 0.05;
constexpr double least_filler_bytes = 160 * 1024, first_filler_bytes = 256 * 1024,
                 most_filler_bytes = 512 * 1024;
/// What of a frame in parts was written before the one at this place, as far as the peer has not confirmed it.
template <class Frames>
std::uint64_t bytes_before(const Frames& frames, std::size_t at) {
  std::uint64_t bytes = 0;
  for (; at > 0 && frames[at - 1].header.word == session_word::part; --at)
    bytes += session::frame_bytes(frames[at - 1].header);
  return bytes;
}

/// Of so many bytes of padding, what stands behind the payload.
void put_padding(std::size_t n, std::string& into) {
  const auto mark = static_cast<std::uint32_t>(n);
  static_assert(sizeof(mark) == padding_mark_bytes);
  into.append(n - padding_mark_bytes, '\0');
  into.append(reinterpret_cast<const char*>(&mark), padding_mark_bytes);
}

}  // namespace

bool session::burst_is_due(std::int64_t now_ns) const {
  if (phase_ != phase::up || filler_left_ > 0) return false;
  const auto after =
      sent_since_burst_ ? config_.limits.burst_busy_ns : config_.limits.burst_idle_ns;
  return after > 0 && (burst_ns_ < 0 || now_ns - burst_ns_ >= after);
}

void session::begin_burst(std::int64_t now_ns) {
  const auto bytes = bytes_per_s_ > 0
                         ? std::clamp(bytes_per_s_ * burst_s, least_filler_bytes, most_filler_bytes)
                         : first_filler_bytes;
  filler_left_ = static_cast<std::uint32_t>(bytes / (filler_bytes + header_bytes));
  burst_ns_ = now_ns;
  sent_since_burst_ = false;
}

void session::write_burst(std::string& into, std::size_t limit, std::int64_t now_ns) {
  while (filler_left_ > 0 && into.size() < limit) {
    frame_header header;
    header.version = wire_version;
    header.word = session_word::filler;
    header.of = lane::bulk;
    header.length = filler_bytes;
    header.sequence = --filler_left_;
    put(header, into);
    into.append(filler_bytes, '\0');
    pace_.wrote(header_bytes + filler_bytes, now_ns);
  }
}

// -------------------------------------------------------------------------------------------- output

std::size_t session::largest_part() const {
  return std::min(config_.limits.parts.part_bytes, config_.limits.largest_frame[index(lane::bulk)]);
}

/// Whether short frames would wait for it for long on the stream of its lane, and it may go beside them.
bool session::would_hold_up(lane of, std::size_t bytes) const {
  const auto& rule = config_.limits.parts;
  if ((of != lane::token && of != lane::kv) || !rule.applies(bytes, bytes_per_s_)) return false;
  const auto n_parts = bytes / largest_part() + 1;
  return peer_.protocol_max >= 2 && is_open(stream::bulk) &&
         bytes + n_parts * header_bytes <= config_.limits.credit[index(lane::bulk)] / 2;
}

bool session::send(lane of, std::uint8_t kind, std::uint64_t request, std::uint32_t attempt,
                   std::uint32_t epoch, std::string payload, std::uint64_t stamp,
                   std::size_t padding) {
  if (padding < padding_mark_bytes) padding = 0;
  const auto size = payload.size() + padding;
  if (phase_ == phase::away || size > config_.limits.largest_frame[index(of)]) return false;
  frame_header header;
  header.length = static_cast<std::uint32_t>(size);
  header.version = wire_version;
  header.kind = kind;
  header.of = of;
  header.word = padding > 0 ? session_word::padded : session_word::none;
  header.request = request;
  header.attempt = attempt;
  header.epoch = epoch;
  header.stamp = stamp;
  if (would_hold_up(of, size)) {
    if (padding > 0) put_padding(padding, payload);
    append_parts(header, payload);
  } else {
    append(header, std::move(payload));
  }
  return true;
}

void session::append(const frame_header& header, std::string payload) {
  auto& out = out_[index(header.of)];
  out.end_bytes += frame_bytes(header);
  out.frames.push_back({header, std::move(payload), out.end_bytes});
  out.frames.back().header.sequence = out.next++;
  note_congestion(header.of);
}

/// Those behind them, of which none may have been written, are numbered anew.
void session::insert(out_lane& out, std::size_t place, std::vector<out_frame> some) {
  auto end = place < out.frames.size()
                 ? out.frames[place].end - frame_bytes(out.frames[place].header)
                 : out.end_bytes;
  out.frames.insert(out.frames.begin() + static_cast<std::ptrdiff_t>(place),
                    std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  for (; place < out.frames.size(); ++place) {
    auto& each = out.frames[place];
    each.header.sequence = out.first + place;
    each.end = end += frame_bytes(each.header);
  }
  out.next = out.first + out.frames.size();
  out.end_bytes = end;
}

/// payload: with its padding, so that a part is written as it is.
void session::append_parts(frame_header header, std::string_view payload) {
  const auto most = largest_part();
  const auto last =
      is_padded(header.word) ? session_word::last_padded_part : session_word::last_part;
  std::vector<out_frame> parts;
  header.of = lane::bulk;
  for (; !payload.empty(); payload.remove_prefix(header.length)) {
    header.length = static_cast<std::uint32_t>(std::min(payload.size(), most));
    header.word = header.length < payload.size() ? session_word::part : last;
    parts.push_back({header, std::string(payload.substr(0, header.length)), 0});
    out_[index(lane::bulk)].part_bytes += frame_bytes(header);
  }
  insert(out_[index(lane::bulk)], next_part_place(), std::move(parts));
  note_congestion(lane::bulk);
}

/// Before all bulk that was never written.
std::size_t session::next_part_place() const {
  const auto& out = out_[index(lane::bulk)];
  const auto begin = out.frames.begin() +
                     static_cast<std::ptrdiff_t>(std::max(out.furthest, out.first) - out.first);
  const auto found = std::find_if(begin, out.frames.end(), [](const out_frame& each) {
    return !is_in_parts(each.header.word);
  });
  return static_cast<std::size_t>(found - out.frames.begin());
}

bool session::may_write(const out_lane& from, lane of) const {
  if (from.unsent == from.next) return false;
  const auto& frame = from.frames[from.unsent - from.first];
  return frame.end - from.used_bytes <= config_.limits.credit[index(of)] ||
         frame.end - frame_bytes(frame.header) <= from.used_bytes;
}

/// When the first frame of lane bulk may be written as far as its pace goes. A frame in parts begins with a burst, of as many bytes as
/// tell how fast the link is.
std::int64_t session::bulk_due_ns() const {
  const auto& out = out_[index(lane::bulk)];
  const auto at = out.unsent - out.first;
  if (!is_in_parts(out.frames[at].header.word)) return pace_.next_ns();
  const auto before = bytes_before(out.frames, at);
  return before > 0 && before < arrival_rate::least_burst_bytes
             ? std::numeric_limits<std::int64_t>::min()
             : next_part_ns_;
}

bool session::may_write(lane of, std::int64_t now_ns) const {
  return may_write(out_[index(of)], of) && (of != lane::bulk || now_ns >= bulk_due_ns());
}

bool session::has_output(connection_id id, std::int64_t now_ns) const {
  const auto* to = find(id);
  if (to == nullptr) return false;
  if (!to->out.empty()) return true;
  if (to->state != connection_phase::open) return false;
  if (to->which == stream::fast ? pulse_is_due_ : filler_left_ > 0) return true;
  for (std::size_t i = 0; i < n_lanes; ++i)
    if (stream_of(static_cast<lane>(i)) == to->which && may_write(static_cast<lane>(i), now_ns))
      return true;
  return false;
}

std::int64_t session::next_bulk_ns() const {
  return is_open(stream::bulk) && may_write(out_[index(lane::bulk)], lane::bulk)
             ? bulk_due_ns()
             : std::numeric_limits<std::int64_t>::max();
}

std::size_t session::write(connection_id id, std::string& into, std::size_t most,
                           std::int64_t now_ns) {
  auto* to = find(id);
  if (to == nullptr) return 0;
  const auto before = into.size();
  into += std::exchange(to->out, {});
  if (to->state != connection_phase::open) return into.size() - before;
  if (to->which == stream::fast && pulse_is_due_) write_pulse(into, now_ns);
  for (std::size_t i = 0; i < n_lanes; ++i)
    if (stream_of(static_cast<lane>(i)) == to->which)
      write_lane(static_cast<lane>(i), into, before + most, now_ns);
  if (to->which == stream::bulk)
    write_burst(into, before + most, now_ns);
  else if (into.size() > before)
    pace_.others(into.size() - before, now_ns);
  return into.size() - before;
}

void session::write_pulse(std::string& into, std::int64_t now_ns) {
  pulse said;
  said.time_ns = now_ns;
  said.echo = echo_;
  said.held_ns = echo_ < 0 ? 0 : now_ns - echo_since_ns_;
  for (std::size_t i = 0; i < n_lanes; ++i) {
    said.expected[i] = in_[i].expected;
    said.used_bytes[i] = in_[i].used_bytes;
    in_[i].told_bytes = in_[i].used_bytes;
  }
  if (mib_ns_.value() > 0)
    said.bytes_per_s = static_cast<std::uint64_t>(mib * 1e9 / static_cast<double>(mib_ns_.value()));
  frame_header header;
  header.version = wire_version;
  header.word = session_word::pulse;
  header.length = pulse_bytes;
  put(header, into);
  into.append(reinterpret_cast<const char*>(&said), pulse_bytes);
  pulsed_ns_ = now_ns;
  pulse_is_due_ = false;
}

void session::write_lane(lane of, std::string& into, std::size_t limit, std::int64_t now_ns) {
  auto& out = out_[index(of)];
  while (into.size() < limit && may_write(of, now_ns)) {
    const auto& frame = out.frames[out.unsent - out.first];
    put(frame.header, into);
    into += frame.payload;
    if (frame.payload.size() < frame.header.length)
      put_padding(frame.header.length - frame.payload.size(), into);
    if (is_in_parts(frame.header.word))
      wrote_part(frame_bytes(frame.header), now_ns);
    else if (of == lane::bulk)
      pace_.wrote(frame_bytes(frame.header), now_ns);
    if (++out.unsent <= out.furthest) continue;
    out.furthest = out.unsent;
    total_sent_[index(of)] += frame_bytes(frame.header);
    if (is_in_parts(frame.header.word)) continue;
    sent_since_burst_ = true;
    if (frame_bytes(frame.header) < arrival_rate::least_burst_bytes) continue;
    burst_ns_ = now_ns;
    sent_since_burst_ = false;
  }
}

/// The next one may go when the link has carried this, but for a burst at its share of the rate. Who comes late makes up for a
/// little.
void session::wrote_part(std::uint64_t bytes, std::int64_t now_ns) {
  constexpr std::int64_t most_late_ns = 1'000'000;
  const auto& out = out_[index(lane::bulk)];
  const auto before = bytes_before(out.frames, out.unsent - out.first);
  auto rule = config_.limits.parts;
  if (before < arrival_rate::least_burst_bytes) rule.share = 1;
  next_part_ns_ =
      std::max(next_part_ns_, now_ns - most_late_ns) + rule.pace_ns(bytes, bytes_per_s_);
  pace_.others(bytes, now_ns);
  if (before > 0) return;
  burst_ns_ = now_ns;
  sent_since_burst_ = false;
}

void session::confirm(lane of, std::uint64_t received) {
  auto& out = out_[index(of)];
  while (out.first < received) {
    if (const auto& had = out.frames.front().header; is_in_parts(had.word))
      out.part_bytes -= frame_bytes(had);
    out.frames.pop_front();
    ++out.first;
  }
  out.unsent = std::max(out.unsent, out.first);
}

/// Beyond its credit is what neither the peer's user has used up nor fits before it. Bulk is its user's to hold back: of that lane
/// frames in parts count alone, as long as the peer does not have them.
void session::note_congestion(lane of) {
  auto& out = out_[index(of)];
  const auto beyond = of == lane::bulk ? out.part_bytes : out.end_bytes - out.used_bytes;
  const auto credit = config_.limits.credit[index(of)];
  const auto others = [&] {
    return std::ranges::any_of(
        out_, [&](const out_lane& each) { return &each != &out && each.congested; });
  };
  frame_header header;
  header.of = of;
  if (!out.congested && beyond > credit) {
    out.congested = true;
    if (!others()) tell(what::congested, {}, header);
  } else if (out.congested && beyond <= credit / 2) {
    out.congested = false;
    if (!others()) tell(what::relieved, {}, header);
  }
}

bool session::used(lane of, std::uint64_t bytes) {
  auto& in = in_[index(of)];
  // Of a session that is over: nobody waits for it.
  in.used_bytes = std::min(in.received_bytes, in.used_bytes + bytes);
  const bool is_much = 4 * (in.used_bytes - in.told_bytes) >= config_.limits.credit[index(of)];
  pulse_is_due_ = pulse_is_due_ || is_much;
  return is_much;
}

std::uint64_t session::written_bytes(const out_lane& out) {
  if (out.unsent == out.next) return out.end_bytes;
  const auto& frame = out.frames[out.unsent - out.first];
  return frame.end - frame_bytes(frame.header);
}

std::uint64_t session::outstanding_bytes(lane of) const {
  const auto& out = out_[index(of)];
  const auto written = written_bytes(out);
  return written > out.used_bytes ? written - out.used_bytes : 0;
}

std::uint64_t session::waiting_bytes(lane of) const {
  const auto& out = out_[index(of)];
  return out.end_bytes - written_bytes(out);
}

}  // namespace ordermoe::net
