#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "actors/admin/overview.hpp"

/// What several nodes are asked at once: each question ends when all have answered, those that are left were lost, or its
/// time is over. One thread at a time.
namespace ordermoe::actors {

class gathering_book {
 public:
  static constexpr std::size_t most = 64;  ///< Questions at a time.
  /// When each report was there, by the clock of whoever asked.
  using told_times = std::map<std::uint32_t, std::int64_t>;
  using finish = std::function<void(const told_reports&, const told_times&)>;
  struct span_of_time {
    std::int64_t now_ns = 0, until_ns = 0;
  };

  /// The number of the question, from 1; 0 where nobody is waited for, and it has ended. `own`: what is known already.
  std::uint64_t begin(std::set<std::uint32_t> waits, told_reports own, const span_of_time& when,
                      finish done);
  void take(std::uint64_t question, std::uint32_t server, nlohmann::ordered_json report,
            std::int64_t now_ns);
  void lose(std::uint32_t server);
  void expire(std::int64_t now_ns);
  bool full() const { return open_.size() >= most; }
  bool empty() const { return open_.empty(); }

 private:
  struct one {
    std::set<std::uint32_t> waits;
    told_reports told;
    told_times told_at;
    std::int64_t until_ns = 0;
    finish done;
  };
  void end(std::map<std::uint64_t, one>::iterator which);

  std::map<std::uint64_t, one> open_;
  std::uint64_t next_ = 1;
};

}  // namespace ordermoe::actors
