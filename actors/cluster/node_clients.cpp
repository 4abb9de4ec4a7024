#include "actors/cluster/node_clients.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "config/log_events.hpp"

namespace ordermoe::actors {

using net::peer_id;

node_clients::node_clients(std::uint32_t server, std::shared_ptr<const model::tokenizer> tokens,
                           std::size_t context, log_outlet log, speak say)
    : server_(server),
      tokens_(std::move(tokens)),
      context_(context),
      log_(std::move(log)),
      say_(std::move(say)) {}

void node_clients::came(peer_id id, const net::certificate_name& who) {
  log_.tell(log_event::client_came, {{"client", who.name}, {"role", net::to_string(who.of)}});
  const std::lock_guard lock(mutex_);
  clients_[id] = {who, {}};
}

void node_clients::log_refusal(peer_id from, const std::string& why) {
  std::string who;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = clients_.find(from); found != clients_.end())
      who = found->second.who.name;
  }
  log_.tell(log_event::client_refused, {{"client", who}, {"why", why}});
}

void node_clients::order(peer_id from, std::string text) {
  net::certificate_name who;
  {
    const std::lock_guard lock(mutex_);
    const auto found = clients_.find(from);
    if (found == clients_.end()) return;
    who = found->second.who;
  }
  service_->administer(who.name, net::to_string(who.of), std::move(text),
                       [say = say_, from](std::string reply) {
                         say(from, control_kind::reply, reply_that_fits(std::move(reply)));
                       });
}

void node_clients::refuse(peer_id from, std::uint64_t ref, error why) {
  request_outcome outcome;
  outcome.request = ref;
  outcome.access = server_;
  outcome.finish = "failed";
  outcome.problem = std::move(why);
  say_(from, control_kind::ended, ended_text(outcome));
}

void node_clients::submit(peer_id from, remote_request wanted) {
  const auto ref = wanted.ref;
  std::unique_lock lock(mutex_);
  // Nobody but this thread takes clients in or out.
  const auto found = clients_.find(from);
  if (found == clients_.end()) return;
  if (found->second.who.of == net::role::viewer)
    return refuse(from, ref,
                  {errc::usage,
                   "a viewer's certificate asks for no answers; use one of an "
                   "operator or admin"});
  if (found->second.requests.contains(ref))
    return refuse(from, ref, {errc::usage, fmt::format("ref {} is being answered", ref)});
  if (found->second.requests.size() >= most_requests)
    return refuse(from, ref,
                  {errc::out_of_range,
                   fmt::format("{} requests of this client are being answered, which is the most; "
                               "wait until one ends",
                               most_requests)});
  auto& spec = wanted.spec;
  spec.access = server_;
  if (spec.prompt.empty() && !wanted.text.empty()) {
    lock.unlock();
    auto ids = encoded(wanted.text);
    if (!ids) return refuse(from, ref, ids.error());
    spec.prompt = std::move(*ids);
    lock.lock();
  }
  auto sink = sink_of(from, ref, wanted.tells_tokens);
  if (!wanted.tells_tokens) sink.on_token = {};
  found->second.requests[ref] = service_->submit(std::move(spec), std::move(sink));
}

result<std::vector<std::int32_t>> node_clients::encoded(const std::string& text) const {
  if (!tokens_) return error{errc::unsupported, "this node has no tokenizer; send ids"};
  // No text of a language has as many bytes a token; one of them alone may have.
  constexpr std::size_t bytes_a_token = 64, at_least = 64u << 10;
  const auto most = std::max(at_least, bytes_a_token * context_);
  if (text.size() <= most) return tokens_->encode(text);
  return error{
      errc::out_of_range,
      fmt::format("the prompt has {} bytes of text, expected at most {}, as the model's context "
                  "is {} tokens; shorten it",
                  text.size(), most, context_)};
}

answer_sink node_clients::sink_of(peer_id from, std::uint64_t ref, bool tells_tokens) {
  return {[this, from, ref](const answer_token& token) {
            if (is_hushed_) return;
            auto told = token;
            told.request = ref;
            say_(from, control_kind::token, token_text(told));
          },
          [this, from, ref, tells_tokens](const request_outcome& outcome) {
            forget(from, ref);
            if (is_hushed_) return;
            auto told = outcome;
            told.request = ref;
            say_(from, control_kind::ended, ended_text(told, tells_tokens));
          }};
}

/// Before the client hears of its end: it may ask under this number again.
void node_clients::forget(peer_id from, std::uint64_t ref) {
  const std::lock_guard lock(mutex_);
  if (const auto found = clients_.find(from); found != clients_.end())
    found->second.requests.erase(ref);
}

void node_clients::cancel(peer_id from, std::uint64_t ref) {
  const std::lock_guard lock(mutex_);
  const auto found = clients_.find(from);
  if (found == clients_.end()) return;
  if (const auto request = found->second.requests.find(ref);
      request != found->second.requests.end())
    service_->cancel(request->second);
}

void node_clients::gone(peer_id from) {
  const std::lock_guard lock(mutex_);
  const auto found = clients_.find(from);
  if (found == clients_.end()) return;
  for (const auto& [ref, request] : found->second.requests) service_->cancel(request);
  log_.tell(log_event::client_left,
            {{"client", found->second.who.name}, {"requests", found->second.requests.size()}});
  clients_.erase(found);
}

bool node_clients::may_ask(peer_id from) {
  const std::lock_guard lock(mutex_);
  const auto found = clients_.find(from);
  return found != clients_.end() && found->second.who.of != net::role::viewer;
}

}  // namespace ordermoe::actors
