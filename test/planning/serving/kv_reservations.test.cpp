#include "planning/serving/kv_reservations.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <limits>
#include <map>

#include "config/random.hpp"

namespace ordermoe {

namespace {

using serving::kv_reservations;
using what = kv_reservations::event::what;
using wire::reservation;
using wire::reserve_step;

constexpr std::uint32_t self = 3;
constexpr std::int64_t lease_ns = 1000;

reservation message(std::uint64_t request, std::uint32_t ask, reserve_step step,
                    std::int64_t bytes = 0, std::uint32_t attempt = 0) {
  reservation made;
  made.request = request;
  made.attempt = attempt;
  made.ask = ask;
  made.step = step;
  made.server = self;
  made.access = 1;
  made.bytes = bytes;
  made.lease_ns = lease_ns;
  return made;
}

bool answered(const kv_reservations::outcome& made, std::size_t i, std::uint64_t request,
              reserve_step step, std::uint32_t ask) {
  return i < made.answers.size() && made.answers[i].request == request &&
         made.answers[i].step == step && made.answers[i].ask == ask &&
         made.answers[i].server == self && made.answers[i].access == 1;
}

bool happened(const kv_reservations::outcome& made, std::size_t i, std::uint64_t request, what kind,
              std::int64_t change, std::int64_t reserved) {
  return i < made.events.size() && made.events[i].request == request &&
         made.events[i].kind == kind && made.events[i].change_bytes == change &&
         made.events[i].reserved_bytes == reserved;
}

/// What the header says, on one list in the order of the asks; everything else is counted anew.
class naive_reservations {
 public:
  explicit naive_reservations(std::int64_t capacity) : capacity_(capacity) {}

  std::vector<reservation> take(const reservation& m, std::int64_t now) {
    said_.clear();
    const auto found = find(m.request);
    switch (m.step) {
      case reserve_step::attempt:
      case reserve_step::wait:
        if (found != entries_.end()) {
          if (m.ask < found->ask) break;
          if (m.ask == found->ask) {
            if (found->granted) say(m.request, m.ask, reserve_step::granted);
            break;
          }
          entries_.erase(found);
          serve();
        }
        if (m.step == reserve_step::attempt && (waiting() > 0 || used() + m.bytes > capacity_)) {
          say(m.request, m.ask, reserve_step::refused);
          break;
        }
        entries_.push_back({m.request, m.attempt, m.ask, m.bytes, now + m.lease_ns, false});
        serve();
        break;
      case reserve_step::release:
        if (found == entries_.end() || m.ask < found->ask) break;
        entries_.erase(found);
        serve();
        break;
      case reserve_step::fence:
        if (found == entries_.end() || !found->granted) {
          say(m.request, m.ask, reserve_step::refused);
          break;
        }
        if (m.attempt < found->attempt || m.ask < found->ask) break;
        found->attempt = m.attempt;
        found->ask = m.ask;
        found->lease_until = now + m.lease_ns;
        say(m.request, m.ask, reserve_step::fenced);
        break;
      default:
        break;
    }
    return said_;
  }

  std::vector<reservation> expire(std::int64_t now) {
    said_.clear();
    std::erase_if(entries_, [now](const entry& each) { return each.lease_until <= now; });
    serve();
    return said_;
  }

  std::int64_t used() const {
    std::int64_t sum = 0;
    for (const auto& each : entries_) sum += each.granted ? each.bytes : 0;
    return sum;
  }
  std::size_t waiting() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(entries_, [](const entry& each) { return !each.granted; }));
  }
  bool holds(std::uint64_t request) const {
    return std::ranges::any_of(
        entries_, [&](const entry& each) { return each.request == request && each.granted; });
  }
  std::int64_t next_expiry() const {
    auto earliest = std::numeric_limits<std::int64_t>::max();
    for (const auto& each : entries_) earliest = std::min(earliest, each.lease_until);
    return earliest;
  }

 private:
  struct entry {
    std::uint64_t request;
    std::uint32_t attempt, ask;
    std::int64_t bytes, lease_until;
    bool granted;
  };
  std::vector<entry>::iterator find(std::uint64_t request) {
    return std::ranges::find(entries_, request, &entry::request);
  }
  void serve() {
    for (auto& each : entries_) {
      if (each.granted) continue;
      if (used() + each.bytes > capacity_) return;
      each.granted = true;
      say(each.request, each.ask, reserve_step::granted);
    }
  }
  void say(std::uint64_t request, std::uint32_t ask, reserve_step step) {
    said_.push_back(message(request, ask, step));
  }
  std::int64_t capacity_;
  std::vector<entry> entries_;
  std::vector<reservation> said_;
};

