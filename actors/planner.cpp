#include "actors/planner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <deque>
#include <optional>
#include <set>
#include <utility>

#include "actors/scheduling/virtual_time_worker.hpp"
#include "planning/plan_alike.hpp"
#include "planning/serving/link_board.hpp"
#include "planning/serving/phases.hpp"
#include "planning/serving/token_rules.hpp"
#include "planning/serving/two_plans.hpp"
#include "planning/strategies/adaptation.hpp"
#include "planning/strategies/left_out.hpp"
#include "trace/lines.hpp"

namespace ordermoe::actors {

namespace {

constexpr transition<planner_phase> planner_steps[] = {
    {planner_phase::idle, planner_phase::installing, "push_plan"},
    {planner_phase::installing, planner_phase::steady, "the first plan is installed, or overdue"},
    {planner_phase::steady, planner_phase::draining, "a plan that does not fit beside this one"},
    {planner_phase::draining, planner_phase::moving, "none in flight"},
    {planner_phase::steady, planner_phase::moving, "a plan that fits"},
    {planner_phase::moving, planner_phase::installing, "weights moved"},
    {planner_phase::installing, planner_phase::installed, "installed everywhere"},
    {planner_phase::installed, planner_phase::beginning, "commit"},
    {planner_phase::beginning, planner_phase::ending, "requests begin under it, or overdue"},
    {planner_phase::ending, planner_phase::retiring, "the last has ended, or overdue"},
    {planner_phase::retiring, planner_phase::steady, "the plan before is gone, or overdue"},
    {planner_phase::draining, planner_phase::steady, "overdue or abort"},
    {planner_phase::moving, planner_phase::steady, "no tables for the policy of now, or abort"},
    {planner_phase::installing, planner_phase::steady, "overdue or abort"},
    {planner_phase::installed, planner_phase::steady, "abort"},
};

/// A plan that is not yet in force.
struct next_plan {
  std::shared_ptr<const plan_in_force> content;
  std::shared_ptr<const model::transformer> model;  ///< In a node: with its experts.
  planning::weight_move move;
  plan_change change;
};

/// One that all servers of a cluster make together.
struct joint_change {
  std::uint64_t id = 0;
  admin_actor admin;
  std::int64_t drain_ns = 0;
};

using expert_set = std::function<bool(layer_id layer, expert_id expert)>;
using loaded_model = std::shared_ptr<const model::transformer>;

struct planner_state {
  planner_actor::pointer self = nullptr;
  std::shared_ptr<const service_context> context;
  planner_work work;
  phase_of<planner_phase> phase{planner_phase::idle, planner_steps};
  planning::selection_policy policy;  ///< In force.
  std::uint64_t policy_version = 0;
  std::shared_ptr<const plan_in_force> current;  ///< That requests begin under.
  std::shared_ptr<const plan_in_force> beside;   ///< Where servers have two: the other one.
  next_plan next;
  std::optional<joint_change> joint;
  bool holding = true;           ///< No request begins.
  std::uint64_t n_installs = 0;  ///< Sent to every server.
  std::uint64_t awaited_install = 0;
  std::uint64_t change = 0;         ///< Counts what needs answers of all servers.
  std::set<std::uint32_t> awaited;  ///< Servers that have not answered it.
  std::set<std::uint32_t> ended;    ///< That said so before all began under the next plan.
  bool ended_requests = false;      ///< Those that outlast the step under way were ended by name.
  std::deque<std::shared_ptr<const replan_order>> orders;
  cluster known;                ///< Servers, and links as they are known to be.
  planning::cost_model prices;  ///< By those links.
  serving::link_board links;
  bool pricing_is_set = false;
  std::shared_ptr<const std::vector<link_spec>> priced_links;  ///< Null: as the cluster file says.

  std::int64_t time_ns() const { return now_ns(self) - context->start_ns; }
  planner_actor handle() const { return caf::actor_cast<planner_actor>(self); }
  trace::tables_id tables() const { return {current->plan.epoch, current->policy}; }
  void trace(const std::string& line) const {
    if (context->trace) context->trace->line(line);
  }

