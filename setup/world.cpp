#include "setup/world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "config/devices.hpp"
#include "model/checkpoint/safetensors.hpp"
#include "setup/calibration.hpp"

namespace ordermoe::setup {

namespace fs = std::filesystem;

namespace {

/// Tokens of one text that is calibrated, tuned or scored on.
std::size_t document_tokens(const model::transformer& model) {
  return std::min<std::size_t>(256, model.config().max_context);
}

/// Tokens to calibrate on where nobody says: 8192, or what 1e13 FLOPs execute, since every expert
/// runs on every token.
std::size_t usual_calibration(const model::model_config& shape) {
  constexpr double most_flops = 1e13;
  constexpr std::size_t least = 256, usual = 8192;
  const auto costs = model::own_costs(shape);
  const double of_token =
      static_cast<double>(shape.n_layers) *
      (static_cast<double>(costs.attention_flops) +
       static_cast<double>(shape.n_experts) * static_cast<double>(costs.expert_flops));
  return std::clamp(static_cast<std::size_t>(most_flops / of_token), least, usual);
}

fs::path bundled_calibration_text() {
  return data_folder() / "eval" / "calibration.txt";
}

std::string name_of(const world_options& options) {
  auto name = fs::canonical(options.model).filename().string();
  if (options.expert_precision != precision::stored)
    name += fmt::format(" ({} experts)", to_string(options.expert_precision));
  if (options.dense_precision != precision::stored)
    name += fmt::format(" ({} dense)", to_string(options.dense_precision));
  return name;
}

/// What the model itself computes on.
std::string device_of(const world& content, const world_options& options) {
  if (options.only_plans) return std::string(kernels_device);
  if (!options.device.empty()) return options.device;
  const auto& servers = content.servers.servers;
  const std::string kernels(kernels_device);
  if (servers.empty()) return kernels;
  const auto same = [&](const server_spec& each) { return each.device == servers.front().device; };
  return std::ranges::all_of(servers, same) ? servers.front().device : kernels;
}

result<void> load_model(world& content, const world_options& options, job& work) {
  content.loading.device = device_of(content, options);
  content.loading.expert_precision = options.expert_precision;
  content.loading.dense_precision = options.dense_precision;
  content.loading.kv = options.kv;
  content.loading.elsewhere = options.elsewhere;
  if (!options.runs_model || options.elsewhere)
    content.loading.hosts = [](layer_id, expert_id) { return false; };
  auto loading = content.loading;
  loading.watch = {work.advancing(), work.stopping()};
  auto model = model::transformer::load(content.folder, loading);
  if (!model) return model.error();
  content.model = std::move(*model);
  auto tokens = model::tokenizer::load(content.folder);
  if (!tokens) return tokens.error();
  content.tokens = std::move(*tokens);
  const auto rows = content.model->config().vocab_size;
  if (content.tokens->vocab_size() > rows)
    return error{errc::mismatch,
                 fmt::format("{}: the tokenizer has {} pieces, the model {} rows; they do not "
                             "belong together",
                             content.folder.string(), content.tokens->vocab_size(), rows)};
  return {};
}

/// Whether nothing hangs on what is known of the model: every plan is the same, and nothing is lost by it.
bool needs_no_profile(const world& content, const world_options& options) {
  return content.servers.size() == 1 && !options.has_budget && options.profile.empty() &&
         !options.choose_precision &&
         content.servers.servers.front().expert_precision == precision::stored;
}

/// The profile that was given, or that beside the model.
result<planning::profile> read_own_profile(const fs::path& path, const world& content) {
  auto read = planning::read_profile(path);
  if (!read) return read.error();
  if (read->model_digest != content.model_digest)
    return error{errc::mismatch,
                 fmt::format("{}: made for a model with digest {}, {} has {}; run `ordermoe "
                             "calibrate` for this model",
                             path.string(), read->model_digest.substr(0, 12),
                             content.folder.string(), content.model_digest.substr(0, 12))};
  return read;
}

result<void> load_profile(world& content, const world_options& options, job& work) {
  const auto beside = content.folder / "profile.json";
  std::error_code status;
  if (lacks_profile(options) ||
      (needs_no_profile(content, options) && !fs::exists(beside, status))) {
    const auto& shape = content.model->config();
    content.knows_nothing = true;
    content.profile = planning::uniform_profile(fs::canonical(content.folder).filename().string(),
                                                content.model_digest, shape.n_layers,
                                                shape.n_experts, shape.top_k);
    return {};
  }
  content.made_profile = options.profile.empty() && !fs::exists(beside, status);
  auto profile =
      content.made_profile
          ? calibrate_on(content.folder, *content.model, *content.tokens,
                         bundled_calibration_text(), usual_calibration(content.model->config()),
                         options.seed, {}, work)
          : read_own_profile(options.profile.empty() ? beside : fs::path(options.profile), content);
  if (!profile) return profile.error();
  content.profile = std::move(*profile);
  return {};
}

/// Precisions that servers of this world may keep experts in, besides that of the model.
result<std::set<precision>> coarser_precisions(const world& content, const world_options& options) {
  std::set<precision> wanted(options.plan_precisions.begin(), options.plan_precisions.end());
  for (const auto& server : content.servers.servers) wanted.insert(server.expert_precision);
  if (options.choose_precision) {
    const auto& copies = content.profile.layers.front().copies;
    if (copies.empty())
      return error{errc::mismatch,
                   fmt::format("--choose-precision: the profile of {} does not say what coarser "
                               "experts cost; run `ordermoe calibrate` for this model",
                               options.model)};
    for (const auto& copy : copies) wanted.insert(copy.kept);
  }
  wanted.erase(precision::stored);
  return wanted;
}

/// The model on every other device that servers name.
result<void> load_on_devices(world& content, const world_options& options) {
  content.only_plans = options.only_plans;
  if (options.choose_precision && names_devices(content.servers))
    return error{
        errc::usage,
        fmt::format("--choose-precision: only the kernels multiply by coarser experts, and "
                    "servers compute on others ({}); leave it out, or the devices",
                    to_string(device_groups(content.servers)))};
  if (options.only_plans) return {};
  for (const auto& server : content.servers.servers) {
    auto& model = content.on_devices[server.device];
    if (model || server.device == kernels_device) continue;
    if (server.device == content.loading.device) {
      model = content.model;
      continue;
    }
    auto loading = content.loading;
    loading.device = server.device;
    auto loaded = model::transformer::load(content.folder, loading);
    if (!loaded) return at(fmt::format("server {}", server.name), loaded.error());
    model = std::move(*loaded);
  }
  content.on_devices.erase(std::string(kernels_device));
  return {};
}

result<void> load_coarser(world& content, const world_options& options) {
  const auto wanted = coarser_precisions(content, options);
  if (!wanted) return wanted.error();
  if (!wanted->empty() && options.expert_precision != precision::stored)
    return error{errc::usage,
                 fmt::format("--expert-precision {}: servers of the cluster or plan keep experts "
                             "in precisions of their own, which are those of the model as stored; "
                             "leave it out",
                             to_string(options.expert_precision))};
  for (const auto kept : *wanted) {
    auto loading = content.loading;
    loading.expert_precision = kept;
    auto model = model::transformer::load(content.folder, loading);
    if (!model) return model.error();
    content.coarser[kept] = std::move(*model);
  }
  return {};
}

result<void> load_charges(world& content, const world_options& options) {
  auto costs = load_costs(options.costs, content.model->config());
  if (!costs) return costs.error();
  content.charges_own_costs = is_measured_cost_profile(options.costs);
  content.costs =
      at_precision(std::move(*costs), options.expert_precision, options.dense_precision);
  charge_overheads(content.servers, content.costs);
  return {};
}

result<void> load_servers(world& content, const world_options& options) {
  if (options.cluster.empty()) return {};
  auto servers = read_cluster(options.cluster);
  if (!servers) return servers.error();
  content.servers = std::move(*servers);
  if (options.device.empty()) return {};
  for (auto& server : content.servers.servers) server.device = options.device;
  return {};
}

result<void> load_tuning_texts(world& content, bool runs_model) {
  content.unfit = unfit(content.profile, content.model->config());
  if (!content.profile.texts.empty()) {
    // No trace and no service needs them.
    content.tuning_texts = std::exchange(content.profile.texts, {});
    return {};
  }
  // Those that a profile of the bundled text would have.
  const auto length = document_tokens(*content.model);
  const auto calibrated = content.profile.calibration_tokens;
  auto texts = read_documents(bundled_calibration_text(), *content.tokens, length,
                              calibrated + most_tuning_tokens);
  if (!texts) return texts.error();
  content.tuning_texts = set_apart(std::move(*texts), (calibrated + length - 1) / length).apart;
  if (!content.unfit && runs_model)
    content.unfit = unfit(content.tuning_texts, content.profile, *content.model);
  return {};
}

}  // namespace

result<cost_profile> load_costs(const std::string& name, const model::model_config& shape) {
  if (!is_measured_cost_profile(name)) return named_cost_profile(name);
  const auto choice = parse_cost_profile_choice(name);
  if (!choice) return choice.error();
  auto costs = model::own_costs(shape);
  costs.name = name;
  costs.batch_ns = choice->batch_ns;
  costs.message_ns = choice->message_ns;
  return costs;
}

result<planning::profile> calibrate_on(const fs::path& model_folder,
                                       const model::transformer& model,
                                       const model::tokenizer& tokens, const fs::path& text,
                                       std::size_t max_tokens, std::uint64_t seed,
                                       const std::vector<precision>& copies, job& work,
                                       std::shared_ptr<const model::expert_source> elsewhere) {
  const auto length = document_tokens(model);
  const auto wanted = read_documents(text, tokens, length, max_tokens);
  if (!wanted) return wanted.error();
  auto documents = read_documents(text, tokens, length, max_tokens + most_tuning_tokens);
  if (!documents) return documents.error();
  // The last one that is wanted may be a part of what it is among all.
  for (std::size_t i = 0; i < wanted->size(); ++i) (*documents)[i] = (*wanted)[i];
  auto parts = set_apart(std::move(*documents), wanted->size());
  work.begin("calibrating");
  calibration_request request;
  request.folder = model_folder;
  request.model_name = fs::canonical(model_folder).filename().string();
  request.documents = std::move(parts.documents);
  request.apart = std::move(parts.apart);
  request.seed = seed;
  request.copies = copies;
  request.elsewhere = std::move(elsewhere);
  request.progress = work.advancing();
  request.should_stop = work.stopping();
  return calibrate_model(model, request);
}

bool lacks_profile(const world_options& options) {
  if (options.profile == "none") return true;
  std::error_code status;
  return options.profile.empty() && !options.makes_profile &&
         !fs::exists(fs::path(options.model) / "profile.json", status);
}

result<world> load_world(const world_options& options, job& work) {
  std::error_code status;
  if (!fs::is_directory(options.model, status))
    return error{errc::not_found,
                 fmt::format("--model {}: no such folder; check the path", options.model)};
  work.begin("loading the model");
  world content;
  content.folder = options.model;
  content.model_name = name_of(options);
  if (!options.device.empty())
    if (auto known = check_device(options.device); !known) return at("--device", known.error());
  if (auto done = load_servers(content, options); !done) return done.error();
  if (auto done = load_model(content, options, work); !done) return done.error();
  if (auto done = load_charges(content, options); !done) return done.error();
  if (options.use == profile_use::none) return content;
  auto digest = model::model_digest(content.folder);
  if (!digest) return digest.error();
  content.model_digest = std::move(*digest);
  if (auto done = load_profile(content, options, work); !done) return done.error();
  if (auto done = load_on_devices(content, options); !done) return done.error();
  if (auto done = load_coarser(content, options); !done) return done.error();
  try {
    const bool may_be_tuned = options.runs_model && !needs_no_profile(content, options);
    if (auto done = load_tuning_texts(content, may_be_tuned); !done) return done.error();
  } catch (const model::expert_failure& failed) {
    return failed.why;
  }
  return content;
}

world on_servers(world content, cluster servers) {
  content.servers = std::move(servers);
  charge_overheads(content.servers, content.costs);
  return content;
}

actors::service_options service_in(const world& content, std::uint64_t seed) {
  actors::service_options service;
  service.model = content.model;
  service.coarser = content.coarser;
  service.on_devices = content.on_devices;
  service.tokens = content.tokens;
  service.servers = content.servers;
  // Trials of a plan run here, where those devices need not be.
  if (content.only_plans)
    for (auto& server : service.servers.servers) server.device = kernels_device;
  service.costs = content.costs;
  service.profile = content.profile;
  service.seed = seed;
  return service;
}

}  // namespace ordermoe::setup
