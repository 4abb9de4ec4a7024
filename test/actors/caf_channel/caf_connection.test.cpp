#include "actors/caf_channel/caf_connection.hpp"

#include <boost/test/unit_test.hpp>
#include <caf/all.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <chrono>
#include <string>
#include <vector>

// The actor that speaks for one end, alone: the other end, a listener and the channel's user only listen, and time is virtual.

namespace ordermoe {

namespace {

using namespace actors;
using std::chrono::milliseconds;

constexpr std::uint64_t key = 7, another_key = 8;
constexpr std::uint64_t window = caf_connection::bulk_window_bytes, quarter_window = window / 4;

struct listening_user final : net::connections_user {
  std::string bytes, why;
  int rooms = 0, closings = 0;

  void accepted(net::connection_ptr) override {}
  void came(const net::connection_ptr&, std::string_view wire, bool) override { bytes += wire; }
  void has_room(const net::connection_ptr&) override { ++rooms; }
  void was_closed(const net::connection_ptr&, std::string_view reason) override {
    why = reason;
    ++closings;
  }
  void could_not_accept(const std::string&, const error&) override {}
};

struct testing_config : caf::actor_system_config {
  testing_config() {
    set("scheduler.policy", caf::atom("testing"));
    add_message_types<caf::id_block::ordermoe_caf_channel>();
  }
};

struct one_end {
  testing_config config;
  caf::actor_system system{config};
  caf::scheduler::test_coordinator& scheduler =
      dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  listening_user user;
  std::vector<std::uint64_t> taken;  ///< What the other end was told of.
  int ends = 0;                      ///< How often it was told the end.
  bool over = false;                 ///< Whether the actor that speaks has ended.
  std::vector<std::string> welcomes, failures;
  caf::actor other = listener();
  std::shared_ptr<caf_connection> with =
      std::make_shared<caf_connection>(net::stream::bulk, key, user);

