#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/error.hpp"
#include "config/node_file.hpp"
#include "net/channel/tls.hpp"
#include "setup/cluster_folder.hpp"

/// How the nodes of a cluster folder do, as these say themselves.
namespace ordermoe::cli {

/// Of the folder's nodes those that are members.
result<std::vector<node_file>> members_of(const setup::cluster_folder& folder);

struct node_state {
  std::string name, address;
  nlohmann::json status;  ///< Null where it did not answer.
  std::string problem;
  bool serves = false;
  bool drained = false;  ///< It would serve, but takes no requests of its users until `resume`.

  /// Whether it does all that it was asked to.
  bool is_up() const { return serves || drained; }
};

/// One node, for seven seconds at most. A node that listens nowhere is judged by the others alone.
node_state ask(const node_file& file, std::shared_ptr<const net::tls_identity> identity);

/// Nobody can ask a node that listens nowhere: it serves when all others are connected to it.
void judge_by_others(std::vector<node_state>& states);

/// Who is no member, as those know that serve; they are connected to all members. Where none does: as this machine knows.
result<void> leave_out_absent(const std::vector<node_file>& files, std::vector<node_state>& states);

/// A table of the nodes, their links, how a rehearsal goes, and warnings; or all that they said, as JSON.
void print_states(const std::vector<node_state>& states, bool json);

}  // namespace ordermoe::cli
