#include "net/session/header.hpp"

#include <bit>
#include <cstring>

namespace ordermoe::net {

static_assert(std::endian::native == std::endian::little,
              "headers are little-endian and copied as they are");

const char* to_string(lane of) {
  constexpr const char* names[] = {"control", "token", "kv", "load", "bulk"};
  const auto index = static_cast<std::size_t>(of);
  return index < n_lanes ? names[index] : "unknown";
}

const char* to_string(stream which) {
  return which == stream::fast ? "fast" : "bulk";
}

namespace {

/// Each field in the order in which it stands.
template <class Header, class Each>
void for_each_field(Header& header, Each&& each) {
  each(header.length);
  each(header.version);
  each(header.kind);
  each(header.of);
  each(header.word);
  each(header.sequence);
  each(header.request);
  each(header.attempt);
  each(header.epoch);
  each(header.stamp);
}

}  // namespace

void put(const frame_header& header, std::string& into) {
  for_each_field(header, [&](const auto& field) {
    into.append(reinterpret_cast<const char*>(&field), sizeof field);
  });
}

frame_header get_header(std::string_view bytes) {
  frame_header header;
  for_each_field(header, [&, at = std::size_t{0}](auto& field) mutable {
    std::memcpy(&field, bytes.data() + at, sizeof field);
    at += sizeof field;
  });
  return header;
}

}  // namespace ordermoe::net