  result<std::shared_ptr<const plan_in_force>> make(
      std::shared_ptr<const planning::profile> profile, planning::plan placed,
      const planning::selection_policy& by) const {
    auto tables =
        planning::selection_tables::build(*profile, placed, prices, by, work.chosen.token_budget);
    if (!tables) return tables.error();
    const planning::placement_index index(placed);
    const decoding_policy decoding{work.chosen.token_budget, work.chosen.allowance_factor,
                                   work.chosen.continue_in_place, work.chosen.quality};
    return std::make_shared<const plan_in_force>(
        plan_in_force{std::move(placed), index, std::move(*tables), policy_version,
                      std::move(profile), decoding, priced_links});
  }

  void report(error what, std::uint32_t server = 0,
              problem::scope of = problem::scope::service) const {
    problem found;
    found.of = of;
    found.server = server;
    found.what = std::move(what);
    found.time_ns = time_ns();
    self->send(work.recorder, std::move(found));
  }

  /// A step of a change takes as long as the longest request, and some.
  void await_all_servers() {
    constexpr std::int64_t slack_ns = 30'000'000'000;
    await_all_servers(context->request_timeout_ns + slack_ns);
  }

  void await_all_servers(std::int64_t longest_ns) {
    ++change;
    awaited.clear();
    awaited.insert(work.ids.begin(), work.ids.end());
    send_later(self, handle(), longest_ns, change_overdue{change}, later::timer);
  }

  /// What is in force, to one server or all; `model`: with other experts.
  install_plans what_is_there(loaded_model model = nullptr) const {
    install_plans message;
    message.plans = {current};
    if (beside)
      message.plans.insert(
          beside->plan.epoch < current->plan.epoch ? message.plans.begin() : message.plans.end(),
          beside);
    message.begins_under = current->plan.epoch;
    message.number = n_installs;
    message.planner = handle();
    message.model = std::move(model);
    return message;
  }

  void install(const loaded_model& model = nullptr) {
    ++n_installs;
    for (const auto& server : work.servers) self->send(server, what_is_there(model));
  }

  void install_and_await(planner_phase next_phase, const loaded_model& model = nullptr) {
    phase.move(next_phase);
    await_all_servers();
    awaited_install = n_installs + 1;
    install(model);
  }

  void hold() {
    holding = true;
    for (const auto& server : work.servers) self->send(server, hold_admission{change, handle()});
  }

  void resume() {
    if (!std::exchange(holding, false)) return;
    for (const auto& server : work.servers) self->send(server, resume_admission{});
  }

  void announce(bool new_policy) {
    if (work.monitor) self->send(work.monitor, plan_announced{current, handle(), new_policy});
  }

  // -------------------------------------------------------------------------------- first plan

  void push() {
    if (!phase.is(planner_phase::idle)) return;
    policy = work.chosen.policy;
    auto placed = work.chosen.plan;
    placed.epoch = first_epoch(placed, *context);
    const auto measured = context->seat ? context->seat->measured : nullptr;
    auto content = make(by(measured), std::move(placed), policy);
    if (!content) return report(content.error());
    current = std::move(*content);
    announce(true);
    install_and_await(planner_phase::installing);
  }

  void count(const plans_installed& message) {
    // In other phases other answers are awaited, and tables change in all of them.
    if (!phase.is(planner_phase::installing) && !phase.is(planner_phase::beginning) &&
        !phase.is(planner_phase::retiring))
      return;
    if (message.number < awaited_install || awaited.erase(message.server) == 0) return;
    if (awaited.empty()) all_have_installed();
  }

  void all_have_installed() {
    switch (phase.now()) {
      case planner_phase::installing:
        return beside ? end_installing() : end_first_installing();
      case planner_phase::beginning:
        return end_beginning();
      case planner_phase::retiring:
        return end_retiring();
      default:
        return;
    }
  }

  void end_first_installing() {
    phase.move(planner_phase::steady);
    resume();
    next_order();
  }

