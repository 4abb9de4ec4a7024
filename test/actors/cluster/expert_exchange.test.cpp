#include "actors/cluster/expert_exchange.hpp"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <fstream>
#include <iterator>

#include "config/files.hpp"
#include "model/checkpoint/part.hpp"
#include "model/checkpoint/random_model.hpp"
#include "test/actors/cluster/nodes.hpp"

namespace ordermoe {

namespace {

namespace fs = std::filesystem;
using actors::wanted_expert;
using net::bulk_frame;
using net::bulk_kind;
using net::peer_id;
using test::eventually;
using test::kept_lines;
using test::says;

constexpr auto patience = std::chrono::seconds(30);
constexpr std::uint64_t a_change = 7;

struct scratch {
  fs::path path;
  scratch() {
    std::string pattern = (fs::temp_directory_path() / "ordermoe-exchange-XXXXXX").string();
    BOOST_REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~scratch() { fs::remove_all(path); }
};

/// A model whose experts go in some parts each; made once.
const fs::path& whole_model() {
  static const scratch place;
  static const auto folder = [] {
    const auto tokenizer = read_file(ORDERMOE_TEST_DATA "/mixtral-tiny/tokenizer.model");
    BOOST_REQUIRE(tokenizer.has_value());
    model::random_model_options options;
    options.shape = model::small_shape(model::family::mixtral);
    options.shape.intermediate_size = 256;
    options.tokenizer = *tokenizer;
    auto made = place.path / "model";
    BOOST_REQUIRE(model::write_random_model(made, options).has_value());
    return made;
  }();
  return folder;
}

net::frame_header header_of(const bulk_frame& content) {
  net::frame_header header;
  header.kind = static_cast<std::uint8_t>(content.kind);
  header.of = net::lane::bulk;
  header.request = content.request;
  header.attempt = content.attempt;
  header.length = static_cast<std::uint32_t>(content.payload.size());
  return header;
}

/// Three hosts: the first has a part of the model with no expert; of the others the test says. A frame goes from the thread of
/// one to the other's, or to the test.
class three_hosts {
 public:
  using wire = std::function<bool(std::uint32_t from, std::uint32_t to, bulk_frame& content)>;
  using queue = std::function<std::uint64_t(std::uint32_t from)>;

  /// `through`: false: nobody is there. It may change what is sent, and may take it (kind stop, empty). `waiting`: bytes at
  /// the sessions of a host.
  explicit three_hosts(wire through = {}, std::chrono::milliseconds silent_for = patience,
                       queue waiting = {})
      : through_(std::move(through)), waiting_(std::move(waiting)) {
    const auto none = [](layer_id, expert_id) { return false; };
    BOOST_REQUIRE(model::write_part(whole_model(), place_.path / "part", "s0", none).has_value());
    for (std::uint32_t m = 0; m < 3; ++m) {
      auto opened = model::expert_shelf::open(m == 0 ? place_.path / "part" : whole_model(),
                                              place_.path / fmt::format("state{}", m));
      BOOST_REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().message));
      shelves_[m] = std::move(*opened);
    }
    for (std::uint32_t m = 0; m < 3; ++m) make(m, silent_for);
  }
  ~three_hosts() {
    for (auto& each : made_) each->stop();
  }

  actors::expert_exchange& first() { return *hosts_[0]; }
  model::expert_shelf& shelf() { return *shelves_[0]; }
  const kept_lines& log() const { return log_; }
  std::size_t n_asks_of(std::uint32_t m) const { return asks_[m]; }
  /// Of what came to each, all is told to be done with.
  bool all_is_used() const {
    for (std::uint32_t m = 0; m < 3; ++m)
      if (used_[m] != came_[m]) return false;
    return came_[0] > 0;
  }
  void restart_first() {
    first().stop();
    shelves_[0] = *model::expert_shelf::open(place_.path / "part", place_.path / "state0");
    make(0, patience);
  }
  /// Called for what is told to be done with at a host.
  std::function<void(std::uint32_t m)> on_used;
  fs::path came() const { return place_.path / "state0"; }

  result<void> fetch(std::vector<wanted_expert> wanted, std::uint64_t change = a_change) {
    return first().fetch(change, std::move(wanted));
  }
  /// All of the first layer, which host 2 is said to have.
  std::vector<wanted_expert> a_layer() const {
    std::vector<wanted_expert> wanted;
    for (std::size_t e = 0; e < shelves_[0]->config().n_experts; ++e)
      wanted.push_back({layer_id{0}, expert_id{e}, {peer_of(0, 2)}});
    return wanted;
  }
  bool has_a_layer() const {
    for (const auto& each : a_layer())
      if (!shelves_[0]->has(each.layer, each.expert) ||
          !shelves_[0]->open_came(each.layer, each.expert))
        return false;
    return true;
  }
  static peer_id peer_of(std::uint32_t self, std::uint32_t other) {
    return other < self ? other : other - 1;
  }

