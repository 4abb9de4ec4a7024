#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/drift_watch.hpp"
#include "config/error.hpp"
#include "config/log.hpp"
#include "model/transformer.hpp"
#include "net/wire/messages.hpp"
#include "planning/plan.hpp"
#include "planning/strategies/adaptation.hpp"

namespace ordermoe::net {
class identity_keeper;
}

/// A service that has one server of a cluster, whose others are in other processes. No CAF type in this header.
namespace ordermoe::actors {

class member_roll;

/// The way to one of the others.
class frame_outlet {
 public:
  virtual ~frame_outlet() = default;
  /// From any thread. False where it is away: the frame is lost.
  virtual bool send(wire::frame content) = 0;
};

/// What a thread sends within a turn of it goes out together, so that what follows from one batch is one write to each server.
class frame_turns {
 public:
  virtual ~frame_turns() = default;
  /// What the calling thread sends from now on waits.
  virtual void begin() = 0;
  /// Whether something does.
  virtual bool holds() const = 0;
  /// Sends what has waited for so long; 0: everything.
  virtual void write(std::int64_t held_ns) = 0;
};

/// Of cluster_seat::kept: what the admin keeps.
inline constexpr const char* kept_policy_name = "policy.json";
inline constexpr const char* kept_tokens_name = "tokens.json";
inline constexpr const char* kept_activation_name = "activation.json";
inline constexpr const char* kept_counts_name = "counts.json";

struct cluster_seat {
  std::uint32_t server = 0;                            ///< The one that is here.
  std::vector<std::shared_ptr<frame_outlet>> outlets;  ///< [n_servers]; the own entry is empty.
  std::shared_ptr<frame_turns> turns;  ///< Of all outlets; null: each frame goes out at once.
  /// Lets the server look at its load (service::look_at_load) so much later, on the thread that reads the network, which no
  /// other thread is woken for. From any thread. False where there is no such thread yet.
  std::function<bool(std::int64_t delay_ns)> look_at_load;
  /// Counts the starts of this server, from 1: what it says of its load is newer than what it said before.
  std::uint32_t boot = 1;
  std::uint64_t first_request = 0;  ///< Requests are numbered from here.
  /// To the admin of another server, from any thread. False where it is away.
  std::function<bool(std::uint32_t server, std::string text)> tell_admin;
  /// The model with these experts, for this change of plan; from then on they are what this server has. May take long, where
  /// experts come from other servers.
  std::function<result<std::shared_ptr<const model::transformer>>(
      std::uint64_t change, const std::function<bool(layer_id layer, expert_id expert)>& hosts)>
      load;
  /// This change was given up: nothing comes for it any more. From any thread.
  std::function<void(std::uint64_t change)> stop_loading;
  /// Requests begin under this plan from now on; to be kept over the end of the process.
  std::function<result<void>(const planning::plan&)> adopt;
  /// Of every other server and this one's users, what sessions and answers count: a JSON object. From any thread.
  std::function<std::string()> figures;
  /// Small texts that outlive the process, by name: as they were at its start, and how one is replaced. Empty: none do.
  std::map<std::string, std::string> kept;
  std::function<result<void>(const std::string& name, const std::string& text)> keep;
  /// What routers were measured to choose, if the plan in force goes by that.
  std::shared_ptr<const planning::measured_activation> measured;
  /// What routers chose here before the process began, where that was kept, as old as it is now: counting goes on from it.
  std::shared_ptr<const planning::measured_activation> counted;
  drift_watch drift;
  log_outlet log;
  /// By which this node is known, and what it does not believe; null: none that changes.
  std::shared_ptr<net::identity_keeper> identity;
  /// Who belongs to the cluster (admin/member_roll.hpp); null: all servers, always.
  std::shared_ptr<member_roll> members;
};

/// What came from another server, or what is known of it.
struct peer_event {
  enum class what {
    frame,
    up,         ///< It is connected; nothing of what was said before is on its way.
    down,       ///< It is not any more, and what was on its way is lost.
    congested,  ///< What is sent to it waits: no request begins.
    relieved,
    measured,  ///< The link to it is as `link` says.
  };
  what kind = what::frame;
  std::uint32_t server = 0;
  wire::frame content;
  wire::link_measure link;
  /// Ends when the frame was taken in.
  std::shared_ptr<const void> receipt;
};

}  // namespace ordermoe::actors
