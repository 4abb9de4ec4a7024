#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "planning/cost_model.hpp"
#include "planning/selection/selector.hpp"
#include "planning/server_mask.hpp"

/// What the slots of one row can do at one layer, exactly: the assignments of servers and experts to slots that no other beats in
/// both time and loss.
///
/// Between residences s and n time is that of a decision (selector.hpp) without waits:
///
///   time(s, n) = max( d(s, n), max over servers m with slots of [ d(s, m) + q(m) c(m) + d(m, n) ] )
///
/// with q(m) the number of different experts that run at m. So an assignment within time T has room for as many experts at each
/// server as T allows, and only the values of d(s, m) + q c(m) + d(m, n) can be times of the front. For each of them the least loss
/// is found by branch and bound over the slots; the bound gives every slot its cheapest expert that has any room. slot_sweep.hpp
/// finds nearly the same in far less time, without a proof.
namespace ordermoe::planning {

/// An expert that may run in a slot at a server.
struct slot_place {
  loss_units loss = 0;
  std::uint32_t expert = 0;
  std::uint8_t server = 0;
  bool at_token_alone = false;  ///< Only where the token is at this server.
};

struct row_slot {
  std::vector<slot_place> places;
  /// Servers of the token where the slot may be left out, and what that loses.
  server_mask may_be_left_out = 0;
  loss_units loss_left_out = 0;
};

struct row_choices {
  std::vector<row_slot> slots;  ///< 1 to max_slots.
  bool distinct = false;        ///< No two slots run the same expert.
  bool one_slot_runs = false;   ///< Not all slots may be left out.
  bool with_slot = false;       ///< The row goes on where its slot ran.
};

struct row_point {
  double ns = 0;
  loss_units loss = 0;  ///< `forbidden` where the search was given up before it found one.
  /// No assignment within this time loses less; equals `loss` where the search ended by itself.
  loss_units least_loss = 0;
};

/// Keeps memory between calls; not thread-safe.
class row_fronts {
 public:
  /// max_nodes: places tried for one time before the search is given up, and the best so far stays with its bound.
  explicit row_fronts(const cost_model& prices, std::size_t max_nodes = 200'000)
      : prices_(prices), max_nodes_(max_nodes) {}

  /// The places that can matter, by rising loss; to be called once for each row. Precondition: each slot can run or be left out
  /// wherever the row may be.
  static void sort(row_choices& row);

  /// By rising time and falling loss (and least loss); empty where the slots cannot all run between these two. row: sorted.
  const std::vector<row_point>& between(const row_choices& row, std::size_t from, std::size_t to);

 private:
  bool may_stay(const slot_place& place) const {
    return !place.at_token_alone || place.server == from_;
  }
  bool is_open(const slot_place& place) const { return room_[place.server] > 0 && may_stay(place); }
  void list_times(const row_choices& row);
  loss_units bound_slots(const row_choices& row);
  void place_slot(const row_choices& row, std::size_t slot, loss_units so_far);

  const cost_model& prices_;
  std::size_t max_nodes_;
  std::vector<row_point> front_;
  std::vector<double> times_;
  std::size_t from_ = 0, to_ = 0, nodes_ = 0;
  server_mask useful_ = 0;
  std::array<std::uint8_t, 64> room_{};           ///< Experts that a server has time for.
  std::array<loss_units, max_slots + 1> rest_{};  ///< The least of this slot and those after it.
  std::array<const slot_place*, max_slots> taken_{};
  loss_units best_ = 0;
};

}  // namespace ordermoe::planning