 private:
  void make(std::uint32_t m, std::chrono::milliseconds silent_for) {
    actors::expert_exchange::ways to;
    for (std::uint32_t other = 0; other < 3; ++other)
      if (other != m) to.names.push_back(fmt::format("s{}", other));
    to.send = [this, m](peer_id peer, bulk_frame content) {
      const auto other = peer < m ? peer : peer + 1;
      if (content.kind == bulk_kind::ask) ++asks_[other];
      if (through_ && !through_(m, other, content)) return false;
      const auto header = header_of(content);
      came_[other] += net::session::frame_bytes(header);
      if (auto* host = hosts_[other].load())
        host->take(peer_of(other, m), header, std::move(content.payload));
      return true;
    };
    to.used = [this, m](peer_id, std::uint64_t bytes) {
      used_[m] += bytes;
      if (on_used) on_used(m);
    };
    to.waiting_bytes = [this, m](peer_id) { return waiting_ ? waiting_(m) : std::uint64_t{0}; };
    made_.push_back(std::make_unique<actors::expert_exchange>(
        shelves_[m], std::move(to),
        m == 0 ? log_outlet([this](const log_record& each) { log_.add(each); }, log_level::debug)
               : log_outlet(),
        silent_for));
    hosts_[m] = made_.back().get();
  }

