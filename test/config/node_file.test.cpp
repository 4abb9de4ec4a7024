#include "config/node_file.hpp"

#include <unistd.h>

#include <boost/test/unit_test.hpp>

#include "config/files.hpp"

namespace {

using namespace ordermoe;
namespace fs = std::filesystem;

/// A folder of this test's own, removed with everything in it.
struct folder {
  fs::path path;
  folder() {
    std::string pattern = (fs::temp_directory_path() / "ordermoe-node-XXXXXX").string();
    BOOST_REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~folder() { fs::remove_all(path); }
  fs::path file() const { return path / "node.toml"; }
  result<node_file> read(const std::string& text) const {
    BOOST_REQUIRE(write_file(file(), text).has_value());
    return read_node_file(file());
  }
};

/// A correct file, to change one thing at a time.
const std::string berlin = R"(version = 1
name = "berlin"
cluster = "../../cluster.toml"
model = "/models/lineage"
plan = "plan.json"
profile = "profile.json"
state = "state"
listen = ["10.0.0.7:7400"]
threads = 4
most_positions = 900
costs = "qwen1.5-moe-a2.7b"
kv_precision = "fp32"
trace = "trace.jsonl"

[certificates]
authority = "ca.crt"
certificate = "berlin.crt"
key = "berlin.key"

[[member]]
name = "paris"
address = "10.0.0.8:7400"

[[member]]
name = "rome"
)";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto place = text.find(from);
  BOOST_REQUIRE_MESSAGE(place != std::string::npos, "the file does not contain " << from);
  return text.replace(place, from.size(), to);
}

void check_same(const node_file& a, const node_file& b) {
  BOOST_TEST(a.name == b.name);
  for (const auto path : {&node_file::cluster, &node_file::model, &node_file::plan,
                          &node_file::profile, &node_file::state, &node_file::authority,
                          &node_file::certificate, &node_file::key, &node_file::trace})
    BOOST_TEST((a.*path == b.*path));
  BOOST_TEST(a.listen == b.listen, boost::test_tools::per_element());
  BOOST_TEST(a.costs == b.costs);
  BOOST_TEST(a.kv_precision == b.kv_precision);
  BOOST_TEST(a.channel == b.channel);
  BOOST_TEST(a.threads == b.threads);
  BOOST_TEST(a.most_positions == b.most_positions);
  BOOST_TEST(a.load_period_ms == b.load_period_ms);
  BOOST_TEST(a.busy_poll_us == b.busy_poll_us);
  BOOST_TEST((a.rehearsed == b.rehearsed));
  BOOST_REQUIRE_EQUAL(a.members.size(), b.members.size());
  for (std::size_t i = 0; i < a.members.size(); ++i) {
    BOOST_TEST(a.members[i].name == b.members[i].name);
    BOOST_TEST(a.members[i].address == b.members[i].address);
  }
}

