#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "test/actors/disturbance.hpp"
#include "trace/verify.hpp"

/// Emulated servers that talk over sessions whose wires a seed disturbs: one run a seed, and what must be true after it.
namespace ordermoe::test {

/// What a seed's wires do beyond cuts, stalls and the like, which every seed has.
enum class session_trouble {
  none,
  silence,   ///< Wires fall silent for so long that sessions die.
  crash,     ///< A server ends and starts again.
  raw_bytes  ///< Bits are others than were sent, and no TLS stands before the session.
};

inline const char* to_string(session_trouble kind) {
  constexpr const char* names[] = {"none", "silence", "crash", "raw bytes"};
  return names[static_cast<std::size_t>(kind)];
}

/// Of all runs so far, so that a test can tell that it tests something.
struct session_run_counts {
  net::pair_counts of_sessions;
  std::uint64_t runs = 0, answered = 0, failed = 0, unheard = 0, verified = 0;
  std::uint64_t fewest_frames = ~std::uint64_t{0}, fewest_cuts = ~std::uint64_t{0};
};

/// Four servers, eight requests of sixteen tokens each, at one seed.
class session_run {
 public:
  explicit session_run(std::uint64_t seed) : seed_(seed), draws_(seed, 0x73657373) {
    const session_trouble kinds[] = {session_trouble::none,    session_trouble::none,
                                     session_trouble::none,    session_trouble::silence,
                                     session_trouble::none,    session_trouble::none,
                                     session_trouble::silence, session_trouble::crash,
                                     session_trouble::none,    session_trouble::raw_bytes};
    trouble_ = kinds[seed % 10];
  }

  /// Empty where everything was as it must be.
  std::string run(session_run_counts& counts);
  std::string name() const {
    return fmt::format("seed {}, {}, {}", seed_, strategy(), to_string(trouble_));
  }

 private:
  static constexpr std::size_t n_servers = 4, n_requests = 8;
  static constexpr const char* stays = "exact, rows stay";
  static constexpr std::int64_t ms = 1'000'000, second = 1000 * ms;

  /// A world, and what its requests must be answered with.
  struct prepared {
    test::world world;
    std::vector<std::vector<std::int32_t>> reference;
  };

  /// `exact` twice: rows roam, or stay where a request came in, so that servers are asked for outputs alone and only who
  /// awaits one needs them.
  static const std::vector<std::string>& strategies() {
    static const std::vector<std::string> names{"exact", "layer-shards", "paper", "ordermoe",
                                                stays};
    return names;
  }
  const std::string& strategy() const { return strategies()[seed_ / 10 % strategies().size()]; }
  bool calls_much() const { return strategy() == "exact" || strategy() == stays; }
  static prepared prepare(const std::string& name);
  static const prepared& prepared_for(const std::string& name);

  template <class Value>
  Value one_of(std::initializer_list<Value> some) {
    return *(some.begin() + draws_.below(some.size()));
  }
  std::int64_t within(std::int64_t ns) {
    return static_cast<std::int64_t>(draws_.below(static_cast<std::uint64_t>(ns)));
  }

  actors::simulated_sessions sessions();
  void add_strikes(actors::simulated_sessions& to);
  actors::service_options options();
  void plan_crash(actors::service& service);
  bool all_ended() const;
  bool come_to_rest(actors::service& service) const;
  std::string check_requests(const actors::sessions_status& sessions, session_run_counts& counts);
  std::string check_failure(const followed_request& one, const actors::sessions_status& sessions);
  std::string check_trace(actors::service& service);
  void count(const actors::sessions_status& sessions, session_run_counts& counts) const;

  std::uint64_t seed_;
  random_stream draws_;
  session_trouble trouble_ = session_trouble::none;
  std::vector<followed_request> requests_;
  std::vector<std::int64_t> asked_ns_;
  std::uint32_t crashed_ = n_servers;  ///< None.
  std::int64_t back_ns_ = 0;           ///< When it is back.
  std::filesystem::path trace_;
  std::shared_ptr<trace::sink> sink_;
};

/// Experts in few copies and, but for one, rows that roam, so that everything that can cross between servers does.
inline session_run::prepared session_run::prepare(const std::string& name) {
  const std::string strategy = name == stays ? "exact" : name;
  test::world world(strategy, 0, 1, n_servers, tiny_model());
  auto& setup = world.setup;
  draw_options draw;
  draw.n_servers = n_servers;
  draw.seed = 1;
  draw.n_layers = setup.profile.n_layers;
  draw.n_experts = setup.profile.n_experts;
  draw.memory_ratio = strategy == "layer-shards" ? 2 : 1.2;
  draw.costs = setup.costs;
  setup.servers = draw_cluster(draw);
  planning::strategy_options planning;
  planning.search_steps = 500;
  auto made =
      planning::make_strategy(strategy, setup.profile, setup.servers, setup.costs, planning);
  ORDERMOE_CHECK(made.has_value(), made ? "" : made.error().message);
  setup.chosen = std::move(*made);
  if (name == "exact")
    setup.chosen.plan.residence = planning::roaming_residency(n_servers, setup.profile.n_layers);
  if (name == stays)
    setup.chosen.plan.residence = planning::access_residency(n_servers, setup.profile.n_layers);
  setup.chunk_rows = 4;
  setup.keep_final_hidden = false;
  world.add_requests(n_requests, 16, 0.8, 10);
  prepared ready{std::move(world), {}};
  auto& specs = ready.world.setup.requests;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    specs[i].sampling_stream = i;
    specs[i].ignore_end_of_text = true;
    ready.reference.push_back(reference_ids(*ready.world.setup.model, specs[i], i));
  }
  return ready;
}

