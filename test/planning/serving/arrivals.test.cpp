#include "planning/serving/arrivals.hpp"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

namespace ordermoe {

namespace {

using namespace serving;
using wire::reserve_step;

/// Three servers, four layers, users of each served by all; expert e of every layer is on server e % 3,
/// and users of server 2 are served by server 2 alone.
planning::plan placed() {
  planning::plan made;
  made.n_servers = 3;
  made.n_layers = 4;
  made.n_experts = 6;
  for (std::uint32_t layer = 0; layer < 4; ++layer)
    for (std::uint32_t expert = 0; expert < 6; ++expert) {
      planning::placed_expert each;
      each.server = server_id{expert % 3};
      each.layer = layer_id{layer};
      each.expert = expert_id{expert};
      made.experts.push_back(each);
    }
  made.residence.resize(3);
  made.residence[0].layers = {0b111, 0b111, 0b011, 0b011};
  made.residence[1].layers = {0b010, 0b011, 0b011, 0b011};
  made.residence[2].layers = {0b100, 0b100, 0b100, 0b100};
  return made;
}

/// Of server 1.
arrival_limits limits() {
  arrival_limits made;
  made.self = 1;
  made.n_servers = 3;
  made.n_layers = 4;
  made.n_experts = 6;
  made.top_k = 2;
  made.vocabulary = 100;
  made.most_positions = 50;
  made.most_rows = 8;
  made.kv_bytes = 1000;
  made.hidden_size = 2;
  return made;
}

/// What a check says of `message` after `change`: empty where it passes.
template <class Message, class Check>
std::string said(Message message, const Check& check, const std::function<void(Message&)>& change) {
  change(message);
  const auto outcome = check(message);
  if (outcome) return {};
  BOOST_TEST((outcome.error().code == errc::out_of_range));
  return outcome.error().message;
}

/// Passes as it is, and with each change is refused with words that name what is wrong.
template <class Message>
struct refusal {
  std::string words;
  std::function<void(Message&)> change;
};

template <class Message, class Check>
void check_refusals(const Message& good, const Check& check,
                    const std::vector<refusal<Message>>& refusals) {
  BOOST_TEST(said<Message>(good, check, [](Message&) {}) == "");
  for (const auto& [words, change] : refusals) {
    const auto found = said<Message>(good, check, change);
    BOOST_TEST(found.find(words) != std::string::npos,
               "expected: " << words << "; said: " << found);
  }
}

template <class Message>
void check_passes(const Message& good, const auto& check,
                  const std::vector<std::function<void(Message&)>>& changes) {
  for (std::size_t i = 0; i < changes.size(); ++i)
    BOOST_TEST(said<Message>(good, check, changes[i]) == "", "change " << i);
}

/// Two prompt rows of a user of server 0, before layer 1.
wire::token_state token() {
  wire::token_state made;
  made.terms.prompt_tokens = 10;
  made.terms.given_tokens = 10;
  made.terms.max_new_tokens = 5;
  made.first = 4;
  made.layer = 1;
  made.ids = {3, 99};
  made.allowance = {0, 0};
  made.hidden = {1, 2, 3, 4};
  return made;
}

void await_outputs(wire::token_state& state) {
  state.slots_of_row = {1, 1};
  state.slots = {{0, 5, 1.0f}, {2, 0, 1.0f}};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(arrivals)

BOOST_AUTO_TEST_CASE(tokens_that_cannot_be_are_refused_by_the_field_that_is_wrong) {
  using state = wire::token_state;
  const auto plan = placed();
  const auto checked = [&](const state& message) { return check(message, 0, limits(), plan); };
  const auto most = std::numeric_limits<std::uint32_t>::max();
  check_refusals<state>(
      token(), checked,
      {{"access", [](state& s) { s.terms.access = 3; }},
       {"another server numbered", [](state& s) { s.terms.request = wire::first_request(1, 7); }},
       {"prompt_tokens", [](state& s) { s.terms.prompt_tokens = 0; }},
       {"prompt_tokens", [](state& s) { s.terms.prompt_tokens = s.terms.given_tokens = 51; }},
       {"max_new_tokens", [](state& s) { s.terms.max_new_tokens = 41; }},
       {"max_new_tokens", [=](state& s) { s.terms.max_new_tokens = most; }},
       {"given_tokens", [](state& s) { s.terms.given_tokens = 9; }},
       {"more positions are given", [](state& s) { s.terms.given_tokens = 16; }},
       {"temperature", [](state& s) { s.terms.temperature = -1; }},
       {"temperature", [](state& s) { s.terms.temperature = std::nan(""); }},
       {"flag", [](state& s) { s.terms.continue_in_place = 2; }},
       {"flag", [](state& s) { s.terms.score = 2; }},
       {"flag", [](state& s) { s.terms.ignore_end_of_text = 2; }},
       {"rows", [](state& s) { s.ids.clear(); }},
       {"rows", [](state& s) { s.ids.assign(9, 1); }},
       {"first", [](state& s) { s.first = 49; }},
       {"first", [=](state& s) { s.first = most; }},
       {"layer", [](state& s) { s.layer = 5; }},
       {"layer",
        [](state& s) {
          s.layer = 4;
          await_outputs(s);
        }},
       {"token id", [](state& s) { s.ids[1] = 100; }},
       {"negative token id", [](state& s) { s.ids[0] = -1; }},
       {"id that follows", [](state& s) { s.forced = {100}; }},
       {"more ids follow", [](state& s) { s.forced.assign(51, 1); }},
       {"scored row",
        [](state& s) {
          s.terms.score = 1;
          s.first = 9;
        }},
       {"no hidden state", [](state& s) { s.hidden.clear(); }},
       {"pool", [](state& s) { s.pool = -1; }},
       {"pool", [](state& s) { s.pool = unbounded_budget + 1; }},
       {"spent", [](state& s) { s.spent = -1; }},
       {"allowance", [](state& s) { s.allowance[1] = -1; }},
       {"slots of a row",
        [](state& s) {
          await_outputs(s);
          s.slots_of_row[0] = 3;
        }},
       {"server of a slot",
        [](state& s) {
          await_outputs(s);
          s.slots[1].server = 3;
        }},
       {"expert of a slot",
        [](state& s) {
          await_outputs(s);
          s.slots[0].expert = 6;
        }},
       {"not in the residency", [](state& s) { s.terms.access = 2; }}});
  check_passes<state>(
      token(), checked,
      {[](state& s) { s.first = 48; }, [](state& s) { await_outputs(s); },
       [](state& s) { s.terms.request = wire::first_request(0, 7) + 5; },
       [](state& s) {
         s.terms.score = 1;
         s.first = 8;
       },
       [](state& s) { s.layer = 4; },
       [](state& s) {
         s.layer = 0;
         s.hidden.clear();
       },
       [](state& s) { s.pool = unbounded_budget; }, [](state& s) { s.terms.max_new_tokens = 40; }});
}

BOOST_AUTO_TEST_CASE(rules_of_sampling_that_cannot_be_are_refused) {
  using state = wire::token_state;
  const auto plan = placed();
  const auto checked = [&](const state& message) { return check(message, 0, limits(), plan); };
  auto good = token();
  good.sampling.emplace();
  good.sampling->bias_ids = {3, 99};
  good.sampling->bias = {-100, 100};
  good.sampling->answered = {4, 4};
  check_refusals<state>(
      good, checked,
      {{"top_p", [](state& s) { s.sampling->top_p = 0; }},
       {"top_p", [](state& s) { s.sampling->top_p = 1.1; }},
       {"penalty", [](state& s) { s.sampling->presence_penalty = -1001; }},
       {"penalty", [](state& s) { s.sampling->frequency_penalty = 1001; }},
       {"logprobs", [](state& s) { s.sampling->logprobs = 34; }},
       {"more than 1024 biases", [](state& s) { s.sampling->bias_ids.assign(1025, 3); }},
       {"out of order",
        [](state& s) {
          s.sampling->bias_ids = {3, 3};
        }},
       {"bias beyond", [](state& s) { s.sampling->bias[1] = 1001; }},
       {"id with a bias", [](state& s) { s.sampling->bias_ids[1] = 100; }},
       {"negative token id", [](state& s) { s.sampling->bias_ids[0] = -1; }},
       {"longer answer", [](state& s) { s.sampling->answered.assign(51, 1); }},
       {"id of the answer", [](state& s) { s.sampling->answered[0] = 100; }}});
  check_passes<state>(good, checked,
                      {[](state& s) { s.sampling->logprobs = 33; },
                       [](state& s) { s.sampling->answered.clear(); }});
}

BOOST_AUTO_TEST_CASE(a_token_comes_only_from_servers_that_serve_its_user) {
  const auto plan = placed();
  auto message = token();
  message.terms.access = 1;
  BOOST_TEST(check(message, 0, limits(), plan).has_value());
  BOOST_TEST(check(message, 1, limits(), plan).has_value());
  BOOST_TEST(!check(message, 2, limits(), plan).has_value());
  BOOST_TEST(serves(plan, 0, 2));
  BOOST_TEST(!serves(plan, 1, 2));
  BOOST_TEST(!serves(plan, 2, 0));
}

BOOST_AUTO_TEST_CASE(a_token_that_awaits_outputs_is_where_the_next_layer_may_run) {
  auto plan = placed();
  plan.residence[0].layers[2] = 0b001;  // Server 1 may run layers 0, 1 and 3.
  auto message = token();
  await_outputs(message);
  BOOST_TEST(!check(message, 0, limits(), plan).has_value());
  message.layer = 0;
  BOOST_TEST(check(message, 0, limits(), plan).has_value());
  // Behind the last layer: where that or the first may run.
  message.layer = 3;
  BOOST_TEST(check(message, 0, limits(), plan).has_value());
  plan.residence[0].layers[3] = 0b001;
  BOOST_TEST(check(message, 0, limits(), plan).has_value());
  plan.residence[0].layers[0] = 0b101;
  BOOST_TEST(!check(message, 0, limits(), plan).has_value());
}

BOOST_AUTO_TEST_CASE(calls_name_experts_of_this_server_and_rows_that_a_chunk_has) {
  using call = wire::expert_call;
  const auto plan = placed();
  const planning::placement_index index(plan);
  const auto checked = [&](const call& message) {
    return check(message, 0, limits(), plan, index);
  };
  call good;
  good.layer = 3;
  good.reply_to = 2;
  good.rows = {0, 7};
  good.whole = {1, 1};
  good.items = {{0, 0, 1, 1.0f}, {1, 1, 4, 1.0f}};
  good.x = {1, 2, 3, 4};
  check_refusals<call>(
      good, checked,
      {{"layer", [](call& c) { c.layer = 4; }},
       {"access", [](call& c) { c.token.access = 3; }},
       {"another server numbered", [](call& c) { c.token.request = wire::first_request(2, 1); }},
       {"sender has no part", [](call& c) { c.token.access = 2; }},
       {"outputs for a server", [](call& c) { c.token.access = 1; }},
       {"reply_to", [](call& c) { c.reply_to = 3; }},
       {"row", [](call& c) { c.rows[1] = 8; }},
       {"position", [](call& c) { c.token.first = 50; }},
       {"slot", [](call& c) { c.items[0].slot = 2; }},
       {"expert", [](call& c) { c.items[1].expert = 6; }},
       {"does not place", [](call& c) { c.items[1].expert = 5; }}});
  check_passes<call>(good, checked, {[](call& c) { c.token.first = 49; }});
}

BOOST_AUTO_TEST_CASE(outputs_come_from_a_server_with_experts_of_the_layer) {
  using output = wire::expert_output;
  auto plan = placed();
  std::erase_if(plan.experts, [](const planning::placed_expert& each) {
    return each.server == server_id{2} && each.layer == layer_id{1};
  });
  const planning::placement_index index(plan);
  const auto checked = [&](const output& message) { return check(message, 2, limits(), index); };
  output good;
  good.layer = 0;
  good.rows = {{7, wire::whole_row}, {0, 1}};
  check_refusals<output>(good, checked,
                         {{"layer", [](output& o) { o.layer = 4; }},
                          {"hosts no expert", [](output& o) { o.layer = 1; }},
                          {"position", [](output& o) { o.token.first = 50; }},
                          {"row", [](output& o) { o.rows[0].row = 8; }},
                          {"slot", [](output& o) { o.rows[1].slot = 2; }},
                          {"code", [](output& o) { o.code = 200; }},
                          {"text", [](output& o) { o.problem.assign(1025, 'x'); }}});
}

BOOST_AUTO_TEST_CASE(kv_rows_are_of_positions_that_there_may_be) {
  using rows = wire::kv_rows;
  const auto checked = [&](const rows& message) { return check(message, limits()); };
  rows good;
  good.layer = 3;
  good.blocks = {{1, 0, 0, 50, {}}, {1, 0, 49, 1, {}}};
  const auto most = std::numeric_limits<std::uint32_t>::max();
  check_refusals<rows>(good, checked,
                       {{"layer", [](rows& r) { r.layer = 4; }},
                        {"rows", [](rows& r) { r.blocks[0].n = 0; }},
                        {"rows", [=](rows& r) { r.blocks[0].n = most; }},
                        {"first", [](rows& r) { r.blocks[1].n = 2; }},
                        {"first", [=](rows& r) { r.blocks[1].first = most; }}});
}

BOOST_AUTO_TEST_CASE(reports_are_for_users_of_this_server_from_servers_that_serve_them) {
  using report = wire::progress_report;
  const auto plan = placed();
  const auto checked = [&](const report& message) { return check(message, 0, limits(), plan); };
  report good;
  good.access = 1;
  good.position = 50;
  good.id = 99;
  good.hidden = {1, 2};
  check_refusals<report>(good, checked,
                         {{"access", [](report& r) { r.access = 0; }},
                          {"position", [](report& r) { r.position = 51; }},
                          {"id", [](report& r) { r.id = 100; }},
                          {"id", [](report& r) { r.id = -2; }},
                          {"flag", [](report& r) { r.last = 2; }},
                          {"pool", [](report& r) { r.pool = -1; }},
                          {"spent", [](report& r) { r.spent = unbounded_budget + 1; }},
                          {"hidden state", [](report& r) { r.hidden = {1}; }}});
  check_passes<report>(good, checked,
                       {[](report& r) { r.id = -1; }, [](report& r) { r.hidden.clear(); }});
  BOOST_TEST(!check(good, 2, limits(), plan).has_value());
}

BOOST_AUTO_TEST_CASE(questions_come_from_their_owner_and_answers_from_the_server_that_was_asked) {
  using message = wire::reservation;
  const auto plan = placed();
  const auto from_0 = [&](const message& m) { return check(m, 0, limits(), plan); };
  message ask;
  ask.step = reserve_step::attempt;
  ask.server = 1;
  ask.access = 0;
  ask.bytes = 1000;
  ask.lease_ns = 5;
  check_refusals<message>(
      ask, from_0,
      {{"server", [](message& m) { m.server = 2; }},
       {"access", [](message& m) { m.access = 2; }},
       {"another server numbered", [](message& m) { m.request = wire::first_request(1, 3); }},
       {"bytes", [](message& m) { m.bytes = 0; }},
       {"bytes", [](message& m) { m.bytes = -5; }},
       {"bytes", [](message& m) { m.bytes = 1001; }},
       {"lease_ns", [](message& m) { m.lease_ns = -1; }},
       {"lease_ns", [](message& m) { m.lease_ns = 366 * 86'400'000'000'000 + 1; }}});
  check_passes<message>(ask, from_0,
                        {[](message& m) { m.step = reserve_step::wait; },
                         [](message& m) { m.request = wire::first_request(0, 3); },
                         // The longest deadline that is taken, and the slack of a lease.
                         [](message& m) { m.lease_ns = 365 * 86'400'000'000'000 + 10'000'000'000; },
                         [](message& m) {
                           m.step = reserve_step::release;
                           m.bytes = 0;
                         },
                         [](message& m) { m.step = reserve_step::fence; }});
  // Users of server 2 are served without this one: they need no memory here.
  auto stranger = ask;
  stranger.access = 2;
  BOOST_TEST(!check(stranger, 2, limits(), plan).has_value());
  auto answer = ask;
  answer.server = 0;
  answer.access = 1;
  for (const auto step : {reserve_step::granted, reserve_step::refused, reserve_step::fenced}) {
    answer.step = step;
    check_refusals<message>(answer, from_0,
                            {{"server", [](message& m) { m.server = 2; }},
                             {"access", [](message& m) { m.access = 0; }},
                             {"bytes", [](message& m) { m.bytes = -1; }}});
  }
}

BOOST_AUTO_TEST_CASE(a_server_speaks_of_the_links_that_leave_it) {
  using report = wire::link_report;
  const auto from_2 = [&](const report& message) { return check(message, 2, limits()); };
  const report good{2, 1, {{5, 1e9}, {-1, 0}, {}}};
  const auto no_rate = std::numeric_limits<double>::quiet_NaN();
  check_refusals<report>(
      good, from_2,
      {{"server", [](report& r) { r.server = 0; }},
       {"latency_ns", [](report& r) { r.links[0].latency_ns = -2; }},
       {"latency_ns", [](report& r) { r.links[0].latency_ns = 86'400'000'000'001; }},
       {"no rate", [&](report& r) { r.links[0].bytes_per_s = no_rate; }},
       {"no rate", [](report& r) { r.links[0].bytes_per_s = -1e9; }},
       {"no rate", [](report& r) { r.links[0].bytes_per_s = 1e-300; }},
       {"no rate", [](report& r) { r.links[0].bytes_per_s = 1e300; }},
       {"not one entry", [](report& r) { r.links.pop_back(); }},
       {"not one entry", [](report& r) { r.links.emplace_back(); }}});
}

BOOST_AUTO_TEST_CASE(a_server_speaks_of_its_own_load) {
  using report = wire::load_report;
  const auto from_2 = [&](const report& message) { return check(message, 2, limits()); };
  const report good{2, 1, 5, {1, 2, 0}};
  check_refusals<report>(good, from_2,
                         {{"server", [](report& r) { r.server = 0; }},
                          {"wait_ns", [](report& r) { r.wait_ns = -1; }},
                          {"wait_ns", [](report& r) { r.wait_ns = 86'400'000'000'001; }},
                          {"not one wait", [](report& r) { r.link_wait_ns.pop_back(); }},
                          {"not one wait", [](report& r) { r.link_wait_ns.push_back(0); }},
                          {"link_wait_ns", [](report& r) { r.link_wait_ns[1] = -1; }}});
  auto stranger = good;
  stranger.server = 3;
  BOOST_TEST(!check(stranger, 3, limits()).has_value());
}

BOOST_AUTO_TEST_CASE(a_failure_has_a_known_code_and_few_words) {
  using report = wire::failure_report;
  const auto plan = placed();
  const auto from_0 = [&](const report& message) { return check(message, 0, limits(), plan); };
  const report good{1, 0, 0, static_cast<std::uint8_t>(errc::failed), std::string(1024, 'x')};
  check_refusals<report>(
      good, from_0,
      {{"server", [](report& r) { r.server = 2; }},
       {"code", [](report& r) { r.code = static_cast<std::uint8_t>(errc::failed) + 1; }},
       {"text", [](report& r) { r.text += 'x'; }}});
  // Server 2 has no part in requests of users of this server.
  auto stranger = good;
  stranger.server = 2;
  BOOST_TEST(!check(stranger, 2, limits(), plan).has_value());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