bool same_answers(const std::vector<reservation>& found, const std::vector<reservation>& expected) {
  return std::ranges::equal(found, expected, [](const reservation& a, const reservation& b) {
    return a.request == b.request && a.ask == b.ask && a.step == b.step;
  });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(kv_reservations)

BOOST_AUTO_TEST_CASE(an_attempt_is_granted_where_there_is_room_and_refused_where_there_is_none) {
  serving::kv_reservations memory(self, 100);
  const auto first = memory.take(message(7, 1, reserve_step::attempt, 60), 0);
  BOOST_TEST(answered(first, 0, 7, reserve_step::granted, 1));
  BOOST_TEST(happened(first, 0, 7, what::granted, 60, 60));
  const auto second = memory.take(message(8, 1, reserve_step::attempt, 41), 0);
  BOOST_TEST(answered(second, 0, 8, reserve_step::refused, 1));
  BOOST_TEST(second.events.empty());
  BOOST_TEST(memory.find(8) == nullptr);
  const auto exact = memory.take(message(9, 1, reserve_step::attempt, 40), 0);
  BOOST_TEST(happened(exact, 0, 9, what::granted, 40, 100));
  BOOST_TEST(memory.reserved_bytes() == 100);
  BOOST_TEST(memory.sequences().size() == 2u);
}

BOOST_AUTO_TEST_CASE(waiting_asks_are_granted_in_the_order_in_which_they_came) {
  serving::kv_reservations memory(self, 100);
  memory.take(message(1, 1, reserve_step::attempt, 90), 0);
  BOOST_TEST(memory.take(message(2, 1, reserve_step::wait, 50), 0).answers.empty());
  // There is room for the next, but not before its turn.
  BOOST_TEST(memory.take(message(3, 1, reserve_step::wait, 10), 0).answers.empty());
  const auto attempt = memory.take(message(4, 1, reserve_step::attempt, 1), 0);
  BOOST_TEST(answered(attempt, 0, 4, reserve_step::refused, 1));
  BOOST_TEST(memory.n_waiting() == 2u);
  BOOST_TEST(memory.find(2) == nullptr);
  const auto served = memory.take(message(1, 2, reserve_step::release), 0);
  BOOST_TEST(happened(served, 0, 1, what::ended, -90, 0));
  BOOST_TEST(answered(served, 0, 2, reserve_step::granted, 1));
  BOOST_TEST(answered(served, 1, 3, reserve_step::granted, 1));
  BOOST_TEST(memory.reserved_bytes() == 60);
  BOOST_TEST(memory.peak_bytes() == 90);
  BOOST_TEST(memory.n_waiting() == 0u);
}

BOOST_AUTO_TEST_CASE(an_ask_that_comes_again_is_answered_again_and_changes_nothing) {
  serving::kv_reservations memory(self, 100);
  const auto ask = message(1, 5, reserve_step::attempt, 60);
  memory.take(ask, 0);
  const auto again = memory.take(ask, 10);
  BOOST_TEST(answered(again, 0, 1, reserve_step::granted, 5));
  BOOST_TEST(again.events.empty());
  BOOST_TEST(memory.reserved_bytes() == 60);
  const auto waits = message(2, 1, reserve_step::wait, 60);
  memory.take(waits, 0);
  BOOST_TEST(memory.take(waits, 0).answers.empty());
  BOOST_TEST(memory.n_waiting() == 1u);
}

BOOST_AUTO_TEST_CASE(an_ask_before_the_newest_is_left_alone) {
  serving::kv_reservations memory(self, 100);
  memory.take(message(1, 5, reserve_step::attempt, 60), 0);
  const auto late = memory.take(message(1, 4, reserve_step::wait, 10), 0);
  BOOST_TEST(late.answers.empty());
  BOOST_TEST(late.events.empty());
  memory.take(message(1, 4, reserve_step::release), 0);
  BOOST_TEST(memory.reserved_bytes() == 60);
}

BOOST_AUTO_TEST_CASE(a_newer_ask_takes_the_place_of_the_one_before) {
  serving::kv_reservations memory(self, 100);
  memory.take(message(1, 1, reserve_step::attempt, 60), 0);
  const auto made = memory.take(message(1, 2, reserve_step::wait, 80), 0);
  BOOST_TEST(happened(made, 0, 1, what::ended, -60, 0));
  BOOST_TEST(happened(made, 1, 1, what::granted, 80, 80));
  BOOST_TEST(answered(made, 0, 1, reserve_step::granted, 2));
  // A waiting one goes to the end of the queue.
  memory.take(message(2, 1, reserve_step::wait, 50), 0);
  memory.take(message(3, 1, reserve_step::wait, 50), 0);
  memory.take(message(2, 2, reserve_step::wait, 60), 0);
  const auto served = memory.take(message(1, 2, reserve_step::release), 0);
  BOOST_REQUIRE_EQUAL(served.answers.size(), 1u);
  BOOST_TEST(answered(served, 0, 3, reserve_step::granted, 1));
}

BOOST_AUTO_TEST_CASE(a_release_of_one_that_waits_lets_the_next_have_its_turn) {
  serving::kv_reservations memory(self, 100);
  memory.take(message(1, 1, reserve_step::attempt, 60), 0);
  memory.take(message(2, 1, reserve_step::wait, 80), 0);
  memory.take(message(3, 1, reserve_step::wait, 30), 0);
  const auto made = memory.take(message(2, 1, reserve_step::release), 0);
  BOOST_REQUIRE_EQUAL(made.events.size(), 1u);
  BOOST_TEST(happened(made, 0, 3, what::granted, 30, 90));
  BOOST_TEST(memory.take(message(2, 1, reserve_step::release), 0).events.empty());
}

BOOST_AUTO_TEST_CASE(an_ask_that_comes_after_its_release_is_granted_and_given_back_by_the_owner) {
  serving::kv_reservations memory(self, 100);
  BOOST_TEST(memory.take(message(1, 1, reserve_step::release), 0).events.empty());
  const auto late = memory.take(message(1, 1, reserve_step::attempt, 60), 0);
  BOOST_TEST(answered(late, 0, 1, reserve_step::granted, 1));
  memory.take(message(1, 1, reserve_step::release), 0);
  BOOST_TEST(memory.reserved_bytes() == 0);
}

BOOST_AUTO_TEST_CASE(a_fence_moves_a_sequence_to_its_attempt_and_renews_the_lease) {
  serving::kv_reservations memory(self, 100);
  memory.take(message(1, 1, reserve_step::attempt, 60), 0);
  const auto fenced = memory.take(message(1, 2, reserve_step::fence, 0, 1), 500);
  BOOST_TEST(happened(fenced, 0, 1, what::fenced, 0, 60));
  BOOST_TEST(fenced.events[0].attempt == 1u);
  BOOST_TEST(answered(fenced, 0, 1, reserve_step::fenced, 2));
  BOOST_TEST(memory.find(1)->attempt == 1u);
  BOOST_TEST(memory.find(1)->bytes == 60);
  BOOST_TEST(memory.next_expiry_ns() == 500 + lease_ns);
}

BOOST_AUTO_TEST_CASE(a_fence_that_comes_again_is_answered_and_ends_no_work) {
  serving::kv_reservations memory(self, 100);
  memory.take(message(1, 1, reserve_step::attempt, 60), 0);
  memory.take(message(1, 2, reserve_step::fence, 0, 1), 0);
  const auto again = memory.take(message(1, 2, reserve_step::fence, 0, 1), 0);
  BOOST_TEST(again.events.empty());
  BOOST_TEST(answered(again, 0, 1, reserve_step::fenced, 2));
}

BOOST_AUTO_TEST_CASE(a_fence_of_an_earlier_attempt_is_left_alone) {
  serving::kv_reservations memory(self, 100);
  memory.take(message(1, 1, reserve_step::attempt, 60), 0);
  memory.take(message(1, 3, reserve_step::fence, 0, 2), 0);
  const auto late = memory.take(message(1, 2, reserve_step::fence, 0, 1), 0);
  BOOST_TEST(late.events.empty());
  BOOST_TEST(late.answers.empty());
  BOOST_TEST(memory.find(1)->attempt == 2u);
  // An ask and a release from before the fence are late too.
  BOOST_TEST(memory.take(message(1, 1, reserve_step::attempt, 60), 0).answers.empty());
  memory.take(message(1, 1, reserve_step::release), 0);
  BOOST_TEST(memory.reserved_bytes() == 60);
}

BOOST_AUTO_TEST_CASE(a_fence_of_a_sequence_that_is_not_kept_is_refused) {
  serving::kv_reservations memory(self, 100);
  BOOST_TEST(answered(memory.take(message(1, 2, reserve_step::fence, 0, 1), 0), 0, 1,
                      reserve_step::refused, 2));
  memory.take(message(2, 1, reserve_step::attempt, 60), 0);
  memory.take(message(3, 1, reserve_step::wait, 60), 0);
  BOOST_TEST(answered(memory.take(message(3, 2, reserve_step::fence, 0, 1), 0), 0, 3,
                      reserve_step::refused, 2));
  BOOST_TEST(memory.n_waiting() == 1u);
}

BOOST_AUTO_TEST_CASE(a_lease_ends_at_its_time_and_lets_others_in) {
  serving::kv_reservations memory(self, 100);
  BOOST_TEST(memory.next_expiry_ns() == std::numeric_limits<std::int64_t>::max());
  memory.take(message(1, 1, reserve_step::attempt, 60), 0);
  memory.take(message(2, 1, reserve_step::attempt, 30), 300);
  memory.take(message(3, 1, reserve_step::wait, 70), 400);
  BOOST_TEST(memory.next_expiry_ns() == lease_ns);
  BOOST_TEST(memory.expire(lease_ns - 1).events.empty());
  const auto over = memory.expire(lease_ns);
  BOOST_TEST(happened(over, 0, 1, what::ended, -60, 30));
  BOOST_TEST(happened(over, 1, 3, what::granted, 70, 100));
  // And of those that wait.
  memory.take(message(4, 1, reserve_step::wait, 70), 500);
  BOOST_TEST(memory.expire(lease_ns + 500).events.size() == 2u);
  BOOST_TEST(memory.sequences().empty());
  BOOST_TEST(memory.n_waiting() == 0u);
}

BOOST_AUTO_TEST_CASE(the_end_of_a_request_gives_its_memory_to_the_next) {
  serving::kv_reservations memory(self, 100);
  memory.take(message(1, 1, reserve_step::attempt, 60), 0);
  memory.take(message(2, 1, reserve_step::wait, 70), 0);
  const auto made = memory.end(1);
  BOOST_TEST(happened(made, 0, 1, what::ended, -60, 0));
  BOOST_TEST(happened(made, 1, 2, what::granted, 70, 70));
  BOOST_TEST(memory.end(1).events.empty());
}

BOOST_AUTO_TEST_CASE(answers_of_others_change_nothing) {
  serving::kv_reservations memory(self, 100);
  memory.take(message(1, 1, reserve_step::attempt, 60), 0);
  for (const auto step : {reserve_step::granted, reserve_step::refused, reserve_step::fenced}) {
    const auto made = memory.take(message(1, 9, step, 0, 9), 0);
    BOOST_TEST(made.answers.empty());
    BOOST_TEST(made.events.empty());
  }
  BOOST_TEST(memory.find(1)->ask == 1u);
}

BOOST_AUTO_TEST_CASE(whatever_comes_it_does_what_a_plain_list_would) {
  constexpr reserve_step steps[] = {reserve_step::attempt, reserve_step::wait,
                                    reserve_step::release, reserve_step::fence};
  std::size_t granted = 0, refused = 0, fenced = 0, waited = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    random_stream draws(seed);
    constexpr std::int64_t capacity = 100;
    serving::kv_reservations memory(self, capacity);
    naive_reservations model(capacity);
    std::int64_t now = 0, reserved = 0;
    for (int i = 0; i < 200; ++i) {
      now += static_cast<std::int64_t>(draws.below(60));
      serving::kv_reservations::outcome made;
      std::vector<reservation> expected;
      if (draws.below(10) == 0) {
        made = memory.expire(now);
        expected = model.expire(now);
      } else {
        auto m =
            message(draws.below(8), static_cast<std::uint32_t>(draws.below(6)),
                    steps[draws.below(4)], 1 + static_cast<std::int64_t>(draws.below(capacity)),
                    static_cast<std::uint32_t>(draws.below(3)));
        made = memory.take(m, now);
        expected = model.take(m, now);
      }
      // Expired ones end in the order of their numbers here; what is answered is the same.
      BOOST_TEST_REQUIRE(same_answers(made.answers, expected), "seed " << seed << ", step " << i);
      BOOST_TEST_REQUIRE(memory.reserved_bytes() == model.used());
      BOOST_TEST_REQUIRE(memory.n_waiting() == model.waiting());
      BOOST_TEST_REQUIRE(memory.next_expiry_ns() == model.next_expiry());
      BOOST_TEST_REQUIRE(memory.reserved_bytes() <= capacity);
      for (std::uint64_t request = 0; request < 8; ++request)
        BOOST_TEST_REQUIRE((memory.find(request) != nullptr) == model.holds(request));
      for (const auto& event : made.events) {
        reserved += event.change_bytes;
        BOOST_TEST_REQUIRE(event.reserved_bytes == reserved);
      }
      BOOST_TEST_REQUIRE(reserved == memory.reserved_bytes());
      for (const auto& answer : made.answers) {
        granted += answer.step == reserve_step::granted;
        refused += answer.step == reserve_step::refused;
        fenced += answer.step == reserve_step::fenced;
      }
      waited += memory.n_waiting();
    }
  }
  BOOST_TEST(granted > 1000u);
  BOOST_TEST(refused > 1000u);
  BOOST_TEST(fenced > 100u);
  BOOST_TEST(waited > 1000u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