  /// It gets what is in force as the others got it; what it has to answer is asked of the new one.
  void replace(const server_replaced& message) {
    const auto place = std::ranges::find(work.ids, message.server);
    if (place == work.ids.end()) return;
    const auto server = caf::actor_cast<edge_server_actor>(message.handle);
    work.servers[static_cast<std::size_t>(place - work.ids.begin())] = server;
    if (!current) return;
    self->send(server, what_is_there());
    if (phase.is(planner_phase::draining) && awaited.contains(message.server))
      return self->send(server, hold_admission{change, handle()});
    if (!holding) self->send(server, resume_admission{});
    // Whatever it had under the plan before is over.
    if (phase.is(planner_phase::ending)) count(requests_ended{current->plan.epoch, message.server});
  }

  // ------------------------------------------------------------------------------------- policies

  void change_to(const change_weights& message) {
    if (!current) return;
    auto by = policy;
    by.omega_time = message.weights.omega_time;
    by.omega_quality = message.weights.omega_quality;
    auto changed = described("window");
    changed.requests = message.requests;
    if (!adopt(by, changed)) return;
    if (context->trace)
      trace(trace::weights_line(tables(), message.kappa, message.weights, message.requests,
                                time_ns()));
    install();
  }

  void change_to(const policy_order& order) {
    if (!current) return;
    auto changed = described("order");
    if (!adopt(order.policy, changed)) return;
    if (context->trace) trace(trace::policy_line(tables(), policy, time_ns()));
    announce(true);
    install();
  }

  policy_change described(std::string reason) const {
    policy_change changed;
    changed.reason = std::move(reason);
    changed.epoch = current->plan.epoch;
    changed.time_ns = time_ns();
    return changed;
  }

  /// Tables of the plan in force by another policy; false, and told why, where there are none.
  bool adopt(const planning::selection_policy& by, policy_change& changed) {
    ++policy_version;
    auto content = make(current->profile, current->plan, by);
    if (!content) {
      --policy_version;
      changed.refused = content.error().message;
    } else {
      policy = by;
      current = std::move(*content);
      renew_beside();
    }
    changed.version = policy_version;
    changed.weights = {policy.omega_time, policy.omega_quality};
    self->send(work.recorder, changed);
    return changed.refused.empty();
  }

  /// The other plan's tables, by policy and links of now; by those before, if need be.
  void renew_beside() {
    if (!beside) return;
    auto content = make(beside->profile, beside->plan, policy);
    if (!content) return report(content.error());
    beside = std::move(*content);
  }

  // ---------------------------------------------------------------------------------------- links

  void take(const links_told& message) {
    if (!links.take(message.report) || std::exchange(pricing_is_set, true)) return;
    // Links of many servers change together, and tables take a while.
    constexpr std::int64_t delay_ns = 1'000'000'000;
    send_later(self, handle(), delay_ns, price_links{}, later::timer);
  }

  /// The same plans and policy with tables by what links are now. A change of plan on its way takes them from here.
  void price() {
    pricing_is_set = false;
    known.links = links.links();
    prices = planning::make_cost_model(known, context->costs);
    priced_links = std::make_shared<const std::vector<link_spec>>(known.links);
    if (!current) return;
    auto content = make(current->profile, current->plan, policy);
    if (!content) return report(content.error());
    current = std::move(*content);
    renew_beside();
    install();
  }

  // ---------------------------------------------------------------------------------- next plans

  void order(std::shared_ptr<const replan_order> content) {
    orders.push_back(std::move(content));
    next_order();
  }

  void next_order() {
    while (phase.is(planner_phase::steady) && !joint && !orders.empty()) {
      const auto content = std::move(orders.front());
      orders.pop_front();
      consider("order", content->strategy, content->planning, current->profile, 0);
    }
  }

  void propose(propose_replan& message) {
    if (!phase.is(planner_phase::steady) || joint) return self->send(work.monitor, plan_kept{});
    consider("drift", work.chosen.name, work.proposals, std::move(message.profile),
             message.least_gain);
  }

