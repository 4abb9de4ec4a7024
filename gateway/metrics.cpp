#include "gateway/metrics.hpp"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "planning/serving/ledgers.hpp"

namespace ordermoe::gateway {

namespace {

using nlohmann::json;
using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using labels = std::vector<ClientMetric::Label>;

/// The families of one answer.
class families {
 public:
  explicit families(std::string model) : model_(std::move(model)) {}

  void begin(std::string name, std::string help, MetricType type) {
    all_.push_back({std::move(name), std::move(help), type, {}});
  }
  /// To the family that was begun last.
  void add(double value, labels with) {
    auto& metric = all_.back().metric.emplace_back();
    metric.label = std::move(with);
    if (all_.back().type == MetricType::Counter)
      metric.counter.value = value;
    else
      metric.gauge.value = value;
  }
  void one(std::string name, std::string help, MetricType type, double value) {
    begin(std::move(name), std::move(help), type);
    add(value, of_model());
  }
  void histogram(std::string name, std::string help, const time_histogram& of) {
    begin(std::move(name), std::move(help), MetricType::Histogram);
    auto& metric = all_.back().metric.emplace_back();
    metric.label = of_model();
    metric.histogram.sample_count = of.count();
    metric.histogram.sample_sum = of.sum_s();
    for (std::size_t i = 0; i < time_histogram::bounds_s.size(); ++i)
      metric.histogram.bucket.push_back({of.at_most(i), time_histogram::bounds_s[i]});
  }
  labels of_model() const { return {{"model_name", model_}}; }
  const std::vector<MetricFamily>& all() const { return all_; }

