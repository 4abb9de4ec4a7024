#include "trace/merge.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "trace/lines.hpp"
#include "trace/sink.hpp"

namespace ordermoe {

namespace {

namespace fs = std::filesystem;
using trace::sink;

struct scratch_folder {
  fs::path path = fs::temp_directory_path() / fmt::format("ordermoe-merge-{}", ::getpid());
  scratch_folder() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~scratch_folder() { fs::remove_all(path); }
};

std::vector<std::string> lines_of(const fs::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

const std::string header = R"({"type":"run","version":3})";

/// What server `id` of two writes.
struct writer {
  fs::path path;
  std::uint32_t id;
  std::unique_ptr<sink> out;

  writer(const fs::path& folder, std::uint32_t server, const std::string& first = header)
      : path(folder / fmt::format("{}.jsonl", server)), id(server) {
    auto opened = sink::open(path, sink::stamps::before_each_line);
    BOOST_REQUIRE(opened.has_value());
    out = std::move(*opened);
    out->line(first);
  }
  void write(const std::string& text) const { out->line(text); }
  void close() const {
    out->line(trace::closing_line(id + 1));
    serving::link_ledger link;
    link.from = id;
    link.to = 1 - id;
    out->line(trace::ledger_line(link));
    serving::server_ledger server;
    server.server = id;
    out->line(trace::ledger_line(server));
    BOOST_REQUIRE(out->close().has_value());
  }
};

std::string problem(const std::vector<fs::path>& parts, const fs::path& folder) {
  const auto merged = trace::merge_traces(parts, folder / "merged.jsonl");
  BOOST_REQUIRE(!merged.has_value());
  return merged.error().message;
}

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(merge)

BOOST_AUTO_TEST_CASE(what_causes_a_line_comes_before_it) {
  const scratch_folder folder;
  const writer a(folder.path, 0), b(folder.path, 1);
  // As if b's clock were an hour ahead: whatever follows from what it sends is later still.
  b.out->observe(b.out->stamp() + 3'600'000'000'000);
  for (int i = 0; i < 50; ++i) {
    b.write(fmt::format(R"({{"type":"token","request":7,"time_ns":{}}})", 2 * i));
    a.out->observe(b.out->stamp());
    a.write(
        fmt::format("{{\"type\":\"slot\",\"i\":{},\"time_ns\":5}}\n"
                    "{{\"type\":\"slot\",\"j\":{},\"time_ns\":5}}",
                    i, i));
    b.out->observe(a.out->stamp());
  }
  a.close();
  b.close();
  const auto merged = trace::merge_traces({b.path, a.path}, folder.path / "merged.jsonl");
  BOOST_REQUIRE(merged.has_value());
  BOOST_TEST(merged->requests == 3u);
  const auto lines = lines_of(folder.path / "merged.jsonl");
  BOOST_REQUIRE_EQUAL(lines.size(), 1 + 150 + 5 + 1u);
  BOOST_TEST(merged->lines + 1 == lines.size());
  BOOST_TEST(lines[0] == header);
  for (std::size_t i = 0; i < 50; ++i) {
    BOOST_TEST(lines[1 + 3 * i].starts_with(R"({"type":"token","request":7,"time_ns":36)"));
    BOOST_TEST(lines[2 + 3 * i].starts_with(fmt::format(R"({{"type":"slot","i":{},)", i)));
    // What was written at once has one time.
    BOOST_TEST(lines[2 + 3 * i].substr(lines[2 + 3 * i].find("time_ns")) ==
               lines[3 + 3 * i].substr(lines[3 + 3 * i].find("time_ns")));
  }
  BOOST_TEST(lines[151] == R"({"type":"answered","requests":3})");
  BOOST_TEST(has(lines[152], R"("from":0,"to":1)"));
  BOOST_TEST(has(lines[153], R"("from":1,"to":0)"));
  BOOST_TEST(lines[154].starts_with(R"({"type":"server_ledger","server":0)"));
}

BOOST_AUTO_TEST_CASE(a_request_is_not_done_before_its_tokens) {
  const scratch_folder folder;
  const writer a(folder.path, 0), b(folder.path, 1);
  b.out->observe(b.out->stamp() + 1'000'000'000);
  b.write(R"({"type":"token","request":7,"time_ns":10})");
  b.write(R"({"type":"token","request":7,"time_ns":20})");
  a.out->observe(b.out->stamp());
  a.write(R"({"type":"done","request":7,"tokens":2,"first_token_ns":11,"time_ns":21})");
  a.close();
  b.close();
  BOOST_REQUIRE(trace::merge_traces({a.path, b.path}, folder.path / "merged.jsonl").has_value());
  const auto lines = lines_of(folder.path / "merged.jsonl");
  const auto number = [](const std::string& line, const std::string& name) {
    return std::stoull(line.substr(line.find(name) + name.size() + 2));
  };
  BOOST_TEST(number(lines[3], "first_token_ns") >= number(lines[1], "time_ns"));
  BOOST_TEST(number(lines[3], "\"time_ns") >= number(lines[2], "time_ns"));
}

BOOST_AUTO_TEST_CASE(a_change_that_every_server_writes_stands_once) {
  const scratch_folder folder;
  const writer a(folder.path, 0), b(folder.path, 1);
  const auto change = [](const char* type, int epoch, int policy, const char* content, int time) {
    return fmt::format(R"({{"type":"{}","epoch":{},"policy":{},"time_ns":{},"content":{}}})", type,
                       epoch, policy, time, content);
  };
  a.write(change("plan", 2, 0, "1", 10));
  b.write(change("plan", 2, 0, "1", 11));
  a.write(change("policy", 2, 1, "1", 12));
  b.write(change("policy", 2, 1, "1", 13));
  b.write(change("policy", 2, 2, "1", 14));
  a.close();
  b.close();
  BOOST_REQUIRE(trace::merge_traces({a.path, b.path}, folder.path / "merged.jsonl").has_value());
  std::size_t plans = 0, policies = 0;
  for (const auto& line : lines_of(folder.path / "merged.jsonl")) {
    plans += has(line, R"("type":"plan")") ? 1 : 0;
    policies += has(line, R"("type":"policy")") ? 1 : 0;
  }
  BOOST_TEST(plans == 1u);
  BOOST_TEST(policies == 2u);
}

BOOST_AUTO_TEST_CASE(servers_that_changed_to_different_plans_are_refused) {
  const scratch_folder folder;
  const writer a(folder.path, 0), b(folder.path, 1);
  a.write(R"({"type":"plan","epoch":2,"policy":0,"time_ns":1,"plan":1})");
  b.write(R"({"type":"plan","epoch":2,"policy":0,"time_ns":1,"plan":2})");
  a.close();
  b.close();
  BOOST_TEST(has(problem({a.path, b.path}, folder.path), "another plan or policy"));
}

BOOST_AUTO_TEST_CASE(files_that_do_not_belong_together_are_refused) {
  const scratch_folder folder;
  const writer a(folder.path, 0), b(folder.path, 1, R"({"type":"run","version":4})");
  a.close();
  b.close();
  BOOST_TEST(has(problem({a.path, b.path}, folder.path), "1.jsonl:1: found another header"));
  BOOST_TEST(has(problem({a.path}, folder.path), "2 ledgers in 1 files"));
  BOOST_TEST(has(problem({a.path, a.path}, folder.path), "a second time"));
  BOOST_TEST(has(problem({a.path, folder.path / "none"}, folder.path), "none: cannot be read"));
}

BOOST_AUTO_TEST_CASE(what_no_node_writes_is_refused) {
  const scratch_folder folder;
  const auto path = folder.path / "part.jsonl";
  const auto refused = [&](const std::string& text) {
    std::ofstream(path) << text;
    return problem({path}, folder.path);
  };
  BOOST_TEST(has(refused(""), "part.jsonl:1: found no closing line"));
  BOOST_TEST(has(refused(header + "\n"), "part.jsonl:1: found no stamp"));
  BOOST_TEST(has(refused("{\"stamp\":9,\"type\":\"kv\"}\n"), "found no header"));
  BOOST_TEST(has(refused("{\"stamp\":9,\"type\":\"run\"}\n"), "found no closing line"));
  BOOST_TEST(has(refused("{\"stamp\":9,\"type\":\"run\"}\n{\"stamp\":8,\"type\":\"kv\"}\n"),
                 "part.jsonl:2: found no stamp"));
  BOOST_TEST(has(refused("{\"stamp\":9,\"type\":\"run\"}\n{\"stamp\":10,\"type\":\"link_ledger\"}\n"
                         "{\"type\":\"end\"}\n"),
                 "part.jsonl:2: found a ledger of nobody"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
