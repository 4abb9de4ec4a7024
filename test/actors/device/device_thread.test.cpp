#include "actors/device/device_thread.hpp"

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <thread>
#include <vector>

#include "actors/scheduling/lending_unit.hpp"
#include "test/actors/fixture.hpp"

namespace ordermoe {

namespace {

using namespace std::chrono_literals;
using actors::batch_queue;
using actors::work_kind;

/// Counts what is kept and what goes out.
class counted_turns final : public actors::frame_turns {
 public:
  void begin() override { holder_ = std::this_thread::get_id(); }
  bool holds() const override { return holder_ == std::this_thread::get_id() && kept_ > 0; }
  void write(std::int64_t held_ns) override {
    if (held_ns > 0 || kept_ == 0) return;
    written += std::exchange(kept_, 0);
    ++writes;
  }
  void send() {
    if (holder_ == std::this_thread::get_id())
      ++kept_;
    else
      ++written;
  }
  std::atomic<int> written{0}, writes{0};

 private:
  std::atomic<std::thread::id> holder_;
  int kept_ = 0;  ///< Of that thread.
};

/// A device's thread, and an actor that hears of its batches.
struct threaded_device {
  caf::actor_system_config config;
  caf::actor_system system{config};
  std::atomic<int> done{0}, done_by_helper{0};
  std::thread::id helper;
  bool sends = false;         ///< A frame for each message of batches.
  std::atomic<int> more = 0;  ///< So many batches, each where one is done.
  caf::actor owner;
  std::shared_ptr<counted_turns> turns = std::make_shared<counted_turns>();
  actors::device_thread thread{
      system, test::tiny_model(), 1, [](actors::batch&) { return 1; }, std::nullopt, turns};

  threaded_device() {
    owner = system.spawn([this](caf::event_based_actor*) -> caf::behavior {
      return {[this](actors::batch_done& told) {
        const auto n = 1 + static_cast<int>(told.earlier.size());
        if (std::this_thread::get_id() == helper) done_by_helper += n;
        if (sends) turns->send();
        if (more > 0) {
          --more;
          add(1);
        }
        done += n;
      }};
    });
    thread.report_to(caf::actor_cast<actors::compute_actor>(owner));
  }
  ~threaded_device() { caf::anon_send_exit(owner, caf::exit_reason::user_shutdown); }

