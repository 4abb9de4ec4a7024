#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "config/cluster.hpp"
#include "planning/cost_model.hpp"
#include "planning/packing.hpp"
#include "planning/plan.hpp"
#include "planning/profile.hpp"

/// Requests as wholes: at which server each access server's users are, and copies of experts where those are near.
namespace ordermoe::planning {

/// Where the users of each access server are served, [n_servers]; all of their layers are there.
using homes = std::vector<std::size_t>;

/// One after the other, those with most arrivals first, to the server where a position is over soonest: position_ns of it times 1 +
/// others * share of the arrivals that are there already, and a 32nd of the way there and back. Then each again in view of all
/// others until nobody moves, a few rounds at most. Servers with an infinite time serve nobody. Precondition: one is finite.
homes soonest_homes(const cluster& servers, const cost_model& prices,
                    const std::vector<double>& position_ns, double others);

/// R_l of an access server = {its home}.
std::vector<residency> residency_at(const homes& where, std::size_t n_layers);

/// A position's share of its request's way to a home and back; 0 where the user is there.
double way_of_position_ns(const cost_model& prices, std::size_t access, std::size_t home);

/// What copies are worth to users at their homes.
struct spread_problem {
  const homes* where = nullptr;
  double reach_ns =
      0;  ///< An expert is within reach of a home where it is at most so far, and at the home itself.
  const std::vector<std::vector<double>>* worth =
      nullptr;  ///< [n_layers][n_experts] of being in reach; above 0
};

/// A hidden state to a server, one expert there, and back.
double round_trip_ns(const cost_model& prices, std::size_t home, std::size_t server);

/// Fills all memory, copy by copy: that first which brings an expert within reach of users for which it is worth most, by
/// arrivals; among equals, and once nothing new can be reached, that which saves most expected way to the nearest copy. Ties to
/// the lower server, layer, expert. Experts may be left without a server where memory is short. Complexity: O(P log P M) for P
/// (server, layer, expert).
void spread_copies(packing& state, const profile& profile, const cost_model& prices,
                   const spread_problem& problem);

/// Edge-LLM (ICWS 2024) keeps and schedules whole models, value density first. Adapted: the requests of an access server are placed
/// whole on one server, those of most value (arrivals) first, each where its cost (a position with the experts that fit there
/// and the others asked for over the network) is least for the slack that is left; every expert is somewhere, and each
/// server caches what its own requests use most. The nearest copy runs. Errors: infeasible, with the bytes that each server lacks.
result<plan> place_whole_requests(const profile& profile, const cluster& servers,
                                  const cost_profile& costs, double concurrency);
/// The same with these homes.
result<plan> place_whole_requests(const profile& profile, const cluster& servers,
                                  const cost_profile& costs, const homes& where);

/// Every server that serves users runs the whole model for them: experts that are chosen most are in its memory, as many as fit, the
/// others in that of its host, which is taken to have room for the model (KTransformers, Fiddler, MoE-Infinity with a cache
/// that stays). Users are served at the server where a position is over soonest with these reads. Error: infeasible where no
/// server has room for what is no expert.
result<plan> place_offloaded(const profile& profile, const cluster& servers,
                             const cost_profile& costs, double concurrency);
/// The same with these homes.
result<plan> place_offloaded(const profile& profile, const cluster& servers,
                             const cost_profile& costs, const homes& where);

/// Each access server's users at their own server.
homes own_homes(std::size_t n_servers);

/// [n_servers] A position where everybody is there: experts that are chosen most are in its memory, those that do not fit on the servers
/// that are nearest to it. Nothing queues.
std::vector<double> position_times(const profile& profile, const packing_problem& problem,
                                   const cost_model& prices);

/// All users at one server, for each of at most n_most: those where a position with the way there and back is over soonest, by
/// position_times().
std::vector<homes> sole_homes(const profile& profile, const cluster& servers,
                              const cost_profile& costs, std::size_t n_most);

}  // namespace ordermoe::planning
