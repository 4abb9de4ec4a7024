#include "actors/caf_channel/caf_connections.hpp"

#include <fmt/format.h>

#include <caf/all.hpp>
#include <caf/io/all.hpp>
#include <caf/openssl/all.hpp>
#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <random>
#include <utility>

#include "actors/caf_channel/caf_connection.hpp"
#include "actors/caf_channel/find_listener.hpp"
#include "actors/caf_channel/kept_files.hpp"
#include "actors/caf_channel/messages.hpp"
#include "actors/caf_channel/tls_errors.hpp"
#include "config/random.hpp"

namespace ordermoe::actors {

namespace {

using net::address;
using net::connection_ptr;
using std::chrono::nanoseconds;
using dial_done = std::function<void(result<connection_ptr>)>;

/// Nothing of a configuration file or a command line gets into it.
struct channel_config : caf::actor_system_config {
  channel_config(const kept_files& files, std::int64_t silent_ns) {
    // One worker: what it runs is told one thing at a time.
    set("scheduler.policy", caf::atom("sharing"));
    set("scheduler.max-threads", std::size_t{1});
    // No thread between the socket and the worker.
    set("middleman.workers", std::size_t{0});
    set("middleman.enable-automatic-connections", false);
    set("middleman.app-identifiers", std::vector<std::string>{"ordermoe/1"});
    // A handshake that the first beat finds unfinished is ended, so that beats are few.
    set("middleman.heartbeat-interval", caf::timespan(nanoseconds(silent_ns / 8)));
    set("middleman.connection-timeout", caf::timespan(nanoseconds(silent_ns / 4)));
    openssl_cafile = files.authority();
    openssl_certificate = files.certificate();
    openssl_key = files.key();
    add_message_types<caf::id_block::ordermoe_caf_channel>();
    load<caf::io::middleman>();
    load<caf::openssl::manager>();
  }
};

/// One connection that is wanted.
struct dial_attempt {
  std::string place;
  net::stream which = net::stream::fast;
  dial_done done;
  bool over = false;
  caf_connection_ptr with = nullptr;  ///< Once somebody answered.
};
using dial_attempt_ptr = std::shared_ptr<dial_attempt>;

class all_caf_connections final : public net::connections {
 public:
  all_caf_connections(net::connections_options options, net::connections_user& user,
                      kept_files files)
      : options_(std::move(options)),
        user_(user),
        files_(std::move(files)),
        config_(files_, options_.silent_ns),
        system_(std::make_unique<caf::actor_system>(config_)) {
    keep_tls_errors_apart(*system_);
    hub_ = system_->spawn([this](caf::event_based_actor* self) { return begin(self); });
  }

  ~all_caf_connections() override {
    // Where it was never started.
    if (hub_) caf::anon_send_exit(hub_, caf::exit_reason::kill);
    join();
  }

  result<address> listen(const address& where) override {
    auto host = can_listen(where);
    if (!host) return net::cannot_listen(where, host.error().message);
    std::promise<result<std::uint16_t>> told;
    system_->spawn([&](caf::event_based_actor* self) {
      self->request(system_->openssl_manager().actor_handle(), publishing, caf::publish_atom_v,
                    where.port, caf::actor_cast<caf::strong_actor_ptr>(hub_),
                    std::set<std::string>{}, *host, true)
          .then([&](std::uint16_t port) { told.set_value(port); },
                [&](const caf::error& why) {
                  told.set_value(error{errc::io, system_->render(why)});
                });
    });
    const auto port = told.get_future().get();
    if (!port) return net::cannot_listen(where, port.error().message);
    ports_.push_back(*port);
    return address{where.host, *port};
  }

  void start() override { caf::anon_send(hub_, caf::ok_atom_v); }

  void post(std::function<void()> what) override {
    const std::lock_guard lock(hub_mutex_);
    if (hub_) caf::anon_send(hub_, caf_task{std::move(what)});
  }

  result<void> use(std::shared_ptr<const net::tls_identity>) override {
    return error{errc::unsupported, "over CAF a new certificate is used after the next start"};
  }

  void after(std::int64_t ns, std::function<void()> what) override {
    if (!halted_) caf::delayed_anon_send(hub_, nanoseconds(ns), caf_task{std::move(what)});
  }

  void dial(const address& to, net::stream which, dial_done done) override {
    const auto now =
        std::make_shared<dial_attempt>(dial_attempt{to_string(to), which, std::move(done)});
    after(options_.dial_ns, [this, now] { fail(now, {errc::io, "it does not answer"}); });
    if (const auto found = listeners_.find(now->place); found != listeners_.end())
      return greet(now, found->second);
    hub_self_->spawn<caf::linked + caf::detached>(
        find_listener, listener_search{to, options_.dial_ns, searches_go_on_},
        [this, now](result<caf::actor> found) {
          post([this, now, found = std::move(found)] { take_listener(now, found); });
        });
  }

