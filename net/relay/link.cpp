#include "net/relay/link.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "config/random.hpp"

namespace ordermoe::net {

const char* to_string(direction of) {
  return of == direction::to ? "to" : "back";
}

result<void> check(const link_conditions& wanted) {
  if (wanted.delay_ns < 0 || wanted.delay_ns > most_delay_ns)
    return error{errc::out_of_range, fmt::format("delay: found {} ns, expected 0 to {}",
                                                 wanted.delay_ns, most_delay_ns)};
  if (wanted.rate_bytes_per_s > most_rate_bytes_per_s)
    return error{errc::out_of_range,
                 fmt::format("rate: found {} bytes/s, expected at most {}, or 0 for no bound",
                             wanted.rate_bytes_per_s, most_rate_bytes_per_s)};
  if (!(wanted.flip_chance >= 0 && wanted.flip_chance <= 1))
    return error{errc::out_of_range,
                 fmt::format("flip: found a chance of {}, expected 0 to 1", wanted.flip_chance)};
  return {};
}

void link::set(const link_conditions& wanted, std::int64_t now_ns) {
  const auto good = check(wanted);
  ORDERMOE_CHECK(good.has_value(), good.error().message);
  if (wanted.rate_bytes_per_s != bucket_.rate()) bucket_.set_rate(wanted.rate_bytes_per_s, now_ns);
  conditions_ = wanted;
}

std::uint64_t link::buffer_bytes() const {
  const auto on_its_way = static_cast<unsigned __int128>(conditions_.rate_bytes_per_s) *
                          static_cast<std::uint64_t>(conditions_.delay_ns) / 1'000'000'000;
  return std::max(least_buffer_bytes_, static_cast<std::uint64_t>(2 * on_its_way));
}

void link::flip(std::string& bytes, std::size_t begin, std::uint64_t stream,
                std::uint64_t position) {
  for (auto i = begin; i < bytes.size(); ++i, ++position) {
    if (conditions_.flip_chance == 0 && n_to_flip_ == 0) return;
    const auto of_stream = mix64(seed_ ^ mix64(stream));
    const bool by_chance = random_unit(of_stream, 0, position) < conditions_.flip_chance;
    if (!by_chance && n_to_flip_ == 0) continue;
    if (!by_chance) --n_to_flip_;
    const auto bit = random_bits(of_stream, 1, position) % 8;
    bytes[i] = static_cast<char>(static_cast<unsigned char>(bytes[i]) ^ (1u << bit));
    ++counted.flipped_bits;
  }
}

}  // namespace ordermoe::net
