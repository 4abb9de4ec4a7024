#include "net/bulk/transfer.hpp"

#include <fmt/format.h>

#include <array>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <map>

#include "config/random.hpp"
#include "net/simulation/pair.hpp"
#include "test/support/seeds.hpp"

namespace ordermoe {

namespace {

using net::bulk_frame;
using net::bulk_kind;
using net::bulk_receiver;
using net::bulk_sender;
using net::lane;
using net::wire_fault;
using what = net::session_event::what;

constexpr std::int64_t ms = 1'000'000;

std::string drawn_bytes(std::size_t n, std::uint64_t seed) {
  random_stream draws(seed);
  std::string bytes(n, '\0');
  for (auto& each : bytes) each = static_cast<char>(draws.bits());
  return bytes;
}

std::string digest_of(std::string_view bytes) {
  sha256 digest;
  digest.update(bytes);
  return digest.finish();
}

struct shelf final : net::bulk_shelf {
  std::map<std::string, std::string> things;
  bool fails = false;
  result<std::uint64_t> find(const std::string& name) override {
    const auto found = things.find(name);
    if (found == things.end())
      return error{errc::not_found, fmt::format("there is no {} here", name)};
    return static_cast<std::uint64_t>(found->second.size());
  }
  result<std::string> read(const std::string& name, std::uint64_t offset,
                           std::size_t bytes) override {
    if (fails) return error{errc::io, "the disk is gone"};
    return things.at(name).substr(offset, bytes);
  }
};

net::frame_header header_of(const bulk_frame& frame) {
  net::frame_header header;
  header.length = static_cast<std::uint32_t>(frame.payload.size());
  header.kind = static_cast<std::uint8_t>(frame.kind);
  header.of = lane::bulk;
  header.request = frame.request;
  header.attempt = frame.attempt;
  return header;
}

/// A sender with one thing, and whoever wants it.
struct one_transfer {
  shelf from;
  bulk_sender sender{from};
  std::string bytes, there;
  net::bulk_item item;
  std::optional<bulk_receiver> receiver;

