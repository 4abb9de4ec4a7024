#include "actors/caf_channel/kept_files.hpp"

#include <boost/test/unit_test.hpp>
#include <filesystem>

#include "config/files.hpp"
#include "test/net/channel/credentials.hpp"

namespace ordermoe {

BOOST_AUTO_TEST_SUITE(kept_files)

BOOST_AUTO_TEST_CASE(what_was_read_stays_when_its_files_are_gone) {
  const test::credentials issued("kept");
  const auto identity = issued.identity("berlin");
  const auto key = *read_file(issued.file("berlin.key"), 1 << 20);
  const auto certificate = *read_file(issued.file("berlin.crt"), 1 << 20);
  auto made = actors::kept_files::of(identity->files());
  BOOST_REQUIRE(made.has_value());
  const auto kept = std::move(*made);
  for (const char* each : {"berlin.key", "berlin.crt", "ca.crt"})
    std::filesystem::remove(issued.file(each));
  // As often as connections come.
  for (int i = 0; i < 2; ++i) {
    BOOST_TEST(*read_file(kept.key(), 1 << 20) == key);
    BOOST_TEST(*read_file(kept.certificate(), 1 << 20) == certificate);
    BOOST_TEST(read_file(kept.authority(), 1 << 20).has_value());
  }
}

BOOST_AUTO_TEST_CASE(what_does_not_belong_together_is_refused_before_anything_listens) {
  const test::credentials issued("kept"), other("kept-other");
  auto files = issued.identity("berlin")->files();
  files.authority = other.file("ca.crt");
  const auto foreign = actors::kept_files::of(files);
  BOOST_REQUIRE(!foreign.has_value());
  files = issued.identity("berlin")->files();
  std::filesystem::permissions(files.key, std::filesystem::perms::others_read,
                               std::filesystem::perm_options::add);
  const auto open = actors::kept_files::of(files);
  BOOST_REQUIRE(!open.has_value());
  BOOST_TEST(open.error().message.find("berlin.key") != std::string::npos, open.error().message);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
