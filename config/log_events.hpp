#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "config/log.hpp"

/// Everything that a log can say. Who adds an event adds a line to each of the two lists here and to the table of
/// docs/OPERATING.md, which a test compares. Names are stable: scripts of operators look for them.
namespace ordermoe {

enum class log_event : std::uint8_t {
  node_ready,
  node_ends,
  session_up,
  session_resumed,
  session_cut,
  session_suspect,
  session_heard,
  session_down,
  session_refused,
  session_fault,
  connection_failed,
  client_came,
  client_left,
  client_refused,
  peer_ignored,
  request_cancelled,
  node_drained,
  node_resumed,
  policy_changed,
  policy_not_kept,
  counts_not_kept,
  counts_not_faded,
  plan_drifted,
  plan_proposed,
  plan_change_begins,
  plan_step,
  plan_admission_held,
  plan_changed,
  plan_before_gone,
  plan_change_aborted,
  plan_not_kept,
  plan_wanted,
  plan_fetched,
  plan_refused,
  experts_fetching,
  experts_fetched,
  expert_refused,
  token_created,
  token_revoked,
  token_refused,
  tokens_not_kept,
  members_changed,
  members_not_kept,
  identity_changed,
  identity_files_broken,
  identity_expires_soon,
  identity_revoked,
  log_level_changed,
  audit_ordered,
  audit_done,
  audit_would_be_done,
  audit_refused,
};

struct log_event_facts {
  log_event of;
  std::string_view name;
  log_level level;
  std::string_view fields;  ///< Names, with spaces between them, in order; some may be left out.
};

inline constexpr std::array log_events{
    log_event_facts{log_event::node_ready, "node.ready", log_level::info, "address boot"},
    log_event_facts{log_event::node_ends, "node.ends", log_level::info, ""},
    log_event_facts{log_event::session_up, "session.up", log_level::info, "peer"},
    log_event_facts{log_event::session_resumed, "session.resumed", log_level::info, "peer"},
    log_event_facts{log_event::session_cut, "session.cut", log_level::warning, "peer why"},
    log_event_facts{log_event::session_suspect, "session.suspect", log_level::warning, "peer"},
    log_event_facts{log_event::session_heard, "session.heard", log_level::info, "peer"},
    log_event_facts{log_event::session_down, "session.down", log_level::warning, "peer why"},
    log_event_facts{log_event::session_refused, "session.refused", log_level::warning, "peer why"},
    log_event_facts{log_event::session_fault, "session.fault", log_level::warning, "peer why"},
    log_event_facts{log_event::connection_failed, "connection.failed", log_level::warning,
                    "who why"},
    log_event_facts{log_event::client_came, "client.came", log_level::debug, "client role"},
    log_event_facts{log_event::client_left, "client.left", log_level::debug, "client requests"},
    log_event_facts{log_event::client_refused, "client.refused", log_level::warning, "client why"},
    log_event_facts{log_event::peer_ignored, "peer.ignored", log_level::warning, "peer why"},
    log_event_facts{log_event::request_cancelled, "request.cancelled", log_level::info,
                    "request operation"},
    log_event_facts{log_event::node_drained, "node.drained", log_level::info, "operation"},
    log_event_facts{log_event::node_resumed, "node.resumed", log_level::info, "operation"},
    log_event_facts{log_event::policy_changed, "policy.changed", log_level::info,
                    "operation version"},
    log_event_facts{log_event::policy_not_kept, "policy.not_kept", log_level::error, "why"},
    log_event_facts{log_event::counts_not_kept, "counts.not_kept", log_level::error, "why"},
    log_event_facts{log_event::counts_not_faded, "counts.not_faded", log_level::warning, "why"},
    log_event_facts{log_event::plan_drifted, "plan.drifted", log_level::warning,
                    "epoch cost_planned_ms cost_measured_ms"},
    log_event_facts{log_event::plan_proposed, "plan.proposed", log_level::info,
                    "proposal operation"},
    log_event_facts{log_event::plan_change_begins, "plan.change_begins", log_level::info, "leader"},
    log_event_facts{log_event::plan_step, "plan.step", log_level::debug, "step"},
    log_event_facts{log_event::plan_admission_held, "plan.admission_held", log_level::info, ""},
    log_event_facts{log_event::plan_changed, "plan.changed", log_level::info, "epoch"},
    log_event_facts{log_event::plan_before_gone, "plan.before_gone", log_level::info, "epoch"},
    log_event_facts{log_event::plan_change_aborted, "plan.change_aborted", log_level::warning,
                    "why"},
    log_event_facts{log_event::plan_not_kept, "plan.not_kept", log_level::error, "why"},
    log_event_facts{log_event::plan_wanted, "plan.wanted", log_level::info, "why"},
    log_event_facts{log_event::plan_fetched, "plan.fetched", log_level::info, "epoch bytes peer"},
    log_event_facts{log_event::plan_refused, "plan.refused", log_level::warning, "peer why"},
    log_event_facts{log_event::experts_fetching, "experts.fetching", log_level::info, "experts"},
    log_event_facts{log_event::experts_fetched, "experts.fetched", log_level::info,
                    "experts bytes"},
    log_event_facts{log_event::expert_refused, "expert.refused", log_level::warning, "peer why"},
    log_event_facts{log_event::token_created, "token.created", log_level::info,
                    "token role operation"},
    log_event_facts{log_event::token_revoked, "token.revoked", log_level::info, "token operation"},
    log_event_facts{log_event::token_refused, "token.refused", log_level::warning, "client why"},
    log_event_facts{log_event::tokens_not_kept, "tokens.not_kept", log_level::error, "why"},
    log_event_facts{log_event::members_changed, "members.changed", log_level::info,
                    "server member change by"},
    log_event_facts{log_event::members_not_kept, "members.not_kept", log_level::error, "why"},
    log_event_facts{log_event::identity_changed, "identity.changed", log_level::info,
                    "certificate revocations not_kept"},
    log_event_facts{log_event::identity_files_broken, "identity.files_broken", log_level::warning,
                    "why"},
    log_event_facts{log_event::identity_expires_soon, "identity.expires_soon", log_level::warning,
                    "serial not_after_s days_left expires_soon revoked revocations n_revoked"},
    log_event_facts{log_event::identity_revoked, "identity.revoked", log_level::error,
                    "serial not_after_s days_left expires_soon revoked revocations n_revoked"},
    log_event_facts{log_event::log_level_changed, "log.level_changed", log_level::info,
                    "least operation"},
    log_event_facts{log_event::audit_ordered, "audit.ordered", log_level::info,
                    "operation who role token text"},
    log_event_facts{log_event::audit_done, "audit.done", log_level::info,
                    "operation who role token text"},
    log_event_facts{log_event::audit_would_be_done, "audit.would_be_done", log_level::info,
                    "operation who role token text"},
    log_event_facts{log_event::audit_refused, "audit.refused", log_level::warning,
                    "operation who role token text"},
};

constexpr bool log_events_are_in_order() {
  for (std::size_t i = 0; i < log_events.size(); ++i)
    if (static_cast<std::size_t>(log_events[i].of) != i) return false;
  return true;
}
static_assert(log_events_are_in_order() &&
                  log_events.size() == static_cast<std::size_t>(log_event::audit_refused) + 1,
              "every event has its line, in order");

constexpr const log_event_facts& facts_of(log_event event) {
  return log_events[static_cast<std::size_t>(event)];
}

constexpr std::optional<log_event> find_log_event(std::string_view name) {
  for (const auto& each : log_events)
    if (each.name == name) return each.of;
  return std::nullopt;
}

}  // namespace ordermoe
