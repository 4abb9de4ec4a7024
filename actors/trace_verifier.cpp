#include "actors/trace_verifier.hpp"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "actors/runtime.hpp"

namespace ordermoe::actors::verification {

bool verifier::line(std::uint64_t number, std::string_view text) {
  number_ = number;
  const auto type = line_type(text);
  if (type == "slot") return on_slot(text);
  if (!slots_.empty()) return refuse("found a {} line, expected {}", type, next_slot());
  if (type == "transfer") return on_transfer(text);
  if (type == "batch") return on_batch(text);
  if (type == "snapshot") return on_snapshot(text);
  if (type == "install") return on_install(text);
  if (type == "weights") return on_weights(text);
  if (type == "plan") return on_plan(text);
  if (type == "kv") return on_kv(text);
  if (type == "token") return on_token(text);
  if (type == "request") return on_request(text);
  if (type == "done") return on_done(text);
  if (type == "link_ledger") return on_link_ledger(text);
  if (type == "server_ledger") return on_server_ledger(text);
  return refuse(
      "found a line of type '{}', expected request, snapshot, slot, batch, transfer, kv, token, "
      "done, install, weights, plan, link_ledger or server_ledger",
      type);
}

bool verifier::finish(std::uint64_t number) {
  number_ = number;
  if (!slots_.empty()) return refuse("found the end of the trace, expected {}", next_slot());
  const auto n_ledgers = n() * (n() - 1) + n();
  if (ledgers_ != n_ledgers)
    return refuse("found {} ledger lines before the end, expected {}", ledgers_, n_ledgers);
  return true;
}

void verifier::open(const std::string& text) {
  if (auto checked = check_header(text); !checked) {
    problem_ = checked.error();
    return;
  }
  auto parsed = parse_header(text, place_);
  if (!parsed) {
    problem_ = parsed.error();
    return;
  }
  header_ = std::move(*parsed);
  if (header_.experts.n_layers != header_.plan.n_layers ||
      header_.experts.n_experts != header_.plan.n_experts) {
    refuse("profile: found {} layers of {} experts, expected the plan's {} of {}",
           header_.experts.n_layers, header_.experts.n_experts, header_.plan.n_layers,
           header_.plan.n_experts);
    return;
  }
  auto context = std::make_shared<run_context>();
  context->servers = header_.servers;
  context->costs = header_.costs;
  context->prices = planning::make_cost_model(header_.servers, header_.costs);
  auto tables = planning::selection_tables::build(header_.experts, header_.plan, context->prices,
                                                  header_.policy, header_.token_budget);
  if (!tables) {
    problem_ = at(place_ + ":1", tables.error());
    return;
  }
  view_.run = context;
  header_.plan.epoch = 1;
  view_.placed = std::make_shared<const deployment>(
      deployment{header_.plan, planning::placement_index(header_.plan), std::move(*tables), 0,
                 std::make_shared<const planning::profile>(std::move(header_.experts))});
  links_.resize(n() * n());
  servers_.resize(n());
  for (auto& server : servers_) {
    server.placed = view_.placed;
    server.attend_found.resize(n_layers());
    server.attend_expected.resize(n_layers());
    server.expert_found.resize(n_layers() * n_experts());
    server.expert_expected.resize(n_layers() * n_experts());
  }
  for (std::size_t i = 0; i < links_.size(); ++i) {
    links_[i].ledger.from = static_cast<std::uint32_t>(i / n());
    links_[i].ledger.to = static_cast<std::uint32_t>(i % n());
  }
  grants_.resize(n() * n());
  members_.resize(n() * n());
  progress_bytes_ = size_of(progress_report{});
  reservation_bytes_ = size_of(reservation{});
  load_bytes_ = size_of(load_report{});
  kv_frame_bytes_ = size_of(kv_rows{});
  kv_block_bytes_ = size_of(kv_rows{0, {kv_block{}}}) - kv_frame_bytes_;
  summary.mode = header_.mode;
}

void verifier::only_keys_of(const nlohmann::json& written, const json_value& value) {
  for (const auto& key : value.keys())
    if (!written.contains(key)) value.at(key).refuse("a field of this name", "none");
}

result<void> verifier::check_header(const std::string& text) {
  auto parsed = json_document::parse(text, place_ + ":1");
  if (!parsed) return parsed.error();
  auto& document = **parsed;
  document.set_remedy("run again with --trace");
  const auto root = document.root();
  const auto written = nlohmann::json::parse(
      header_line(run_setup{}, cluster{}, strategy{}, model::gate_rule::renormalised));
  only_keys_of(written, root);
  only_keys_of(written.at("costs"), root.at("costs"));
  only_keys_of(written.at("policy"), root.at("policy"));
  root.at("type").one_of({"run"});
  root.at("version").integer(1, 1);
  root.at("program").string();
  root.at("mode").one_of({"emulated", "local"});
  root.at("quality_percent").number();
  root.at("token_budget").integer(0, planning::unbounded_budget);
  root.at("allowance_factor").number(0);
  root.at("continue_in_place").boolean();
  root.at("chunk_rows").integer(1, 1 << 20);
  summary.seed = root.at("seed").unsigned_integer();
  summary.strategy = root.at("strategy").string();
  n_requests_ = root.at("requests").unsigned_integer();
  const auto costs = root.at("costs");
  costs.at("hidden_bytes").integer(1, most_cost);
  costs.at("kv_row_bytes").integer(1, most_cost);
  for (const auto* name :
       {"expert_bytes", "expert_flops", "attention_bytes", "attention_flops",
        "attention_flops_per_context", "embedding_bytes", "head_bytes", "head_flops"})
    costs.at(name).integer(0, most_cost);
  const auto policy = root.at("policy");
  policy.at("candidates").integer(0, static_cast<int>(planning::candidate_rule::any));
  policy.at("metric").integer(0, planning::n_loss_metrics - 1);
  policy.at("residence").integer(0, 1);
  policy.at("condition").integer(0, 1);
  policy.at("gates").integer(0, 1);
  policy.at("horizon").integer(0, 1 << 16);
  policy.at("budget_bins").integer(1, 1 << 16);
  for (const auto* name : {"omega_time", "omega_quality", "reference_ns", "price_ns_per_loss"})
    policy.at(name).number(0);
  for (const auto* name :
       {"calibrated", "distinct", "price_attention", "price_waits", "price_follows_budget"})
    policy.at(name).boolean();
  return document.outcome();
}

frame_totals& verifier::expected(std::uint32_t from, std::uint32_t to, frame_kind kind) {
  return link(from, to).expected[index_of(kind)];
}

server_mask verifier::attention_members(const request_state& request, std::uint32_t layer) const {
  return header_.plan.residence[request.terms.access].layers[layer];
}

bool verifier::in_order(std::int64_t time_ns, std::int64_t& writer_ns) {
  if (time_ns < writer_ns)
    return refuse("time: found {} ns, expected at least {} ns, the line before by the same actor",
                  time_ns, writer_ns);
  writer_ns = time_ns;
  if (emulated() && time_ns < summary.duration_ns)
    return refuse("time: found {} ns, expected at least {} ns, that of the line before", time_ns,
                  summary.duration_ns);
  summary.duration_ns = std::max(summary.duration_ns, time_ns);
  if (ledgers_ > 0) return refuse("found an event, expected nothing but ledgers after a ledger");
  return true;
}

bool verifier::has_cause(std::uint32_t id, std::int64_t time_ns) {
  if (!emulated()) return true;
  auto& server = servers_[id];
  server.arrivals.erase(server.arrivals.begin(), server.arrivals.lower_bound(time_ns));
  return time_ns == server.request_ns || time_ns == server.told_ns ||
         time_ns == server.batch_end_ns || server.arrivals.contains(time_ns) ||
         refuse(
             "time: found {} ns, expected that of a request, an arrival, a batch's end or a load "
             "report at server {}",
             time_ns, id);
}

request_state* verifier::find_request(std::uint64_t number) {
  const auto found = requests_.find(number);
  if (found != requests_.end()) return &found->second;
  refuse("found request {}, which {}; expected one that is being answered", number,
         done_.contains(number) ? "is done" : "no request line announced");
  return nullptr;
}

}  // namespace ordermoe::actors::verification
