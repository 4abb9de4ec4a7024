#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <functional>
#include <string>

#include "test/trace/changed_trace.hpp"
#include "trace/lines.hpp"
#include "trace/verify.hpp"

/// Traces in which a line, a number or a choice is another one: each is refused, also where every sum was made to agree.
namespace ordermoe {

using namespace test;

BOOST_AUTO_TEST_SUITE(changed)

BOOST_AUTO_TEST_CASE(a_trace_without_any_one_line_is_refused) {
  for (std::size_t i = 0; i < small_trace().size(); ++i) {
    auto content = small_trace();
    content.erase(content.begin() + static_cast<std::ptrdiff_t>(i));
    BOOST_TEST(!verify_text(join(content)).has_value(), "line " << i + 1);
  }
}

BOOST_AUTO_TEST_CASE(a_trace_without_any_one_line_is_refused_even_under_a_new_hash) {
  for (std::size_t i = 0; i + 1 < small_trace().size(); ++i) {
    auto content = small_trace();
    content.erase(content.begin() + static_cast<std::ptrdiff_t>(i));
    BOOST_TEST(!verify_sealed_anew(content).has_value(),
               "line " << i + 1 << ": " << small_trace()[i].substr(0, 200));
  }
}

BOOST_AUTO_TEST_CASE(a_trace_with_any_one_line_twice_is_refused_even_under_a_new_hash) {
  for (std::size_t i = 0; i + 1 < small_trace().size(); ++i) {
    auto content = small_trace();
    content.insert(content.begin() + static_cast<std::ptrdiff_t>(i), content[i]);
    BOOST_TEST(!verify_sealed_anew(content).has_value(),
               "line " << i + 1 << ": " << small_trace()[i].substr(0, 200));
  }
}

BOOST_AUTO_TEST_CASE(a_trace_with_any_one_number_changed_is_refused_by_its_hash) {
  const auto text = join(small_trace());
  std::vector<std::size_t> digits;  // The last digit of each number that is not in a string.
  bool quoted = false;
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
      continue;
    }
    if (text[i] == '"') quoted = !quoted;
    if (!quoted && std::isdigit(text[i]) && !std::isdigit(text[i + 1])) digits.push_back(i);
  }
  random_stream draws(1, 5);
  for (int i = 0; i < 300; ++i) {
    const auto at = digits[draws.below(digits.size())];
    auto changed = text;
    changed[at] = changed[at] == '9' ? '0' : static_cast<char>(changed[at] + 1);
    const auto summary = verify_text(changed);
    BOOST_REQUIRE_MESSAGE(!summary.has_value(), "byte " << at);
    const auto& message = summary.error().message;
    BOOST_TEST((message.find("sha256") != std::string::npos ||
                message.find("lines: found") != std::string::npos),
               message);
  }
}

BOOST_AUTO_TEST_CASE(nearly_every_number_of_an_event_is_refused_by_the_checks_alone) {
  // What a trace cannot tell: the sampled ids, the waits that a server reported, and the seed.
  random_stream draws(1, 6);
  std::size_t tried = 0;
  while (tried < 250) {
    auto content = small_trace();
    const auto at = 1 + draws.below(content.size() - 2);
    auto& line = content[at];
    std::vector<std::size_t> ends;
    for (std::size_t i = 1; i + 1 < line.size(); ++i)
      if (std::isdigit(line[i]) && !std::isalnum(line[i + 1]) && line[i + 1] != '_' &&
          line[i + 1] != '.' && line[i + 1] != '"')
        ends.push_back(i);
    const auto digit = ends[draws.below(ends.size())];
    const auto before = line.substr(0, digit);
    const auto name_end = before.rfind("\":");
    const auto name_begin = before.rfind('"', name_end - 1) + 1;
    const auto name = before.substr(name_begin, name_end - name_begin);
    if (name == "id" || name == "wait_ns" || name == "logits") continue;
    line[digit] = line[digit] == '9' ? '0' : static_cast<char>(line[digit] + 1);
    ++tried;
    BOOST_TEST(!verify_sealed_anew(content).has_value(),
               "line " << at + 1 << ", " << name << ": " << line.substr(0, 300));
  }
}

