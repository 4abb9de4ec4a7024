#include "trace/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>

#include "test/trace/changed_trace.hpp"
#include "trace/lines.hpp"

namespace ordermoe {

using namespace test;

BOOST_AUTO_TEST_SUITE(verify)

BOOST_AUTO_TEST_CASE(traces_of_every_family_hold_under_its_own_rule_for_gates) {
  for (const auto kind : {model::family::mixtral, model::family::qwen2_moe,
                          model::family::qwen3_moe, model::family::olmoe})
    BOOST_TEST_CONTEXT(model::to_string(kind)) {
      // Of what is left out nothing runs, and gates follow the rule, too.
      for (const auto& [name, budget] : {std::pair{"drop", -1.0}, std::pair{"local-skip", 0.0}}) {
        test::world without(name, budget, 1, 3, test::random_model(kind));
        without.setup.chunk_rows = 4;
        without.add_requests(3, 3, 0.8);
        const auto lines = record(without);
        check_holds(lines, without);
        BOOST_TEST(lines.find("\"kind\":\"left_out\"") != std::string::npos, name);
      }
      // Decisions with substitutes, whose gates follow the rule too.
      test::world world("local-only", 5, 1, 3, test::random_model(kind));
      world.setup.chunk_rows = 4;
      world.add_requests(3, 3, 0.8);
      const auto text = record(world);
      check_holds(text, world);
      auto content = split(text);
      const std::string right = world.setup.model->config().gates == model::gate_rule::renormalised
                                    ? "renormalised"
                                    : "probabilities";
      const std::string wrong = right == "renormalised" ? "probabilities" : "renormalised";
      const auto restate = [&](const std::string& from, const std::string& to) {
        const auto place = content[0].find(from);
        BOOST_REQUIRE(place != std::string::npos);
        content[0].replace(place, from.size(), to);
        return verify_sealed_anew(content);
      };
      const auto refused = restate("\"router_gates\":\"" + right, "\"router_gates\":\"" + wrong);
      BOOST_REQUIRE(!refused.has_value());
      BOOST_TEST(refused.error().message.find("gate of the router") != std::string::npos,
                 refused.error().message);
      const auto unknown = restate("\"router_gates\":\"" + wrong, "\"router_gates\":\"halved");
      BOOST_REQUIRE(!unknown.has_value());
      BOOST_TEST(
          unknown.error().message.find("router_gates: found \"halved\"") != std::string::npos,
          unknown.error().message);
      BOOST_TEST(!restate("\"router_gates\":\"halved\",", "").has_value());
    }
}

BOOST_AUTO_TEST_CASE(emulated_traces_of_every_strategy_and_budget_hold) {
  for (const auto& strategy : planning::strategy_names())
    for (const double percent : {0.0, 5.0, -1.0}) {
      BOOST_TEST_CONTEXT(strategy << " at " << percent << " per cent") {
        test::world world(strategy, percent);
        if (percent != 0 && !world.setup.chosen.has_budget) continue;
        add_mixed_requests(world, 5);
        const auto text = record(world);
        check_holds(text, world);
      }
    }
}

BOOST_AUTO_TEST_CASE(what_is_left_out_cannot_be_told_as_anything_else) {
  test::world world("drop", -1, 1, 3);
  world.setup.chunk_rows = 4;
  world.add_requests(3, 3, 0.8);
  const auto content = split(record(world));
  const auto is_left_out = [](const std::string& line) {
    return field(line, "kind") == "\"left_out\"";
  };
  const auto place = find(content, "slot", is_left_out);
  const auto refused = [&](const std::function<void(std::string&)>& change) {
    auto changed = content;
    change(changed[place]);
    BOOST_REQUIRE((changed[place] != content[place]));
    const auto summary = verify_sealed_anew(changed);
    BOOST_REQUIRE(!summary.has_value());
    return summary.error().message;
  };
  const auto expert = number(content[place], "expert");
  const auto says = [](const std::string& message, const std::string& what) {
    BOOST_TEST(message.find(what) != std::string::npos, message);
  };
  says(refused([&](auto& line) { set(line, "expert", expert == 0 ? 1 : 0); }), "kind");
  says(refused([&](auto& line) { set(line, "executor", (number(line, "executor") + 1) % 3); }),
       "kind");
  says(refused([&](auto& line) { add(line, "loss", 1); }), "loss of the recomputed decision");
  // As if its target had run.
  says(refused([&](auto& line) {
         const auto at = line.find("left_out");
         line.replace(at, 8, "local_substitute");
       }),
       "executor: found server");
}

BOOST_AUTO_TEST_CASE(emulated_traces_hold_on_other_clusters_and_residencies) {
  for (const std::uint64_t seed : {2, 3, 4})
    for (const std::string strategy : {"paper", "ordermoe", "layer-shards"}) {
      BOOST_TEST_CONTEXT(strategy << " with seed " << seed) {
        test::world world(strategy, 5, seed, 4 + seed);
        if (strategy == "ordermoe")
          world.setup.chosen.plan.residence = planning::roaming_residency(
              world.setup.servers.size(), test::tiny_model()->config().n_layers);
        add_mixed_requests(world, 6);
        world.setup.requests[2].stop_strings = {"no text ever holds this"};
        check_holds(record(world), world);
      }
    }
}

BOOST_AUTO_TEST_CASE(traces_of_requests_with_budgets_of_their_own_hold) {
  const std::optional<double> stated[] = {4.0, {}, 0.0, 100.0, 1.0};
  for (const std::string strategy : {"exact", "layer-shards", "local-only", "paper", "ordermoe"})
    for (const double percent : {5.0, -1.0})
      for (const auto mode : {actors::run_mode::emulated, actors::run_mode::local}) {
        BOOST_TEST_CONTEXT(strategy << " at " << percent << " per cent") {
          test::world world(strategy, percent);
          world.setup.mode = mode;
          add_mixed_requests(world, 5);
          for (std::size_t i = 0; i < world.setup.requests.size(); ++i)
            world.setup.requests[i].quality_percent = stated[i % std::size(stated)];
          const auto text = record(world);
          check_holds(text, world);
          BOOST_TEST(type_count(split(text), "request") == 5u);
        }
      }
}

BOOST_AUTO_TEST_CASE(what_travels_with_tokens_is_part_of_their_frames) {
  for (const std::string strategy : {"exact", "layer-shards", "ordermoe"})
    for (const bool may_stop : {false, true})
      for (const auto mode : {actors::run_mode::emulated, actors::run_mode::local}) {
        BOOST_TEST_CONTEXT(strategy << (may_stop ? ", from the access server" : "")) {
          test::world world(strategy, 5);
          world.setup.mode = mode;
          world.setup.chunk_rows = 4;
          add_mixed_requests(world, 7);
          world.add_requests(2, 7, 0.8, 20);
          auto& asks = world.setup.requests;
          if (may_stop)
            for (auto& each : asks) each.stop_strings = {"no text ever holds this"};
          asks[0].choice.top_p = 0.9;
          asks[0].choice.logprobs = 0;
          asks[0].tells_executions = true;
          asks[1].choice.logprobs = 5;  // Scored.
          asks[2].tells_executions = true;
          asks[3].choice.logprobs = 2;
          asks[4].choice.frequency_penalty = 0.5;
          asks[4].choice.bias = {{1, -2.0f}, {3, 4.0f}};
          asks[5].choice.presence_penalty = -0.5;
          asks[5].choice.logprobs = 31;
          asks[5].tells_executions = true;
          const auto text = record(world);
          check_holds(text, world);
          if (strategy != "layer-shards") continue;
          // Here all tokens travel: what is said to is what did.
          auto content = split(text);
          for (const auto& [name, by] :
               {std::pair{"biases", 1}, std::pair{"logprobs", 1}, std::pair{"logprobs", -1}}) {
            auto changed = content;
            for (auto& line : changed)
              if (field(line, "type") == "\"request\"" && line.find("\"biases\"") != line.npos &&
                  number(line, name) + by >= 0)
                add(line, name, by);
            const auto refused = verify_sealed_anew(changed);
            BOOST_REQUIRE(!refused.has_value());
            BOOST_TEST(refused.error().message.find("bytes") != std::string::npos,
                       refused.error().message);
          }
        }
      }
}

BOOST_AUTO_TEST_CASE(a_trace_of_one_server_holds) {
  test::world world("exact", 0, 1, 1);
  add_mixed_requests(world, 4);
  check_holds(record(world), world);
}

BOOST_AUTO_TEST_CASE(local_traces_hold) {
  for (const std::string strategy : {"exact", "layer-shards", "ordermoe"}) {
    BOOST_TEST_CONTEXT(strategy) {
      test::world world(strategy, 5);
      world.setup.mode = actors::run_mode::local;
      add_mixed_requests(world, 5);
      check_holds(record(world), world);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_sum_of_losses_waits_for_every_chunk_of_the_prompt) {
  // Chunks end on different servers: the report of an early one comes after the last token.
  test::world world("local-only", 5, 10, 3);
  world.setup.chunk_rows = 8;
  world.add_requests(1, 1, 0.8, 30);
  check_holds(record(world), world);
}

BOOST_AUTO_TEST_CASE(the_same_seed_gives_the_same_bytes_and_another_seed_others) {
  const auto run = [](std::uint64_t seed) {
    test::world world("ordermoe", 5, seed);
    add_mixed_requests(world, 5);
    return record(world);
  };
  const auto first = run(1);
  BOOST_TEST((run(1) == first));
  BOOST_TEST((run(2) != first));
}

BOOST_AUTO_TEST_CASE(the_small_trace_has_every_kind_of_line) {
  for (const std::string type : {"run", "request", "snapshot", "slot", "batch", "transfer", "kv",
                                 "token", "done", "link_ledger", "server_ledger", "end"})
    BOOST_TEST(type_count(small_trace(), type) > 0u, type);
  const auto summary = verify_text(join(small_trace()));
  BOOST_REQUIRE_MESSAGE(summary.has_value(), (summary ? "" : summary.error().message));
  BOOST_TEST(summary->loss > 0);
  BOOST_TEST(summary->slots[2] + summary->slots[3] > 0);
  BOOST_TEST(verify_sealed_anew(small_trace()).has_value());
}

/// What two processes may lose is lost between them alone: nothing is where one process has all servers.
BOOST_AUTO_TEST_CASE(load_reports_may_be_missing_only_where_it_is_said_that_they_were_lost) {
  const auto is_load = [](const std::string& line) {
    return is(line, "transfer") && line.find(R"("frame":"load")") != std::string::npos;
  };
  const auto number = [](const std::string& line, const char* name) {
    return std::stoll(line.substr(line.find(fmt::format("\"{}\":", name)) + std::strlen(name) + 3));
  };
  // By the wall clock: how often waits change is not the test's to say.
  std::vector<std::string> content;
  for (int attempt = 0; attempt < 50 && std::ranges::none_of(content, is_load); ++attempt) {
    test::world world("exact", 0, 3);
    world.setup.mode = actors::run_mode::local;
    add_mixed_requests(world, 30);
    world.add_requests(30, 30, 0.8);
    world.setup.load_period_ns = 50'000;
    content = split(record(world));
  }
  const auto last = std::find_if(content.rbegin(), content.rend(), is_load);
  BOOST_REQUIRE((last != content.rend()));
  const auto from = number(*last, "from"), to = number(*last, "to"),
             time = number(*last, "sent_ns");
  const auto with = [&](const std::vector<std::string>& more) {
    auto changed = content;
    const auto place = content.size() - static_cast<std::size_t>(last - content.rbegin());
    changed.insert(changed.begin() + static_cast<std::ptrdiff_t>(place), more.begin(), more.end());
    return verify_sealed_anew(changed);
  };
  const auto lost = fmt::format(
      R"({{"type":"lost","from":{},"to":{},"frame":"load","time_ns":{}}})", from, to, time);
  const auto parted =
      fmt::format(R"({{"type":"parted","server":{},"peer":{},"time_ns":{}}})", to, from, time);
  const auto refused = [&](const result<trace::trace_summary>& found, const char* words) {
    BOOST_REQUIRE(!found.has_value());
    BOOST_TEST(found.error().message.find(words) != std::string::npos, found.error().message);
  };
  BOOST_TEST(with({}).has_value());
  // It was taken in, so it was not lost.
  refused(with({lost}), "snapshots of server");
  refused(with({parted, lost}), "snapshots of server");
  auto early = content;
  const auto first = std::ranges::find_if(early, [&](const std::string& line) {
    return is_load(line) && number(line, "from") == from && number(line, "to") == to;
  });
  early.insert(
      first, fmt::format(R"({{"type":"lost","from":{},"to":{},"frame":"load","time_ns":{}}})", from,
                         to, number(*first, "sent_ns")));
  refused(verify_sealed_anew(early), "expected its transfer before");
  refused(with({fmt::format(R"({{"type":"parted","server":{},"peer":{},"time_ns":0}})", to, to)}),
          "expected none");
  // Of the end of a session nobody knows what it lost.
  BOOST_TEST(with({parted}).has_value());
  check_refused("expected none where links lose none", [&](lines& changed) {
    const auto load = std::ranges::find_if(changed, is_load);
    changed.insert(
        load + 1,
        fmt::format(R"({{"type":"lost","from":{},"to":{},"frame":"load","time_ns":{}}})",
                    number(*load, "from"), number(*load, "to"), number(*load, "sent_ns")));
  });
}

/// Without the last report of another server that some server took in and did not decide by.
struct without_a_report {
  lines content;
  std::int64_t from = 0, to = 0, sent_ns = 0;
};
std::int64_t number_of(const std::string& line, const char* name) {
  const auto key = fmt::format("\"{}\":", name);
  return std::stoll(line.substr(line.find(key) + key.size()));
}
std::optional<without_a_report> leave_out_a_report(const lines& content, std::int64_t n_servers) {
  for (std::int64_t to = 0; to < n_servers; ++to) {
    const auto last = std::find_if(content.rbegin(), content.rend(), [&](const auto& line) {
      return line.find("\"snapshot\":") != std::string::npos && number_of(line, "server") == to;
    });
    if (last == content.rend() || !is(*last, "snapshot") || number_of(*last, "reporter") == to)
      continue;
    without_a_report made{content, number_of(*last, "reporter"), to, 0};
    for (const auto& line : content)
      if (is(line, "transfer") && line.find(R"("frame":"load")") != std::string::npos &&
          number_of(line, "from") == made.from && number_of(line, "to") == to)
        made.sent_ns = number_of(line, "sent_ns");
    made.content.erase(made.content.end() - 1 - (last - content.rbegin()));
    return made;
  }
  return std::nullopt;
}

BOOST_AUTO_TEST_CASE(a_report_is_missing_only_where_a_session_ended_while_it_was_on_its_way) {
  std::optional<without_a_report> found;
  for (int attempt = 0; attempt < 50 && !found; ++attempt) {
    test::world world("exact", 0, 3);
    world.setup.mode = actors::run_mode::local;
    add_mixed_requests(world, 30);
    world.add_requests(30, 30, 0.8);
    world.setup.load_period_ns = 50'000;
    const auto n = static_cast<std::int64_t>(world.setup.servers.size());
    BOOST_REQUIRE(n > 2);
    found = leave_out_a_report(split(record(world)), n);
  }
  BOOST_REQUIRE(found.has_value());
  const auto from = found->from, to = found->to, sent_ns = found->sent_ns;
  const auto with = [&](std::int64_t server, std::int64_t peer, std::int64_t time_ns,
                        const lines& behind = {}) {
    auto changed = found->content;
    auto ends =
        std::ranges::find_if(changed, [](const auto& line) { return is(line, "answered"); });
    ends = changed.insert(ends, trace::parted_line(static_cast<std::uint32_t>(server),
                                                   static_cast<std::uint32_t>(peer), time_ns));
    changed.insert(ends + 1, behind.begin(), behind.end());
    return verify_sealed_anew(changed);
  };
  const auto refused = [](const result<trace::trace_summary>& verified, const char* words) {
    BOOST_REQUIRE(!verified.has_value());
    BOOST_TEST(verified.error().message.find(words) != std::string::npos, verified.error().message);
  };
  refused(verify_sealed_anew(found->content), "snapshots of server");
  // Whichever end says so; nobody knows how long it was silent before, but no longer than this.
  constexpr std::int64_t longest_silence_ns = 3'000'000'000;
  BOOST_TEST(with(to, from, sent_ns).has_value());
  BOOST_TEST(with(from, to, sent_ns).has_value());
  BOOST_TEST(with(from, to, sent_ns + longest_silence_ns).has_value());
  // The link that lost it may say so later, behind whatever it sent meanwhile.
  std::int64_t last_ns = sent_ns;
  for (const auto& line : found->content)
    if (is(line, "transfer") && number_of(line, "from") == from && number_of(line, "to") == to)
      last_ns = std::max(last_ns, number_of(line, "sent_ns"));
  const auto lost = fmt::format(
      R"({{"type":"lost","from":{},"to":{},"frame":"load","time_ns":{}}})", from, to, last_ns);
  const auto lost_behind = with(from, to, sent_ns, {lost});
  BOOST_TEST(lost_behind.has_value(), (lost_behind ? "" : lost_behind.error().message));
  refused(with(from, to, sent_ns + longest_silence_ns + 1), "snapshots of server");
  std::int64_t third = 0;
  while (third == from || third == to) ++third;
  refused(with(from, third, sent_ns), "snapshots of server");
  refused(with(third, to, sent_ns), "snapshots of server");
}

BOOST_AUTO_TEST_CASE(a_file_that_is_no_whole_trace_is_refused) {
  const auto whole = join(small_trace());
  BOOST_TEST((trace::verify_trace("/no/such/trace.jsonl").error().code == errc::not_found));
  for (const auto& text : {std::string(), std::string("\n"), std::string("{}\n"),
                           std::string(1, '\0'), whole.substr(0, whole.size() / 2),
                           whole.substr(0, whole.size() - 1), whole + "\n", whole + whole}) {
    const auto summary = verify_text(text);
    BOOST_REQUIRE(!summary.has_value());
    BOOST_TEST((summary.error().code == errc::malformed), summary.error().message);
  }
}

BOOST_AUTO_TEST_CASE(a_file_that_cannot_be_reached_is_named) {
  const std::string longer_than_names_are(300, 'x');
  const auto found = trace::verify_trace(longer_than_names_are);
  BOOST_REQUIRE(!found.has_value());
  BOOST_TEST((found.error().code == errc::io), found.error().message);
  BOOST_TEST(found.error().message.starts_with(longer_than_names_are), found.error().message);
}

BOOST_AUTO_TEST_CASE(progress_runs_from_zero_to_one) {
  const scratch_file file;
  std::ofstream(file.path, std::ios::binary) << join(small_trace());
  double last = 0;
  const auto summary = trace::verify_trace(file.path, [&](double share) {
    BOOST_TEST(share >= last);
    last = share;
  });
  BOOST_TEST(summary.has_value());
  BOOST_TEST(last == 1);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
