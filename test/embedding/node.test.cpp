#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <functional>
#include <future>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "embedding/configuration.hpp"
#include "test/embedding/fixture.hpp"

/// The face without actors, with all servers in this process.
namespace ordermoe {

namespace {

using api::problem_code;

const std::string question = "Q: 75 * 5\nA:";

}  // namespace

BOOST_AUTO_TEST_SUITE(node)

BOOST_AUTO_TEST_CASE(a_prompt_is_answered_token_by_token_with_the_references_ids) {
  const test::scratch_folder scratch;
  auto node = test::started(test::options_in(scratch));
  test::heard_answer heard;
  const auto asked = node.submit({.text = question, .max_tokens = 16}, heard.sink());
  BOOST_REQUIRE(asked);
  const auto told = heard.wait();
  BOOST_TEST(heard.mistake() == "");
  BOOST_TEST(told.request == *asked);
  BOOST_TEST(!told.why.has_value());
  BOOST_TEST(told.ids == test::reference_ids(question, 16), boost::test_tools::per_element());
  BOOST_TEST(told.duration.count() > 0);
  BOOST_TEST(told.first_token.count() > 0);
  BOOST_TEST(told.first_token <= told.duration);
  // The same by ids, from another server, and waited for.
  const auto by_ids = node.ask({.ids = (*model::tokenizer::load(test::lineage))->encode(question),
                                .max_tokens = 16,
                                .server = 2});
  BOOST_REQUIRE(by_ids);
  BOOST_TEST(by_ids->ids == told.ids, boost::test_tools::per_element());
  BOOST_TEST(by_ids->text == told.text);
}

BOOST_AUTO_TEST_CASE(the_status_is_json_that_names_every_server) {
  const test::scratch_folder scratch;
  auto node = test::started(test::options_in(scratch));
  const auto told = node.status();
  BOOST_REQUIRE(told);
  const auto read = nlohmann::json::parse(*told);
  BOOST_REQUIRE(read["servers"].size() == 3u);
  for (const auto& server : read["servers"]) {
    BOOST_TEST(!server["name"].get<std::string>().empty());
    BOOST_TEST(server["admitting"].get<bool>());
  }
  BOOST_TEST(node.listens_at().empty());
}

BOOST_AUTO_TEST_CASE(what_cannot_be_started_is_a_problem_that_names_the_place) {
  const test::scratch_folder scratch;
  const auto good = test::options_in(scratch);
  const auto refused = [&](const std::function<void(api::cluster_options&)>& change,
                           problem_code code, const std::string& words) {
    auto options = good;
    change(options);
    const auto begun = api::node::start(options);
    BOOST_REQUIRE_MESSAGE(!begun, words);
    BOOST_TEST((begun.problem().code == code), begun.problem().message);
    BOOST_TEST(test::says(begun.problem().message, words),
               "'" << begun.problem().message << "' has no '" << words << "'");
  };
  refused([](auto& o) { o.model = ""; }, problem_code::usage, "model");
  refused([](auto& o) { o.model = "/nowhere/model"; }, problem_code::not_found, "/nowhere/model");
  refused([&](auto& o) { o.model = scratch.path.string(); }, problem_code::not_found,
          "config.json");
  refused([](auto& o) { o.cluster = ""; }, problem_code::usage, "cluster");
  refused([](auto& o) { o.cluster = "/nowhere/c.toml"; }, problem_code::not_found,
          "/nowhere/c.toml");
  refused([&](auto& o) { o.cluster = scratch.write("bad.toml", "[[server]\n"); },
          problem_code::malformed, "bad.toml:1");
  refused([&](auto& o) { o.plan = "/nowhere/plan.json"; }, problem_code::not_found, "plan");
  refused([&](auto& o) { o.plan = scratch.write("plan.json", "{}"); }, problem_code::malformed,
          "plan.json");
  refused([&](auto& o) { o.profile = "/nowhere/profile.json"; }, problem_code::not_found,
          "profile");
  refused([](auto& o) { o.strategy = "best"; }, problem_code::usage, "local-only");
  refused([](auto& o) { o.costs = "free"; }, problem_code::usage, "free");
  refused([](auto& o) { o.concurrency = 0; }, problem_code::out_of_range, "concurrency");
  refused([](auto& o) { o.search_steps = 0; }, problem_code::out_of_range, "search_steps");
  refused([](auto& o) { o.quality_percent = std::nan(""); }, problem_code::out_of_range,
          "quality_percent");
  refused(
      [](auto& o) {
        o.strategy = "exact";
        o.quality_percent = 1;
      },
      problem_code::usage, "exact has no budget");
}

BOOST_AUTO_TEST_CASE(charges_that_nobody_names_are_those_of_the_plan_or_the_models_own) {
  const test::scratch_folder scratch;
  auto options = test::options_in(scratch);
  options.costs = {};
  job work;
  const auto charged_by = [&] {
    const auto made = embedding::configure(options, work);
    BOOST_REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().message));
    return made->costs.name;
  };
  BOOST_TEST(charged_by() == "measured");
  for (const std::string costs : {"measured", "mixtral-8x7b"}) {
    setup::world_options wanted;
    wanted.model = options.model;
    wanted.cluster = options.cluster;
    wanted.costs = costs;
    const auto world = setup::load_world(wanted, work);
    BOOST_REQUIRE(world.has_value());
    setup::preparation_request request;
    request.strategy = "local-only";
    const auto ready = setup::prepare(*world, request, work);
    BOOST_REQUIRE(ready.has_value());
    options.plan = scratch.write(costs + ".json", setup::plan_file_json(*world, request, *ready));
    BOOST_TEST(charged_by() == costs);
  }
  options.costs = "measured";
  const auto other = embedding::configure(options, work);
  BOOST_REQUIRE(!other.has_value());
  BOOST_TEST((other.error().code == errc::mismatch));
}

