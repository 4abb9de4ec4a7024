#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "bench/spread.hpp"

/// What an answer cost, in counts that a busy machine changes less than it changes time.
namespace ordermoe::bench {

/// Of the threads that a process has, so far.
struct thread_counts {
  double processor_us = 0;
  double waits = 0,
         preemptions = 0;  ///< Times that a thread gave the processor up, and that it was taken.

  thread_counts& operator+=(const thread_counts& more) {
    processor_us += more.processor_us;
    waits += more.waits;
    preemptions += more.preemptions;
    return *this;
  }
  friend thread_counts operator-(thread_counts a, const thread_counts& b) {
    return {a.processor_us - b.processor_us, a.waits - b.waits, a.preemptions - b.preemptions};
  }
};

/// proc(5): the first number of `schedstat` are nanoseconds on a processor.
inline thread_counts threads_of(int pid) {
  thread_counts all;
  for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid))) {
    thread_counts one;
    std::ifstream(task.path() / "schedstat") >> one.processor_us;
    one.processor_us *= 1e-3;
    std::ifstream status(task.path() / "status");
    for (std::string word; status >> word;) {
      if (word == "voluntary_ctxt_switches:") status >> one.waits;
      if (word == "nonvoluntary_ctxt_switches:") status >> one.preemptions;
    }
    all += one;
  }
  return all;
}

/// What devices computed and what crossed between nodes, so far. Without nodes nothing crosses.
struct work_counts {
  double batches = 0, rows = 0;
  double busy_us = 0;  ///< Time in batches, of all devices.
  double frames = 0, writes = 0, reads = 0;

  friend work_counts operator-(work_counts a, const work_counts& b) {
    return {a.batches - b.batches, a.rows - b.rows,     a.busy_us - b.busy_us,
            a.frames - b.frames,   a.writes - b.writes, a.reads - b.reads};
  }
};

/// Of one round after the other, by token.
struct costs_of_tokens {
  std::vector<double> processor_us, waits, preemptions, rows_of_batch, batches, writes, reads,
      frames_of_write;

  void add(const thread_counts& threads, const work_counts& work, double tokens) {
    processor_us.push_back(threads.processor_us / tokens);
    waits.push_back(threads.waits / tokens);
    preemptions.push_back(threads.preemptions / tokens);
    batches.push_back(work.batches / tokens);
    rows_of_batch.push_back(work.batches > 0 ? work.rows / work.batches : 0);
    writes.push_back(work.writes / tokens);
    reads.push_back(work.reads / tokens);
    frames_of_write.push_back(work.writes > 0 ? work.frames / work.writes : 0);
  }

  void print(const std::string& who) const {
    const auto line = [&](const char* what, const std::vector<double>& values, const char* unit) {
      const auto s = spread_of(values);
      fmt::print("{:<44}{:>10.2f} ({:.2f} to {:.2f}) {}\n", who + what, s.middle, s.low, s.high,
                 unit);
    };
    line(", processor time", processor_us, "us a token");
    line(", waits of threads", waits, "a token");
    line(", threads that were preempted", preemptions, "a token");
    if (spread_of(batches).high > 0) line(", batches", batches, "a token");
    if (spread_of(batches).high > 0) line(", rows of a batch", rows_of_batch, "");
    if (spread_of(writes).high > 0) line(", writes to other nodes", writes, "a token");
    if (spread_of(reads).high > 0) line(", reads from them", reads, "a token");
    if (spread_of(writes).high > 0) line(", frames of a write", frames_of_write, "");
  }
};

}  // namespace ordermoe::bench
