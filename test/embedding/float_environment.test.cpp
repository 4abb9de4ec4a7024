#include "embedding/float_environment.hpp"

#include <boost/test/unit_test.hpp>
#include <cfenv>
#include <thread>

#include "test/embedding/fixture.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/// What a host has set for its own numbers is not what servers compute with.
namespace ordermoe {

namespace {

#if defined(__x86_64__)
constexpr unsigned denormals_are_zero = 0x8040;
bool flushes() {
  return (_mm_getcsr() & denormals_are_zero) != 0;
}
void flush() {
  _mm_setcsr(_mm_getcsr() | denormals_are_zero);
}
#else
bool flushes() {
  return true;
}
void flush() {}
#endif

struct rounding {
  int mode;
  bool flushes_denormals;
  bool operator==(const rounding&) const = default;
};
rounding rounding_now() {
  return {std::fegetround(), flushes()};
}
std::ostream& operator<<(std::ostream& out, const rounding& each) {
  return out << each.mode << (each.flushes_denormals ? " flushing" : "");
}

/// A host that was linked with -ffast-math and rounds up.
class odd_host {
 public:
  odd_host() {
    std::fegetenv(&before_);
    std::fesetround(FE_UPWARD);
    flush();
  }
  ~odd_host() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
};

const rounding odd{FE_UPWARD, true};
#if defined(__x86_64__)
const rounding usual{FE_TONEAREST, false};
#else
const rounding usual{FE_TONEAREST, true};
#endif

}  // namespace

BOOST_AUTO_TEST_SUITE(float_environment)

BOOST_AUTO_TEST_CASE(within_it_this_thread_and_those_that_it_starts_compute_as_by_default) {
  const odd_host host;
  {
    const embedding::default_float_environment here;
    BOOST_TEST(rounding_now() == usual);
    rounding of_another{};
    std::thread([&] { of_another = rounding_now(); }).join();
    BOOST_TEST(of_another == usual);
  }
  BOOST_TEST(rounding_now() == odd);
}

BOOST_AUTO_TEST_CASE(what_a_host_has_set_reaches_no_thread_that_computes) {
  const std::string question = "Q: 75 * 5\nA:";
  const auto expected = test::reference_ids(question, 16);
  const test::scratch_folder scratch;
  const odd_host host;
  auto node = test::started(test::options_in(scratch));
  BOOST_TEST(rounding_now() == odd);
  std::mutex mutex;
  std::vector<rounding> where_told;
  test::heard_answer heard;
  const auto sink = heard.sink();
  BOOST_REQUIRE(
      node.submit({.text = question, .max_tokens = 16}, {[&](const api::token& told) {
                                                           {
                                                             const std::lock_guard lock(mutex);
                                                             where_told.push_back(rounding_now());
                                                           }
                                                           sink.on_token(told);
                                                         },
                                                         sink.on_end}));
  BOOST_TEST(rounding_now() == odd);
  BOOST_TEST(heard.wait().ids == expected, boost::test_tools::per_element());
  BOOST_TEST(bool(node.stop()));
  // Threads that compute tell, or actors' threads, which were started with them.
  BOOST_TEST(where_told.size() == 16u);
  for (const auto& each : where_told) BOOST_TEST(each == usual);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