/// The file is refused with this code, at this line and column, in words that contain all of `parts`.
void check_refused(const std::string& from, const std::string& to, errc code,
                   const std::string& position, std::initializer_list<std::string> parts) {
  BOOST_TEST_CONTEXT(from << " -> " << to) {
    const folder place;
    const auto read = place.read(replaced(berlin, from, to));
    BOOST_REQUIRE(!read.has_value());
    const auto& reason = read.error();
    BOOST_CHECK_MESSAGE(reason.code == code, reason.message);
    BOOST_CHECK_MESSAGE(reason.message.starts_with(place.file().string() + ":" + position + ": "),
                        reason.message);
    for (const auto& part : parts)
      BOOST_CHECK_MESSAGE(reason.message.find(part) != std::string::npos,
                          "'" << reason.message << "' does not say '" << part << "'");
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(node_file)

BOOST_AUTO_TEST_CASE(every_member_is_read) {
  const folder place;
  const auto read = place.read(berlin);
  BOOST_REQUIRE_MESSAGE(read, (read ? "" : read.error().message));
  BOOST_TEST(read->name == "berlin");
  BOOST_TEST(read->listen.at(0) == "10.0.0.7:7400");
  BOOST_TEST(read->threads == 4u);
  BOOST_TEST(read->most_positions == 900u);
  BOOST_TEST(read->costs == "qwen1.5-moe-a2.7b");
  BOOST_TEST(read->kv_precision == "fp32");
  BOOST_REQUIRE_EQUAL(read->members.size(), 2u);
  BOOST_TEST(read->members[0].name == "paris");
  BOOST_TEST(read->members[0].address == "10.0.0.8:7400");
  BOOST_TEST(read->members[1].name == "rome");
  BOOST_TEST(read->members[1].address == "");
}

BOOST_AUTO_TEST_CASE(relative_paths_count_from_the_files_folder) {
  const folder place;
  const auto read = place.read(berlin);
  BOOST_REQUIRE_MESSAGE(read, (read ? "" : read.error().message));
  BOOST_TEST(read->cluster == place.path / "../../cluster.toml");
  BOOST_TEST(read->model == "/models/lineage");
  BOOST_TEST(read->plan == place.path / "plan.json");
  BOOST_TEST(read->profile == place.path / "profile.json");
  BOOST_TEST(read->state == place.path / "state");
  BOOST_TEST(read->trace == place.path / "trace.jsonl");
  BOOST_TEST(read->authority == place.path / "ca.crt");
  BOOST_TEST(read->certificate == place.path / "berlin.crt");
  BOOST_TEST(read->key == place.path / "berlin.key");
}

BOOST_AUTO_TEST_CASE(what_may_be_left_out_has_a_value) {
  const folder place;
  auto text = berlin.substr(0, berlin.find("[[member]]"));
  for (const auto* line : {"listen = [\"10.0.0.7:7400\"]\n", "threads = 4\n",
                           "most_positions = 900\n", "costs = \"qwen1.5-moe-a2.7b\"\n",
                           "kv_precision = \"fp32\"\n", "trace = \"trace.jsonl\"\n"})
    text = replaced(text, line, "");
  const auto read = place.read(text);
  BOOST_REQUIRE_MESSAGE(read, (read ? "" : read.error().message));
  const ordermoe::node_file usual;
  BOOST_TEST(read->listen.empty());
  BOOST_TEST(read->threads == usual.threads);
  BOOST_TEST(read->most_positions == usual.most_positions);
  BOOST_TEST(read->costs == usual.costs);
  BOOST_TEST(read->kv_precision == usual.kv_precision);
  BOOST_TEST(read->channel == "asio");
  BOOST_TEST(read->trace.empty());
  BOOST_TEST(read->members.empty());
}

BOOST_AUTO_TEST_CASE(a_channel_is_read_and_written) {
  const folder place;
  const auto read = place.read(replaced(berlin, "threads = 4", "channel = \"caf\""));
  BOOST_REQUIRE_MESSAGE(read, (read ? "" : read.error().message));
  BOOST_TEST(read->channel == "caf");
  const auto again = place.read(node_toml(*read));
  BOOST_REQUIRE(again.has_value());
  check_same(*read, *again);
}

BOOST_AUTO_TEST_CASE(what_is_written_reads_back) {
  const folder place;
  const auto full = place.read(berlin);
  BOOST_REQUIRE(full.has_value());
  const auto again = place.read(node_toml(*full));
  BOOST_REQUIRE_MESSAGE(again, (again ? "" : again.error().message));
  check_same(*again, *full);

  ordermoe::node_file odd = *full;
  odd.trace.clear();
  odd.listen = {"[::1]:7400", "127.0.0.1:0"};
  odd.members.clear();
  // Everything that may stand in a path.
  odd.model = "/a \"quoted\\ name'\nof\ttwo\x01lines\x7f/\u00fc";
  const auto read = place.read(node_toml(odd));
  BOOST_REQUIRE_MESSAGE(read, (read ? "" : read.error().message));
  check_same(*read, odd);
}

BOOST_AUTO_TEST_CASE(how_the_log_is_written_is_read_and_written_and_refused) {
  const folder place;
  const auto usual = place.read(berlin);
  BOOST_REQUIRE(usual.has_value());
  BOOST_TEST((!usual->log.level && !usual->log.format && !usual->log.file));
  const auto told =
      place.read(berlin + "\n[log]\nlevel = \"debug\"\nformat = \"json\"\nfile = \"here.log\"\n");
  BOOST_REQUIRE_MESSAGE(told.has_value(), (told ? "" : told.error().message));
  BOOST_TEST(*told->log.level == "debug");
  BOOST_TEST(*told->log.format == "json");
  BOOST_TEST(*told->log.file == (place.path / "here.log").string());
  const auto again = place.read(node_toml(*told));
  BOOST_REQUIRE(again.has_value());
  BOOST_TEST((again->log.level == told->log.level && again->log.format == told->log.format &&
              again->log.file == told->log.file));
  for (const auto* line : {"level = \"loud\"", "format = \"xml\"", "file = \"\"", "colour = 1"})
    BOOST_TEST(!place.read(berlin + "\n[log]\n" + line + "\n").has_value(), line);
}

BOOST_AUTO_TEST_CASE(
    how_long_a_thread_looks_for_frames_is_read_and_written_and_held_to_its_bounds) {
  const folder place;
  const auto usual = place.read(berlin);
  BOOST_REQUIRE(usual.has_value());
  BOOST_TEST(usual->busy_poll_us == 400);
  const auto never =
      place.read(replaced(berlin, "threads = 4\n", "threads = 4\nbusy_poll_us = 0\n"));
  BOOST_REQUIRE_MESSAGE(never, (never ? "" : never.error().message));
  BOOST_TEST(never->busy_poll_us == 0);
  const auto again = place.read(node_toml(*never));
  BOOST_REQUIRE_MESSAGE(again, (again ? "" : again.error().message));
  check_same(*again, *never);
  for (const auto* bad : {"-1", "10001", "\"long\"", "nan"})
    BOOST_TEST(!place
                    .read(replaced(berlin, "threads = 4\n",
                                   std::string("threads = 4\nbusy_poll_us = ") + bad + "\n"))
                    .has_value(),
               bad);
}

BOOST_AUTO_TEST_CASE(a_rehearsal_is_read_and_written_and_held_to_its_bounds) {
  const folder place;
  const auto usual = place.read(berlin);
  BOOST_REQUIRE(usual.has_value());
  BOOST_TEST(!usual->rehearsed.has_value());
  const auto told =
      place.read(replaced(berlin, "threads = 4\n", "threads = 4\nload_period_ms = 0\n") +
                 "\n[rehearsal]\ndilation = 2.5\nstretch = 3\n");
  BOOST_REQUIRE_MESSAGE(told, (told ? "" : told.error().message));
  BOOST_TEST(told->load_period_ms == 0);
  BOOST_REQUIRE(told->rehearsed.has_value());
  BOOST_TEST(told->rehearsed->dilation == 2.5);
  BOOST_TEST(told->rehearsed->stretch == 3u);
  const auto again = place.read(node_toml(*told));
  BOOST_REQUIRE_MESSAGE(again, (again ? "" : again.error().message));
  check_same(*again, *told);
  const auto short_one = place.read(berlin + "\n[rehearsal]\n");
  BOOST_REQUIRE_MESSAGE(short_one, (short_one ? "" : short_one.error().message));
  BOOST_TEST((short_one->rehearsed == ordermoe::rehearsal{1, 1}));
  const auto end = "name = \"rome\"\n";
  const auto with = [&](const char* line) {
    return std::string(end) + "\n[rehearsal]\n" + line + "\n";
  };
  const auto out_of_range = errc::out_of_range;
  check_refused(end, with("dilation = 0.5"), out_of_range, "28:12",
                {"found dilation = 0.5", "expected a number from 1 to 1000", "correct it"});
  check_refused(end, with("stretch = 0"), out_of_range, "28:11",
                {"found stretch = 0", "correct it"});
  check_refused(end, with("speed = 2"), errc::malformed, "28:1",
                {"found the unknown key 'speed' in rehearsal"});
}

BOOST_AUTO_TEST_CASE(when_drift_is_told_is_read_and_written_and_held_to_its_bounds) {
  const folder place;
  const auto usual = place.read(berlin);
  BOOST_REQUIRE(usual.has_value());
  BOOST_TEST((usual->drift == drift_watch{}));
  BOOST_TEST(node_toml(*usual).find("[drift]") == std::string::npos);
  const auto told = place.read(berlin +
                               "\n[drift]\nmargin_percent = 2.5\nperiod_s = 5\nleast_rows = 300\n"
                               "half_life_s = 90.5\n");
  BOOST_REQUIRE_MESSAGE(told, (told ? "" : told.error().message));
  BOOST_TEST((told->drift == drift_watch{2.5, 5, 300, 90.5}));
  const auto again = place.read(node_toml(*told));
  BOOST_REQUIRE_MESSAGE(again, (again ? "" : again.error().message));
  BOOST_TEST((again->drift == told->drift));
  const auto end = "name = \"rome\"\n";
  const auto with = [&](const char* line) {
    return std::string(end) + "\n[drift]\n" + line + "\n";
  };
  const auto out_of_range = errc::out_of_range;
  check_refused(end, with("margin_percent = -1"), out_of_range, "28:18", {"correct it"});
  check_refused(end, with("period_s = 0"), out_of_range, "28:12", {"correct it"});
  check_refused(end, with("least_rows = 0"), out_of_range, "28:14", {"correct it"});
  for (const auto* bad : {"half_life_s = 9.9", "half_life_s = 0", "half_life_s = 2e9",
                          "half_life_s = inf", "half_life_s = nan"})
    check_refused(end, with(bad), out_of_range, "28:15",
                  {"half_life_s", "expected a number from 10 to", "correct it"});
  check_refused(end, with("half_life_s = \"long\""), errc::malformed, "28:15", {"half_life_s"});
  check_refused(end, with("speed = 2"), errc::malformed, "28:1",
                {"found the unknown key 'speed' in drift"});
}

BOOST_AUTO_TEST_CASE(a_file_that_is_not_there_is_named) {
  const folder place;
  const auto read = read_node_file(place.path / "nowhere.toml");
  BOOST_REQUIRE(!read.has_value());
  BOOST_TEST((read.error().code == errc::not_found));
  BOOST_TEST(read.error().message.find("nowhere.toml") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(each_bad_input_is_refused_with_its_place_and_what_to_do) {
  const auto malformed = errc::malformed, out_of_range = errc::out_of_range;
  check_refused("version = 1", "version = 2", out_of_range, "1:11",
                {"found version = 2", "expected 1", "correct it"});
  check_refused("version = 1\n", "", malformed, "1:1", {"found no 'version'", "add it"});
  check_refused("name = \"berlin\"", "name = \"ber lin\"", out_of_range, "2:8",
                {"found name = \"ber lin\"", "expected 1 to 64 letters", "rename it"});
  check_refused("name = \"berlin\"", "name = 7", malformed, "2:8",
                {"found the integer 7 for 'name'", "expected a string", "correct it"});
  check_refused("name = \"berlin\"", "nmae = \"berlin\"", malformed, "2:1",
                {"found the unknown key 'nmae' in a node file", "expected one of version, name",
                 "remove it or correct its name"});
  check_refused("\"plan.json\"", "\"\"", out_of_range, "5:8",
                {"found an empty plan", "expected a path", "name the file"});
  check_refused("state = \"state\"\n", "", malformed, "1:1",
                {"found no 'state' in a node file", "add it"});
  check_refused("[\"10.0.0.7:7400\"]", "\"10.0.0.7:7400\"", malformed, "8:10",
                {"found the string \"10.0.0.7:7400\" for 'listen'", "expected an array of strings",
                 "correct it"});
  check_refused("[\"10.0.0.7:7400\"]", "[\"10.0.0.7:7400\", 7400]", malformed, "8:28",
                {"found the integer 7400 for 'listen'", "expected an array of strings"});
  check_refused("threads = 4", "threads = 1025", out_of_range, "9:11",
                {"found threads = 1025", "expected 0 to 1024", "correct it"});
  check_refused("threads = 4", "threads = 4.5", malformed, "9:11",
                {"found the number 4.5", "expected a whole number"});
  check_refused("most_positions = 900", "most_positions = -1", out_of_range, "10:18",
                {"found most_positions = -1", "expected 0 to 16777216", "correct it"});
  check_refused("kv_precision = \"fp32\"", "kv_precision = \"fp16\"", out_of_range, "12:16",
                {"found kv_precision = \"fp16\"", "expected bf16 or fp32", "correct it"});
  check_refused("threads = 4", "channel = \"quic\"", out_of_range, "9:11",
                {"found channel = \"quic\"", "expected asio or caf", "correct it"});
  check_refused("[certificates]", "[certificate]", malformed, "15:2",
                {"found the unknown key 'certificate'", "certificates"});
  check_refused("key = \"berlin.key\"", "", malformed, "15:1",
                {"found no 'key' in certificates", "add it"});
  check_refused("key = \"berlin.key\"", "keys = \"berlin.key\"", malformed, "18:1",
                {"found the unknown key 'keys' in certificates",
                 "expected one of authority, certificate, key"});
  check_refused("[[member]]\nname = \"paris\"", "[[member]]\nname = \"berlin\"", malformed, "21:8",
                {"found the member 'berlin' again", "expected each other node once", "remove it"});
  check_refused("name = \"rome\"", "name = \"paris\"", malformed, "25:8",
                {"found the member 'paris' again", "remove it"});
  check_refused("address = \"10.0.0.8:7400\"", "adress = \"10.0.0.8:7400\"", malformed, "22:1",
                {"found the unknown key 'adress' in a member", "expected one of name, address"});
  check_refused("name = \"rome\"", "", malformed, "24:1", {"found no 'name' in a member"});
  check_refused(
      "threads = 4", "threads = ", malformed, "9:11",
      {"found invalid TOML", "expected the schema of config/README.md", "correct the syntax"});
}

BOOST_AUTO_TEST_CASE(a_device_is_read_written_and_refused_where_nobody_knows_it) {
  const folder here;
  auto file = here.read(berlin);
  BOOST_REQUIRE(file.has_value());
  BOOST_TEST(file->device == "");
  BOOST_TEST(node_toml(*file).find("device") == std::string::npos);
  file->device = "libtorch:cuda:1";
  const auto again = here.read(node_toml(*file));
  BOOST_REQUIRE(again.has_value());
  BOOST_TEST(again->device == "libtorch:cuda:1");
  const auto refused = here.read("device = \"gpu\"\n" + berlin);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST(refused.error().message.find("node.toml:1:") != std::string::npos,
             refused.error().message);
  BOOST_TEST(refused.error().message.find("libtorch:cpu") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
