#include "net/identity/issued.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <string_view>

#include "config/files.hpp"

namespace ordermoe::net {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_bytes = std::size_t{64} << 20;

fs::path list_of(const fs::path& folder) {
  return folder / "issued";
}

/// Empty where there is no list yet.
result<std::string> text_of_list(const fs::path& folder) {
  auto text = read_file(list_of(folder), most_bytes);
  if (!text && text.error().code == errc::not_found) return std::string();
  return text;
}

result<issued_certificate> parse_line(const std::string& line, const std::string& place) {
  issued_certificate made;
  std::string of, rest;
  std::istringstream words(line);
  const bool read = static_cast<bool>(words >> made.serial >> of >> made.name >> made.until_s);
  const auto known = parse_role(of);
  if (!read || !known || words >> rest ||
      made.serial.find_first_not_of("0123456789abcdef") != std::string::npos)
    return error{errc::malformed,
                 fmt::format("{}: found '{}', expected SERIAL ROLE NAME SECONDS; remove the line",
                             place, line.substr(0, 100))};
  made.of = *known;
  return made;
}

/// Certificates in the folder that nobody has listed.
result<void> add_unlisted(const fs::path& folder, std::vector<issued_certificate>& all) {
  std::error_code failed;
  std::vector<fs::path> files;
  for (const auto& each : fs::directory_iterator(folder, failed))
    if (each.path().extension() == ".crt") files.push_back(each.path());
  if (failed)
    return error{errc::io,
                 fmt::format("{}: cannot be read: {}", folder.string(), failed.message())};
  std::ranges::sort(files);
  for (const auto& file : files) {
    const auto facts = read_certificate(file);
    const auto who = facts ? parse_uri(facts->uri) : result<certificate_name>(facts.error());
    if (!who || std::ranges::find(all, facts->serial, &issued_certificate::serial) != all.end())
      continue;
    all.push_back({facts->serial, who->of, who->name, facts->not_after_s});
  }
  return {};
}

/// Whether what is there ends in half a line, of a write that the disk had no room for.
bool ends_within_line(int file) {
  struct stat found {};
  char last = '\n';
  return ::fstat(file, &found) == 0 && found.st_size > 0 &&
         ::pread(file, &last, 1, found.st_size - 1) == 1 && last != '\n';
}

/// False with errno set where the system does not take all of it.
bool append(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto n = ::write(file, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace

result<void> add_issued(const fs::path& folder, const issued_certificate& made) {
  const auto place = list_of(folder);
  auto line =
      fmt::format("{} {} {} {}\n", made.serial, to_string(made.of), made.name, made.until_s);
  const int file = ::open(place.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (file >= 0 && ends_within_line(file)) line.insert(line.begin(), '\n');
  // In one piece behind what is there: others may issue at the same time.
  const bool written = file >= 0 && append(file, line);
  const auto why = errno;
  if (file >= 0) ::close(file);
  if (written) return {};
  return error{errc::io,
               fmt::format("{}: cannot be written: {}", place.string(), std::strerror(why))};
}

result<std::vector<issued_certificate>> read_issued(const fs::path& folder) {
  const auto text = text_of_list(folder);
  if (!text) return text.error();
  std::vector<issued_certificate> all;
  std::istringstream lines(*text);
  std::string line;
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    // Two that issue behind half a line at the same time both end it.
    if (line.empty()) continue;
    auto made = parse_line(line, fmt::format("{}:{}", list_of(folder).string(), number));
    // Half a line at the end is of a certificate that was never made.
    if (!made && lines.eof()) break;
    if (!made) return made.error();
    all.push_back(std::move(*made));
  }
  if (auto added = add_unlisted(folder, all); !added) return added.error();
  return all;
}

}  // namespace ordermoe::net
