#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "actors/cluster/control.hpp"
#include "actors/cluster/plan_messages.hpp"
#include "net/bulk/transfer.hpp"
#include "net/channel/transport.hpp"

/// What a member has for hosts that join: by what it goes, as texts, and the place where it is asked for.
namespace ordermoe::actors {

/// The texts of what is in force at a node, as they stand in its files. Thread-safe.
class kept_papers {
 public:
  kept_papers(std::string model, std::string cluster_file)
      : model_(std::move(model)), cluster_file_(std::move(cluster_file)) {}

  /// In the place of the one before; gives its digest. `epoch`: of a plan.
  std::string put(paper which, std::string text, std::optional<std::uint64_t> epoch = {});
  /// A plan that was never changed has no epoch in its file: it is the first.
  std::string put_plan(std::string text, std::uint64_t epoch);
  /// Precondition: plan and profile were put.
  plan_notice notice() const;
  /// Of the paper that has this name now; null: none has.
  std::shared_ptr<const std::string> find(const std::string& name) const;

 private:
  struct kept {
    std::string sha256;
    std::shared_ptr<const std::string> text;
  };
  std::string model_, cluster_file_;
  mutable std::mutex mutex_;
  std::uint64_t epoch_ = 0;
  std::array<kept, n_papers> kept_;
};

/// Hosts that ask for the plan, each by a session of its own. Of the transport's thread.
class plan_desk {
 public:
  using way = std::function<void(net::peer_id to, control_kind kind, std::uint64_t request,
                                 std::uint32_t attempt, std::string payload)>;

  /// `papers` null: there is nothing to tell, and everybody who asks is refused.
  plan_desk(std::shared_ptr<const kept_papers> papers, way send);
  ~plan_desk();

  void came(net::peer_id host);
  void left(net::peer_id host);
  bool is_here(net::peer_id host) const { return hosts_.contains(host); }
  /// A frame of such a host. Error: malformed or usage: what no such host says.
  result<void> take(net::peer_id from, net::frame_header header, std::string_view payload);

 private:
  class offered;
  struct host;
  std::shared_ptr<const kept_papers> papers_;
  way send_;
  std::map<net::peer_id, std::unique_ptr<host>> hosts_;
};

}  // namespace ordermoe::actors
