#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "test/actors/fixture.hpp"
#include "trace/header.hpp"
#include "trace/sink.hpp"
#include "trace/verify.hpp"

/// Traces as lines that a test changes, and verifies under a closing line of their own.
namespace ordermoe::test {

using lines = std::vector<std::string>;

/// A file of this process that goes away with the object.
struct scratch_file {
  std::filesystem::path path;
  scratch_file() {
    static int count = 0;
    path =
        std::filesystem::temp_directory_path() /
        ("ordermoe-trace-" + std::to_string(::getpid()) + "-" + std::to_string(count++) + ".jsonl");
  }
  ~scratch_file() { std::filesystem::remove(path); }
};

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline lines split(const std::string& text) {
  lines parts;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) parts.push_back(line);
  return parts;
}

inline result<trace::trace_summary> verify_text(const std::string& text) {
  const scratch_file file;
  std::ofstream(file.path, std::ios::binary) << text;
  return trace::verify_trace(file.path);
}

inline std::string join(const lines& content) {
  std::string text;
  for (const auto& line : content) text += line + '\n';
  return text;
}

/// The lines before the closing one under a closing line of their own: nothing but the checks can
/// tell that they were changed.
inline result<trace::trace_summary> verify_sealed_anew(const lines& content) {
  const scratch_file file;
  auto recorder = trace::sink::open(file.path);
  BOOST_REQUIRE(recorder.has_value());
  for (std::size_t i = 0; i + 1 < content.size(); ++i) (*recorder)->line(content[i]);
  BOOST_REQUIRE((*recorder)->close().has_value());
  return trace::verify_trace(file.path);
}

inline std::string record(test::world& world) {
  const scratch_file file;
  world.setup.trace = file.path;
  const auto outcome = actors::run_requests(world.setup);
  BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
  return read_text(file.path);
}

/// One prompt of 20 tokens in chunks of 8, one scored text, one that is scored behind a prompt of 11, and a few short prompts.
inline void add_mixed_requests(test::world& world, std::uint32_t new_tokens) {
  world.setup.chunk_rows = 8;
  world.setup.load_period_ns = 1'000'000;
  world.add_requests(5, new_tokens, 0.8);
  random_stream draws(world.setup.seed, 78);
  const auto lengthen = [&](actors::request_spec& spec) {
    spec.prompt.clear();
    for (int i = 0; i < 20; ++i)
      spec.prompt.push_back(
          static_cast<std::int32_t>(draws.below(world.setup.model->config().vocab_size)));
  };
  lengthen(world.setup.requests[0]);
  lengthen(world.setup.requests[1]);
  world.setup.requests[1].score = true;
  lengthen(world.setup.requests[2]);
  world.setup.requests[2].score = true;
  world.setup.requests[2].scored_after = 11;
}

inline bool is(const std::string& line, const std::string& type) {
  return line.starts_with(fmt::format(R"({{"type":"{}")", type));
}

/// A trace that is small and yet has every kind of line, substitutes and chunks among them.
inline const lines& small_trace() {
  static const auto recorded = [] {
    test::world world("local-only", 5, 1, 3);
    world.setup.chunk_rows = 4;
    world.setup.load_period_ns = 400'000;
    world.add_requests(3, 3, 0.8);
    world.setup.requests[1].score = true;
    world.setup.requests[2].quality_percent = 2;
    return split(record(world));
  }();
  return recorded;
}

inline std::string field(const std::string& line, const std::string& name) {
  const auto key = fmt::format("\"{}\":", name);
  const auto begin = line.find(key);
  BOOST_REQUIRE_MESSAGE(begin != std::string::npos, "no " + name + " in " + line);
  const auto from = begin + key.size();
  return line.substr(from, line.find_first_of(",}]", from) - from);
}

inline std::int64_t number(const std::string& line, const std::string& name) {
  return std::stoll(field(line, name));
}

inline void set(std::string& line, const std::string& name, std::int64_t value) {
  const auto key = fmt::format("\"{}\":", name);
  const auto from = line.find(key) + key.size();
  line.replace(from, field(line, name).size(), std::to_string(value));
}

inline void add(std::string& line, const std::string& name, std::int64_t change) {
  set(line, name, number(line, name) + change);
}

inline std::size_t find(const lines& content, const std::string& type,
                        const std::function<bool(const std::string&)>& accept = {}) {
  for (std::size_t i = 0; i < content.size(); ++i)
    if (is(content[i], type) && (!accept || accept(content[i]))) return i;
  BOOST_FAIL("the trace has no such line of type " + type);
  return 0;
}

inline trace::trace_header header_of(const lines& content) {
  auto header = trace::parse_header(content[0], "trace");
  BOOST_REQUIRE(header.has_value());
  return std::move(*header);
}

/// Changes a copy, seals it anew and expects the check that says `complaint`.
inline void check_refused(const std::string& complaint, const std::function<void(lines&)>& change) {
  auto content = small_trace();
  change(content);
  BOOST_REQUIRE(join(content) != join(small_trace()));
  const auto summary = verify_sealed_anew(content);
  BOOST_REQUIRE_MESSAGE(!summary.has_value(), "not refused: " + complaint);
  BOOST_TEST(summary.error().message.find(complaint) != std::string::npos,
             summary.error().message << " does not say: " << complaint);
  BOOST_TEST(summary.error().message.find(".jsonl:") != std::string::npos);
}

inline void check_holds(const std::string& text, const world& world) {
  const auto summary = verify_text(text);
  BOOST_REQUIRE_MESSAGE(summary.has_value(), (summary ? "" : summary.error().message));
  BOOST_TEST(summary->requests == world.setup.requests.size());
  BOOST_TEST(summary->strategy == world.setup.chosen.name);
  const auto& shape = world.setup.model->config();
  std::int64_t slots = 0;
  for (const auto n : summary->slots) slots += n;
  BOOST_TEST(slots == summary->decisions * static_cast<std::int64_t>(shape.top_k));
  BOOST_TEST(summary->decisions % static_cast<std::int64_t>(shape.n_layers) == 0);
  if (world.setup.chosen.token_budget == 0) BOOST_TEST(summary->loss == 0);
}

inline std::size_t type_count(const lines& content, const std::string& type) {
  return static_cast<std::size_t>(std::count_if(content.begin(), content.end(),
                                                [&](const auto& line) { return is(line, type); }));
}

}  // namespace ordermoe::test
