#include "net/relay/shaper.hpp"

#include <algorithm>

namespace ordermoe::net {

std::size_t shaper::room() const {
  const auto most = link_.buffer_bytes();
  const auto held = held_bytes() + pieces_.size() * sizeof(piece);
  return held < most ? most - held : 0;
}

void shaper::take(std::string_view bytes, std::int64_t now_ns) {
  ORDERMOE_CHECK(!ended_ns_, "a shaper is given bytes behind the end");
  if (bytes.empty()) return;
  if (pieces_.empty() || pieces_.back().came_ns != now_ns) pieces_.push_back({now_ns, 0});
  pieces_.back().n_bytes += bytes.size();
  bytes_ += bytes;
  link_.counted.bytes_in += bytes.size();
}

void shaper::end(std::int64_t now_ns) {
  if (!ended_ns_) ended_ns_ = now_ns;
}

std::size_t shaper::turn_bytes() const {
  const auto turn = std::max<std::uint64_t>(1, link_.bucket().burst_bytes() / 2);
  return static_cast<std::size_t>(std::min<std::uint64_t>(turn, pieces_.front().n_bytes));
}

std::size_t shaper::due_bytes(std::size_t most, std::int64_t now_ns) const {
  std::size_t n = 0;
  for (const auto& each : pieces_) {
    if (n >= most || due_ns(each.came_ns) > now_ns) break;
    n += each.n_bytes;
  }
  return std::min(n, most);
}

std::size_t shaper::give(std::string& into, std::size_t most, std::int64_t now_ns) {
  if (link_.conditions().stalled || pieces_.empty() || most == 0) return 0;
  auto& bucket = link_.bucket();
  const auto available = bucket.available(now_ns);
  if (available < std::min(turn_bytes(), most)) return 0;
  const auto at_once = std::min<std::uint64_t>({most, available, bucket.burst_bytes() / 2});
  const auto n = due_bytes(std::max<std::size_t>(1, at_once), now_ns);
  if (n == 0) return 0;
  bucket.take(n, now_ns);
  const auto begin = into.size();
  into.append(bytes_, gone_, n);
  link_.flip(into, begin, stream_, n_given_);
  n_given_ += n;
  drop(n);
  return n;
}

void shaper::drop(std::size_t n_bytes) {
  gone_ += n_bytes;
  while (n_bytes > 0) {
    auto& first = pieces_.front();
    const auto n = std::min(first.n_bytes, n_bytes);
    first.n_bytes -= n;
    n_bytes -= n;
    if (first.n_bytes == 0) pieces_.pop_front();
  }
  // What went out is forgotten when it is the greater part, so that each byte is moved once on average.
  if (2 * gone_ < bytes_.size()) return;
  bytes_.erase(0, gone_);
  gone_ = 0;
}

bool shaper::over(std::int64_t now_ns) const {
  return ended_ns_ && pieces_.empty() && !link_.conditions().stalled &&
         due_ns(*ended_ns_) <= now_ns;
}

std::optional<std::int64_t> shaper::next_ns(std::int64_t now_ns) const {
  if (link_.conditions().stalled || (pieces_.empty() && !ended_ns_)) return {};
  if (pieces_.empty()) return std::max(now_ns, due_ns(*ended_ns_));
  const auto due = std::max(now_ns, due_ns(pieces_.front().came_ns));
  return link_.bucket().when(turn_bytes(), due);
}

}  // namespace ordermoe::net
