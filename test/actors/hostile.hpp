#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "net/wire/codec.hpp"
#include "test/actors/living.hpp"

/// A server that lies. It sees every frame of the cluster and sends to everybody, in the place of its own
/// frames, what others sent with something changed.
///
/// Servers 0 and 1 have all that their users need, servers 2, 3 and 4 all that theirs need. Server 4
/// lies. What it does to requests of 2, 3 and 4 is its to do; those of 0 and 1 must be answered as if
/// it were not there, and once it stops lying nothing of it is left anywhere.
namespace ordermoe::test {

inline constexpr std::uint32_t liar = 4;

/// One way to change a message: what it is called and what it does to a frame's content.
struct lie {
  const char* name;
  wire::frame_kind kind;
  std::function<bool(wire::frame&, random_stream&)> tell;  ///< False where it does not apply.
};

namespace detail {

inline const wire::wire_shape& lie_shape() {
  static const wire::wire_shape shape = [] {
    const auto& config = tiny_model()->config();
    return wire::wire_shape{config.hidden_size,
                            tiny_model()->make_cache(layer_id{0}, 1).row_bytes()};
  }();
  return shape;
}

inline auto decode_as(wire::token_state*, const wire::frame& content) {
  return wire::decode_token(content, lie_shape());
}
inline auto decode_as(wire::expert_call*, const wire::frame& content) {
  return wire::decode_call(content, lie_shape());
}
inline auto decode_as(wire::expert_output*, const wire::frame& content) {
  return wire::decode_output(content, lie_shape());
}
inline auto decode_as(wire::kv_rows*, const wire::frame& content) {
  return wire::decode_kv(content, lie_shape());
}
inline auto decode_as(wire::progress_report*, const wire::frame& content) {
  return wire::decode_progress(content);
}
inline auto decode_as(wire::reservation*, const wire::frame& content) {
  return wire::decode_reservation(content);
}
inline auto decode_as(wire::load_report*, const wire::frame& content) {
  return wire::decode_load(content);
}
inline auto decode_as(wire::failure_report*, const wire::frame& content) {
  return wire::decode_failure(content);
}

/// A lie about a message of this type: change(message, draws).
template <class Message, class Change>
lie about(const char* name, wire::frame_kind kind, Change change) {
  return {name, kind, [change](wire::frame& content, random_stream& draws) {
            auto message = decode_as(static_cast<Message*>(nullptr), content);
            if (!message) return false;
            change(*message, draws);
            content.bytes = wire::encode(*message).bytes;
            return true;
          }};
}

template <class Number>
Number any_of(random_stream& draws, std::initializer_list<Number> values) {
  return *(values.begin() + draws.below(values.size()));
}
inline std::uint32_t odd_number(random_stream& draws) {
  return any_of<std::uint32_t>(draws, {0, 1, 2, 3, 4, 5, 6, 7, 8, 15, 77, 99, 1u << 20, 1u << 30,
                                       1u << 31, 0xfffffff0u, 0xffffffffu});
}
inline std::int64_t odd_amount(random_stream& draws) {
  return any_of<std::int64_t>(
      draws, {0, 1, -1, 7, -1'000'000'000'000'000, 1'000'000'000'000'000,
              std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()});
}
inline float odd_value(random_stream& draws) {
  return any_of<float>(draws,
                       {0.0f, -0.0f, 1e38f, -3e38f, 1e-40f, std::numeric_limits<float>::quiet_NaN(),
                        std::numeric_limits<float>::infinity()});
}
template <class T>
T& one_of(std::vector<T>& values, random_stream& draws) {
  return values[draws.below(values.size())];
}

}  // namespace detail

/// Every lie that is told, field by field.
inline const std::vector<lie>& lies() {
  using namespace detail;
  using enum wire::frame_kind;
  using wire::expert_call;
  using wire::expert_output;
  using wire::failure_report;
  using wire::kv_rows;
  using wire::load_report;
  using wire::progress_report;
  using wire::token_state;
  using draws_t = random_stream&;
  static const std::vector<lie> all{
      // Tokens.
      about<token_state>("token: access", token,
                         [](auto& m, draws_t d) { m.terms.access = odd_number(d); }),
      about<token_state>("token: request", token,
                         [](auto& m, draws_t d) { m.terms.request = odd_number(d); }),
      about<token_state>("token: attempt", token,
                         [](auto& m, draws_t d) { m.terms.attempt = odd_number(d); }),
      about<token_state>("token: prompt_tokens", token,
                         [](auto& m, draws_t d) { m.terms.prompt_tokens = odd_number(d); }),
      about<token_state>("token: max_new_tokens", token,
                         [](auto& m, draws_t d) { m.terms.max_new_tokens = odd_number(d); }),
      about<token_state>("token: given_tokens", token,
                         [](auto& m, draws_t d) { m.terms.given_tokens = odd_number(d); }),
      about<token_state>("token: temperature", token,
                         [](auto& m, draws_t d) { m.terms.temperature = odd_value(d); }),
      about<token_state>("token: flags", token,
                         [](auto& m, draws_t d) {
                           m.terms.continue_in_place = static_cast<std::uint8_t>(odd_number(d));
                           m.terms.score = static_cast<std::uint8_t>(odd_number(d));
                           m.terms.ignore_end_of_text = static_cast<std::uint8_t>(odd_number(d));
                         }),
      about<token_state>("token: first", token,
                         [](auto& m, draws_t d) { m.first = odd_number(d); }),
      about<token_state>("token: first of no end, layer 99", token,
                         [](auto& m, draws_t) {
                           m.first = 4'000'000'000u;
                           m.layer = 99;
                         }),
      about<token_state>("token: layer", token,
                         [](auto& m, draws_t d) { m.layer = odd_number(d); }),
      about<token_state>(
          "token: an id", token,
          [](auto& m, draws_t d) { one_of(m.ids, d) = static_cast<std::int32_t>(odd_number(d)); }),
      about<token_state>("token: ids that follow", token,
                         [](auto& m, draws_t d) {
                           m.forced.assign(odd_number(d) % 5000,
                                           static_cast<std::int32_t>(odd_number(d)));
                         }),
      about<token_state>("token: pool", token, [](auto& m, draws_t d) { m.pool = odd_amount(d); }),
      about<token_state>("token: spent", token,
                         [](auto& m, draws_t d) { m.spent = odd_amount(d); }),
      about<token_state>("token: an allowance", token,
                         [](auto& m, draws_t d) { one_of(m.allowance, d) = odd_amount(d); }),
      about<token_state>("token: no allowances", token,
                         [](auto& m, draws_t) { m.allowance.clear(); }),
      about<token_state>("token: no hidden state", token,
                         [](auto& m, draws_t) { m.hidden.clear(); }),
      about<token_state>("token: hidden values", token,
                         [](auto& m, draws_t d) {
                           if (!m.hidden.empty()) one_of(m.hidden, d) = odd_value(d);
                         }),
      about<token_state>("token: hidden values all the same", token,
                         [](auto& m, draws_t d) { std::ranges::fill(m.hidden, odd_value(d)); }),
      about<token_state>("token: awaits outputs without slots", token,
                         [](auto& m, draws_t) {
                           m.slots_of_row.assign(m.ids.size(), 1);
                           m.slots.clear();
                         }),
      about<token_state>("token: awaits no outputs", token,
                         [](auto& m, draws_t) {
                           m.slots_of_row.clear();
                           m.slots.clear();
                         }),
      about<token_state>("token: slots of a row", token,
                         [](auto& m, draws_t d) {
                           if (!m.slots_of_row.empty()) one_of(m.slots_of_row, d) = odd_number(d);
                         }),
      about<token_state>("token: server of a slot", token,
                         [](auto& m, draws_t d) {
                           if (!m.slots.empty()) one_of(m.slots, d).server = odd_number(d);
                         }),
      about<token_state>("token: expert of a slot", token,
                         [](auto& m, draws_t d) {
                           if (!m.slots.empty()) one_of(m.slots, d).expert = odd_number(d);
                         }),
      about<token_state>("token: gate of a slot", token,
                         [](auto& m, draws_t d) {
                           if (!m.slots.empty()) one_of(m.slots, d).gate = odd_value(d);
                         }),
      // Calls.
      about<expert_call>("call: request", call,
                         [](auto& m, draws_t d) { m.token.request = odd_number(d); }),
      about<expert_call>("call: access", call,
                         [](auto& m, draws_t d) { m.token.access = odd_number(d); }),
      about<expert_call>("call: first", call,
                         [](auto& m, draws_t d) { m.token.first = odd_number(d); }),
      about<expert_call>("call: layer", call, [](auto& m, draws_t d) { m.layer = odd_number(d); }),
      about<expert_call>("call: reply_to", call,
                         [](auto& m, draws_t d) { m.reply_to = odd_number(d); }),
      about<expert_call>("call: a row", call,
                         [](auto& m, draws_t d) { one_of(m.rows, d) = odd_number(d); }),
      about<expert_call>("call: whole", call,
                         [](auto& m, draws_t d) {
                           one_of(m.whole, d) = static_cast<std::uint8_t>(odd_number(d));
                         }),
      about<expert_call>("call: expert", call,
                         [](auto& m, draws_t d) { one_of(m.items, d).expert = odd_number(d); }),
      about<expert_call>("call: slot", call,
                         [](auto& m, draws_t d) { one_of(m.items, d).slot = odd_number(d); }),
      about<expert_call>("call: row of x", call,
                         [](auto& m, draws_t d) { one_of(m.items, d).x_row = odd_number(d); }),
      about<expert_call>("call: gate", call,
                         [](auto& m, draws_t d) { one_of(m.items, d).gate = odd_value(d); }),
      about<expert_call>("call: no items", call, [](auto& m, draws_t) { m.items.clear(); }),
      about<expert_call>("call: items out of order", call,
                         [](auto& m, draws_t) { std::ranges::reverse(m.items); }),
      about<expert_call>("call: values", call,
                         [](auto& m, draws_t d) { std::ranges::fill(m.x, odd_value(d)); }),
      // Outputs.
      about<expert_output>("output: request", output,
                           [](auto& m, draws_t d) { m.token.request = odd_number(d); }),
      about<expert_output>("output: access", output,
                           [](auto& m, draws_t d) { m.token.access = odd_number(d); }),
      about<expert_output>("output: first", output,
                           [](auto& m, draws_t d) { m.token.first = odd_number(d); }),
      about<expert_output>("output: layer", output,
                           [](auto& m, draws_t d) { m.layer = odd_number(d); }),
      about<expert_output>("output: row", output,
                           [](auto& m, draws_t d) { one_of(m.rows, d).row = odd_number(d); }),
      about<expert_output>("output: slot", output,
                           [](auto& m, draws_t d) { one_of(m.rows, d).slot = odd_number(d); }),
      about<expert_output>("output: no rows", output,
                           [](auto& m, draws_t) {
                             m.rows.clear();
                             m.y.clear();
                           }),
      about<expert_output>("output: values", output,
                           [](auto& m, draws_t d) { std::ranges::fill(m.y, odd_value(d)); }),
      about<expert_output>("output: a failure", output,
                           [](auto& m, draws_t d) {
                             m.y.clear();
                             m.code = static_cast<std::uint8_t>(odd_number(d));
                             m.problem.assign(odd_number(d) % 5000, 'x');
                           }),
      // KV rows.
      about<kv_rows>("kv: layer", kv, [](auto& m, draws_t d) { m.layer = odd_number(d); }),
      about<kv_rows>("kv: request", kv,
                     [](auto& m, draws_t d) { one_of(m.blocks, d).request = odd_number(d); }),
      about<kv_rows>("kv: attempt", kv,
                     [](auto& m, draws_t d) { one_of(m.blocks, d).attempt = odd_number(d); }),
      about<kv_rows>("kv: first", kv,
                     [](auto& m, draws_t d) {
                       one_of(m.blocks, d).first =
                           any_of<std::uint32_t>(d, {1'000'000u, 0xfffffff0u, 0xffffffffu, 0u, 5u});
                     }),
      about<kv_rows>("kv: number of rows", kv,
                     [](auto& m, draws_t d) { one_of(m.blocks, d).n = odd_number(d); }),
      about<kv_rows>("kv: values", kv,
                     [](auto& m, draws_t d) {
                       std::ranges::fill(one_of(m.blocks, d).rows,
                                         any_of<std::uint8_t>(d, {0, 0x7f, 0x80, 0xff}));
                     }),
      about<kv_rows>("kv: no blocks", kv, [](auto& m, draws_t) { m.blocks.clear(); }),
      // Reports of progress.
      about<progress_report>("progress: request", progress,
                             [](auto& m, draws_t d) { m.request = odd_number(d); }),
      about<progress_report>("progress: attempt", progress,
                             [](auto& m, draws_t d) { m.attempt = odd_number(d); }),
      about<progress_report>("progress: access", progress,
                             [](auto& m, draws_t d) { m.access = odd_number(d); }),
      about<progress_report>("progress: position", progress,
                             [](auto& m, draws_t d) { m.position = odd_number(d); }),
      about<progress_report>(
          "progress: id", progress,
          [](auto& m, draws_t d) { m.id = static_cast<std::int32_t>(odd_number(d)); }),
      about<progress_report>(
          "progress: last", progress,
          [](auto& m, draws_t d) { m.last = static_cast<std::uint8_t>(odd_number(d)); }),
      about<progress_report>("progress: pool", progress,
                             [](auto& m, draws_t d) { m.pool = odd_amount(d); }),
      about<progress_report>("progress: spent", progress,
                             [](auto& m, draws_t d) { m.spent = odd_amount(d); }),
      about<progress_report>("progress: losses", progress,
                             [](auto& m, draws_t d) { m.losses.assign(d.below(3), odd_value(d)); }),
      about<progress_report>(
          "progress: hidden", progress,
          [](auto& m, draws_t d) { m.hidden.assign(odd_number(d) % 300, odd_value(d)); }),
      // Reservations.
      about<wire::reservation>("reservation: request", reservation,
                               [](auto& m, draws_t d) { m.request = odd_number(d); }),
      about<wire::reservation>("reservation: attempt", reservation,
                               [](auto& m, draws_t d) { m.attempt = odd_number(d); }),
      about<wire::reservation>("reservation: ask", reservation,
                               [](auto& m, draws_t d) { m.ask = odd_number(d); }),
      about<wire::reservation>("reservation: step", reservation,
                               [](auto& m, draws_t d) {
                                 m.step = static_cast<wire::reserve_step>(d.below(8));
                               }),
      about<wire::reservation>("reservation: server", reservation,
                               [](auto& m, draws_t d) { m.server = odd_number(d); }),
      about<wire::reservation>("reservation: access", reservation,
                               [](auto& m, draws_t d) { m.access = odd_number(d); }),
      about<wire::reservation>("reservation: bytes", reservation,
                               [](auto& m, draws_t d) { m.bytes = odd_amount(d); }),
      about<wire::reservation>("reservation: lease", reservation,
                               [](auto& m, draws_t d) { m.lease_ns = odd_amount(d); }),
      // Load.
      about<load_report>("load: server", load,
                         [](auto& m, draws_t d) { m.server = odd_number(d); }),
      about<load_report>("load: number", load,
                         [](auto& m, draws_t d) { m.number = odd_number(d); }),
      about<load_report>("load: wait", load, [](auto& m, draws_t d) { m.wait_ns = odd_amount(d); }),
      about<load_report>(
          "load: waits of links", load,
          [](auto& m, draws_t d) { m.link_wait_ns.assign(odd_number(d) % 100, odd_amount(d)); }),
      // Failures.
      about<failure_report>("failure: request", failure,
                            [](auto& m, draws_t d) { m.request = odd_number(d); }),
      about<failure_report>("failure: attempt", failure,
                            [](auto& m, draws_t d) { m.attempt = odd_number(d); }),
      about<failure_report>("failure: server", failure,
                            [](auto& m, draws_t d) { m.server = odd_number(d); }),
      about<failure_report>(
          "failure: code", failure,
          [](auto& m, draws_t d) { m.code = static_cast<std::uint8_t>(odd_number(d)); }),
      about<failure_report>(
          "failure: text", failure,
          [](auto& m, draws_t d) { m.text.assign(odd_number(d) % 5000, '\xff'); }),
  };
  return all;
}

enum class lying {
  in_fields,  ///< Lies of the list, one after the other.
  in_bytes,   ///< Random bytes of random frames.
  as_others,  ///< Frames of others, unchanged, and failures of all requests: what it has no part in.
};

/// Runs in which server 4 lies.
class hostile_world {
 public:
  hostile_world();

