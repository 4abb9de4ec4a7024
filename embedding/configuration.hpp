#pragma once

#include <atomic>
#include <memory>

#include "actors/service/service.hpp"
#include "config/error.hpp"
#include "config/job.hpp"
#include "config/log.hpp"
#include "config/node_file.hpp"
#include "net/channel/address.hpp"
#include "net/channel/connections.hpp"
#include "net/channel/tls.hpp"
#include "ordermoe/node.hpp"

/// From what an embedder names to what can be started.
namespace ordermoe::embedding {

/// All servers in this process, on the wall clock. Errors name the option, the file, or what does not fit.
result<actors::service_options> configure(const api::cluster_options& options, job& work);
/// One server: by which file, and where it tells what it notices.
struct member_configuration {
  node_file file;
  log_outlet log;
  /// Once it is set, the host is told nothing more.
  std::shared_ptr<std::atomic<bool>> is_silent = std::make_shared<std::atomic<bool>>(false);
};
result<member_configuration> configure(const api::member_options& options);

/// Whom to connect to, and as whom.
struct connection {
  net::address at;
  std::shared_ptr<const net::tls_identity> identity;
  net::connections_maker carried_by;  ///< As the nodes have it.
};
result<connection> configure(const api::client_options& options);

}  // namespace ordermoe::embedding
