#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "actors/cluster/clients.hpp"
#include "gateway/backend.hpp"
#include "gateway/openai/json_text.hpp"
#include "setup/channel.hpp"
#include "setup/cluster_folder.hpp"

namespace ordermoe::gateway {

namespace {

using nlohmann::ordered_json;

constexpr std::chrono::milliseconds reach_time(1'500), status_time(5'000);

class cluster_backend final : public backend {
 public:
  explicit cluster_backend(std::unique_ptr<actors::cluster_clients> nodes)
      : nodes_(std::move(nodes)) {}
  ~cluster_backend() override { stop(); }

  std::uint64_t submit(actors::remote_request wanted, actors::answer_sink sink) override {
    return nodes_->submit_to_any(std::move(wanted), std::move(sink));
  }
  bool tell_in_turns(std::function<void()> begin, std::function<void()> end) override {
    nodes_->tell_in({std::move(begin), std::move(end)});
    return true;
  }
  void cancel(std::uint64_t request) override { nodes_->cancel(request); }
  bool is_ready() const override { return nodes_->n_up() > 0; }

  result<std::string> servers() override {
    auto list = ordered_json::array();
    const auto told = nodes_->statuses(status_time);
    for (std::size_t i = 0; i < told.size(); ++i) {
      auto read = told[i] ? ordered_json::parse(*told[i], nullptr, false) : ordered_json();
      if (read.is_object())
        list.push_back(std::move(read));
      else
        list.push_back(
            {{"name", nodes_->name(i)},
             {"error", told[i] ? "its status makes no sense" : told[i].error().message}});
    }
    return json_text(list);
  }

  bool takes_orders() const override { return true; }

  std::string order(const std::string& node, const actors::bearer_order& order,
                    actors::order_sink sink) override {
    if (node.empty() && (order.verb == "drain" || order.verb == "resume")) {
      sink(error{errc::usage,
                 fmt::format("{}: found no node, expected the name of the one that it is of",
                             order.verb)});
      return node;
    }
    std::vector<std::string> names;
    for (std::size_t i = 0; i < nodes_->size(); ++i) names.push_back(nodes_->name(i));
    for (std::size_t i = 0; i < names.size(); ++i)
      if (nodes_->is_up(i) && (node.empty() || names[i] == node)) {
        nodes_->give(i, order, std::move(sink));
        return names[i];
      }
    sink(node.empty() ? error{errc::io, "no node of the cluster is connected"}
         : std::ranges::find(names, node) == names.end()
             ? error{errc::usage, fmt::format("found node '{}', expected one of {}",
                                              node.substr(0, 64), fmt::join(names, ", "))}
             : error{errc::io, fmt::format("{} is not connected", node)});
    return node;
  }

  void stop() override { nodes_->stop(); }

 private:
  const std::unique_ptr<actors::cluster_clients> nodes_;
};

}  // namespace

result<std::unique_ptr<backend>> connect_cluster(const std::string& folder) {
  const auto files = setup::read_cluster_folder({folder});
  if (!files) return files.error();
  auto identity = setup::console_identity({folder});
  if (!identity) return identity.error();
  std::vector<actors::cluster_clients::place> places;
  for (const auto& file : *files) {
    if (file.listen.empty()) continue;
    auto at = net::parse_address(file.listen.front());
    if (!at) return ordermoe::at(file.name, at.error());
    places.push_back({file.name, std::move(*at)});
  }
  if (places.empty())
    return error{errc::not_found, fmt::format("{}: no node of it listens anywhere", folder)};
  auto nodes = actors::cluster_clients::start(std::move(*identity), std::move(places),
                                              setup::connections_of_folder(folder));
  if (!nodes) return nodes.error();
  if (auto reached = (*nodes)->await_one(reach_time); !reached) return reached.error();
  return std::unique_ptr<backend>(std::make_unique<cluster_backend>(std::move(*nodes)));
}

}  // namespace ordermoe::gateway
