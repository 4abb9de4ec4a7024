#include "embedding/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "actors/cluster/client.hpp"
#include "actors/service/service.hpp"
#include "config/json.hpp"
#include "embedding/configuration.hpp"
#include "embedding/float_environment.hpp"
#include "embedding/status_json.hpp"

namespace ordermoe::embedding {

namespace {

/// All servers of a cluster.
class whole_cluster final : public engine {
 public:
  whole_cluster(std::shared_ptr<const model::tokenizer> tokens,
                std::unique_ptr<actors::service> running)
      : tokens_(std::move(tokens)), running_(std::move(running)) {}

  std::uint64_t submit(actors::remote_request wanted, actors::answer_sink sink) override {
    return running_->submit(spec_of(std::move(wanted), *tokens_), std::move(sink));
  }
  void cancel(std::uint64_t request) override { running_->cancel(request); }
  result<std::string> status() override {
    const auto now = running_->status();
    if (!now) return now.error();
    return status_json(*now);
  }
  void stop() override { running_->stop(); }

 private:
  std::shared_ptr<const model::tokenizer> tokens_;
  std::unique_ptr<actors::service> running_;
};

/// Servers that are elsewhere.
class visitor final : public engine {
 public:
  explicit visitor(std::unique_ptr<actors::cluster_client> client) : client_(std::move(client)) {}

  std::uint64_t submit(actors::remote_request wanted, actors::answer_sink sink) override {
    return client_->submit(std::move(wanted), std::move(sink));
  }
  void cancel(std::uint64_t request) override { client_->cancel(request); }
  result<std::string> status() override {
    constexpr std::chrono::seconds longest(30);
    return client_->status(longest);
  }
  result<std::string> order(const api::admin_order& wanted) override {
    if (!parse_told(wanted.arguments).is_object())
      return error{errc::usage,
                   fmt::format("arguments: found '{}', expected a JSON object", wanted.arguments)};
    return client_->order(wanted.verb, wanted.arguments, wanted.dry_run, countable(wanted.longest),
                          wanted.token);
  }
  void interrupt() override { client_->interrupt(); }
  void stop() override { client_.reset(); }

 private:
  std::unique_ptr<actors::cluster_client> client_;
};

}  // namespace

std::chrono::milliseconds countable(std::chrono::milliseconds longest) {
  constexpr std::chrono::milliseconds least(0), most = std::chrono::hours(24 * 365);
  return std::clamp(longest, least, most);
}

actors::request_spec spec_of(actors::remote_request wanted, const model::tokenizer& tokens) {
  const default_float_environment here;  // Pieces of a text may be chosen by scores.
  auto spec = std::move(wanted.spec);
  if (spec.prompt.empty() && !wanted.text.empty()) spec.prompt = tokens.encode(wanted.text);
  return spec;
}

result<std::unique_ptr<engine>> start_engine(const api::cluster_options& options,
                                             caf::actor_system* system) {
  const default_float_environment here;
  job work;
  auto ready = configure(options, work);
  if (!ready) return ready.error();
  ready->system = system;
  const auto tokens = ready->tokens;
  auto running = actors::service::start(std::move(*ready));
  if (!running) return running.error();
  return std::unique_ptr<engine>(new whole_cluster(tokens, std::move(*running)));
}

result<std::unique_ptr<engine>> connect_engine(const api::client_options& options) {
  const auto ready = configure(options);
  if (!ready) return ready.error();
  auto client = actors::cluster_client::connect(ready->identity, ready->at,
                                                countable(options.longest), ready->carried_by);
  if (!client) return client.error();
  return std::unique_ptr<engine>(new visitor(std::move(*client)));
}

}  // namespace ordermoe::embedding
