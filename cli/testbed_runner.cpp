#include "cli/testbed_runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

namespace ordermoe::cli {

namespace tb = experiments::testbed;

namespace {

/// Every row of a folder, by experiment.
class row_store {
 public:
  explicit row_store(const testbed_request& asked) : asked_(asked) {
    for (const auto& one : tb::experiments()) kept_.emplace_back(one, asked.how_much);
  }

  result<void> read() {
    const auto digest = tb::digest_of(asked_.settings);
    for (auto& rows : kept_)
      if (auto done = tb::read_rows(asked_.folder, digest, rows); !done) return done;
    return {};
  }

  /// Points that no experiment has a row of yet, each once; what those that are asked for have of each other is copied.
  result<std::vector<tb::point>> missing() {
    std::vector<tb::point> left;
    std::set<std::string> known;
    for (const auto* of : asked_.experiments)
      for (std::uint64_t s = 0; s < asked_.seeds; ++s)
        for (const auto& what : of->points(asked_.how_much, asked_.first_seed + s)) {
          const auto normal = tb::normal_form(what);
          if (!known.insert(tb::key_of(normal)).second) continue;
          if (const auto found = find(normal)) {
            if (auto kept = put(*found); !kept) return kept.error();
          } else {
            left.push_back(normal);
          }
        }
    for (auto& rows : kept_)
      if (!rows.in_order().empty())
        if (auto done = tb::write_rows(asked_.folder, asked_.settings, rows); !done)
          return done.error();
    return left;
  }

  /// Into each experiment that is asked for and has the point, whatever it calls it.
  result<void> take(const tb::row& measured) {
    return put(tb::as_read_back(measured), /*writes=*/true);
  }

  std::vector<tb::measured_experiment> all() const {
    std::vector<tb::measured_experiment> found;
    for (const auto& rows : kept_)
      if (auto in_order = rows.in_order(); !in_order.empty())
        found.push_back({&rows.of(), std::move(in_order)});
    return found;
  }

 private:
  /// Of any experiment.
  std::optional<tb::row> find(const tb::point& normal) const {
    for (const auto& rows : kept_)
      for (const auto& spelled : rows.of().points(asked_.how_much, normal.seed))
        if (tb::normal_form(spelled) == normal)
          if (const auto* found = rows.find(spelled)) return *found;
    return std::nullopt;
  }

  result<void> put(const tb::row& content, bool writes = false) {
    const auto normal = tb::normal_form(content.what);
    for (auto& rows : kept_) {
      if (std::ranges::find(asked_.experiments, &rows.of()) == asked_.experiments.end()) continue;
      bool is_new = false;
      for (const auto& spelled : rows.of().points(asked_.how_much, normal.seed)) {
        if (tb::normal_form(spelled) != normal || rows.find(spelled) != nullptr) continue;
        auto copy = content;
        copy.what = spelled;
        if (auto kept = rows.put(std::move(copy)); !kept) return kept;
        is_new = true;
      }
      if (is_new && writes)
        if (auto kept = tb::write_rows(asked_.folder, asked_.settings, rows); !kept) return kept;
    }
    return {};
  }

  const testbed_request& asked_;
  std::deque<tb::rows_of_experiment> kept_;
};

/// Several points at a time, each with a job of its own that ends with the process's.
class crew {
 public:
  crew(std::vector<tb::point> points, testbed_bench& bench, row_store& rows)
      : points_(std::move(points)), bench_(bench), rows_(rows) {}

  result<void> run(std::size_t n_workers) {
    const auto n = std::max<std::size_t>(1, std::min(n_workers, points_.size()));
    for (std::size_t i = 0; i < n; ++i) jobs_.emplace_back();
    {
      std::jthread watcher([this](const std::stop_token& stop) { watch(stop); });
      std::vector<std::jthread> workers;
      try {
        for (std::size_t i = 1; i < n; ++i)
          workers.emplace_back([this, i] { work_safely(jobs_[i]); });
      } catch (...) {
        end_all();
      }
      work_safely(jobs_[0]);
    }
    if (thrown_) std::rethrow_exception(thrown_);
    if (unwritten_) return *unwritten_;
    return {};
  }
  const std::optional<error>& unmeasured() const { return unmeasured_; }

