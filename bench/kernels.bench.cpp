// How fast an expert runs against what memory can deliver and against LibTorch.
//
// bench_kernels [--rounds N] [--quick] [--rows N,N,...] [--own-time] [--json]: experts of Mixtral's
// and Qwen1.5-MoE's widths at 1 to 128 rows, with two cores at one row, or at the given numbers of
// rows with one core and with two; in every precision, in bf16 by rows as they are and by rounded
// ones. Every round measures a plain read, each precision and LibTorch one after the other, so that
// ratios compare neighbours in time; medians and quartiles over the rounds are printed. Weights
// rotate over at least four times the last-level cache. With two cores each has experts of its own.
// LibTorch runs one thread, in bf16 weights and rows, over the same memory.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "bandwidth.hpp"
#include "model/kernels/kernels.hpp"

namespace {

using namespace ordermoe::bench;
using namespace ordermoe::model;

struct shape {
  const char* name;
  std::size_t width, inner;
};

/// How weights are kept, and what rows are before those in bf16.
struct form {
  const char* name;
  weight_storage storage;
  row_precision rows = row_precision::fp32;
};

packed_expert expert_at(const shape& s, const form& kept, const std::byte* first) {
  packed_expert e;
  e.gate = {{s.inner, s.width}, kept.storage, first, kept.rows};
  const std::size_t wide = e.gate.layout.bytes(kept.storage);
  e.up = {{s.inner, s.width}, kept.storage, first + wide, kept.rows};
  e.down = {{s.width, s.inner}, kept.storage, first + 2 * wide, kept.rows};
  return e;
}

std::size_t bytes_of(const packed_expert& e) {
  return e.gate.layout.bytes(e.gate.storage) + e.up.layout.bytes(e.up.storage) +
         e.down.layout.bytes(e.down.storage);
}

/// One thread's experts, rows and scratch memory.
class worker {
 public:
  worker(const shape& s, const pool& memory, std::size_t first, std::size_t bytes,
         std::size_t most_rows)
      : shape_(s),
        memory_(memory),
        first_(first),
        bytes_(bytes),
        rows_(most_rows * s.width),
        output_(most_rows * s.width) {
    for (std::size_t i = 0; i < rows_.size(); ++i)
      rows_[i] = static_cast<float>(i * 7919 % 1000) / 500 - 1;
  }

  /// `times` experts of this form, each on another place of the memory.
  void run(const form& kept, std::size_t n_rows, std::size_t times) {
    const std::size_t size = bytes_of(expert_at(shape_, kept, nullptr));
    const std::size_t n = bytes_ / size;
    for (std::size_t i = 0; i < times; ++i) {
      const auto e = expert_at(shape_, kept, memory_.at(first_ + next_++ % n * size));
      const std::size_t room = expert_scratch(e, n_rows);
      if (scratch_.size() < room + 64) scratch_.resize(room + 64);
      void* place = scratch_.data();
      std::size_t left = scratch_.size();
      kernels().expert(e, rows_.data(), output_.data(), n_rows, std::align(64, room, place, left));
    }
  }

  void run_libtorch(std::size_t n_rows, std::size_t times) {
    const auto n = static_cast<std::int64_t>(n_rows);
    const auto width = static_cast<std::int64_t>(shape_.width);
    const auto inner = static_cast<std::int64_t>(shape_.inner);
    const std::size_t one = shape_.width * shape_.inner * 2;
    const at::Tensor rows = at::from_blob(rows_.data(), {n, width}, at::kFloat).to(at::kBFloat16);
    const auto matrix = [&](std::size_t index, std::size_t place, std::int64_t n_out,
                            std::int64_t n_in) {
      return at::from_blob(memory_.at(first_ + (3 * index + place) * one), {n_out, n_in},
                           at::kBFloat16);
    };
    for (std::size_t i = 0; i < times; ++i) {
      const std::size_t index = next_++ % (bytes_ / (3 * one));
      const auto gate = at::linear(rows, matrix(index, 0, inner, width));
      const auto up = at::linear(rows, matrix(index, 1, inner, width));
      const auto output = at::linear(at::silu(gate) * up, matrix(index, 2, width, inner));
      sink += static_cast<std::uint64_t>(output.numel());
    }
  }

  void read(const reading& how) {
    sink += read_all(memory_.at(first_), bytes_, how.streams, how.ahead);
  }

