#include "trace/sink.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "config/files.hpp"

using namespace ordermoe;
namespace fs = std::filesystem;

namespace {

/// A folder of this test's own, removed with everything in it.
struct folder {
  fs::path path;
  folder() {
    std::string pattern = (fs::temp_directory_path() / "ordermoe-sink-XXXXXX").string();
    BOOST_REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~folder() { fs::remove_all(path); }
  std::size_t n_entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path), {}));
  }
};

const std::string two_lines = "{\"type\":\"a\"}\n{\"type\":\"b\"}\n";

/// The two lines and what seals them.
std::string sealed() {
  return two_lines + "{\"type\":\"end\",\"lines\":2,\"sha256\":\"" + sha256_hex(two_lines) +
         "\"}\n";
}

result<void> write_two_lines(const fs::path& path) {
  auto opened = trace::sink::open(path);
  if (!opened) return opened.error();
  (*opened)->line("{\"type\":\"a\"}");
  (*opened)->line("{\"type\":\"b\"}");
  return (*opened)->close();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(sink)

BOOST_AUTO_TEST_CASE(lines_are_sealed_by_their_number_and_digest) {
  const folder here;
  BOOST_REQUIRE(write_two_lines(here.path / "trace.jsonl"));
  BOOST_TEST(*read_file(here.path / "trace.jsonl") == sealed());
  BOOST_TEST(here.n_entries() == 1u);
}

BOOST_AUTO_TEST_CASE(lines_of_several_threads_are_all_there) {
  const folder here;
  auto opened = trace::sink::open(here.path / "trace.jsonl");
  BOOST_REQUIRE(opened.has_value());
  constexpr std::size_t n_threads = 4, n_lines = 20'000;
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < n_threads; ++i)
    threads.emplace_back([&] {
      for (std::size_t l = 0; l < n_lines; ++l) (*opened)->line(std::string(40, 'x'));
    });
  threads.clear();
  BOOST_REQUIRE((*opened)->close());
  const auto text = *read_file(here.path / "trace.jsonl");
  BOOST_TEST(std::count(text.begin(), text.end(), '\n') == n_threads * n_lines + 1);
}

BOOST_AUTO_TEST_CASE(a_trace_that_is_never_closed_leaves_the_old_one) {
  const folder here;
  BOOST_REQUIRE(write_file(here.path / "trace.jsonl", "old"));
  {
    auto opened = trace::sink::open(here.path / "trace.jsonl");
    BOOST_REQUIRE(opened.has_value());
    (*opened)->line("{}");
  }
  BOOST_TEST(*read_file(here.path / "trace.jsonl") == "old");
  BOOST_TEST(here.n_entries() == 1u);
}

BOOST_AUTO_TEST_CASE(devices_fifos_and_links_stay_what_they_are) {
  const folder here;
  BOOST_TEST(write_two_lines("/dev/null").has_value());
  BOOST_TEST(fs::is_character_file("/dev/null"));

  const auto fifo = here.path / "fifo";
  BOOST_REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  std::string arrived;
  std::thread reader([&] { arrived = *read_file(fifo); });
  const auto written = write_two_lines(fifo);
  reader.join();
  BOOST_TEST(written.has_value());
  BOOST_TEST(arrived == sealed());
  BOOST_TEST(fs::is_fifo(fifo));

  BOOST_REQUIRE(write_file(here.path / "real", ""));
  fs::create_symlink("real", here.path / "link");
  BOOST_TEST(write_two_lines(here.path / "link").has_value());
  BOOST_TEST(fs::is_symlink(here.path / "link"));
  BOOST_TEST(*read_file(here.path / "real") == sealed());
}

BOOST_AUTO_TEST_CASE(a_full_disk_is_told_when_the_trace_is_closed) {
  const auto written = write_two_lines("/dev/full");
  BOOST_REQUIRE(!written);
  BOOST_TEST((written.error().code == errc::io));
  BOOST_TEST(written.error().message.starts_with("/dev/full: "), written.error().message);
}

BOOST_AUTO_TEST_CASE(a_folder_is_refused_before_the_first_line) {
  const folder here;
  BOOST_TEST(!trace::sink::open(here.path));
  BOOST_TEST(!trace::sink::open(here.path / "none" / "trace.jsonl"));
}

BOOST_AUTO_TEST_SUITE_END()
