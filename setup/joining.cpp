#include "setup/joining.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "actors/admin/member_roll.hpp"
#include "actors/cluster/node.hpp"
#include "actors/cluster/plan_fetch.hpp"
#include "actors/protocol/cluster_seat.hpp"
#include "config/files.hpp"
#include "config/log_events.hpp"
#include "model/architecture/model_config.hpp"
#include "planning/profile.hpp"
#include "planning/strategies/measured_activation.hpp"
#include "setup/cluster_folder.hpp"
#include "setup/kept_activation.hpp"
#include "setup/node_setup.hpp"
#include "setup/plan_file.hpp"

namespace ordermoe::setup {

namespace {

namespace fs = std::filesystem;
using actors::paper;

bool is_there(const fs::path& path) {
  std::error_code failed;
  return fs::exists(path, failed);
}

/// Who is dialled and where, as this host last heard.
result<std::vector<net::transport_peer>> members_of(const node_file& file,
                                                    std::vector<net::transport_peer> peers) {
  std::set<std::string> spares;
  for (const auto& member : file.members)
    if (member.spare) spares.insert(member.name);
  const auto roll = actors::member_roll::open(file.state / members_file, spares);
  if (!roll) return roll.error();
  const auto words = (*roll)->now();
  for (auto& peer : peers) {
    peer.absent = (*roll)->is_absent(peer.name);
    const auto word = words.find(peer.name);
    if (word == words.end() || word->second.address.empty()) continue;
    if (auto at = net::parse_address(word->second.address)) peer.at = std::move(*at);
  }
  return peers;
}

result<std::optional<actors::plan_at_hand>> plan_here(const node_file& file) {
  std::optional<actors::plan_at_hand> none;
  if (!is_there(file.plan)) return none;
  const auto text = read_file(file.plan);
  if (!text) return text.error();
  const auto plan = read_plan_file(file.plan);
  if (!plan) return plan.error();
  return std::optional(
      actors::plan_at_hand{sha256_hex(*text), std::max<std::uint64_t>(1, plan->plan.epoch)});
}

error as_sent(const actors::fetched_plan& fetched, paper which, error why) {
  return {why.code,
          fmt::format("the {} in force, as {} sent it, does not fit this host: {}; make this "
                      "host's node.toml, cluster file and model those of the other members",
                      actors::to_string(which), fetched.from, why.message)};
}

/// What came, as files that are read like those that an operator brings.
class arrived_files {
 public:
  arrived_files(const node_file& file, const node_place& place, const fs::path& folder,
                const actors::fetched_plan& fetched)
      : file_(file), place_(place), folder_(folder), fetched_(fetched) {}
  ~arrived_files() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  result<void> check() {
    auto shape = model::read_model_config(file_.model);
    if (!shape) return shape.error();
    for (const auto which : {paper::profile, paper::activation, paper::plan}) {
      if (!text_of(which)) continue;
      if (auto written = write_file(folder_ / actors::to_string(which), *text_of(which)); !written)
        return written;
      const auto good = which == paper::profile      ? check_profile()
                        : which == paper::activation ? check_activation(*shape)
                                                     : check_plan(*shape);
      if (!good) return as_sent(fetched_, which, good.error());
    }
    return {};
  }

  /// The plan last: where it is there, all that it needs is.
  result<void> keep() const {
    if (const auto& text = text_of(paper::profile))
      if (auto written = write_file(file_.profile, *text); !written) return written;
    if (auto kept = keep_activation(); !kept) return kept;
    if (const auto& text = text_of(paper::plan)) return write_file(file_.plan, *text);
    return {};
  }

 private:
  const std::optional<std::string>& text_of(paper which) const {
    return fetched_.texts[static_cast<std::size_t>(which)];
  }

  /// Where the others go by none, one of before would make this host decide otherwise.
  result<void> keep_activation() const {
    const auto path = file_.state / actors::kept_activation_name;
    if (const auto& text = text_of(paper::activation))
      return write_file(path, kept_activation_text(fetched_.told.profile().sha256, *text));
    if (!text_of(paper::plan)) return {};
    std::error_code failed;
    fs::remove(path, failed);
    if (!failed) return {};
    return error{errc::io, fmt::format("{}: cannot be removed: {}; remove it by hand, it is of "
                                       "another plan than the one in force",
                                       path.string(), failed.message())};
  }

  result<void> check_plan(const model::model_config& shape) const {
    const auto plan = read_plan_file(folder_ / actors::to_string(paper::plan));
    if (!plan) return plan.error();
    world content;
    content.model_name = file_.model.filename().string();
    content.model_digest = place_.model_digest;
    content.servers = place_.servers;
    auto costs = load_costs(file_.costs, shape);
    if (!costs) return costs.error();
    content.costs = std::move(*costs);
    return check_made_for(*plan, content);
  }

  result<void> check_profile() const {
    const auto profile = planning::read_profile(folder_ / actors::to_string(paper::profile));
    if (!profile) return profile.error();
    if (profile->model_digest == place_.model_digest) return {};
    return error{errc::mismatch,
                 fmt::format("made for a model with digest {}, {} has {}",
                             profile->model_digest.substr(0, 12), file_.model.string(),
                             place_.model_digest.substr(0, 12))};
  }