 private:
  shape shape_;
  const pool& memory_;
  std::size_t first_, bytes_;
  std::size_t next_ = 0;
  std::vector<float> rows_, output_;
  std::vector<std::byte> scratch_;
};

/// Seconds of `body` on n workers at once, begun together: of the slowest one.
template <class Body>
double together(std::vector<std::unique_ptr<worker>>& workers, std::size_t n, Body body) {
  if (n == 1) {
    const double start = now_s();
    body(*workers[0]);
    return now_s() - start;
  }
  std::atomic<std::size_t> ready{0};
  std::vector<double> taken(n);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < n; ++i)
    threads.emplace_back([&, i] {
      ++ready;
      while (ready < n) std::this_thread::yield();
      const double start = now_s();
      body(*workers[i]);
      taken[i] = now_s() - start;
    });
  for (auto& thread : threads) thread.join();
  return *std::max_element(taken.begin(), taken.end());
}

struct line {
  std::string shape, what;
  std::size_t cores = 1, rows = 1;
  spread ms, gb_per_s, percent, against_libtorch;
};

constexpr form forms[] = {{"bf16", weight_storage::bf16},
                          {"bf16-rows", weight_storage::bf16, row_precision::bf16},
                          {"int8", weight_storage::int8},
                          {"int4", weight_storage::int4}};
constexpr std::size_t n_forms = std::size(forms);

/// What is asked for.
struct plan {
  std::size_t rounds = 9;
  bool quick = false;
  std::vector<std::size_t> rows;  ///< Empty: the usual ones.

  std::vector<std::size_t> rows_on(std::size_t cores) const {
    if (!rows.empty()) return rows;
    if (cores > 1 || quick) return {1};
    return {1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128};
  }
  std::size_t most_rows() const { return rows.empty() ? 128 : std::ranges::max(rows); }
};

std::vector<line> measure(const shape& s, const plan& asked,
                          std::vector<nlohmann::ordered_json>& bandwidths) {
  const std::size_t bf16_bytes = 6 * s.width * s.inner;
  const std::size_t wanted = std::max(4 * cache_bytes(), bf16_bytes);
  const std::size_t each = (wanted + bf16_bytes - 1) / bf16_bytes * bf16_bytes;
  const std::size_t n_cores = std::min<std::size_t>(2, std::thread::hardware_concurrency());
  const pool memory(n_cores * each);
  std::vector<std::unique_ptr<worker>> workers;
  for (std::size_t i = 0; i < n_cores; ++i)
    workers.push_back(std::make_unique<worker>(s, memory, i * each, each, asked.most_rows()));

  std::vector<line> lines;
  for (std::size_t cores = 1; cores <= n_cores; ++cores) {
    const reading& best = fastest_reading([&](const reading& how) {
      return together(workers, cores, [&](worker& w) { w.read(how); });
    });
    std::vector<double> all_reads;
    for (const std::size_t n_rows : asked.rows_on(cores)) {
      struct series {
        std::vector<double> ms, rate, percent, ratio;
      };
      series found[n_forms], libtorch;
      // About as many bytes for every precision at one row; fewer passes where they are slow.
      const auto times_of = [&](std::size_t bytes) {
        return std::max<std::size_t>(1, n_rows <= 8 ? each / bytes : each / bytes / n_rows);
      };
      const std::size_t n_rounds =
          n_rows <= 8 ? asked.rounds : std::max<std::size_t>(5, asked.rounds / 2);
      for (std::size_t round = 0; round <= n_rounds; ++round) {
        const auto bytes = static_cast<double>(cores * each);
        const double read_s = together(workers, cores, [&](worker& w) { w.read(best); });
        const double bandwidth = bytes / read_s;
        const std::size_t times = times_of(bf16_bytes);
        const double torch_s =
            together(workers, cores, [&](worker& w) { w.run_libtorch(n_rows, times); }) /
            static_cast<double>(times);
        for (std::size_t k = 0; k < n_forms; ++k) {
          const std::size_t size = bytes_of(expert_at(s, forms[k], nullptr));
          const std::size_t n = times_of(size);
          const double own_s =
              together(workers, cores, [&](worker& w) { w.run(forms[k], n_rows, n); }) /
              static_cast<double>(n);
          if (round == 0) continue;  // Warms up.
          const double rate = static_cast<double>(cores * size) / own_s;
          found[k].ms.push_back(own_s * 1e3);
          found[k].rate.push_back(rate * 1e-9);
          found[k].percent.push_back(100 * rate / bandwidth);
          found[k].ratio.push_back(torch_s / own_s);
        }
        if (round == 0) continue;
        all_reads.push_back(bandwidth * 1e-9);
        libtorch.ms.push_back(torch_s * 1e3);
        const double rate = static_cast<double>(cores * bf16_bytes) / torch_s;
        libtorch.rate.push_back(rate * 1e-9);
        libtorch.percent.push_back(100 * rate / bandwidth);
        libtorch.ratio.push_back(1);
      }
      const auto add = [&](const std::string& what, const series& values) {
        lines.push_back({s.name, what, cores, n_rows, spread_of(values.ms), spread_of(values.rate),
                         spread_of(values.percent), spread_of(values.ratio)});
      };
      for (std::size_t k = 0; k < n_forms; ++k) add(forms[k].name, found[k]);
      add("libtorch-bf16", libtorch);
    }
    bandwidths.push_back({{"shape", s.name},
                          {"cores", cores},
                          {"how", best.name},
                          {"gb_per_s", json_of(spread_of(all_reads))}});
  }
  return lines;
}

}  // namespace

