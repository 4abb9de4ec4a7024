#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/error.hpp"
#include "config/node_file.hpp"

namespace ordermoe::actors {
class cluster_client;
}

/// What a console keeps between two verbs: whom it asks, as whom, and the connections that it has.
namespace ordermoe::cli {

struct admin_flags {
  std::string folder = ".", node, token_file;
  bool json = false, dry_run = false;
};

/// Sessions with the nodes that were asked, kept for the next line.
class admin_session {
 public:
  explicit admin_session(admin_flags flags) : flags_(std::move(flags)) {}

  const admin_flags& flags() const { return flags_; }
  void set_dry_run(bool on) { flags_.dry_run = on; }

  /// Of the folder's nodes: the one that --node names, or all.
  result<std::vector<std::string>> chosen_nodes() const;

  /// A node that can be asked about another: the one that --node names, or the first that answers but for this one.
  result<std::string> other_than(const std::string& name);

  /// From the node of this name; empty: the one that --node names, else the first that answers.
  result<nlohmann::ordered_json> order(const std::string& node, const std::string& verb,
                                       const nlohmann::ordered_json& arguments,
                                       std::chrono::seconds longest);

 private:
  using client_ptr = std::shared_ptr<actors::cluster_client>;

  /// Members first, as far as this machine knows: another may run, and nobody lets it in.
  result<std::vector<node_file>> files_to_ask() const;
  result<client_ptr> connect(const std::string& wanted);

  admin_flags flags_;
  std::map<std::string, client_ptr> clients_;
};

using session_ptr = std::shared_ptr<admin_session>;

}  // namespace ordermoe::cli