  /// Where the strategy puts experts by what is known of links now, whatever plan the options bring.
  result<planning::strategy> place(const std::string& strategy, planning::strategy_options options,
                                   const planning::profile& profile) const {
    options.plan.reset();
    return planning::make_strategy(strategy, profile, known, context->costs, options);
  }

  void consider(std::string reason, const std::string& strategy, planning::strategy_options options,
                std::shared_ptr<const planning::profile> profile, double least_gain) {
    next = {};
    next.change.reason = std::move(reason);
    next.change.asked_ns = time_ns();
    const auto made = place(strategy, std::move(options), *profile);
    if (!made) return refuse(made.error().message);
    if (auto taken = weigh(made->plan, *profile, least_gain, next.change); !taken)
      return refuse(taken.error().message);
    auto placed = made->plan;
    placed.epoch = current->plan.epoch + 1;
    // What the policy in force cannot select by is known before anybody waits.
    auto content = make(std::move(profile), std::move(placed), policy);
    if (!content) return refuse(content.error().message);
    next.content = std::move(*content);
    next.change.held = !fits_beside(next.content->plan);
    next.change.held ? drain() : move();
  }

  result<void> fits_beside(const planning::plan& plan) const {
    return serving::check_both_fit(current->plan, plan, context->servers, context->costs);
  }

  /// Whether this plan may and should follow the one in force; tells `changed` what both cost.
  result<void> weigh(const planning::plan& plan, const planning::profile& profile,
                     double least_gain, plan_change& changed) const {
    if (auto fits =
            check_kv_fits(plan.residence, work.most_positions, context->servers, context->costs);
        !fits)
      return fits;
    if (plan.expert_precision != current->plan.expert_precision)
      return error{errc::unsupported,
                   "it keeps experts in another precision than servers have loaded"};
    if (planning::are_alike(current->plan, plan)) return error{errc::failed, "it is the plan in force"};
    changed.cost_before_ns =
        planning::placement_cost_ns(profile, current->plan, known, context->costs);
    changed.cost_after_ns = planning::placement_cost_ns(profile, plan, known, context->costs);
    if (changed.reason == "drift" &&
        changed.cost_after_ns >= changed.cost_before_ns * (1 - least_gain))
      return error{errc::failed, "no plan was found that is cheaper by the margin"};
    return {};
  }

  void refuse(std::string why) {
    next.change.epoch = current->plan.epoch;
    next.change.refused = std::move(why);
    if (next.change.reason == "drift" && work.monitor) self->send(work.monitor, plan_kept{});
    self->send(work.recorder, std::move(next.change));
    next = {};
  }

  // ------------------------------------------------------------------------------ from plan to plan

  void drain() {
    phase.move(planner_phase::draining);
    await_end_of_requests();
    hold();
  }

  void await_end_of_requests() {
    ended_requests = false;
    joint ? await_all_servers(joint->drain_ns) : await_all_servers();
  }

  void count(const admission_held& message) {
    if (!phase.is(planner_phase::draining) || message.change != change) return;
    if (awaited.erase(message.server) == 0 || !awaited.empty()) return;
    next.change.drained_ns = time_ns();
    if (joint) return answer_step(serving::change_step::hold);
    move();
  }

  void move() {
    phase.move(planner_phase::moving);
    if (!next.change.held) ++change;
    next.move = planning::weights_to_move(current->plan, next.content->plan, context->servers,
                                          context->costs);
    // On the wall clock all servers share the weights of one process.
    if (context->clock == clock_kind::virtual_time)
      send_later(self, handle(), next.move.ns, weights_moved{change});
    else
      self->send(handle(), weights_moved{change});
  }

  void end_moving(const weights_moved& message) {
    if (!phase.is(planner_phase::moving) || message.change != change) return;
    if (auto taken = take_beside(); !taken) return give_up_change(taken.error().message);
    install_and_await(planner_phase::installing);
  }

