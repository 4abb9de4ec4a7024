#include <cmath>
#include <utility>
#include <vector>

#include "actors/admin/admin_state.hpp"
#include "actors/scheduling/virtual_time_worker.hpp"

namespace ordermoe::actors {

const char* to_string(subject of) {
  return of == subject::status ? "status" : of == subject::ways ? "ways" : "activation";
}

void admin_state::with_activation(
    const std::function<void(const activation_ptr&, const std::set<std::uint32_t>&)>& use) {
  ask_all(subject::activation, [this, use](const told_reports& told, const auto& told_at) {
    const auto& shape = context().shape();
    const auto now = now_ns(self);
    std::vector<planning::measured_activation> parts;
    std::set<std::uint32_t> nodes;
    for (const auto& [server, report] : told) {
      auto part = planning::parse_activation(report.dump(), name_of(server), shape.n_layers,
                                             shape.n_experts, shape.top_k);
      if (!part) {
        ignore(server, part.error());
        continue;
      }
      // All of them as they are now: who answered first waited for who answered last.
      parts.push_back(planning::faded(
          std::move(*part),
          planning::weight_at_age(now - told_at.at(server), context().seat->drift.half_life_s)));
      nodes.insert(server);
    }
    use(std::make_shared<const planning::measured_activation>(
            planning::sum_of(parts, shape.n_layers, shape.n_experts)),
        nodes);
  });
}

void admin_state::tell_drift(const order_ptr& order, const json_value&) {
  if (gatherings.full()) return book->refuse(order, asked_too_much());
  with_activation([this, order](const auto& measured, const auto& nodes) {
    self->request(work.planner, caf::infinite, drift_query{measured})
        .then([this, order, measured, nodes](const drift_report& found) {
          if (found.epoch == 0)
            return book->refuse(order, {errc::failed, "no plan is in force yet"});
          auto layers = ordered_json::array();
          for (std::size_t l = 0; l < found.moved.size(); ++l)
            layers.push_back({{"layer", l},
                              {"rows", measured->rows[l]},
                              {"moved_percent", 100 * found.moved[l]}});
          book->tell(order, {{"epoch", found.epoch},
                             {"nodes", names_of(nodes)},
                             {"rows", measured->least_rows()},
                             {"cost_planned_ms", found.cost_planned_ns * 1e-6},
                             {"cost_measured_ms", found.cost_measured_ns * 1e-6},
                             {"layers", std::move(layers)}});
        });
  });
}

void admin_state::look_for_drift_soon() {
  send_later(self, caf::actor_cast<admin_actor>(self),
             static_cast<std::int64_t>(context().seat->drift.period_s * 1e9),
             actors::look_for_drift{}, later::timer);
}

void admin_state::look_for_drift() {
  look_for_drift_soon();
  const auto others = present();
  const bool is_first = others.empty() || id() < *others.begin();
  if (!is_first || rules->phase() != serving::change_phase::none || gatherings.full()) return;
  with_activation([this](const auto& measured, const auto&) {
    if (measured->least_rows() < static_cast<double>(context().seat->drift.least_rows)) return;
    self->request(work.planner, caf::infinite, drift_query{measured})
        .then([this, measured](const drift_report& found) { judge(measured, found); });
  });
}

void admin_state::judge(const activation_ptr& measured, const drift_report& found) {
  if (found.epoch == 0) return;
  const auto margin = context().seat->drift.margin();
  const auto is_off = [margin](double from, double to) { return std::abs(to / from - 1) > margin; };
  if (!is_off(found.cost_planned_ns, found.cost_measured_ns)) return;
  // Told once, until it drifts further.
  if (told_drift.epoch == found.epoch &&
      !is_off(told_drift.cost_measured_ns, found.cost_measured_ns))
    return;
  told_drift = found;
  book->note(log_event::plan_drifted, {{"epoch", found.epoch},
                                       {"cost_planned_ms", found.cost_planned_ns * 1e-6},
                                       {"cost_measured_ms", found.cost_measured_ns * 1e-6}});
  propose_by_itself(measured);
}

void admin_state::propose_by_itself(const activation_ptr& measured) {
  auto wanted = std::make_shared<replan_order>();
  wanted->planning.without = absent_mask();
  self->request(work.planner, caf::infinite, in_force_query{})
      .then([this, wanted, measured](const in_force& now) {
        if (rules->is_under_way()) {
          // Where it is given up, whoever looks next finds the same.
          told_drift = {};
          return;
        }
        self->request(work.planner, caf::infinite, plan_query{wanted, measured})
            .then([this, measured, before = now.content](const plan_proposal& made) {
              const auto margin = context().seat->drift.margin();
              if (!made.plan || made.cost_after_ns > (1 - margin) * made.cost_before_ns) return;
              const auto& kept = keep(false, made, before->plan, measured);
              book->note(log_event::plan_proposed, {{"proposal", kept.number}});
            });
      });
}

}  // namespace ordermoe::actors