BOOST_AUTO_TEST_CASE(a_prompt_that_cannot_be_answered_is_told_why_and_others_go_on) {
  const test::scratch_folder scratch;
  auto node = test::started(test::options_in(scratch));
  BOOST_TEST((node.submit({}, {}).problem().code == problem_code::usage));
  BOOST_TEST((node.submit({.text = "a", .ids = {1}}, {}).problem().code == problem_code::usage));
  const auto refused = [&](const api::prompt& wanted, const std::string& words) {
    const auto told = node.ask(wanted);
    BOOST_REQUIRE_MESSAGE(!told, words);
    BOOST_TEST((told.problem().code == problem_code::out_of_range));
    BOOST_TEST(test::says(told.problem().message, words),
               "'" << told.problem().message << "' has no '" << words << "'");
  };
  std::string book;
  for (int i = 0; i < 1000; ++i) book += "Q: 12 * 3 ";
  refused({.text = book}, "context is 512");
  refused({.text = "Q", .max_tokens = 100'000}, "positions");
  refused({.ids = {1 << 30}}, "vocabulary");
  refused({.ids = {-1}}, "vocabulary");
  refused({.text = "Q", .temperature = -1}, "temperature");
  refused({.text = "Q", .server = 99}, "99");
  refused({.text = "Q", .deadline = std::chrono::milliseconds(-5)}, "a deadline");
  refused({.text = "Q", .deadline = std::chrono::milliseconds::min()}, "a deadline");
  for (const double percent : {-1.0, 100.5, std::nan(""), std::numeric_limits<double>::infinity()})
    refused({.text = "Q", .quality_percent = percent}, "a quality budget of");
  BOOST_TEST(bool(node.ask({.text = question, .max_tokens = 2})));
}

BOOST_AUTO_TEST_CASE(an_answer_says_which_budget_was_in_force) {
  const test::scratch_folder scratch;
  auto options = test::options_in(scratch);
  options.strategy = "local-only";
  options.quality_percent = 20;
  auto node = test::started(options);
  const auto ask = [&](std::optional<double> percent) {
    auto told = node.ask({.text = question, .max_tokens = 16, .quality_percent = percent});
    BOOST_REQUIRE_MESSAGE(bool(told), (told ? "" : told.problem().message));
    BOOST_TEST(told->spent_nats <= told->budget_nats);
    return *told;
  };
  BOOST_TEST(ask({}).quality_percent.value() == 20);
  BOOST_TEST(ask({}).spent_nats > 0);
  BOOST_TEST(ask(50).quality_percent.value() == 20);
  BOOST_TEST(ask(2).quality_percent.value() == 2);
  BOOST_TEST(ask(2).budget_nats < ask({}).budget_nats / 5);
  const auto exact = ask(0);
  BOOST_TEST(exact.quality_percent.value() == 0);
  BOOST_TEST(exact.budget_nats == 0);
  BOOST_TEST(exact.ids == test::reference_ids(question, 16), boost::test_tools::per_element());
  options.quality_percent = -1;
  const auto unlimited = test::started(options).ask({.text = question, .max_tokens = 4});
  BOOST_REQUIRE_MESSAGE(unlimited, (unlimited ? "" : unlimited.problem().message));
  BOOST_TEST(unlimited->quality_percent.value() < 0);
  BOOST_TEST(std::isinf(unlimited->budget_nats));
}

BOOST_AUTO_TEST_CASE(an_answer_can_be_cancelled_at_any_time) {
  const test::scratch_folder scratch;
  auto node = test::started(test::options_in(scratch));
  // At once, after some tokens, and after its end.
  for (const std::size_t after : {0u, 1u, 5u}) {
    test::heard_answer heard;
    const auto asked = node.submit({.text = "In early spring", .max_tokens = 400}, heard.sink());
    BOOST_REQUIRE(asked);
    heard.wait_for_tokens(after);
    node.cancel(*asked);
    const auto told = heard.wait();
    BOOST_TEST(told.finish == "cancelled");
    BOOST_TEST(!told.why.has_value());
    BOOST_TEST(told.ids.size() < 400u);
    BOOST_TEST(heard.mistake() == "");
    node.cancel(*asked);
  }
  node.cancel(12345);
  // From within its own callback.
  std::promise<api::answer> ended;
  const auto asked = node.submit({.text = "In early spring", .max_tokens = 400},
                                 {[&](const api::token& token) { node.cancel(token.request); },
                                  [&](const api::answer& told) { ended.set_value(told); }});
  BOOST_REQUIRE(asked);
  BOOST_TEST(ended.get_future().get().finish == "cancelled");
}

BOOST_AUTO_TEST_CASE(what_a_callback_throws_ends_nothing) {
  const test::scratch_folder scratch;
  auto node = test::started(test::options_in(scratch));
  std::promise<std::size_t> ended;
  BOOST_REQUIRE(
      node.submit({.text = question, .max_tokens = 8}, {[](const api::token&) { throw 1; },
                                                        [&](const api::answer& told) {
                                                          ended.set_value(told.ids.size());
                                                          throw std::runtime_error("no");
                                                        }}));
  BOOST_TEST(ended.get_future().get() == 8u);
  BOOST_TEST(bool(node.ask({.text = question, .max_tokens = 2})));
  BOOST_TEST(node.outstanding() == 0u);
}

BOOST_AUTO_TEST_CASE(nothing_is_told_after_stop_and_every_answer_has_ended) {
  const test::scratch_folder scratch;
  auto node = test::started(test::options_in(scratch));
  std::vector<test::heard_answer> heard(6);
  for (auto& each : heard)
    BOOST_REQUIRE(node.submit({.text = "In early spring", .max_tokens = 400}, each.sink()));
  heard[0].wait_for_tokens(3);
  BOOST_REQUIRE(node.stop());
  std::vector<std::size_t> n_tokens;
  for (auto& each : heard) {
    BOOST_REQUIRE(each.has_ended());
    BOOST_TEST(each.wait().finish == "stopped");
    BOOST_TEST(each.mistake() == "");
    n_tokens.push_back(each.n_tokens());
  }
  BOOST_TEST(node.outstanding() == 0u);
  BOOST_TEST(n_tokens[0] >= 3u);
  // Once stopped it stays so, and says it.
  BOOST_TEST(bool(node.stop()));
  BOOST_TEST((node.submit({.text = "Q"}, {}).problem().code == problem_code::usage));
  BOOST_TEST((node.ask({.text = "Q"}).problem().code == problem_code::usage));
  BOOST_TEST((node.status().problem().code == problem_code::usage));
  node.cancel(0);
}

BOOST_AUTO_TEST_CASE(what_would_wait_for_itself_is_refused_within_a_callback) {
  const test::scratch_folder scratch;
  auto node = test::started(test::options_in(scratch));
  std::promise<std::vector<bool>> ended;
  std::atomic<bool> asked_again = false;
  BOOST_REQUIRE(node.submit({.text = question, .max_tokens = 2},
                            {{}, [&](const api::answer&) {
                               asked_again =
                                   bool(node.submit({.text = question, .max_tokens = 2}, {}));
                               const auto refuses = [](const auto& result) {
                                 return !result && result.problem().code == problem_code::usage &&
                                        test::says(result.problem().message, "callback");
                               };
                               ended.set_value({refuses(node.stop()), refuses(node.status()),
                                                refuses(node.ask({.text = "Q"}))});
                             }}));
  BOOST_TEST(ended.get_future().get() == (std::vector<bool>{true, true, true}));
  BOOST_TEST(asked_again);
}

BOOST_AUTO_TEST_CASE(many_threads_may_ask_while_one_stops) {
  const test::scratch_folder scratch;
  auto node = test::started(test::options_in(scratch));
  std::atomic<std::size_t> n_told = 0, n_accepted = 0;
  std::atomic<bool> has_begun = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (;;) {
        const auto asked = node.submit({.text = "Q", .max_tokens = 3},
                                       {{}, [&](const api::answer&) { ++n_told; }});
        if (!asked) return;
        ++n_accepted;
        has_begun = true;
        node.cancel(*asked);
      }
    });
  while (!has_begun) std::this_thread::yield();
  BOOST_TEST(bool(node.stop()));
  for (auto& each : threads) each.join();
  BOOST_TEST(n_told == n_accepted);
}

BOOST_AUTO_TEST_CASE(starts_and_stops_leave_no_thread_and_no_file_behind) {
  const test::scratch_folder scratch;
  const auto options = test::options_in(scratch);
  std::size_t threads = 0, files = 0;
  for (int i = 0; i < 8; ++i) {
    auto node = test::started(options);
    BOOST_TEST(bool(node.ask({.text = question, .max_tokens = 2})));
    // Moved, and ended by its destructor.
    api::node moved(std::move(node));
    BOOST_TEST(moved.outstanding() == 0u);
    node = std::move(moved);
    { const api::node last(std::move(node)); }
    if (i == 0) {
      threads = test::threads_in_the_end();
      files = test::entries_of("/proc/self/fd");
    }
  }
  BOOST_TEST(test::threads_in_the_end() == threads);
  BOOST_TEST(test::entries_of("/proc/self/fd") == files);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
