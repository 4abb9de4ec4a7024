#include "gateway/order_desk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "config/files.hpp"
#include "config/sha256.hpp"
#include "gateway/keys.hpp"
#include "gateway/openai/fields.hpp"
#include "gateway/openai/json_text.hpp"

namespace ordermoe::gateway {

using nlohmann::ordered_json;
using namespace std::chrono_literals;

namespace {

struct offered_verb {
  std::string_view name;
  std::chrono::seconds longest;
};

/// What the page needs. A change waits for requests to end, an hour at most, and for weights.
constexpr offered_verb offered[] = {
    {"members", 15s},      {"plan.show", 15s},  {"plan.propose", 10min}, {"plan.diff", 15s},
    {"plan.apply", 80min}, {"plan.abort", 15s}, {"drain", 15s},          {"resume", 15s}};
constexpr auto tick_time = 50ms;
constexpr std::string_view orders_path = "/admin/orders/";

const offered_verb* find_verb(const std::string& name) {
  const auto found = std::ranges::find(offered, name, &offered_verb::name);
  return found == std::end(offered) ? nullptr : found;
}

std::string names_of_verbs() {
  std::string text;
  for (const auto& each : offered) text += fmt::format("{}{}", text.empty() ? "" : ", ", each.name);
  return text;
}

net::http_fields json_fields() {
  return {{"Content-Type", "application/json"}, {"Cache-Control", "no-store"}};
}

api_problem too_many(std::string message) {
  return {.status = 429,
          .message = std::move(message),
          .type = "rate_limit_error",
          .code = "rate_limit_exceeded",
          .retry_after_s = 1};
}

api_problem no_token() {
  return {.status = 401,
          .message =
              "You didn't provide an admin token. Provide one of `ordermoe admin token create` "
              "in an Authorization header (Authorization: Bearer TOKEN).",
          .code = ""};
}

/// As HTTP says what a node's admin says.
api_problem problem_of_reply(const nlohmann::ordered_json& problem) {
  const error why{static_cast<errc>(problem.at("code").get<int>()),
                  problem.at("message").get<std::string>()};
  auto made = problem_of(why);
  // Whatever a node says, it does not end the gateway.
  const auto said = problem.find("lacks");
  const auto lacks =
      said != problem.end() && said->is_string() ? said->get<std::string>() : std::string();
  if (lacks == "token") {
    made.status = 401;
    made.code = "invalid_token";
  } else if (lacks == "role") {
    made.status = 403;
    made.code = "insufficient_role";
  } else if (why.code == errc::not_found) {
    made.status = 404;
    made.code = "not_found";
  } else if (why.code == errc::mismatch || why.code == errc::failed ||
             why.code == errc::infeasible) {
    made.status = 409;
    made.code = "conflict";
  }
  if (made.status < 500) made.type = "invalid_request_error";
  return made;
}

void respond(net::http_exchange& to, const api_problem& what) {
  auto fields = json_fields();
  if (what.retry_after_s) fields.emplace_back("Retry-After", std::to_string(*what.retry_after_s));
  if (what.status == 401) fields.emplace_back("WWW-Authenticate", "Bearer");
  to.respond(what.status, fields, problem_json(what));
}

}  // namespace

struct order_desk::wish {
  std::string node;
  actors::bearer_order order;
  std::string digest;
  std::chrono::seconds longest{0};
};

order_desk::order_desk(backend& behind, const order_times& times)
    : behind_(behind), times_(times), random_(std::random_device()()) {
  clock_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ends_ || is_busy_; });
      if (changed_.wait_for(lock, tick_time, [this] { return ends_; })) return;
      lock.unlock();
      server_->post([this] { tick(); });
      lock.lock();
    }
  });
}

order_desk::~order_desk() {
  stop();
}

void order_desk::stop() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  if (clock_.joinable()) clock_.join();
}

// ------------------------------------------------------------------------------------------ orders that come

void order_desk::take(const exchange& from) {
  wish made;
  if (const auto why = read(from->request(), made)) return respond(*from, *why);
  if (const auto why = admit(made, from->request().peer)) return respond(*from, *why);
  begin(from, std::move(made));
}

