#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <cstring>
#include <new>

#include "net/wire/codec.hpp"

// Counts what this test program allocates while `counting` is on.
namespace {
thread_local bool counting = false;
thread_local std::size_t allocated = 0;

void* counted(std::size_t size) {
  if (counting) allocated += size;
  if (void* place = std::malloc(size == 0 ? 1 : size)) return place;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t size) {
  return counted(size);
}
void* operator new[](std::size_t size) {
  return counted(size);
}
void operator delete(void* place) noexcept {
  std::free(place);
}
void operator delete[](void* place) noexcept {
  std::free(place);
}
void operator delete(void* place, std::size_t) noexcept {
  std::free(place);
}
void operator delete[](void* place, std::size_t) noexcept {
  std::free(place);
}

namespace ordermoe {

namespace {

/// Bytes that decode(content) asks for, whether it refuses the frame or not.
template <class Decode>
std::size_t bytes_for(const wire::frame& content, Decode decode) {
  allocated = 0;
  counting = true;
  {
    const auto outcome = decode(content);
    counting = false;
  }
  return allocated;
}

/// A frame of zeros that says `count` wherever a number of elements may stand.
template <class Decode>
void check_every_place(wire::frame_kind kind, Decode decode) {
  constexpr std::size_t size = 1 << 16;
  // A refusal says why, in a message of its own.
  constexpr std::size_t most = 2 * size + 1024;
  for (std::size_t place = 0; place < 200; ++place)
    for (const std::uint32_t element : {1u, 2u, 4u, 8u, 12u, 16u, 24u, 48u}) {
      wire::frame content;
      content.kind = kind;
      content.bytes.assign(size, '\0');
      const auto count = static_cast<std::uint32_t>((size - place - 4) / element);
      std::memcpy(content.bytes.data() + place, &count, sizeof count);
      const auto asked = bytes_for(content, decode);
      BOOST_TEST(asked <= most, to_string(kind) << ": " << asked << " bytes for " << size
                                                << ", count at byte " << place);
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(allocation)

BOOST_AUTO_TEST_CASE(decoding_allocates_at_most_twice_the_frame) {
  using namespace wire;
  constexpr wire_shape shape{4, 6};
  check_every_place(frame_kind::token, [&](const frame& f) { return decode_token(f, shape); });
  check_every_place(frame_kind::call, [&](const frame& f) { return decode_call(f, shape); });
  check_every_place(frame_kind::output, [&](const frame& f) { return decode_output(f, shape); });
  check_every_place(frame_kind::kv, [&](const frame& f) { return decode_kv(f, shape); });
  check_every_place(frame_kind::progress, [](const frame& f) { return decode_progress(f); });
  check_every_place(frame_kind::reservation, [](const frame& f) { return decode_reservation(f); });
  check_every_place(frame_kind::load, [](const frame& f) { return decode_load(f); });
  check_every_place(frame_kind::links, [](const frame& f) { return decode_links(f); });
  check_every_place(frame_kind::failure, [](const frame& f) { return decode_failure(f); });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
