#include <fmt/format.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "net/wire/codec.hpp"
#include "test/trace/changed_trace.hpp"
#include "trace/lines.hpp"
#include "trace/verify.hpp"

/// What traces of nodes have and those of one process do not: what tokens tell of choices, and frames that were lost.
namespace ordermoe {

namespace {

using namespace test;

constexpr std::int64_t s = 1'000'000'000;
constexpr std::int64_t silence_ns = 3 * s;  ///< After which a session is over, at the latest.

void say_choices_are_told(lines& content) {
  const std::string none = "\"tells_choices\":false";
  BOOST_REQUIRE(content[0].find(none) != std::string::npos);
  content[0].replace(content[0].find(none), none.size(), "\"tells_choices\":true");
}

/// As nodes would have written it but for what they tell: prompts in chunks of 8, which end with a chunk of one where they have
/// 17 tokens, as scored texts do and prompts without an answer.
lines trace_of_nodes(std::uint32_t new_tokens, bool scores) {
  test::world world("layer-shards", 0, 1, 3);
  world.setup.chunk_rows = 8;
  world.add_requests(3, new_tokens, 0.8);
  random_stream draws(3);
  for (auto& spec : world.setup.requests) {
    spec.score = scores;
    spec.prompt.clear();
    for (int i = 0; i < (scores || new_tokens == 1 ? 17 : 20); ++i)
      spec.prompt.push_back(
          static_cast<std::int32_t>(draws.below(world.setup.model->config().vocab_size)));
  }
  auto content = split(record(world));
  say_choices_are_told(content);
  return content;
}

/// A number of experts for each, and the bytes before them.
constexpr std::int64_t bytes_of_choice(std::int64_t n_chosen) {
  return 4 + 2 * n_chosen;
}

void tell(lines& content, std::string& transfer, std::int64_t bytes) {
  const std::string before = "\"serialised_bytes\":";
  if (transfer.find("uncharged") == std::string::npos)
    transfer.insert(transfer.find(before), "\"uncharged_bytes\":0,");
  add(transfer, "uncharged_bytes", bytes);
  add(transfer, "serialised_bytes", bytes);
  add(content[find(content, "link_ledger",
                   [&](const auto& line) {
                     return number(line, "from") == number(transfer, "from") &&
                            number(line, "to") == number(transfer, "to");
                   })],
      "serialised_bytes", bytes);
}

bool is_token(const std::string& line) {
  return is(line, "transfer") && field(line, "frame") == "\"token\"";
}

/// What was chosen for one row, in every token that has one row.
std::size_t tell_choices(lines& content) {
  const auto header = header_of(content);
  const auto top_k = static_cast<std::int64_t>(header.profile.top_k);
  std::size_t n = 0;
  for (auto& line : content)
    if (is_token(line) && number(line, "hidden_bytes") == header.costs.hidden_bytes) {
      tell(content, line, bytes_of_choice(top_k));
      ++n;
    }
  return n;
}

/// A trace of three servers by the wall clock with load reports of server 0 behind all else, by times from then on. Server 2
/// takes in each of them, server 1 those that it is said to.
class late_reports {
 public:
  enum class at_1 { taken, missing };

  late_reports() : content_(whole_trace()) {
    const auto says = [](const std::string& line, const char* name) {
      return line.find(fmt::format("\"{}\":", name)) != std::string::npos;
    };
    for (std::size_t i = 1; i < content_.size(); ++i) {
      const auto& line = content_[i];
      for (const char* name : {"time_ns", "end_ns"})
        if (says(line, name)) begin_ns_ = std::max(begin_ns_, number(line, name));
      if (says(line, "server") && says(line, "snapshot"))
        snapshots_[static_cast<std::size_t>(number(line, "server"))] = number(line, "snapshot");
    }
    // Whatever was told before is not on its way any more.
    begin_ns_ += 10 * silence_ns;
  }