  /// The next plan, by the policy and links of now.
  result<void> take_beside() {
    if (next.content->policy != policy_version || next.content->links != priced_links) {
      auto content = make(next.content->profile, next.content->plan, policy);
      if (!content) return content.error();
      next.content = std::move(*content);
    }
    beside = next.content;
    return {};
  }

  void end_installing() {
    phase.move(planner_phase::installed);
    joint ? answer_step(serving::change_step::install) : begin_under_next();
  }

  /// From here there is no way back.
  void begin_under_next() {
    std::swap(current, beside);
    if (context->trace)
      trace(trace::plan_line(tables(), current->plan, *current->profile, next.change.reason,
                             next.move, time_ns()));
    announce(false);
    install_and_await(planner_phase::beginning);
  }

  void end_beginning() {
    phase.move(planner_phase::ending);
    resume();
    next.change.epoch = current->plan.epoch;
    next.change.moved_bytes = next.move.bytes;
    next.change.done_ns = time_ns();
    self->send(work.recorder, std::move(next.change));
    next = {};
    // Servers told what has ended when they began; whoever has to say more does.
    await_end_of_requests();
    for (const auto server : ended) awaited.erase(server);
    if (joint) answer_step(serving::change_step::commit);
    check_ended();
  }

  void count(const requests_ended& message) {
    if (message.epoch != current->plan.epoch) return;
    if (phase.is(planner_phase::beginning)) ended.insert(message.server);
    if (!phase.is(planner_phase::ending) || awaited.erase(message.server) == 0) return;
    check_ended();
  }

  void check_ended() {
    if (!awaited.empty()) return;
    ended.clear();
    if (joint) return self->send(joint->admin, plan_before_ended{joint->id});
    retire();
  }

  void retire() {
    loaded_model model;
    if (auto loaded = load_here(hosted_by(current->plan)))
      model = std::move(*loaded);
    else
      report(loaded.error());
    beside = nullptr;
    install_and_await(planner_phase::retiring, model);
  }

  void end_retiring() {
    phase.move(planner_phase::steady);
    if (joint) answer_step(serving::change_step::retire);
    joint.reset();
    next_order();
  }

  /// Before requests begin under the next plan: they go on under the one in force.
  void give_up_change(std::string why) {
    phase.move(planner_phase::steady);
    ++change;
    awaited.clear();
    const bool is_installed = std::exchange(beside, nullptr) != nullptr;
    const auto model = load_here(hosted_by(current->plan));
    if (!model) report(model.error());
    if (joint || is_installed) install(model ? *model : nullptr);
    joint.reset();
    resume();
    refuse(std::move(why));
    next_order();
  }

  void overdue(const change_overdue& message) {
    if (message.change != change || awaited.empty()) return;
    switch (phase.now()) {
      case planner_phase::draining:
        if (joint && !std::exchange(ended_requests, true)) return end_requests_in_flight();
        if (joint) return answer_step(serving::change_step::hold, "requests in flight do not end");
        return give_up_change(fmt::format("{} of {} servers still had requests in flight",
                                          awaited.size(), work.servers.size()));
      case planner_phase::installing:
        // Nobody may begin under a plan that is not everywhere.
        if (joint)
          return answer_step(serving::change_step::install, "its server did not install the plan");
        if (beside)
          return give_up_change(
              fmt::format("server {} did not install the plan", *awaited.begin()));
        report_awaited("did not install the plan");
        return all_have_installed();
      case planner_phase::ending:
        if (!std::exchange(ended_requests, true)) return end_requests_in_flight();
        report_awaited("does not end the requests under the plan before");
        return check_ended();
      case planner_phase::beginning:
      case planner_phase::retiring:
        report_awaited("did not install the plan");
        return all_have_installed();
      default:
        return;
    }
  }

  void report_awaited(const char* what) {
    for (const auto server : awaited)
      report({errc::timed_out,
              fmt::format("server {} {} of epoch {}", server, what, current->plan.epoch)},
             server, problem::scope::server);
    awaited.clear();
  }

  // -------------------------------------------------------------------------------------- weights

