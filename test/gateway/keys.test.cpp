#include "gateway/keys.hpp"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>

namespace ordermoe::gateway {

namespace {

namespace fs = std::filesystem;

/// A file that only its owner reads.
struct key_file {
  explicit key_file(const std::string& text, fs::perms mode = fs::perms::owner_read) {
    path = fs::temp_directory_path() / ("ordermoe-keys-" + std::to_string(::getpid()));
    fs::remove(path);
    std::ofstream(path) << text;
    fs::permissions(path, mode);
  }
  ~key_file() { fs::remove(path); }
  fs::path path;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(keys)

BOOST_AUTO_TEST_CASE(only_a_key_is_let_in) {
  const api_keys some({"0123456789abcdef", "another-key-of-mine"});
  BOOST_TEST(some.allow("Bearer 0123456789abcdef"));
  BOOST_TEST(some.allow("bearer another-key-of-mine"));
  for (const char* wrong :
       {"", "Bearer", "Bearer ", "Bearer 0123456789abcde", "0123456789abcdef",
        "Basic 0123456789abcdef", "Bearer 0123456789abcdef ", "Bearer  0123456789abcdef"})
    BOOST_TEST(!some.allow(wrong), wrong);
}

BOOST_AUTO_TEST_CASE(without_keys_everybody_is_let_in) {
  BOOST_TEST(api_keys().allow(""));
}

BOOST_AUTO_TEST_CASE(a_file_has_a_key_a_line) {
  const key_file file("# of the laptop\n0123456789abcdef\n\n  \nanother-key-of-mine\r\n");
  const auto read = api_keys::read(file.path);
  BOOST_TEST_REQUIRE(read.has_value());
  BOOST_TEST(read->size() == 2u);
  BOOST_TEST(read->allow("Bearer another-key-of-mine"));
}

BOOST_AUTO_TEST_CASE(files_that_protect_nothing_are_refused) {
  const auto refused = [](const std::string& text, fs::perms mode = fs::perms::owner_read) {
    const key_file file(text, mode);
    const auto read = api_keys::read(file.path);
    BOOST_TEST_REQUIRE(!read.has_value());
    return read.error().message;
  };
  BOOST_TEST(refused("short\n").find(":1: a key of 5 characters") != std::string::npos);
  BOOST_TEST(refused("# none\n").find("no key is in it") != std::string::npos);
  BOOST_TEST(refused("0123456789abcdef\n", fs::perms::owner_read | fs::perms::others_read)
                 .find("chmod 600") != std::string::npos);
  BOOST_TEST((api_keys::read("/nowhere/keys").error().code == errc::not_found));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::gateway
