#include "trace/sink.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace ordermoe::trace {

result<std::unique_ptr<sink>> sink::open(const std::filesystem::path& path) {
  auto file = output_file::open(path);
  if (!file) return file.error();
  return std::unique_ptr<sink>(new sink(std::move(*file)));
}

void sink::line(std::string text) {
  constexpr std::size_t flushed_bytes = 1 << 20;
  const std::lock_guard lock(mutex_);
  buffer_ += text;
  buffer_ += '\n';
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