int main(int argc, char** argv) {
  plan asked;
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--json") {
      json = true;
    } else if (flag == "--own-time") {
      own_time = true;
    } else if (flag == "--quick") {
      asked.quick = true;
    } else if (flag == "--rounds" && i + 1 < argc) {
      asked.rounds = static_cast<std::size_t>(std::max(3, std::atoi(argv[++i])));
    } else if (flag == "--rows" && i + 1 < argc) {
      std::istringstream numbers(argv[++i]);
      for (std::string each; std::getline(numbers, each, ',');)
        asked.rows.push_back(static_cast<std::size_t>(std::max(1, std::atoi(each.c_str()))));
    } else {
      fmt::print(stderr,
                 "bench_kernels [--rounds N] [--quick] [--rows N,N,...] [--own-time] [--json]; "
                 "found '{}'\n",
                 flag);
      return 2;
    }
  }
  at::set_num_threads(1);
  constexpr shape shapes[] = {{"mixtral 4096x14336", 4096, 14336}, {"qwen 2048x1408", 2048, 1408}};
  nlohmann::ordered_json report{{"kernels", kernels().name},
                                {"last_level_cache_bytes", cache_bytes()},
                                {"rounds", asked.rounds}};
  auto read = nlohmann::ordered_json::array();
  auto results = nlohmann::ordered_json::array();
  auto crossings = nlohmann::ordered_json::array();
  if (!json)
    fmt::print("kernels {}, last-level cache {} MiB; medians of {} rounds, quartiles behind\n",
               kernels().name, cache_bytes() >> 20, asked.rounds);
  for (const auto& s : shapes) {
    std::vector<nlohmann::ordered_json> bandwidths;
    const auto lines = measure(s, asked, bandwidths);
    for (const auto& found : bandwidths) {
      if (!json)
        fmt::print("{}: plain read on {} core(s) {:.1f} GB/s ({:.1f} to {:.1f}), {}\n", s.name,
                   found["cores"].get<int>(), found["gb_per_s"]["median"].get<double>(),
                   found["gb_per_s"]["lower_quartile"].get<double>(),
                   found["gb_per_s"]["upper_quartile"].get<double>(),
                   found["how"].get<std::string>());
      read.push_back(found);
    }
    for (const auto& l : lines) {
      results.push_back({{"shape", l.shape},
                         {"what", l.what},
                         {"cores", l.cores},
                         {"rows", l.rows},
                         {"ms", json_of(l.ms)},
                         {"gb_per_s", json_of(l.gb_per_s)},
                         {"percent_of_read", json_of(l.percent)},
                         {"times_libtorch", json_of(l.against_libtorch)}});
      if (!json)
        fmt::print(
            "  {:<14} {} core(s) {:>3} rows {:>9.3f} ms ({:.3f} to {:.3f}) {:>6.1f} GB/s "
            "{:>5.1f} % of read ({:.1f} to {:.1f}) {:>6.2f} x LibTorch ({:.2f} to {:.2f})\n",
            l.what, l.cores, l.rows, l.ms.middle, l.ms.low, l.ms.high, l.gb_per_s.middle,
            l.percent.middle, l.percent.low, l.percent.high, l.against_libtorch.middle,
            l.against_libtorch.low, l.against_libtorch.high);
    }
    for (const form& kept : forms) {
      std::size_t from = 0;
      for (const auto& l : lines)
        if (l.what == kept.name && l.cores == 1) {
          if (l.against_libtorch.middle >= 1)
            from = 0;
          else if (from == 0)
            from = l.rows;
        }
      crossings.push_back({{"shape", s.name}, {"what", kept.name}, {"rows", from}});
      if (!json)
        fmt::print("  {}: {}\n", kept.name,
                   from == 0 ? std::string("LibTorch is not faster at any of these rows")
                             : fmt::format("LibTorch is faster from {} rows on", from));
    }
  }
  report["read_bandwidth"] = read;
  report["experts"] = results;
  report["libtorch_faster_from_rows"] = crossings;
  if (json) fmt::print("{}\n", report.dump(2));
}
