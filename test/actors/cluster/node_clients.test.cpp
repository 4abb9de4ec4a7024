#include "actors/cluster/node_clients.hpp"

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "test/actors/cluster/nodes.hpp"

namespace ordermoe {

namespace {

using test::asked_requests;
using test::nodes;
using test::request_of;
using test::says;

/// Makes the same ids of every text, too many for the tiny model.
struct counting_tokenizer final : model::tokenizer {
  mutable std::atomic<int> n_encoded = 0;
  std::size_t vocab_size() const override { return 320; }
  std::vector<std::int32_t> encode(std::string_view) const override {
    ++n_encoded;
    return std::vector<std::int32_t>(1000, 5);
  }
  std::vector<std::int32_t> encode_inside(std::string_view text) const override {
    return encode(text);
  }
  std::optional<std::int32_t> special_id(std::string_view) const override { return std::nullopt; }
  std::string decode(std::span<const std::int32_t>) const override { return {}; }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(node_clients)

BOOST_AUTO_TEST_CASE(a_text_of_more_bytes_than_any_prompt_has_is_refused_and_not_encoded) {
  const auto tokens = std::make_shared<counting_tokenizer>();
  nodes cluster;
  cluster.tokens = tokens;
  cluster.start(0);
  const auto client = cluster.client(0);
  asked_requests asked(*client);
  auto spec = request_of(0);
  spec.prompt.clear();
  constexpr std::size_t most = 64 << 10;
  asked.ask(spec, std::string(most + 1, 'a'));
  asked.ask(spec, std::string(most, 'a'));
  asked.await_all();
  for (const auto& each : asked.all()) {
    BOOST_REQUIRE(each.ended->problem.has_value());
    BOOST_TEST((each.ended->problem->code == errc::out_of_range));
  }
  const auto problem = [&](std::size_t i) { return asked.all()[i].ended->problem->message; };
  BOOST_TEST(says(problem(0), "65537 bytes of text, expected at most 65536"), problem(0));
  BOOST_TEST(says(problem(1), "the prompt has 1000 tokens"), problem(1));
  BOOST_TEST(tokens->n_encoded == 1);
}

BOOST_AUTO_TEST_CASE(a_client_has_so_many_requests_at_once_and_others_have_theirs) {
  constexpr net::peer_id bob = 5, eve = 6;
  std::map<net::peer_id, std::size_t> n_ended;
  std::string latest;
  actors::node_clients clients(0, nullptr, 64, {},
                               [&](net::peer_id to, actors::control_kind kind, std::string text) {
                                 if (kind != actors::control_kind::ended) return;
                                 ++n_ended[to];
                                 latest = std::move(text);
                               });
  // Nothing is answered: its time does not pass.
  const auto service = actors::service::start(test::world("exact").setup);
  BOOST_REQUIRE(service.has_value());
  clients.use(**service);
  clients.came(bob, {"edge3", net::role::operate, "bob"});
  clients.came(eve, {"edge3", net::role::operate, "eve"});
  constexpr auto most = actors::node_clients::most_requests;
  const auto ask = [&](net::peer_id who, std::uint64_t ref) {
    clients.submit(who, {ref, {}, request_of(0)});
  };
  for (std::uint64_t ref = 0; ref < most; ++ref) ask(bob, ref);
  BOOST_TEST(n_ended[bob] == 0u);
  ask(eve, 0);
  BOOST_TEST(n_ended[eve] == 0u);
  ask(bob, most);
  BOOST_TEST(n_ended[bob] == 1u);
  BOOST_TEST(says(latest, "16384 requests of this client"), latest);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
