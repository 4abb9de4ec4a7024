#include "planning/hindsight/row_front.hpp"

#include <algorithm>
#include <tuple>

namespace ordermoe::planning {

namespace {

constexpr loss_units none = forbidden;

}  // namespace

/// Where slots never share an expert, one of a slot's cheapest at a server is free, as many as there are slots.
void row_fronts::sort(row_choices& row) {
  for (auto& slot : row.slots) {
    auto& places = slot.places;
    std::sort(places.begin(), places.end(), [](const slot_place& a, const slot_place& b) {
      return std::tie(a.loss, a.server, a.expert) < std::tie(b.loss, b.server, b.expert);
    });
    if (!row.distinct) continue;
    std::array<std::array<std::size_t, 2>, 64> kept{};
    std::erase_if(places, [&](const slot_place& place) {
      return ++kept[place.server][place.at_token_alone ? 1 : 0] > row.slots.size();
    });
  }
}

void row_fronts::list_times(const row_choices& row) {
  useful_ = 0;
  for (const auto& slot : row.slots)
    for (const auto& place : slot.places)
      if (!place.at_token_alone || place.server == from_) useful_ |= server_bit(place.server);
  if (row.with_slot) useful_ &= server_bit(to_);
  const double stays = prices_.hidden(from_, to_);
  times_ = {stays};
  for_each_server(useful_, [&](std::size_t m) {
    const double there = prices_.hidden(from_, m);
    for (std::size_t q = 1; q <= row.slots.size(); ++q)
      times_.push_back(std::max(
          stays, there + static_cast<double>(q) * prices_.expert_ns[m] + prices_.hidden(m, to_)));
  });
  std::sort(times_.begin(), times_.end());
  times_.erase(std::unique(times_.begin(), times_.end()), times_.end());
}

/// The least that all slots lose by themselves; `none` where one of them can do nothing.
loss_units row_fronts::bound_slots(const row_choices& row) {
  const auto n = row.slots.size();
  rest_[n] = 0;
  for (std::size_t j = n; j-- > 0;) {
    const auto& slot = row.slots[j];
    loss_units least = ((slot.may_be_left_out >> from_) & 1u) != 0 ? slot.loss_left_out : none;
    for (const auto& place : slot.places)
      if (is_open(place)) {
        least = std::min(least, place.loss);
        break;
      }
    if (least >= none) return none;
    rest_[j] = rest_[j + 1] + least;
  }
  return rest_[0];
}

void row_fronts::place_slot(const row_choices& row, std::size_t slot, loss_units so_far) {
  if (slot == row.slots.size()) {
    const bool runs =
        std::any_of(taken_.begin(), taken_.begin() + static_cast<std::ptrdiff_t>(slot),
                    [](const auto* place) { return place != nullptr; });
    if (so_far < best_ && (runs || !row.one_slot_runs)) best_ = so_far;
    return;
  }
  const auto& here = row.slots[slot];
  const auto limit = [&] { return best_ - rest_[slot + 1] - so_far; };
  for (const auto& place : here.places) {
    if (place.loss >= limit() || nodes_ >= max_nodes_) break;
    const auto is_same = [&](const slot_place* other) {
      return other != nullptr && other->expert == place.expert;
    };
    const auto end = taken_.begin() + static_cast<std::ptrdiff_t>(slot);
    const bool runs_elsewhere = std::any_of(taken_.begin(), end, is_same);
    if (row.distinct && runs_elsewhere) continue;
    const bool shares = runs_elsewhere && std::any_of(taken_.begin(), end, [&](const auto* other) {
                          return is_same(other) && other->server == place.server;
                        });
    // A server that is full still has the expert that another slot runs there.
    if (shares ? !may_stay(place) : !is_open(place)) continue;
    ++nodes_;
    taken_[slot] = &place;
    room_[place.server] = static_cast<std::uint8_t>(room_[place.server] - (shares ? 0 : 1));
    place_slot(row, slot + 1, so_far + place.loss);
    room_[place.server] = static_cast<std::uint8_t>(room_[place.server] + (shares ? 0 : 1));
  }
  taken_[slot] = nullptr;
  if (((here.may_be_left_out >> from_) & 1u) != 0 && here.loss_left_out < limit())
    place_slot(row, slot + 1, so_far + here.loss_left_out);
}

const std::vector<row_point>& row_fronts::between(const row_choices& row, std::size_t from,
                                                  std::size_t to) {
  from_ = from;
  to_ = to;
  front_.clear();
  list_times(row);
  loss_units least_known = none;
  best_ = none;
  for (const double time : times_) {
    room_.fill(0);
    for_each_server(useful_, [&](std::size_t m) {
      const double there = prices_.hidden(from_, m), back = prices_.hidden(m, to_);
      while (room_[m] < row.slots.size() &&
             there + (room_[m] + 1.0) * prices_.expert_ns[m] + back <= time)
        ++room_[m];
    });
    const auto least = bound_slots(row);
    if (least >= best_) continue;
    const auto before = best_;
    nodes_ = 0;
    place_slot(row, 0, 0);
    const bool ended = nodes_ < max_nodes_;
    const auto bound = ended ? best_ : least;
    if (best_ < before || bound < least_known) front_.push_back({time, best_, bound});
    least_known = std::min(least_known, bound);
  }
  return front_;
}

}  // namespace ordermoe::planning
