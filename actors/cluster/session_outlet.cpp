#include "actors/cluster/session_outlet.hpp"

#include <algorithm>
#include <utility>

#include "actors/session_frames.hpp"

namespace ordermoe::actors {

session_outlet::session_outlet(transport_place through, net::peer_id to,
                               const service_options& options)
    : through_(std::move(through)),
      to_(to),
      trace_(options.sink),
      costs_(options.costs),
      stretch_(options.rehearsed ? options.rehearsed->stretch : 0) {}

bool session_outlet::send(wire::frame content) {
  auto* through = through_->load();
  const auto padding = padding_of(content);
  return through != nullptr && send_frame(std::move(content), [&](auto&&... fields) {
           return through->send(to_, std::forward<decltype(fields)>(fields)...,
                                trace_ ? trace_->stamp() : 0, padding);
         });
}

/// In a rehearsal, up to what is charged.
std::size_t session_outlet::padding_of(const wire::frame& content) const {
  const auto charged = stretch_ * charged_traffic(content, costs_).charged();
  const auto serialised = static_cast<std::int64_t>(content.bytes.size());
  return static_cast<std::size_t>(std::max<std::int64_t>(0, charged - serialised));
}

void session_turns::begin() {
  if (auto* through = through_->load()) through->begin_turn();
}
bool session_turns::holds() const {
  auto* through = through_->load();
  return through != nullptr && through->holds();
}
void session_turns::write(std::int64_t held_ns) {
  if (auto* through = through_->load()) through->flush(held_ns);
}

}  // namespace ordermoe::actors
