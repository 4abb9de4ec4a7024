#include "config/files.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <csignal>
#include <fstream>

using namespace ordermoe;
namespace fs = std::filesystem;

namespace {

/// A folder of this test's own, removed with everything in it.
struct folder {
  fs::path path;
  folder() {
    std::string pattern = (fs::temp_directory_path() / "ordermoe-files-XXXXXX").string();
    BOOST_REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~folder() { fs::remove_all(path); }
  std::size_t n_entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path), {}));
  }
};

constexpr rlim_t allowed_bytes = 64 << 10;

/// Runs `work` in a child that may not write more than 64 KiB to a file, as on a full disk; returns
/// waitpid's status. The system ends the child where `ends` is true, and refuses the write
/// otherwise.
template <class Work>
int in_a_confined_child(bool ends, Work work) {
  const auto child = ::fork();
  BOOST_REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit limit{allowed_bytes, allowed_bytes};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    std::signal(SIGXFSZ, ends ? SIG_DFL : SIG_IGN);
    ::_exit(work());
  }
  int status = 0;
  BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(files)

BOOST_AUTO_TEST_CASE(what_is_written_is_read) {
  const folder here;
  std::string bytes(200'000, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 >> 3);
  const auto path = here.path / "content.bin";
  BOOST_REQUIRE(write_file(path, bytes));
  BOOST_TEST((*read_file(path) == bytes));
  BOOST_REQUIRE(write_file(path, "shorter"));
  BOOST_TEST(*read_file(path) == "shorter");
  BOOST_TEST(here.n_entries() == 1u);
}

BOOST_AUTO_TEST_CASE(a_missing_file_a_folder_and_a_too_large_file_are_told_apart) {
  const folder here;
  const auto missing = read_file(here.path / "none");
  BOOST_REQUIRE(!missing);
  BOOST_TEST((missing.error().code == errc::not_found));
  const auto is_folder = read_file(here.path);
  BOOST_REQUIRE(!is_folder);
  BOOST_TEST(is_folder.error().message.find("folder") != std::string::npos);
  BOOST_REQUIRE(write_file(here.path / "ten", "0123456789"));
  BOOST_TEST(static_cast<bool>(read_file(here.path / "ten", 10)));
  const auto large = read_file(here.path / "ten", 9);
  BOOST_REQUIRE(!large);
  BOOST_TEST((large.error().code == errc::out_of_range));
}

BOOST_AUTO_TEST_CASE(a_place_that_cannot_be_written_is_refused_and_named) {
  const folder here;
  for (const auto& path :
       {here.path / "no" / "such" / "folder", fs::path("/proc/ordermoe.json"), here.path}) {
    const auto written = write_file(path, "bytes");
    BOOST_REQUIRE(!written);
    BOOST_TEST((written.error().code == errc::io));
    BOOST_TEST(written.error().message.starts_with(path.string() + ": "), written.error().message);
  }
}

BOOST_AUTO_TEST_CASE(a_device_is_written_to_and_not_replaced) {
  BOOST_TEST(static_cast<bool>(write_file("/dev/null", "bytes")));
  BOOST_TEST(fs::is_character_file("/dev/null"));
  const auto full = write_file("/dev/full", "bytes");
  BOOST_REQUIRE(!full);
  BOOST_TEST((full.error().code == errc::io));
  BOOST_TEST(fs::is_character_file("/dev/full"));
}

BOOST_AUTO_TEST_CASE(a_symbolic_link_keeps_pointing_where_it_did) {
  const folder here;
  BOOST_REQUIRE(write_file(here.path / "target", "old"));
  fs::create_symlink("target", here.path / "link");
  BOOST_REQUIRE(write_file(here.path / "link", "new"));
  BOOST_TEST(fs::is_symlink(here.path / "link"));
  BOOST_TEST(*read_file(here.path / "target") == "new");
}

BOOST_AUTO_TEST_CASE(a_full_disk_leaves_the_old_file_and_no_other) {
  const folder here;
  const auto path = here.path / "plan.json";
  BOOST_REQUIRE(write_file(path, "old"));
  const int status = in_a_confined_child(false, [&] {
    const auto written = write_file(path, std::string(2 * allowed_bytes, 'x'));
    return !written && written.error().code == errc::io ? 0 : 1;
  });
  BOOST_TEST(status == 0);
  BOOST_TEST(*read_file(path) == "old");
  BOOST_TEST(here.n_entries() == 1u);
}

BOOST_AUTO_TEST_CASE(a_process_that_ends_while_it_writes_leaves_the_old_file) {
  const folder here;
  const auto path = here.path / "plan.json";
  BOOST_REQUIRE(write_file(path, "old"));
  const int status = in_a_confined_child(true, [&] {
    const auto written = write_file(path, std::string(2 * allowed_bytes, 'x'));
    return written ? 0 : 1;
  });
  BOOST_REQUIRE(WIFSIGNALED(status));
  BOOST_TEST(WTERMSIG(status) == SIGXFSZ);
  BOOST_TEST(*read_file(path) == "old");
}

BOOST_AUTO_TEST_CASE(hashes_are_those_of_the_standard) {
  BOOST_TEST(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  BOOST_TEST(sha256_hex("abc") ==
             "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

BOOST_AUTO_TEST_SUITE_END()
