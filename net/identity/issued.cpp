#include "net/identity/issued.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "config/files.hpp"
#include "config/write_all.hpp"

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

/// How much of the list is lines: half a line at the end, of a write that a full disk cut short, is none. One that lacks only its
/// newline, as an editor may leave it, is.
std::size_t bytes_of_lines(const std::string& text) {
  const auto end = text.find_last_of('\n');
  const auto lines = end == std::string::npos ? 0 : end + 1;
  return parse_line(text.substr(lines), "") ? text.size() : lines;
}

/// In one piece behind the lines that are there, while nobody else writes; all of it or nothing. False with errno set.
bool append_line(const fs::path& folder, int file, std::string line) {
  while (::flock(file, LOCK_EX) != 0)
    if (errno != EINTR) return false;
  const auto before = text_of_list(folder);
  if (!before) {
    errno = EIO;
    return false;
  }
  const auto kept = bytes_of_lines(*before);
  if (kept < before->size() && ::ftruncate(file, static_cast<off_t>(kept)) != 0) return false;
  if (kept > 0 && (*before)[kept - 1] != '\n') line.insert(line.begin(), '\n');
  if (write_all(file, line)) return true;
  const auto why = errno;
  static_cast<void>(::ftruncate(file, static_cast<off_t>(kept)));
  errno = why;
  return false;
}

}  // namespace

result<void> add_issued(const fs::path& folder, const issued_certificate& made) {
  const auto place = list_of(folder);
  const int file = ::open(place.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  const bool written =
      file >= 0 && append_line(folder, file,
                               fmt::format("{} {} {} {}\n", made.serial, to_string(made.of),
                                           made.name, made.until_s));
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
