#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <boost/test/framework.hpp>
#include <boost/test/results_collector.hpp>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/cluster/client.hpp"
#include "actors/cluster/node.hpp"
#include "config/log_events.hpp"
#include "net/channel/transport.hpp"
#include "net/identity/certificates.hpp"
#include "net/identity/revocations.hpp"
#include "test/actors/living.hpp"

/// A cluster of nodes in one process, on loopback, on the wall clock: nothing here depends on how long anything takes, but
/// for how long a test waits before it fails.
namespace ordermoe::test {

inline constexpr auto patience = std::chrono::seconds(30);

/// Whether it came true while one could wait for it.
inline bool eventually(const std::function<bool()>& what) {
  const auto limit = std::chrono::steady_clock::now() + patience;
  while (!what()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

inline bool says(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

/// An authority of its own, in a folder that is removed with it.
class scratch_authority {
 public:
  scratch_authority() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "ordermoe-nodes-XXXXXX").string();
    ORDERMOE_CHECK(::mkdtemp(pattern.data()) != nullptr, "a temporary folder can be made");
    folder_ = pattern;
    ORDERMOE_CHECK(net::make_authority(folder_, "edge3", 2).has_value(), "an authority is made");
  }
  ~scratch_authority() { std::filesystem::remove_all(folder_); }

  /// Issued where nobody of this name has one yet.
  std::shared_ptr<const net::tls_identity> identity(const std::string& name,
                                                    net::role of = net::role::node) const {
    const auto certificate = folder_ / (name + ".crt");
    if (!std::filesystem::exists(certificate)) {
      const auto issued = net::issue(folder_, {of, name, {}, 1});
      ORDERMOE_CHECK(issued.has_value(), issued ? "" : issued.error().message);
    }
    auto loaded =
        net::tls_identity::load(folder_ / "ca.crt", certificate, folder_ / (name + ".key"));
    ORDERMOE_CHECK(loaded.has_value(), loaded ? "" : loaded.error().message);
    return *loaded;
  }
  /// Identities that are loaded from now on know it.
  void revoke(const std::string& name) const {
    const auto revoked = net::revoke(folder_, name, net::revoke_which::all);
    ORDERMOE_CHECK(revoked.has_value(), revoked ? "" : revoked.error().message);
  }

 private:
  std::filesystem::path folder_;
};

/// What several threads say, in order.
class kept_lines {
 public:
  void add(const log_record& record) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(text_of(record));
    auto wanted = fmt::format(" {} ", facts_of(record.event).fields);
    for (const auto& field : record.fields)
      if (wanted.find(fmt::format(" {} ", field.name)) == std::string::npos)
        mistake_ = fmt::format("{} has a field {}, which log_events.hpp does not", record.name(),
                               field.name);
  }
  /// Of a record that is not as log_events.hpp says; empty: none.
  std::string mistake() const {
    const std::lock_guard lock(mutex_);
    return mistake_;
  }
  /// At most so many, the latest last.
  std::string last(std::size_t most) const {
    const std::lock_guard lock(mutex_);
    const auto n = std::min(most, lines_.size());
    return fmt::to_string(
        fmt::join(lines_.end() - static_cast<std::ptrdiff_t>(n), lines_.end(), "\n"));
  }
  bool has(const std::string& words) const { return !with(words).empty(); }
  /// The first with these words.
  std::string with(const std::string& words) const {
    const std::lock_guard lock(mutex_);
    for (const auto& each : lines_)
      if (says(each, words)) return each;
    return {};
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
  std::string mistake_;
};

/// One end of sessions whose user keeps what it is told: of no node's and no client's own code.
class bare_end final : public net::transport_user {
 public:
  /// Whether it takes in what comes; a peer that does not is what congestion comes from.
  explicit bare_end(bool takes_in = true) : takes_in_(takes_in) {}
  ~bare_end() override { stop(); }

  void start(net::transport_options options) {
    auto begun = net::transport::start(std::move(options), *this);
    ORDERMOE_CHECK(begun.has_value(), begun ? "" : begun.error().message);
    const std::lock_guard lock(mutex_);
    transport_ = std::move(*begun);
  }
  void stop() {
    if (transport_) transport_->stop();
  }
  bool send(net::peer_id to, net::lane of, std::uint8_t kind, std::string text,
            std::uint64_t request = 0, std::uint32_t epoch = 0) {
    return transport_->send(to, of, kind, request, 0, epoch, std::move(text));
  }
  bool say(actors::control_kind kind, std::string text) {
    return send(0, net::lane::control, static_cast<std::uint8_t>(kind), std::move(text));
  }
  net::address at() const { return transport_->listens_at().front(); }
  bool is_up(net::peer_id with = 0) const { return transport_->figures(with).up; }
  /// Whether the peer has said that it is done with so many bytes at least, and with all.
  bool is_done_with(net::peer_id to, net::lane of, std::uint64_t bytes) const {
    const auto lane = transport_->figures(to).lanes[static_cast<std::size_t>(of)];
    return lane.sent_bytes >= bytes && lane.outstanding_bytes == 0;
  }

  /// A copy of what came so far.
  std::vector<net::session_event> events(net::session_event::what kind) const {
    const std::lock_guard lock(mutex_);
    std::vector<net::session_event> found;
    for (const auto& each : events_)
      if (each.kind == kind) found.push_back(each);
    return found;
  }
  std::vector<net::session_event> frames() const { return events(net::session_event::what::frame); }
  std::size_t n_frames() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(
        std::ranges::count(events_, net::session_event::what::frame, &net::session_event::kind));
  }
  /// Of whichever client came first.
  std::optional<net::peer_id> client() const {
    const std::lock_guard lock(mutex_);
    return client_;
  }
  std::optional<net::peer_id> latest_client() const {
    const std::lock_guard lock(mutex_);
    return latest_client_;
  }
  /// From now on it takes in what comes, and what has come.
  void take_in() {
    const std::lock_guard lock(mutex_);
    takes_in_ = true;
    for (const auto& each : events_) use(0, each);
  }

 private:
  void take(net::peer_id from, std::vector<net::session_event> events) override {
    const std::lock_guard lock(mutex_);
    for (auto& each : events) {
      if (takes_in_) use(from, each);
      events_.push_back(std::move(each));
    }
  }
  void client_came(net::peer_id id, const net::certificate_name&) override {
    const std::lock_guard lock(mutex_);
    if (!client_) client_ = id;
    latest_client_ = id;
  }
  void problem(const std::string&, const error&) override {}

  void use(net::peer_id from, const net::session_event& each) {
    if (transport_ && each.kind == net::session_event::what::frame)
      transport_->used(from, each.header.of, net::session::frame_bytes(each.header));
  }

  mutable std::mutex mutex_;
  bool takes_in_;
  std::unique_ptr<net::transport> transport_;
  std::vector<net::session_event> events_;
  std::optional<net::peer_id> client_, latest_client_;
};

/// Servers 0, 1 and 2 of the tiny model. The highest begins, so that whoever dials knows the port.
class nodes {
 public:
  static constexpr std::uint32_t n = 3;

