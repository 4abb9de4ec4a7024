#include "net/session/arrival_rate.hpp"

#include <algorithm>
#include <utility>

namespace ordermoe::net {

namespace {

/// A reader has shorter pauses of its own.
constexpr std::int64_t least_pause_ns = 5'000'000;

double rate(std::uint64_t bytes, std::int64_t ns) {
  return static_cast<double>(bytes) * 1e9 / static_cast<double>(std::max<std::int64_t>(ns, 1));
}

}  // namespace

std::optional<double> arrival_rate::arrived(std::uint64_t bytes, std::int64_t now_ns, bool drained,
                                            std::int64_t round_trip_ns) {
  total_ += bytes;
  if (!drained) return std::nullopt;
  const moment now{std::min(total_, until_), now_ns};
  const auto before = std::exchange(last_, {total_, now_ns});
  if (!in_burst_) {
    // Its first bytes may have come long after the moment before.
    if (total_ >= until_) return std::nullopt;
    in_burst_ = true;
    best_ = 0;
    burst_ = last_;
    begin_segment(last_);
    return std::nullopt;
  }
  if (now_ns - before.time_ns >= std::max(least_pause_ns, round_trip_ns / 3)) {
    end_segment(before);
    begin_segment(now);
  }
  while (n_anchors_ < anchors_.size() && now.bytes - segment_.bytes >= skipped_bytes << n_anchors_)
    anchors_[n_anchors_++] = now;
  if (total_ < until_) return std::nullopt;
  return end_burst(now);
}

void arrival_rate::begin_segment(const moment& at) {
  segment_ = at;
  n_anchors_ = 0;
}

/// The least that any of them tells: a shaper shows in the first ones, a system
/// that handed on late in one.
void arrival_rate::end_segment(const moment& at) {
  const auto half = (at.bytes - segment_.bytes) * 3 / 8;
  double found = 0;
  for (std::size_t i = 0; i < n_anchors_; ++i) {
    const auto& from = anchors_[i];
    if (at.bytes < from.bytes + (i > 0 ? std::max<std::uint64_t>(least_bytes, half) : least_bytes))
      break;
    const auto one = rate(at.bytes - from.bytes, at.time_ns - from.time_ns);
    found = i > 0 ? std::min(found, one) : one;
  }
  best_ = std::max(best_, found);
}

std::optional<double> arrival_rate::end_burst(const moment& at) {
  in_burst_ = false;
  end_segment(at);
  if (best_ > 0) return best_;
  // A link that is slow has pauses throughout.
  if (at.bytes - burst_.bytes < least_bytes) return std::nullopt;
  return rate(at.bytes - burst_.bytes, at.time_ns - burst_.time_ns);
}

void recent_least::add(std::int64_t value, std::int64_t now_ns) {
  const auto old = [&](const sample& each) { return now_ns - each.time_ns > window_ns_; };
  const auto end =
      std::remove_if(samples_.begin(), samples_.begin() + static_cast<std::ptrdiff_t>(n_), old);
  n_ = static_cast<std::size_t>(end - samples_.begin());
  if (n_ == samples_.size()) {
    std::rotate(samples_.begin(), samples_.begin() + 1, samples_.end());
    --n_;
  }
  samples_[n_++] = {value, now_ns};
  value_ = std::min_element(samples_.begin(), samples_.begin() + static_cast<std::ptrdiff_t>(n_),
                            [](const sample& a, const sample& b) { return a.value < b.value; })
               ->value;
}

}  // namespace ordermoe::net
