#include "cli/eval_connected.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "cli/common.hpp"
#include "cli/connection.hpp"
#include "setup/cluster_folder.hpp"

namespace ordermoe::cli {

namespace {

/// Requests in flight: as many as keep a few servers busy.
constexpr std::size_t most_at_once = 8;
/// A text is decoded position by position, behind others.
constexpr std::int64_t deadline_ns = std::int64_t{6} * 3600 * 1'000'000'000;

}  // namespace

result<std::unique_ptr<connected_cluster>> connected_cluster::connect(const std::string& address,
                                                                      const std::string& folder) {
  auto made = std::make_unique<connected_cluster>();
  auto files = setup::read_cluster_folder({folder});
  if (!files) return files.error();
  made->files_ = std::move(*files);
  auto first = connect_to(address, folder);
  if (!first) return first.error();
  made->first_ = *first;
  for (const auto& file : made->files_) {
    auto& client = made->clients_.emplace_back();
    if (file.name == made->first_->node_name())
      client = made->first_;
    else if (!file.listen.empty())
      if (auto other = connect_to(file.listen.front(), folder)) client = std::move(*other);
  }
  return made;
}

result<setup::cluster_outlook> connected_cluster::look(const std::string& model) const {
  return setup::look_at_cluster(files_.front(), model, work());
}

result<std::vector<std::shared_ptr<actors::cluster_client>>> connected_cluster::askers() const {
  std::vector<std::shared_ptr<actors::cluster_client>> open;
  std::shared_ptr<actors::cluster_client> other;
  for (const auto& client : clients_) {
    auto& own = open.emplace_back();
    const auto status = client ? client->status(std::chrono::seconds(10))
                               : result<std::string>(error{errc::io, "not reached"});
    if (!status) continue;
    const auto told = nlohmann::json::parse(*status, nullptr, false);
    if (told.is_object() && told.value("drained", false)) {
      fmt::print(stderr, "ordermoe: {} is drained: others are asked in its place\n",
                 client->node_name());
      continue;
    }
    own = client;
    if (!other || client == first_) other = client;
  }
  if (!other)
    return error{errc::failed, "every node is drained; `ordermoe admin resume NODE` ends that"};
  for (auto& own : open)
    if (!own) own = other;
  return open;
}

std::optional<serving::execution_counts> connected_cluster::executions() {
  serving::execution_counts sum{};
  for (const auto& client : clients_) {
    if (!client) return std::nullopt;
    const auto status = client->status(std::chrono::seconds(10));
    if (!status) return std::nullopt;
    const auto told = nlohmann::json::parse(*status, nullptr, false);
    const auto found = told.find("executions");
    if (found == told.end() || !found->is_array() || found->size() != sum.size())
      return std::nullopt;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += (*found)[i].get<std::int64_t>();
  }
  return sum;
}

result<actors::run_result> connected_cluster::answer(const actors::run_setup& asked) {
  const auto open = askers();
  if (!open) return open.error();
  const auto n = asked.requests.size();
  actors::run_result answered;
  answered.outcomes.resize(n);
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return asked.requests[i].arrival_ns; });
  std::mutex mutex;
  std::size_t done = 0;
  const auto n_done = [&] {
    const std::lock_guard lock(mutex);
    return done;
  };
  const auto ask = [&](std::size_t i) {
    actors::remote_request wanted;
    wanted.spec = asked.requests[i];
    wanted.spec.deadline_ns = deadline_ns;
    wanted.spec.sampling_stream = i;
    const auto& own = (*open)[std::min<std::size_t>(wanted.spec.access, open->size() - 1)];
    own->submit(std::move(wanted), {{}, [&, i](const auto& outcome) {
                                      const std::lock_guard lock(mutex);
                                      answered.outcomes[i] = outcome;
                                      answered.outcomes[i].request = i;
                                      ++done;
                                    }});
  };
  const auto before = executions();
  const auto begin = std::chrono::steady_clock::now();
  bool stopped = false;
  for (std::size_t next = 0; n_done() < next || (next < n && !stopped);) {
    for (; !stopped && next < n && next - n_done() < most_at_once; ++next) ask(order[next]);
    const auto seen = n_done();
    first_->wait([&] { return n_done() > seen || n_done() == next; },
                 [&] { return !stopped && stop_requested(); });
    if (asked.on_progress) asked.on_progress(n_done(), n);
    // What is in flight writes here: it is awaited, but cut short.
    if (!std::exchange(stopped, stopped || stop_requested()) && stopped)
      for (const auto& client : clients_)
        if (client) client->cancel_all();
  }
  answered.host_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (stopped) return error{errc::interrupted, "interrupted"};
  for (const auto& outcome : answered.outcomes)
    if (outcome.problem)
      return outcome.problem->message.starts_with("request ")
                 ? *outcome.problem
                 : at(fmt::format("request {}", outcome.request), *outcome.problem);
  if (const auto after = executions(); before && after)
    for (std::size_t i = 0; i < after->size(); ++i)
      answered.executions[i] = (*after)[i] - (*before)[i];
  return answered;
}

}  // namespace ordermoe::cli
