#include "setup/forward_digest.hpp"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <set>

namespace ordermoe {

namespace {

namespace fs = std::filesystem;
using model::family;

struct scratch {
  fs::path path = fs::temp_directory_path() / ("ordermoe-digest-" + std::to_string(::getpid()));
  ~scratch() { fs::remove_all(path); }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(forward_digest)

BOOST_AUTO_TEST_CASE(it_is_the_same_each_time_and_another_for_each_family) {
  const scratch place;
  std::set<std::string> all;
  for (const auto kind : {family::mixtral, family::qwen2_moe, family::qwen3_moe, family::olmoe}) {
    const auto first = setup::forward_digest(kind, place.path);
    BOOST_REQUIRE_MESSAGE(first.has_value(), (first ? "" : first.error().message));
    BOOST_TEST(first->size() == 64u);
    BOOST_TEST(*setup::forward_digest(kind, place.path) == *first);
    all.insert(*first);
  }
  BOOST_TEST(all.size() == 4u);
  BOOST_TEST(fs::is_empty(place.path));
}

BOOST_AUTO_TEST_CASE(it_has_a_value_for_an_encoder_decoder) {
  const scratch place;
  const auto digest = setup::forward_digest(family::switch_transformers, place.path);
  BOOST_TEST(digest.has_value(), (digest ? "" : digest.error().message));
}

BOOST_AUTO_TEST_CASE(without_a_place_to_write_it_says_so) {
  const scratch place;
  fs::create_directories(place.path);
  const auto taken = place.path / "a file";
  std::ofstream(taken) << "x";
  const auto digest = setup::forward_digest(family::mixtral, taken);
  BOOST_REQUIRE(!digest.has_value());
  BOOST_TEST((digest.error().code == errc::io));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
