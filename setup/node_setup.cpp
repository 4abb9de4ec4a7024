#include "setup/node_setup.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "actors/admin/member_roll.hpp"
#include "config/devices.hpp"
#include "config/files.hpp"
#include "config/folder_sync.hpp"
#include "config/json.hpp"
#include "config/threads.hpp"
#include "model/architecture/model_config.hpp"
#include "model/checkpoint/expert_shelf.hpp"
#include "model/checkpoint/inspect.hpp"
#include "model/checkpoint/part.hpp"
#include "model/checkpoint/safetensors.hpp"
#include "net/identity/certificates.hpp"
#include "setup/channel.hpp"
#include "setup/cluster_folder.hpp"
#include "setup/joining.hpp"
#include "setup/kept_activation.hpp"
#include "setup/node_device.hpp"
#include "setup/plan_file.hpp"
#include "setup/preparation.hpp"
#include "setup/world.hpp"
#include "trace/sink.hpp"

namespace ordermoe::setup {

namespace {

namespace fs = std::filesystem;

constexpr const char* boot_name = "boot";

std::vector<std::string> names_of(const cluster& servers) {
  std::vector<std::string> names;
  for (const auto& server : servers.servers) names.push_back(server.name);
  return names;
}

/// Which server this node is.
result<std::uint32_t> place_in(const cluster& servers, const node_file& file) {
  const auto names = names_of(servers);
  const auto found = std::ranges::find(names, file.name);
  if (found == names.end())
    return error{errc::mismatch,
                 fmt::format("node {}: {} has no server of that name, expected one of {}; correct "
                             "the name",
                             file.name, file.cluster.string(), fmt::join(names, ", "))};
  for (const auto& member : file.members)
    if (std::ranges::find(names, member.name) == names.end())
      return error{
          errc::mismatch,
          fmt::format("node {}: its member {} is no server of {}, expected "
                      "{}; remove it",
                      file.name, member.name, file.cluster.string(), fmt::join(names, ", "))};
  if (file.members.size() + 1 != names.size())
    return error{
        errc::mismatch,
        fmt::format("node {}: {} members besides itself, expected {}: every other server "
                    "of {}; add those that are missing",
                    file.name, file.members.size(), names.size() - 1, file.cluster.string())};
  return static_cast<std::uint32_t>(found - names.begin());
}

/// A trace of an earlier start goes on as NAME.N.EXTENSION, of the first free number: each start writes one of its own.
result<void> keep_earlier(const fs::path& trace) {
  std::error_code problem;
  if (!fs::is_regular_file(trace, problem)) return {};
  auto kept = trace;
  for (int number = 1; fs::exists(kept, problem); ++number)
    kept.replace_filename(
        fmt::format("{}.{}{}", trace.stem().string(), number, trace.extension().string()));
  fs::rename(trace, kept, problem);
  if (!problem) return {};
  return error{errc::io, fmt::format("{}: cannot be kept as {}: {}; move it away", trace.string(),
                                     kept.string(), problem.message())};
}

/// The folder of what a node has to know the next time.
result<void> make_state(const node_file& file) {
  const auto place = fmt::format("node {}: state", file.name);
  std::error_code failed;
  fs::create_directories(file.state, failed);
  if (failed)
    return error{errc::io, fmt::format("{} {}: cannot be made: {}; name another folder", place,
                                       file.state.string(), failed.message())};
  if (auto writable = check_writable(file.state / boot_name); !writable)
    return at(place, writable.error());
  return {};
}

/// How often this node was started, this time included.
result<std::uint64_t> count_start(const fs::path& state) {
  std::error_code failed;
  const auto path = state / boot_name;
  std::uint64_t boot = 0;
  if (fs::exists(path, failed)) {
    const auto text = read_file(path, 64);
    if (!text) return text.error();
    const auto end = std::from_chars(text->data(), text->data() + text->size(), boot).ptr;
    if (end == text->data() || boot == 0 || boot >= 0xffffff)
      return error{errc::malformed,
                   fmt::format("{}: found '{}', expected the number of this node's starts; write a "
                               "number that is larger than any before",
                               path.string(), text->substr(0, 32))};
  }
  ++boot;
  if (auto written = write_file(path, fmt::format("{}\n", boot)); !written) return written.error();
  return boot;
}

/// What an admin keeps over the end of a node: texts by name, in files of the state folder that nobody else reads.
result<void> read_kept(const fs::path& state, std::map<std::string, std::string>& kept) {
  constexpr std::size_t most_bytes = 1 << 20;
  for (const auto* name : {actors::kept_policy_name, actors::kept_tokens_name}) {
    std::error_code failed;
    if (!fs::exists(state / name, failed)) continue;
    auto text = read_file(state / name, most_bytes);
    if (!text) return text.error();
    kept[name] = std::move(*text);
  }
  return {};
}

result<void> write_kept(const fs::path& path, const std::string& text) {
  // A file that is there keeps its mode when it is replaced. A new one has another name until it is whole: whoever starts behind a process that
  // ended meanwhile is not to find an empty one.
  std::error_code failed;
  if (fs::exists(path, failed)) return write_file(path, text);
  auto coming = path;
  coming += ".new";
  if (const int made = ::open(coming.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600); made >= 0)
    ::close(made);
  if (auto written = write_file(coming, text); !written) {
    ::unlink(coming.c_str());
    return written;
  }
  fs::rename(coming, path, failed);
  if (failed)
    return error{errc::io, fmt::format("{}: renaming {} to it failed: {}", path.string(),
                                       coming.string(), failed.message())};
  sync_folder(path.parent_path());
  return {};
}

std::int64_t milliseconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

result<std::vector<net::transport_peer>> peers_of(const node_file& file, const cluster& servers) {
  std::vector<net::transport_peer> peers;
  for (const auto& server : servers.servers) {
    const auto found = std::ranges::find(file.members, server.name, &node_member::name);
    if (found == file.members.end()) continue;
    net::transport_peer peer{found->name, std::nullopt};
    if (!found->address.empty()) {
      auto where = net::parse_address(found->address);
      if (!where)
        return at(fmt::format("node {}: address of member {}", file.name, found->name),
                  where.error());
      peer.at = std::move(*where);
    }
    peers.push_back(std::move(peer));
  }
  return peers;
}

result<net::transport_options> transport_of(const node_file& file, const cluster& servers) {
  net::transport_options options;
  auto identity = net::tls_identity::load({file.authority, file.certificate, file.key,
                                           file.authority.parent_path() / net::revocations_file,
                                           file.state / net::revocations_file});
  if (!identity) return identity.error();
  if ((*identity)->is_revoked((*identity)->facts().serial))
    return error{errc::mismatch,
                 fmt::format("{}: is revoked; make another with `ordermoe cert renew {}`",
                             file.certificate.string(), file.name)};
  if (auto can =
          net::check_can_honour((*identity)->revocations(), revocations_on(file.channel),
                                fmt::format("node {}: {}", file.name, net::revocations_file));
      !can)
    return can.error();
  const auto& who = (*identity)->name();
  if (who.of != net::role::node || who.name != file.name)
    return error{errc::mismatch,
                 fmt::format("{}: is of {}, expected node {}; issue one with `ordermoe cert issue "
                             "{}`",
                             file.certificate.string(), net::uri_of(who), file.name, file.name)};
  options.identity = std::move(*identity);
  for (const auto& text : file.listen) {
    auto where = net::parse_address(text);
    if (!where) return at(fmt::format("node {}: listen", file.name), where.error());
    options.listen.push_back(std::move(*where));
  }
  auto peers = peers_of(file, servers);
  if (!peers) return peers.error();
  options.peers = std::move(*peers);
  options.takes_clients = true;
  options.busy_poll_ns = static_cast<std::int64_t>(file.busy_poll_us * 1e3);
  options.carried_by = connections_of(file.channel);
  return options;
}

/// Everything of a world but the model.
result<world> world_of(const node_file& file, job& work) {
  world content;
  content.folder = file.model;
  std::error_code status;
  if (!fs::is_directory(file.model, status))
    return error{errc::not_found, fmt::format("node {}: model {}: no such folder; check the path",
                                              file.name, file.model.string())};
  content.model_name = fs::weakly_canonical(file.model).filename().string();
  content.loading.kv =
      file.kv_precision == "fp32" ? model::kv_precision::fp32 : model::kv_precision::bf16;
  work.begin("reading plan and profile");
  auto servers = read_cluster(file.cluster);
  if (!servers) return servers.error();
  content.servers = std::move(*servers);
  auto digest = model::model_digest(content.folder);
  if (!digest) return digest.error();
  content.model_digest = std::move(*digest);
  auto profile = planning::read_profile(file.profile);
  if (!profile) return profile.error();
  if (profile->model_digest != content.model_digest)
    return error{errc::mismatch,
                 fmt::format("{}: made for a model with digest {}, {} has {}; run `ordermoe "
                             "calibrate` for this model",
                             file.profile.string(), profile->model_digest.substr(0, 12),
                             file.model.string(), content.model_digest.substr(0, 12))};
  profile->texts.clear();
  content.profile = std::move(*profile);
  auto tokens = model::tokenizer::load(content.folder);
  if (!tokens) return tokens.error();
  content.tokens = std::move(*tokens);
  return content;
}

/// What came from other nodes.
constexpr const char* experts_folder = "experts";

/// Whether a folder that is a part of the model has what the plan places on server m, but for what came from other nodes.
result<void> check_part(const world& content, const plan_file& plan, std::uint32_t m,
                        const fs::path& state) {
  const auto part = model::read_part(content.folder);
  if (!part) return part.error();
  if (!*part) return {};
  const auto shelf = model::expert_shelf::open(content.folder, state / experts_folder);
  if (!shelf) return shelf.error();
  for (const auto& each : plan.plan.experts)
    if (each.server.index() == m && !(*shelf)->has(each.layer, each.expert))
      return error{
          errc::mismatch,
          fmt::format(
              "{}: expert {} of layer {}, which {} places on this node, is not in this part "
              "of the model, which is that of server {}, and did not come from another node; write "
              "it again with `ordermoe model shard`",
              content.folder.string(), each.expert.index(), each.layer.index(), plan.path.string(),
              (*part)->server)};
  return {};
}

/// What of the model is on this host's disk.
struct disk_contents {
  std::shared_ptr<model::expert_shelf> shelf;
  std::shared_ptr<const model::expert_reader> reader;
};
result<disk_contents> open_disk(const fs::path& folder, const fs::path& state) {
  disk_contents made;
  auto shelf = model::expert_shelf::open(folder, state / experts_folder);
  if (!shelf) return shelf.error();
  made.shelf = std::move(*shelf);
  auto reader = model::expert_reader::open(folder, made.shelf);
  if (!reader) return reader.error();
  made.reader = std::move(*reader);
  return made;
}

/// The model with the experts that the plan places on server m.
result<std::shared_ptr<const model::transformer>> load_share(const world& content,
                                                             const plan_file& plan, std::uint32_t m,
                                                             const disk_contents& disk, job& work) {
  const planning::placement_index index(plan.plan);
  auto loading = content.loading;
  if (plan.origin.whole_model != precision::stored)
    loading.expert_precision = plan.origin.whole_model;
  if (plan.plan.precision_at(m) != precision::stored)
    loading.expert_precision = plan.plan.precision_at(m);
  const auto hosts = [&](layer_id layer, expert_id expert) {
    return index.hosts(m, layer.index(), expert.index());
  };
  // What came from other nodes is read beside what the folder has; what is in neither is an error of the folder's.
  bool any_came = false;
  loading.hosts = [&](layer_id layer, expert_id expert) {
    if (!hosts(layer, expert)) return false;
    const bool came = !disk.shelf->is_in_model(layer, expert) && disk.shelf->has(layer, expert);
    any_came |= came;
    return !came;
  };
  work.begin("loading this node's experts");
  loading.watch = {work.advancing(), work.stopping()};
  auto loaded = model::transformer::load(content.folder, loading);
  if (!loaded || !any_came) return loaded;
  return (*loaded)->with_experts(*disk.reader, hosts, loading.expert_precision);
}

/// What is rehearsed, where the frames of this model fit into padding: no row of it may be larger than it is charged.
result<std::optional<rehearsal>> rehearsal_of(const node_file& file, const world& content) {
  if (!file.rehearsed) return std::optional<rehearsal>();
  const auto needed = least_stretch(content.costs, content.model->config(), content.loading.kv);
  if (file.rehearsed->stretch >= needed) return file.rehearsed;
  return error{
      errc::out_of_range,
      fmt::format("node {}: [rehearsal]: found stretch = {}, expected {} at least: rows of "
                  "this model are up to so many times the bytes that {} charges; raise it "
                  "and make the links as many times faster, or choose the costs of a "
                  "larger model",
                  file.name, file.rehearsed->stretch, needed, content.costs.name)};
}

/// The strategy of a plan, as it was tuned when it was made.
result<prepared> prepare_as_made(const world& content, const plan_file& plan, job& work) {
  preparation_request request;
  request.strategy = plan.origin.strategy;
  request.options.quality_percent = plan.origin.quality_percent;
  request.options.dry_run_requests = 0;
  auto as_made = request_with(plan, std::move(request));
  if (!as_made) return as_made.error();
  return prepare(content, *as_made, work);
}

/// In all of this two nodes agree, or do not work together.
result<std::vector<net::agreement>> agreements(const node_file& file, const world& content,
                                               const actors::service_options& service) {
  const auto plan = read_file(file.plan);
  if (!plan) return plan.error();
  const auto& shape = content.model->config();
  // Where processors or libraries round otherwise, answers would depend on who computed what.
  const auto arithmetic = arithmetic_of(content.loading.device, shape.kind, file.state);
  if (!arithmetic) return arithmetic.error();
  auto agreed = model_agreements(content.model_digest, shape);
  const net::agreement others[] = {
      {"cluster_file", sha256_hex(cluster_toml(content.servers))},
      {"plan", sha256_hex(*plan)},
      {"strategy", service.chosen.name},
      {"costs", content.costs.name},
      {"kv_row_bytes",
       std::to_string(shape.kv_row_size() * model::bytes_per_number(content.model->kv()))},
      {"chunk_rows", std::to_string(service.chunk_rows)},
      {"most_positions", std::to_string(service.most_positions)},
  };
  agreed.insert(agreed.end(), std::begin(others), std::end(others));
  agreed.insert(agreed.end(), arithmetic->begin(), arithmetic->end());
  if (service.rehearsed)
    agreed.emplace_back("rehearsal",
                        fmt::format("dilation {}, stretch {}", service.rehearsed->dilation,
                                    service.rehearsed->stretch));
  return agreed;
}

}  // namespace

namespace {

model::weight_storage kept_as(precision kept) {
  return kept == precision::int8   ? model::weight_storage::int8
         : kept == precision::int4 ? model::weight_storage::int4
                                   : model::weight_storage::bf16;
}

}  // namespace

std::vector<net::agreement> model_agreements(const std::string& digest,
                                             const model::model_config& shape) {
  auto ends = shape.other_eos_ids;
  if (shape.eos_id >= 0) ends.push_back(shape.eos_id);
  std::ranges::sort(ends);
  return {{"model", digest},
          {"ends", fmt::format("{}", fmt::join(ends, " "))},
          {"hidden_size", std::to_string(shape.hidden_size)}};
}

result<node_place> place_node(const node_file& file) {
  node_place made;
  auto servers = read_cluster(file.cluster);
  if (!servers) return servers.error();
  made.servers = std::move(*servers);
  const auto place = place_in(made.servers, file);
  if (!place) return place.error();
  made.server = *place;
  auto transport = transport_of(file, made.servers);
  if (!transport) return transport.error();
  made.transport = std::move(*transport);
  auto digest = model::model_digest(file.model);
  if (!digest) return digest.error();
  made.model_digest = std::move(*digest);
  return made;
}

std::uint32_t least_stretch(const cost_profile& costs, const model::model_config& shape,
                            model::kv_precision kv) {
  const auto ratio = [](std::size_t sent, std::int64_t charged) {
    const auto by = std::max<std::int64_t>(1, charged);
    return (static_cast<std::int64_t>(sent) + by - 1) / by;
  };
  const auto hidden = ratio(shape.hidden_size * sizeof(float), costs.hidden_bytes);
  const auto rows = ratio(shape.kv_row_size() * model::bytes_per_number(kv), costs.kv_row_bytes);
  return static_cast<std::uint32_t>(std::max({std::int64_t{1}, hidden, rows}));
}

namespace {

result<node_outlook> check_without_plan(const node_file& file) {
  const auto place = place_node(file);
  if (!place) return place.error();
  auto device = device_of(file, place->servers, place->server);
  if (!device) return device.error();
  const auto facts = net::read_certificate(file.certificate);
  if (!facts) return facts.error();
  const auto shape = model::read_model_config(file.model);
  if (!shape) return shape.error();
  if (auto costs = load_costs(file.costs, *shape); !costs) return costs.error();
  node_outlook outlook;
  outlook.server = place->server;
  outlook.device = std::move(*device);
  outlook.certificate_until_s = facts->not_after_s;
  outlook.fetches_plan = true;
  return outlook;
}

}  // namespace

result<void> check_places(const node_file& file) {
  std::error_code ignored;
  auto there = file.state;
  while (!fs::exists(there, ignored) && there.has_parent_path() && there != there.parent_path())
    there = there.parent_path();
  if (auto made = make_state(file); !made) return made;
  for (auto each = file.state; each != there; each = each.parent_path()) fs::remove(each, ignored);
  if (file.trace.empty()) return {};
  if (auto writable = check_writable(file.trace); !writable)
    return at(fmt::format("node {}: trace", file.name), writable.error());
  return {};
}

result<node_outlook> check_node(const node_file& file, job& work) {
  if (lacks_plan(file)) return check_without_plan(file);
  auto content = world_of(file, work);
  if (!content) return content.error();
  const auto place = place_in(content->servers, file);
  if (!place) return place.error();
  auto device = device_of(file, content->servers, *place);
  if (!device) return device.error();
  if (const auto transport = transport_of(file, content->servers); !transport)
    return transport.error();
  const auto plan = read_plan_file(file.plan);
  if (!plan) return plan.error();
  const auto shape = model::read_model_config(content->folder);
  if (!shape) return shape.error();
  auto costs = load_costs(file.costs, *shape);
  if (!costs) return costs.error();
  content->costs = std::move(*costs);
  charge_overheads(content->servers, content->costs);
  if (auto fits = check_made_for(*plan, *content); !fits) return fits.error();
  const auto facts = net::read_certificate(file.certificate);
  if (!facts) return facts.error();
  node_outlook outlook;
  outlook.server = *place;
  outlook.device = std::move(*device);
  outlook.certificate_until_s = facts->not_after_s;
  outlook.n_experts = static_cast<std::size_t>(std::ranges::count_if(
      plan->plan.experts, [&](const auto& each) { return each.server.index() == *place; }));
  auto kept = plan->origin.whole_model;
  if (plan->plan.precision_at(*place) != precision::stored) kept = plan->plan.precision_at(*place);
  if (auto there = check_part(*content, *plan, *place, file.state); !there) return there.error();
  const auto sizes = model::sizes_of(*shape);
  // LibTorch's devices hold everything in fp32 at most.
  const bool kernels = outlook.device == kernels_device;
  const auto found =
      std::ranges::find(sizes.storages, kernels ? kept_as(kept) : model::weight_storage::fp32,
                        &model::storage_sizes::kept);
  const auto whole = std::ranges::find(
      sizes.storages, kernels ? model::weight_storage::bf16 : model::weight_storage::fp32,
      &model::storage_sizes::kept);
  outlook.weight_bytes =
      whole->non_expert_bytes + static_cast<std::int64_t>(outlook.n_experts) * found->expert_bytes;
  return outlook;
}

result<cluster_outlook> look_at_cluster(node_file file, const fs::path& model, job& work) {
  if (!model.empty()) file.model = model;
  auto content = world_of(file, work);
  if (!content) return content.error();
  const auto plan = read_plan_file(file.plan);
  if (!plan) return plan.error();
  auto shape = model::read_model_config(content->folder);
  if (!shape) return shape.error();
  auto costs = load_costs(file.costs, *shape);
  if (!costs) return costs.error();
  content->costs = std::move(*costs);
  charge_overheads(content->servers, content->costs);
  content->coarser[plan->origin.whole_model] = nullptr;
  if (auto fits = check_made_for(*plan, *content); !fits) return fits.error();
  auto ready = prepare_as_made(*content, *plan, work);
  if (!ready) return ready.error();
  return cluster_outlook{std::move(ready->service), std::move(*shape), content->model_name};
}

result<actors::node_options> prepare_node(const node_file& file, job& work) {
  auto content = world_of(file, work);
  if (!content) return content.error();
  const auto place = place_in(content->servers, file);
  if (!place) return place.error();
  auto device = device_of(file, content->servers, *place);
  if (!device) return device.error();
  content->loading.device = std::move(*device);
  auto transport = transport_of(file, content->servers);
  if (!transport) return transport.error();
  if (auto made = make_state(file); !made) return made.error();
  const auto plan = read_plan_file(file.plan);
  if (!plan) return plan.error();
  auto disk = open_disk(content->folder, file.state);
  if (!disk) return disk.error();
  auto share = load_share(*content, *plan, *place, *disk, work);
  if (!share) return share.error();
  content->model = *share;
  auto costs = load_costs(file.costs, content->model->config());
  if (!costs) return costs.error();
  content->costs = std::move(*costs);
  charge_overheads(content->servers, content->costs);
  content->coarser[plan->origin.whole_model] = *share;
  if (auto fits = check_made_for(*plan, *content); !fits) return fits.error();
  auto ready = prepare_as_made(*content, *plan, work);
  if (!ready) return ready.error();
  actors::node_options options;
  options.server = *place;
  options.service = std::move(ready->service);
  auto& service = options.service;
  service.mode = actors::run_mode::local;
  service.model = *share;
  service.coarser.clear();
  service.server_models.assign(content->servers.size(), nullptr);
  service.server_models[*place] = *share;
  service.threads_per_server =
      file.threads > 0 ? file.threads : std::max(1u, std::thread::hardware_concurrency());
  service.most_positions = file.most_positions > 0
                               ? file.most_positions
                               : 2 * static_cast<std::uint32_t>((*share)->config().max_context);
  service.load_period_ns = static_cast<std::int64_t>(file.load_period_ms * 1e6);
  const auto rehearsed = rehearsal_of(file, *content);
  if (!rehearsed) return rehearsed.error();
  service.rehearsed = *rehearsed;
  auto agreed = agreements(file, *content, service);
  if (!agreed) return agreed.error();
  options.coarser = std::move(disk->reader);
  options.experts = std::move(disk->shelf);
  auto plan_text = read_file(file.plan);
  if (!plan_text) return plan_text.error();
  options.papers = std::make_shared<actors::kept_papers>(
      content->model_digest, sha256_hex(cluster_toml(content->servers)));
  options.papers->put_plan(*plan_text, plan->plan.epoch);
  options.keep_plan = [path = file.plan, before = std::move(*plan_text), papers = options.papers](
                          const planning::plan& next) -> result<actors::kept_plan> {
    auto text = with_plan(before, next);
    if (!text) return text.error();
    auto written = write_file(path, *text);
    return actors::kept_plan{papers->put_plan(std::move(*text), next.epoch), std::move(written)};
  };
  options.transport = std::move(*transport);
  options.transport.agreed = std::move(*agreed);
  options.revocations = revocations_on(file.channel);
  options.believes_measures = file.measures_links;
  std::set<std::string> spares;
  for (const auto& member : file.members)
    if (member.spare) spares.insert(member.name);
  auto members = actors::member_roll::open(file.state / members_file, std::move(spares));
  if (!members) return members.error();
  options.members = std::move(*members);
  if (auto enough = check_threads(service.threads_per_server); !enough) return enough.error();
  if (!file.trace.empty()) {
    if (auto kept = keep_earlier(file.trace); !kept) return kept.error();
    auto opened = trace::sink::open(file.trace, trace::sink::stamps::before_each_line);
    if (!opened) return opened.error();
    service.sink = std::move(*opened);
  }
  if (auto read = read_kept(file.state, options.kept); !read) return read.error();
  const auto profile_text = read_file(file.profile);
  if (!profile_text) return profile_text.error();
  const auto profile_digest = sha256_hex(*profile_text);
  auto measured = read_kept_activation(file.state / actors::kept_activation_name, profile_digest,
                                       (*share)->config());
  if (!measured) return measured.error();
  options.measured = std::move(measured->content);
  options.papers->put(actors::paper::profile, *profile_text);
  if (options.measured)
    options.papers->put(actors::paper::activation, planning::activation_json(*options.measured));
  auto counted = read_kept_activation(file.state / actors::kept_counts_name, profile_digest,
                                      (*share)->config());
  if (!counted) return counted.error();
  options.counted = std::move(counted->content);
  options.counted_at_ms = counted->written_ms;
  options.drift = file.drift;
  options.keep = [state = file.state, profile_digest, papers = options.papers](
                     const std::string& name, const std::string& text) {
    if (name == actors::kept_counts_name)
      return write_kept(state / name,
                        kept_counts_text(profile_digest, text, milliseconds_since_1970()));
    if (name != actors::kept_activation_name) return write_kept(state / name, text);
    papers->put(actors::paper::activation, text);
    return write_kept(state / name, kept_activation_text(profile_digest, text));
  };
  const auto boot = count_start(file.state);
  if (!boot) return boot.error();
  options.transport.boot = *boot;
  return options;
}

}  // namespace ordermoe::setup
