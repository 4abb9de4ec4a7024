#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "actors/cluster/client.hpp"
#include "gateway/backend.hpp"
#include "gateway/openai/json_text.hpp"
#include "setup/channel.hpp"
#include "setup/cluster_folder.hpp"

namespace ordermoe::gateway {

namespace {

using nlohmann::ordered_json;
using client_ptr = std::shared_ptr<actors::cluster_client>;

constexpr std::chrono::milliseconds try_again(1'000), reach_time(1'500), status_time(5'000);

/// One node as this gateway sees it.
struct node_way {
  std::string name;
  net::address at;
  client_ptr client;  ///< Null: not connected.
  std::size_t outstanding = 0;
};

class cluster_backend final : public backend {
 public:
  cluster_backend(std::shared_ptr<const net::tls_identity> identity, std::string folder,
                  std::vector<node_way> nodes)
      : identity_(std::move(identity)), folder_(std::move(folder)), nodes_(std::move(nodes)) {}

  ~cluster_backend() override { stop(); }

  /// Until one node is reached; the others may come later.
  result<void> begin() {
    error last{errc::not_found, fmt::format("{}: no node of it listens anywhere", folder_)};
    for (std::size_t i = 0; i < nodes_.size() && n_connected() == 0; ++i)
      if (auto done = connect(i); !done) last = done.error();
    if (n_connected() == 0) return last;
    keeper_ = std::thread([this] { keep_connected(); });
    return {};
  }

  std::uint64_t submit(actors::remote_request wanted, actors::answer_sink sink) override {
    std::unique_lock lock(mutex_);
    const auto number = next_++;
    const auto to = choose();
    if (to == nodes_.size()) {
      lock.unlock();
      actors::request_outcome outcome;
      outcome.finish = "failed";
      outcome.problem = error{errc::io, "no node of the cluster is connected"};
      if (sink.on_end) sink.on_end(outcome);
      return number;
    }
    const auto client = nodes_[to].client;
    ++nodes_[to].outstanding;
    // Not kept alive by what it answers: its end waits for the thread that answers.
    requests_[number] = {client, 0, false, false};
    lock.unlock();
    const auto ref = client->submit(
        std::move(wanted), {std::move(sink.on_token),
                            [this, number, to, by = client.get(), told = std::move(sink.on_end)](
                                const actors::request_outcome& outcome) {
                              end(number, to, by, outcome);
                              if (told) told(outcome);
                            }});
    lock.lock();
    const auto found = requests_.find(number);
    if (found == requests_.end()) return number;
    found->second.ref = ref;
    found->second.is_numbered = true;
    const bool cancels = found->second.is_cancelled;
    lock.unlock();
    if (cancels) client->cancel(ref);
    return number;
  }

  void cancel(std::uint64_t request) override {
    std::unique_lock lock(mutex_);
    const auto found = requests_.find(request);
    if (found == requests_.end()) return;
    found->second.is_cancelled = true;
    if (!found->second.is_numbered) return;
    const auto client = found->second.client.lock();
    const auto ref = found->second.ref;
    lock.unlock();
    if (client) client->cancel(ref);
  }

  bool is_ready() const override { return n_connected() > 0; }

  result<std::string> servers() override {
    auto list = ordered_json::array();
    for (const auto& [name, client] : clients()) {
      if (!client) {
        list.push_back({{"name", name}, {"error", "not connected"}});
        continue;
      }
      const auto told = client->status(status_time);
      auto read = told ? ordered_json::parse(*told, nullptr, false) : ordered_json();
      if (read.is_object())
        list.push_back(std::move(read));
      else
        list.push_back(
            {{"name", name}, {"error", told ? "its status makes no sense" : told.error().message}});
    }
    return json_text(list);
  }

  bool takes_orders() const override { return true; }

  std::string order(const std::string& node, const actors::bearer_order& order,
                    actors::order_sink sink) override {
    std::unique_lock lock(mutex_);
    const auto is_wanted = [&](const node_way& each) {
      return node.empty() ? each.client != nullptr : each.name == node;
    };
    const auto found = std::ranges::find_if(nodes_, is_wanted);
    if (found != nodes_.end() && found->client) {
      const auto client = found->client;
      const auto name = found->name;
      lock.unlock();
      client->give(order, std::move(sink));
      return name;
    }
    std::vector<std::string> names;
    for (const auto& each : nodes_) names.push_back(each.name);
    lock.unlock();
    sink(node.empty() ? error{errc::io, "no node of the cluster is connected"}
         : std::ranges::find(names, node) == names.end()
             ? error{errc::usage, fmt::format("found node '{}', expected one of {}",
                                              node.substr(0, 64), fmt::join(names, ", "))}
             : error{errc::io, fmt::format("{} is not connected", node)});
    return node;
  }

  void stop() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
      changed_.notify_all();
    }
    if (keeper_.joinable()) keeper_.join();
    std::vector<client_ptr> left;
    {
      const std::lock_guard lock(mutex_);
      for (auto& each : nodes_) left.push_back(std::exchange(each.client, nullptr));
      for (auto& each : retired_) left.push_back(std::move(each));
      retired_.clear();
      requests_.clear();
    }
    // A client's end waits for its thread, which may want the mutex.
    left.clear();
  }