  /// Empty where nothing was affected that must not be; else what was.
  std::string run(lying how, std::uint64_t seed);
  /// Frames that lied in all runs so far, by kind.
  std::array<std::size_t, wire::n_frame_kinds> told{};
  /// How often each lie of the list was told.
  std::vector<std::size_t> told_of_list = std::vector<std::size_t>(lies().size(), 0);

 private:
  void meddle(wire::frame& content, std::uint64_t bits);
  bool lie_in_field(wire::frame& content, random_stream& draws);
  bool take_seen(wire::frame& content, wire::frame_kind kind, random_stream& draws) const;
  std::string ask_everybody(actors::service& service, bool all_must_be_right);

  world world_;
  std::vector<std::vector<std::int32_t>> reference_;
  lying how_ = lying::in_fields;
  bool lies_now_ = false;
  std::size_t next_lie_ = 0;
  std::array<std::deque<wire::frame>, wire::n_frame_kinds> seen_;  ///< The latest of each kind.
};

inline hostile_world::hostile_world() : world_("exact") {
  auto& setup = world_.setup;
  setup.chunk_rows = 4;
  setup.keep_final_hidden = false;
  auto& plan = setup.chosen.plan;
  const auto group_of = [](std::size_t server) { return server < 2 ? 0 : 1; };
  plan.experts.clear();
  for (std::uint32_t server = 0; server < plan.n_servers; ++server) {
    auto& residence = plan.residence[server].layers;
    std::ranges::fill(residence, group_of(server) == 0 ? 0b00011u : 0b11100u);
    for (std::uint32_t layer = 0; layer < plan.n_layers; ++layer)
      for (std::uint32_t expert = 0; expert < plan.n_experts; ++expert)
        if (server == liar || expert % 2 == server % 2)
          plan.experts.push_back({server_id{server}, layer_id{layer}, expert_id{expert}, {}, 0});
    auto& spec = setup.servers.servers[server];
    spec.memory_bytes *= 8;
    const auto n_here =
        std::ranges::count(plan.experts, server_id{server}, &planning::placed_expert::server);
    plan.expert_bytes_used[server] = n_here * expert_bytes(spec, setup.costs);
    plan.expert_bytes_limit[server] = expert_memory_bytes(spec, setup.costs, plan.n_layers);
  }
  // Nobody goes to the other group for an expert that the own one has; but what the liar sends is there
  // before what it copies.
  for (std::size_t from = 0; from < plan.n_servers; ++from)
    for (std::size_t to = 0; to < plan.n_servers; ++to)
      if (from == liar)
        setup.servers.links[from * plan.n_servers + to].latency_ns = 1000;
      else if (group_of(from) != group_of(to))
        setup.servers.links[from * plan.n_servers + to].latency_ns = 1'000'000'000;
  world_.add_requests(15, 6, 0.8, 12);
  for (std::size_t i = 0; i < setup.requests.size(); ++i) {
    setup.requests[i].access = static_cast<std::uint32_t>(i % plan.n_servers);
    setup.requests[i].sampling_stream = i;
    reference_.push_back(reference_ids(*setup.model, setup.requests[i], i));
  }
  setup.bad_links.meddle = [this](wire::frame& content, std::uint64_t bits) {
    meddle(content, bits);
  };
}

inline bool hostile_world::take_seen(wire::frame& content, wire::frame_kind kind,
                                     random_stream& draws) const {
  const auto& known = seen_[static_cast<std::size_t>(kind)];
  if (known.empty()) return false;
  const auto& chosen = known[draws.below(known.size())];
  content.kind = chosen.kind;
  content.epoch = chosen.epoch;
  content.bytes = chosen.bytes;
  return true;
}

inline bool hostile_world::lie_in_field(wire::frame& content, random_stream& draws) {
  for (std::size_t tried = 0; tried < lies().size(); ++tried) {
    const auto number = next_lie_++ % lies().size();
    const auto& chosen = lies()[number];
    if (!take_seen(content, chosen.kind, draws) || !chosen.tell(content, draws)) continue;
    ++told_of_list[number];
    return true;
  }
  return false;
}

inline void hostile_world::meddle(wire::frame& content, std::uint64_t bits) {
  auto& seen = seen_[static_cast<std::size_t>(content.kind)];
  constexpr std::size_t most_seen = 16;
  if (seen.size() == most_seen) seen.pop_front();
  seen.push_back(content);
  if (!lies_now_ || content.from != liar) return;
  random_stream draws(bits, 0x6c6965);
  if (draws.unit() < 0.2) return;
  const auto kind = static_cast<wire::frame_kind>(draws.below(wire::n_frame_kinds));
  if (how_ == lying::in_fields && !lie_in_field(content, draws)) return;
  if (how_ == lying::in_bytes) {
    take_seen(content, kind, draws);
    if (content.bytes.empty()) return;
    for (auto left = 1 + draws.below(3); left > 0; --left)
      content.bytes[draws.below(content.bytes.size())] = static_cast<char>(draws.below(256));
  }
  if (how_ == lying::as_others && !take_seen(content, kind, draws)) return;
  ++told[static_cast<std::size_t>(content.kind)];
}

/// Every request once more; empty where those that must be right are.
inline std::string hostile_world::ask_everybody(actors::service& service, bool all_must_be_right) {
  std::vector<followed_request> requests(world_.setup.requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].spec = world_.setup.requests[i];
    requests[i].spec.arrival_ns += service.now_ns();
    service.submit(requests[i].spec, requests[i].sink());
  }
  if (!service.run_until([&] { return service.outstanding() == 0; }))
    return fmt::format("{} requests wait for ever", service.outstanding());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto& one = requests[i];
    const auto place = fmt::format("request {} of server {}: ", i, one.spec.access);
    if (!one.mistake.empty()) return place + one.mistake;
    if (!one.ended) return place + "no end";
    if (!all_must_be_right && one.spec.access >= 2) continue;
    if (one.ended->problem) return place + one.ended->problem->message;
    if (one.streamed != reference_[i]) return place + "other ids";
  }
  return {};
}