  /// Batches without rows, n that do not join.
  void add(std::uint32_t n) {
    thread.queue([n](batch_queue& waiting) {
      for (std::uint32_t layer = 0; layer < n; ++layer)
        waiting.joinable(work_kind::attend, layer, 0);
    });
  }
  bool wait_for(int n) const {
    const auto until = std::chrono::steady_clock::now() + 30s;
    while (done < n && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(100us);
    return done == n;
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(device_thread)

BOOST_AUTO_TEST_CASE(nobody_helps_where_nothing_waits) {
  threaded_device world;
  actors::lending_unit unit(&world.system);
  world.thread.begin_helping();
  BOOST_TEST(!world.thread.help(&unit));
  BOOST_TEST(world.done == 0);
}

BOOST_AUTO_TEST_CASE(
    who_reads_the_network_runs_all_short_batches_that_wait_while_the_device_sleeps) {
  threaded_device world;
  actors::lending_unit unit(&world.system);
  world.helper = std::this_thread::get_id();
  world.thread.begin_helping();
  // The device's thread may not sleep yet when work comes; then it runs it.
  constexpr std::uint32_t n = 2;
  int rounds = 0;
  for (; rounds < 1000 && world.done_by_helper < 20; ++rounds) {
    world.add(n);
    int helped = 0;
    while (world.thread.help(&unit)) {
      ++helped;
      unit.lend([] {});
    }
    BOOST_TEST((helped == 0 || helped == static_cast<int>(n)));
    BOOST_REQUIRE(world.wait_for((rounds + 1) * static_cast<int>(n)));
    std::this_thread::sleep_for(1ms);
  }
  BOOST_TEST(world.done_by_helper >= 20);
  BOOST_TEST(world.thread.n_waiting() == 0u);
}

BOOST_AUTO_TEST_CASE(who_reads_the_network_goes_back_to_it_where_each_batch_leads_to_the_next) {
  threaded_device world;
  actors::lending_unit unit(&world.system);
  world.helper = std::this_thread::get_id();
  world.thread.begin_helping();
  // Many times what a millisecond is enough for. Where the device's thread did not sleep yet, it runs them all.
  constexpr int n = 50'000;
  for (int before = 0; world.done_by_helper == 0 && before < 100 * n; before += n) {
    world.more = n - 1;
    world.add(1);
    world.thread.help_along(unit, [] {});
    BOOST_TEST(world.done_by_helper < n);
    BOOST_TEST(world.wait_for(before + n), "the device's thread goes on with the rest");
  }
  BOOST_TEST(world.done_by_helper > 0);
}

BOOST_AUTO_TEST_CASE(what_takes_long_is_left_to_the_device_from_the_first_batch_on) {
  const auto add_rows = [](threaded_device& world, std::uint32_t n) {
    world.thread.queue([n](batch_queue& waiting) {
      // Of no request that has room for them, so that they take no time.
      auto& work = waiting.joinable(work_kind::attend, 0, 0).attends.emplace_back();
      work.first = 1;
      work.n = n;
    });
  };
  {
    threaded_device world;
    actors::lending_unit unit(&world.system);
    world.helper = std::this_thread::get_id();
    world.thread.begin_helping();
    std::this_thread::sleep_for(50ms);  // By then the device's thread sleeps.
    add_rows(world, 1000);
    BOOST_TEST(!world.thread.help(&unit));
    unit.lend([] {});
    BOOST_TEST(world.wait_for(1));
    BOOST_TEST(world.done_by_helper == 0);
  }
  // Nor is it run because those before were short.
  threaded_device world;
  actors::lending_unit unit(&world.system);
  world.helper = std::this_thread::get_id();
  world.thread.begin_helping();
  int added = 0;
  const auto add = [&](std::uint32_t n_rows) {
    add_rows(world, n_rows);
    const bool helped = world.thread.help(&unit);
    unit.lend([] {});
    BOOST_REQUIRE(world.wait_for(++added));
    std::this_thread::sleep_for(1ms);
    return helped;
  };
  while (added < 1000 && world.done_by_helper < 20) add(1);
  BOOST_REQUIRE(world.done_by_helper >= 20);
  std::this_thread::sleep_for(50ms);
  BOOST_TEST(!add(1000));
}

BOOST_AUTO_TEST_CASE(frames_wait_for_what_short_batches_lead_to_and_none_stays_behind) {
  threaded_device world;
  world.sends = true;
  constexpr int rounds = 300, n = 2;
  for (int round = 1; round <= rounds; ++round) {
    world.add(n);
    BOOST_REQUIRE(world.wait_for(round * n));
    const auto until = std::chrono::steady_clock::now() + 30s;
    while (world.turns->written < world.done && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(100us);
    BOOST_REQUIRE(world.turns->written == world.done);
  }
  // Those of the first of two batches went out with those of the second.
  BOOST_TEST(world.turns->writes < rounds * n * 3 / 4);
}

BOOST_AUTO_TEST_CASE(no_batch_is_left_behind_however_threads_queue_and_help) {
  threaded_device world;
  constexpr int rounds = 3000;
  const auto queue_some = [&](int pause) {
    for (int i = 0; i < rounds; ++i) {
      // Batches that do not wait any more are not joined; those that do would make the count less.
      world.thread.queue([](batch_queue& waiting) {
        if (waiting.empty()) waiting.joinable(work_kind::head, 0, 0);
      });
      if (i % pause == 0) std::this_thread::sleep_for(20us);
    }
  };
  std::vector<std::thread> others;
  for (const int pause : {3, 7}) others.emplace_back(queue_some, pause);
  actors::lending_unit unit(&world.system);
  world.thread.begin_helping();
  for (int i = 0; i < rounds; ++i) {
    world.thread.queue([](batch_queue& waiting) {
      if (waiting.empty()) waiting.joinable(work_kind::attend, 0, 0);
    });
    while (world.thread.help(&unit)) unit.lend([] {});
  }
  for (auto& each : others) each.join();
  const auto until = std::chrono::steady_clock::now() + 30s;
  while (world.thread.n_waiting() > 0 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(100us);
  BOOST_TEST(world.thread.n_waiting() == 0u);
  BOOST_TEST(world.done > 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