  explicit nodes(const std::string& strategy = "exact", double memory_ratio = 2.5)
      : world_(strategy, 0, 1, n, tiny_model(), memory_ratio) {
    world_.setup.mode = actors::run_mode::local;
    world_.setup.keep_final_hidden = false;
    // A machine that has much else to do is not silent.
    limits.dead_ns = 10'000'000'000;
  }

  ~nodes() {
    for (auto& each : running_) each.reset();
    using boost::unit_test::framework::current_test_case_id;
    if (!boost::unit_test::results_collector.results(current_test_case_id()).passed())
      for (std::uint32_t m = 0; m < n; ++m)
        fmt::print(stderr, "log of {}:\n{}\n", name_of(m), logs_[m].last(100));
    for (const auto& each : logs_) BOOST_TEST(each.mistake() == "");
  }

  /// Experts are on servers 0 and 1 alone; users of server 0 have rows there and at 1, others where they are.
  void place_by_hand() {
    auto& plan = world_.setup.chosen.plan;
    plan.experts.clear();
    for (std::uint32_t layer = 0; layer < plan.n_layers; ++layer)
      for (std::uint32_t expert = 0; expert < plan.n_experts; ++expert) {
        planning::placed_expert each;
        each.server = server_id{expert % 2};
        each.layer = layer_id{layer};
        each.expert = expert_id{expert};
        plan.experts.push_back(each);
      }
    const planning::server_mask members[n] = {0b011, 0b010, 0b100};
    for (std::uint32_t m = 0; m < n; ++m)
      plan.residence[m].layers.assign(plan.n_layers, members[m]);
  }

