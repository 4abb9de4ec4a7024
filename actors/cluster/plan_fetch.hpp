#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/cluster/plan_messages.hpp"
#include "config/log.hpp"
#include "net/channel/transport.hpp"

/// A host that has no plan, or one by which the others do not go, gets the plan in force from the members of the cluster, and
/// with it the profile that it was made for and what routers were measured to choose where it was made by that.
///
///   asking    everybody who can be dialled is dialled, again and again, and asked
///             --all have told or cannot be reached, or some have told and deciding_for is over--> choosing
///             --once: nobody has told, and asking_for is over--> nothing is fetched
///             --pause()--> interrupted
///   choosing  plan_to_take() of what was told
///             --this host's own--> nothing is fetched
///             --one of another model or cluster file, and no other--> mismatch, naming both and what to do
///             --another--> fetching
///   fetching  profile, activation and plan, where this host does not have the very same, from one member after the other that
///             tells of that plan
///             --all there, each with the digest that was told--> given to whoever asked
///             --a member refuses, sends what is not the next part, another digest, or no window of parts within silent_for,
///               or its connection ends--> the next one, which goes on from what came; what came whole with
///               another digest goes then
///             --none is left--> asking, but once: nothing is fetched
///
/// What came of a paper is kept under its digest in a folder, and gone on from by the next attempt and the next process. A
/// member is believed in what the plan in force is, as it is when it leads a change; in nothing else: sizes are limited before
/// a byte comes (most_bytes), and whoever uses the texts checks them as it checks its own files.
namespace ordermoe::actors {

/// What a host has already.
struct plan_at_hand {
  std::string sha256;
  std::uint64_t epoch = 0;
};
/// A plan, and how many members go by it.
struct plan_told_of {
  std::string sha256;
  std::uint64_t epoch = 0;
  std::size_t members = 0;
};
/// Which plan a host goes by that was told of these; empty: by none of them. Without a plan of its own it is the one by which
/// most go, of several the one of the latest epoch. Else another takes the place of its own where it is of a later epoch, or
/// where more than half of the cluster's `n_members`, this host included, go by it: two hosts that have each missed a change
/// do not change places.
std::string plan_to_take(const std::optional<plan_at_hand>& mine,
                         const std::vector<plan_told_of>& told, std::size_t n_members);

struct plan_fetch_options {
  std::shared_ptr<const net::tls_identity> identity;
  net::connections_maker carried_by;
  net::session_limits limits;
  std::vector<net::transport_peer> members;  ///< Those that have an address are asked.
  std::string model, cluster_file;           ///< Digests of this host's, as in hellos.
  std::optional<plan_at_hand> mine;
  std::string profile;           ///< Digest of the one that this host has; empty: none.
  std::filesystem::path folder;  ///< Where what comes is kept until all of it is there.
  bool once = false;             ///< Else until there is a plan.
  std::chrono::milliseconds deciding_for{2'000}, asking_for{5'000}, silent_for{10'000},
      again_after{1'000};
  log_outlet log;
  /// Asked often; true: give up.
  std::function<bool()> pause;
};

struct fetched_plan {
  plan_notice told;
  std::string from;  ///< The member that sent the plan.
  /// By paper; what this host has already is left out.
  std::array<std::optional<std::string>, n_papers> texts;
};

/// Nothing where there is none to take, and with `once` where it could not be had. Errors: usage, where nobody can be dialled;
/// mismatch, where the members go by another model or cluster file; io, of this disk; interrupted.
result<std::optional<fetched_plan>> fetch_plan(plan_fetch_options options);

}  // namespace ordermoe::actors
