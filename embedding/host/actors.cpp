#include "ordermoe/actors.hpp"

#include <memory>
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
    // The node keeps neither alive: the gateway's system may end before it, and waits for whoever is alive. Of actors that have
    // ended nobody has the census any more.
    const auto close = [of = std::weak_ptr(census),
                        to = caf::actor_cast<caf::weak_actor_ptr>(gateway)] {
      const auto still_there = of.lock();
      if (!still_there) return;
      if (auto it = to.lock())
        caf::anon_send_exit(caf::actor_cast<caf::actor>(std::move(it)),
                            caf::exit_reason::user_shutdown);
      still_there->await_none();
    };
    const auto is_over = [of = std::weak_ptr(census)] { return of.expired(); };
    if (const auto closes = content->closes_with({close, is_over}); !closes) {
      close();
      return closes.problem();
    }
    return caf::actor_cast<gateway_actor>(gateway);
  });
}

}  // namespace ordermoe::api