  explicit one_transfer(std::size_t n) : bytes(drawn_bytes(n, n)) {
    from.things["expert"] = bytes;
    item = {"expert", bytes.size(), digest_of(bytes)};
    begin();
  }
  /// As a process that starts, with what the one before kept.
  void begin() {
    receiver.emplace(item, 7, [this](std::string_view part) {
      there += part;
      return result<void>{};
    });
    if (!there.empty()) BOOST_TEST(receiver->keep(there).has_value());
  }
  result<void> ask() {
    const auto frame = receiver->ask();
    return sender.take(header_of(frame), frame.payload);
  }
  result<void> take(const bulk_frame& frame) {
    return receiver->take(header_of(frame), frame.payload);
  }
  /// So many frames at most; the first error.
  result<void> move(std::size_t most = 1u << 20) {
    for (; most > 0; --most) {
      const auto frame = sender.next();
      if (!frame) break;
      if (auto taken = take(*frame); !taken) return taken;
    }
    return {};
  }
};

bool has(const result<void>& failed, const char* text) {
  return !failed && failed.error().message.find(text) != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(transfer)

BOOST_AUTO_TEST_CASE(parts_come_in_order_and_the_whole_is_checked) {
  for (const std::size_t n : {std::size_t{1}, net::bulk_part_bytes - 1, net::bulk_part_bytes,
                              net::bulk_part_bytes + 1, std::size_t{1'000'000}}) {
    one_transfer world(n);
    BOOST_TEST(world.ask().has_value());
    while (world.sender.has_next()) {
      BOOST_TEST(!world.receiver->done());
      const auto frame = world.sender.next();
      BOOST_TEST_REQUIRE(frame.has_value());
      BOOST_TEST(frame->payload.size() + net::header_bytes <= 16u * 1024);
      BOOST_TEST(world.take(*frame).has_value());
    }
    BOOST_TEST(world.receiver->done());
    BOOST_TEST((world.there == world.bytes));
  }
}

BOOST_AUTO_TEST_CASE(a_transfer_goes_on_where_it_was_whichever_end_started_again) {
  one_transfer world(200'000);
  BOOST_TEST(world.ask().has_value());
  BOOST_TEST(world.move(3).has_value());
  // The sender.
  world.sender.forget();
  BOOST_TEST(!world.sender.has_next());
  const auto late = world.receiver->bytes_there();
  BOOST_TEST(late == 3 * net::bulk_part_bytes);
  BOOST_TEST(world.ask().has_value());
  BOOST_TEST(world.move(2).has_value());
  // The receiver: what is on its way for the one before comes to nothing.
  const auto old = world.sender.next();
  world.begin();
  BOOST_TEST(world.receiver->bytes_there() == 5 * net::bulk_part_bytes);
  BOOST_TEST(world.ask().has_value());
  world.sender.forget();
  BOOST_TEST(world.ask().has_value());
  BOOST_TEST(world.take({old->kind, old->request, 1, old->payload}).has_value());
  BOOST_TEST(world.receiver->bytes_there() == 5 * net::bulk_part_bytes);
  BOOST_TEST(world.move().has_value());
  BOOST_TEST(world.receiver->done());
  BOOST_TEST((world.there == world.bytes));
}

BOOST_AUTO_TEST_CASE(another_byte_anywhere_is_found) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    random_stream draws(seed);
    one_transfer world(1 + draws.below(60'000));
    BOOST_TEST(world.ask().has_value());
    std::vector<bulk_frame> frames;
    while (auto next = world.sender.next()) frames.push_back(std::move(*next));
    auto& payload = frames[draws.below(frames.size())].payload;
    auto& byte = payload[draws.below(payload.size())];
    byte = static_cast<char>(byte ^ (1 << draws.below(8)));
    result<void> taken;
    for (const auto& each : frames)
      if (taken = world.take(each); !taken) break;
    BOOST_TEST(!taken, "seed " << seed);
    BOOST_TEST(!world.receiver->done(), "seed " << seed);
  }
  // Of what was kept, too.
  one_transfer world(100'000);
  BOOST_TEST(world.ask().has_value());
  BOOST_TEST(world.move(2).has_value());
  world.there[5] ^= 1;
  world.begin();
  BOOST_TEST(world.ask().has_value());
  BOOST_TEST(has(world.move(), "found SHA-256"));
}

BOOST_AUTO_TEST_CASE(a_receiver_takes_no_more_than_it_wants_whatever_is_said) {
  const auto said = [](std::uint64_t offset, std::size_t n, std::uint8_t kind = 2) {
    one_transfer world(20'000);
    BOOST_TEST(world.ask().has_value());
    std::string payload(reinterpret_cast<const char*>(&offset), sizeof offset);
    payload.append(n, 'x');
    auto taken = world.take({static_cast<bulk_kind>(kind), 7, 1, payload});
    BOOST_TEST(world.there.size() == 0u);
    // It is over: nothing else is taken either.
    BOOST_TEST(world.move().has_value());
    BOOST_TEST(!world.receiver->done());
    return taken;
  };
  BOOST_TEST(has(said(0, 0), "found a part of 0 bytes, expected 1 to"));
  BOOST_TEST(has(said(0, net::bulk_part_bytes + 1), "expected 1 to"));
  BOOST_TEST(has(said(0, 60'000), "found a part of 60000 bytes"));
  BOOST_TEST(has(said(1, 100), "found a part from 1 on, expected from 0 on"));
  BOOST_TEST(has(said(~0ull, 100), "found a part from 18446744073709551615 on"));
  BOOST_TEST(has(said(0, 100, 77), "found kind 77"));
  one_transfer world(net::bulk_part_bytes + 10);
  BOOST_TEST(world.ask().has_value());
  BOOST_TEST(world.move(1).has_value());
  std::uint64_t offset = net::bulk_part_bytes;
  std::string payload(reinterpret_cast<const char*>(&offset), sizeof offset);
  payload.append(11, 'x');
  BOOST_TEST(has(world.take({bulk_kind::part, 7, 1, payload}), "expected 1 to 10"));
  one_transfer kept(10);
  BOOST_TEST(has(kept.receiver->keep(std::string(11, 'x')), "found 11 bytes kept"));
}

BOOST_AUTO_TEST_CASE(a_sender_says_why_it_refuses_and_holds_a_bounded_number) {
  one_transfer world(20'000);
  const auto refused = [&](net::bulk_item item) {
    bulk_receiver wants(std::move(item), 9, [](std::string_view) { return result<void>{}; });
    const auto frame = wants.ask();
    BOOST_TEST(world.sender.take(header_of(frame), frame.payload).has_value());
    const auto answer = world.sender.next();
    BOOST_TEST_REQUIRE(answer.has_value());
    return wants.take(header_of(*answer), answer->payload);
  };
  BOOST_TEST(has(refused({"nothing", 5, ""}), "the peer refuses: there is no nothing here"));
  BOOST_TEST(has(refused({"expert", 5, ""}), "and there are 20000"));
  BOOST_TEST(!world.sender.has_next());
  world.from.fails = true;
  BOOST_TEST(has(refused(world.item), "the disk is gone"));
  world.from.fails = false;
  // Fields that cannot be.
  net::frame_header ask;
  ask.kind = 1;
  BOOST_TEST(has(world.sender.take(ask, std::string(16, '\0')), "found 16 bytes"));
  BOOST_TEST(has(world.sender.take(ask, std::string(400, '\0')), "found 400 bytes"));
  BOOST_TEST(has(world.sender.take(ask, ""), "found 0 bytes"));
  ask.kind = 9;
  BOOST_TEST(has(world.sender.take(ask, ""), "found kind 9"));
  BOOST_TEST(!world.sender.has_next());
  // More than it holds.
  for (std::uint64_t i = 0; i < 1000; ++i) {
    bulk_receiver wants(world.item, i, [](std::string_view) { return result<void>{}; });
    const auto frame = wants.ask();
    BOOST_TEST(world.sender.take(header_of(frame), frame.payload).has_value());
  }
  std::map<bulk_kind, std::size_t> n;
  while (const auto frame = world.sender.next()) ++n[frame->kind];
  BOOST_TEST(n[bulk_kind::refusal] == bulk_sender::most_asked);
  BOOST_TEST(n[bulk_kind::part] == 2 * bulk_sender::most_asked);
}

BOOST_AUTO_TEST_CASE(what_is_asked_from_behind_the_end_or_became_shorter_is_refused) {
  one_transfer world(20'000);
  const auto answer_from = [&](std::uint64_t offset) {
    bulk_receiver wants(world.item, 9, [](std::string_view) { return result<void>{}; });
    auto frame = wants.ask();
    frame.payload.replace(0, sizeof offset, reinterpret_cast<const char*>(&offset), sizeof offset);
    BOOST_TEST(world.sender.take(header_of(frame), frame.payload).has_value());
    const auto answer = world.sender.next();
    BOOST_TEST_REQUIRE(answer.has_value());
    return answer->kind;
  };
  for (const std::uint64_t offset :
       {std::uint64_t{20'000}, std::uint64_t{20'001}, ~std::uint64_t{0}})
    BOOST_TEST((answer_from(offset) == bulk_kind::refusal), offset);
  BOOST_TEST((answer_from(19'999) == bulk_kind::part));
  one_transfer shorter(20'000);
  BOOST_TEST(shorter.ask().has_value());
  shorter.from.things["expert"].resize(100);
  BOOST_TEST(has(shorter.move(), "it became shorter"));
}

BOOST_AUTO_TEST_CASE(what_is_of_another_request_or_of_an_earlier_ask_is_passed_over) {
  one_transfer world(50'000);
  BOOST_TEST(world.ask().has_value());
  auto others = world.sender.next();
  BOOST_TEST_REQUIRE(others.has_value());
  others->request = 8;
  BOOST_TEST(world.take(*others).has_value());
  BOOST_TEST(world.there.empty());
  // Asks that crossed: the later one holds.
  const auto earlier = world.receiver->ask(), later = world.receiver->ask();
  for (const auto& frame : {later, earlier})
    BOOST_TEST(world.sender.take(header_of(frame), frame.payload).has_value());
  BOOST_TEST(world.move().has_value());
  BOOST_TEST(world.receiver->done());
}

BOOST_AUTO_TEST_CASE(of_a_request_one_transfer_is_under_way_that_of_the_latest_ask) {
  one_transfer world(3 * net::bulk_part_bytes);
  for (int i = 0; i < 3; ++i) BOOST_TEST(world.ask().has_value());
  std::vector<std::uint32_t> attempts;
  std::optional<bulk_frame> last;
  while (auto frame = world.sender.next()) {
    attempts.push_back(frame->attempt);
    BOOST_TEST(world.take(*frame).has_value());
    last = std::move(frame);
  }
  BOOST_TEST((attempts == std::vector<std::uint32_t>{3, 3, 3}));
  BOOST_TEST(world.receiver->done());
  // Where it is there, more of it is passed over.
  BOOST_TEST(world.take(*last).has_value());
  BOOST_TEST((world.there == world.bytes));
}

BOOST_AUTO_TEST_CASE(an_ask_that_comes_again_begins_anew) {
  one_transfer world(2 * net::bulk_part_bytes);
  const auto frame = world.receiver->ask();
  for (int i = 0; i < 2; ++i) {
    BOOST_TEST(world.sender.take(header_of(frame), frame.payload).has_value());
    const auto part = world.sender.next();
    BOOST_TEST_REQUIRE(part.has_value());
    std::uint64_t offset = 1;
    std::memcpy(&offset, part->payload.data(), sizeof offset);
    BOOST_TEST(offset == 0u);
  }
}

BOOST_AUTO_TEST_CASE(what_was_refused_is_not_said_in_another_session) {
  one_transfer world(10);
  world.from.things.clear();
  BOOST_TEST(world.ask().has_value());
  BOOST_TEST(world.sender.has_next());
  world.sender.forget();
  BOOST_TEST(!world.sender.has_next());
  BOOST_TEST(!world.sender.next().has_value());
}

BOOST_AUTO_TEST_CASE(what_is_not_wanted_any_more_is_not_sent) {
  one_transfer world(200'000);
  BOOST_TEST(world.ask().has_value());
  BOOST_TEST(world.move(1).has_value());
  const auto stop = world.receiver->stop();
  BOOST_TEST(world.sender.take(header_of(stop), stop.payload).has_value());
  BOOST_TEST(!world.sender.has_next());
}

// ----------------------------------------------------------------------------- over simulated sessions

namespace {

/// Both ends want something of each other while tokens go both ways, connections break and processes end.
struct random_run {
  struct node {
    shelf from;
    std::optional<bulk_sender> sender;
    std::optional<bulk_receiver> receiver;
    net::bulk_item item;
    std::string disk, wanted;  ///< What outlives the process, and what it is to become.
    std::uint64_t boot = 1, asks = 0, tokens = 0;
  };
  random_stream draws;
  net::session_limits limits;
  std::uint64_t window = 0;
  std::array<node, 2> nodes;
  std::optional<net::simulated_pair> pair;
  std::int64_t now_ns = 0;
  std::uint64_t n_restarts = 0;
  std::string broken;

  explicit random_run(std::uint64_t seed) : draws(seed) {
    constexpr std::uint64_t credits[] = {1, 40'000, 4u << 20};
    limits.credit.fill(4u << 20);
    limits.credit[4] = credits[draws.below(3)];
    window = credits[draws.below(3)];
    std::array<net::session_config, 2> ends;
    for (std::size_t i = 0; i < 2; ++i) {
      ends[i].self.cluster = "test";
      ends[i].self.node = i == 0 ? "a" : "b";
      ends[i].self.self.boot = 1;
      ends[i].peer = i == 0 ? "b" : "a";
      ends[i].limits = limits;
      auto bytes = drawn_bytes(1 + draws.below(600'000), seed * 2 + i);
      nodes[1 - i].wanted = bytes;
      nodes[1 - i].item = {"expert", bytes.size(), digest_of(bytes)};
      nodes[i].from.things["expert"] = std::move(bytes);
    }
    net::wire_options options;
    options.both_dial = draws.below(3) == 0;
    const net::wire_rate rate{draws.uniform(1e6, 2e7),
                              static_cast<std::int64_t>(draws.below(20)) * ms};
    pair.emplace(ends, std::array{rate, rate}, options, seed);
    for (std::size_t i = 0; i < 2; ++i) begin(i);
  }
  void begin(std::size_t i) {
    auto& me = nodes[i];
    me.sender.emplace(me.from);
    me.receiver.emplace(me.item, me.boot, [&me](std::string_view part) {
      me.disk += part;
      return result<void>{};
    });
    if (auto kept = me.receiver->keep(me.disk); !kept) broken = kept.error().message;
  }
  void send(std::size_t from, const bulk_frame& frame) {
    pair->send(from, lane::bulk, static_cast<std::uint8_t>(frame.kind), frame.request,
               frame.attempt, 0, frame.payload);
  }
  void handle(std::size_t i) {
    auto& me = nodes[i];
    for (auto& event : pair->take_events(i)) {
      if (event.kind == what::down || event.kind == what::up) me.sender->forget();
      if (event.kind == what::up && !me.receiver->done()) {
        send(i, me.receiver->ask());
        ++me.asks;
      }
      if (event.kind != what::frame) continue;
      pair->used(i, event.header.of, net::session::frame_bytes(event.header));
      if (event.header.of == lane::token) ++me.tokens;
      if (event.header.of != lane::bulk) continue;
      const bool asked = event.header.kind == 1 || event.header.kind == 4;
      const auto taken = asked ? me.sender->take(event.header, event.text)
                               : me.receiver->take(event.header, event.text);
      if (!taken && broken.empty()) broken = taken.error().message;
    }
    while (me.sender->has_next() && pair->unused_bytes(i, lane::bulk) < window)
      send(i, *me.sender->next());
  }
  void go(std::int64_t ns) {
    for (const auto until = now_ns + ns; now_ns < until && broken.empty();) {
      const auto next = std::max(now_ns, pair->next_ns());
      now_ns = std::min(next, until);
      pair->advance(now_ns);
      for (std::size_t i = 0; i < 2; ++i) handle(i);
      if (next > until) break;
    }
  }
  void restart(std::size_t i) {
    ++n_restarts;
    pair->end(i, draws.below(2) == 0 ? net::simulated_pair::ending::process
                                     : net::simulated_pair::ending::machine);
    go(static_cast<std::int64_t>(draws.below(500)) * ms);
    begin(i);
    pair->start(i, ++nodes[i].boot);
  }
  void tokens() {
    for (std::size_t i = 0; i < 2; ++i)
      pair->send(i, lane::token, 1, 0, 0, 0, std::string(draws.below(3000), 't'));
  }
  bool done() const { return nodes[0].receiver->done() && nodes[1].receiver->done(); }

  void run() {
    constexpr wire_fault faults[] = {wire_fault::cut,         wire_fault::cut_unequally,
                                     wire_fault::stall,       wire_fault::stall_one_way,
                                     wire_fault::flip,        wire_fault::dial_again,
                                     wire_fault::change_rate, wire_fault::silence};
    for (int i = 0; i < 60 && broken.empty(); ++i) {
      tokens();
      if (draws.below(4) == 0) pair->strike(faults[draws.below(std::size(faults))]);
      if (draws.below(25) == 0) restart(draws.below(2));
      go(static_cast<std::int64_t>(draws.below(60)) * ms);
    }
    // Nothing happens any more.
    for (int i = 0; i < 3000 && broken.empty() && !done(); ++i) {
      tokens();
      go(100 * ms);
    }
    if (broken.empty()) broken = pair->broken();
    if (broken.empty() && !done()) broken = "not everything came";
    for (const auto& each : nodes)
      if (broken.empty() && each.disk != each.wanted) broken = "other bytes than there are";
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(seeds_cut_stall_and_restart_and_everything_comes_whole) {
  std::uint64_t asks = 0, resumed = 0, restarts = 0, tokens = 0;
  const auto range = test::seeds(300);
  for (auto seed = range.first; seed <= range.last; ++seed) {
    random_run world(seed);
    world.run();
    BOOST_TEST(world.broken.empty(), "seed " << seed << ": " << world.broken);
    for (const auto& each : world.nodes) asks += each.asks, tokens += each.tokens;
    resumed += world.pair->counts().resumed;
    restarts += world.n_restarts;
  }
  const auto n = range.last - range.first + 1;
  BOOST_TEST_MESSAGE(n << " seeds: " << resumed << " resumed, " << restarts << " restarts, " << asks
                       << " asks");
  // What this is about happened often enough to mean something.
  BOOST_TEST(2 * resumed > n);
  BOOST_TEST(restarts > n);
  // More often than once each: some went on in another session.
  BOOST_TEST(asks > 2 * n);
  BOOST_TEST(tokens > 40 * n);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
