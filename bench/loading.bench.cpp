// How fast weights are loaded, against plain reads of the same files, and how much memory it takes.
//
// bench_loading [layers [runs [folder [packed folder]]]]: writes a Mixtral of that many layers at
// full width (1 by default, 3.3 GB in bf16; every further one takes 2.8 GB more of disk and of
// memory) to a temporary folder, or takes a folder that is there; packs it (model/checkpoint/convert.hpp), or
// takes what was packed before. Rounds go over both folders. Each measurement is a process of its
// own.
// "cold": the system was told to forget the files, and the share it still holds is shown; "warm":
// they were read before. "memory at hand": right before each measurement another process wrote to
// as much memory as the measured one takes, the system's copy of cold files included, and ended, so
// that it pays for clearing memory and not for the host of a virtual machine finding it. A host
// that takes idle memory back within seconds does so during a longer measurement: see the processor
// time.
//
// Two plain reads, both with read() on one thread: "plain read" into one buffer of 1 MiB, again and
// again, which takes no new memory; "kept read" into memory as large as the files, as weights have
// it, which is new to the process and has to be supplied and cleared. A load has to do the latter.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/spread.hpp"
#include "config/files.hpp"
#include "model/checkpoint/convert.hpp"
#include "model/checkpoint/matrix_source.hpp"
#include "model/checkpoint/random_model.hpp"
#include "model/transformer.hpp"

namespace {

using namespace ordermoe;
namespace fs = std::filesystem;

[[noreturn]] void give_up(const std::string& why) {
  fmt::print(stderr, "bench_loading: {}\n", why);
  std::exit(1);
}

template <class T>
T take(result<T> value) {
  if (value) return std::move(*value);
  give_up(value.error().message);
}

std::vector<fs::path> weight_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

struct open_file {
  int number;
  explicit open_file(const fs::path& path) : number(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (number < 0) give_up(path.string() + " cannot be opened");
  }
  ~open_file() { ::close(number); }
  open_file(const open_file&) = delete;
  open_file& operator=(const open_file&) = delete;
};

/// Share of the files' pages that the system holds, after it was told to forget them.
double forget(const fs::path& folder) {
  double held = 0, all = 0;
  for (const auto& path : weight_files(folder)) {
    const open_file file(path);
    ::fsync(file.number);
    ::posix_fadvise(file.number, 0, 0, POSIX_FADV_DONTNEED);
    const auto size = static_cast<std::size_t>(fs::file_size(path));
    void* start = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.number, 0);
    if (start == MAP_FAILED) give_up(path.string() + " cannot be mapped");
    std::vector<unsigned char> pages((size + 4095) / 4096);
    ::mincore(start, size, pages.data());
    for (const unsigned char page : pages) held += page & 1;
    all += static_cast<double>(pages.size());
    ::munmap(start, size);
  }
  return held / all;
}

/// Bytes of a line of /proc/self/status, as VmRSS or VmHWM.
double status_bytes(const std::string& name) {
  std::ifstream lines("/proc/self/status");
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name + ":")) return 1024 * std::atof(line.c_str() + name.size() + 1);
  return 0;
}

/// Processor seconds of this process, in the program and in the system.
double processor_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

struct measurement {
  double seconds = 0;
  double processor = 0;  ///< Seconds of all threads.
  double resident = 0;   ///< transformer::resident_bytes().
  double peak = 0;       ///< Most memory of the process while it loaded, less what it had before.
};

measurement plain_read(const fs::path& folder) {
  std::vector<char> buffer(std::size_t{1} << 20);
  const double used = processor_seconds();
  const auto start = std::chrono::steady_clock::now();
  for (const auto& path : weight_files(folder)) {
    const open_file file(path);
    while (::read(file.number, buffer.data(), buffer.size()) > 0) {
    }
  }
  measurement found;
  found.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  found.processor = processor_seconds() - used;
  return found;
}

measurement kept_read(const fs::path& folder) {
  constexpr std::size_t piece = std::size_t{1} << 20;
  std::vector<std::shared_ptr<std::byte>> kept;
  const double used = processor_seconds();
  const auto start = std::chrono::steady_clock::now();
  for (const auto& path : weight_files(folder)) {
    const open_file file(path);
    const auto size = static_cast<std::size_t>(fs::file_size(path));
    kept.push_back(model::weight_memory(size));
    for (std::size_t done = 0; done < size;) {
      const auto n = ::read(file.number, kept.back().get() + done, std::min(piece, size - done));
      if (n <= 0) give_up(path.string() + " cannot be read");
      done += static_cast<std::size_t>(n);
    }
  }
  measurement found;
  found.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  found.processor = processor_seconds() - used;
  return found;
}

/// Writes to so much memory and gives it back.
measurement touch(double bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  const auto memory = model::weight_memory(size);
  for (std::size_t at = 0; at < size; at += 4096) memory.get()[at] = std::byte{1};
  return {};
}

measurement load(const fs::path& folder) {
  std::ofstream("/proc/self/clear_refs") << "5";
  const double before = status_bytes("VmRSS");
  const double used = processor_seconds();
  const auto start = std::chrono::steady_clock::now();
  const auto model = take(model::transformer::load(folder));
  measurement found;
  found.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  found.processor = processor_seconds() - used;
  found.resident = static_cast<double>(model->resident_bytes());
  found.peak = status_bytes("VmHWM") - before;
  return found;
}

