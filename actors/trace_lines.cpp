#include "actors/trace_lines.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <nlohmann/json.hpp>

namespace ordermoe::actors {

std::string decision_line(const select_query& query, std::uint32_t server, std::uint64_t snapshot,
                          std::int64_t time_ns, const chunk_decision& choice) {
  std::string text;
  auto out = std::back_inserter(text);
  const auto n_experts = query.logits.size() / choice.rows.size();
  auto pool = query.pool;
  for (std::size_t i = 0; i < choice.rows.size(); ++i) {
    const auto& row = choice.rows[i];
    auto allowance = query.allowance[i];
    for (std::uint32_t j = 0; j < row.choice.n_slots; ++j) {
      const auto& slot = row.choice.slots[j];
      allowance -= slot.loss;
      pool -= slot.loss;
      if (!text.empty()) text += '\n';
      fmt::format_to(
          out,
          R"({{"type":"slot","request":{},"attempt":{},"first":{},"position":{},"layer":{},"slot":{},"access":{},"server":{},"residence":{},"target":{},"gate":{},"expert":{},"executor":{},"kind":"{}","loss":{},"allowance_left":{},"pool_left":{},"snapshot":{},"time_ns":{})",
          query.key.request, query.key.attempt, query.key.first, query.key.first + i, query.layer,
          j, query.access, server, choice.residence, row.targets[j], row.target_gates[j],
          slot.expert, slot.server, to_string(classify(server, row.targets[j], slot)), slot.loss,
          allowance, pool, snapshot, time_ns);
      if (j == 0) {
        const auto logits = std::span(query.logits).subspan(i * n_experts, n_experts);
        fmt::format_to(out, R"(,"logits":[{}])", fmt::join(logits, ","));
      }
      text += '}';
    }
  }
  return text;
}

std::string snapshot_line(std::uint32_t server, std::uint64_t snapshot, std::int64_t time_ns,
                          std::span<const std::int64_t> wait_ns) {
  return fmt::format(
      R"({{"type":"snapshot","server":{},"snapshot":{},"time_ns":{},"wait_ns":[{}]}})", server,
      snapshot, time_ns, fmt::join(wait_ns, ","));
}

std::string install_line(std::uint32_t server, std::uint64_t snapshot, const deployment& placed,
                         std::int64_t time_ns) {
  return fmt::format(
      R"({{"type":"install","server":{},"snapshot":{},"epoch":{},"weights":{},"time_ns":{}}})",
      server, snapshot, placed.plan.epoch, placed.weights, time_ns);
}

std::string plan_line(const deployment& placed, std::string_view reason, const weight_move& move,
                      std::int64_t time_ns) {
  using json = nlohmann::ordered_json;
  return fmt::format(
      R"({{"type":"plan","epoch":{},"weights":{},"reason":"{}","moved_bytes":{},"moved_ns":{},"time_ns":{},"profile":{},"plan":{}}})",
      placed.plan.epoch, placed.weights, reason, move.bytes, move.ns, time_ns,
      json::parse(planning::profile_json(*placed.experts)).dump(),
      json::parse(planning::plan_json(placed.plan)).dump());
}

std::string weights_line(const deployment& placed, const change_weights& change,
                         std::int64_t time_ns) {
  return fmt::format(
      R"({{"type":"weights","epoch":{},"weights":{},"kappa":{},"omega_time":{},"omega_quality":{},"time_ns":{},"requests":[{}]}})",
      placed.plan.epoch, placed.weights, change.kappa, change.weights.omega_time,
      change.weights.omega_quality, time_ns, fmt::join(change.requests, ","));
}

std::string token_line(const progress_report& report, std::uint32_t server, std::int64_t time_ns) {
  return fmt::format(
      R"({{"type":"token","request":{},"attempt":{},"position":{},"id":{},"server":{},"pool_left":{},"spent":{},"time_ns":{}}})",
      report.request, report.attempt, report.position, report.id, server, report.pool, report.spent,
      time_ns);
}

std::string request_line(const request_spec& spec, std::uint32_t access, loss_units budget,
                         std::int64_t time_ns) {
  return fmt::format(
      R"({{"type":"request","request":{},"access":{},"prompt_tokens":{},"max_new_tokens":{},"score":{},"stop_strings":{},"budget":{},"time_ns":{}}})",
      spec.number, access, prompt_tokens(spec), max_new_tokens(spec), spec.score,
      spec.stop_strings.size(), budget, time_ns);
}

std::string done_line(const request_outcome& outcome) {
  return fmt::format(
      R"({{"type":"done","request":{},"finish":"{}","tokens":{},"spent":{},"first_token_ns":{},"time_ns":{}}})",
      outcome.request, outcome.finish, outcome.token_ids.size(), outcome.spent,
      outcome.first_token_ns, outcome.done_ns);
}

std::string ledger_line(const link_ledger& ledger) {
  const auto& t = ledger.total;
  return fmt::format(
      R"({{"type":"link_ledger","from":{},"to":{},"messages":{},"hidden_bytes":{},"kv_bytes":{},"other_bytes":{},"serialised_bytes":{},"busy_ns":{}}})",
      ledger.from, ledger.to, t.messages, t.hidden_bytes, t.kv_bytes, t.other_bytes,
      t.serialised_bytes, t.busy_ns);
}

std::string ledger_line(const server_ledger& ledger) {
  return fmt::format(
      R"({{"type":"server_ledger","server":{},"batches":{},"rows":{},"flops":{},"bytes":{},"busy_ns":{},"kv_peak_bytes":{}}})",
      ledger.server, ledger.batches, ledger.rows, ledger.flops, ledger.bytes_read, ledger.busy_ns,
      ledger.kv_peak_bytes);
}

}  // namespace ordermoe::actors