  expert_set hosted_by(const planning::plan& plan) const {
    return [index = planning::placement_index(plan), id = work.ids.front()](layer_id layer,
                                                                            expert_id expert) {
      return index.hosts(id, layer.index(), expert.index());
    };
  }

  /// In a node: the model with these experts, which are within this server's memory; null elsewhere.
  result<loaded_model> load_here(const expert_set& hosts) const {
    if (!work.load || !joint) return loaded_model();
    const auto server = work.ids.front();
    std::int64_t bytes = 0;
    for (std::uint32_t layer = 0; layer < current->plan.n_layers; ++layer)
      for (std::uint32_t expert = 0; expert < current->plan.n_experts; ++expert)
        if (hosts(layer_id{layer}, expert_id{expert}))
          bytes += expert_bytes(context->servers.servers[server], context->costs);
    const auto most = expert_memory_bytes(context->servers.servers[server], context->costs,
                                          current->plan.n_layers);
    if (bytes > most)
      return error{errc::infeasible,
                   fmt::format("experts of {} bytes would be kept on server {}, which keeps {}",
                               bytes, server, most)};
    return work.load(joint->id, hosts);
  }

  // ------------------------------------------------------------------------- steps that all servers take

  void answer_step(serving::change_step step, std::string why = {}) const {
    self->send(joint->admin, plan_step_done{joint->id, step, std::move(why)});
  }

  void take(plan_step& step) {
    using serving::change_step;
    const auto admin = caf::actor_cast<admin_actor>(step.admin);
    if (step.step == change_step::prepare) return prepare(step, admin);
    if (!joint || joint->id != step.change) {
      if (step.step != change_step::abort)
        self->send(admin, plan_step_done{step.change, step.step, "nothing was prepared here"});
      return;
    }
    switch (step.step) {
      case change_step::prepare:
        return;
      case change_step::hold:
        return drain();
      case change_step::install:
        return install_with_others();
      case change_step::commit:
        return begin_under_next();
      case change_step::retire:
        return retire();
      case change_step::abort:
        return abort(std::move(step.why));
    }
  }

  void prepare(plan_step& step, const admin_actor& admin) {
    const auto refuse_step = [&](const std::string& why) {
      self->send(admin, plan_step_done{step.change, serving::change_step::prepare, why});
    };
    if (!phase.is(planner_phase::steady) || joint || !step.plan)
      return refuse_step("another change of plan is under way");
    next = {};
    next.change.reason = "order";
    next.change.asked_ns = time_ns();
    next.change.held = step.holds;
    joint = joint_change{step.change, admin, step.drain_ns};
    if (auto made = make_ready(step); !made) {
      joint.reset();
      return refuse_step(made.error().message);
    }
    answer_step(serving::change_step::prepare);
  }

  /// Whoever leads may not have heard yet that a server was removed.
  result<void> check_members(const planning::plan& placed, planning::server_mask absent) const {
    const auto left = planning::newly_needed(placed, current->plan, absent);
    if (left == 0) return {};
    return error{errc::mismatch,
                 fmt::format("it needs {}, which is no member; propose again",
                             context->servers.servers[std::countr_zero(left)].name)};
  }

  /// Tables, and the model with what both plans place here: everything that can fail while requests begin.
  result<void> make_ready(const plan_step& step) {
    const auto& placed = *step.plan;
    auto profile = by(step.measured);
    if (placed.epoch != current->plan.epoch + 1)
      return error{errc::mismatch,
                   fmt::format("it follows the plan of epoch {}, in force is that of epoch {}",
                               placed.epoch - 1, current->plan.epoch)};
    if (auto valid = planning::validate(placed, context->servers, context->costs); !valid)
      return valid.error();
    if (auto among = check_members(placed, step.absent); !among) return among;
    if (auto taken = weigh(placed, *profile, 0, next.change); !taken) return taken.error();
    auto content = make(std::move(profile), placed, policy);
    if (!content) return content.error();
    next.content = std::move(*content);
    if (step.holds) return {};
    if (auto fits = fits_beside(placed); !fits) return fits.error();
    auto loaded = load_here([before = hosted_by(current->plan), after = hosted_by(placed)](
                                layer_id layer, expert_id expert) {
      return before(layer, expert) || after(layer, expert);
    });
    if (!loaded) return loaded.error();
    next.model = std::move(*loaded);
    return {};
  }

