// One server of a cluster inside this program: member NODE_TOML
#include <pthread.h>

#include <csignal>
#include <cstdio>
#include <ordermoe/node.hpp>
#include <stop_token>
#include <thread>

namespace api = ordermoe::api;

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: member NODE_TOML\n"), 2;
  // Signals come to one thread of ours alone: OrderMoE handles none.
  sigset_t asked;
  sigemptyset(&asked);
  sigaddset(&asked, SIGINT);
  sigaddset(&asked, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &asked, nullptr);
  std::stop_source end;
  std::thread signals([&] {
    int which = 0;
    sigwait(&asked, &which);
    end.request_stop();
  });

  api::member_options options{.config = argv[1]};
  options.log = [](const api::log_record& told) {
    std::fprintf(stderr, "%s\n", told.line.c_str());
  };
  // It may have to wait for a plan: until it has one, or until a signal comes.
  options.give_up = end.get_token();
  auto node = api::node::start(options);
  if (!node) {
    std::fprintf(stderr, "member: %s\n", node.problem().message.c_str());
    const bool is_asked_to_end = end.stop_requested();
    // Whoever waits for a signal is not left behind.
    if (!is_asked_to_end) pthread_kill(signals.native_handle(), SIGTERM);
    signals.join();
    return is_asked_to_end ? 0 : 1;
  }
  for (const auto& place : node->listens_at()) std::printf("serves at %s\n", place.c_str());
  std::fflush(stdout);
  signals.join();
  const auto stopped = node->stop();
  return stopped ? 0 : 1;
}