BOOST_AUTO_TEST_CASE(an_executor_that_does_not_host_the_expert_is_refused) {
  check_refused("executor: found server", [](lines& content) {
    const auto plan = header_of(content).plan;
    const planning::placement_index index(plan);
    for (auto& line : content) {
      if (!is(line, "slot")) continue;
      for (std::size_t m = 0; m < plan.n_servers; ++m) {
        const auto layer = static_cast<std::size_t>(number(line, "layer"));
        const auto expert = static_cast<std::size_t>(number(line, "expert"));
        if (index.hosts(m, layer, expert) || (number(line, "executor") == number(line, "server")) ||
            static_cast<std::int64_t>(m) == number(line, "server"))
          continue;
        return set(line, "executor", static_cast<std::int64_t>(m));
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(a_lowered_loss_is_refused) {
  check_refused("loss of the recomputed decision", [](lines& content) {
    auto& line =
        content[find(content, "slot", [](const auto& l) { return number(l, "loss") > 0; })];
    add(line, "loss", -1);
    add(line, "allowance_left", 1);
    add(line, "pool_left", 1);
  });
}

BOOST_AUTO_TEST_CASE(an_allowance_that_does_not_continue_is_refused) {
  check_refused("allowance_left: found",
                [](lines& content) { add(content[find(content, "slot")], "allowance_left", 1); });
}

BOOST_AUTO_TEST_CASE(a_changed_residence_is_refused) {
  check_refused("residence of the recomputed decision", [](lines& content) {
    const auto first = content[find(content, "slot")];
    for (auto& line : content)
      if (is(line, "slot") && field(line, "request") == field(first, "request") &&
          field(line, "first") == field(first, "first") && number(line, "layer") == 0)
        set(line, "residence", (number(first, "residence") + 1) % 3);
  });
}

BOOST_AUTO_TEST_CASE(a_changed_target_is_refused) {
  check_refused("target of the router", [](lines& content) {
    auto& line = content[find(
        content, "slot", [](const auto& l) { return field(l, "kind") == "\"local_substitute\""; })];
    auto other = std::int64_t{0};
    while (other == number(line, "target") || other == number(line, "expert")) ++other;
    set(line, "target", other);
  });
}

BOOST_AUTO_TEST_CASE(attention_outside_the_residency_set_is_refused) {
  check_refused("server: found", [](lines& content) {
    auto& line = content[find(content, "slot")];
    set(line, "server", (number(line, "server") + 1) % 3);
    const auto from = line.find("\"kind\":\"") + 8;
    line.replace(from, line.find('"', from) - from,
                 serving::to_string(
                     actors::classify(static_cast<std::uint32_t>(number(line, "server")),
                                      static_cast<std::uint32_t>(number(line, "target")),
                                      {static_cast<std::uint32_t>(number(line, "executor")),
                                       static_cast<std::uint32_t>(number(line, "expert")), 0})));
  });
}

BOOST_AUTO_TEST_CASE(overheads_are_charged_for_every_batch_and_message) {
  constexpr const char* charged = "mixtral-8x7b:batch-us=40:message-us=15";
  test::world plain("exact"), world("exact");
  world.setup.costs = *named_cost_profile(charged);
  charge_overheads(world.setup.servers, world.setup.costs);
  add_mixed_requests(plain, 5);
  add_mixed_requests(world, 5);
  const auto text = record(world);
  check_holds(text, world);
  const auto last_batch_ends = [](const std::string& trace) {
    std::int64_t last = 0;
    for (const auto& line : split(trace))
      if (is(line, "batch")) last = std::max(last, number(line, "end_ns"));
    return last;
  };
  BOOST_TEST(last_batch_ends(text) > last_batch_ends(record(plain)));
  // Said to be free, the same batches take too long.
  auto content = split(text);
  const std::string batch = "\"batch_ns\":40000", message = "\"message_ns\":15000";
  const auto without = [&](const std::string& part) {
    auto changed = content;
    const auto place = changed[0].find(part);
    BOOST_REQUIRE(place != std::string::npos);
    changed[0].replace(place, part.size(), part.substr(0, part.find(':') + 1) + "0");
    return verify_sealed_anew(changed);
  };
  BOOST_TEST(without(batch).error().message.find("end_ns - start_ns") != std::string::npos);
  BOOST_TEST(without(message).error().message.find("end_ns") != std::string::npos);
  // A trace of before there were overheads says nothing of them.
  auto older = split(record(plain));
  const std::string both = ",\"batch_ns\":0,\"message_ns\":0";
  const auto place = older[0].find(both);
  BOOST_REQUIRE(place != std::string::npos);
  older[0].erase(place, both.size());
  BOOST_TEST(verify_sealed_anew(older).has_value());
}

BOOST_AUTO_TEST_CASE(bytes_off_by_one_are_refused_even_where_the_ledger_agrees) {
  const auto fake = [](lines& content, const std::string& frame) {
    auto& line = content[find(content, "transfer", [&](const auto& l) {
      return field(l, "frame") == fmt::format("\"{}\"", frame);
    })];
    auto& ledger = content[find(content, "link_ledger", [&](const auto& l) {
      return field(l, "from") == field(line, "from") && field(l, "to") == field(line, "to");
    })];
    for (auto* changed : {&line, &ledger}) {
      add(*changed, "other_bytes", 1);
      add(*changed, "serialised_bytes", 1);
    }
    const auto header = header_of(content);
    const auto& link =
        header.servers.link(server_id{static_cast<std::uint32_t>(number(line, "from"))},
                            server_id{static_cast<std::uint32_t>(number(line, "to"))});
    const auto charged = [](const std::string& l) {
      return number(l, "hidden_bytes") + number(l, "kv_bytes") + number(l, "other_bytes");
    };
    const auto longer = transfer_ns(link, charged(line)) - transfer_ns(link, charged(line) - 1);
    add(line, "end_ns", longer);
    add(line, "arrival_ns", longer);
    add(ledger, "busy_ns", longer);
  };
  check_refused("found", [&](lines& content) { fake(content, "call"); });
  check_refused("found", [&](lines& content) { fake(content, "output"); });
  check_refused("other_bytes: found", [&](lines& content) { fake(content, "load"); });
}

BOOST_AUTO_TEST_CASE(bytes_that_nobody_is_charged_for_are_of_nodes_alone) {
  check_refused("uncharged_bytes: found 8", [](lines& content) {
    auto& line = content[find(content, "transfer",
                              [](const auto& l) { return field(l, "frame") == "\"call\""; })];
    const std::string before = "\"serialised_bytes\":";
    line.insert(line.find(before), "\"uncharged_bytes\":8,");
    add(line, "serialised_bytes", 8);
  });
}

BOOST_AUTO_TEST_CASE(a_dropped_transfer_is_refused_even_where_the_ledger_agrees) {
  check_refused("frames from server", [](lines& content) {
    std::size_t last = 0;
    for (std::size_t i = 0; i < content.size(); ++i)
      if (is(content[i], "transfer") && field(content[i], "frame") == "\"call\"") last = i;
    const auto line = content[last];
    auto& ledger = content[find(content, "link_ledger", [&](const auto& l) {
      return field(l, "from") == field(line, "from") && field(l, "to") == field(line, "to");
    })];
    add(ledger, "messages", -1);
    for (const std::string name : {"hidden_bytes", "other_bytes", "serialised_bytes"})
      add(ledger, name, -number(line, name));
    add(ledger, "busy_ns", number(line, "start_ns") - number(line, "end_ns"));
    content.erase(content.begin() + static_cast<std::ptrdiff_t>(last));
  });
}

BOOST_AUTO_TEST_CASE(a_shortened_batch_is_refused) {
  check_refused("end_ns - start_ns: found",
                [](lines& content) { add(content[find(content, "batch")], "end_ns", -1); });
}

BOOST_AUTO_TEST_CASE(batches_that_overlap_are_refused) {
  check_refused("start_ns: found", [](lines& content) {
    const auto first = find(content, "batch");
    const auto& server = field(content[first], "server");
    for (std::size_t i = first + 1; i < content.size(); ++i)
      if (is(content[i], "batch") && field(content[i], "server") == server)
        return set(content[i], "start_ns", number(content[first], "end_ns") - 1);
  });
}

BOOST_AUTO_TEST_CASE(an_expert_batch_with_a_row_less_is_refused) {
  check_refused("rows of batches against those decided", [](lines& content) {
    const auto costs = header_of(content).costs;
    auto& line = content[find(content, "batch", [](const auto& l) {
      return field(l, "work") == "\"expert\"" && number(l, "rows") > 1;
    })];
    add(line, "rows", -1);
    add(line, "flops", -costs.expert_flops);
    auto& ledger = content[find(content, "server_ledger", [&](const auto& l) {
      return field(l, "server") == field(line, "server");
    })];
    add(ledger, "rows", -1);
    add(ledger, "flops", -costs.expert_flops);
  });
}

BOOST_AUTO_TEST_CASE(kv_memory_beyond_the_server_is_refused) {
  check_refused("change_bytes: found", [](lines& content) {
    auto& line = content[find(content, "kv")];
    add(line, "change_bytes", 1'000'000'000'000);
    add(line, "reserved_bytes", 1'000'000'000'000);
  });
}

BOOST_AUTO_TEST_CASE(a_larger_budget_is_refused) {
  check_refused("budget: found", [](lines& content) { add(content[0], "token_budget", 1); });
}

/// The line of the request that states a budget of its own.
std::size_t stating(const lines& content) {
  return find(content, "request",
              [](const auto& line) { return line.find("token_budget") != std::string::npos; });
}

BOOST_AUTO_TEST_CASE(a_request_is_held_to_its_own_budget_and_not_to_the_plans) {
  const auto plans = number(small_trace()[0], "token_budget");
  const auto at = stating(small_trace());
  const auto own = number(small_trace()[at], "token_budget");
  const auto positions = number(small_trace()[at], "budget") / own;
  BOOST_TEST(own > 0);
  BOOST_TEST(own < plans / 2);
  // Its chunks and tokens had allowances of its own budget, which another does not explain.
  check_refused("found", [&](lines& content) {
    set(content[at], "token_budget", plans);
    set(content[at], "budget", plans * positions);
  });
  check_refused("found", [&](lines& content) {
    auto& line = content[at];
    const auto from = line.find("\"token_budget\"");
    line.erase(from, line.find(',', from) + 1 - from);
    set(line, "budget", plans * positions);
  });
  check_refused("budget: found", [&](lines& content) { add(content[at], "token_budget", -1); });
  check_refused("budget: found", [&](lines& content) { add(content[at], "budget", 1); });
  // More than the plan's is nobody's.
  check_refused("field token_budget", [&](lines& content) {
    set(content[at], "token_budget", plans + 1);
    set(content[at], "budget", (plans + 1) * positions);
  });
  check_refused("field token_budget",
                [&](lines& content) { set(content[at], "token_budget", -1); });
}

BOOST_AUTO_TEST_CASE(a_lowered_sum_of_losses_is_refused) {
  check_refused("spent: found", [](lines& content) {
    add(content[find(content, "done", [](const auto& l) { return number(l, "spent") > 0; })],
        "spent", -1);
  });
}

BOOST_AUTO_TEST_CASE(an_answer_before_its_token_arrived_is_refused) {
  check_refused("first_token_ns: found", [](lines& content) {
    add(content[find(content, "done", [](const auto& l) { return number(l, "tokens") > 0; })],
        "first_token_ns", -1);
  });
}

BOOST_AUTO_TEST_CASE(a_policy_other_than_the_runs_is_refused) {
  check_refused("of the recomputed decision", [](lines& content) {
    const std::string key = "\"policy\":{";
    const auto policy = content[0].find(key);
    const auto at = content[0].find("\"candidates\":", policy) + 13;
    content[0][at] = '0' + static_cast<char>(planning::candidate_rule::exact);
  });
}

BOOST_AUTO_TEST_CASE(decisions_after_links_changed_go_by_tables_for_them) {
  test::world world("paper", 0, 1, 4);
  world.add_requests(6, 8, 0.8);
  const scratch_file file;
  actors::service_options options = world.setup;
  auto sink = trace::sink::open(file.path);
  BOOST_REQUIRE(sink.has_value());
  options.sink = std::move(*sink);
  const auto written = options.sink;
  auto begun = actors::service::start(std::move(options));
  BOOST_REQUIRE_MESSAGE(begun.has_value(), (begun ? "" : begun.error().message));
  auto& service = **begun;
  // Tables are made a second after what is told; requests come before, then and later.
  service.at(1'000'000, [&] {
    for (std::uint32_t from = 0; from < 4; ++from)
      for (std::uint32_t to = 2; to < 4; ++to)
        if (from != to) service.measured(from, to, {300'000'000, 0});
  });
  service.at(1'500'000'000, [&] { service.measured(3, 0, {40'000'000, 0}); });
  for (std::size_t i = 0; i < world.setup.requests.size(); ++i) {
    auto spec = world.setup.requests[i];
    spec.arrival_ns = static_cast<std::int64_t>(i) * 600'000'000;
    service.submit(spec, {[](const auto&) {}, [](const auto&) {}});
  }
  BOOST_REQUIRE(service.run_until([&] { return service.outstanding() == 0; }));
  BOOST_REQUIRE(service.close_trace().has_value());
  BOOST_REQUIRE(written->close().has_value());
  const auto content = split(read_text(file.path));
  BOOST_TEST(type_count(content, "links") == 8u);
  const auto holds = verify_sealed_anew(content);
  BOOST_REQUIRE_MESSAGE(holds.has_value(), (holds ? "" : holds.error().message));
  // Decisions did go by them: with other links than these some come out otherwise.
  auto changed_links = content;
  for (auto& line : changed_links)
    for (std::size_t slow;
         is(line, "links") && (slow = line.find("300000000")) != std::string::npos;)
      line.replace(slow, 9, "1000");
  const auto other = verify_sealed_anew(changed_links);
  BOOST_REQUIRE(!other.has_value());
  BOOST_TEST(other.error().message.find("recomputed") != std::string::npos, other.error().message);
  const auto refused = [&](const auto& change, const char* words) {
    auto changed = content;
    const auto place = find(changed, "links");
    change(changed[place]);
    const auto summary = verify_sealed_anew(changed);
    BOOST_REQUIRE(!summary.has_value());
    BOOST_TEST(summary.error().message.find(words) != std::string::npos, summary.error().message);
  };
  refused([](std::string& line) { add(line, "snapshot", 1); }, "snapshot: found");
  refused([](std::string& line) { set(line, "server", 9); }, "field server");
  refused([](std::string& line) { line[line.find("\"bytes_per_s\":[0,") + 17] = '-'; },
          "bytes_per_s");
}

BOOST_AUTO_TEST_CASE(a_plan_that_hosts_an_expert_nowhere_is_refused) {
  check_refused("plan", [](lines& content) {
    auto& header = content[0];
    const auto plan = header.find("\"plan\":{");
    const auto at = header.find("\"n_experts\":", plan) + 12;
    header[at] = '9';
  });
}

BOOST_AUTO_TEST_CASE(ledgers_that_disagree_with_the_lines_are_refused) {
  for (const std::string name : {"messages", "hidden_bytes", "kv_bytes", "other_bytes", "busy_ns"})
    check_refused(name + ": found",
                  [&](lines& content) { add(content[find(content, "link_ledger")], name, 1); });
  for (const std::string name : {"batches", "rows", "flops", "bytes", "busy_ns", "kv_peak_bytes"})
    check_refused(name + ": found",
                  [&](lines& content) { add(content[find(content, "server_ledger")], name, 1); });
}

BOOST_AUTO_TEST_CASE(lines_that_the_actors_cannot_have_written_are_refused) {
  const auto slot = [](lines& content) -> std::string& { return content[find(content, "slot")]; };
  check_refused("expected request, begin, snapshot",
                [&](lines& content) { slot(content).replace(9, 4, "slit"); });
  check_refused("field layer", [&](lines& content) { set(slot(content), "layer", 77); });
  check_refused("field access", [&](lines& content) {
    auto& line = slot(content);
    line.replace(line.find("\"access\":"), 9, "\"excess\":");
  });
  check_refused("field attempt", [&](lines& content) {
    auto& line = slot(content);
    line.insert(line.find("\"attempt\":"), "\"request\":0,");
  });
  check_refused("field loss", [&](lines& content) {
    auto& line = slot(content);
    line.insert(line.find("\"loss\":") + 7, 1, '0');
  });
  check_refused("field end", [&](lines& content) { slot(content) += ' '; });
}

BOOST_AUTO_TEST_CASE(a_line_that_says_a_prompt_is_long_takes_no_memory_for_it) {
  const auto peak_kib = [] {
    rusage used{};
    BOOST_REQUIRE(::getrusage(RUSAGE_SELF, &used) == 0);
    return used.ru_maxrss;
  };
  const auto before = peak_kib();
  check_refused("found", [](lines& content) {
    auto& line = content[find(content, "request", [](const auto& l) {
      return l.find("token_budget") == std::string::npos && field(l, "score") == "false";
    })];
    const std::int64_t longest = 1 << 24;
    set(content[0], "attention_flops_per_context", 1);
    set(line, "prompt_tokens", longest);
    set(line, "budget",
        number(content[0], "token_budget") * (longest + number(line, "max_new_tokens")));
  });
  // In chunks of four positions it would be 700 MiB.
  BOOST_TEST(peak_kib() - before < 256 * 1024);
}

BOOST_AUTO_TEST_CASE(what_64_bits_do_not_hold_is_refused) {
  const auto first_of = [](lines& content, const char* event) -> std::string& {
    return content[find(content, event)];
  };
  constexpr std::int64_t most_cost = 1'000'000'000'000;
  check_refused("whose work at these costs is beyond what can be counted", [&](lines& content) {
    set(content[0], "attention_flops_per_context", most_cost);
    auto& line = first_of(content, "request");
    set(line, "max_new_tokens", 1 << 24);
    set(line, "budget",
        number(content[0], "token_budget") * ((1 << 24) + number(line, "prompt_tokens")));
  });
  check_refused("flops: found", [&](lines& content) {
    auto& line = content[find(content, "batch", [](const auto& l) {
      return l.find("\"work\":\"head\"") != std::string::npos;
    })];
    set(content[0], "head_flops", most_cost);
    set(line, "rows", 1 << 24);
  });
}

BOOST_AUTO_TEST_CASE(members_of_a_header_that_nobody_reads_take_no_quadratic_time) {
  auto content = small_trace();
  std::string members;
  for (int i = 0; i < 500'000; ++i) members += fmt::format("\"m{}\":0,", i);
  const std::string before = "\"profile\":{";
  const auto at = content[0].find(before);
  BOOST_REQUIRE(at != std::string::npos);
  content[0].insert(at + before.size(), members);
  const auto summary = verify_sealed_anew(content);
  BOOST_TEST(summary.has_value(), (summary ? "" : summary.error().message));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