  late_reports& tell(std::int64_t time_ns, at_1 outcome) {
    const wire::load_report report{0, ++number_, 5'000'000, {0, 0, 0}};
    const auto bytes = static_cast<std::int64_t>(wire::encode(report).bytes.size());
    const auto time = begin_ns_ + time_ns;
    for (const std::uint32_t to : {1u, 2u}) {
      trace::sent_frame frame;
      frame.to = to;
      frame.kind = wire::frame_kind::load;
      frame.other_bytes = frame.serialised_bytes = bytes;
      frame.sent_ns = frame.start_ns = frame.end_ns = frame.arrival_ns = time;
      more_.push_back(trace::transfer_line(frame));
      auto& ledger = content_[find(content_, "link_ledger", [&](const auto& line) {
        return number(line, "from") == 0 && number(line, "to") == to;
      })];
      add(ledger, "messages", 1);
      add(ledger, "other_bytes", bytes);
      add(ledger, "serialised_bytes", bytes);
    }
    for (const std::uint32_t server : {0u, 1u, 2u})
      if (server != 1 || outcome == at_1::taken)
        more_.push_back(trace::snapshot_line(
            server, static_cast<std::uint64_t>(++snapshots_[server]), time, report));
    return *this;
  }
  /// The latest one, for server 1.
  late_reports& lose(std::int64_t time_ns) {
    more_.push_back(trace::lost_line(0, 1, wire::frame_kind::load, begin_ns_ + time_ns));
    return *this;
  }
  late_reports& part(std::uint32_t server, std::uint32_t peer, std::int64_t time_ns) {
    more_.push_back(trace::parted_line(server, peer, begin_ns_ + time_ns));
    return *this;
  }

  void hold() const {
    const auto summary = verified();
    BOOST_TEST(summary.has_value(), (summary ? "" : summary.error().message));
  }
  void are_refused(const char* words) const {
    const auto summary = verified();
    BOOST_REQUIRE(!summary.has_value());
    BOOST_TEST(summary.error().message.find(words) != std::string::npos, summary.error().message);
  }

 private:
  static const lines& whole_trace() {
    static const auto recorded = [] {
      test::world world("exact", 0, 1, 3);
      world.setup.mode = actors::run_mode::local;
      world.add_requests(2, 2, 0.8);
      return split(record(world));
    }();
    return recorded;
  }
  result<trace::trace_summary> verified() const {
    auto all = content_;
    const auto ends = all.begin() + static_cast<std::ptrdiff_t>(find(all, "answered"));
    all.insert(ends, more_.begin(), more_.end());
    return verify_sealed_anew(all);
  }

