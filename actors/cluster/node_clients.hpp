#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/cluster/control.hpp"
#include "actors/service/service.hpp"
#include "config/error.hpp"
#include "config/log.hpp"
#include "net/channel/transport.hpp"
#include "net/identity/certificates.hpp"

/// Who came to a node from another process, and what each has asked for.
///
///   (nobody) --came()--> here --submit()--> here, with a request --its end, or cancel()--> here
///                         |--gone(): its requests are cancelled--> (nobody)
namespace ordermoe::actors {

class node_clients {
 public:
  /// Of one client, that are not answered yet; further ones are refused.
  static constexpr std::size_t most_requests = 16'384;

  using speak = std::function<void(net::peer_id to, control_kind kind,
                                   std::string text)>;  ///< From any thread.
  /// `tokens` may be null: then texts are refused, and ids are taken. `context`: positions of the model.
  node_clients(std::uint32_t server, std::shared_ptr<const model::tokenizer> tokens,
               std::size_t context, log_outlet log, speak say);
  /// Before anybody comes; it outlives all who do.
  void use(service& answering) { service_ = &answering; }

  // Of the transport's thread.
  void came(net::peer_id id, const net::certificate_name& who);
  /// A request; one that is refused ends with an error at once.
  void submit(net::peer_id from, remote_request wanted);
  void cancel(net::peer_id from, std::uint64_t ref);
  /// Of an operator, to the admin; the reply is said when it comes.
  void order(net::peer_id from, std::string text);
  /// Nobody waits for its answers any more.
  void gone(net::peer_id from);
  void log_refusal(net::peer_id from, const std::string& why);
  /// The node ends: what becomes of answers as its sessions end, one after the other, is told to nobody. Clients hear that the
  /// node went away. From any thread.
  void hush() { is_hushed_ = true; }
  /// Whether its certificate lets it have anything computed.
  bool may_ask(net::peer_id from);

 private:
  struct client {
    net::certificate_name who;
    std::map<std::uint64_t, std::uint64_t> requests;  ///< By the client's ref.
  };
  /// Without the mutex: encoding takes a while. Errors: unsupported; out_of_range, where it is too long to look at.
  result<std::vector<std::int32_t>> encoded(const std::string& text) const;
  answer_sink sink_of(net::peer_id from, std::uint64_t ref, bool tells_tokens);
  void refuse(net::peer_id from, std::uint64_t ref, error why);
  void forget(net::peer_id from, std::uint64_t ref);

  std::uint32_t server_;
  std::shared_ptr<const model::tokenizer> tokens_;
  std::size_t context_;
  log_outlet log_;
  speak say_;
  service* service_ = nullptr;
  std::atomic<bool> is_hushed_ = false;
  std::mutex mutex_;  ///< Of what follows: answers end on the service's threads.
  std::map<net::peer_id, client> clients_;
};

}  // namespace ordermoe::actors
