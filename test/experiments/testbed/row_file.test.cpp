#include "bench/experiments/testbed/row_file.hpp"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "config/files.hpp"
#include "test/experiments/testbed/made_rows.hpp"

namespace ordermoe::experiments::testbed::test {

namespace {

namespace fs = std::filesystem;

struct folder {
  fs::path path;
  folder() {
    auto name = (fs::temp_directory_path() / "testbed-XXXXXX").string();
    BOOST_REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~folder() { fs::remove_all(path); }
};

const settings ours{{"version", "1"}, {"requests", 48}};

/// Rows of every point on two clusters.
std::vector<testbed::row> all_rows(const experiment& of) {
  std::vector<testbed::row> rows;
  for (const std::uint64_t seed : {12, 11})
    for (const auto& what : of.points(scale::quick, seed))
      rows.push_back(as_read_back(
          made_row(what, {{metric::latency_ms, static_cast<double>(rows.size()) / 7}})));
  return rows;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(row_file)

BOOST_AUTO_TEST_CASE(
    rows_come_back_and_in_whatever_order_they_were_measured_the_bytes_are_the_same) {
  const folder a, b;
  const auto& of = *find_experiment("thresholds");
  auto rows = all_rows(of);
  rows_of_experiment forward(of, scale::quick), interrupted(of, scale::quick);
  for (const auto& each : rows) BOOST_REQUIRE(forward.put(each).has_value());
  BOOST_REQUIRE(write_rows(a.path, ours, forward).has_value());
  // The other run is interrupted after each row and goes on from the file.
  for (auto each = rows.rbegin(); each != rows.rend(); ++each) {
    rows_of_experiment again(of, scale::quick);
    BOOST_REQUIRE(read_rows(b.path, digest_of(ours), again).has_value());
    BOOST_REQUIRE(again.put(*each).has_value());
    BOOST_REQUIRE(write_rows(b.path, ours, again).has_value());
  }
  for (const auto* name : {"thresholds.csv", "thresholds.json"})
    BOOST_TEST(*read_file(a.path / name) == *read_file(b.path / name));
  rows_of_experiment read(of, scale::quick);
  BOOST_REQUIRE(read_rows(a.path, digest_of(ours), read).has_value());
  BOOST_TEST((read.in_order() == forward.in_order()));
  BOOST_TEST((*read.find(rows.front().what) == rows.front()));
}

BOOST_AUTO_TEST_CASE(a_folder_of_other_settings_is_refused_by_name_with_the_remedy) {
  const folder place;
  BOOST_REQUIRE(claim_folder(place.path / "new", ours).has_value());
  BOOST_TEST(claim_folder(place.path / "new", ours).has_value());
  auto other = ours;
  other["requests"] = 16;
  const auto refused = claim_folder(place.path / "new", other);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::mismatch));
  BOOST_TEST(refused.error().message.find("requests: found 48, expected 16") != std::string::npos);
  BOOST_TEST(refused.error().message.find("give --out another name") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_folder_has_rows_of_one_build_and_rows_of_two_builds_the_same_digest) {
  const folder place;
  auto first = ours, second = ours;
  first["build"] = "0123456789";
  second["build"] = nullptr;
  BOOST_TEST(digest_of(first) == digest_of(second));
  BOOST_TEST(digest_of(first) == digest_of(ours));
  BOOST_REQUIRE(claim_folder(place.path / "new", first).has_value());
  BOOST_TEST(claim_folder(place.path / "new", first).has_value());
  const auto refused = claim_folder(place.path / "new", second);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST(refused.error().message.find(R"(build: found "0123456789", expected null)") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(rows_without_settings_and_settings_that_are_none_are_refused) {
  const folder place;
  BOOST_REQUIRE(write_file(place.path / "load.csv", "x\n").has_value());
  BOOST_TEST((claim_folder(place.path, ours).error().code == errc::mismatch));
  BOOST_REQUIRE(write_file(place.path / "settings.json", "{torn").has_value());
  BOOST_TEST((claim_folder(place.path, ours).error().code == errc::malformed));
}

BOOST_AUTO_TEST_CASE(a_file_that_was_changed_is_refused_with_its_line) {
  const folder place;
  const auto& of = *find_experiment("thresholds");
  rows_of_experiment rows(of, scale::quick);
  BOOST_REQUIRE(rows.put(all_rows(of).front()).has_value());
  auto text = csv_text(rows.in_order(), digest_of(ours));
  text.insert(text.size() - 1, ",more");
  BOOST_REQUIRE(write_file(place.path / "thresholds.csv", text).has_value());
  const auto read = read_rows(place.path, digest_of(ours), rows);
  BOOST_REQUIRE(!read.has_value());
  BOOST_TEST(read.error().message.find("thresholds.csv:2: found") != std::string::npos);
  BOOST_TEST((read_rows(place.path, "other", rows).error().code == errc::malformed));
}

BOOST_AUTO_TEST_CASE(a_folder_is_one_process_at_a_time) {
  const folder place;
  {
    const auto first = folder_lock::take(place.path);
    BOOST_REQUIRE(first.has_value());
    BOOST_TEST((folder_lock::take(place.path).error().code == errc::usage));
  }
  BOOST_TEST(folder_lock::take(place.path).has_value());
  BOOST_TEST((folder_lock::take(place.path / "none").error().code == errc::io));
}

BOOST_AUTO_TEST_CASE(a_point_of_another_experiment_has_no_place) {
  rows_of_experiment rows(*find_experiment("thresholds"), scale::quick);
  BOOST_TEST(
      (rows.put(made_row(at_main_budget("ordermoe", 1), {})).error().code == errc::mismatch));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::experiments::testbed::test