std::optional<api_problem> order_desk::read(const net::http_request& from, wish& into) const {
  if (!behind_.takes_orders() && !behind_.is_ready())
    return api_problem{.status = 503,
                       .message = behind_.why_not_ready(),
                       .type = "server_error",
                       .code = "not_ready",
                       .retry_after_s = 1};
  if (!behind_.takes_orders())
    return api_problem{.status = 404,
                       .message =
                           "there is nothing to administer here: all servers are in this "
                           "process, and have no admin; `ordermoe cluster up` starts a "
                           "cluster that has",
                       .code = "nothing_to_administer"};
  into.order.token = bearer_of(from.field("authorization"));
  if (into.order.token.empty()) return no_token();
  into.digest = sha256_hex(into.order.token);
  if (from.body.size() > most_body_bytes)
    return api_problem{.status = 413,
                       .message = fmt::format("found an order of {} bytes, expected {} at most",
                                              from.body.size(), most_body_bytes)};
  std::optional<api_problem> problem;
  const auto body = parse_body(from.body, problem);
  if (problem) return problem;
  const fields read(body, "", problem);
  read.only({"verb", "arguments", "node", "dry_run"});
  into.order.verb = read.string("verb", "");
  into.order.dry_run = read.boolean("dry_run", false);
  into.node = read.string("node", "");
  const auto* arguments = read.find("arguments");
  if (arguments != nullptr && !arguments->is_object())
    read.refuse("arguments", fmt::format("Invalid type for 'arguments': expected an object, found "
                                         "{}.",
                                         kind_of(*arguments)));
  const auto* verb = find_verb(into.order.verb);
  if (verb == nullptr)
    read.refuse("verb",
                fmt::format("Invalid value for 'verb': found '{}', expected one of {}; the others "
                            "are those of `ordermoe admin`.",
                            into.order.verb.substr(0, 64), names_of_verbs()),
                "invalid_value");
  if (problem) return problem;
  if (arguments != nullptr) into.order.arguments = json_text(*arguments);
  into.longest = verb->longest;
  return std::nullopt;
}

std::optional<api_problem> order_desk::admit(const wish& of, const std::string& peer) {
  if (n_running_ >= most_running)
    return too_many(fmt::format("{} orders are under way already; try again later", n_running_));
  if (std::ranges::find(known_, of.digest) != known_.end()) return std::nullopt;
  if (n_strangers_ >= most_strangers || has_begun_enough(peer))
    return too_many(
        "too many orders came with tokens that are not known here; try again in a second");
  return std::nullopt;
}

/// Whether this address begins too many in this second; counts it where it does not.
bool order_desk::has_begun_enough(const std::string& peer) {
  const auto now = clock::now();
  if (now - second_ >= 1s) {
    strangers_.clear();
    second_ = now;
  }
  if (strangers_.size() >= most_strange_addresses && !strangers_.contains(peer)) return true;
  auto& begun = strangers_[peer];
  if (begun >= most_strangers_a_second) return true;
  ++begun;
  return false;
}

std::string order_desk::new_id() {
  return fmt::format("order-{:016x}{:08x}", random_(), static_cast<std::uint32_t>(random_()));
}

void order_desk::begin(const exchange& from, wish of) {
  const auto id = new_id();
  auto& made = orders_[id];
  made.digest = of.digest;
  made.verb = of.order.verb;
  made.is_stranger = std::ranges::find(known_, of.digest) == known_.end();
  made.began = clock::now();
  made.until = made.began + of.longest.count() * times_.second;
  ++n_running_;
  if (made.is_stranger) ++n_strangers_;
  set_busy();
  // Its reply comes behind what this function does: both are done on the server's thread.
  made.node = behind_.order(of.node, of.order,
                            [this, id, server = server_](const result<std::string>& reply) {
                              server->post([this, id, reply] { end(id, reply); });
                            });
  wait(from, id, made);
}

void order_desk::look(const exchange& from) {
  const auto& request = from->request();
  const auto token = bearer_of(request.field("authorization"));
  if (token.empty()) return respond(*from, no_token());
  const std::string_view path = request.path;
  const auto found = orders_.find(std::string(path.substr(orders_path.size())));
  // Of somebody else's order nothing is said, not even that it is there.
  if (found == orders_.end() || !same_digest(found->second.digest, sha256_hex(token)))
    return respond(*from, {.status = 404,
                           .message = "there is no such order of this token, or it ended long ago",
                           .code = "not_found"});
  wait(from, found->first, found->second);
}