 private:
  std::string model_;
  std::vector<MetricFamily> all_;
};

/// Nothing where it is not told.
std::optional<double> number(const json& of, const char* member) {
  const auto found = of.find(member);
  if (found == of.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

/// An empty array where there is none.
json array(const json& of, const char* member) {
  const auto found = of.find(member);
  return found != of.end() && found->is_array() ? *found : json::array();
}

void add_requests(families& to, const gateway_figures& figures) {
  to.one("vllm:num_requests_running", "Answers that are being made.", MetricType::Gauge,
         static_cast<double>(figures.running));
  to.one("vllm:num_requests_waiting", "Answers that wait for their turn.", MetricType::Gauge,
         static_cast<double>(figures.waiting));
  to.one("vllm:prompt_tokens_total", "Prompt tokens of complete answers.", MetricType::Counter,
         static_cast<double>(figures.prompt_tokens));
  to.one("vllm:generation_tokens_total", "New tokens of complete answers.", MetricType::Counter,
         static_cast<double>(figures.generation_tokens));
  to.begin("vllm:request_success_total", "Answers that ended, by reason.", MetricType::Counter);
  for (const auto& [reason, n] : figures.finished) {
    auto with = to.of_model();
    with.push_back({"finished_reason", reason});
    to.add(static_cast<double>(n), std::move(with));
  }
  to.histogram("vllm:time_to_first_token_seconds", "From the arrival of a request.",
               figures.first_token);
  to.histogram("vllm:time_per_output_token_seconds", "Mean of each answer, without its first.",
               figures.per_token);
  to.histogram("vllm:e2e_request_latency_seconds", "From the arrival to the last token.",
               figures.whole);
  to.one("ordermoe_requests_turned_away_total", "Requests that were told to come later.",
         MetricType::Counter, static_cast<double>(figures.turned_away));
  to.one("ordermoe_budget_nats_total", "Quality that answers were allowed to lose.",
         MetricType::Counter, figures.budget_nats);
  to.one("ordermoe_budget_spent_nats_total", "Predicted loss of quality.", MetricType::Counter,
         figures.spent_nats);
}

void add_http(families& to, const net::http_figures& http) {
  to.begin("ordermoe_http_connections", "Open connections.", MetricType::Gauge);
  to.add(static_cast<double>(http.connections), {});
  to.begin("ordermoe_http_requests_total", "Requests that were read.", MetricType::Counter);
  to.add(static_cast<double>(http.requests), {});
  to.begin("ordermoe_http_refused_total", "Requests that made no sense or came too slowly.",
           MetricType::Counter);
  to.add(static_cast<double>(http.refused), {});
}

struct server_family {
  const char* name;
  const char* help;
  MetricType type;
  const char* member;
};

constexpr server_family server_families[] = {
    {"ordermoe_plan_epoch", "Of the plan that the server goes by.", MetricType::Gauge, "epoch"},
    {"ordermoe_wait_ns", "That work which arrives now would wait.", MetricType::Gauge, "wait_ns"},
    {"ordermoe_kv_bytes", "Memory for KV rows.", MetricType::Gauge, "kv_bytes"},
    {"ordermoe_kv_reserved_bytes", "Of it, what requests have.", MetricType::Gauge,
     "reserved_bytes"},
    {"ordermoe_hosted_experts", "Copies of experts that are here.", MetricType::Gauge, "experts"},
    {"ordermoe_requests_ended_total", "Requests of this server's users.", MetricType::Counter,
     "ended_requests"},
    {"ordermoe_late_frames_total", "Frames of what was over.", MetricType::Counter, "late_frames"},
    {"ordermoe_refused_frames_total", "Frames that made no sense.", MetricType::Counter,
     "refused_frames"}};

std::string name_of(const json& server) {
  const auto found = server.find("name");
  return found != server.end() && found->is_string() ? found->get<std::string>() : "?";
}

using names = std::map<double, std::string>;

/// Names of servers by the index that others know them by: as they say themselves, and as those say that are connected with
/// them.
names names_of(const json& servers) {
  names made;
  for (const auto& server : servers) {
    if (const auto index = number(server, "server")) made[*index] = name_of(server);
    for (const auto& peer : array(server, "peers"))
      if (const auto index = number(peer, "server")) made.emplace(*index, name_of(peer));
  }
  return made;
}

/// [n_execution_kinds], or one less, of a node that does not know of slots that are left out; nothing where it is
/// something else.
void add_kinds(families& to, const json& told, const labels& of) {
  if (!told.is_array()) return;
  if (told.size() != serving::n_execution_kinds && told.size() + 1 != serving::n_execution_kinds)
    return;
  for (std::size_t i = 0; i < told.size(); ++i) {
    if (!told[i].is_number()) continue;
    auto with = of;
    with.push_back({"kind", serving::to_string(static_cast<serving::execution_kind>(i))});
    to.add(told[i].get<double>(), std::move(with));
  }
}

void add_executions(families& to, const json& servers) {
  to.begin("ordermoe_executions_total", "Expert slots, by where and what ran.",
           MetricType::Counter);
  for (const auto& server : servers)
    add_kinds(to, array(server, "executions"), {{"server", name_of(server)}});
  to.begin("ordermoe_layer_executions_total", "The same by layer, as far as any ran.",
           MetricType::Counter);
  for (const auto& server : servers) {
    const auto layers = array(server, "layer_executions");
    for (std::size_t layer = 0; layer < layers.size(); ++layer)
      add_kinds(to, layers[layer], {{"server", name_of(server)}, {"layer", std::to_string(layer)}});
  }
}

void add_links(families& to, const json& servers) {
  to.begin("ordermoe_link_bytes_total", "Charged bytes between servers, by kind of frame.",
           MetricType::Counter);
  const auto known = names_of(servers);
  for (const auto& server : servers)
    for (const auto& link : array(server, "links")) {
      const auto index = number(link, "to");
      const auto charged = link.find("charged_bytes");
      if (!index || charged == link.end() || !charged->is_object()) continue;
      const auto found = known.find(*index);
      const auto other = found == known.end() ? fmt::format("{}", *index) : found->second;
      for (const auto& [kind, bytes] : charged->items())
        if (bytes.is_number() && bytes.get<double>() > 0)
          to.add(bytes.get<double>(), {{"from", name_of(server)}, {"to", other}, {"kind", kind}});
    }
}

}  // namespace

std::string metrics_text(const gateway_figures& figures, const served_model& served,
                         const net::http_figures& http, const std::string& servers) {
  families made(served.id);
  add_requests(made, figures);
  add_http(made, http);
  const auto read = json::parse(servers, nullptr, false);
  if (read.is_array()) {
    for (const auto& [name, help, type, member] : server_families) {
      made.begin(name, help, type);
      for (const auto& server : read)
        if (const auto value = number(server, member))
          made.add(*value, {{"server", name_of(server)}});
    }
    add_executions(made, read);
    add_links(made, read);
  }
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, made.all());
  return out.str();
}

}  // namespace ordermoe::gateway