  /// What CAF has not written when its system ends is lost, where a socket of our own would still send it.
  std::int64_t farewell_ns() const override { return 2'000'000'000; }

  void stop_listening() override {
    for (const auto port : ports_)
      caf::anon_send(system_->openssl_manager().actor_handle(), caf::close_atom_v, port);
  }

  void await(const std::vector<connection_ptr>&, std::int64_t ns,
             std::function<void()> then) override {
    // What ends the wait comes as messages, in between.
    constexpr std::int64_t look_again_ns = 2'000'000;
    after(std::min(ns, look_again_ns), std::move(then));
  }

  void halt() override {
    halted_ = true;
    *searches_go_on_ = false;
    listeners_.clear();
    // All that are linked with it end, too.
    hub_self_->quit(caf::exit_reason::user_shutdown);
  }

  void join() override {
    if (!system_) return;
    system_->await_all_actors_done();
    {
      const std::lock_guard lock(hub_mutex_);
      hub_ = nullptr;
    }
    system_.reset();
  }

 private:
  static constexpr std::chrono::seconds publishing{5};

  // -------------------------------------------------------------------------------------- the thread

  /// The actor that is published. What comes before start() waits.
  caf::behavior begin(caf::event_based_actor* self) {
    hub_self_ = self;
    // As in caf_connection.cpp.
    self->set_exception_handler([](std::exception_ptr&) -> caf::error { std::terminate(); });
    self->set_default_handler(caf::skip);
    self->set_exit_handler([](const caf::exit_msg&) {});
    self->set_down_handler([this](const caf::down_msg& gone) {
      std::erase_if(listeners_,
                    [&](const auto& each) { return each.second.address() == gone.source; });
    });
    return {[this, self](caf::ok_atom) {
      thread_id_ = std::this_thread::get_id();
      self->set_default_handler(caf::drop);
      self->become([](const caf_task& task) { task.run(); },
                   [this](const caf_dial& from_there) { take_dial(from_there); });
    }};
  }

  // --------------------------------------------------------------------------------------- accepting

  void take_dial(const caf_dial& from_there) {
    if (!from_there.from || halted_) return;
    const auto who = claim_of(from_there.who);
    const auto refuse = [&](const error& why) {
      caf::anon_send(from_there.from, caf_refusal{from_there.key, why.message});
      user_.could_not_accept("a node or client over CAF", why);
    };
    if (from_there.version != caf_channel_version)
      return refuse({errc::mismatch,
                     fmt::format("it speaks version {} of the channel over CAF, expected {}; use "
                                 "the same release at both ends",
                                 from_there.version, caf_channel_version)});
    if (!who) return refuse(who.error());
    const bool joins = from_there.which == caf_dial_joins;
    const auto which = joins || from_there.which == 0 ? net::stream::fast : net::stream::bulk;
    const auto made = std::make_shared<caf_connection>(which, from_there.key, user_, joins);
    made->meet(*who, from_there.from);
    made->remote = fmt::format("{} {} over CAF", net::to_string(who->of), who->name);
    made->speaks(hub_self_->spawn<caf::linked>(caf_speaker, made, from_there.from));
    caf::anon_send(from_there.from, caf_welcome{from_there.key, own_uri(), made->self()});
    user_.accepted(made);
  }

  std::string own_uri() const { return net::uri_of(options_.identity->name()); }

  /// Who somebody says that it is. Error: no name of ours, or of another cluster.
  result<net::certificate_name> claim_of(const std::string& uri) const {
    auto who = net::parse_uri(uri);
    if (!who) return who.error();
    const auto& own = options_.identity->name().cluster;
    if (who->cluster != own)
      return error{errc::mismatch,
                   fmt::format("it says that it is of cluster {}, expected {}", who->cluster, own)};
    return who;
  }

  // ---------------------------------------------------------------------------------------- dialling

  void take_listener(const dial_attempt_ptr& now, const result<caf::actor>& found) {
    if (now->over || halted_) return;
    if (!found) return fail(now, found.error());
    hub_self_->monitor(*found);
    listeners_[now->place] = *found;
    greet(now, *found);
  }

  void greet(const dial_attempt_ptr& now, const caf::actor& listener) {
    const auto key = mix64(random_());
    const auto made = now->with = std::make_shared<caf_connection>(now->which, key, user_);
    const auto outcome = std::make_shared<caf_dial_outcome>();
    outcome->listener = listener;
    outcome->welcomed = [this, now](const caf_welcome& answer) { take_welcome(now, answer); };
    outcome->failed = [this, now](const error& why) { fail(now, why); };
    made->speaks(hub_self_->spawn<caf::linked>(caf_dialling_speaker, made, outcome));
    caf::anon_send(listener, caf_dial{caf_channel_version, key, own_uri(),
                                      options_.dials_for == net::dial_purpose::joining
                                          ? caf_dial_joins
                                          : static_cast<std::uint8_t>(now->which),
                                      made->self()});
  }

  void take_welcome(const dial_attempt_ptr& now, const caf_welcome& answer) {
    if (now->over) return;
    const auto who = claim_of(answer.who);
    if (!who) return fail(now, who.error());
    now->over = true;
    now->with->meet(*who, answer.from);
    now->done(connection_ptr(std::exchange(now->with, nullptr)));
  }

  void fail(const dial_attempt_ptr& now, const error& why) {
    if (std::exchange(now->over, true)) return;
    if (now->with) std::exchange(now->with, nullptr)->close();
    // Perhaps nobody is there any more.
    listeners_.erase(now->place);
    now->done(why);
  }

  net::connections_options options_;
  net::connections_user& user_;
  kept_files files_;
  channel_config config_;
  std::unique_ptr<caf::actor_system> system_;
  std::mutex hub_mutex_;
  caf::actor hub_;
  std::vector<std::uint16_t> ports_;
  std::shared_ptr<std::atomic<bool>> searches_go_on_ = std::make_shared<std::atomic<bool>>(true);
  // Of the channel's thread alone:
  caf::event_based_actor* hub_self_ = nullptr;
  std::map<std::string, caf::actor> listeners_;  ///< By address, of those that were found.
  std::mt19937_64 random_{std::random_device()()};
  bool halted_ = false;
};

}  // namespace

result<std::unique_ptr<net::connections>> caf_connections(net::connections_options options,
                                                          net::connections_user& user) {
  auto files = kept_files::of(options.identity->files());
  if (!files) return files.error();
  return std::unique_ptr<net::connections>(
      std::make_unique<all_caf_connections>(std::move(options), user, std::move(*files)));
}

}  // namespace ordermoe::actors
