#include "model/torch/trainer_torch.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/torch/batches_torch.hpp"
#include "model/training/safetensors_file.hpp"

namespace ordermoe::training {
namespace {

constexpr double first_decay = 0.9, second_decay = 0.95, epsilon = 1e-8, weight_decay = 0.05,
                 largest_norm = 1.0;
constexpr std::uint64_t steps_per_report = 5, steps_per_point = 100;
constexpr std::size_t steps_in_mean = 20;
/// Of a 95 KB text, 17 readings left a held-out perplexity of 31, and 72 one of 115.
constexpr double most_passes = 16;

/// How much of the whole is done: by tokens where they are given, else by time, or by how often a
/// short text has been read.
double share_done(const stage_progress& progress, const text_source& source,
                  const train_options& options) {
  const auto tokens = static_cast<double>(progress.tokens);
  if (options.tokens > 0) return tokens / static_cast<double>(options.tokens);
  const double by_time = progress.seconds / (54.0 * options.minutes);
  if (source.size() == 0) return by_time;
  return std::max(by_time, tokens / (most_passes * static_cast<double>(source.size())));
}

}  // namespace

void step_in_one_pass(decoder& model, optimizer_state& optimizer, double rate) {
  ++optimizer.steps;
  const auto n = model.parameters().numel();
  float *p = model.parameters().data_ptr<float>(), *g = model.gradients().data_ptr<float>(),
        *m = optimizer.first.data_ptr<float>(), *v = optimizer.second.data_ptr<float>();
  const float* decays = model.decay_mask().data_ptr<float>();
  const double norm = model.gradients().norm().item<double>();
  const auto clip = static_cast<float>(norm > largest_norm ? largest_norm / norm : 1.0);
  const double t = static_cast<double>(optimizer.steps);
  const auto a = static_cast<float>(first_decay), b = static_cast<float>(second_decay);
  const auto unbias = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(second_decay, t)));
  const auto scaled = static_cast<float>(rate / (1.0 - std::pow(first_decay, t)));
  const auto shrink = static_cast<float>(rate * weight_decay), tiny = static_cast<float>(epsilon);
  for (std::int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] * clip;
    m[i] = a * m[i] + (1 - a) * gradient;
    v[i] = b * v[i] + (1 - b) * gradient * gradient;
    p[i] -= shrink * decays[i] * p[i] + scaled * m[i] / (std::sqrt(v[i]) * unbias + tiny);
    g[i] = 0;
  }
}

void step_in_vectors(decoder& model, optimizer_state& optimizer, double rate) {
  torch::NoGradGuard no_gradients;
  ++optimizer.steps;
  auto &p = model.parameters(), &g = model.gradients();
  const double t = static_cast<double>(optimizer.steps);
  const double unbias = 1.0 / std::sqrt(1.0 - std::pow(second_decay, t)),
               scaled = rate / (1.0 - std::pow(first_decay, t));
  g.mul_((largest_norm / g.norm()).clamp_max(1.0));
  optimizer.first.mul_(first_decay).add_(g, 1 - first_decay);
  optimizer.second.mul_(second_decay).addcmul_(g, g, 1 - second_decay);
  p.sub_(p * model.decay_mask(), rate * weight_decay);
  p.addcdiv_(optimizer.first, optimizer.second.sqrt().mul_(unbias).add_(epsilon), -scaled);
  g.zero_();
}

