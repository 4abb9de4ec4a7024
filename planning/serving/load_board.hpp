#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "net/wire/messages.hpp"

/// What one server knows of the waits at all servers and links: what each of them said last. Reports may
/// come late, twice and in any order.
namespace ordermoe::serving {

/// Takes a present wait over into what others were told of it, where they would decide otherwise if they
/// knew: it differs by the tolerance and by a quarter of what they believe. Waits below the tolerance are told
/// as none. True where it was taken over.
inline bool tell_wait(std::int64_t& told_ns, std::int64_t wait_ns, std::int64_t tolerance_ns) {
  const auto wait = wait_ns < tolerance_ns ? 0 : wait_ns;
  const auto change = wait > told_ns ? wait - told_ns : told_ns - wait;
  if (change == 0 || change < std::max(tolerance_ns, told_ns / 4)) return false;
  told_ns = wait;
  return true;
}

class load_board {
 public:
  load_board() = default;
  explicit load_board(std::size_t n_servers)
      : n_servers_(n_servers),
        numbers_(n_servers, 0),
        wait_ns_(n_servers, 0),
        link_wait_ns_(n_servers * n_servers, 0),
        free_ns_(n_servers * n_servers, 0),
        link_ns_(n_servers * n_servers, 0) {}

  /// free_ns [to, from]: a hidden state over each link where no frame waits, as the tables in force
  /// have it (selection_tables::link_ns). To be told whenever they change.
  void price_by(std::span<const double> free_ns) {
    free_ns_.assign(free_ns.begin(), free_ns.end());
    link_ns_.assign(free_ns.begin(), free_ns.end());
    for (std::size_t from = 0; from < n_servers_; ++from) price_links_of(from);
  }

  /// False where it says nothing new: its server has told a later one.
  bool take(const wire::load_report& report) {
    if (report.number <= numbers_[report.server]) return false;
    numbers_[report.server] = report.number;
    wait_ns_[report.server] = report.wait_ns;
    for (std::size_t to = 0; to < n_servers_; ++to)
      link_wait_ns_[report.server * n_servers_ + to] = report.link_wait_ns[to];
    price_links_of(report.server);
    return true;
  }

  /// [n_servers] of work for a server's device.
  std::span<const std::int64_t> wait_ns() const { return wait_ns_; }
  /// [from, to] of frames.
  std::span<const std::int64_t> link_wait_ns() const { return link_wait_ns_; }
  /// [to, from] a hidden state over each link behind the frames that wait there.
  std::span<const double> link_ns() const { return link_ns_; }

 private:
  void price_links_of(std::size_t from) {
    for (std::size_t to = 0; to < n_servers_; ++to)
      link_ns_[to * n_servers_ + from] = free_ns_[to * n_servers_ + from] +
                                         static_cast<double>(link_wait_ns_[from * n_servers_ + to]);
  }

  std::size_t n_servers_ = 0;
  std::vector<std::uint64_t> numbers_;  ///< [n_servers] of the latest report; 0: none.
  std::vector<std::int64_t> wait_ns_;
  std::vector<std::int64_t> link_wait_ns_;
  std::vector<double> free_ns_;
  std::vector<double> link_ns_;
};

}  // namespace ordermoe::serving