inline const session_run::prepared& session_run::prepared_for(const std::string& name) {
  static std::map<std::string, prepared> ready;
  const auto found = ready.find(name);
  return found != ready.end() ? found->second : ready.emplace(name, prepare(name)).first->second;
}

inline actors::simulated_sessions session_run::sessions() {
  actors::simulated_sessions made;
  made.seed = seed_;
  const auto window = one_of<std::uint64_t>({1, 1, 4000, 40'000, 4u << 20});
  for (auto& credit : made.limits.credit) credit = window;
  auto& wire = made.wire;
  wire.chunk_bytes = one_of<std::size_t>({1024, 1024, 4096, 16384});
  wire.read_bytes = one_of<std::size_t>({1, 13, 1024, 65536, 65536});
  wire.buffer_bytes = one_of<std::size_t>({2048, 16384, 65536});
  wire.both_dial = draws_.below(3) == 0;
  wire.tls = trouble_ != session_trouble::raw_bytes;
  wire.most_stall_ns = one_of<std::int64_t>({50 * ms, 500 * ms, 1500 * ms});
  wire.most_use_delay_ns = one_of<std::int64_t>({0, 0, 2 * ms, 40 * ms});
  add_strikes(made);
  return made;
}

/// Three cuts and some of everything else, where frames go.
inline void session_run::add_strikes(actors::simulated_sessions& to) {
  using net::wire_fault;
  const auto add = [&](wire_fault kind, std::uint64_t within_frames) {
    to.strikes.push_back({1 + draws_.below(within_frames), kind});
  };
  const std::uint64_t frames = calls_much() ? 2500 : 500;
  for (int i = 0; i < 3; ++i) add(wire_fault::cut, 200);
  for (const auto kind :
       {wire_fault::cut, wire_fault::cut_unequally, wire_fault::stall, wire_fault::stall_one_way,
        wire_fault::stall_one, wire_fault::flip, wire_fault::dial_again, wire_fault::change_rate})
    for (auto n = draws_.below(3); n > 0; --n) add(kind, frames);
  if (trouble_ == session_trouble::silence)
    for (auto n = 1 + draws_.below(2); n > 0; --n) add(wire_fault::silence, frames);
  if (trouble_ == session_trouble::raw_bytes)
    for (auto n = 4 + draws_.below(8); n > 0; --n) add(wire_fault::flip, frames);
}

inline actors::service_options session_run::options() {
  const auto& ready = prepared_for(strategy());
  actors::service_options options = ready.world.setup;
  options.sessions = sessions();
  options.order_seed = draws_.below(4) == 0 ? 0 : seed_;
  options.load_period_ns = one_of<std::int64_t>({0, 5 * ms, 20 * ms});
  // A bit that is another may lose a frame, and who waits for it waits until then.
  options.request_timeout_ns = trouble_ == session_trouble::raw_bytes ? 60 * second : 600 * second;
  return options;
}

inline void session_run::plan_crash(actors::service& service) {
  crashed_ = static_cast<std::uint32_t>(draws_.below(n_servers));
  const auto at = 300 * ms + within(2 * second);
  back_ns_ = at + 1 + within(one_of<std::int64_t>({100 * ms, 2 * second, 5 * second}));
  const auto how = draws_.below(2) == 0 ? net::simulated_pair::ending::process
                                        : net::simulated_pair::ending::machine;
  service.at(at, [this, &service, how] { service.crash(crashed_, how); });
  const auto count = draws_.below(3) == 0 ? actors::boot_count::lost : actors::boot_count::kept;
  service.at(back_ns_, [this, &service, count] { service.start_again(crashed_, count); });
}

/// Nobody hears of requests that were asked of a server that is gone.
inline bool session_run::all_ended() const {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const bool gone = requests_[i].spec.access == crashed_ && asked_ns_[i] <= back_ns_;
    if (!requests_[i].ended && !gone) return false;
  }
  return true;
}

/// Deaths are noticed, and what a lost release left is given back when its lease is over.
inline bool session_run::come_to_rest(actors::service& service) const {
  const auto least = trouble_ == session_trouble::none        ? std::int64_t{0}
                     : trouble_ == session_trouble::raw_bytes ? 75 * second
                                                              : 10 * second;
  const auto begun = service.now_ns();
  for (auto passed = std::max(least, 100 * ms); passed < 300 * second; passed += second) {
    bool later = false;
    service.at(begun + passed, [&] { later = true; });
    service.run_until([&] { return later; });
    // Where a bit of a length was another, the two have counted differently since.
    if (service.sessions().at_rest || trouble_ == session_trouble::raw_bytes) return true;
  }
  return false;
}

inline std::string session_run::run(session_run_counts& counts) {
  auto wanted = options();
  if (trouble_ == session_trouble::none && seed_ % 20 == 1) {
    trace_ = std::filesystem::temp_directory_path() /
             fmt::format("ordermoe-sessions-{}-{}.jsonl", ::getpid(), seed_);
    auto opened = trace::sink::open(trace_);
    ORDERMOE_CHECK(opened.has_value(), opened ? "" : opened.error().message);
    sink_ = wanted.sink = std::move(*opened);
  }
  auto begun = actors::service::start(std::move(wanted));
  if (!begun) return begun.error().message;
  auto& service = **begun;
  const auto& specs = prepared_for(strategy()).world.setup.requests;
  requests_.resize(specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    requests_[i].spec = specs[i];
    requests_[i].spec.arrival_ns = 0;
    asked_ns_.push_back(300 * ms + within(one_of<std::int64_t>({1 * ms, 300 * ms, 2 * second})));
    service.at(asked_ns_[i],
               [this, &service, i] { service.submit(requests_[i].spec, requests_[i].sink()); });
  }
  if (trouble_ == session_trouble::crash) plan_crash(service);
  if (!service.run_until([&] { return all_ended() && service.now_ns() > back_ns_; }))
    return "requests wait for ever";
  if (!come_to_rest(service)) return "sessions do not come to rest";
  if (trouble_ != session_trouble::raw_bytes)
    if (auto settled = service.settle(); !settled) return settled.error().message;
  const auto sessions = service.sessions();
  count(sessions, counts);
  if (!sessions.broken.empty()) return sessions.broken;
  if (auto wrong = check_requests(sessions, counts); !wrong.empty()) return wrong;
  const auto status = service.status();
  if (!status) return status.error().message;
  auto wrong = trouble_ == session_trouble::raw_bytes ? std::string() : contradiction(*status);
  if (wrong.empty()) wrong = left_behind(*status);
  if (wrong.empty() && !trace_.empty()) {
    wrong = check_trace(service);
    ++counts.verified;
  }
  service.stop();
  return wrong;
}

inline std::string session_run::check_requests(const actors::sessions_status& sessions,
                                               session_run_counts& counts) {
  const auto& reference = prepared_for(strategy()).reference;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const auto& one = requests_[i];
    const auto place = fmt::format("request {} of server {}: ", i, one.spec.access);
    if (!one.mistake.empty()) return place + one.mistake;
    if (one.streamed.size() > reference[i].size() ||
        !std::equal(one.streamed.begin(), one.streamed.end(), reference[i].begin()))
      return place + "other ids";
    if (!one.ended) {
      ++counts.unheard;
      continue;
    }
    if (one.ended->problem) {
      ++counts.failed;
      if (auto wrong = check_failure(one, sessions); !wrong.empty()) return place + wrong;
    } else {
      ++counts.answered;
      if (one.streamed != reference[i]) return place + "fewer ids";
    }
  }
  return {};
}