  lines content_, more_;
  std::int64_t begin_ns_ = 0;
  std::vector<std::int64_t> snapshots_ = std::vector<std::int64_t>(3, 0);
  std::uint64_t number_ = 1'000'000;  ///< Above those of the trace.
};

constexpr auto taken = late_reports::at_1::taken, missing = late_reports::at_1::missing;

}  // namespace

BOOST_AUTO_TEST_SUITE(verify_nodes)

BOOST_AUTO_TEST_CASE(nodes_tell_of_every_decoded_position_what_was_chosen_and_of_nothing_else) {
  const auto holds = [](const lines& content) {
    const auto summary = verify_sealed_anew(content);
    BOOST_TEST(summary.has_value(), (summary ? "" : summary.error().message));
  };
  const auto refused = [](const lines& content, const char* words) {
    const auto summary = verify_sealed_anew(content);
    BOOST_REQUIRE(!summary.has_value());
    BOOST_TEST(summary.error().message.find(words) != std::string::npos, summary.error().message);
  };
  for (const bool scores : {false, true}) {
    auto content = trace_of_nodes(5, scores);
    refused(content, "uncharged bytes");
    BOOST_TEST(tell_choices(content) > 0u);
    holds(content);
    auto changed = content;
    const auto one = static_cast<std::size_t>(
        std::ranges::find_if(changed,
                             [](const auto& line) {
                               return is_token(line) && line.find("uncharged") != std::string::npos;
                             }) -
        changed.begin());
    tell(changed, changed[one], 2);
    refused(changed, "uncharged bytes: found");
    // Of what else a token has nothing may go there.
    changed = content;
    add(changed[one], "other_bytes", -2);
    add(changed[one], "uncharged_bytes", 2);
    BOOST_TEST(!verify_sealed_anew(changed).has_value());
    changed = content;
    const auto many = static_cast<std::size_t>(
        std::ranges::find_if(changed,
                             [](const auto& line) {
                               return is_token(line) && number(line, "hidden_bytes") > 0 &&
                                      line.find("uncharged") == std::string::npos;
                             }) -
        changed.begin());
    // Scored texts are decoded row by row, prompts go in chunks.
    BOOST_TEST((many == changed.size()) == scores);
    if (many < changed.size()) {
      tell(changed, changed[many], 8);
      refused(changed, "in a token frame of");
    }
    // Where the header does not say so, nobody tells.
    changed = content;
    const std::string tells = "\"tells_choices\":true";
    changed[0].replace(changed[0].find(tells), tells.size(), "\"tells_choices\":false");
    refused(changed, "uncharged_bytes: found");
  }
  auto other = small_trace();
  say_choices_are_told(other);
  const auto width = header_of(other).costs.hidden_bytes;
  const auto call = find(other, "transfer", [&](const auto& line) {
    return field(line, "frame") == "\"call\"" && number(line, "hidden_bytes") == width;
  });
  tell(other, other[call], 8);
  refused(other, "in a call frame of");
  // The last rows of prompts are not decoded, alone as they are.
  holds(trace_of_nodes(1, false));
}

BOOST_AUTO_TEST_CASE(a_transfer_tells_its_uncharged_bytes_where_there_are_any) {
  trace::sent_frame frame{.hidden_bytes = 3, .other_bytes = 5, .serialised_bytes = 9};
  BOOST_TEST(trace::transfer_line(frame).find("uncharged") == std::string::npos);
  frame.uncharged_bytes = 8;
  BOOST_TEST(trace::transfer_line(frame).find(
                 R"("other_bytes":5,"uncharged_bytes":8,"serialised_bytes":9,)") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(what_was_told_and_is_not_lost_is_taken_in) {
  late_reports().hold();
  late_reports().tell(0, taken).tell(s, taken).hold();
  late_reports().tell(0, taken).tell(s, missing).are_refused("found 1, expected 2");
  late_reports().tell(0, taken).tell(s, missing).lose(s).hold();
  // No more is taken in than was not lost, whatever else may be missing.
  late_reports().tell(0, taken).tell(s, taken).lose(s).are_refused("found 2, expected 1");
  late_reports().tell(0, taken).tell(s, taken).lose(s).part(1, 0, s).are_refused(
      "found 2, expected 1");
}

BOOST_AUTO_TEST_CASE(as_many_are_missing_at_most_as_were_on_their_way_when_the_session_ended) {
  const auto two_missing = [] {
    return late_reports().tell(0, taken).tell(s, missing).tell(2 * s, missing);
  };
  two_missing().are_refused("found 1, expected 3");
  // Of whichever end says so, and whether they came or not.
  two_missing().part(0, 1, s + silence_ns).hold();
  two_missing().part(1, 0, s + silence_ns).hold();
  late_reports().tell(0, taken).tell(s, taken).part(1, 0, s).hold();
  // The first of the two was not on its way any more.
  two_missing().part(1, 0, s + silence_ns + 1).are_refused("found 1, expected 3 or up to 1 fewer");
  two_missing().part(1, 0, 2 * s + silence_ns).are_refused("found 1, expected 3 or up to 1 fewer");
  late_reports().tell(0, taken).tell(s, missing).part(1, 0, s + silence_ns).hold();
  late_reports()
      .tell(0, taken)
      .tell(s, missing)
      .part(1, 0, s + silence_ns + 1)
      .are_refused("found 1, expected 2");
  // Sessions of others lose nothing of theirs.
  two_missing().part(0, 2, s).part(1, 2, s).are_refused("found 1, expected 3");
}

BOOST_AUTO_TEST_CASE(what_was_sent_just_as_long_ago_as_a_silence_may_last_was_on_its_way) {
  const auto apart = [](std::int64_t ns) {
    return late_reports().tell(0, missing).tell(ns, missing);
  };
  apart(silence_ns).part(1, 0, silence_ns).hold();
  apart(silence_ns + 1).part(1, 0, silence_ns + 1).are_refused("or up to 1 fewer");
}

BOOST_AUTO_TEST_CASE(each_is_excused_once) {
  const auto three_missing = [] {
    return late_reports().tell(0, missing).tell(2 * s, missing).tell(3 * s, missing);
  };
  three_missing().part(0, 1, 3 * s).part(1, 0, 3 * s).hold();
  // Both ends tell of the same end.
  three_missing().part(0, 1, 4 * s).part(1, 0, 4 * s).are_refused("or up to 2 fewer");
  // What is lost is not on its way.
  const auto one_lost = [] {
    return late_reports().tell(0, missing).tell(5 * s, missing).lose(5 * s);
  };
  one_lost().part(1, 0, 5 * s).are_refused("found 0, expected 1");
  late_reports().tell(0, missing).tell(s, missing).lose(s).part(1, 0, s).hold();
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
