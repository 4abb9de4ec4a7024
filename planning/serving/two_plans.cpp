#include "planning/serving/two_plans.hpp"

#include <fmt/format.h>

#include "planning/cost_model.hpp"

namespace ordermoe::serving {

std::vector<std::int64_t> bytes_of_both(const planning::plan& before, const planning::plan& after,
                                        const cluster& servers, const cost_profile& costs) {
  std::vector<std::int64_t> bytes(servers.size(), 0);
  const planning::placement_index first(before);
  const auto add = [&](const planning::placed_expert& placed) {
    const auto m = placed.server.index();
    bytes[m] += expert_bytes(servers.servers[m], costs);
  };
  for (const auto& placed : before.experts) add(placed);
  for (const auto& placed : after.experts)
    if (!first.hosts(placed.server.index(), placed.layer.index(), placed.expert.index()))
      add(placed);
  return bytes;
}

result<void> check_both_fit(const planning::plan& before, const planning::plan& after,
                            const cluster& servers, const cost_profile& costs) {
  const auto bytes = bytes_of_both(before, after, servers, costs);
  std::size_t worst = 0;
  const auto excess = [&](std::size_t m) { return bytes[m] - after.expert_bytes_limit[m]; };
  for (std::size_t m = 1; m < bytes.size(); ++m)
    if (excess(m) > excess(worst)) worst = m;
  if (excess(worst) <= 0) return {};
  return error{errc::infeasible,
               fmt::format("experts of both plans take {} bytes on server {} ({}), which keeps {} "
                           "for experts",
                           bytes[worst], worst, servers.servers[worst].name,
                           after.expert_bytes_limit[worst])};
}

namespace {

/// Which servers have which expert on the way from one plan to another.
class placement_on_its_way {
 public:
  placement_on_its_way(const planning::plan& before, const planning::plan& after,
                       const cluster& servers, const cost_profile& costs)
      : before_(before), after_(after), target_(after) {
    const planning::placement_index first(before);
    for (std::size_t layer = 0; layer < before.n_layers; ++layer)
      for (std::size_t expert = 0; expert < before.n_experts; ++expert)
        hosts_.push_back(first.hosts(layer, expert));
    for (std::size_t m = 0; m < servers.size(); ++m) {
      bytes_.push_back(expert_bytes(servers.servers[m], costs));
      if (before.precision_at(m) == precision::stored) as_stored_ |= server_mask{1} << m;
    }
    used_ = before.expert_bytes_used;
  }

  bool fits_with_target() const {
    auto bytes = used_;
    for_each([&](std::size_t at, server_mask wanted) {
      for (std::size_t m = 0; m < bytes.size(); ++m)
        if (((wanted & ~hosts_[at]) >> m) & 1u) bytes[m] += bytes_[m];
    });
    for (std::size_t m = 0; m < bytes.size(); ++m)
      if (bytes[m] > after_.expert_bytes_limit[m]) return false;
    return true;
  }

  /// As many of the target's copies more as there is room for beside what is there, and then as many of the others less as
  /// are not needed. First come those without which another cannot go. False where nothing changes.
  bool go_on() {
    bool changed = add(copies::first);
    if (!lacks_first_copies()) changed = add(copies::all) || changed;
    const auto lacks = lacking_bytes();
    for_each([&](std::size_t at, server_mask wanted) {
      const auto stays = (hosts_[at] & wanted) | kept(at, wanted, lacks);
      for (std::size_t m = 0; m < used_.size(); ++m)
        if (((hosts_[at] & ~stays) >> m) & 1u) used_[m] -= bytes_[m];
      changed = changed || stays != hosts_[at];
      hosts_[at] = stays;
    });
    return changed;
  }

