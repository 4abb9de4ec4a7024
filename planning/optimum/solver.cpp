#include "planning/optimum/solver.hpp"

#include <coin/Cbc_C_Interface.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace ordermoe::planning::programming {

namespace {

constexpr const char* library_name = "libCbcSolver.so.3";

/// CBC's functions, as its header declares them.
class cbc_library {
 public:
  static result<cbc_library> load() {
    cbc_library made;
    made.handle_ = ::dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
    if (made.handle_ == nullptr)
      return error{errc::unsupported,
                   fmt::format("integer programs need CBC, and {} cannot be loaded: {}; install it "
                               "(Debian: coinor-libcbc3)",
                               library_name, ::dlerror())};
    return made;
  }

  template <class Function>
  Function* named(const char* name) const {
    auto* found = ::dlsym(handle_, name);
    ORDERMOE_CHECK(found != nullptr, fmt::format("{} has a function {}", library_name, name));
    return reinterpret_cast<Function*>(found);
  }

 private:
  void* handle_ = nullptr;  // Stays for as long as the process.
};

#define ORDERMOE_CBC(library, function) (library).named<decltype(function)>(#function)

solver_end end_of(const cbc_library& cbc, Cbc_Model* model) {
  if (ORDERMOE_CBC(cbc, Cbc_isProvenInfeasible)(model) != 0) return solver_end::infeasible;
  if (ORDERMOE_CBC(cbc, Cbc_isSecondsLimitReached)(model) != 0) return solver_end::time_limit;
  if (ORDERMOE_CBC(cbc, Cbc_isNodeLimitReached)(model) != 0) return solver_end::node_limit;
  return ORDERMOE_CBC(cbc, Cbc_isProvenOptimal)(model) != 0 ? solver_end::optimum
                                                            : solver_end::other;
}

solution run(const cbc_library& cbc, const linear_program& program, const solver_limits& limits,
             bool is_integer, const std::vector<double>& start) {
  auto* model = ORDERMOE_CBC(cbc, Cbc_newModel)();
  auto first = program.first;
  first.push_back(static_cast<int>(program.entry_row.size()));
  ORDERMOE_CBC(cbc, Cbc_loadProblem)
  (model, program.columns(), program.rows(), first.data(), program.entry_row.data(),
   program.entry_value.data(), program.lower.data(), program.upper.data(), program.cost.data(),
   program.row_lower.data(), program.row_upper.data());
  ORDERMOE_CBC(cbc, Cbc_setObjSense)(model, 1);
  ORDERMOE_CBC(cbc, Cbc_setLogLevel)(model, 0);
  const auto set = [&](const char* name, const std::string& value) {
    ORDERMOE_CBC(cbc, Cbc_setParameter)(model, name, value.c_str());
  };
  set("log", "0");
  set("timeM", "elapsed");  // Not processor time.
  set("sec", fmt::format("{}", limits.seconds));
  set("maxN", fmt::format("{}", limits.nodes));
  for (const auto column : program.integers)
    if (is_integer) ORDERMOE_CBC(cbc, Cbc_setInteger)(model, column);
  if (!start.empty()) ORDERMOE_CBC(cbc, Cbc_setMIPStartI)
  (model, static_cast<int>(program.integers.size()), program.integers.data(), start.data());
  ORDERMOE_CBC(cbc, Cbc_solve)(model);
  solution found;
  found.end = end_of(cbc, model);
  found.bound = ORDERMOE_CBC(cbc, Cbc_getBestPossibleObjValue)(model);
  found.nodes = static_cast<std::size_t>(ORDERMOE_CBC(cbc, Cbc_getNodeCount)(model));
  constexpr double nothing = 1e49;  // What CBC says where it has no solution.
  const auto* values = ORDERMOE_CBC(cbc, Cbc_getColSolution)(model);
  const double cost = ORDERMOE_CBC(cbc, Cbc_getObjValue)(model);
  if (found.end == solver_end::infeasible || values == nullptr || std::abs(cost) >= nothing)
    return found;
  found.values.assign(values, values + program.columns());
  found.cost = cost;
  return found;
}

// ------------------------------------------------------------------------------------ in a child

/// What the child says first; the values follow.
struct answer_head {
  solver_end end;
  double cost, bound;
  std::size_t nodes, n_values;
};

bool write_all(int to, const void* from, std::size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const auto n = ::write(to, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

void tell(int to, const solution& found) {
  const answer_head head{found.end, found.cost, found.bound, found.nodes, found.values.size()};
  if (write_all(to, &head, sizeof head))
    write_all(to, found.values.data(), found.values.size() * sizeof(double));
}

/// A process that solves, and what it has said so far.
class child_process {
 public:
  child_process(pid_t id, int from) : id_(id), from_(from) {}
  child_process(const child_process&) = delete;
  child_process& operator=(const child_process&) = delete;
  ~child_process() {
    ::kill(id_, SIGKILL);
    ::close(from_);
    while (::waitpid(id_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  /// Waits a tenth of a second; whether all has been said.
  bool is_done() {
    pollfd waiting{from_, POLLIN, 0};
    if (::poll(&waiting, 1, 100) <= 0) return false;
    char block[65536];
    const auto n = ::read(from_, block, sizeof block);
    if (n > 0) said_.append(block, static_cast<std::size_t>(n));
    return n == 0 || (n < 0 && errno != EINTR);
  }

  result<solution> answer() const {
    answer_head head{};
    if (said_.size() >= sizeof head) std::memcpy(&head, said_.data(), sizeof head);
    if (said_.size() < sizeof head || said_.size() != sizeof head + head.n_values * sizeof(double))
      return error{errc::failed,
                   "CBC ended without an answer; leave this program out, or make it "
                   "smaller"};
    solution found{head.end, {}, head.cost, head.bound, head.nodes};
    found.values.resize(head.n_values);
    if (head.n_values > 0)
      std::memcpy(found.values.data(), said_.data() + sizeof head, head.n_values * sizeof(double));
    return found;
  }

 private:
  pid_t id_;
  int from_;
  std::string said_;
};

result<solution> run_apart(const linear_program& program, const solver_limits& limits,
                           bool is_integer, const std::vector<double>& start) {
  const auto cbc = cbc_library::load();
  if (!cbc) return cbc.error();
  int ends[2];
  if (::pipe(ends) != 0)
    return error{errc::io, fmt::format("no pipe to a solver: {}", std::strerror(errno))};
  std::fflush(nullptr);  // What is not written yet is this process's to write.
  const auto id = ::fork();
  if (id < 0) {
    ::close(ends[0]);
    ::close(ends[1]);
    return error{errc::io, fmt::format("no process for a solver: {}", std::strerror(errno))};
  }
  if (id == 0) {
    ::close(ends[0]);
    // Whoever waits for it ends it; what CBC prints is nobody's.
    ::signal(SIGINT, SIG_IGN);
    const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    ::dup2(nowhere, STDOUT_FILENO);
    ::dup2(nowhere, STDERR_FILENO);
    tell(ends[1], run(*cbc, program, limits, is_integer, start));
    ::_exit(0);
  }
  ::close(ends[1]);
  child_process child(id, ends[0]);
  // A single step of CBC may take longer than its limit.
  constexpr double grace_s = 5;
  const auto begin = std::chrono::steady_clock::now();
  while (!child.is_done()) {
    if (limits.should_stop && limits.should_stop()) return error{errc::interrupted, "interrupted"};
    const std::chrono::duration<double> over = std::chrono::steady_clock::now() - begin;
    if (over.count() < limits.seconds + grace_s) continue;
    solution nothing;
    nothing.end = solver_end::time_limit;
    nothing.bound = -HUGE_VAL;
    return nothing;
  }
  return child.answer();
}

}  // namespace

int linear_program::add_row(double low, double high) {
  row_lower.push_back(low);
  row_upper.push_back(high);
  return rows() - 1;
}

int linear_program::add_column(double price, double low, double high, bool integer) {
  cost.push_back(price);
  lower.push_back(low);
  upper.push_back(high);
  first.push_back(static_cast<int>(entry_row.size()));
  if (integer) integers.push_back(columns() - 1);
  return columns() - 1;
}

void linear_program::add_entry(int row, double value) {
  entry_row.push_back(row);
  entry_value.push_back(value);
}

result<solution> solve_relaxed(const linear_program& program, const solver_limits& limits) {
  auto found = run_apart(program, limits, false, {});
  if (found) found->bound = found->cost;
  return found;
}

result<solution> solve(const linear_program& program, const solver_limits& limits,
                       const std::vector<double>& start) {
  return run_apart(program, limits, true, start);
}

}  // namespace ordermoe::planning::programming