  actors::node_options options(std::uint32_t m) const {
    actors::node_options made;
    made.service = world_.setup;
    made.service.server_models.assign(n, nullptr);
    made.service.server_models[m] = world_.setup.model;
    made.service.tokens = tokens;
    made.service.rehearsed = rehearsed;
    made.server = m;
    made.transport = transport_of(m);
    made.transport.takes_clients = true;
    made.log = log_outlet(
        [this, m](const log_record& record) {
          logs_[m].add(record);
          if (on_record) on_record(m, record);
        },
        log_level::debug);
    {
      const std::lock_guard lock(keeping_);
      made.kept = kept_[m];
    }
    made.drift = drift;
    made.measured = kept_activation(made.kept, actors::kept_activation_name);
    made.counted = kept_activation(made.kept, actors::kept_counts_name);
    made.counted_at_ms = counted_at_ms;
    made.keep = [this, m](const std::string& name, const std::string& text) -> result<void> {
      const std::lock_guard lock(keeping_);
      kept_[m][name] = text;
      return {};
    };
    made.coarser = reader;
    made.papers = papers;
    made.keep_plan = [this, m](const planning::plan& plan) -> result<actors::kept_plan> {
      actors::kept_plan kept{fmt::format("plan of epoch {}", plan.epoch), {}};
      if (has_no_room[m])
        kept.written = error{errc::io, "the disk has no room"};
      else
        kept_epochs[m] = plan.epoch;
      return kept;
    };
    return made;
  }
  /// Of the end that server m is.
  net::transport_options transport_of(std::uint32_t m) const {
    net::transport_options made;
    made.identity = authority.identity(name_of(m));
    made.listen = {{"127.0.0.1", ports_[m]}};
    for (std::uint32_t other = 0; other < n; ++other) {
      if (other == m) continue;
      net::transport_peer peer{name_of(other), std::nullopt};
      if (other > m && ports_[other] != 0) peer.at = at(other);
      made.peers.push_back(std::move(peer));
    }
    made.boot = boots_[m];
    made.agreed = {{"model", "tiny"}, {"plan", plan_digest[m]}};
    made.limits = limits;
    return made;
  }

  void start(std::uint32_t m) {
    ++boots_[m];
    auto begun = actors::node::start(options(m));
    BOOST_REQUIRE_MESSAGE(begun.has_value(), (begun ? "" : begun.error().message));
    running_[m] = std::move(*begun);
    ports_[m] = running_[m]->listens_at().front().port;
  }
  /// In place of node m, something that only listens; it is there until the test ends.
  bare_end& start_bare(std::uint32_t m, bool takes_in = true) {
    ++boots_[m];
    auto& end = bare_.emplace_back(takes_in);
    end.start(transport_of(m));
    ports_[m] = end.at().port;
    return end;
  }
  void start_all() {
    for (std::uint32_t m = n; m-- > 0;) start(m);
    for (std::uint32_t m = 0; m < n; ++m) await_up(m, {0, 1, 2});
  }
  void stop(std::uint32_t m) { running_[m].reset(); }

  /// Until node m is connected to these, itself left out.
  void await_up(std::uint32_t m, std::vector<std::uint32_t> servers) {
    BOOST_REQUIRE(eventually([&] {
      const auto status = status_of(m);
      for (const auto& peer : status.at("peers"))
        if (std::ranges::find(servers, peer.at("server").get<std::uint32_t>()) != servers.end() &&
            !peer.at("up").get<bool>())
          return false;
      return true;
    }));
  }

  actors::node& operator[](std::uint32_t m) { return *running_[m]; }
  nlohmann::json status_of(std::uint32_t m) {
    const auto text = running_[m]->status_json();
    BOOST_REQUIRE_MESSAGE(text.has_value(), (text ? "" : text.error().message));
    return nlohmann::json::parse(*text);
  }
  const kept_lines& log_of(std::uint32_t m) const { return logs_[m]; }
  net::address at(std::uint32_t m) const { return {"127.0.0.1", ports_[m]}; }
  static std::string name_of(std::uint32_t m) { return fmt::format("s{}", m); }
  const model::transformer& model() const { return *world_.setup.model; }
  /// What attention at one layer is charged on the fastest server, at the least.
  std::int64_t least_attention_ns() const {
    const auto& fastest = *std::ranges::max_element(world_.setup.servers.servers, {},
                                                    &server_spec::memory_bandwidth_bytes_per_s);
    return compute_ns(fastest, 0, world_.setup.costs.attention_bytes);
  }