  planning::plan plan(std::uint64_t epoch) const {
    auto made = before_;
    made.epoch = epoch;
    made.estimated_token_ns = 0;
    made.expert_bytes_used = used_;
    made.experts.clear();
    // Each stands where the plan has it that it comes from.
    auto left = hosts_;
    for (const auto* from : {&before_, &after_})
      for (const auto& placed : from->experts) {
        auto& hosts = left[placed.layer.index() * before_.n_experts + placed.expert.index()];
        const auto bit = server_mask{1} << placed.server.index();
        if ((hosts & bit) == 0) continue;
        hosts &= ~bit;
        made.experts.push_back(placed);
      }
    return made;
  }

 private:
  using server_mask = planning::server_mask;

  enum class copies { first, all };

  /// Whether the target's experts have a copy where it has one, as the model has it.
  bool is_there(std::size_t at, server_mask wanted) const {
    return (hosts_[at] & wanted & as_stored_) != 0;
  }
  bool lacks_first_copies() const {
    bool lacks = false;
    for_each([&](std::size_t at, server_mask wanted) { lacks = lacks || !is_there(at, wanted); });
    return lacks;
  }

  bool add(copies which) {
    bool changed = false;
    for_each([&](std::size_t at, server_mask wanted) {
      for (std::size_t m = 0; m < used_.size(); ++m) {
        if (which == copies::first && is_there(at, wanted)) return;
        if ((((wanted & ~hosts_[at]) >> m) & 1u) == 0) continue;
        if (used_[m] + bytes_[m] > after_.expert_bytes_limit[m]) continue;
        used_[m] += bytes_[m];
        hosts_[at] |= server_mask{1} << m;
        changed = true;
      }
    });
    return changed;
  }

  /// use(expert of a layer, servers that are to have it)
  template <class Use>
  void for_each(Use use) const {
    for (std::size_t layer = 0; layer < before_.n_layers; ++layer)
      for (std::size_t expert = 0; expert < before_.n_experts; ++expert)
        use(layer * before_.n_experts + expert, target_.hosts(layer, expert));
  }

  /// [n_servers] by which each has too little room for what it is to have yet.
  std::vector<std::int64_t> lacking_bytes() const {
    auto lacks = used_;
    for (std::size_t m = 0; m < lacks.size(); ++m) lacks[m] -= after_.expert_bytes_limit[m];
    for_each([&](std::size_t at, server_mask wanted) {
      for (std::size_t m = 0; m < lacks.size(); ++m)
        if (((wanted & ~hosts_[at]) >> m) & 1u) lacks[m] += bytes_[m];
    });
    return lacks;
  }

  /// Of copies that are to go, the one that has to stay: where memory is wanted least; none where the target has one as
  /// the model has it.
  server_mask kept(std::size_t at, server_mask wanted,
                   const std::vector<std::int64_t>& lacks) const {
    if (is_there(at, wanted)) return 0;
    std::size_t best = used_.size();
    for (std::size_t m = 0; m < used_.size(); ++m)
      if (((hosts_[at] & as_stored_ & ~wanted) >> m) & 1u)
        if (best == used_.size() || lacks[m] < lacks[best]) best = m;
    return best == used_.size() ? 0 : server_mask{1} << best;
  }

  const planning::plan& before_;
  const planning::plan& after_;
  planning::placement_index target_;
  std::vector<server_mask> hosts_;  ///< [n_layers, n_experts]
  std::vector<std::int64_t> bytes_, used_;
  server_mask as_stored_ = 0;
};

}  // namespace

std::vector<planning::plan> plans_between(const planning::plan& before, const planning::plan& after,
                                          const cluster& servers, const cost_profile& costs,
                                          std::size_t most) {
  std::vector<planning::plan> way;
  placement_on_its_way on_its_way(before, after, servers, costs);
  while (!on_its_way.fits_with_target()) {
    if (way.size() + 1 >= most || !on_its_way.go_on()) return {};
    way.push_back(on_its_way.plan(before.epoch + way.size() + 1));
  }
  way.push_back(after);
  way.back().epoch = before.epoch + way.size();
  return way;
}

}  // namespace ordermoe::serving
