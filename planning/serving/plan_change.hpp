#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/error.hpp"
#include "planning/serving/phases.hpp"

/// How the servers of a cluster change from one plan to the next together, or not at all, while requests begin and end: the
/// rules of one server, without actors, time or bytes. Two-phase commit, with an end that the others find where whoever
/// leads is lost, and an end of the plan before that nobody leads.
///
///   leader                       every server, the leader's too
///
///   prepare (the plan)  ----->   preparing: tables, and the weights that it lacks            ----->  done or failed
///   hold                ----->   holding: lets no request begin, waits for those in flight    -->  done or failed
///   install             ----->   installing: has the new plan beside the one in force         -->  done or failed
///   commit              ----->   committing: requests begin under the new plan                -->  done
///   abort               ----->   the plan before stays
///
///   between all:    ended        none of the requests of its users is under the plan before any more
///
/// `hold` is left out where both plans fit into every server's memory (two_plans.hpp), so that requests begin all the while.
/// A step follows when all have done the one before; one that failed, or is lost before the commit, ends the change.
/// Whoever loses the leader before it has said that it installed gives the change up: there is a commit only where all have
/// installed. Whoever was told to commit goes on. Of those that installed and know no more, the first that is left asks all
/// others (`inquire`); if anybody was told to commit it commits, else it gives up. The rest ask the first, which answers
/// once it knows, and do the same. A server answers one who asks only when it knows, or once the leader and everybody before
/// that one are lost to it, too, so that nothing of theirs can come afterwards. If the first is lost, the next one is the
/// first. Whoever was lost to the leader when it gave the change up is told so once it is back: what the leader said before it
/// knew of the loss may have come by the session that there is now.
///
/// So a request begins under the new plan only where everybody has it installed: what is done for it elsewhere finds the plan
/// there, told to commit or not. After the commit a server says `ended` to all others once none of its own requests is under
/// the plan before, and lets go of that plan (`retire`) once everybody has, or is lost: nothing under it can come then but what
/// nobody waits for. No leader is needed for it. A prepare that comes before waits for it, so that no third plan is ever there.
/// Who prepares is connected to every member, so that all hear from all when requests under the plan before have ended. Of two
/// that begin to lead at once neither is prepared by the other; the one with the lower number goes on.
///
/// Servers that are no members of the cluster are lost for as long as they are none, whether they can be reached or not: a
/// change goes on without them. While one is under way at a server, nobody makes another a member or none through that server
/// (the admin's rule). So whoever is asked to has not been told to prepare, and the leader, which hears of it before it hears
/// that this server is prepared, gives the change up: all that take part know of the same members, and one that joins does not
/// come between the plans.
///
/// What this cannot do: a server that dies with the only commit among the living comes back with the new plan, and is
/// refused by those with the old one (and the other way round) until an operator gives both the same plan.
namespace ordermoe::serving {

/// Names a change: no two have the same, whoever leads.
using change_id = std::uint64_t;

struct change_message {
  enum class what : std::uint8_t {
    // From the leader:
    prepare,
    hold,
    install,
    commit,
    abort,
    // To the leader, of the step before:
    done,
    failed,
    // To everybody, of the plan before:
    ended,
    // Between those that lost the leader:
    inquire,
    committed,
    not_committed
  };
  change_id change = 0;
  what kind = what::prepare;
  std::string text;  ///< prepare: the plan. abort, failed: why.
};
const char* to_string(change_message::what kind);
std::optional<change_message::what> parse_change_message(std::string_view name);

enum class change_phase : std::uint8_t {
  none,
  preparing,
  prepared,
  holding,
  held,
  installing,
  installed,
  inquiring,   ///< Installed, and the leader is lost.
  committing,  ///< Told to commit.
  ending,  ///< Requests begin under the new plan, and some end under the one before, here or elsewhere.
  retiring  ///< None does any more.
};
const char* to_string(change_phase phase);

enum class change_step : std::uint8_t { prepare, hold, install, commit, abort, retire };
const char* to_string(change_step step);

/// What a server has to do because of what it was told.
struct change_action {
  enum class what : std::uint8_t {
    tell,     ///< message to server.
    step,     ///< Do it here, and answer with step_done; abort is not answered.
    finished  ///< Of the leader: the change is over; `text` is empty where all go by the new plan, else it says why not.
  };
  what kind = what::tell;
  std::uint32_t server = 0;
  change_message message;
  change_step step = change_step::prepare;
  change_id change = 0;
  std::string text;  ///< step prepare: the plan. finished: why not.
};

/// One server's part in changes, one at a time.
class plan_changes {
 public:
  plan_changes(std::uint32_t self, std::uint32_t n_servers) : self_(self), n_servers_(n_servers) {}