inline std::string hostile_world::run(lying how, std::uint64_t seed) {
  how_ = how;
  for (auto& seen : seen_) seen.clear();
  // No honest server says these here, so that none is ever seen.
  seen_[static_cast<std::size_t>(wire::frame_kind::failure)].push_back(
      wire::encode(wire::failure_report{seed % 15, 0, liar, 1, "a lie"}));
  wire::link_report links{liar, 1 + seed,
                          std::vector<wire::link_measure>(world_.setup.servers.size())};
  for (auto& link : links.links) link = {static_cast<std::int64_t>(1'000'000 * (seed % 100)), 1e6};
  seen_[static_cast<std::size_t>(wire::frame_kind::links)].push_back(wire::encode(links));
  actors::service_options options = world_.setup;
  options.bad_links.seed = seed;
  auto begun = actors::service::start(options);
  if (!begun) return begun.error().message;
  auto& service = **begun;
  lies_now_ = true;
  if (auto wrong = ask_everybody(service, false); !wrong.empty()) return wrong;
  lies_now_ = false;
  // What it asked for is given back when its lease is over: after a day at most.
  constexpr std::int64_t longer_than_any_lease_ns = 90'000'000'000'000;
  bool later = false;
  service.at(service.now_ns() + longer_than_any_lease_ns, [&] { later = true; });
  service.run_until([&] { return later; });
  if (auto wrong = ask_everybody(service, true); !wrong.empty()) return "afterwards: " + wrong;
  if (auto settled = service.settle(); !settled) return settled.error().message;
  const auto status = service.status();
  if (!status) return status.error().message;
  return left_behind(*status);
}

}  // namespace ordermoe::test