/// It ended for want of a server, and a session with that server was over.
inline std::string session_run::check_failure(const followed_request& one,
                                              const actors::sessions_status& sessions) {
  const auto& why = one.ended->problem->message;
  if (trouble_ == session_trouble::raw_bytes) return {};
  const auto words = why.find("is not connected");
  const auto at = why.find("server ");
  if (words == std::string::npos || at == std::string::npos) return why;
  const auto server = static_cast<std::size_t>(std::stoul(why.substr(at + 7)));
  for (std::size_t peer = 0; peer < n_servers; ++peer)
    if (sessions.downs[peer * n_servers + server] + sessions.downs[server * n_servers + peer] > 0)
      return {};
  return why + ", and no session with it was over";
}

inline std::string session_run::check_trace(actors::service& service) {
  if (auto closed = service.close_trace(); !closed) return closed.error().message;
  if (auto closed = sink_->close(); !closed) return closed.error().message;
  const auto verified = trace::verify_trace(trace_);
  std::filesystem::remove(trace_);
  return verified ? std::string() : verified.error().message;
}

inline void session_run::count(const actors::sessions_status& sessions,
                               session_run_counts& counts) const {
  auto& all = counts.of_sessions;
  const auto& one = sessions.counts;
  for (std::size_t i = 0; i < net::n_wire_faults; ++i) all.faults[i] += one.faults[i];
  all.frames += one.frames;
  all.connections += one.connections;
  all.resumed += one.resumed;
  all.downs += one.downs;
  all.congested += one.congested;
  ++counts.runs;
  if (trouble_ != session_trouble::none) return;
  counts.fewest_frames = std::min(counts.fewest_frames, one.frames);
  counts.fewest_cuts =
      std::min(counts.fewest_cuts, one.faults[static_cast<std::size_t>(net::wire_fault::cut)]);
}

}  // namespace ordermoe::test
