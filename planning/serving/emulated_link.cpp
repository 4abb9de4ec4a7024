#include "planning/serving/emulated_link.hpp"

#include <algorithm>

namespace ordermoe::serving {

bool goes_in_parts(const link_spec& link, wire::frame_kind kind, std::int64_t bytes) {
  return kind != wire::frame_kind::load && kind != wire::frame_kind::links &&
         part_rule{}.applies(static_cast<std::uint64_t>(bytes), link.bandwidth_bytes_per_s);
}

transmission emulated_link::occupy(std::int64_t bytes, std::int64_t busy_ns, std::int64_t now_ns) {
  transmission sent;
  sent.start_ns = std::max(now_ns, free_ns_);
  if (uplinks_) sent.start_ns = uplinks_->take(from_, to_, bytes, sent.start_ns, now_ns);
  last_bytes_ = bytes;
  sent.end_ns = sent.start_ns + busy_ns;
  free_ns_ = sent.end_ns;
  return sent;
}

transmission emulated_link::send_part(std::int64_t bytes, std::int64_t now_ns) {
  return occupy(bytes, part_ns(spec_, bytes), now_ns);
}

transmission emulated_link::send(wire::frame_kind kind, std::int64_t bytes, std::int64_t now_ns) {
  auto sent = occupy(bytes, transfer_ns(spec_, bytes), now_ns);
  sent.arrival_ns = sent.end_ns + spec_.latency_ns;
  sent.deliveries = {sent.arrival_ns};
  if (bad_.on()) disturb(kind, sent);
  return sent;
}

void emulated_link::disturb(wire::frame_kind kind, transmission& sent) {
  if (!((bad_.kinds >> static_cast<unsigned>(kind)) & 1u)) return;
  sent.deliveries.clear();
  const auto late = [&] {
    if (bad_.most_delay_ns == 0 || draws_.unit() >= bad_.delayed_share) return sent.arrival_ns;
    return sent.arrival_ns + static_cast<std::int64_t>(
                                 draws_.below(static_cast<std::uint64_t>(bad_.most_delay_ns) + 1));
  };
  if (draws_.unit() >= bad_.dropped_share) sent.deliveries.push_back(late());
  while (draws_.unit() < bad_.repeated_share) sent.deliveries.push_back(late());
}

}  // namespace ordermoe::serving