  result<void> check_activation(const model::model_config& shape) const {
    const auto measured = planning::parse_activation(*text_of(paper::activation), "activation",
                                                     shape.n_layers, shape.n_experts, shape.top_k);
    return measured ? result<void>{} : measured.error();
  }

  const node_file& file_;
  const node_place& place_;
  fs::path folder_;
  const actors::fetched_plan& fetched_;
};

}  // namespace

bool lacks_plan(const node_file& file) {
  return !is_there(file.plan) || !is_there(file.profile);
}

result<bool> fetch_plan(const node_file& file, const joining_ways& how) {
  auto place = place_node(file);
  if (!place) return place.error();
  auto members = members_of(file, place->transport.peers);
  if (!members) return members.error();
  auto mine = plan_here(file);
  if (!mine) return mine.error();
  actors::plan_fetch_options options;
  options.identity = place->transport.identity;
  options.carried_by = place->transport.carried_by;
  options.limits = place->transport.limits;
  options.members = std::move(*members);
  options.model = place->model_digest;
  options.cluster_file = sha256_hex(cluster_toml(place->servers));
  options.mine = *mine;
  if (const auto profile = read_file(file.profile)) options.profile = sha256_hex(*profile);
  options.folder = file.state / "joining";
  options.once = how.once;
  options.log = how.log;
  options.pause = how.pause;
  const auto fetched = actors::fetch_plan(std::move(options));
  if (!fetched) return fetched.error();
  if (!*fetched) return false;
  arrived_files files(file, *place, file.state / "joining", **fetched);
  if (auto good = files.check(); !good) return good.error();
  if (auto kept = files.keep(); !kept) return kept.error();
  std::size_t bytes = 0;
  for (const auto& text : (*fetched)->texts) bytes += text ? text->size() : 0;
  how.log.tell(log_event::plan_fetched,
               {{"epoch", (*fetched)->told.epoch}, {"bytes", bytes}, {"peer", (*fetched)->from}});
  return true;
}

namespace {

/// Passes records on, and keeps why each member gave no plan.
class heard_refusals {
 public:
  explicit heard_refusals(const log_outlet& to) : kept_(std::make_shared<by_member>()) {
    outlet_ = log_outlet(
        [to, kept = kept_](const log_record& record) {
          if (record.event == log_event::plan_refused) keep(*kept, record);
          to.tell(record.event, record.fields);
        },
        log_level::debug);
  }

  const log_outlet& outlet() const { return outlet_; }
  /// "; s1: ...; s2: ...".
  std::string text() const {
    std::string all;
    for (const auto& [member, why] : *kept_) all += fmt::format("; {}: {}", member, why);
    return all;
  }

 private:
  using by_member = std::map<std::string, std::string>;

  static void keep(by_member& kept, const log_record& record) {
    std::string member, why;
    for (const auto& field : record.fields)
      (field.name == "peer" ? member : why) = ordermoe::text_of(field);
    kept[member] = why;
  }

  std::shared_ptr<by_member> kept_;
  log_outlet outlet_;
};

error not_there_in_time(const node_file& file, std::chrono::milliseconds longest,
                        const std::string& heard) {
  std::vector<std::string> asked;
  for (const auto& member : file.members)
    if (!member.address.empty())
      asked.push_back(fmt::format("{} at {}", member.name, member.address));
  return {errc::timed_out,
          fmt::format("{}: the plan in force was not there within {} ms; asked {}{}; see that they "
                      "run, let this host in with `ordermoe admin members add {}`, or wait longer",
                      file.name, longest.count(), fmt::join(asked, ", "), heard, file.name)};
}

}  // namespace

result<void> await_plan(const node_file& file, const awaiting_ways& how) {
  const auto& missing = is_there(file.plan) ? file.profile : file.plan;
  how.log.tell(log_event::plan_wanted, {{"why", fmt::format("{} is not there", missing.string())}});
  const heard_refusals heard(how.log);
  const auto since = std::chrono::steady_clock::now();
  bool late = false;
  const auto come = fetch_plan(
      file, {false, heard.outlet(), [&] {
               late = how.longest && std::chrono::steady_clock::now() - since >= *how.longest;
               return late || (how.pause && how.pause());
             }});
  if (come) return {};
  if (come.error().code != errc::interrupted) return come.error();
  if (late) return not_there_in_time(file, *how.longest, heard.text());
  return error{errc::interrupted,
               fmt::format("{}: was ended before the plan in force was there; start it again, and "
                           "it goes on from what came, which is kept in {}",
                           file.name, (file.state / "joining").string())};
}

bool plan_watch::look(const actors::node& running, const std::function<bool()>& pause) {
  if (!running.is_refused_for_plan()) {
    wait_ = least_wait;
    return false;
  }
  if (std::chrono::steady_clock::now() < next_) return false;
  const auto come = fetch_plan(file_, {true, log_, pause});
  if (!come && come.error().code != errc::interrupted && told_ != come.error().message) {
    told_ = come.error().message;
    log_.tell(log_event::plan_refused, {{"why", told_}});
  }
  next_ = std::chrono::steady_clock::now() + wait_;
  wait_ = std::min(most_wait, 2 * wait_);
  return come && *come;
}

}  // namespace ordermoe::setup
