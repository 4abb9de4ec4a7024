#include "trace/gap.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <utility>

#include "model/architecture/routing.hpp"
#include "planning/serving/decide.hpp"
#include "planning/serving/ledgers.hpp"
#include "trace/fields.hpp"
#include "trace/header.hpp"

namespace ordermoe::trace {

namespace {

using planning::hindsight;

/// A request in flight.
struct open_request {
  planning::past_request past;  ///< Without chunks.
  std::uint32_t prompt_tokens = 0;
  std::uint64_t epoch = 0;
  std::uint64_t positions = 0;
  std::map<std::uint32_t, planning::past_chunk> chunks;  ///< By first position.
};

class gap_reader {
 public:
  gap_reader(std::string place, const gap_options& options)
      : place_(std::move(place)), options_(options) {}

  result<void> open(const std::string& text) {
    auto header = parse_header(text, place_);
    if (!header) return header.error();
    header_ = std::make_unique<trace_header>(std::move(*header));
    prices_ = planning::make_cost_model(header_->servers, header_->costs);
    summary.strategy = header_->strategy;
    newest_ = std::max<std::uint64_t>(1, header_->plan.epoch);
    return add_plan(header_->profile, header_->plan);
  }

  result<void> line(std::uint64_t number, const std::string& text) {
    number_ = number;
    const auto type = line_type(text);
    if (type == "request") return on_request(text);
    if (type == "slot") return on_slot(text);
    if (type == "done") return on_done(text);
    if (type == "plan") return on_plan(text);
    if (type == "policy")
      return refuse(errc::unsupported,
                    "found a change of policy by order, expected one policy; trace a run that "
                    "keeps its policy");
    has_ended = has_ended || type == "end";
    return {};
  }

  bool has_ended = false;
  gap_summary summary;

 private:
  error refuse(errc code, const std::string& what) const {
    return {code, fmt::format("{}:{}: {}", place_, number_, what)};
  }
  error malformed(const line_fields& fields) const {
    return refuse(errc::malformed, fields.problem());
  }
  std::uint32_t n_servers() const { return static_cast<std::uint32_t>(header_->servers.size()); }
  std::uint32_t n_experts() const { return static_cast<std::uint32_t>(header_->plan.n_experts); }
  std::uint32_t n_layers() const { return static_cast<std::uint32_t>(header_->plan.n_layers); }
  std::uint32_t top_k() const { return static_cast<std::uint32_t>(header_->profile.top_k); }

  result<void> add_plan(const planning::profile& profile, const planning::plan& placed) {
    if (!placed.pruned.empty() && planning::leaves_out(header_->policy.candidates))
      return refuse(errc::unsupported,
                    "slots are left out beside the experts that the plan prunes, of which nobody "
                    "knows the best in hindsight; compare runs of other strategies");
    if (auto valid = planning::validate(placed, header_->servers, header_->costs); !valid)
      return at(place_ + " plan", valid.error());
    auto made = hindsight::make(profile, placed, prices_, header_->policy);
    if (!made) return at(fmt::format("{}:{}", place_, number_), made.error());
    plans_.insert_or_assign(newest_, std::make_unique<hindsight>(std::move(*made)));
    return {};
  }

  result<void> on_plan(std::string_view text);
  result<void> on_request(std::string_view text);
  result<void> on_slot(std::string_view text);
  result<void> on_done(std::string_view text);
  std::vector<float> probabilities_of(std::span<const float> logits) const;
  result<void> take(open_request& request, std::uint32_t first, std::uint32_t layer,
                    std::uint32_t server, std::uint32_t residence, bool begins_row,
                    const planning::past_slot& slot);

