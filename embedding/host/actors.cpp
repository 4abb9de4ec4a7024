#include "ordermoe/actors.hpp"

#include <utility>

#include "embedding/host/gateway.hpp"

namespace ordermoe::api {

namespace {

template <class Options>
result<node> start_with(caf::actor_system& host, const Options& options) {
  return without_exceptions([&]() -> result<node> {
    auto serving = embedding::start_engine(options, &host);
    if (!serving) return problem_of(serving.error());
    return node_access::make(std::move(*serving));
  });
}

}  // namespace

result<node> start_in(caf::actor_system& host, const cluster_options& options) {
  return start_with(host, options);
}
result<node> start_in(caf::actor_system& host, const member_options& options) {
  return start_with(host, options);
}

result<gateway_actor> open_gateway(caf::actor_system& host, node& of) {
  return without_exceptions([&]() -> result<gateway_actor> {
    const auto content = node_access::content(of);
    const auto census = std::make_shared<actors::actor_census>();
    const auto gateway = spawn_gateway(host, content, census);
    const auto close = [census, gateway] {
      caf::anon_send_exit(gateway, caf::exit_reason::user_shutdown);
      census->await_none();
    };
    if (const auto closes = content->closes_with(close); !closes) {
      close();
      return closes.problem();
    }
    return caf::actor_cast<gateway_actor>(gateway);
  });
}

}  // namespace ordermoe::api
