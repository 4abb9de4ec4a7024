#include "actors/books.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace ordermoe::actors {

traffic& traffic::operator+=(const traffic& more) {
  messages += more.messages;
  hidden_bytes += more.hidden_bytes;
  kv_bytes += more.kv_bytes;
  other_bytes += more.other_bytes;
  serialised_bytes += more.serialised_bytes;
  busy_ns += more.busy_ns;
  return *this;
}

const char* to_string(execution_kind kind) {
  switch (kind) {
    case execution_kind::local_exact:
      return "local_exact";
    case execution_kind::local_substitute:
      return "local_substitute";
    case execution_kind::remote_exact:
      return "remote_exact";
    case execution_kind::remote_substitute:
      return "remote_substitute";
  }
  return "unknown";
}

execution_kind classify(std::uint32_t server, std::uint32_t target,
                        const planning::slot_choice& slot) {
  const bool local = slot.server == server;
  if (slot.expert == target && slot.loss == 0)
    return local ? execution_kind::local_exact : execution_kind::remote_exact;
  return local ? execution_kind::local_substitute : execution_kind::remote_substitute;
}

struct trace_recorder::hash_state {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  hash_state() { EVP_DigestInit_ex(context, EVP_sha256(), nullptr); }
  ~hash_state() { EVP_MD_CTX_free(context); }
};

result<std::unique_ptr<trace_recorder>> trace_recorder::open(const std::filesystem::path& path) {
  std::unique_ptr<trace_recorder> recorder(new trace_recorder);
  recorder->path_ = path;
  recorder->partial_ = path.string() + ".partial";
  recorder->file_ = std::fopen(recorder->partial_.c_str(), "wb");
  if (recorder->file_ == nullptr)
    return error{errc::io,
                 fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno))};
  recorder->hash_ = std::make_unique<hash_state>();
  return recorder;
}

trace_recorder::~trace_recorder() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  ::unlink(partial_.c_str());
}

void trace_recorder::line(std::string text) {
  const std::lock_guard lock(mutex_);
  buffer_ += text;
  buffer_ += '\n';
  lines_ += 1 + static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
  if (buffer_.size() >= (1u << 20)) flush();
}

void trace_recorder::flush() {
  EVP_DigestUpdate(hash_->context, buffer_.data(), buffer_.size());
  if (std::fwrite(buffer_.data(), 1, buffer_.size(), file_) != buffer_.size()) failed_ = true;
  buffer_.clear();
}

result<void> trace_recorder::close() {
  const std::lock_guard lock(mutex_);
  flush();
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_DigestFinal_ex(hash_->context, digest, &size);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  const auto last =
      fmt::format("{{\"type\":\"end\",\"lines\":{},\"sha256\":\"{}\"}}\n", lines_, hex);
  if (std::fwrite(last.data(), 1, last.size(), file_) != last.size()) failed_ = true;
  if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) failed_ = true;
  std::fclose(file_);
  file_ = nullptr;
  if (failed_) {
    ::unlink(partial_.c_str());
    return error{errc::io, fmt::format("{}: writing failed (is the disk full?); no trace was left",
                                       path_.string())};
  }
  if (::rename(partial_.c_str(), path_.c_str()) != 0) {
    const auto code = errno;
    ::unlink(partial_.c_str());
    return error{errc::io,
                 fmt::format("{}: renaming failed: {}", path_.string(), std::strerror(code))};
  }
  return {};
}

void run_books::expect_requests(std::size_t n) {
  const std::lock_guard lock(mutex_);
  outstanding_ += n;
}

void run_books::finish(request_outcome outcome) {
  const std::lock_guard lock(mutex_);
  const auto kept = final_hidden_.find(outcome.request);
  if (kept != final_hidden_.end()) outcome.final_hidden = std::move(kept->second);
  outcomes.push_back(std::move(outcome));
  --outstanding_;
  changed_.notify_all();
}

void run_books::keep_final_hidden(std::uint64_t request, std::vector<float> hidden) {
  const std::lock_guard lock(mutex_);
  final_hidden_[request] = std::move(hidden);
}

void run_books::count(const std::array<std::int64_t, 4>& by_kind) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < by_kind.size(); ++i) executions[i] += by_kind[i];
}

void run_books::add(const link_ledger& ledger) {
  const std::lock_guard lock(mutex_);
  links.push_back(ledger);
  changed_.notify_all();
}

void run_books::add(const server_ledger& ledger) {
  const std::lock_guard lock(mutex_);
  servers.push_back(ledger);
  changed_.notify_all();
}

void run_books::add(plan_change change) {
  const std::lock_guard lock(mutex_);
  plan_changes.push_back(std::move(change));
}

void run_books::add(weight_change change) {
  const std::lock_guard lock(mutex_);
  weight_changes.push_back(std::move(change));
}

void run_books::keep(observations seen) {
  const std::lock_guard lock(mutex_);
  observed = std::move(seen);
  changed_.notify_all();
}

void run_books::wait_for_observations(std::chrono::nanoseconds limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [&] { return observed.has_value(); });
}

void run_books::close_planner() {
  const std::lock_guard lock(mutex_);
  planner_closed_ = true;
  changed_.notify_all();
}

void run_books::wait_for_planner(std::chrono::nanoseconds limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [&] { return planner_closed_; });
}

void run_books::fail(error problem_found) {
  const std::lock_guard lock(mutex_);
  if (!problem) problem = std::move(problem_found);
  failed_.store(true, std::memory_order_release);
  changed_.notify_all();
}

void run_books::keep_kv_peak(std::uint32_t server, std::int64_t reserved_bytes) {
  const std::lock_guard lock(mutex_);
  auto& peak = kv_peak_[server];
  peak = std::max(peak, reserved_bytes);
}

std::int64_t run_books::kv_peak(std::uint32_t server) const {
  const std::lock_guard lock(mutex_);
  const auto found = kv_peak_.find(server);
  return found == kv_peak_.end() ? 0 : found->second;
}

void run_books::wait_for_ledgers(std::size_t n_servers, std::size_t n_links,
                                 std::chrono::nanoseconds limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit,
                    [&] { return servers.size() >= n_servers && links.size() >= n_links; });
}

std::size_t run_books::outstanding() const {
  const std::lock_guard lock(mutex_);
  return outstanding_;
}

bool run_books::wait(std::chrono::nanoseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [&] { return outstanding_ == 0 || problem.has_value(); });
}

}  // namespace ordermoe::actors
