#include "actors/cluster/client.hpp"

#include <utility>

#include "actors/cluster/clients.hpp"

namespace ordermoe::actors {

namespace {

constexpr std::size_t the_node = 0;

}  // namespace

class cluster_client::content {
 public:
  explicit content(std::unique_ptr<cluster_clients> nodes)
      : nodes(std::move(nodes)), name(this->nodes->name(the_node)) {}
  std::unique_ptr<cluster_clients> nodes;  ///< One.
  std::string name;
};

cluster_client::cluster_client(std::unique_ptr<content> made) : content_(std::move(made)) {}
cluster_client::~cluster_client() = default;

result<std::unique_ptr<cluster_client>> cluster_client::connect(
    std::shared_ptr<const net::tls_identity> identity, const net::address& at,
    std::chrono::milliseconds longest, net::connections_maker carried_by) {
  auto nodes = cluster_clients::start(std::move(identity), {{"", at}}, std::move(carried_by));
  if (!nodes) return nodes.error();
  if (auto reached = (*nodes)->await_one(longest); !reached) return reached.error();
  return std::unique_ptr<cluster_client>(
      new cluster_client(std::make_unique<content>(std::move(*nodes))));
}

const std::string& cluster_client::node_name() const {
  return content_->name;
}
bool cluster_client::is_up() const {
  return content_->nodes->is_up(the_node);
}
std::uint64_t cluster_client::submit(remote_request wanted, answer_sink sink) {
  return content_->nodes->submit(the_node, std::move(wanted), std::move(sink));
}
void cluster_client::cancel(std::uint64_t request) {
  content_->nodes->cancel(request);
}
void cluster_client::cancel_all() {
  content_->nodes->cancel_all();
}
std::size_t cluster_client::outstanding() const {
  return content_->nodes->outstanding();
}
bool cluster_client::wait(const std::function<bool()>& done, const std::function<bool()>& pause) {
  return content_->nodes->wait(done, pause);
}
void cluster_client::run_expert(expert_ask ask, std::function<void(const expert_answer&)> sink) {
  content_->nodes->run_expert(the_node, std::move(ask), std::move(sink));
}
result<std::string> cluster_client::order(const std::string& verb, const std::string& arguments,
                                          bool dry_run, std::chrono::milliseconds longest,
                                          const std::string& token) {
  return content_->nodes->order(the_node, verb, arguments, dry_run, longest, token);
}
void cluster_client::interrupt() {
  content_->nodes->interrupt();
}
void cluster_client::give(const bearer_order& order, order_sink sink) {
  content_->nodes->give(the_node, order, std::move(sink));
}
result<std::string> cluster_client::status(std::chrono::milliseconds longest) {
  return content_->nodes->status(the_node, longest);
}

}  // namespace ordermoe::actors
