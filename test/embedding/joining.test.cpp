#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <deque>
#include <filesystem>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <thread>
#include <utility>

#include "actors/protocol/cluster_seat.hpp"
#include "config/files.hpp"
#include "config/node_file.hpp"
#include "ordermoe/actors.hpp"
#include "test/embedding/fixture.hpp"

/// Members that are given no plan, or an older one than the others have.
namespace ordermoe {

namespace {

namespace fs = std::filesystem;
using api::problem_code;

const std::string question = "Q: 75 * 5\nA:";

/// What a member told, in lines.
class kept_log {
 public:
  std::function<void(const api::log_record&)> taker() {
    return [this](const api::log_record& told) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(told.line);
      changed_.notify_all();
    };
  }
  std::size_t count(const std::string& words) const {
    const std::lock_guard lock(mutex_);
    return counted(words);
  }
  void wait_for(const std::string& words, std::size_t times = 1) {
    std::unique_lock lock(mutex_);
    const bool there =
        changed_.wait_for(lock, std::chrono::seconds(60), [&] { return counted(words) >= times; });
    std::string all;
    for (const auto& line : lines_) all += line + "\n";
    BOOST_REQUIRE_MESSAGE(there, "no '" << words << "' in " << all);
  }

 private:
  std::size_t counted(const std::string& words) const {
    return static_cast<std::size_t>(
        std::ranges::count_if(lines_, [&](const auto& line) { return test::says(line, words); }));
  }
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

/// Three servers of which any has room for all experts, and a node file for each that a test may change.
struct cluster_at_hand {
  test::scratch_folder scratch;
  setup::cluster_folder folder = test::prepare_cluster(scratch, "edge", 12);

  static std::string name_of(int m) { return "s" + std::to_string(m); }
  std::string config(int m) const { return folder.config(name_of(m)).string(); }
  node_file file_of(int m) const {
    const auto file = read_node_file(config(m));
    BOOST_REQUIRE_MESSAGE(file.has_value(), (file ? "" : file.error().message));
    return *file;
  }
  void change(int m, const std::function<void(node_file&)>& how) const {
    auto file = file_of(m);
    how(file);
    BOOST_REQUIRE(write_file(config(m), node_toml(file)).has_value());
  }
  /// Plan and profile where nothing is.
  void take_plan_from(int m) const {
    change(m, [&](node_file& file) {
      file.plan = folder.node(name_of(m)) / "plan.json";
      file.profile = folder.node(name_of(m)) / "profile.json";
    });
  }
  /// The plan that was made, but of this epoch, and such that server 0 answers its users alone.
  std::string write_plan(const std::string& name, std::uint64_t epoch) const {
    const auto made = setup::read_plan_file(folder.plan());
    BOOST_REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().message));
    auto plan = made->plan;
    std::int64_t bytes = 0;
    for (const auto each : plan.expert_bytes_used) bytes += each;
    bytes /= static_cast<std::int64_t>(plan.experts.size());
    plan.experts.clear();
    for (std::uint32_t layer = 0; layer < plan.n_layers; ++layer)
      for (std::uint32_t expert = 0; expert < plan.n_experts; ++expert) {
        planning::placed_expert each;
        each.layer = layer_id{layer};
        each.expert = expert_id{expert};
        plan.experts.push_back(each);
      }
    plan.expert_bytes_used = {bytes * static_cast<std::int64_t>(plan.experts.size()), 0, 0};
    plan.residence[0].layers.assign(plan.n_layers, 0b001);
    plan.epoch = epoch;
    const auto text = setup::with_plan(*read_file(folder.plan()), plan);
    BOOST_REQUIRE(text.has_value());
    return scratch.write(name, *text);
  }

  /// Server 0 goes by an older plan than the others: its file, and theirs.
  std::pair<std::string, std::string> leave_first_behind() const {
    const auto older = write_plan("older.json", 3), newer = write_plan("newer.json", 4);
    change(0, [&](node_file& file) { file.plan = older; });
    for (const int m : {1, 2}) change(m, [&](node_file& file) { file.plan = newer; });
    return {older, newer};
  }
};

