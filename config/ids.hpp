#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace ordermoe {

/// A number that names one kind of thing and does not turn into another kind by accident.
/// Zero-based.
template <class Tag>
struct strong_id {
  std::uint32_t value = 0;

  constexpr strong_id() = default;
  constexpr explicit strong_id(std::size_t index) : value(static_cast<std::uint32_t>(index)) {}
  constexpr std::size_t index() const { return value; }
  friend constexpr auto operator<=>(const strong_id&, const strong_id&) = default;
};

using server_id = strong_id<struct server_tag>;
using layer_id = strong_id<struct layer_tag>;
using expert_id = strong_id<struct expert_tag>;
using request_id = strong_id<struct request_tag>;

}  // namespace ordermoe

template <class Tag>
struct std::hash<ordermoe::strong_id<Tag>> {
  std::size_t operator()(ordermoe::strong_id<Tag> id) const noexcept { return id.value; }
};