  /// Leads a change; where requests still end under the plan before the last, it waits for them. `holds`: no request begins
  /// from when all have prepared until the commit. Error: failed, where a change is under way here or a member is lost;
  /// names it.
  result<std::vector<change_action>> begin(change_id change, std::string plan, bool holds);
  /// From another server; nothing where that is no member.
  std::vector<change_action> hear(std::uint32_t from, const change_message& message);
  /// What it was told to do here is done, or cannot be: why.
  std::vector<change_action> step_done(change_id change, const std::string& why = {});
  /// Requests of this server's users are all under the plan of this change, or over.
  std::vector<change_action> ended(change_id change);
  /// Nothing that was sent to it or by it is on its way any more.
  std::vector<change_action> lost(std::uint32_t server);
  std::vector<change_action> found(std::uint32_t server);
  /// Whether it is a member from now on; all are at first. One that becomes one is lost until it is found.
  std::vector<change_action> set_member(std::uint32_t server, bool member);
  /// The operator's, or time: gives up what this server leads and is not committed. False where there is nothing to.
  bool give_up(const std::string& why, std::vector<change_action>& actions);

  change_phase phase() const { return phase_; }
  /// Under way here; 0: none.
  change_id change() const { return phase_ == change_phase::none ? 0 : change_; }
  std::uint32_t leader() const { return leader_; }
  bool leads() const { return leading_.has_value(); }
  /// One is on its way to be committed here, or waits until the plan before the last is gone: another does not begin.
  bool is_under_way() const {
    return leading_ || waiting_ || (phase_ != change_phase::none && !is_ending());
  }
  /// Whether this server was told to commit what is under way.
  bool is_committed() const { return phase_ >= change_phase::committing; }
  /// Whether one that it leads waits until the plan before the last is gone.
  bool waits() const { return waiting_.has_value() && waiting_->first == self_; }

 private:
  using actions = std::vector<change_action>;
  /// What a leader waits for.
  struct lead {
    change_id change = 0;
    change_step step = change_step::prepare;
    std::set<std::uint32_t> awaited;
    std::string plan;
    bool holds = false;
  };

  void tell(actions& todo, std::uint32_t server, change_message message);
  void finish(actions& todo, change_id change, std::string why);
  void do_here(actions& todo, change_step step, std::string text = {});
  void take(actions& todo, std::uint32_t from, const change_message& message);
  void take_order(actions& todo, std::uint32_t from, const change_message& message);
  void prepare(actions& todo, std::uint32_t from, const change_message& message);
  void count(actions& todo, std::uint32_t from, const change_message& message);
  void next_step(actions& todo);
  std::optional<std::uint32_t> missing_member() const;
  void begin_step(actions& todo, change_step step);
  void end_lead(actions& todo, const std::string& why);
  void take_verdict(actions& todo, std::uint32_t from, const change_message& message);
  void lose_leader(actions& todo);
  std::string leader_lost() const;
  bool is_first_left(std::uint32_t server) const;
  void inquire(actions& todo);
  void decide_if_known(actions& todo);
  void commit(actions& todo);
  void take_ended(actions& todo, std::uint32_t from, const change_message& message);
  void retire_if_all_ended(actions& todo);
  void end_change(actions& todo);
  bool is_ending() const {
    return phase_ == change_phase::ending || phase_ == change_phase::retiring;
  }
  void abandon(actions& todo, const std::string& why);
  void answer_inquirers(actions& todo);

  std::uint32_t self_, n_servers_;
  change_phase phase_ = change_phase::none;
  change_id change_ = 0, committed_ = 0;  ///< The latest of each here.
  std::uint32_t leader_ = 0;
  std::optional<lead> leading_;
  std::set<std::uint32_t> lost_;
  std::set<std::uint32_t> absent_;  ///< No members; they are among the lost.
  /// The latest that this server led and gave up, and who was lost then: they have not been told.
  change_id given_up_ = 0;
  std::set<std::uint32_t> unaware_;
  bool asks_ = false;               ///< inquiring: this one asks.
  std::set<std::uint32_t> unsure_;  ///< Of those asked: who has not answered.
  /// Who asked and has no answer yet, and of which change.
  std::map<std::uint32_t, change_id> inquirers_;
  std::set<std::uint32_t> ended_;  ///< Whose requests are not under the plan before any more.
  /// A prepare, and from whom, that came while requests end under the plan before.
  std::optional<std::pair<std::uint32_t, change_message>> waiting_;
};

}  // namespace ordermoe::serving
