#include "actors/cluster/control.hpp"

#include <boost/test/unit_test.hpp>
#include <limits>
#include <nlohmann/json.hpp>

#include "config/random.hpp"
#include "test/support/seeds.hpp"

namespace ordermoe {

namespace {

using actors::answer_token;
using actors::remote_request;
using actors::request_outcome;
using nlohmann::json;

constexpr auto largest = std::numeric_limits<std::uint64_t>::max();

remote_request some_request() {
  remote_request made;
  made.ref = largest;
  made.spec.prompt = {0, 5, 319};
  made.spec.max_new_tokens = 1u << 20;
  made.spec.temperature = 0.7;
  made.spec.sampling_seed = largest - 1;
  made.spec.sampling_stream = 0;
  made.spec.choice = {0.25, 40, -2, 0.5, {{0, -100.0f}, {319, 0.5f}}, 5};
  made.spec.tells_executions = true;
  made.tells_tokens = false;
  made.spec.stop_strings = {"\n", "\"end\" \u00fc"};
  made.spec.ignore_end_of_text = true;
  made.spec.score = true;
  made.spec.scored_after = 17;
  made.spec.quality_percent = 12.5;
  made.spec.deadline_ns = 365 * std::int64_t{86'400} * 1'000'000'000;
  return made;
}

answer_token some_token() {
  answer_token made;
  made.request = largest;
  made.index = 63;
  made.id = 319;
  made.text = " w\u00f6rd\n";
  made.loss = 0.1;
  made.logprobs = {{319, -0.1}, {0, -12.5}};
  made.executions = actors::told_executions{1, 2, 3, std::uint64_t{1} << 53};
  made.time_ns = 12'345'678'901;
  return made;
}

request_outcome some_outcome() {
  request_outcome made;
  made.request = largest;
  made.access = 2;
  made.token_ids = {5, 6, 7};
  made.text = "some text";
  made.text_tail = "ext";
  made.finish = "failed";
  made.problem = error{errc::infeasible, "as it \"is\""};
  made.attempts = 3;
  made.arrival_ns = 1;
  made.first_token_ns = 2;
  made.done_ns = std::numeric_limits<std::int64_t>::max();
  made.quality_percent = -1;
  made.budget = 400;
  made.spent = -3;
  made.losses = {0.1, 1e-300, 2};
  made.executions = actors::told_executions{4, 3, 2, 1};
  return made;
}

std::vector<std::pair<std::int32_t, double>> pairs_of(const answer_token& token) {
  std::vector<std::pair<std::int32_t, double>> pairs;
  for (const auto& each : token.logprobs) pairs.emplace_back(each.id, each.logprob);
  return pairs;
}

bool operator==(const answer_token& a, const answer_token& b) {
  return a.request == b.request && a.index == b.index && a.id == b.id && a.text == b.text &&
         a.loss == b.loss && a.time_ns == b.time_ns && pairs_of(a) == pairs_of(b) &&
         a.executions == b.executions;
}

void check_same(const remote_request& a, const remote_request& b) {
  BOOST_TEST(a.ref == b.ref);
  BOOST_TEST(a.text == b.text);
  BOOST_TEST(a.spec.prompt == b.spec.prompt, boost::test_tools::per_element());
  BOOST_TEST(a.spec.max_new_tokens == b.spec.max_new_tokens);
  BOOST_TEST(a.spec.temperature == b.spec.temperature);
  BOOST_TEST(a.spec.sampling_seed == b.spec.sampling_seed);
  BOOST_TEST((a.spec.sampling_stream == b.spec.sampling_stream));
  BOOST_TEST((a.spec.choice == b.spec.choice));
  BOOST_TEST(a.spec.tells_executions == b.spec.tells_executions);
  BOOST_TEST(a.tells_tokens == b.tells_tokens);
  BOOST_TEST(a.spec.stop_strings == b.spec.stop_strings, boost::test_tools::per_element());
  BOOST_TEST(a.spec.ignore_end_of_text == b.spec.ignore_end_of_text);
  BOOST_TEST(a.spec.score == b.spec.score);
  BOOST_TEST(a.spec.scored_after == b.spec.scored_after);
  BOOST_TEST((a.spec.quality_percent == b.spec.quality_percent));
  BOOST_TEST(a.spec.deadline_ns == b.spec.deadline_ns);
}

void check_same(const request_outcome& a, const request_outcome& b) {
  BOOST_TEST(a.request == b.request);
  BOOST_TEST(a.access == b.access);
  BOOST_TEST(a.token_ids == b.token_ids, boost::test_tools::per_element());
  BOOST_TEST(a.text == b.text);
  BOOST_TEST(a.text_tail == b.text_tail);
  BOOST_TEST(a.finish == b.finish);
  BOOST_REQUIRE(a.problem.has_value() == b.problem.has_value());
  if (a.problem) BOOST_TEST((a.problem->code == b.problem->code));
  if (a.problem) BOOST_TEST(a.problem->message == b.problem->message);
  BOOST_TEST(a.attempts == b.attempts);
  BOOST_TEST(a.arrival_ns == b.arrival_ns);
  BOOST_TEST(a.first_token_ns == b.first_token_ns);
  BOOST_TEST(a.done_ns == b.done_ns);
  BOOST_TEST((a.quality_percent == b.quality_percent));
  BOOST_TEST(a.budget == b.budget);
  BOOST_TEST(a.spent == b.spent);
  BOOST_TEST(a.losses == b.losses, boost::test_tools::per_element());
}

/// What the one who parses it says.
struct verdict {
  bool good = false;
  error why;
};
template <class Content>
verdict verdict_on(const result<Content>& parsed) {
  return {parsed.has_value(), parsed ? error{} : parsed.error()};
}

/// One kind of message: a correct text, and whoever takes it in.
struct kind_of_message {
  const char* name;
  std::string text;
  verdict (*parse)(std::string_view);
  std::vector<const char*> optional;  ///< Members that may be left out.
  bool is_closed = false;             ///< No other members.
};

std::vector<kind_of_message> every_kind() {
  return {{"submit",
           submit_text(some_request()),
           [](std::string_view text) { return verdict_on(actors::parse_submit(text)); },
           {"stream", "choice", "executions", "tokens", "scored_after", "quality_percent"},
           true},
          {"cancel",
           actors::cancel_text(7),
           [](std::string_view text) { return verdict_on(actors::parse_cancel(text)); },
           {},
           true},
          {"token",
           token_text(some_token()),
           [](std::string_view text) { return verdict_on(actors::parse_token(text)); },
           {"loss", "logprobs", "executions"}},
          {"ended",
           ended_text(some_outcome()),
           [](std::string_view text) { return verdict_on(actors::parse_ended(text)); },
           {"problem", "executions", "quality_percent"}}};
}

const kind_of_message& kind(const std::string& name) {
  static const auto all = every_kind();
  return *std::ranges::find(all, name,
                            [](const kind_of_message& each) -> std::string { return each.name; });
}

/// The message with one member changed is refused with this code, in words that contain all of `parts`.
void check_refused(const std::string& name, const char* member, const json& value, errc code,
                   std::initializer_list<std::string> parts) {
  BOOST_TEST_CONTEXT(name << ": " << member << " = " << value) {
    const auto& of = kind(name);
    auto content = json::parse(of.text);
    content[json::json_pointer(member)] = value;
    const auto said = of.parse(content.dump());
    BOOST_REQUIRE(!said.good);
    BOOST_CHECK_MESSAGE(said.why.code == code, said.why.message);
    for (const auto& part : parts)
      BOOST_CHECK_MESSAGE(said.why.message.find(part) != std::string::npos,
                          "'" << said.why.message << "' does not say '" << part << "'");
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(control)

BOOST_AUTO_TEST_CASE(what_is_too_long_for_a_message_is_a_problem_that_says_so) {
  auto outcome = some_outcome();
  outcome.problem.reset();
  outcome.finish = "length";
  // Whatever it is that takes the room.
  const auto ended = [&](std::size_t ids, std::size_t letters, std::size_t losses) {
    outcome.token_ids.assign(ids, 123456);
    outcome.text.assign(letters, 'a');
    outcome.losses.assign(losses, 0.123456789012345);
    const auto text = ended_text(outcome);
    BOOST_TEST(text.size() <= actors::most_message_bytes());
    auto told = actors::parse_ended(text);
    BOOST_REQUIRE_MESSAGE(told, (told ? "" : told.error().message));
    return *told;
  };
  BOOST_TEST(!ended(1000, 1000, 1000).problem);
  for (const auto& told : {ended(1 << 18, 0, 0), ended(0, 1 << 20, 0), ended(0, 0, 1 << 17)}) {
    BOOST_REQUIRE(told.problem);
    BOOST_CHECK_MESSAGE(told.problem->code == errc::out_of_range, told.problem->message);
    BOOST_TEST(told.problem->message.find("expected at most 1048576") != std::string::npos);
    BOOST_TEST(told.request == outcome.request);
    BOOST_TEST(told.done_ns == outcome.done_ns);
    BOOST_TEST(told.spent == outcome.spent);
    BOOST_TEST(told.token_ids.empty());
  }

  // Whoever was told the tokens as they came has an end without them.
  outcome.token_ids.assign(1 << 18, 123456);
  outcome.text = "as it was told";
  outcome.losses = {0.5};
  const auto streamed = actors::parse_ended(ended_text(outcome, true));
  BOOST_REQUIRE(streamed);
  BOOST_TEST(!streamed->problem);
  BOOST_TEST(streamed->finish == "length");
  BOOST_TEST(streamed->token_ids.empty());
  BOOST_TEST(streamed->losses == outcome.losses, boost::test_tools::per_element());

  const auto reply = json{{"ref", 17}, {"result", {{"of", "an order"}}}}.dump();
  BOOST_TEST(actors::reply_that_fits(reply) == reply);
  const auto long_one = json{{"ref", 17}, {"result", std::string(1 << 20, 'x')}}.dump();
  const auto told = json::parse(actors::reply_that_fits(long_one));
  BOOST_TEST(told["ref"] == 17);
  BOOST_TEST(told["problem"]["code"] == static_cast<int>(errc::out_of_range));
  BOOST_TEST(told["problem"]["message"].get<std::string>().find("it is done") == 0u);
  BOOST_TEST(!told.contains("result"));
  const auto refusal =
      json{{"ref", 17}, {"problem", {{"code", 1}, {"message", std::string(1 << 20, 'x')}}}};
  BOOST_TEST(json::parse(actors::reply_that_fits(refusal.dump()))["problem"]["message"]
                 .get<std::string>()
                 .find("it is refused") == 0u);

  BOOST_TEST(actors::status_that_fits("{}") == "{}");
  const auto status = json::parse(actors::status_that_fits(std::string((1 << 20) + 1, ' ')));
  BOOST_TEST(status["problem"].is_string());
}

BOOST_AUTO_TEST_CASE(a_status_that_a_node_could_not_tell_is_its_problem) {
  BOOST_TEST(actors::read_status(R"({"name":"s1","problem":"none"})").value() ==
             R"({"name":"s1","problem":"none"})");
  const auto refused = actors::read_status(R"({"problem":"it took too long"})");
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code == errc::failed));
  BOOST_TEST(refused.error().message == "it took too long");
  const auto deep = R"({"a":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  for (const auto& text : {std::string("7"), std::string("{"), std::string(), deep}) {
    const auto found = actors::read_status(text);
    BOOST_REQUIRE(!found);
    BOOST_TEST((found.error().code == errc::malformed));
  }
}

BOOST_AUTO_TEST_CASE(a_request_comes_as_it_was_sent) {
  const auto sent = some_request();
  const auto came = actors::parse_submit(submit_text(sent));
  BOOST_REQUIRE_MESSAGE(came, (came ? "" : came.error().message));
  check_same(*came, sent);
  remote_request plain;
  plain.text = "Q: 12 * 3\nA: \u00fc";
  const auto text = actors::parse_submit(submit_text(plain));
  BOOST_REQUIRE_MESSAGE(text, (text ? "" : text.error().message));
  check_same(*text, plain);
  BOOST_TEST(!text->spec.sampling_stream.has_value());
}

BOOST_AUTO_TEST_CASE(a_request_of_ids_needs_no_text) {
  auto sent = some_request();
  sent.text = "what nobody reads";
  const auto came = actors::parse_submit(submit_text(sent));
  BOOST_REQUIRE(came.has_value());
  BOOST_TEST(came->text == "");
}

/// With a space before it a text is read as any JSON.
BOOST_AUTO_TEST_CASE(plain_tokens_are_read_as_any_json_is) {
  random_stream draws(7);
  answer_token plain;
  for (int round = 0; round < 20'000; ++round) {
    plain.request = round % 3 == 0 ? largest : draws.below(1000);
    plain.index = static_cast<std::uint32_t>(draws.below(200));
    plain.id = round % 5 == 0 ? 0x7fffffff : static_cast<std::int32_t>(draws.below(400));
    plain.text = std::string(draws.below(4), static_cast<char>(0x20 + draws.below(0x60)));
    plain.time_ns = static_cast<std::int64_t>(draws.below(1'000'000'000));
    plain.executions.reset();
    if (round % 2 == 0)
      plain.executions = actors::told_executions{draws.below(9), 0, std::uint64_t{1} << 53, 7};
    auto text = token_text(plain);
    BOOST_TEST((*actors::parse_token(text) == plain));
    BOOST_TEST(json::parse(text).at("text") == plain.text);
    const auto n_changes = draws.below(3);
    for (std::size_t i = 0; i < n_changes; ++i)
      text[draws.below(text.size())] = "0123456789\"\\,:{} -.eE[]"[draws.below(23)];
    const auto fast = actors::parse_token(text), slow = actors::parse_token(" " + text);
    BOOST_REQUIRE_MESSAGE(fast.has_value() == slow.has_value(), text);
    if (fast) BOOST_REQUIRE_MESSAGE((*fast == *slow), text);
  }
}

BOOST_AUTO_TEST_CASE(a_cancellation_comes_as_it_was_sent) {
  for (const auto ref : {std::uint64_t{0}, largest}) {
    const auto came = actors::parse_cancel(actors::cancel_text(ref));
    BOOST_REQUIRE_MESSAGE(came, (came ? "" : came.error().message));
    BOOST_TEST(*came == ref);
  }
}

BOOST_AUTO_TEST_CASE(tokens_come_as_they_were_sent) {
  auto sent = some_token();
  for (const bool with_loss : {true, false}) {
    if (!with_loss) sent.loss.reset();
    const auto came = actors::parse_token(token_text(sent));
    BOOST_REQUIRE_MESSAGE(came, (came ? "" : came.error().message));
    BOOST_TEST((*came == sent));
  }
}

BOOST_AUTO_TEST_CASE(an_end_comes_as_it_was_sent) {
  auto sent = some_outcome();
  for (const bool with_problem : {true, false}) {
    if (!with_problem) sent.problem.reset();
    const auto came = actors::parse_ended(ended_text(sent));
    BOOST_REQUIRE_MESSAGE(came, (came ? "" : came.error().message));
    check_same(*came, sent);
  }
}

BOOST_AUTO_TEST_CASE(bytes_that_are_no_text_are_replaced_and_not_refused) {
  auto token = some_token();
  token.text = "half a letter: \xc3";
  const auto came = actors::parse_token(token_text(token));
  BOOST_REQUIRE_MESSAGE(came, (came ? "" : came.error().message));
  BOOST_TEST(came->text == "half a letter: \ufffd");
}

BOOST_AUTO_TEST_CASE(each_missing_member_is_named) {
  for (const auto& each : every_kind()) {
    const auto content = json::parse(each.text);
    for (const auto& [member, value] : content.items()) {
      BOOST_TEST_CONTEXT(each.name << " without " << member) {
        auto without = content;
        without.erase(member);
        const auto said = each.parse(without.dump());
        const bool may = std::ranges::find(each.optional, member) != each.optional.end();
        BOOST_REQUIRE_EQUAL(said.good, may);
        // Without ids there is a text.
        const auto expected = member == "prompt" ? "text" : member;
        if (!may) BOOST_TEST((said.why.code == errc::malformed));
        if (!may) BOOST_TEST(said.why.message.find(expected) != std::string::npos);
        if (!may) BOOST_TEST(said.why.message.starts_with(each.name));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(members_that_nobody_knows_are_refused_where_a_client_sends_them) {
  for (const auto& each : every_kind()) {
    auto content = json::parse(each.text);
    content["more"] = 1;
    const auto said = each.parse(content.dump());
    BOOST_TEST(said.good == !each.is_closed);
    if (each.is_closed) BOOST_TEST(said.why.message.find("more") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(values_out_of_range_are_named_with_what_is_allowed) {
  const auto range = errc::out_of_range;
  check_refused("submit", "/max_new_tokens", 0, range, {"max_new_tokens", "found 0", "1048576"});
  check_refused("submit", "/max_new_tokens", (1u << 20) + 1, range, {"max_new_tokens", "1048577"});
  check_refused("submit", "/temperature", -0.5, range, {"temperature", "-0.5"});
  check_refused("submit", "/temperature", 1e7, range, {"temperature"});
  check_refused("submit", "/quality_percent", -0.5, range, {"quality_percent", "-0.5", "100"});
  check_refused("submit", "/quality_percent", 100.5, range, {"quality_percent", "100.5"});
  check_refused("submit", "/quality_percent", 1e308, range, {"quality_percent"});
  check_refused("submit", "/prompt/1", -1, range, {"prompt[1]", "-1"});
  check_refused("submit", "/prompt/1", 0x7fffffff, range, {"prompt[1]", "2147483647"});
  check_refused("submit", "/deadline_ns", -1, range, {"deadline_ns", "-1"});
  check_refused("submit", "/deadline_ns", std::numeric_limits<std::int64_t>::max(), range,
                {"deadline_ns"});
  check_refused("token", "/index", -1, range, {"index"});
  check_refused("token", "/id", -1, range, {"id"});
  check_refused("token", "/id", 0x80000000u, range, {"id"});
  check_refused("ended", "/ids/0", -5, range, {"ids[0]"});
  check_refused("ended", "/attempts", -1, range, {"attempts"});
  check_refused("ended", "/problem/code", 11, range, {"problem.code", "found 11"});
  check_refused("ended", "/problem/code", -1, range, {"problem.code"});
}

BOOST_AUTO_TEST_CASE(values_of_another_type_are_named_with_what_is_expected) {
  const auto malformed = errc::malformed;
  check_refused("submit", "/ref", "7", malformed, {"ref"});
  check_refused("submit", "/ref", -7, errc::out_of_range, {"ref"});
  check_refused("submit", "/prompt", "ids", malformed, {"prompt"});
  check_refused("submit", "/prompt/0", 1.5, errc::out_of_range, {"prompt[0]"});
  check_refused("submit", "/temperature", nullptr, malformed, {"temperature"});
  // As a number that is none would come.
  check_refused("submit", "/quality_percent", nullptr, malformed, {"quality_percent"});
  check_refused("submit", "/quality_percent", "5", malformed, {"quality_percent"});
  check_refused("submit", "/quality_percent", json::array({5}), malformed, {"quality_percent"});
  check_refused("ended", "/quality_percent", "5", malformed, {"quality_percent"});
  check_refused("submit", "/stop", "end", malformed, {"stop"});
  check_refused("submit", "/stop/0", 1, malformed, {"stop[0]"});
  check_refused("submit", "/score", 1, malformed, {"score"});
  check_refused("cancel", "/ref", json::array(), malformed, {"ref"});
  check_refused("token", "/text", 7, malformed, {"text"});
  check_refused("ended", "/problem", "it failed", malformed, {"problem"});
  check_refused("ended", "/losses", json::array({"much"}), malformed, {"losses"});
}

BOOST_AUTO_TEST_CASE(what_is_no_object_of_json_is_refused) {
  for (const auto& each : every_kind())
    for (const std::string text : {"", "{", "null", "7", "[]", "\"submit\"",
                                   "{\"ref\": 1, \"ref\": 2}", "\xff\xfe", "[[[["}) {
      const auto said = each.parse(text);
      BOOST_CHECK_MESSAGE(!said.good && said.why.code == errc::malformed,
                          each.name << ": " << text);
    }
}

BOOST_AUTO_TEST_CASE(damaged_bytes_are_refused_or_taken_and_never_more) {
  const auto all = every_kind();
  std::size_t refused = 0;
  const auto n = test::count(100'000);
  for (std::uint64_t seed = 1; seed <= n; ++seed) {
    random_stream draws(seed, 3);
    const auto& each = all[draws.below(all.size())];
    auto text = each.text;
    for (auto flips = 1 + draws.below(3); flips > 0; --flips)
      text[draws.below(text.size())] ^= static_cast<char>(1u << draws.below(8));
    if (draws.below(10) == 0) text.resize(draws.below(text.size()));
    const auto said = each.parse(text);
    refused += said.good ? 0 : 1;
    if (!said.good && said.why.message.empty())
      BOOST_ERROR("seed " << seed << ": refused without a reason");
  }
  // Most damage is seen; a changed letter of a text is not.
  BOOST_TEST(refused > n / 2);
  BOOST_TEST(refused < n);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
