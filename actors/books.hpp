#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/books_types.hpp"
#include "config/error.hpp"

/// What a run writes down: the outcome of each request, the ledgers of servers and links, and the
/// trace.
namespace ordermoe::actors {

/// One line per event, in the order in which they happened. Writes to a file beside its final name
/// and renames it at the end, so that no half-written trace is left under the name asked for.
/// Thread-safe.
class trace_recorder {
 public:
  static result<std::unique_ptr<trace_recorder>> open(const std::filesystem::path& path);
  ~trace_recorder();
  void line(std::string text);
  /// Writes the closing line and moves the file into place.
  result<void> close();

 private:
  trace_recorder() = default;
  std::mutex mutex_;
  std::filesystem::path path_, partial_;
  std::FILE* file_ = nullptr;
  std::string buffer_;
  struct hash_state;
  std::unique_ptr<hash_state> hash_;
  std::uint64_t lines_ = 0;
  bool failed_ = false;
  void flush();
};

/// Shared by all actors of a run; every member function may be called from any thread.
class run_books {
 public:
  explicit run_books(trace_recorder* trace) : trace_(trace) {}

  bool tracing() const { return trace_ != nullptr; }
  void trace(std::string line) { trace_->line(std::move(line)); }

  void expect_requests(std::size_t n);
  void finish(request_outcome outcome);
  void keep_final_hidden(std::uint64_t request, std::vector<float> hidden);
  void count(const std::array<std::int64_t, 4>& by_kind);
  void add(const link_ledger& ledger);
  void add(const server_ledger& ledger);
  void add(plan_change change);
  void add(weight_change change);
  void keep(observations seen);
  void keep_kv_peak(std::uint32_t server, std::int64_t reserved_bytes);
  std::int64_t kv_peak(std::uint32_t server) const;
  /// A broken invariant inside an actor: remembered, and the run ends with it.
  void fail(error problem);

  std::size_t outstanding() const;
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// Waits until no request is outstanding, the run failed, or the limit passed; true where it is
  /// done or failed.
  bool wait(std::chrono::nanoseconds limit);
  /// From the planner: it changes nothing any more.
  void close_planner();
  /// Waits for what the monitor keeps; for the planner to be closed.
  void wait_for_observations(std::chrono::nanoseconds limit);
  void wait_for_planner(std::chrono::nanoseconds limit);
  void wait_for_ledgers(std::size_t n_servers, std::size_t n_links, std::chrono::nanoseconds limit);

  std::vector<request_outcome> outcomes;     ///< By request number, after the run.
  std::array<std::int64_t, 4> executions{};  ///< By execution_kind.
  std::vector<link_ledger> links;
  std::vector<server_ledger> servers;
  std::vector<plan_change> plan_changes;
  std::vector<weight_change> weight_changes;
  std::optional<observations> observed;
  std::optional<error> problem;

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> failed_ = false;  ///< Whether there is a problem; asked before every job.
  std::condition_variable changed_;
  std::size_t outstanding_ = 0;
  std::map<std::uint64_t, std::vector<float>> final_hidden_;
  std::map<std::uint32_t, std::int64_t> kv_peak_;
  bool planner_closed_ = false;
  trace_recorder* trace_;
};

}  // namespace ordermoe::actors
