#include "gateway/static_files.hpp"

#include <utility>

#include "config/files.hpp"

namespace ordermoe::gateway {

namespace {

constexpr std::size_t most_bytes = std::size_t{8} << 20;

bool is_name(std::string_view path) {
  char before = '/';
  for (const char c : path) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '-' || c == '_';
    if (!is_plain && (before == '/' || (c != '.' && c != '/'))) return false;
    before = c;
  }
  return before != '/';
}

std::string type_of(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> types[] = {
      {".html", "text/html; charset=utf-8"},
      {".js", "text/javascript; charset=utf-8"},
      {".css", "text/css; charset=utf-8"},
      {".svg", "image/svg+xml"},
      {".png", "image/png"},
      {".json", "application/json"},
      {".ico", "image/vnd.microsoft.icon"},
      {".woff2", "font/woff2"},
      {".txt", "text/plain; charset=utf-8"}};
  for (const auto& [end, type] : types)
    if (name.ends_with(end)) return std::string(type);
  return "application/octet-stream";
}

}  // namespace

std::optional<page_content> read_page(const std::filesystem::path& folder, std::string_view path) {
  constexpr std::string_view below = "/dashboard/";
  if (folder.empty()) return std::nullopt;
  std::string_view name = "index.html";
  if (path.starts_with(below) && path.size() > below.size())
    name = path.substr(below.size());
  else if (path != "/" && path != "/dashboard" && path != below)
    return std::nullopt;
  if (!is_name(name)) return std::nullopt;
  auto bytes = read_file(folder / name, most_bytes);
  if (!bytes) return std::nullopt;
  return page_content{std::move(*bytes), type_of(name)};
}

}  // namespace ordermoe::gateway
