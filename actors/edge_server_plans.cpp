#include <algorithm>
#include <bit>
#include <utility>

#include "actors/compute.hpp"
#include "actors/edge_server_state.hpp"

/// Plans that come and go, and what they hold up: admission.
namespace ordermoe::actors {

void edge_server_state::attach(std::shared_ptr<const server_view> given) {
  view = std::move(given);
  live.clear();
  if (view->placed) live[epoch_of(*view)] = view;
}

const server_view* edge_server_state::find_view(std::uint64_t epoch) const {
  if (view->placed && epoch == epoch_of(*view)) return view.get();
  const auto found = live.find(epoch);
  return found == live.end() ? nullptr : found->second.get();
}

std::shared_ptr<const server_view> edge_server_state::view_of(std::uint64_t epoch) const {
  const auto found = live.find(epoch);
  return found == live.end() ? nullptr : found->second;
}

bool edge_server_state::names(const install_plans& message, std::uint64_t epoch) {
  return std::ranges::any_of(message.plans,
                             [&](const auto& each) { return each->plan.epoch == epoch; });
}

void edge_server_state::install(install_plans message) {
  planner = message.planner;
  // What waited let go of experts; what comes after it, for another policy or links, brings none.
  if (awaits_end && !message.model) message.model = std::move(awaits_end->model);
  awaits_end.reset();
  const bool something_is_under = std::ranges::any_of(memory.sequences(), [&](const auto& each) {
    const auto epoch = each.second.epoch;
    return epoch < message.begins_under && live.contains(epoch) && !names(message, epoch);
  });
  if (something_is_under)
    awaits_end = std::move(message);
  else
    go_by(message);
}

void edge_server_state::go_by(const install_plans& message) {
  let_go(message);
  for (const auto& content : message.plans) {
    const auto epoch = content->plan.epoch;
    const auto before = view_of(epoch);
    auto next = std::make_shared<server_view>(before ? *before : *view);
    next->placed = content;
    if (!before) host_experts(next);
    live[epoch] = next;
  }
  view = live.at(message.begins_under);
  self->send(view->compute, attach_view{view, message.model, message.lacks_under});
  self->send(view->selector, decide_by{view, message.plans});
  self->send(planner, plans_installed{message.number, id});
  told_ended = 0;
  check_ended();
}

void edge_server_state::let_go(const install_plans& message) {
  for (auto each = live.begin(); each != live.end();) {
    const auto& [epoch, gone] = *each;
    if (names(message, epoch)) {
      ++each;
      continue;
    }
    end_sequences_under(epoch);
    for (const auto& shard : gone->shards) end(shard);
    if (epoch < message.begins_under) latest_gone = remains_of(*gone);
    each = live.erase(each);
  }
}

std::shared_ptr<const server_view> edge_server_state::remains_of(const server_view& gone) {
  auto placed = std::make_shared<plan_in_force>(*gone.placed);
  placed->tables = nullptr;
  placed->profile = nullptr;
  auto rest = std::make_shared<server_view>(gone);
  rest->placed = std::move(placed);
  rest->shards.clear();
  return rest;
}

void edge_server_state::end_sequences_under(std::uint64_t epoch) {
  std::vector<std::uint64_t> under;
  for (const auto& [request, held] : memory.sequences())
    if (held.epoch == epoch) under.push_back(request);
  std::ranges::sort(under);
  for (const auto request : under) apply(memory.end(request));
}

void edge_server_state::host_experts(const std::shared_ptr<server_view>& next) {
  next->shards.assign(limits.n_layers, shard_actor{});
  for (std::uint32_t layer = 0; layer < limits.n_layers; ++layer)
    for (std::uint32_t expert = 0; expert < limits.n_experts; ++expert)
      if (next->placed->index.hosts(id, layer, expert)) {
        next->shards[layer] = spawn_shard(self->system(), next, layer);
        break;
      }
}

void edge_server_state::check_ended() {
  if (live.empty() || live.begin()->first >= epoch_of(*view) || told_ended == epoch_of(*view))
    return;
  const bool under_it = std::ranges::any_of(requests, [&](const auto& each) {
    const auto& own = each.second.view;
    return own && epoch_of(*own) < epoch_of(*view);
  });
  if (under_it) return;
  told_ended = epoch_of(*view);
  self->send(planner, requests_ended{told_ended, id});
}

void edge_server_state::stop_admitting(const hold_admission& message) {
  hold = message;
  if (admitting.is(admission::open)) admitting.move(admission::draining);
  check_drained();
}

void edge_server_state::check_drained() {
  if (!hold.planner || admitting.is(admission::open)) return;
  const bool in_flight = std::ranges::any_of(
      requests, [](const auto& each) { return each.second.status.phase != request_phase::held; });
  if (in_flight) return;
  admitting.move(admission::holding);
  self->send(std::exchange(hold.planner, nullptr), admission_held{hold.change, id});
}

void edge_server_state::resume() {
  hold = {};
  admitting.move(admission::open);
  admit_held();
}

void edge_server_state::admit_held() {
  if (!may_admit()) return;
  for (auto& [number, request] : requests)
    if (request.status.phase == request_phase::held) admit(request);
}

void edge_server_state::admit(owned_request& request) {
  if (const auto lost = members_of(*view, id) & away; lost != 0)
    return end_for_want_of(static_cast<std::uint32_t>(std::countr_zero(lost)), request);
  request.view = view;
  request.status.epoch = epoch_of(*view);
  request.status.phase = request_phase::reserving;
  self->send(request.handle, resume_request{view});
}

}  // namespace ordermoe::actors
