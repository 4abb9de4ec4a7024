#include "trace/lines.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <nlohmann/json.hpp>

#include "trace/fields.hpp"
#include "trace/header.hpp"

namespace ordermoe::trace {

using json = nlohmann::ordered_json;

std::string decision_line(const decided_rows& rows, std::uint32_t server, std::uint64_t snapshot,
                          std::int64_t time_ns, const serving::chunk_decision& choice) {
  std::string text;
  auto out = std::back_inserter(text);
  const auto n_experts = rows.logits.size() / choice.rows.size();
  auto pool = rows.pool;
  for (std::size_t i = 0; i < choice.rows.size(); ++i) {
    const auto& row = choice.rows[i];
    auto allowance = rows.allowance[i];
    for (std::uint32_t j = 0; j < row.choice.n_slots; ++j) {
      const auto& slot = row.choice.slots[j];
      const auto kind = serving::classify(server, row.targets[j], slot);
      const auto expert = slot.expert == planning::left_out ? row.targets[j] : slot.expert;
      allowance -= slot.loss;
      pool -= slot.loss;
      if (!text.empty()) text += '\n';
      fmt::format_to(
          out,
          R"({{"type":"slot","request":{},"attempt":{},"first":{},"position":{},"layer":{},"slot":{},"access":{},"server":{},"residence":{},"target":{},"gate":{},"expert":{},"executor":{},"kind":"{}","loss":{},"allowance_left":{},"pool_left":{},"snapshot":{},"time_ns":{})",
          rows.key.request, rows.key.attempt, rows.key.first, rows.key.first + i, rows.layer, j,
          rows.access, server, choice.residence, row.targets[j], row.target_gates[j], expert,
          slot.server, to_string(kind), slot.loss, allowance, pool, snapshot, time_ns);
      if (j == 0) {
        const auto logits = rows.logits.subspan(i * n_experts, n_experts);
        fmt::format_to(out, R"(,"logits":[{}])", fmt::join(logits, ","));
      }
      text += '}';
    }
  }
  return text;
}

std::string first_snapshot_line(std::uint32_t server, std::int64_t time_ns) {
  return fmt::format(R"({{"type":"begin","server":{},"snapshot":1,"time_ns":{}}})", server,
                     time_ns);
}

std::string snapshot_line(std::uint32_t server, std::uint64_t snapshot, std::int64_t time_ns,
                          const wire::load_report& report) {
  return fmt::format(
      R"({{"type":"snapshot","server":{},"snapshot":{},"reporter":{},"number":{},"wait_ns":{},"link_wait_ns":[{}],"time_ns":{}}})",
      server, snapshot, report.server, report.number, report.wait_ns,
      fmt::join(report.link_wait_ns, ","), time_ns);
}

std::string install_line(std::uint32_t server, std::uint64_t snapshot, const tables_id& tables,
                         std::int64_t time_ns) {
  return fmt::format(
      R"({{"type":"install","server":{},"snapshot":{},"epoch":{},"policy":{},"time_ns":{}}})",
      server, snapshot, tables.epoch, tables.policy, time_ns);
}

std::string links_line(std::uint32_t server, std::uint64_t snapshot,
                       std::span<const link_spec> links, std::int64_t time_ns) {
  std::vector<std::int64_t> latencies;
  std::vector<double> rates;
  for (const auto& link : links) {
    latencies.push_back(link.latency_ns);
    rates.push_back(link.bandwidth_bytes_per_s);
  }
  return fmt::format(
      R"({{"type":"links","server":{},"snapshot":{},"latency_ns":[{}],"bytes_per_s":[{}],"time_ns":{}}})",
      server, snapshot, fmt::join(latencies, ","), fmt::join(rates, ","), time_ns);
}

std::string plan_line(const tables_id& tables, const planning::plan& placed,
                      const planning::profile& profile, std::string_view reason,
                      const planning::weight_move& move, std::int64_t time_ns) {
  return fmt::format(
      R"({{"type":"plan","epoch":{},"policy":{},"reason":"{}","moved_bytes":{},"moved_ns":{},"time_ns":{},"profile":{},"plan":{}}})",
      tables.epoch, tables.policy, reason, move.bytes, move.ns, time_ns,
      json::parse(planning::profile_json(profile)).dump(),
      json::parse(planning::plan_json(placed)).dump());
}

std::string weights_line(const tables_id& tables, double kappa,
                         const planning::selection_weights& weights,
                         std::span<const std::uint64_t> requests, std::int64_t time_ns) {
  return fmt::format(
      R"({{"type":"weights","epoch":{},"policy":{},"kappa":{},"omega_time":{},"omega_quality":{},"time_ns":{},"requests":[{}]}})",
      tables.epoch, tables.policy, kappa, weights.omega_time, weights.omega_quality, time_ns,
      fmt::join(requests, ","));
}

std::string policy_line(const tables_id& tables, const planning::selection_policy& policy,
                        std::int64_t time_ns) {
  return fmt::format(R"({{"type":"policy","epoch":{},"policy":{},"time_ns":{},"content":{}}})",
                     tables.epoch, tables.policy, time_ns, policy_json(policy));
}

std::string request_line(const begun_request& request, std::int64_t time_ns) {
  std::string travels;
  if (const auto& rules = request.sampling)
    travels = fmt::format(R"("biases":{},"counts_answered":{},"logprobs":{},)", rules->biases,
                          rules->counts_answered, rules->logprobs);
  if (request.tells_executions) travels += R"("tells_executions":true,)";
  return fmt::format(
      R"({{"type":"request","request":{},"access":{},"prompt_tokens":{},"max_new_tokens":{},"score":{},"stop_strings":{},{}"budget":{},{}"epoch":{},"time_ns":{}}})",
      request.request, request.access, request.prompt_tokens, request.max_new_tokens, request.score,
      request.stop_strings, travels, request.budget,
      request.token_budget ? fmt::format(R"("token_budget":{},)", *request.token_budget)
                           : std::string(),
      request.epoch, time_ns);
}

void read_travelling(line_fields& fields, begun_request& request) {
  if (fields.has("biases")) {
    auto& rules = request.sampling.emplace();
    rules.biases = fields.integer<std::uint32_t>("biases", 0, wire::most_biases);
    rules.counts_answered = fields.boolean("counts_answered");
    rules.logprobs = fields.integer<std::uint32_t>("logprobs", 0, wire::most_logprobs);
  }
  if (fields.has("tells_executions")) request.tells_executions = fields.boolean("tells_executions");
}

std::string token_line(const wire::progress_report& report, std::uint32_t server,
                       std::int64_t time_ns) {
  return fmt::format(
      R"({{"type":"token","request":{},"attempt":{},"position":{},"id":{},"server":{},"pool_left":{},"spent":{},"time_ns":{}}})",
      report.request, report.attempt, report.position, report.id, server, report.pool, report.spent,
      time_ns);
}

std::string done_line(const ended_request& request) {
  return fmt::format(
      R"({{"type":"done","request":{},"finish":"{}","tokens":{},"spent":{},"first_token_ns":{},"time_ns":{}}})",
      request.request, request.finish, request.tokens, request.spent, request.first_token_ns,
      request.done_ns);
}

std::string memory_line(std::uint32_t server, std::uint64_t request, std::int64_t change_bytes,
                        std::int64_t reserved_bytes, std::int64_t time_ns) {
  return fmt::format(
      R"({{"type":"kv","server":{},"request":{},"change_bytes":{},"reserved_bytes":{},"time_ns":{}}})",
      server, request, change_bytes, reserved_bytes, time_ns);
}

std::string batch_line(const ended_batch& batch) {
  return fmt::format(
      R"({{"type":"batch","server":{},"work":"{}","layer":{},"expert":{},"rows":{},"flops":{},"bytes":{},"start_ns":{},"end_ns":{}}})",
      batch.server, batch.work, batch.layer, batch.expert, batch.rows, batch.flops, batch.bytes,
      batch.start_ns, batch.end_ns);
}

std::string transfer_line(const sent_frame& frame) {
  return fmt::format(
      R"({{"type":"transfer","from":{},"to":{},"frame":"{}","hidden_bytes":{},"kv_bytes":{},"other_bytes":{},{}"serialised_bytes":{},"sent_ns":{},"start_ns":{},"end_ns":{},"arrival_ns":{}}})",
      frame.from, frame.to, to_string(frame.kind), frame.hidden_bytes, frame.kv_bytes,
      frame.other_bytes,
      frame.uncharged_bytes > 0 ? fmt::format(R"("uncharged_bytes":{},)", frame.uncharged_bytes)
                                : "",
      frame.serialised_bytes, frame.sent_ns, frame.start_ns, frame.end_ns, frame.arrival_ns);
}

std::string part_line(std::uint32_t from, std::uint32_t to, std::int64_t bytes,
                      std::int64_t sent_ns, std::int64_t start_ns, std::int64_t end_ns) {
  return fmt::format(
      R"({{"type":"part","from":{},"to":{},"bytes":{},"sent_ns":{},"start_ns":{},"end_ns":{}}})",
      from, to, bytes, sent_ns, start_ns, end_ns);
}

std::string lost_line(std::uint32_t from, std::uint32_t to, wire::frame_kind kind,
                      std::int64_t time_ns) {
  return fmt::format(R"({{"type":"lost","from":{},"to":{},"frame":"{}","time_ns":{}}})", from, to,
                     to_string(kind), time_ns);
}

std::string parted_line(std::uint32_t server, std::uint32_t peer, std::int64_t time_ns) {
  return fmt::format(R"({{"type":"parted","server":{},"peer":{},"time_ns":{}}})", server, peer,
                     time_ns);
}

std::string closing_line(std::uint64_t requests) {
  return fmt::format(R"({{"type":"answered","requests":{}}})", requests);
}

std::string ledger_line(const serving::link_ledger& ledger) {
  const auto& t = ledger.total;
  return fmt::format(
      R"({{"type":"link_ledger","from":{},"to":{},"messages":{},"hidden_bytes":{},"kv_bytes":{},"other_bytes":{},"serialised_bytes":{},"busy_ns":{}}})",
      ledger.from, ledger.to, t.messages, t.hidden_bytes, t.kv_bytes, t.other_bytes,
      t.serialised_bytes, t.busy_ns);
}

std::string ledger_line(const serving::server_ledger& ledger) {
  return fmt::format(
      R"({{"type":"server_ledger","server":{},"batches":{},"rows":{},"flops":{},"bytes":{},"busy_ns":{},"kv_peak_bytes":{}}})",
      ledger.server, ledger.batches, ledger.rows, ledger.flops, ledger.bytes_read, ledger.busy_ns,
      ledger.kv_peak_bytes);
}

}  // namespace ordermoe::trace
