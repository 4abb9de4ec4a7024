#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/cluster/node.hpp"
#include "config/cluster.hpp"
#include "config/error.hpp"
#include "config/job.hpp"
#include "config/node_file.hpp"

/// From node.toml to a node that can start.
namespace ordermoe::setup {

/// Reads cluster, plan, profile and certificates, loads the experts that the plan places on this node, opens its trace
/// (service.sink, which whoever stops the node closes) and counts this start. Errors name the file, and what in it does not fit the others: a name that the cluster does not have, a member
/// too many or too few, a plan or profile of another model, a certificate of another name, weights that do not fit the
/// server's memory.
result<actors::node_options> prepare_node(const node_file& file, job& work);

/// Where a node of this file stands, found out without plan and profile.
struct node_place {
  cluster servers;
  std::uint32_t server = 0;
  std::string model_digest;
  net::transport_options transport;  ///< Without its count of starts, and in what all agree.
};
/// Errors: those of prepare_node that concern cluster file, members, certificates and the model's folder.
result<node_place> place_node(const node_file& file);

/// What of the model two nodes have alike: its digest and size, and the ids that end a text, which
/// generation_config.json adds to and the digest does not cover.
std::vector<net::agreement> model_agreements(const std::string& digest,
                                             const model::model_config& shape);

/// Whether the node can write where its file says, its state and its trace; on the node's own host. Leaves nothing behind. Error:
/// io.
result<void> check_places(const node_file& file);

/// What a node would do, found out without loading weights, listening or counting a start.
struct node_outlook {
  std::uint32_t server = 0;
  std::string device;         ///< What it computes on (config/devices.hpp).
  std::size_t n_experts = 0;  ///< That the plan places there.
  std::int64_t weight_bytes =
      0;  ///< Of these and of what every server has, as its device keeps them.
  std::int64_t certificate_until_s = 0;  ///< Seconds since 1970.
  bool fetches_plan = false;  ///< It has none: what the plan places there is not known yet.
};
/// The errors of prepare_node, but for those of weights.
result<node_outlook> check_node(const node_file& file, job& work);

/// How many times the charged bytes frames are padded to at least, so that none of this model is larger
/// (rehearsal::stretch).
std::uint32_t least_stretch(const cost_profile& costs, const model::model_config& shape,
                            model::kv_precision kv);

/// What a cluster runs, for whoever asks it: no weights are loaded.
struct cluster_outlook {
  actors::service_options service;  ///< Without a model.
  model::model_config shape;
  std::string model_name;
};
/// As a node's file has it, with the model's folder here in place of the node's where it is given. The errors of
/// check_node, but for those of certificates and weights.
result<cluster_outlook> look_at_cluster(node_file file, const std::filesystem::path& model,
                                        job& work);

}  // namespace ordermoe::setup
