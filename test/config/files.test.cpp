#include "config/files.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>

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

BOOST_AUTO_TEST_CASE(a_place_that_cannot_be_written_is_refused_and_named_before_any_work) {
  const folder here;
  BOOST_REQUIRE(write_file(here.path / "file", "bytes"));
  for (const auto& path : {here.path / "no" / "such" / "folder", fs::path("/proc/ordermoe.json"),
                           here.path, here.path / "new" / "", here.path / "file" / "below"}) {
    const auto checked = check_writable(path);
    BOOST_REQUIRE_MESSAGE(!checked, path.string());
    BOOST_TEST((checked.error().code == errc::io));
    BOOST_TEST(checked.error().message.starts_with(path.string() + ": "), checked.error().message);
    const auto written = write_file(path, "bytes");
    BOOST_REQUIRE(!written);
    BOOST_TEST(written.error().message == checked.error().message);
  }
  BOOST_TEST(here.n_entries() == 1u);
}

BOOST_AUTO_TEST_CASE(a_check_leaves_nothing_behind_and_nothing_changed) {
  const folder here;
  BOOST_REQUIRE(write_file(here.path / "old", "bytes"));
  for (const auto& path : {here.path / "old", here.path / "new", fs::path("/dev/null")})
    BOOST_TEST(check_writable(path).has_value());
  BOOST_TEST(*read_file(here.path / "old") == "bytes");
  BOOST_TEST(here.n_entries() == 1u);
}

BOOST_AUTO_TEST_CASE(the_mode_of_an_old_file_stays_and_a_new_one_obeys_the_umask) {
  const folder here;
  const auto mode_of = [](const fs::path& path) {
    return static_cast<unsigned>(fs::status(path).permissions());
  };
  for (const unsigned mode : {0640u, 0600u, 0755u}) {
    const auto path = here.path / std::to_string(mode);
    BOOST_REQUIRE(write_file(path, "old"));
    fs::permissions(path, static_cast<fs::perms>(mode));
    BOOST_REQUIRE(write_file(path, "new"));
    BOOST_TEST(mode_of(path) == mode);
  }
  const auto before = ::umask(027);
  const auto written = write_file(here.path / "new", "bytes");
  ::umask(before);
  BOOST_REQUIRE(written);
  BOOST_TEST(mode_of(here.path / "new") == 0640u);
}

BOOST_AUTO_TEST_CASE(an_output_that_is_given_up_leaves_the_old_file_and_no_other) {
  const folder here;
  BOOST_REQUIRE(write_file(here.path / "plan.json", "old"));
  {
    auto file = output_file::open(here.path / "plan.json");
    BOOST_REQUIRE(file.has_value());
    BOOST_TEST(file->write("new").has_value());
    BOOST_TEST(here.n_entries() == 2u);
  }
  BOOST_TEST(*read_file(here.path / "plan.json") == "old");
  BOOST_TEST(here.n_entries() == 1u);
}

BOOST_AUTO_TEST_CASE(a_device_is_written_to_and_not_replaced) {
  BOOST_TEST(static_cast<bool>(write_file("/dev/null", "bytes")));
  BOOST_TEST(fs::is_character_file("/dev/null"));
  BOOST_TEST(is_written_through("/dev/null"));
  const auto full = write_file("/dev/full", "bytes");
  BOOST_REQUIRE(!full);
  BOOST_TEST((full.error().code == errc::io));
  BOOST_TEST(fs::is_character_file("/dev/full"));
}

BOOST_AUTO_TEST_CASE(a_device_of_ones_own_is_written_to_and_not_replaced) {
  const folder here;
  const auto device = here.path / "null";
  // Only the administrator of a machine without further locks may make one.
  if (::mknod(device.c_str(), S_IFCHR | 0666, ::makedev(1, 3)) != 0) {
    BOOST_TEST_MESSAGE("no device could be made: " << std::strerror(errno));
    return;
  }
  const auto written = write_file(device, "bytes");
  // Where devices do not work at all, they are refused and stay all the same.
  if (written) BOOST_TEST(check_writable(device).has_value());
  BOOST_TEST(fs::is_character_file(device));
  BOOST_TEST(here.n_entries() == 1u);
}

BOOST_AUTO_TEST_CASE(a_fifo_is_written_through_and_stays) {
  const folder here;
  const auto fifo = here.path / "fifo";
  BOOST_REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  BOOST_TEST(check_writable(fifo).has_value());  // Does not wait for a reader.
  BOOST_TEST(is_written_through(fifo));
  std::string arrived;
  std::thread reader([&] { arrived = *read_file(fifo); });
  const std::string bytes(300'000, 'x');
  const auto written = write_file(fifo, bytes);
  reader.join();
  BOOST_TEST(written.has_value());
  BOOST_TEST((arrived == bytes));
  BOOST_TEST(fs::is_fifo(fifo));
}

BOOST_AUTO_TEST_CASE(a_file_that_is_the_standard_output_is_written_through) {
  const folder here;
  const auto path = here.path / "output";
  std::fflush(nullptr);
  const auto child = ::fork();
  BOOST_REQUIRE(child >= 0);
  if (child == 0) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(file, STDOUT_FILENO);
    const bool before = ::write(STDOUT_FILENO, "one ", 4) == 4;
    const auto written = write_file("/dev/stdout", "two ");
    const bool after = ::write(STDOUT_FILENO, "three", 5) == 5;
    ::_exit(before && written && after ? 0 : 1);
  }
  int status = 0;
  BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
  BOOST_TEST(status == 0);
  BOOST_TEST(*read_file(path) == "one two three");
}

BOOST_AUTO_TEST_CASE(a_symbolic_link_keeps_pointing_where_it_did) {
  const folder here;
  BOOST_REQUIRE(write_file(here.path / "target", "old"));
  fs::create_symlink("target", here.path / "link");
  fs::create_symlink("link", here.path / "second");
  BOOST_REQUIRE(write_file(here.path / "second", "new"));
  BOOST_TEST(fs::is_symlink(here.path / "second"));
  BOOST_TEST(fs::is_symlink(here.path / "link"));
  BOOST_TEST(*read_file(here.path / "target") == "new");
}

BOOST_AUTO_TEST_CASE(a_link_to_nothing_is_followed_and_a_ring_of_links_refused) {
  const folder here;
  fs::create_symlink("later", here.path / "link");
  BOOST_REQUIRE(write_file(here.path / "link", "bytes"));
  BOOST_TEST(fs::is_symlink(here.path / "link"));
  BOOST_TEST(*read_file(here.path / "later") == "bytes");
  fs::create_symlink("ring", here.path / "ring");
  BOOST_TEST(!check_writable(here.path / "ring"));
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

BOOST_AUTO_TEST_SUITE_END()