  /// The weights of both, where they fit; else those of both that are the same are kept, and then the rest is read: nothing
  /// is in flight.
  void install_with_others() {
    if (next.change.held) {
      auto loaded = load_in_steps();
      if (!loaded) return answer_step(serving::change_step::install, loaded.error().message);
      next.model = std::move(*loaded);
    } else {
      phase.move(planner_phase::moving);
    }
    next.move = planning::weights_to_move(current->plan, next.content->plan, context->servers,
                                          context->costs);
    if (auto taken = take_beside(); !taken) {
      // All others go by the plan soon: by the policy that it was prepared for, if need be.
      report(taken.error());
      beside = next.content;
    }
    install_and_await(planner_phase::installing, std::exchange(next.model, nullptr));
  }

  result<loaded_model> load_in_steps() {
    phase.move(planner_phase::moving);
    const auto after = hosted_by(next.content->plan);
    auto kept =
        load_here([before = hosted_by(current->plan), after](layer_id layer, expert_id expert) {
          return before(layer, expert) && after(layer, expert);
        });
    if (!kept) return kept;
    install(*kept);
    *kept = nullptr;
    return load_here(after);
  }

  void end_requests_in_flight() {
    constexpr std::int64_t longest_ns = 5'000'000'000;
    send_later(self, handle(), longest_ns, change_overdue{change}, later::timer);
    const auto epoch =
        phase.is(planner_phase::draining) ? current->plan.epoch + 1 : current->plan.epoch;
    for (const auto& server : work.servers)
      self->send(
          server,
          end_requests{epoch, "the plan changes, and the request took longer than that waits"});
  }

  void abort(std::string why) {
    const bool can_be = phase.is(planner_phase::steady) || phase.is(planner_phase::draining) ||
                        phase.is(planner_phase::moving) || phase.is(planner_phase::installing) ||
                        phase.is(planner_phase::installed);
    if (can_be) give_up_change(std::move(why));
  }

  /// Always from the profile of the start: what was measured before leaves nothing.
  std::shared_ptr<const planning::profile> by(
      const std::shared_ptr<const planning::measured_activation>& measured) const {
    if (!measured)
      return current ? current->profile : std::make_shared<const planning::profile>(work.profile);
    return std::make_shared<const planning::profile>(
        planning::with_measured_activation(work.profile, *measured));
  }

  drift_report drift(const drift_query& query) const {
    if (!current) return {};
    const auto cost_ns = [&](const planning::profile& profile) {
      return planning::placement_cost_ns(profile, current->plan, known, context->costs);
    };
    return {current->plan.epoch, cost_ns(*current->profile), cost_ns(*by(query.measured)),
            planning::moved_shares(*current->profile, *query.measured)};
  }