 private:
  /// What is thrown ends all workers, and is told by whoever waits for them.
  void work_safely(job& own) {
    try {
      work_on(own);
    } catch (...) {
      end_all();
    }
  }

  /// Within a catch.
  void end_all() {
    const std::lock_guard guard(mutex_);
    if (!thrown_) thrown_ = std::current_exception();
    for (auto& each : jobs_) each.stop();
  }

  void work_on(job& own) {
    while (!own.stopped()) {
      const auto next = next_++;
      if (next >= points_.size()) return;
      const auto& what = points_[next];
      work().begin(fmt::format("point {} of {}, {}, cluster {},", next + 1, points_.size(),
                               tb::variant_name(what), what.seed));
      const auto measured = bench_.measure(what, own);
      const std::lock_guard guard(mutex_);
      if (!measured && own.stopped()) return;
      if (!measured) {
        if (!unmeasured_)
          unmeasured_ = at(fmt::format("cluster {}, {}", what.seed, tb::variant_name(what)),
                           measured.error());
      } else if (auto kept = rows_.take(*measured); !kept) {
        unwritten_ = kept.error();
        for (auto& each : jobs_) each.stop();
        return;
      }
      ++n_done_;
    }
  }

  /// Hands an interrupt on to the jobs, and tells how far all are.
  void watch(const std::stop_token& stop) {
    constexpr auto period = std::chrono::milliseconds(50);
    std::mutex mutex;
    std::condition_variable_any wake;
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, stop, period, [] { return false; }) && !stop.stop_requested()) {
      if (stop_requested())
        for (auto& each : jobs_) each.stop();
      work().advance(static_cast<double>(n_done_) / static_cast<double>(points_.size()));
    }
  }

  std::vector<tb::point> points_;
  testbed_bench& bench_;
  row_store& rows_;
  std::deque<job> jobs_;
  std::atomic<std::size_t> next_{0}, n_done_{0};
  std::mutex mutex_;
  std::optional<error> unmeasured_, unwritten_;
  std::exception_ptr thrown_;
};

/// Of a process that was killed.
void remove_traces(const std::filesystem::path& folder) {
  std::error_code ignored;
  std::vector<std::filesystem::path> left;
  for (const auto& each : std::filesystem::directory_iterator(folder, ignored))
    if (each.path().filename().string().starts_with(trace_prefix)) left.push_back(each.path());
  for (const auto& each : left) std::filesystem::remove_all(each, ignored);
}

}  // namespace

result<testbed_outcome> run_experiments(const testbed_request& asked, testbed_bench& bench) {
  if (auto made = tb::make_folder(asked.folder); !made) return made.error();
  const auto lock = tb::folder_lock::take(asked.folder);
  if (!lock) return lock.error();
  if (auto ours = tb::claim_folder(asked.folder, asked.settings); !ours) return ours.error();
  remove_traces(asked.folder);
  row_store rows(asked);
  if (auto done = rows.read(); !done) return done.error();
  auto left = rows.missing();
  if (!left) return left.error();
  if (left->empty()) return testbed_outcome{rows.all(), {}};
  // Those whose plan another one's search makes come behind all that search.
  std::ranges::stable_partition(*left, [](const tb::point& what) { return !what.horizon; });
  for (const auto& what : *left)
    if (auto opened = bench.open(what); !opened) return opened.error();
  const progress_display shown;
  crew workers(std::move(*left), bench, rows);
  if (auto done = workers.run(asked.at_once); !done) return done.error();
  if (stop_requested())
    return testbed_outcome{
        rows.all(), error{errc::interrupted,
                          fmt::format("interrupted; {} holds what was measured: the same command "
                                      "goes on from there",
                                      asked.folder.string())}};
  return testbed_outcome{rows.all(), workers.unmeasured()};
}

}  // namespace ordermoe::cli