 private:
  struct asked {
    std::weak_ptr<actors::cluster_client> client;
    std::uint64_t ref = 0;  ///< As the client numbers it.
    bool is_numbered = false, is_cancelled = false;
  };

  std::size_t n_connected() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(
        std::ranges::count_if(nodes_, [](const auto& each) { return each.client != nullptr; }));
  }

  std::vector<std::pair<std::string, client_ptr>> clients() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::pair<std::string, client_ptr>> made;
    for (const auto& each : nodes_) made.emplace_back(each.name, each.client);
    return made;
  }

  /// nodes_.size(): nobody is there.
  std::size_t choose() const {
    auto best = nodes_.size();
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (nodes_[i].client &&
          (best == nodes_.size() || nodes_[i].outstanding < nodes_[best].outstanding))
        best = i;
    return best;
  }

  result<void> connect(std::size_t i) {
    auto made = actors::cluster_client::connect(identity_, nodes_[i].at, reach_time,
                                                setup::connections_of_folder(folder_));
    if (!made) return made.error();
    const std::lock_guard lock(mutex_);
    nodes_[i].client = std::move(*made);
    nodes_[i].outstanding = 0;
    return {};
  }

  /// A client whose node went away is of no use, and is ended on another thread than its own.
  void end(std::uint64_t number, std::size_t node, const actors::cluster_client* by,
           const actors::request_outcome& outcome) {
    const std::lock_guard lock(mutex_);
    requests_.erase(number);
    auto& at = nodes_[node];
    if (at.client.get() != by) return;
    --at.outstanding;
    const bool is_gone =
        outcome.problem && outcome.problem->code == errc::io && !at.client->is_up();
    if (!is_gone) return;
    retired_.push_back(std::exchange(at.client, nullptr));
    changed_.notify_all();
  }

  void keep_connected() {
    std::unique_lock lock(mutex_);
    while (!ends_) {
      changed_.wait_for(lock, try_again);
      if (ends_) return;
      auto over = std::exchange(retired_, {});
      for (auto& each : nodes_)
        if (each.client && !each.client->is_up())
          over.push_back(std::exchange(each.client, nullptr));
      lock.unlock();
      over.clear();
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        lock.lock();
        const bool wanted = !ends_ && !nodes_[i].client;
        lock.unlock();
        // The next round tries again.
        if (wanted) static_cast<void>(connect(i));
      }
      lock.lock();
    }
  }

  const std::shared_ptr<const net::tls_identity> identity_;
  const std::string folder_;
  mutable std::mutex mutex_;  ///< Of everything below.
  std::condition_variable changed_;
  std::vector<node_way> nodes_;
  std::vector<client_ptr> retired_;
  std::map<std::uint64_t, asked> requests_;
  std::uint64_t next_ = 0;
  bool ends_ = false;
  std::thread keeper_;
};

}  // namespace

result<std::unique_ptr<backend>> connect_cluster(const std::string& folder) {
  const auto files = setup::read_cluster_folder({folder});
  if (!files) return files.error();
  auto identity = setup::console_identity({folder});
  if (!identity) return identity.error();
  std::vector<node_way> nodes;
  for (const auto& file : *files) {
    if (file.listen.empty()) continue;
    auto at = net::parse_address(file.listen.front());
    if (!at) return ordermoe::at(file.name, at.error());
    nodes.push_back({file.name, std::move(*at), nullptr, 0});
  }
  auto made = std::make_unique<cluster_backend>(std::move(*identity), folder, std::move(nodes));
  if (auto begun = made->begin(); !begun) return begun.error();
  return std::unique_ptr<backend>(std::move(made));
}

}  // namespace ordermoe::gateway