  ~one_end() {
    with->close();
    for (const auto& each : {other, speaker_})
      if (each) caf::anon_send_exit(each, caf::exit_reason::kill);
    settle();
    pass(milliseconds(10'000));
    other = speaker_ = nullptr;
  }

  caf::actor listener() {
    return system.spawn([this](caf::event_based_actor* self) -> caf::behavior {
      self->set_default_handler(caf::drop);
      return {[this](const caf_taken& told) { taken.push_back(told.bytes); },
              [this](const caf_end&) { ++ends; }, [](const caf_bytes&) {}};
    });
  }
  void settle() { scheduler.run(); }
  void pass(caf::timespan time) {
    scheduler.advance_time(time);
    settle();
  }
  template <class Message>
  void tell(Message message) {
    caf::anon_send(speaker_, std::move(message));
    settle();
  }
  /// To be told of the end of the actor that speaks.
  void speak(const caf::actor& actor) {
    speaker_ = actor;
    actor->attach_functor([this] { over = true; });
    with->speaks(actor);
    settle();
  }
  void connect() {
    with->meet({}, other);
    speak(system.spawn(caf_speaker, with, other));
  }
  void dial(const caf::actor& whom) {
    const auto outcome = std::make_shared<caf_dial_outcome>();
    outcome->listener = whom;
    outcome->welcomed = [this](const caf_welcome& answer) {
      welcomes.push_back(answer.who);
      with->meet({}, answer.from);
    };
    outcome->failed = [this](const error& why) { failures.push_back(why.message); };
    speak(system.spawn(caf_dialling_speaker, with, outcome));
  }

 private:
  caf::actor speaker_;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(caf_connection, one_end)

BOOST_AUTO_TEST_CASE(what_comes_for_this_connection_goes_to_its_user_until_it_is_closed) {
  connect();
  tell(caf_bytes{key, "early"});
  tell(caf_bytes{another_key, "of an earlier process"});
  BOOST_TEST(user.bytes == "early");
  with->closed = true;
  tell(caf_bytes{key, "late"});
  BOOST_TEST(user.bytes == "early");
}

BOOST_AUTO_TEST_CASE(the_other_end_hears_what_has_come_once_that_is_a_quarter_of_the_window) {
  connect();
  tell(caf_bytes{key, std::string(quarter_window - 1, 'x')});
  BOOST_TEST(taken.empty());
  tell(caf_bytes{key, "xy"});
  BOOST_TEST(taken == std::vector<std::uint64_t>{quarter_window + 1},
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(whoever_waits_for_room_hears_of_it_when_something_was_taken) {
  connect();
  BOOST_TEST(with->put(std::string(2 * window, 'x')).has_value());
  BOOST_TEST(!with->write());
  tell(caf_taken{another_key, quarter_window});
  BOOST_TEST(user.rooms == 0);
  tell(caf_taken{key, quarter_window});
  BOOST_TEST(user.rooms == 1);
  tell(caf_taken{key, window});
  BOOST_TEST(with->write());
  tell(caf_taken{key, 2 * window});
  BOOST_TEST(user.closings == 0);
}

BOOST_AUTO_TEST_CASE(an_end_that_has_taken_more_than_was_sent_is_lost) {
  connect();
  tell(caf_taken{key, 1});
  BOOST_TEST(user.why == "it says that more has come than was sent");
}

BOOST_AUTO_TEST_CASE(the_end_that_the_other_one_says_is_told_once_and_waits_for_this_one) {
  connect();
  tell(caf_end{another_key});
  BOOST_TEST(user.closings == 0);
  tell(caf_end{key});
  tell(caf_end{key});
  BOOST_TEST(user.closings == 1);
  BOOST_TEST(user.why == "closed by the peer");
  BOOST_TEST(!over);
  with->close();
  settle();
  BOOST_TEST(over);
  BOOST_TEST(ends == 1);
}

BOOST_AUTO_TEST_CASE(after_its_own_end_it_waits_for_the_other_ones) {
  connect();
  with->close();
  settle();
  BOOST_TEST(ends == 1);
  pass(milliseconds(1'900));
  BOOST_TEST(!over);
  tell(caf_bytes{key, "late"});
  BOOST_TEST(user.bytes.empty());
  tell(caf_end{key});
  BOOST_TEST(over);
}

BOOST_AUTO_TEST_CASE(it_waits_no_longer_than_two_seconds_for_an_end_that_never_says_it) {
  connect();
  with->close();
  settle();
  pass(milliseconds(1'900));
  BOOST_TEST(!over);
  pass(milliseconds(200));
  BOOST_TEST(over);
}

BOOST_AUTO_TEST_CASE(an_other_end_that_is_gone_closes_the_connection) {
  connect();
  caf::anon_send_exit(other, caf::exit_reason::kill);
  settle();
  BOOST_TEST(user.why == "the connection broke");
  BOOST_TEST(!over);
  with->close();
  settle();
  BOOST_TEST(over);
}

BOOST_AUTO_TEST_CASE(after_its_own_end_it_does_not_outlive_the_other_one) {
  connect();
  with->close();
  settle();
  caf::anon_send_exit(other, caf::exit_reason::kill);
  settle();
  BOOST_TEST(over);
}

BOOST_AUTO_TEST_CASE(whoever_is_welcomed_speaks_with_who_welcomed_it) {
  const auto asked = listener();
  dial(asked);
  tell(caf_welcome{another_key, "somebody else", other});
  tell(caf_bytes{key, "too early"});
  BOOST_TEST(welcomes.empty());
  tell(caf_welcome{key, "who was dialled", other});
  BOOST_TEST(welcomes == std::vector<std::string>{"who was dialled"},
             boost::test_tools::per_element());
  // From now on the listener may go, and the other end may not.
  caf::anon_send_exit(asked, caf::exit_reason::kill);
  tell(caf_bytes{key, "welcome"});
  BOOST_TEST(user.bytes == "welcome");
  BOOST_TEST(user.closings == 0);
  BOOST_TEST(failures.empty());
  caf::anon_send_exit(other, caf::exit_reason::kill);
  settle();
  BOOST_TEST(user.why == "the connection broke");
}

BOOST_AUTO_TEST_CASE(a_refusal_ends_the_attempt_with_its_reason) {
  dial(other);
  tell(caf_refusal{another_key, "no"});
  BOOST_TEST(failures.empty());
  tell(caf_refusal{key, "no"});
  BOOST_TEST(failures == std::vector<std::string>{"it refuses: no"},
             boost::test_tools::per_element());
  BOOST_TEST(over);
}

BOOST_AUTO_TEST_CASE(where_the_listener_is_gone_the_attempt_fails) {
  dial(other);
  caf::anon_send_exit(other, caf::exit_reason::kill);
  settle();
  BOOST_TEST(failures == std::vector<std::string>{"the connection broke"},
             boost::test_tools::per_element());
  BOOST_TEST(over);
}

BOOST_AUTO_TEST_CASE(an_attempt_that_is_given_up_ends) {
  dial(other);
  with->close();
  settle();
  BOOST_TEST(over);
  BOOST_TEST(failures.empty());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