api::member_options options_of(const cluster_at_hand& cluster, int m, kept_log& log) {
  api::member_options options{.config = cluster.config(m)};
  options.log = log.taker();
  // A test that goes wrong ends.
  options.longest = std::chrono::seconds(60);
  return options;
}

api::node started(const api::member_options& options, caf::actor_system* host = nullptr) {
  auto begun = host != nullptr ? api::start_in(*host, options) : api::node::start(options);
  BOOST_REQUIRE_MESSAGE(begun, (begun ? "" : begun.problem().message));
  return std::move(*begun);
}

void refused(const api::member_options& options, problem_code code,
             const std::vector<std::string>& words) {
  const auto begun = api::node::start(options);
  BOOST_REQUIRE(!begun);
  BOOST_TEST((begun.problem().code == code), begun.problem().message);
  for (const auto& each : words)
    BOOST_TEST(test::says(begun.problem().message, each),
               "'" << begun.problem().message << "' has no '" << each << "'");
}

/// Until it is connected to all others; while it changes its plan there is no status.
void await_peers(api::node& node) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto sees_all = [&] {
    const auto status = node.status();
    if (!status) return false;
    const auto told = nlohmann::json::parse(*status);
    for (const auto& peer : told.at("peers"))
      if (!peer["up"].get<bool>()) return false;
    return true;
  };
  while (!sees_all()) {
    BOOST_REQUIRE(std::chrono::steady_clock::now() < limit);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

/// Asks on and on, each time when the answer before has ended.
class asking_thread {
 public:
  asking_thread(api::node& node, std::uint32_t max_tokens)
      : expected(test::reference_ids(question, max_tokens)), thread_([this, &node, max_tokens] {
          while (!ends_) {
            auto got = node.ask({.text = question, .max_tokens = max_tokens});
            if (!got) {
              if (got.problem().code != problem_code::interrupted) others = got.problem().message;
              ++interrupted;
              continue;
            }
            if (got->ids == expected) ++(interrupted == 0 ? before : after);
          }
        }) {}
  void end() {
    ends_ = true;
    thread_.join();
  }

  const std::vector<std::int32_t> expected;
  std::atomic<std::size_t> before = 0, interrupted = 0, after = 0;
  std::string others;  ///< Once it has ended: what went wrong otherwise.

 private:
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

void await_some(const std::atomic<std::size_t>& count) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (count == 0) {
    BOOST_REQUIRE(std::chrono::steady_clock::now() < limit);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(joining)

BOOST_AUTO_TEST_CASE(a_member_without_a_plan_fetches_the_one_in_force) {
  const cluster_at_hand cluster;
  cluster.take_plan_from(0);
  // Of a plan of before, which the one in force does not go by.
  const auto activation = cluster.file_of(0).state / actors::kept_activation_name;
  fs::create_directories(activation.parent_path());
  BOOST_REQUIRE(write_file(activation, "of before").has_value());
  kept_log log, others;
  // It waits for them.
  auto starting =
      std::async(std::launch::async, [&] { return api::node::start(options_of(cluster, 0, log)); });
  log.wait_for("plan.wanted");
  auto second = started(options_of(cluster, 1, others));
  auto third = started(options_of(cluster, 2, others));
  auto begun = starting.get();
  BOOST_REQUIRE_MESSAGE(begun, (begun ? "" : begun.problem().message));
  for (auto* node : {&*begun, &second, &third}) await_peers(*node);
  const auto answer = begun->ask({.text = question, .max_tokens = 12});
  BOOST_REQUIRE_MESSAGE(answer, (answer ? "" : answer.problem().message));
  BOOST_TEST(answer->ids == test::reference_ids(question, 12), boost::test_tools::per_element());
  const auto file = cluster.file_of(0);
  BOOST_CHECK(*read_file(file.plan) == *read_file(cluster.folder.plan()));
  BOOST_CHECK(*read_file(file.profile) == *read_file(cluster.folder.profile()));
  BOOST_TEST(!fs::exists(file.state / "joining"));
  BOOST_TEST(!fs::exists(activation));
  BOOST_TEST(log.count("plan.fetched") == 1u);
  BOOST_TEST(log.count("node.ready") == 1u);
  BOOST_TEST(others.count("plan.wanted") == 0u);
}

BOOST_AUTO_TEST_CASE(a_member_with_an_older_plan_goes_over_to_the_one_in_force_while_it_answers) {
  caf::actor_system_config config;
  caf::actor_system host(config);
  const auto actors_before = host.registry().running();
  for (auto* system : {static_cast<caf::actor_system*>(nullptr), &host}) {
    const cluster_at_hand cluster;
    const auto [older, newer] = cluster.leave_first_behind();
    kept_log log, others;
    auto node = started(options_of(cluster, 0, log), system);
    const auto places = node.listens_at();
    {
      std::deque<asking_thread> asking;
      // A node that ends computes on for up to some 40 ms, in which a few answers of one length may all end whole, and then nothing
      // would be interrupted. Twelve of unequal lengths take four times as long, and end at different times.
      for (std::uint32_t max_tokens = 100; max_tokens <= 210; max_tokens += 10)
        asking.emplace_back(node, max_tokens);
      for (const auto& each : asking) await_some(each.before);
      auto second = started(options_of(cluster, 1, others));
      auto third = started(options_of(cluster, 2, others));
      log.wait_for("node.ready", 2);
      await_peers(node);
      for (const auto& each : asking) await_some(each.interrupted > 0 ? each.after : each.before);
      for (auto& each : asking) each.end();
      std::size_t interrupted = 0, after = 0;
      for (const auto& each : asking) {
        BOOST_TEST(each.others == "");
        BOOST_TEST(each.interrupted <= 1u);
        interrupted += each.interrupted;
        after += each.after;
      }
      // What was under way ended by name, and whoever asked again was answered.
      BOOST_TEST(interrupted > 0u);
      BOOST_TEST(after > 0u);
      BOOST_TEST(log.count("plan.fetched epoch=4") == 1u);
      BOOST_CHECK(*read_file(older) == *read_file(newer));
      BOOST_TEST(node.listens_at() == places, boost::test_tools::per_element());
      BOOST_TEST(node.outstanding() == 0u);
    }
    BOOST_TEST(bool(node.stop()));
  }
  BOOST_TEST(host.registry().running() == actors_before);
}

BOOST_AUTO_TEST_CASE(who_waits_for_another_plan_may_cancel_and_waits_no_longer_than_was_said) {
  const cluster_at_hand cluster;
  cluster.leave_first_behind();
  kept_log log, others;
  // Its second node is held up at its start for as long as the test wants.
  std::promise<void> goes_on;
  auto options = options_of(cluster, 0, log);
  options.log = [&, keep = log.taker(), n = 0](const api::log_record& told) mutable {
    keep(told);
    if (told.event == "node.ready" && ++n == 2)
      goes_on.get_future().wait_for(std::chrono::seconds(60));
  };
  auto node = started(options);
  auto second = started(options_of(cluster, 1, others));
  auto third = started(options_of(cluster, 2, others));
  log.wait_for("node.ready", 2);
  std::array<std::promise<api::answer>, 3> ended;
  const auto submit = [&](std::size_t i, api::prompt wanted) {
    const auto id = node.submit(
        wanted, {{}, [&ended, i](const api::answer& told) { ended[i].set_value(told); }});
    BOOST_REQUIRE(bool(id));
    return *id;
  };
  const auto of = [&](std::size_t i) {
    auto told = ended[i].get_future();
    BOOST_REQUIRE((told.wait_for(std::chrono::seconds(60)) == std::future_status::ready));
    return told.get();
  };
  const auto unwanted = submit(0, {.text = question});
  submit(1, {.text = question, .deadline = std::chrono::milliseconds(100)});
  submit(2, {.text = question, .max_tokens = 12});
  node.cancel(unwanted);
  BOOST_TEST(of(0).finish == "cancelled");
  const auto late = of(1);
  BOOST_TEST(late.finish == "failed");
  BOOST_REQUIRE(late.why.has_value());
  BOOST_TEST((late.why->code == problem_code::timed_out));
  BOOST_TEST(late.why->message == "not answered within 0.1 s");
  goes_on.set_value();
  BOOST_TEST(of(2).ids == test::reference_ids(question, 12), boost::test_tools::per_element());
  BOOST_TEST(bool(node.stop()));
}

BOOST_AUTO_TEST_CASE(a_member_that_cannot_go_over_says_why_to_whoever_asks) {
  const cluster_at_hand cluster;
  cluster.leave_first_behind();
  kept_log log, others;
  auto node = started(options_of(cluster, 0, log));
  BOOST_REQUIRE(write_file(cluster.file_of(0).state / "boot", "no number").has_value());
  auto second = started(options_of(cluster, 1, others));
  auto third = started(options_of(cluster, 2, others));
  log.wait_for("plan.refused why=");
  const auto asked = node.ask({.text = question});
  BOOST_REQUIRE(!asked);
  BOOST_TEST((asked.problem().code == problem_code::malformed));
  BOOST_TEST(test::says(asked.problem().message, "found 'no number'"), asked.problem().message);
  const auto status = node.status();
  BOOST_REQUIRE(!status);
  BOOST_TEST(status.problem().message == asked.problem().message);
  BOOST_TEST(bool(node.stop()));
}

BOOST_AUTO_TEST_CASE(a_host_program_may_keep_plans_to_itself) {
  const cluster_at_hand cluster;
  cluster.take_plan_from(0);
  kept_log log, others;
  auto second = started(options_of(cluster, 1, others));
  auto options = options_of(cluster, 0, log);
  options.fetches_plan = false;
  refused(options, problem_code::not_found,
          {cluster.file_of(0).plan.string(), "fetches_plan is off"});
  BOOST_TEST(log.count("") == 0u);
  BOOST_TEST(!fs::exists(cluster.file_of(0).state / "joining"));
}

BOOST_AUTO_TEST_CASE(a_plan_that_nobody_sends_is_waited_for_no_longer_than_was_said) {
  const cluster_at_hand cluster;
  cluster.take_plan_from(0);
  kept_log log;
  auto options = options_of(cluster, 0, log);
  options.longest = std::chrono::milliseconds(3000);
  const auto file = cluster.file_of(0);
  refused(options, problem_code::timed_out,
          {"s0: ", "within 3000 ms", "s1 at " + file.members[0].address,
           "s2 at " + file.members[1].address, "; s1: ", "admin members add s0"});
  options.longest = std::chrono::milliseconds(-1);
  refused(options, problem_code::out_of_range, {"longest: found -1 ms"});
  // Nobody can be asked.
  cluster.change(0, [](node_file& changed) {
    for (auto& member : changed.members) member.address.clear();
  });
  options.longest = std::chrono::milliseconds(0);
  refused(options, problem_code::usage, {"no other member has an address"});
}

BOOST_AUTO_TEST_CASE(a_host_program_that_ends_does_not_wait_for_a_plan) {
  const cluster_at_hand cluster;
  const auto wait_and_give_up = [&] {
    kept_log log;
    std::stop_source end;
    auto options = options_of(cluster, 0, log);
    options.longest = std::chrono::milliseconds::max();
    options.give_up = end.get_token();
    auto starting = std::async(std::launch::async, [&] { return api::node::start(options); });
    log.wait_for("plan.wanted");
    end.request_stop();
    const auto begun = starting.get();
    BOOST_REQUIRE(!begun);
    BOOST_TEST((begun.problem().code == problem_code::interrupted), begun.problem().message);
    BOOST_TEST(test::says(begun.problem().message, "s0: "), begun.problem().message);
  };
  cluster.change(0, [&](node_file& file) { file.plan = cluster.scratch.path / "none.json"; });
  wait_and_give_up();
  const auto threads = test::threads_in_the_end();
  const auto files = test::entries_of("/proc/self/fd");
  wait_and_give_up();
  BOOST_TEST(test::threads_in_the_end() == threads);
  BOOST_TEST(test::entries_of("/proc/self/fd") == files);
  // Nor for anything else.
  cluster.change(0, [&](node_file& file) { file.plan = cluster.folder.plan(); });
  std::stop_source ended;
  ended.request_stop();
  refused({.config = cluster.config(0), .give_up = ended.get_token()}, problem_code::interrupted,
          {"s0: was given up while it started"});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
