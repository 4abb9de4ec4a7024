#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "actors/service/service.hpp"
#include "actors/service/status_json.hpp"
#include "config/job.hpp"
#include "embedding/configuration.hpp"
#include "gateway/backend.hpp"
#include "gateway/openai/json_text.hpp"
#include "planning/plan.hpp"

namespace ordermoe::gateway {

namespace {

using nlohmann::ordered_json;

/// A request's user is connected to the server that has the fewest.
class local_backend final : public backend {
 public:
  local_backend(std::unique_ptr<actors::service> running, std::size_t n_servers)
      : running_(std::move(running)), users_(n_servers) {}

  std::uint64_t submit(actors::remote_request wanted, actors::answer_sink sink) override {
    const auto access = come();
    wanted.spec.access = access;
    return running_->submit(
        std::move(wanted.spec),
        {std::move(sink.on_token),
         [this, access, told = std::move(sink.on_end)](const actors::request_outcome& outcome) {
           leave(access);
           if (told) told(outcome);
         }});
  }
  void cancel(std::uint64_t request) override { running_->cancel(request); }
  bool is_ready() const override { return true; }

  result<std::string> servers() override {
    const auto now = running_->status();
    if (!now) return now.error();
    auto list = ordered_json::array();
    for (const auto& server : now->servers) {
      list.push_back(actors::server_json(server));
      list.back()["links"] = ordered_json::array();
    }
    for (const auto& link : now->links)
      if (link.ledger.from < list.size())
        list[link.ledger.from]["links"].push_back(actors::link_json(link.ledger));
    return json_text(list);
  }

  void stop() override { running_->stop(); }

 private:
  std::uint32_t come() {
    const std::lock_guard lock(mutex_);
    const auto fewest = std::ranges::min_element(users_);
    ++*fewest;
    return static_cast<std::uint32_t>(fewest - users_.begin());
  }
  void leave(std::uint32_t access) {
    const std::lock_guard lock(mutex_);
    --users_[access];
  }

  std::unique_ptr<actors::service> running_;
  std::mutex mutex_;
  std::vector<std::size_t> users_;  ///< [n_servers]
};

}  // namespace

result<std::unique_ptr<backend>> start_cluster(const api::cluster_options& options,
                                               ordermoe::job& work) {
  auto ready = embedding::configure(options, work);
  if (!ready) return ready.error();
  const auto n_servers = ready->servers.size();
  auto running = actors::service::start(std::move(*ready));
  if (!running) return running.error();
  return std::unique_ptr<backend>(new local_backend(std::move(*running), n_servers));
}

}  // namespace ordermoe::gateway