  std::string place_;
  const gap_options& options_;
  std::uint64_t number_ = 1;
  std::unique_ptr<trace_header> header_;
  planning::cost_model prices_;
  std::uint64_t newest_ = 1;  ///< Epoch of the latest plan.
  std::map<std::uint64_t, std::unique_ptr<hindsight>> plans_;
  std::map<std::uint64_t, open_request> requests_;
  std::vector<float> logits_;
};

result<void> gap_reader::on_plan(std::string_view text) {
  line_fields fields(text);
  newest_ = fields.integer<std::uint64_t>("epoch");
  fields.integer<std::uint64_t>("policy");
  fields.word("reason");
  fields.amount("moved_bytes");
  fields.amount("moved_ns");
  fields.amount("time_ns");
  const auto content = fields.last_value("profile");
  if (!fields.end()) return malformed(fields);
  constexpr std::string_view between = R"(,"plan":{)";
  const auto split = content.rfind(between);
  if (split == std::string_view::npos)
    return refuse(errc::malformed, "found no plan after the profile, expected one");
  const auto place = fmt::format("{}:{}", place_, number_);
  const auto profile =
      planning::parse_profile(std::string(content.substr(0, split)), place + " profile");
  if (!profile) return profile.error();
  const auto placed = planning::parse_plan(std::string(content.substr(split + between.size() - 1)),
                                           place + " plan");
  if (!placed) return placed.error();
  if (profile->n_layers != n_layers() || profile->n_experts != n_experts() ||
      profile->top_k != top_k())
    return refuse(errc::malformed, "found a profile of another shape than the first plan's");
  return add_plan(*profile, *placed);
}

result<void> gap_reader::on_request(std::string_view text) {
  line_fields fields(text);
  open_request request;
  const auto number = fields.integer<std::uint64_t>("request");
  request.past.access = fields.integer<std::uint32_t>("access", 0, n_servers() - 1);
  request.prompt_tokens = fields.integer<std::uint32_t>("prompt_tokens", 1);
  fields.integer<std::uint32_t>("max_new_tokens");
  fields.boolean("score");
  const bool may_stop = fields.integer<std::uint32_t>("stop_strings") != 0;
  begun_request travels;
  read_travelling(fields, travels);
  request.past.in_place = header_->continue_in_place && !may_stop;
  request.past.budget = fields.integer<loss_units>("budget", 0);
  if (fields.has("token_budget")) fields.integer<loss_units>("token_budget", 0);
  request.epoch = fields.integer<std::uint64_t>("epoch");
  fields.amount("time_ns");
  if (!fields.end()) return malformed(fields);
  if (!plans_.contains(request.epoch))
    return refuse(errc::malformed,
                  fmt::format("epoch: found {}, expected that of a plan", request.epoch));
  requests_.insert_or_assign(number, std::move(request));
  return {};
}

std::vector<float> gap_reader::probabilities_of(std::span<const float> logits) const {
  std::vector<double> weights(logits.size());
  model::softmax(logits, weights);
  return {weights.begin(), weights.end()};
}

result<void> gap_reader::on_slot(std::string_view text) {
  line_fields fields(text);
  const auto number = fields.integer<std::uint64_t>("request");
  fields.integer<std::uint32_t>("attempt");
  const auto first = fields.integer<std::uint32_t>("first");
  fields.integer<std::uint32_t>("position");
  const auto layer = fields.integer<std::uint32_t>("layer", 0, n_layers() - 1);
  const auto place = fields.integer<std::uint32_t>("slot", 0, top_k() - 1);
  fields.integer<std::uint32_t>("access", 0, n_servers() - 1);
  const auto server = fields.integer<std::uint32_t>("server", 0, n_servers() - 1);
  const auto residence = fields.integer<std::uint32_t>("residence", 0, n_servers() - 1);
  planning::past_slot slot;
  slot.target = fields.integer<std::uint32_t>("target", 0, n_experts() - 1);
  slot.gate = fields.number("gate");
  slot.expert = fields.integer<std::uint32_t>("expert", 0, n_experts() - 1);
  slot.server = fields.integer<std::uint32_t>("executor", 0, n_servers() - 1);
  const auto kind = fields.word("kind");
  slot.loss = fields.integer<loss_units>("loss", 0, unbounded_budget);
  fields.integer<loss_units>("allowance_left");
  fields.integer<loss_units>("pool_left");
  fields.integer<std::uint64_t>("snapshot");
  fields.amount("time_ns");
  logits_.clear();
  if (place == 0) fields.numbers("logits", n_experts(), logits_);
  if (!fields.end()) return malformed(fields);
  if (kind == to_string(serving::execution_kind::left_out)) slot.expert = planning::left_out;
  const auto found = requests_.find(number);
  if (found == requests_.end()) return {};  // Given up.
  if (slot.expert == planning::left_out && plans_.at(found->second.epoch)->prunes())
    return refuse(errc::failed,
                  fmt::format("kind: found {}, expected another, as slots of a plan that prunes "
                              "experts all run; see `ordermoe trace verify`",
                              kind));
  return take(found->second, first, layer, server, residence, place == 0, slot);
}

result<void> gap_reader::take(open_request& request, std::uint32_t first, std::uint32_t layer,
                              std::uint32_t server, std::uint32_t residence, bool begins_row,
                              const planning::past_slot& slot) {
  auto& chunk = request.chunks[first];
  if (chunk.layers.size() == layer) chunk.layers.push_back({server, residence, {}});
  if (chunk.layers.size() != layer + 1)
    return refuse(errc::malformed,
                  fmt::format("layer: found {}, expected {}", layer, chunk.layers.size()));
  auto& step = chunk.layers.back();
  if (begins_row) {
    const auto position = first + step.rows.size();
    // As wire::request_terms::unread_before().
    step.rows.push_back({{}, probabilities_of(logits_), position, request.prompt_tokens - 1});
    if (layer == 0) ++request.positions;
  }
  if (step.rows.empty() || step.rows.back().slots.size() == top_k())
    return refuse(errc::malformed, "found a slot of no row, expected slot 0 first");
  step.rows.back().slots.push_back(slot);
  return {};
}

result<void> gap_reader::on_done(std::string_view text) {
  line_fields fields(text);
  const auto number = fields.integer<std::uint64_t>("request");
  const auto finish = fields.word("finish");
  if (fields.failed()) return malformed(fields);
  const auto found = requests_.find(number);
  if (found == requests_.end()) return {};
  auto request = std::move(found->second);
  requests_.erase(found);
  if (finish == "cancelled" || finish == "failed") {
    ++summary.given_up;
    return {};
  }
  for (auto& [first, chunk] : request.chunks) {
    const auto rows = chunk.layers.front().rows.size();
    chunk.is_sampled = first + rows >= request.prompt_tokens;
    request.past.chunks.push_back(std::move(chunk));
  }
  const auto gap = plans_.at(request.epoch)->solve(request.past, options_.search);
  if (!gap)
    return refuse(gap.error().code, fmt::format("request {}: {}", number, gap.error().message));
  summary.requests.push_back(
      {number, request.past.access, request.positions, request.past.budget, *gap});
  return {};
}

}  // namespace

result<gap_summary> find_gaps(const std::filesystem::path& path, const gap_options& options) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return error{errc::not_found, fmt::format("{}: is a folder, expected a trace", path.string())};
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) {
    const int why = errno;
    return error{why == ENOENT || why == ENOTDIR ? errc::not_found : errc::io,
                 fmt::format("{}: cannot be read: {}", path.string(), std::strerror(why))};
  }
  const auto size = static_cast<double>(std::max<std::uintmax_t>(
      1, std::filesystem::is_regular_file(path, ignored) ? std::filesystem::file_size(path, ignored)
                                                         : 1));
  gap_reader reader(path.string(), options);
  std::string text;
  std::uint64_t number = 0, bytes = 0;
  while (std::getline(file, text)) {
    ++number;
    bytes += text.size() + 1;
    const auto read = number == 1 ? reader.open(text) : reader.line(number, text);
    if (!read) return read.error();
    if (options.should_stop && options.should_stop())
      return error{errc::interrupted, "interrupted"};
    if (options.progress) options.progress(std::min(1.0, static_cast<double>(bytes) / size));
  }
  if (file.bad()) return error{errc::io, fmt::format("{}: reading failed", path.string())};
  if (!reader.has_ended)
    return error{errc::malformed,
                 fmt::format("{}:{}: found no closing line, expected one of type end; the trace is "
                             "cut short, run again",
                             path.string(), std::max<std::uint64_t>(number, 1))};
  return std::move(reader.summary);
}

}  // namespace ordermoe::trace
