#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "config/log.hpp"
#include "model/checkpoint/expert_shelf.hpp"
#include "net/bulk/transfer.hpp"
#include "net/channel/transport.hpp"

/// Experts that a node's disk lacks come from other nodes, over lane bulk (net/bulk), to its disk (model/checkpoint/
/// expert_shelf.hpp): when a change of plan places them here and its model's folder is a part of the model. On a thread of its
/// own, which reads and writes the disk for both directions, beside what is served.
///
///   idle     --fetch()--> choosing
///   choosing --an expert that is not here, and a peer that was not asked for it yet--> asked
///            --all are here--> idle: fetch() returns
///            --every peer was asked for it in vain--> idle: fetch() names the expert, and of each peer why not
///   asked    --its last part, and it is what the part of the model says--> choosing, the next
///            --a refusal, a part that makes no sense, another digest, nothing for silent_for, the session is over-->
///                choosing, the same of another peer
///            --the disk fails, stop_fetching(), stop()--> idle: fetch() says so
///
/// What came stays where the next fetch(), of this process or a later one, goes on from, but for what had another digest.
/// A peer is believed in nothing: the size and digest are those of the part that the operator wrote.
///
/// Whatever other nodes ask for of what is on this disk goes out in turn, a frame for each of them, no faster than its
/// session takes it.
namespace ordermoe::actors {

struct wanted_expert {
  layer_id layer{0};
  expert_id expert{0};
  std::vector<net::peer_id> hosts;  ///< Who should have it, and is asked first.
};

class expert_exchange {
 public:
  /// To other nodes; called on the exchange's thread.
  struct ways {
    std::vector<std::string> names;  ///< [n_peers]
    /// False where it is not connected.
    std::function<bool(net::peer_id to, net::bulk_frame content)> send;
    /// What came of it was taken in.
    std::function<void(net::peer_id from, std::uint64_t bytes)> used;
    /// Of lane bulk, sent and not written yet.
    std::function<std::uint64_t(net::peer_id to)> waiting_bytes;
  };
  static constexpr std::chrono::seconds default_silence{20};

  expert_exchange(std::shared_ptr<model::expert_shelf> shelf, ways to, log_outlet log,
                  std::chrono::milliseconds silent_for = default_silence);
  ~expert_exchange();

  /// A frame of lane bulk. From any thread, as the next two.
  void take(net::peer_id from, net::frame_header header, std::string payload);
  /// Its session is over.
  void lose(net::peer_id peer);
  void stop();

  /// Until all are on the shelf. One call at a time. `change`: by which stop_fetching() knows it. Errors: failed, naming the
  /// first expert that could not be had and of each peer why not; interrupted; io, of this disk; those of expert_shelf::facts.
  result<void> fetch(std::uint64_t change, std::vector<wanted_expert> wanted);
  /// The call for this change ends, and one that comes later does at once.
  void stop_fetching(std::uint64_t change);

 private:
  using clock = std::chrono::steady_clock;
  /// What others ask for, as net/bulk reads it.
  class offered;
  struct arrival {
    enum class what : std::uint8_t { frame, lost, begin } kind = what::frame;
    net::peer_id peer = 0;
    net::frame_header header;
    std::string payload;
  };
  /// A call of fetch().
  struct task {
    std::uint64_t change = 0;
    std::vector<wanted_expert> wanted;
    std::size_t next = 0;
    std::vector<net::peer_id> to_ask;  ///< Of the expert that is next, the last one first.
    std::string in_vain;               ///< Who was asked for it, and why not.
    std::unique_ptr<model::coming_expert> come;
    std::optional<net::bulk_receiver> receiver;
    std::optional<error> disk;  ///< That failed.
    net::peer_id asked = 0;
    clock::time_point heard;
    std::uint64_t bytes = 0;
  };

  void work();
  bool should_stop(std::uint64_t change) const { return stopped_change_ == change; }
  void handle(arrival& each);
  void take_frame(arrival& each);
  /// Sends what there is room for; whether something is left.
  bool send_some();
  void choose();
  void begin_expert();
  void ask_next();
  result<void> open_receiver();
  void take_part(net::peer_id from, const net::frame_header& header, std::string_view payload);
  void keep_expert();
  /// Another peer is asked.
  void give_up_peer(const std::string& why);
  void look_at_time();
  void end(std::optional<error> why);

  std::shared_ptr<model::expert_shelf> shelf_;
  ways to_;
  log_outlet log_;
  std::chrono::milliseconds silent_for_;
  // Of the thread.
  std::unique_ptr<offered> offered_;
  std::vector<net::bulk_sender> senders_;  ///< [n_peers]
  std::optional<task> task_;
  std::uint64_t next_request_ = 0;

  std::mutex mutex_;  ///< Of what follows.
  std::condition_variable wake_, ended_;
  std::deque<arrival> arrived_;
  std::optional<task> begins_;
  std::optional<std::optional<error>> outcome_;  ///< Of the call that is waiting.
  std::uint64_t stopped_change_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace ordermoe::actors
