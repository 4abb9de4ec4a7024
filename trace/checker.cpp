#include "trace/checker.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "config/devices.hpp"

namespace ordermoe::trace {

bool verifier::line(std::uint64_t number, std::string_view text) {
  number_ = number;
  const auto type = line_type(text);
  if (type == "slot") return on_slot(text);
  if (!slots_.empty()) return refuse("found a {} line, expected {}", type, next_slot());
  if (type == "transfer") return on_transfer(text);
  if (type == "part") return on_part(text);
  if (type == "lost") return on_lost(text);
  if (type == "parted") return on_parted(text);
  if (type == "batch") return on_batch(text);
  if (type == "begin") return on_begin(text);
  if (type == "snapshot") return on_snapshot(text);
  if (type == "install") return on_install(text);
  if (type == "links") return on_links(text);
  if (type == "weights") return on_weights(text);
  if (type == "policy") return on_policy(text);
  if (type == "plan") return on_plan(text);
  if (type == "kv") return on_kv(text);
  if (type == "token") return on_token(text);
  if (type == "request") return on_request(text);
  if (type == "done") return on_done(text);
  if (type == "answered") return on_answered(text);
  if (type == "link_ledger") return on_link_ledger(text);
  if (type == "server_ledger") return on_server_ledger(text);
  return refuse(
      "found a line of type '{}', expected request, begin, snapshot, slot, batch, transfer, part, "
      "lost, parted, kv, token, done, install, links, weights, policy, plan, answered, link_ledger "
      "or "
      "server_ledger",
      type);
}

bool verifier::finish(std::uint64_t number) {
  number_ = number;
  if (!slots_.empty()) return refuse("found the end of the trace, expected {}", next_slot());
  const auto n_ledgers = n() * (n() - 1) + n();
  if (!closing_) return refuse("found the end of the trace, expected the number of requests first");
  if (ledgers_ != n_ledgers)
    return refuse("found {} ledger lines before the end, expected {}", ledgers_, n_ledgers);
  return true;
}

void verifier::open(const std::string& text) {
  auto parsed = parse_header(text, place_);
  if (!parsed) {
    problem_ = parsed.error();
    return;
  }
  header_ = std::move(*parsed);
  header_top_k_ = header_.profile.top_k;
  if (header_.profile.n_layers != header_.plan.n_layers ||
      header_.profile.n_experts != header_.plan.n_experts) {
    refuse("profile: found {} layers of {} experts, expected the plan's {} of {}",
           header_.profile.n_layers, header_.profile.n_experts, header_.plan.n_layers,
           header_.plan.n_experts);
    return;
  }
  summary.mode = header_.mode;
  summary.seed = header_.seed;
  summary.strategy = header_.strategy;
  summary.mixed_devices = mixed_devices(header_.servers);
  prices_ = planning::make_cost_model(header_.servers, header_.costs);
  if (shared_uplinks shared(header_.servers); emulated() && shared.any())
    uplinks_ = std::move(shared);
  header_.plan.epoch = std::max<std::uint64_t>(1, header_.plan.epoch);
  if (!put_in_force(std::make_shared<const planning::profile>(std::move(header_.profile)),
                    header_.plan, 0))
    return;
  make_room();
}

void verifier::make_room() {
  links_.resize(n() * n());
  servers_.resize(n());
  offloaded_ = planning::offloaded_flags(placed_->plan);
  for (auto& server : servers_) {
    server.placed[placed_->plan.epoch] = placed_;
    server.loads = load_board(n());
    server.reports.resize(n());
    server.loads.price_by(placed_->tables->link_ns());
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
  reservation_bytes_ = size_of(reservation{});
  load_report load;
  load.link_wait_ns.resize(n());
  load_bytes_ = size_of(load);
  links_bytes_ = size_of(wire::link_report{0, 0, std::vector<wire::link_measure>(n())});
  kv_frame_bytes_ = size_of(kv_rows{});
  kv_block_bytes_ = size_of(kv_rows{0, {kv_block{}}}) - kv_frame_bytes_;
}

frame_totals& verifier::expected(std::uint32_t from, std::uint32_t to, frame_kind kind) {
  return link(from, to).expected[index_of(kind)];
}

server_mask verifier::attention_members(const request_state& request, std::uint32_t layer) const {
  return request.placed->plan.residence[request.terms.access].layers[layer];
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
  if (closing_) return refuse("found an event, expected nothing but ledgers at the end");
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

}  // namespace ordermoe::trace