namespace {

/// For one layer, [rows, n_experts]: what each row does without.
layer_outage draw_rows(std::size_t n_experts, std::int64_t rows, bool siblings,
                       random_stream& random) {
  auto blocked = torch::zeros({rows, static_cast<std::int64_t>(n_experts)}, torch::kBool);
  auto stand_in =
      torch::arange(static_cast<std::int64_t>(n_experts), torch::kInt64).repeat({rows, 1});
  for (std::int64_t r = 0; r < rows; ++r) {
    auto* lost = blocked.data_ptr<bool>() + r * static_cast<std::int64_t>(n_experts);
    auto* who = stand_in.data_ptr<std::int64_t>() + r * static_cast<std::int64_t>(n_experts);
    if (r % 2 == 0) continue;
    if (siblings && r % 4 == 1) {
      for (std::size_t pair = 0; pair + 1 < n_experts; pair += 2) {
        const auto choice = random.below(4);
        if (choice < 2) who[pair + choice] = static_cast<std::int64_t>(pair + 1 - choice);
      }
      continue;
    }
    std::vector<std::size_t> order(n_experts);
    for (std::size_t e = 0; e < n_experts; ++e) order[e] = e;
    for (std::size_t i = n_experts - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
    for (std::size_t i = 0; i < n_experts / 2; ++i) lost[order[i]] = true;
  }
  return {blocked, stand_in};
}

}  // namespace

std::vector<layer_outage> draw_outages(std::size_t n_layers, std::size_t n_experts,
                                       std::int64_t rows, std::int64_t row_length, bool siblings,
                                       random_stream& random) {
  std::vector<layer_outage> drawn;
  for (std::size_t l = 0; l < n_layers; ++l) {
    const auto by_row = draw_rows(n_experts, rows, siblings, random);
    drawn.push_back({by_row.blocked.repeat_interleave(row_length, 0),
                     by_row.stand_in.repeat_interleave(row_length, 0)});
  }
  return drawn;
}

std::vector<layer_outage> draw_outages_on(at::Device device, std::size_t n_layers,
                                          std::size_t n_experts, std::int64_t rows,
                                          std::int64_t row_length, bool siblings,
                                          random_stream& random) {
  std::vector<torch::Tensor> blocked, stand_in;
  for (std::size_t l = 0; l < n_layers; ++l) {
    const auto by_row = draw_rows(n_experts, rows, siblings, random);
    blocked.push_back(by_row.blocked);
    stand_in.push_back(by_row.stand_in);
  }
  // One transfer for all layers.
  const auto of_tokens = [&](const std::vector<torch::Tensor>& by_row) {
    const auto all = torch::stack(by_row).to(device);
    const auto experts = all.size(2);
    return all.unsqueeze(2)
        .expand({all.size(0), rows, row_length, experts})
        .reshape({all.size(0), rows * row_length, experts});
  };
  const auto all_blocked = of_tokens(blocked);
  const auto all_stand_in = siblings ? of_tokens(stand_in) : torch::Tensor();
  std::vector<layer_outage> drawn;
  for (std::size_t l = 0; l < n_layers; ++l) {
    const auto at = static_cast<std::int64_t>(l);
    drawn.push_back({all_blocked[at], siblings ? all_stand_in[at] : torch::Tensor()});
  }
  return drawn;
}

optimizer_state::optimizer_state(const decoder& model)
    : first(torch::zeros_like(model.decay_mask())), second(torch::zeros_like(model.decay_mask())) {}

double schedule(double share_done, std::uint64_t stage_step, bool warm_up) {
  constexpr double turn = 0.6, lowest = 0.05;
  const double rise = warm_up ? std::min(1.0, static_cast<double>(stage_step + 1) / 50.0) : 1.0;
  double fall = 1.0;
  if (share_done >= 1.0)
    fall = std::max(0.02, 0.4 * (whole_recipe - share_done) / (whole_recipe - 1.0));
  else if (share_done >= turn)
    fall = std::max(lowest, 1.0 - (1.0 - lowest) * (share_done - turn) / (1.0 - turn));
  return rise * fall;
}

result<void> save_checkpoint(const std::filesystem::path& path, decoder& model,
                             const optimizer_state& optimizer, const stage_progress& progress,
                             const std::string& fingerprint) {
  nlohmann::json curve = nlohmann::json::array();
  for (const auto& point : progress.curve) curve.push_back({point.stage, point.tokens, point.loss});
  nlohmann::json devices = nlohmann::json::array();
  for (const auto& device : progress.devices) devices.push_back({device.device, device.product});
  const nlohmann::json state = {{"fingerprint", fingerprint},
                                {"steps", progress.steps},
                                {"tokens", progress.tokens},
                                {"seconds", progress.seconds},
                                {"optimizer_steps", optimizer.steps},
                                {"curve", curve},
                                {"devices", devices}};
  const std::vector<std::int64_t> shape = {model.parameters().numel()};
  stored_file content;
  content.metadata["state"] = state.dump();
  const auto store = [&](const char* name, const torch::Tensor& tensor) {
    const auto here = tensor.to(torch::kCPU);
    content.tensors.push_back(store_f32(name, shape, here.data_ptr<float>()));
  };
  store("parameters", model.parameters());
  store("first_moments", optimizer.first);
  store("second_moments", optimizer.second);
  return write_safetensors(path, content);
}

result<void> load_checkpoint(const std::filesystem::path& path, decoder& model,
                             optimizer_state& optimizer, stage_progress& progress,
                             const std::string& fingerprint) {
  const auto content = read_stored_file(path);
  if (!content) return content.error();
  const auto broken = [&](const std::string& what) {
    return error{errc::malformed,
                 fmt::format("{}: {}; remove it to start over", path.string(), what)};
  };
  const auto found = content->metadata.find("state");
  if (found == content->metadata.end()) return broken("there is no training state in the file");
  try {
    const auto state = nlohmann::json::parse(found->second);
    if (state.at("fingerprint").get<std::string>() != fingerprint)
      return error{
          errc::mismatch,
          fmt::format("{}: this is the state of a run with other options ({}); this run is ({}); "
                      "remove the file or give the same options",
                      path.string(), state.at("fingerprint").get<std::string>(), fingerprint)};
    progress = {state.at("steps").get<std::uint64_t>(),
                state.at("tokens").get<std::uint64_t>(),
                state.at("seconds").get<double>(),
                {},
                {}};
    for (const auto& device : state.value("devices", nlohmann::json::array()))
      progress.devices.push_back(
          {device.at(0).get<std::string>(), device.at(1).get<std::string>()});
    for (const auto& point : state.at("curve"))
      progress.curve.push_back({point.at(0).get<std::string>(), point.at(1).get<std::uint64_t>(),
                                point.at(2).get<double>()});
    optimizer.steps = state.at("optimizer_steps").get<std::uint64_t>();
  } catch (const nlohmann::json::exception& problem) {
    return broken(problem.what());
  }
  const auto size = static_cast<std::size_t>(model.parameters().numel()) * sizeof(float);
  const std::pair<const char*, torch::Tensor*> parts[] = {{"parameters", &model.parameters()},
                                                          {"first_moments", &optimizer.first},
                                                          {"second_moments", &optimizer.second}};
  torch::NoGradGuard no_gradients;
  for (const auto& [name, into] : parts) {
    const auto* tensor = content->find(name);
    if (!tensor || tensor->bytes.size() != size)
      return broken(fmt::format("tensor {} is missing or has another size", name));
    auto here = torch::empty({into->numel()}, torch::kFloat32);
    std::memcpy(here.data_ptr<float>(), tensor->bytes.data(), size);
    into->copy_(here);
  }
  return {};
}

namespace {

/// One step on ids [rows, length + 1]; `tokens` came before. Returns the loss in nats a token.
double train_on(decoder& model, optimizer_state& optimizer, std::uint64_t tokens,
                const torch::Tensor& batch, const train_options& options,
                const stage_limits& limits, double rate) {
  const auto device = model.device();
  const auto rows = batch.size(0), row_length = batch.size(1) - 1;
  forward_options how{options.balance_weight, options.z_weight, {}, nullptr, {}};
  if (limits.outages) {
    random_stream random(mix64(options.seed) + 1, tokens);
    const auto draw = [&](auto&&... what) {
      return device.is_cpu() ? draw_outages(what...) : draw_outages_on(device, what...);
    };
    how.outages = draw(model.shape().n_layers, model.shape().n_experts, rows, row_length,
                       limits.siblings, random);
  }
  const auto outcome = model.forward(batch.narrow(1, 0, row_length), how);
  const auto loss = torch::nll_loss(torch::log_softmax(outcome.logits, 1),
                                    batch.narrow(1, 1, row_length).reshape({-1}));
  (outcome.auxiliary.defined() ? loss + outcome.auxiliary : loss).backward();
  device.is_cpu() ? step_in_one_pass(model, optimizer, rate)
                  : step_in_vectors(model, optimizer, rate);
  return loss.item<double>();
}

}  // namespace

result<void> run_stage(decoder& model, optimizer_state& optimizer, stage_progress& progress,
                       const text_source& source, const train_options& options,
                       const stage_limits& limits, const std::function<result<void>()>& save) {
  using clock = std::chrono::steady_clock;
  const auto device = model.device();
  batch_feed feed(source, options);
  auto last = clock::now(), saved = last;
  std::deque<double> losses;
  const auto mean = [&] {
    double sum = 0;
    for (const double loss : losses) sum += loss;
    return sum / static_cast<double>(losses.size());
  };
  double seconds_at_report = progress.seconds;
  std::uint64_t tokens_at_report = progress.tokens;
  for (;;) {
    const double done = whole_recipe * share_done(progress, source, options);
    if (done >= limits.end) {
      if (!losses.empty()) progress.curve.push_back({limits.name, progress.tokens, mean()});
      break;
    }
    if (options.should_stop && options.should_stop()) {
      if (auto kept = save(); !kept) return kept;
      return error{
          errc::interrupted,
          fmt::format("stopped in stage {} after {} tokens; the same command goes on from there",
                      limits.name, progress.tokens)};
    }
    const auto [rows, row_length] = batch_size_of(options, optimizer.steps);
    const auto batch = feed.take(progress.tokens, {rows, row_length}).to(device);
    if (!device.is_cpu())
      feed.prepare(progress.tokens + static_cast<std::uint64_t>(rows * row_length),
                   batch_size_of(options, optimizer.steps + 1));
    const double rate = options.learning_rate * schedule(done, progress.steps, limits.warm_up);
    losses.push_back(train_on(model, optimizer, progress.tokens, batch, options, limits, rate));
    if (!std::isfinite(losses.back()))
      return error{errc::failed,
                   fmt::format("stage {}: the loss is no number after {} tokens; train with a "
                               "lower learning rate",
                               limits.name, progress.tokens)};
    if (losses.size() > steps_in_mean) losses.pop_front();
    ++progress.steps;
    progress.tokens += static_cast<std::uint64_t>(rows * row_length);
    const auto now = clock::now();
    progress.seconds += std::chrono::duration<double>(now - last).count();
    last = now;
    if (progress.steps % steps_per_report == 0) {
      const double speed = static_cast<double>(progress.tokens - tokens_at_report) /
                           std::max(1e-9, progress.seconds - seconds_at_report);
      if (progress.steps % steps_per_point == 0)
        progress.curve.push_back({limits.name, progress.tokens, mean()});
      if (options.on_progress)
        options.on_progress(
            {limits.name, progress.steps, progress.tokens, done / whole_recipe, mean(), speed});
      tokens_at_report = progress.tokens;
      seconds_at_report = progress.seconds;
    }
    if (now - saved > std::chrono::minutes(1)) {
      if (auto kept = save(); !kept) return kept;
      saved = now;
    }
  }
  return {};
}

}  // namespace ordermoe::training
