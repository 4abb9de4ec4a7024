#include "net/relay/token_bucket.hpp"

#include <algorithm>
#include <limits>

#include "config/error.hpp"

namespace ordermoe::net {

namespace {

constexpr std::int64_t parts_of_byte = 1'000'000'000;
constexpr std::uint64_t least_burst_bytes = 1500;
constexpr std::uint64_t bursts_per_s = 200;
static_assert(most_rate_bytes_per_s / bursts_per_s <
              std::numeric_limits<std::int64_t>::max() / parts_of_byte);

}  // namespace

std::uint64_t token_bucket::burst_bytes() const {
  if (rate_ == 0) return std::numeric_limits<std::uint64_t>::max();
  return std::max(least_burst_bytes, rate_ / bursts_per_s);
}

std::int64_t token_bucket::tokens(std::int64_t now_ns) const {
  const auto full = static_cast<std::int64_t>(burst_bytes()) * parts_of_byte;
  const auto grown = tokens_ + static_cast<__int128>(now_ns - since_ns_) * rate_;
  return grown < full ? static_cast<std::int64_t>(grown) : full;
}

void token_bucket::set_rate(std::uint64_t bytes_per_s, std::int64_t now_ns) {
  ORDERMOE_CHECK(bytes_per_s <= most_rate_bytes_per_s, "a rate beyond what is counted");
  const bool was_unbounded = rate_ == 0;
  const auto had = was_unbounded ? std::numeric_limits<std::int64_t>::max() : tokens(now_ns);
  rate_ = bytes_per_s;
  since_ns_ = now_ns;
  tokens_ = 0;
  if (rate_ != 0) tokens_ = std::min(had, static_cast<std::int64_t>(burst_bytes()) * parts_of_byte);
}

std::uint64_t token_bucket::available(std::int64_t now_ns) const {
  if (rate_ == 0) return std::numeric_limits<std::uint64_t>::max();
  return static_cast<std::uint64_t>(tokens(now_ns) / parts_of_byte);
}

void token_bucket::take(std::uint64_t bytes, std::int64_t now_ns) {
  if (rate_ == 0) return;
  ORDERMOE_CHECK(bytes <= available(now_ns), "more bytes are taken than may pass");
  tokens_ = tokens(now_ns) - static_cast<std::int64_t>(bytes) * parts_of_byte;
  since_ns_ = now_ns;
}

std::int64_t token_bucket::when(std::uint64_t bytes, std::int64_t now_ns) const {
  if (rate_ == 0) return now_ns;
  ORDERMOE_CHECK(bytes <= burst_bytes(), "more bytes than ever pass at once");
  const auto lacking = static_cast<std::int64_t>(bytes) * parts_of_byte - tokens(now_ns);
  const auto rate = static_cast<std::int64_t>(rate_);
  return lacking <= 0 ? now_ns : now_ns + (lacking + rate - 1) / rate;
}

}  // namespace ordermoe::net
