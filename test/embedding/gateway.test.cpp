#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <filesystem>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "ordermoe/actors.hpp"
#include "test/embedding/fixture.hpp"

/// The face for programs with actors of their own.
namespace ordermoe {

namespace {

using api::problem_code;

const std::string question = "Q: 75 * 5\nA:";

struct host_program {
  caf::actor_system_config config;
  caf::actor_system system;
  host_program() : system(configured(config)) {}
  static caf::actor_system_config& configured(caf::actor_system_config& config) {
    config.set("scheduler.max-threads", 2u);
    return config;
  }
  std::size_t n_actors() { return system.registry().running(); }
};

std::set<long> threads_now() {
  std::set<long> all;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/task"))
    all.insert(std::stol(each.path().filename().string()));
  return all;
}

/// What actors of the host were told, and on which threads.
struct told_actors {
  std::mutex mutex;
  std::set<long> threads;
  void note_thread() {
    const std::lock_guard lock(mutex);
    threads.insert(::syscall(SYS_gettid));
  }
};

/// Takes in one answer.
caf::behavior reader(caf::event_based_actor* self, test::heard_answer* heard, told_actors* all) {
  return {
      [=](const api::streamed_token& told) {
        all->note_thread();
        heard->take(told.content);
      },
      [=](const api::ended_answer& told) {
        all->note_thread();
        heard->end(told.content);
        self->quit();
      },
  };
}

api::answer_receiver receiver_of(const caf::actor& actor) {
  return caf::actor_cast<api::answer_receiver>(actor);
}

api::node started_in(host_program& host, const test::scratch_folder& scratch) {
  auto begun = api::start_in(host.system, test::options_in(scratch));
  BOOST_REQUIRE_MESSAGE(begun, (begun ? "" : begun.problem().message));
  return std::move(*begun);
}

api::gateway_actor gateway_of(host_program& host, api::node& node) {
  const auto opened = api::open_gateway(host.system, node);
  BOOST_REQUIRE(opened);
  return *opened;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(gateway)

BOOST_AUTO_TEST_CASE(actors_of_the_host_are_answered_on_the_hosts_threads_alone) {
  const test::scratch_folder scratch;
  host_program host;
  const auto actors_before = host.n_actors();
  const auto hosts_threads = threads_now();
  auto node = started_in(host, scratch);
  const auto gateway = gateway_of(host, node);
  const auto expected = test::reference_ids(question, 12);
  told_actors all;
  std::vector<test::heard_answer> heard(8);
  for (std::size_t i = 0; i < heard.size(); ++i)
    caf::anon_send(
        gateway,
        api::submit_prompt{
            i,
            {.text = question, .max_tokens = 12, .server = static_cast<std::uint32_t>(i % 3)},
            receiver_of(host.system.spawn(reader, &heard[i], &all))});
  for (auto& each : heard) {
    BOOST_TEST(each.wait().ids == expected, boost::test_tools::per_element());
    BOOST_TEST(each.mistake() == "");
  }
  for (const auto thread : all.threads) BOOST_TEST(hosts_threads.contains(thread));
  BOOST_TEST(bool(node.stop()));
  host.system.registry().await_running_count_equal(actors_before);
  // A thread that has ended may be listed for a moment.
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (threads_now().size() > hosts_threads.size() + 1) {
    BOOST_REQUIRE((std::chrono::steady_clock::now() < limit));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

BOOST_AUTO_TEST_CASE(the_status_comes_by_request) {
  const test::scratch_folder scratch;
  host_program host;
  const auto actors_before = host.n_actors();
  auto node = started_in(host, scratch);
  const auto gateway = gateway_of(host, node);
  std::string json;
  {
    caf::scoped_actor self{host.system};
    for (int i = 0; i < 2; ++i)
      self->request(gateway, caf::infinite, api::ask_node_status{})
          .receive([&](const api::node_status& told) { json = told.json; },
                   [](const caf::error&) { BOOST_ERROR("no status"); });
  }
  BOOST_TEST(nlohmann::json::parse(json)["servers"].size() == 3u);
  BOOST_TEST(bool(node.stop()));
  BOOST_TEST(host.n_actors() == actors_before);
}

BOOST_AUTO_TEST_CASE(what_is_refused_cancelled_or_stopped_ends_for_its_receiver) {
  const test::scratch_folder scratch;
  host_program host;
  const auto actors_before = host.n_actors();
  auto node = started_in(host, scratch);
  const auto gateway = gateway_of(host, node);
  told_actors all;
  test::heard_answer empty, too_long, cancelled, stopped;
  const auto submit = [&](std::uint64_t ref, const api::prompt& wanted, test::heard_answer& heard) {
    const auto to = receiver_of(host.system.spawn(reader, &heard, &all));
    caf::anon_send(gateway, api::submit_prompt{ref, wanted, to});
    return to;
  };
  submit(1, {}, empty);
  BOOST_TEST((empty.wait().why->code == problem_code::usage));
  submit(2, {.text = "Q", .max_tokens = 100'000}, too_long);
  BOOST_TEST((too_long.wait().why->code == problem_code::out_of_range));

  const auto to = submit(3, {.text = "In early spring", .max_tokens = 400}, cancelled);
  cancelled.wait_for_tokens(2);
  caf::anon_send(gateway, api::cancel_prompt{4, to});  // Not its name.
  caf::anon_send(gateway, api::cancel_prompt{3, to});
  BOOST_TEST(cancelled.wait().finish == "cancelled");

  submit(5, {.text = "In early spring", .max_tokens = 400}, stopped);
  stopped.wait_for_tokens(2);
  BOOST_TEST(bool(node.stop()));
  BOOST_TEST(stopped.wait().finish == "stopped");
  for (const auto* each : {&empty, &too_long, &cancelled, &stopped})
    BOOST_TEST(each->mistake() == "");
  host.system.registry().await_running_count_equal(actors_before);
  BOOST_TEST(!api::open_gateway(host.system, node));
  BOOST_TEST(host.n_actors() == actors_before);
}

/// Rows of all batches since the node began.
std::int64_t rows_of(api::node& node) {
  const auto status = node.status();
  BOOST_REQUIRE(status);
  std::int64_t all = 0;
  const auto told = nlohmann::json::parse(*status);
  for (const auto& server : told["servers"]) all += server["rows"].get<std::int64_t>();
  return all;
}

BOOST_AUTO_TEST_CASE(the_answer_to_a_receiver_that_ends_is_cancelled) {
  const test::scratch_folder scratch;
  host_program host;
  auto node = started_in(host, scratch);
  const api::prompt wanted{.text = "In early spring", .max_tokens = 400};
  BOOST_REQUIRE(bool(node.ask(wanted)));
  const auto of_a_whole_answer = rows_of(node);
  BOOST_REQUIRE(of_a_whole_answer > 0);
  const auto gateway = gateway_of(host, node);
  std::promise<void> had_a_token;
  const auto brief = host.system.spawn([&](caf::event_based_actor* self) -> caf::behavior {
    return {[&, self](const api::streamed_token&) {
              self->quit();
              had_a_token.set_value();
            },
            [](const api::ended_answer&) {}};
  });
  caf::anon_send(gateway, api::submit_prompt{1, wanted, receiver_of(brief)});
  had_a_token.get_future().wait();
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (node.outstanding() > 0) {
    BOOST_REQUIRE(std::chrono::steady_clock::now() < limit);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  BOOST_TEST(rows_of(node) < 2 * of_a_whole_answer);
}

BOOST_AUTO_TEST_CASE(of_an_answer_that_has_ended_nothing_is_kept) {
  const test::scratch_folder scratch;
  host_program host;
  auto node = started_in(host, scratch);
  const auto gateway = gateway_of(host, node);
  test::heard_answer heard;
  const auto stays = host.system.spawn([&](caf::event_based_actor*) -> caf::behavior {
    return {[&](const api::streamed_token& told) { heard.take(told.content); },
            [&](const api::ended_answer& told) { heard.end(told.content); }};
  });
  // The gateway remembers a receiver by its address.
  const auto remembered = [&] {
    return caf::actor_cast<caf::strong_actor_ptr>(stays)->weak_refs.load();
  };
  const auto before = remembered();
  caf::anon_send(gateway,
                 api::submit_prompt{1, {.text = question, .max_tokens = 4}, receiver_of(stays)});
  BOOST_TEST(heard.wait().ids.size() == 4u);
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (remembered() != before) {
    BOOST_REQUIRE(std::chrono::steady_clock::now() < limit);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  BOOST_TEST(bool(node.stop()));
  caf::anon_send_exit(stays, caf::exit_reason::user_shutdown);
}

BOOST_AUTO_TEST_CASE(a_gateway_that_the_host_ends_cancels_what_it_submitted) {
  const test::scratch_folder scratch;
  host_program host;
  auto node = started_in(host, scratch);
  const auto gateway = gateway_of(host, node);
  told_actors all;
  test::heard_answer heard;
  caf::anon_send(gateway, api::submit_prompt{1,
                                             {.text = "In early spring", .max_tokens = 400},
                                             receiver_of(host.system.spawn(reader, &heard, &all))});
  heard.wait_for_tokens(1);
  caf::anon_send_exit(gateway, caf::exit_reason::user_shutdown);
  BOOST_TEST(heard.wait().finish == "cancelled");
  BOOST_TEST(bool(node.ask({.text = question, .max_tokens = 2})));
}

/// A node that was declared before the host's system ends after it.
BOOST_AUTO_TEST_CASE(a_hosts_system_may_end_before_a_node_that_runs_elsewhere) {
  const test::scratch_folder scratch;
  auto node = test::started(test::options_in(scratch));
  auto over = std::async(std::launch::async, [&] {
    host_program host;
    told_actors all;
    test::heard_answer heard;
    const auto gateway = gateway_of(host, node);
    caf::anon_send(gateway,
                   api::submit_prompt{1,
                                      {.text = question, .max_tokens = 4},
                                      receiver_of(host.system.spawn(reader, &heard, &all))});
    caf::scoped_actor self{host.system};
    self->request(gateway, caf::infinite, api::ask_node_status{})
        .receive([](const api::node_status& told) { BOOST_TEST(told.json != ""); },
                 [](const caf::error&) { BOOST_ERROR("no status"); });
    BOOST_TEST(heard.wait().ids.size() == 4u);
  });
  BOOST_TEST((over.wait_for(std::chrono::seconds(30)) == std::future_status::ready));
  // It goes on, and forgets that there was one.
  host_program another;
  const auto gateway = gateway_of(another, node);
  BOOST_TEST(bool(node.ask({.text = question, .max_tokens = 2})));
  BOOST_TEST(bool(node.stop()));
}

/// No thread is given while it lives, whoever may ask for more than others.
class without_threads {
 public:
  without_threads() {
    ::pthread_attr_init(&before_);
    BOOST_REQUIRE(::pthread_getattr_default_np(&before_) == 0);
    pthread_attr_t vast;
    ::pthread_attr_init(&vast);
    BOOST_REQUIRE(::pthread_attr_setstacksize(&vast, std::size_t{1} << 50) == 0);
    BOOST_REQUIRE(::pthread_setattr_default_np(&vast) == 0);
    ::pthread_attr_destroy(&vast);
  }
  ~without_threads() {
    ::pthread_setattr_default_np(&before_);
    ::pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

BOOST_AUTO_TEST_CASE(a_status_without_a_thread_to_wait_for_it_is_a_problem_and_the_gateway_stays) {
  const test::scratch_folder scratch;
  host_program host;
  auto node = started_in(host, scratch);
  const auto gateway = gateway_of(host, node);
  caf::scoped_actor self{host.system};
  const auto ask = [&] {
    api::node_status heard;
    self->request(gateway, caf::infinite, api::ask_node_status{})
        .receive([&](const api::node_status& told) { heard = told; },
                 [](const caf::error&) { BOOST_ERROR("no answer"); });
    return heard;
  };
  {
    const without_threads here;
    const auto told = ask();
    BOOST_REQUIRE(told.why.has_value());
    BOOST_TEST(test::says(told.why->message, "no thread"));
  }
  BOOST_TEST(!ask().why.has_value());
  BOOST_TEST(bool(node.stop()));
}

/// A node of its own system, and gateways of two programs' systems at once.
BOOST_AUTO_TEST_CASE(one_node_may_have_gateways_in_several_systems) {
  const test::scratch_folder scratch;
  host_program first, second;
  auto node = test::started(test::options_in(scratch));
  told_actors all;
  test::heard_answer by_first, by_second;
  const auto ask = [&](host_program& host, test::heard_answer& heard) {
    caf::anon_send(gateway_of(host, node),
                   api::submit_prompt{1,
                                      {.text = question, .max_tokens = 6},
                                      receiver_of(host.system.spawn(reader, &heard, &all))});
  };
  ask(first, by_first);
  ask(second, by_second);
  BOOST_TEST(by_first.wait().ids == by_second.wait().ids, boost::test_tools::per_element());
  BOOST_TEST(bool(node.stop()));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
