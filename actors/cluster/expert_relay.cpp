#include "actors/cluster/expert_relay.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace ordermoe::actors {

using net::peer_id;

expert_answer refusal_of(std::uint64_t ref, error why) {
  expert_answer answer;
  answer.ref = ref;
  answer.code = why.code;
  answer.problem = std::move(why.message);
  return answer;
}

std::size_t expert_relay::n_with(peer_id node) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      passed_on_, [&](const auto& each) { return each.second.node == node; }));
}

void expert_relay::pass_on(peer_id client, expert_ask ask,
                           const std::function<bool(peer_id node)>& has_it) {
  std::optional<peer_id> to;
  std::vector<std::string> hosts;
  for (peer_id node = 0; node < to_.names.size(); ++node) {
    if (!has_it(node)) continue;
    hosts.push_back(to_.names[node]);
    if (to_.is_up(node) && (!to || n_with(node) < n_with(*to))) to = node;
  }
  const auto ref = ask.ref;
  if (hosts.empty())
    return to_.answer(
        client, refusal_of(ref, {errc::unsupported,
                                 fmt::format("no server keeps expert {} of layer {} as the model "
                                             "has it; calibrate on a cluster whose plan does",
                                             ask.expert, ask.layer)}));
  if (to) {
    ask.ref = next_++;
    if (to_.ask(*to, ask)) {
      passed_on_[ask.ref] = {client, ref, *to};
      return;
    }
  }
  to_.answer(client, refusal_of(ref, {errc::io, fmt::format("expert {} of layer {} is on {}, not "
                                                            "connected with {}",
                                                            ask.expert, ask.layer,
                                                            fmt::join(hosts, ", "), to_.self)}));
}

void expert_relay::take(peer_id from, expert_answer answer) {
  const auto found = passed_on_.find(answer.ref);
  // Of a client that is gone, or of another node's ask.
  if (found == passed_on_.end() || found->second.node != from) return;
  answer.ref = found->second.ref;
  to_.answer(found->second.client, answer);
  passed_on_.erase(found);
}

void expert_relay::lose(peer_id node) {
  for (auto each = passed_on_.begin(); each != passed_on_.end();) {
    if (each->second.node != node) {
      ++each;
      continue;
    }
    to_.answer(each->second.client,
               refusal_of(each->second.ref, {errc::io, fmt::format("{} is not connected any more",
                                                                   to_.names[node])}));
    each = passed_on_.erase(each);
  }
}

void expert_relay::forget(peer_id client) {
  std::erase_if(passed_on_, [&](const auto& each) { return each.second.client == client; });
}

}  // namespace ordermoe::actors
