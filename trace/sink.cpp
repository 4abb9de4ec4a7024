#include "trace/sink.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace ordermoe::trace {

result<std::unique_ptr<sink>> sink::open(const std::filesystem::path& path, stamps with) {
  auto file = output_file::open(path);
  if (!file) return file.error();
  return std::unique_ptr<sink>(new sink(std::move(*file), with));
}

std::uint64_t sink::stamp() const {
  const std::lock_guard lock(mutex_);
  return stamp_;
}

void sink::observe(std::uint64_t stamp) {
  const std::lock_guard lock(mutex_);
  if (stamps_ != stamps::none) stamp_ = std::max(stamp_, stamp);
}

/// What is written at once happened at once.
void sink::add_stamped(std::string_view text) {
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  stamp_ = std::max(stamp_ + 1, static_cast<std::uint64_t>(now));
  for (;;) {
    const auto end = text.find('\n');
    const auto one = text.substr(0, end);
    // The closing line of a text that ends with a newline is none.
    if (!one.empty()) buffer_ += fmt::format("{{\"stamp\":{},{}\n", stamp_, one.substr(1));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

void sink::line(std::string text) {
  constexpr std::size_t flushed_bytes = 1 << 20;
  const std::lock_guard lock(mutex_);
  if (stamps_ == stamps::none) {
    buffer_ += text;
    buffer_ += '\n';
  } else {
    add_stamped(text);
  }
  lines_ += 1 + static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
  if (buffer_.size() >= flushed_bytes) flush();
}

void sink::flush() {
  hash_.update(buffer_);
  // The file remembers a failure, and commit() tells it.
  [[maybe_unused]] const auto written = file_.write(buffer_);
  buffer_.clear();
}

result<void> sink::close() {
  const std::lock_guard lock(mutex_);
  flush();
  buffer_ =
      fmt::format("{{\"type\":\"end\",\"lines\":{},\"sha256\":\"{}\"}}\n", lines_, hash_.finish());
  [[maybe_unused]] const auto written = file_.write(buffer_);
  return file_.commit();
}

}  // namespace ordermoe::trace
