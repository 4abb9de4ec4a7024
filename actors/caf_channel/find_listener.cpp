#include "actors/caf_channel/find_listener.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <caf/all.hpp>
#include <caf/openssl/all.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace ordermoe::actors {

namespace {

using clock = std::chrono::steady_clock;

struct close_socket {
  int fd;
  ~close_socket() {
    if (fd >= 0) ::close(fd);
  }
};

struct free_addresses {
  void operator()(addrinfo* all) const { ::freeaddrinfo(all); }
};
using addresses = std::unique_ptr<addrinfo, free_addresses>;

result<addresses> resolve(const net::address& where, int flags) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = flags;
  addrinfo* found = nullptr;
  const auto failed =
      ::getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &wanted, &found);
  if (failed != 0) return error{errc::io, ::gai_strerror(failed)};
  return addresses(found);
}

std::string in_numbers(const addrinfo& of) {
  std::array<char, NI_MAXHOST> host{};
  ::getnameinfo(of.ai_addr, of.ai_addrlen, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  return host.data();
}

/// 0: somebody answers there; else the reason why not.
int try_connect(const addrinfo& to, const listener_search& what, clock::time_point until) {
  const close_socket made{
      ::socket(to.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP)};
  if (made.fd < 0) return errno;
  if (::connect(made.fd, to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  while (*what.goes_on && clock::now() < until) {
    constexpr int look_again_ms = 50;
    pollfd socket{made.fd, POLLOUT, 0};
    if (::poll(&socket, 1, look_again_ms) <= 0) continue;
    int problem = 0;
    socklen_t size = sizeof problem;
    ::getsockopt(made.fd, SOL_SOCKET, SO_ERROR, &problem, &size);
    return problem;
  }
  return ETIMEDOUT;
}

/// The first address, in numbers, where somebody answers.
result<std::string> who_answers(const listener_search& what) {
  const auto all = resolve(what.at, 0);
  if (!all) return all.error();
  // The rest of the time is for CAF.
  const auto until = clock::now() + std::chrono::nanoseconds(what.limit_ns / 2);
  int problem = 0;
  for (const auto* each = all->get(); each != nullptr; each = each->ai_next) {
    problem = try_connect(*each, what, until);
    if (problem == 0) return in_numbers(*each);
  }
  return error{errc::io, problem == ETIMEDOUT ? "it does not answer" : std::strerror(problem)};
}

error refused_by_caf(const std::string& reason) {
  return {errc::io,
          fmt::format("CAF cannot connect with it ({}): one of the two does not take the other's "
                      "certificate, or its channel is not caf: all nodes and clients of a cluster "
                      "need the same",
                      reason)};
}

}  // namespace

caf::behavior find_listener(caf::event_based_actor* self, listener_search what,
                            std::function<void(result<caf::actor>)> done) {
  const auto host = who_answers(what);
  if (!host) {
    done(host.error());
    return {};
  }
  self->request(self->system().openssl_manager().actor_handle(),
                std::chrono::nanoseconds(what.limit_ns), caf::connect_atom_v, *host, what.at.port)
      .then(
          [done](const caf::node_id&, const caf::strong_actor_ptr& found,
                 const std::set<std::string>&) {
            if (!found) return done(refused_by_caf("it publishes no actor there"));
            done(caf::actor_cast<caf::actor>(found));
          },
          [self, done](const caf::error& why) {
            done(refused_by_caf(self->system().render(why)));
          });
  return {};
}

result<std::string> can_listen(const net::address& where) {
  const auto all = resolve(where, AI_PASSIVE);
  if (!all) return all.error();
  const auto& first = **all;
  const close_socket made{::socket(first.ai_family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP)};
  const int yes = 1;
  if (made.fd < 0 || ::setsockopt(made.fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(made.fd, first.ai_addr, first.ai_addrlen) != 0 || ::listen(made.fd, 1) != 0)
    return error{errc::io, std::strerror(errno)};
  return in_numbers(first);
}

}  // namespace ordermoe::actors
