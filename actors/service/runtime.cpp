#include "actors/service/runtime.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "actors/context.hpp"
#include "actors/request.hpp"
#include "config/random.hpp"

namespace ordermoe::actors {

void draw_arrivals(std::vector<request_spec>& requests, const cluster& servers, double rate,
                   std::uint64_t seed) {
  random_stream draws(seed, 0x617272697665);
  double time_s = 0;
  for (auto& spec : requests) {
    if (rate > 0) {
      time_s += -std::log1p(-draws.unit()) / rate;
      constexpr double latest_ns = 4e18;  // Of which sums can still be made.
      spec.arrival_ns = static_cast<std::int64_t>(std::min(time_s * 1e9, latest_ns));
    }
    auto share = draws.unit();
    spec.access = 0;
    while (spec.access + 1 < servers.size() &&
           share >= servers.servers[spec.access].arrival_share) {
      share -= servers.servers[spec.access].arrival_share;
      ++spec.access;
    }
  }
}

namespace {

std::uint32_t positions_of(const request_spec& spec) {
  return prompt_tokens(spec) + max_new_tokens(spec);
}

/// What the run's own requests need of a service.
service_options options_of(const run_setup& setup) {
  service_options options = setup;
  options.promised_positions.assign(setup.servers.size(), 0);
  options.most_positions = 1;
  for (const auto& spec : setup.requests) {
    options.most_positions = std::max(options.most_positions, positions_of(spec));
    if (spec.access >= setup.servers.size()) continue;
    auto& promised = options.promised_positions[spec.access];
    promised = std::max<std::size_t>(promised, positions_of(spec));
  }
  return options;
}

/// Orders that came to nothing because the last request was answered before.
void note_orders_left(const run_setup& setup, std::int64_t time_ns, run_result& outcome) {
  const auto taken = std::ranges::count(outcome.plan_changes, "order", &plan_change::reason);
  for (auto i = static_cast<std::size_t>(taken); i < setup.replans.size(); ++i) {
    plan_change change;
    change.reason = "order";
    change.refused = "no request is left";
    change.epoch = outcome.plan_changes.empty() ? 1 : outcome.plan_changes.back().epoch;
    change.asked_ns = time_ns;
    outcome.plan_changes.push_back(std::move(change));
  }
}

result<void> collect(service& running, run_result& outcome) {
  auto status = running.status();
  if (!status) return status.error();
  for (const auto& link : status->links) outcome.links.push_back(link.ledger);
  for (const auto& server : status->servers) {
    outcome.servers.push_back(server.ledger);
    outcome.tensor_seconds += static_cast<double>(server.ledger.tensor_ns) * 1e-9;
    for (std::size_t i = 0; i < outcome.executions.size(); ++i)
      outcome.executions[i] += server.executions[i];
  }
  outcome.observed = std::move(status->observed);
  auto history = running.history();
  if (!history) return history.error();
  outcome.problems = std::move(history->problems);
  outcome.plan_changes = std::move(history->plan_changes);
  outcome.policy_changes = std::move(history->policy_changes);
  return {};
}

/// Submits, waits, and lets everything come to rest.
result<run_result> answer_all(const run_setup& setup, service& running) {
  run_result outcome;
  outcome.outcomes.resize(setup.requests.size());
  const auto on_end = [&](const request_outcome& ended) {
    outcome.outcomes[ended.request] = ended;
    if (setup.watcher.on_end) setup.watcher.on_end(ended);
  };
  for (const auto& spec : setup.requests) running.submit(spec, {setup.watcher.on_token, on_end});
  for (const auto& order : setup.replans) running.change_plan(order);
  const auto total = setup.requests.size();
  std::size_t told = 0;
  const auto done = running.run_until([&] { return running.outstanding() == 0; },
                                      [&] {
                                        const auto answered = total - running.outstanding();
                                        if (setup.on_progress && answered != told)
                                          setup.on_progress(told = answered, total);
                                        return setup.should_stop && setup.should_stop();
                                      });
  if (setup.should_stop && setup.should_stop()) {
    running.stop();  // Requests on other threads end into `outcome`.
    return error{errc::interrupted, "interrupted"};
  }
  if (!done)
    return error{errc::failed, fmt::format("{} of {} requests wait and nothing is left to happen",
                                           running.outstanding(), total)};
  if (setup.on_progress && told != total) setup.on_progress(total, total);
  for (const auto& each : outcome.outcomes)
    if (each.problem) return *each.problem;
  const auto ended_ns = running.now_ns();
  if (auto closed = setup.trace.empty() ? running.settle() : running.close_trace(); !closed)
    return closed.error();
  if (auto collected = collect(running, outcome); !collected) return collected.error();
  note_orders_left(setup, ended_ns, outcome);
  return outcome;
}

}  // namespace

result<void> check_prompts(const run_setup& setup, const std::vector<std::string>& places) {
  service_context context;
  context.model = setup.model;
  context.servers = setup.servers;
  context.most_positions = options_of(setup).most_positions;
  for (std::size_t i = 0; i < setup.requests.size(); ++i)
    if (auto fits = check_prompt(setup.requests[i], context); !fits)
      return at(i < places.size() ? places[i] : fmt::format("request {}", i), fits.error());
  return {};
}

result<run_result> run_requests(const run_setup& setup) {
  const auto begin = std::chrono::steady_clock::now();
  if (auto checked = check_prompts(setup); !checked) return checked.error();
  auto options = options_of(setup);
  if (!setup.trace.empty()) {
    auto opened = trace::sink::open(setup.trace);
    if (!opened) return opened.error();
    options.sink = std::move(*opened);
  }
  auto running = service::start(options);
  if (!running) return running.error();
  auto outcome = answer_all(setup, **running);
  (*running)->stop();
  if (!outcome) return outcome;
  if (options.sink)
    if (auto closed = options.sink->close(); !closed) return closed.error();
  outcome->host_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return outcome;
}

}  // namespace ordermoe::actors