/// Measures in a child process.
measurement apart(const std::function<measurement()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) give_up("no pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    const measurement found = body();
    const bool told = ::write(ends[1], &found, sizeof found) == sizeof found;
    std::_Exit(told ? 0 : 1);
  }
  ::close(ends[1]);
  measurement found;
  const bool heard = ::read(ends[0], &found, sizeof found) == sizeof found;
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!heard || status != 0) give_up("a measurement failed");
  return found;
}

double bytes_of(const fs::path& folder) {
  double bytes = 0;
  for (const auto& path : weight_files(folder)) bytes += static_cast<double>(fs::file_size(path));
  return bytes;
}

/// What was measured of one folder.
struct series {
  const char* name;
  fs::path folder;
  std::vector<measurement> reads, kept, loads;
};

template <class Value>
bench::spread spread_over(const std::vector<measurement>& found, Value value) {
  std::vector<double> values;
  for (const auto& each : found) values.push_back(value(each));
  return bench::range_of(std::move(values));
}

void print(const series& found) {
  const double bytes = bytes_of(found.folder);
  const auto speed = [&](const measurement& each) { return bytes * 1e-9 / each.seconds; };
  const auto work = [](const measurement& each) { return each.processor; };
  const auto r = spread_over(found.reads, speed), k = spread_over(found.kept, speed),
             l = spread_over(found.loads, speed);
  const auto p =
      spread_over(found.loads, [](const measurement& each) { return each.peak / each.resident; });
  fmt::print("  {}\n", found.name);
  fmt::print("    plain read  {:6.2f} {:6.2f} {:6.2f} GB/s\n", r.low, r.middle, r.high);
  fmt::print("    kept read   {:6.2f} {:6.2f} {:6.2f} GB/s\n", k.low, k.middle, k.high);
  fmt::print(
      "    load        {:6.2f} {:6.2f} {:6.2f} GB/s, {:.0f} % of the plain read, {:.0f} % of the "
      "kept read\n",
      l.low, l.middle, l.high, 100 * l.middle / r.middle, 100 * l.middle / k.middle);
  fmt::print("    processor   {:6.2f} s plain read, {:.2f} s kept read, {:.2f} s load (median)\n",
             spread_over(found.reads, work).middle, spread_over(found.kept, work).middle,
             spread_over(found.loads, work).middle);
  fmt::print("    peak memory {:6.3f} {:6.3f} {:6.3f} of {:.2f} GB of resident weights\n", p.low,
             p.middle, p.high, found.loads.front().resident * 1e-9);
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t layers = argc > 1 ? static_cast<std::size_t>(std::atoi(argv[1])) : 1;
  const int runs = argc > 2 ? std::max(1, std::atoi(argv[2])) : 5;
  fs::path folder = argc > 3 ? fs::path(argv[3]) : fs::path();
  fs::path packed = argc > 4 ? fs::path(argv[4]) : fs::path();
  fs::path place;
  if (packed.empty()) {
    std::string pattern = (fs::temp_directory_path() / "ordermoe-loading-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) give_up("no temporary folder");
    place = pattern;
  }
  if (folder.empty()) {
    folder = place / "model";
    model::random_model_options options;
    options.shape = model::published_shape(model::family::mixtral, layers);
    const auto tokenizer = take(read_file(ORDERMOE_DATA "/models/lineage/tokenizer.model"));
    options.tokenizer = tokenizer;
    const auto written = model::write_random_model(folder, options);
    if (!written) {
      fs::remove_all(place);
      give_up(written.error().message);
    }
  }
  if (packed.empty()) {
    packed = place / "packed";
    const auto written = model::pack_model(folder, packed, {});
    if (!written) {
      fs::remove_all(place);
      give_up(written.error().message);
    }
  }
  fmt::print("{:.2f} GB, packed {:.2f} GB, {} threads at hand, {} runs: least, median, most\n",
             bytes_of(folder) * 1e-9, bytes_of(packed) * 1e-9, std::thread::hardware_concurrency(),
             runs);
  constexpr std::pair<bool, bool> states[] = {
      {true, false}, {true, true}, {false, false}, {false, true}};
  for (const auto& [cold, at_hand] : states) {
    std::vector<series> all{{"original", folder, {}, {}, {}}, {"packed", packed, {}, {}, {}}};
    double held = 0;
    for (int run = cold ? 0 : -1; run < runs; ++run)
      for (auto& each : all) {
        const double bytes = bytes_of(each.folder);
        const auto measured = [&](measurement (*body)(const fs::path&)) {
          if (cold) held = std::max(held, forget(each.folder));
          if (at_hand) apart([&, twice = cold] { return touch(twice ? 2 * bytes : bytes); });
          return apart([&] { return body(each.folder); });
        };
        const auto read = measured(plain_read), kept = measured(kept_read), loaded = measured(load);
        if (run < 0) continue;
        each.reads.push_back(read);
        each.kept.push_back(kept);
        each.loads.push_back(loaded);
      }
    fmt::print("{}{}{}\n", cold ? "cold" : "warm", at_hand ? ", memory at hand" : "",
               cold ? fmt::format(" ({:.1f} % of the pages still held)", 100 * held) : "");
    for (const auto& each : all) print(each);
  }
  if (!place.empty()) fs::remove_all(place);
}