  std::unique_ptr<actors::cluster_client> client(std::uint32_t m, const std::string& name = "ann",
                                                 net::role of = net::role::operate) const {
    auto made = actors::cluster_client::connect(authority.identity(name, of), at(m), patience);
    BOOST_REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().message));
    return std::move(*made);
  }
  /// What a client's transport is told to connect to node m.
  net::transport_options dialling(std::uint32_t m, const std::string& name = "bob",
                                  net::role of = net::role::operate) const {
    net::transport_options made;
    made.identity = authority.identity(name, of);
    made.peers = {{"", at(m)}};
    made.is_client = true;
    made.limits = limits;
    return made;
  }

  scratch_authority authority;
  net::session_limits limits;
  /// Of whatever node m writes into its log, in the thread of whoever does: it goes on when this returns.
  std::function<void(std::uint32_t m, const log_record&)> on_record;
  std::shared_ptr<const model::expert_reader> reader;  ///< Null: plans do not change.
  std::shared_ptr<actors::kept_papers> papers;         ///< What hosts that join are told.
  drift_watch drift;
  std::optional<std::int64_t>
      counted_at_ms;  ///< What a node finds of when it counted what it kept.
  /// Of the plan that a node kept last; 0: none.
  mutable std::array<std::atomic<std::uint64_t>, n> kept_epochs{};
  std::array<std::atomic<bool>, n> has_no_room{};  ///< For a plan.
  std::string plan_digest[n] = {"one plan", "one plan", "one plan"};
  std::shared_ptr<const model::tokenizer> tokens;
  std::optional<rehearsal> rehearsed;
  /// What node m keeps over its end under this name.
  std::string kept_at(std::uint32_t m, const std::string& name) const {
    const std::lock_guard lock(keeping_);
    const auto found = kept_[m].find(name);
    return found == kept_[m].end() ? "" : found->second;
  }

 private:
  std::shared_ptr<const planning::measured_activation> kept_activation(
      const std::map<std::string, std::string>& kept, const char* name) const {
    const auto found = kept.find(name);
    if (found == kept.end()) return nullptr;
    const auto& shape = world_.setup.model->config();
    auto measured = planning::parse_activation(found->second, name, shape.n_layers, shape.n_experts,
                                               shape.top_k);
    BOOST_REQUIRE_MESSAGE(measured.has_value(), (measured ? "" : measured.error().message));
    return std::make_shared<const planning::measured_activation>(std::move(*measured));
  }

  mutable std::array<std::map<std::string, std::string>, n> kept_;
  mutable std::mutex keeping_;
  world world_;
  std::uint16_t ports_[n] = {};
  std::uint64_t boots_[n] = {};
  mutable kept_lines logs_[n];
  std::deque<bare_end> bare_;
  std::unique_ptr<actors::node> running_[n];
};

/// Requests of one client, and what it is told of them.
class asked_requests {
 public:
  explicit asked_requests(actors::cluster_client& client) : client_(client) {}

  followed_request& ask(actors::request_spec spec, std::string text = {}) {
    auto& made = all_.emplace_back();
    made.spec = spec;
    numbers_.push_back(client_.submit({0, std::move(text), std::move(spec)}, sink_of(made)));
    return made;
  }
  void cancel(std::size_t i) { client_.cancel(numbers_[i]); }
  /// Some token of some answer came.
  bool any_token() const {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(all_, [](const auto& each) { return !each.streamed.empty(); });
  }
  void await_all() {
    BOOST_REQUIRE(eventually([&] { return client_.outstanding() == 0; }));
    for (const auto& each : all_) BOOST_TEST(each.mistake == "");
  }
  /// Once all have ended.
  const std::deque<followed_request>& all() const { return all_; }
  std::size_t n_failed() const {
    return static_cast<std::size_t>(std::ranges::count_if(
        all_, [](const auto& each) { return each.ended->problem.has_value(); }));
  }

 private:
  actors::answer_sink sink_of(followed_request& of) {
    const auto inner = of.sink();
    return {[this, inner](const actors::answer_token& token) {
              const std::lock_guard lock(mutex_);
              inner.on_token(token);
            },
            [this, inner](const actors::request_outcome& outcome) {
              const std::lock_guard lock(mutex_);
              inner.on_end(outcome);
            }};
  }

  actors::cluster_client& client_;
  mutable std::mutex mutex_;
  std::deque<followed_request> all_;
  std::vector<std::uint64_t> numbers_;
};

/// The i-th of several requests to the tiny model, each another.
inline actors::request_spec request_of(std::uint32_t i, std::uint32_t new_tokens = 12) {
  actors::request_spec spec;
  spec.prompt = {5, 6 + static_cast<std::int32_t>(i % 200), 7, 8, 9};
  spec.max_new_tokens = new_tokens;
  spec.temperature = i % 2 == 0 ? 0 : 0.8;
  spec.sampling_seed = 3;
  spec.sampling_stream = i;
  return spec;
}

}  // namespace ordermoe::test
