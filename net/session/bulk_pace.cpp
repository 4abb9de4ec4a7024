#include "net/session/bulk_pace.hpp"

#include <algorithm>
#include <utility>

namespace ordermoe::net {

namespace {

constexpr double s_per_ns = 1e-9;
/// Over which what others send is averaged.
constexpr double others_s = 0.01;
/// One late heartbeat may be a busy processor's.
constexpr int late_in_a_row = 2;
constexpr double few_frames_bytes = 24 * 1024;
constexpr double slower = 0.8, faster = 1.5;
/// Of what the link allows, for each heartbeat in time.
constexpr double faster_by = 0.02;
/// Where nothing is measured: nobody has a faster link.
constexpr double most_unmeasured = 1e10;

}  // namespace

double bulk_pace::most() const {
  return measured_ > 0 ? std::max(least_bytes_per_s, share * measured_) : most_unmeasured;
}

void bulk_pace::measured(double bytes_per_s) {
  if (!(bytes_per_s > 0) || bytes_per_s == measured_) return;
  // Whoever was held back by late heartbeats goes on from there.
  const bool at_most = measured_ == 0 || pace_ >= most();
  measured_ = bytes_per_s;
  pace_ = at_most ? most() : std::min(pace_, most());
  if (there_ < 0) next_ns_ = filled_ns_ + wait_ns();
}

void bulk_pace::heartbeat(std::int64_t waited_ns, std::int64_t least_ns) {
  const bool waited = std::exchange(waited_for_, false);
  const bool wrote = std::exchange(wrote_, false);
  const auto frames_ns = static_cast<std::int64_t>(few_frames_bytes / (pace_ * s_per_ns));
  if (waited_ns > late_ns + least_ns / 4 + frames_ns) {
    if (++late_ < late_in_a_row || !wrote) return;
    pace_ = std::max(least_bytes_per_s, pace_ * slower);
    return;
  }
  late_ = 0;
  if (measured_ > 0)
    pace_ = std::min(most(), pace_ + faster_by * most());
  else if (waited)
    pace_ = std::min(most(), pace_ * faster);
}

double bulk_pace::present() const {
  if (measured_ == 0) return pace_;
  const auto left = std::max(least_share * measured_, share_of_all * measured_ - others_);
  return std::min(pace_, std::max(least_bytes_per_s, left));
}

/// From filled_ns_ on, for what is missing.
std::int64_t bulk_pace::wait_ns() const {
  return std::max(least_wait_ns, static_cast<std::int64_t>(-there_ / (present() * s_per_ns)) + 1);
}

void bulk_pace::fill(std::int64_t now_ns) {
  if (filled_ns_ == std::numeric_limits<std::int64_t>::min()) filled_ns_ = now_ns;
  const auto passed_s = static_cast<double>(now_ns - filled_ns_) * s_per_ns;
  if (passed_s <= 0) return;
  others_ *= others_s / (others_s + passed_s);
  const auto rate = present();
  const auto most_there = rate * static_cast<double>(most_late_ns) * s_per_ns;
  there_ = std::min(most_there, there_ + rate * passed_s);
  filled_ns_ = now_ns;
}

void bulk_pace::others(std::size_t bytes, std::int64_t now_ns) {
  fill(now_ns);
  others_ += static_cast<double>(bytes) / others_s;
}

void bulk_pace::wrote(std::size_t bytes, std::int64_t now_ns) {
  fill(now_ns);
  there_ -= static_cast<double>(bytes);
  wrote_ = true;
  if (there_ > 0) return;
  waited_for_ = true;
  next_ns_ = filled_ns_ + wait_ns();
}

}  // namespace ordermoe::net