  scratch place_;
  wire through_;
  queue waiting_;
  kept_lines log_;
  std::array<std::atomic<std::uint64_t>, 3> came_{}, used_{};
  std::array<std::atomic<std::size_t>, 3> asks_{};
  std::array<std::shared_ptr<model::expert_shelf>, 3> shelves_;
  std::vector<std::unique_ptr<actors::expert_exchange>> made_;
  /// Of each, the one that was made last.
  std::array<std::atomic<actors::expert_exchange*>, 3> hosts_{};
};

bool is_part_of(std::uint32_t host, std::uint32_t from, const bulk_frame& content) {
  return from == host && content.kind == bulk_kind::part;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(expert_exchange)

BOOST_AUTO_TEST_CASE(experts_come_from_whom_the_plan_says_and_are_the_models) {
  three_hosts hosts;
  BOOST_TEST(hosts.fetch(hosts.a_layer()).has_value());
  BOOST_TEST(hosts.has_a_layer());
  BOOST_TEST(hosts.n_asks_of(1) == 0u);
  BOOST_TEST(hosts.n_asks_of(2) == hosts.a_layer().size());
  BOOST_TEST(hosts.log().has("experts.fetched"));
  // Or the other end would send no more one day.
  BOOST_TEST(eventually([&] { return hosts.all_is_used(); }));
  // What is here is not asked for again.
  BOOST_TEST(hosts.fetch(hosts.a_layer()).has_value());
  BOOST_TEST(hosts.n_asks_of(2) == hosts.a_layer().size());
}

BOOST_AUTO_TEST_CASE(whoever_sends_does_not_wait_for_the_disk) {
  three_hosts hosts;
  const auto wanted = hosts.a_layer().front();
  std::atomic<int> told = 0, told_late = 0;
  hosts.on_used = [&](std::uint32_t m) {
    if (m != 0) return;
    ++told;
    if (hosts.shelf().has(wanted.layer, wanted.expert)) ++told_late;
  };
  BOOST_TEST(hosts.fetch({wanted}).has_value());
  BOOST_TEST(told > 1);
  BOOST_TEST(told_late == 0);
}

BOOST_AUTO_TEST_CASE(whoever_is_not_connected_is_passed_over) {
  three_hosts hosts([](std::uint32_t, std::uint32_t to, bulk_frame&) { return to != 2; });
  BOOST_TEST(hosts.fetch(hosts.a_layer()).has_value());
  BOOST_TEST(hosts.has_a_layer());
}

BOOST_AUTO_TEST_CASE(what_has_another_digest_is_dropped_and_asked_of_another) {
  three_hosts hosts([](std::uint32_t from, std::uint32_t, bulk_frame& content) {
    if (is_part_of(2, from, content)) content.payload.back() ^= 1;
    return true;
  });
  BOOST_TEST(hosts.fetch(hosts.a_layer()).has_value());
  BOOST_TEST(hosts.has_a_layer());
  BOOST_TEST(hosts.log().has("expert.refused peer=s2"));
}

BOOST_AUTO_TEST_CASE(a_part_that_is_not_the_next_one_is_not_taken) {
  three_hosts hosts([](std::uint32_t from, std::uint32_t, bulk_frame& content) {
    if (is_part_of(2, from, content)) content.payload[0] ^= 1;
    return true;
  });
  BOOST_TEST(hosts.fetch(hosts.a_layer()).has_value());
  BOOST_TEST(hosts.has_a_layer());
  BOOST_TEST(hosts.log().has("expert.refused peer=s2"));
}

BOOST_AUTO_TEST_CASE(a_part_of_somebody_who_was_not_asked_is_not_taken) {
  std::atomic<bool> said{false};
  three_hosts* here = nullptr;
  three_hosts hosts([&](std::uint32_t from, std::uint32_t, bulk_frame& content) {
    if (!is_part_of(2, from, content) || said.exchange(true)) return true;
    const auto header = header_of(content);
    auto other = content.payload;
    other.back() ^= 1;
    here->first().take(three_hosts::peer_of(0, 1), header, std::move(other));
    return true;
  });
  here = &hosts;
  BOOST_TEST(hosts.fetch(hosts.a_layer()).has_value());
  BOOST_TEST(hosts.has_a_layer());
  BOOST_TEST(said);
  BOOST_TEST(!hosts.log().has("expert.refused"));
  BOOST_TEST(hosts.n_asks_of(1) == 0u);
}

BOOST_AUTO_TEST_CASE(while_much_waits_at_a_session_no_part_is_added_to_it) {
  constexpr int n_looks = 20;
  std::atomic<int> looks{0}, early{0};
  three_hosts hosts(
      [&](std::uint32_t from, std::uint32_t, bulk_frame& content) {
        if (is_part_of(2, from, content) && looks <= n_looks) ++early;
        return true;
      },
      patience,
      [&](std::uint32_t from) {
        return std::uint64_t{from == 2 && ++looks <= n_looks ? 1u << 20 : 0u};
      });
  BOOST_TEST(hosts.fetch({hosts.a_layer().front()}).has_value());
  BOOST_TEST(looks > n_looks);
  BOOST_TEST(early == 0);
}

BOOST_AUTO_TEST_CASE(whoever_says_nothing_is_given_up_after_a_while) {
  three_hosts hosts(
      [](std::uint32_t from, std::uint32_t, bulk_frame& content) {
        // Taken, and never delivered as what it is.
        if (is_part_of(2, from, content)) content.kind = bulk_kind::stop;
        return true;
      },
      std::chrono::milliseconds(200));
  BOOST_TEST(hosts.fetch({hosts.a_layer().front()}).has_value());
  BOOST_TEST(hosts.n_asks_of(1) == 1u);
}

BOOST_AUTO_TEST_CASE(an_expert_that_nobody_sends_is_named_with_everybodys_reason) {
  three_hosts hosts([](std::uint32_t from, std::uint32_t to, bulk_frame& content) {
    if (is_part_of(2, from, content)) content.payload.back() ^= 1;
    return to != 1;
  });
  const auto fetched = hosts.fetch(hosts.a_layer());
  BOOST_REQUIRE(!fetched.has_value());
  for (const char* words : {"expert 0 of layer 0", "s1 is not connected", "s2: ", "SHA-256"})
    BOOST_TEST(says(fetched.error().message, words), fetched.error().message);
}

BOOST_AUTO_TEST_CASE(what_came_before_a_session_ended_is_not_sent_again) {
  std::atomic<std::uint64_t> sent{0}, furthest{0};
  std::atomic<bool> breaks{true};
  three_hosts* here = nullptr;
  three_hosts hosts([&](std::uint32_t from, std::uint32_t, bulk_frame& content) {
    if (content.kind != bulk_kind::part || from == 0) return true;
    sent += content.payload.size() - sizeof(std::uint64_t);
    if (from == 2 && ++furthest == 2 && breaks.exchange(false)) {
      here->first().lose(three_hosts::peer_of(0, 2));
      return false;
    }
    return true;
  });
  here = &hosts;
  const auto one = hosts.a_layer().front();
  const auto whole = hosts.shelf().facts(one.layer, one.expert);
  BOOST_REQUIRE(whole.has_value());
  BOOST_REQUIRE(whole->bytes > 2 * net::bulk_part_bytes);
  BOOST_TEST(hosts.fetch({one}).has_value());
  BOOST_TEST(hosts.n_asks_of(1) == 1u);
  // The part that was lost, and nothing else, went twice.
  BOOST_TEST(sent <= whole->bytes + net::bulk_part_bytes);
}

BOOST_AUTO_TEST_CASE(a_change_that_is_given_up_ends_the_fetching_and_what_came_stays_for_the_next) {
  std::atomic<int> parts{0};
  three_hosts* here = nullptr;
  three_hosts hosts([&](std::uint32_t from, std::uint32_t, bulk_frame& content) {
    if (from == 0 || content.kind != bulk_kind::part) return true;
    if (++parts == 2) here->first().stop_fetching(a_change);
    // No more until the other change.
    if (parts >= 2 && parts < 1000) content.kind = bulk_kind::stop;
    return true;
  });
  here = &hosts;
  const auto fetched = hosts.fetch({hosts.a_layer().front()});
  BOOST_REQUIRE(!fetched.has_value());
  BOOST_TEST((fetched.error().code == errc::interrupted));
  BOOST_TEST(fs::file_size(hosts.came() / "0-0.coming") == net::bulk_part_bytes);
  // One that comes late ends at once.
  BOOST_TEST(!hosts.fetch({hosts.a_layer().front()}).has_value());
  parts = 1000;
  hosts.restart_first();
  BOOST_TEST(hosts.fetch({hosts.a_layer().front()}, a_change + 1).has_value());
  BOOST_TEST(hosts.shelf().has(layer_id{0}, expert_id{0}));
}

BOOST_AUTO_TEST_CASE(a_host_that_ends_ends_its_fetching) {
  three_hosts hosts([](std::uint32_t from, std::uint32_t, bulk_frame& content) {
    if (from != 0 && content.kind == bulk_kind::part) content.kind = bulk_kind::stop;
    return true;
  });
  std::thread stops([&] {
    while (hosts.n_asks_of(2) == 0) std::this_thread::yield();
    hosts.first().stop();
  });
  const auto fetched = hosts.fetch(hosts.a_layer());
  stops.join();
  BOOST_REQUIRE(!fetched.has_value());
  BOOST_TEST((fetched.error().code == errc::interrupted));
  BOOST_TEST(!hosts.fetch(hosts.a_layer()).has_value());
}

BOOST_AUTO_TEST_CASE(an_expert_that_came_is_mapped_for_as_long_as_others_ask_for_it) {
  std::atomic<bool> waits{true};
  three_hosts hosts({}, patience, [&](std::uint32_t from) {
    return std::uint64_t{from == 0 && waits ? 1u << 20 : 0u};
  });
  const auto one = hosts.a_layer().front();
  BOOST_REQUIRE(hosts.fetch({one}).has_value());
  const auto whole = hosts.shelf().facts(one.layer, one.expert);
  BOOST_REQUIRE(whole.has_value());
  const auto is_mapped = [file = fs::canonical(hosts.came() / "0-0.safetensors").string()] {
    std::ifstream maps("/proc/self/maps");
    const std::string text(std::istreambuf_iterator<char>(maps), {});
    return says(text, file);
  };
  BOOST_TEST(!is_mapped());
  auto ask = net::bulk_receiver({"expert/1/0/0", whole->bytes, whole->sha256}, 1, [](auto) {
               return result<void>{};
             }).ask();
  const auto header = header_of(ask);
  hosts.first().take(three_hosts::peer_of(0, 1), header, std::move(ask.payload));
  BOOST_TEST(eventually(is_mapped));
  waits = false;
  BOOST_TEST(eventually([&] { return !is_mapped(); }));
}

BOOST_AUTO_TEST_CASE(names_that_no_expert_has_are_refused) {
  std::atomic<int> refusals{0};
  three_hosts hosts([&](std::uint32_t from, std::uint32_t, bulk_frame& content) {
    if (from == 0 && content.kind == bulk_kind::ask) {
      constexpr std::size_t numbers = 2 * sizeof(std::uint64_t);
      content.payload.replace(numbers, std::string::npos, "expert/1/../../etc/passwd");
    }
    if (from != 0 && content.kind == bulk_kind::refusal) ++refusals;
    return true;
  });
  const auto fetched = hosts.fetch({hosts.a_layer().front()});
  BOOST_REQUIRE(!fetched.has_value());
  BOOST_TEST(says(fetched.error().message, "name that no expert has"), fetched.error().message);
  BOOST_TEST(refusals == 2);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
