#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "net/channel/address.hpp"

/// A way between two ends that a test may cut, or through which nothing comes any more.
namespace ordermoe::test {

class forwarder {
  using tcp = boost::asio::ip::tcp;
  using error_code = boost::system::error_code;

 public:
  /// `life`: how many bytes of both directions the next connection lives for, asked on the forwarder's thread.
  explicit forwarder(std::function<std::uint64_t()> life = [] { return ~std::uint64_t{0}; })
      : life_(std::move(life)), acceptor_(io_) {
    acceptor_.open(tcp::v4());
    // Little is on its way when nothing is read.
    acceptor_.set_option(boost::asio::socket_base::receive_buffer_size(32 * 1024));
    acceptor_.bind({boost::asio::ip::address_v4::loopback(), 0});
    acceptor_.listen();
    accept();
    thread_ = std::thread([this] { io_.run(); });
  }
  ~forwarder() {
    io_.stop();
    thread_.join();
  }
  forwarder(const forwarder&) = delete;
  forwarder& operator=(const forwarder&) = delete;

  net::address at() const { return {"127.0.0.1", acceptor_.local_endpoint().port()}; }
  /// Where to, from now on; nowhere: whoever comes is sent away.
  void lead_to(const net::address& where) { port_ = where.port; }
  void lead_nowhere() { port_ = 0; }
  /// Cuts all that there are.
  void cut() {
    boost::asio::post(io_, [this] {
      for (const auto& each : ways_) close(*each);
      ways_.clear();
    });
  }
  /// Nothing comes any more through those that there are, but for the oldest so many, and nobody is told.
  void stall(std::size_t but_for = 0) {
    boost::asio::post(io_, [this, but_for] {
      for (std::size_t i = but_for; i < ways_.size(); ++i) ways_[i]->stalled = true;
    });
  }
  /// From now on those that come are accepted and hear nothing.
  void swallow(bool whether) { swallows_ = whether; }

  int n_cut() const { return n_cut_; }  ///< That lived as long as `life` said.
  int n_come() const { return n_come_; }

 private:
  struct way {
    std::array<tcp::socket, 2> ends;
    std::array<std::array<char, 16 * 1024>, 2> bytes;
    std::uint64_t left = 0;
    bool stalled = false, half_ended = false;
    explicit way(tcp::socket from, tcp::socket to) : ends{std::move(from), std::move(to)} {}
  };
  using way_ptr = std::shared_ptr<way>;

  static void close(way& which) {
    error_code ignored;
    for (auto& each : which.ends) each.close(ignored);
  }
  void accept() {
    acceptor_.async_accept([this](error_code failed, tcp::socket from) {
      if (failed) return;
      ++n_come_;
      lead(std::move(from));
      accept();
    });
  }
  void lead(tcp::socket from) {
    error_code failed;
    tcp::socket to(io_);
    if (swallows_) {
      ways_.push_back(std::make_shared<way>(std::move(from), std::move(to)));
      return;
    }
    if (port_ == 0) return;
    to.connect({boost::asio::ip::address_v4::loopback(), port_}, failed);
    if (failed) return;
    const auto made = std::make_shared<way>(std::move(from), std::move(to));
    made->left = life_();
    ways_.push_back(made);
    carry(made, 0);
    carry(made, 1);
  }
  void carry(const way_ptr& along, std::size_t from) {
    auto& bytes = along->bytes[from];
    along->ends[from].async_read_some(
        boost::asio::buffer(bytes), [this, along, from](error_code failed, std::size_t n) {
          if (along->stalled) return;
          if (failed) return half_end(along, from);
          const auto whole = std::min<std::uint64_t>(n, along->left);
          along->left -= whole;
          boost::asio::async_write(along->ends[1 - from],
                                   boost::asio::buffer(along->bytes[from], whole),
                                   [this, along, from](error_code problem, std::size_t) {
                                     if (along->stalled) return;
                                     if (along->left == 0 && along->ends[0].is_open()) ++n_cut_;
                                     if (problem || along->left == 0) return end(along);
                                     carry(along, from);
                                   });
        });
  }
  /// One end says no more: the other hears so behind what it said, and may go on itself.
  void half_end(const way_ptr& which, std::size_t from) {
    error_code ignored;
    which->ends[1 - from].shutdown(tcp::socket::shutdown_send, ignored);
    if (std::exchange(which->half_ended, true)) end(which);
  }
  void end(const way_ptr& which) {
    close(*which);
    std::erase(ways_, which);
  }

  std::function<std::uint64_t()> life_;
  boost::asio::io_context io_;
  tcp::acceptor acceptor_;
  std::vector<way_ptr> ways_;
  std::atomic<std::uint16_t> port_{0};
  std::atomic<bool> swallows_{false};
  std::atomic<int> n_cut_{0}, n_come_{0};
  std::thread thread_;
};

}  // namespace ordermoe::test