void order_desk::wait(const exchange& from, const std::string& id, order& of) {
  if (of.told) return from->respond(of.told->status, of.told->fields, of.told->body);
  if (of.lookers.size() >= most_lookers) return say_running(*from, id, of);
  of.lookers.push_back({from, clock::now() + times_.hold});
}

void order_desk::say_running(net::http_exchange& to, const std::string& id, const order& of) {
  const auto seconds = std::chrono::duration<double>(clock::now() - of.began).count();
  auto fields = json_fields();
  fields.emplace_back("Location", std::string(orders_path) + id);
  to.respond(202, fields,
             json_text(ordered_json{{"order", id},
                                    {"state", "running"},
                                    {"verb", of.verb},
                                    {"node", of.node},
                                    {"seconds", seconds}}));
}

// ------------------------------------------------------------------------------------------ how they end

void order_desk::end(const std::string& id, const result<std::string>& reply) {
  const auto found = orders_.find(id);
  if (found == orders_.end() || found->second.told) return;
  settle(id, found->second, answer_of(id, found->second, reply));
}

order_desk::answer order_desk::answer_of(const std::string& id, const order& of,
                                         const result<std::string>& reply) {
  answer made;
  made.fields = json_fields();
  const auto refuse = [&](const api_problem& why) {
    made.status = why.status;
    if (why.retry_after_s)
      made.fields.emplace_back("Retry-After", std::to_string(*why.retry_after_s));
    if (why.status == 401) made.fields.emplace_back("WWW-Authenticate", "Bearer");
    made.body = problem_json(why);
  };
  if (!reply) {
    refuse(problem_of(reply.error()));
    return made;
  }
  auto told = ordered_json::parse(*reply, nullptr, false);
  if (told.contains("bearer")) remember(of.digest);
  if (const auto problem = told.find("problem"); problem != told.end()) {
    const auto why = problem_of_reply(*problem);
    if (why.status == 401) std::erase(known_, of.digest);
    refuse(why);
    return made;
  }
  ordered_json full{{"order", id}, {"state", "done"}, {"verb", of.verb}, {"node", of.node}};
  full.update(told);
  made.body = json_text(full);
  return made;
}

void order_desk::settle(const std::string& id, order& of, answer told) {
  of.told = std::move(told);
  --n_running_;
  if (of.is_stranger) --n_strangers_;
  for (const auto& each : std::exchange(of.lookers, {}))
    each.from->respond(of.told->status, of.told->fields, of.told->body);
  // By its end a token is known, or not any more.
  const bool is_known = std::ranges::find(known_, of.digest) != known_.end();
  if (is_known)
    keep(id, ended_, most_kept);
  else
    keep(id, ended_of_strangers_, most_kept_of_strangers);
  set_busy();
}

void order_desk::remember(const std::string& digest) {
  std::erase(known_, digest);
  if (known_.size() >= most_known) known_.erase(known_.begin());
  known_.push_back(digest);
}

void order_desk::keep(const std::string& id, std::vector<std::string>& among, std::size_t most) {
  among.push_back(id);
  if (among.size() <= most) return;
  orders_.erase(among.front());
  among.erase(among.begin());
}

void order_desk::set_busy() {
  const std::lock_guard lock(mutex_);
  is_busy_ = n_running_ > 0;
  changed_.notify_all();
}

void order_desk::tick() {
  const auto now = clock::now();
  std::vector<std::string> late;
  std::vector<std::pair<std::string, exchange>> held;
  for (auto& [id, each] : orders_) {
    if (each.told) continue;
    if (now >= each.until) late.push_back(id);
    std::erase_if(each.lookers, [&](const looker& waits) {
      if (now < waits.until) return false;
      held.emplace_back(id, waits.from);
      return true;
    });
  }
  // Whoever is answered may ask for the next thing at once.
  for (const auto& [id, from] : held) say_running(*from, id, orders_.at(id));
  for (const auto& id : late)
    end(id,
        error{errc::timed_out,
              fmt::format("{} did not answer {} in time; `ordermoe admin audit` has what came of "
                          "it",
                          orders_.at(id).node, orders_.at(id).verb)});
}

}  // namespace ordermoe::gateway
