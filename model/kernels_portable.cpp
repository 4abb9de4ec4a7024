#include <bit>
#include <cmath>
#include <type_traits>

#include "model/kernel_bodies.hpp"
#include "model/kernel_sets.hpp"

namespace ordermoe::model {
namespace {

struct portable {
  struct vec {
    float lanes[16];
  };
  static constexpr int most_rows = 2;
  template <int Rows>
  static constexpr int wide_panels = 2;

  static vec zero() { return {}; }
  static vec set1(float x) {
    vec v;
    for (float& lane : v.lanes) lane = x;
    return v;
  }
  static vec load(const float* p) {
    vec v;
    for (int i = 0; i < 16; ++i) v.lanes[i] = p[i];
    return v;
  }
  static void store(float* p, const vec& v) {
    for (int i = 0; i < 16; ++i) p[i] = v.lanes[i];
  }
  static vec load_weights(const float* p) { return load(p); }
  static vec load_weights(const std::uint16_t* p) {
    vec v;
    for (int i = 0; i < 16; ++i)
      v.lanes[i] = std::bit_cast<float>(static_cast<std::uint32_t>(p[i]) << 16);
    return v;
  }
  static vec max(const vec& a, const vec& b) {
    vec v;
    for (int i = 0; i < 16; ++i) v.lanes[i] = a.lanes[i] > b.lanes[i] ? a.lanes[i] : b.lanes[i];
    return v;
  }
  static vec mul(const vec& a, const vec& b) {
    vec v;
    for (int i = 0; i < 16; ++i) v.lanes[i] = a.lanes[i] * b.lanes[i];
    return v;
  }
  static vec lane_sums(const vec (&rows)[16]) {
    vec v;
    for (int i = 0; i < 16; ++i) v.lanes[i] = bodies::lane_sum(rows[i].lanes);
    return v;
  }
  static vec fma(const vec& a, const vec& b, const vec& c) {
    vec v;
    for (int i = 0; i < 16; ++i) v.lanes[i] = std::fma(a.lanes[i], b.lanes[i], c.lanes[i]);
    return v;
  }
};

}  // namespace

const kernel_set& portable_kernels() {
  static constexpr kernel_set set = bodies::make_set<portable>("portable");
  return set;
}

}  // namespace ordermoe::model
