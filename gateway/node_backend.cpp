#include <fmt/format.h>

#include <utility>

#include "actors/cluster/clients.hpp"
#include "actors/cluster/node.hpp"
#include "embedding/configuration.hpp"
#include "gateway/backend.hpp"
#include "setup/node_setup.hpp"

namespace ordermoe::gateway {

namespace {

class node_backend final : public backend {
 public:
  node_backend(std::string name, std::shared_ptr<trace::sink> trace,
               std::unique_ptr<actors::node> running)
      : name_(std::move(name)), trace_(std::move(trace)), running_(std::move(running)) {}

  std::uint64_t submit(actors::remote_request wanted, actors::answer_sink sink) override {
    if (sink.on_end)
      sink.on_end = [told = std::move(sink.on_end)](const actors::request_outcome& outcome) {
        if (!actors::is_refusal(outcome)) return told(outcome);
        auto later = outcome;
        later.problem->code = errc::io;
        told(later);
      };
    return running_->submit(std::move(wanted.spec), std::move(sink));
  }
  void cancel(std::uint64_t request) override { running_->cancel(request); }
  bool is_ready() const override { return true; }

  result<std::string> servers() override {
    auto told = running_->status_json();
    if (!told) return told;
    return "[" + *told + "]";
  }

  bool takes_orders() const override { return true; }

  std::string order(const std::string& node, const actors::bearer_order& order,
                    actors::order_sink sink) override {
    if (node.empty() || node == name_)
      running_->give(order, std::move(sink));
    else
      sink(error{errc::usage, fmt::format("found node '{}', expected {}, which is the one of this "
                                          "gateway; `ordermoe serve --dir` reaches all of them",
                                          node.substr(0, 64), name_)});
    return name_;
  }

  void stop() override {
    // As far as the others let it come to rest: a trace without its last lines says so itself.
    if (trace_) static_cast<void>(running_->close_trace());
    running_->stop();
    if (trace_) static_cast<void>(trace_->close());
  }

 private:
  const std::string name_;
  std::shared_ptr<trace::sink> trace_;  ///< Null: none is written.
  std::unique_ptr<actors::node> running_;
};

}  // namespace

result<std::unique_ptr<backend>> start_node(const std::string& config, log_outlet log,
                                            ordermoe::job& work) {
  api::member_options options;
  options.config = config;
  const auto how = embedding::configure(options);
  if (!how) return how.error();
  auto ready = setup::prepare_node(how->file, work);
  if (!ready) return ready.error();
  ready->log = std::move(log);
  auto trace = ready->service.sink;
  auto name = ready->service.servers.servers[ready->server].name;
  auto running = actors::node::start(std::move(*ready));
  if (!running) return running.error();
  return std::unique_ptr<backend>(
      new node_backend(std::move(name), std::move(trace), std::move(*running)));
}

}  // namespace ordermoe::gateway