  plan_proposal propose_only(const plan_query& query) const {
    const auto& order = *query.order;
    plan_proposal made;
    if (!current) {
      made.refused = "no plan is in force yet";
      return made;
    }
    made.strategy = order.strategy.empty() ? work.chosen.name
                                           : planning::canonical_strategy_name(order.strategy);
    const auto profile = by(query.measured);
    auto strategy = place(made.strategy, order.planning, *profile);
    if (!strategy) {
      made.refused = strategy.error().message;
      return made;
    }
    plan_change told;
    const auto taken = weigh(strategy->plan, *profile, 0, told);
    made.cost_before_ns = told.cost_before_ns;
    made.cost_after_ns = told.cost_after_ns;
    if (!taken) {
      made.refused = taken.error().message;
      return made;
    }
    strategy->plan.epoch = current->plan.epoch + 1;
    made.bytes_to.assign(context->n_servers(), 0);
    for (const auto& each : strategy->plan.experts)
      if (!current->index.hosts(each.server.index(), each.layer.index(), each.expert.index()))
        made.bytes_to[each.server.index()] +=
            expert_bytes(context->servers.servers[each.server.index()], context->costs);
    if (const auto fits = fits_beside(strategy->plan); !fits) made.why_held = fits.error().message;
    made.plan = std::make_shared<const planning::plan>(std::move(strategy->plan));
    return made;
  }
};

}  // namespace

const char* to_string(planner_phase phase) {
  switch (phase) {
    case planner_phase::idle:
      return "idle";
    case planner_phase::steady:
      return "steady";
    case planner_phase::draining:
      return "draining";
    case planner_phase::moving:
      return "moving";
    case planner_phase::installing:
      return "installing";
    case planner_phase::installed:
      return "installed";
    case planner_phase::beginning:
      return "beginning";
    case planner_phase::ending:
      return "ending";
    case planner_phase::retiring:
      return "retiring";
  }
  return "unknown";
}

planner_actor spawn_planner(caf::actor_system& system,
                            std::shared_ptr<const service_context> context, planner_work work) {
  const bool wall = context->clock == clock_kind::wall;
  auto behavior = [context = std::move(context), work = std::move(work)](
                      planner_actor::stateful_pointer<planner_state> self) mutable
      -> planner_actor::behavior_type {
    auto& state = self->state;
    state.self = self;
    state.context = std::move(context);
    state.known = state.context->servers;
    state.prices = state.context->prices;
    state.links = serving::link_board(state.known);
    state.work = std::move(work);
    return {
        [&state](push_plan) { state.push(); },
        [&state](const links_told& message) { state.take(message); },
        [&state](price_links) { state.price(); },
        [&state](replan& message) { state.order(std::move(message.order)); },
        [&state](const change_policy& message) { state.change_to(*message.order); },
        [&state](propose_replan& message) { state.propose(message); },
        [&state](const change_weights& message) { state.change_to(message); },
        [&state](const admission_held& message) { state.count(message); },
        [&state](const plans_installed& message) { state.count(message); },
        [&state](const requests_ended& message) { state.count(message); },
        [&state](const server_replaced& message) { state.replace(message); },
        [&state](const weights_moved& message) { state.end_moving(message); },
        [&state](const change_overdue& message) { state.overdue(message); },
        [&state](plan_step& step) { state.take(step); },
        [&state](const plan_query& query) { return state.propose_only(query); },
        [&state](const drift_query& query) { return state.drift(query); },
        [&state](in_force_query) {
          return in_force{state.current, state.policy};
        },
        [&state](status_query) {
          return planner_status{state.phase.now(), state.current ? state.current->plan.epoch : 0,
                                state.policy_version, state.orders.size()};
        },
    };
  };
  // Planning takes long: on the wall clock it has a thread of its own.
  return wall ? system.spawn<caf::detached>(std::move(behavior))
              : system.spawn(std::move(behavior));
}

std::uint64_t first_epoch(const planning::plan& plan, const service_context& context) {
  return context.seat ? std::max<std::uint64_t>(1, plan.epoch) : 1;
}

result<void> check_kv_fits(const std::vector<planning::residency>& residence,
                           const std::vector<std::size_t>& most_positions, const cluster& servers,
                           const cost_profile& costs) {
  for (std::size_t access = 0; access < residence.size(); ++access) {
    const auto need =
        kv_need(residence[access], servers.size(), most_positions[access], costs.kv_row_bytes);
    for (std::size_t m = 0; m < need.size(); ++m)
      if (need[m] > servers.servers[m].kv_bytes)
        return error{errc::infeasible,
                     fmt::format("the KV rows of a request of {} positions at server {} need {} "
                                 "bytes on server {} ({}), which keeps {} for KV; raise kv memory "
                                 "in the cluster file or shorten the request",
                                 most_positions[access], access, need[m], m,
                                 servers.servers[m].name, servers.servers[m].kv_bytes)};
  }
  return {};
}

}  // namespace ordermoe::actors
