#include "model/checkpoint/checksums.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "config/files.hpp"
#include "config/sha256.hpp"

namespace ordermoe::model {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t read_at_once = std::size_t{1} << 20;
constexpr std::size_t most_checksum_bytes = std::size_t{16} << 20;
constexpr std::size_t digest_digits = 64;

/// Feeds a file to a digest; `advance` hears how many bytes were read and says whether to go on.
result<std::string> hash(const fs::path& path,
                         const std::function<bool(std::size_t bytes)>& advance) {
  const auto fail = [&](const char* step) {
    const int code = errno;
    return error{code == ENOENT ? errc::not_found : errc::io,
                 fmt::format("{}: {}: {}; check the path and its permissions", path.string(), step,
                             std::strerror(code))};
  };
  // A fifo would wait for a writer, and some devices never end.
  const int file = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (file < 0) return fail("cannot be opened");
  struct stat found {};
  if (::fstat(file, &found) != 0) {
    auto problem = fail("cannot be examined");
    ::close(file);
    return problem;
  }
  if (!S_ISREG(found.st_mode)) {
    ::close(file);
    return error{errc::not_found,
                 fmt::format("{}: not a regular file, expected one of a model", path.string())};
  }
  ::posix_fadvise(file, 0, 0, POSIX_FADV_SEQUENTIAL);
  sha256 digest;
  std::vector<char> chunk(read_at_once);
  for (;;) {
    const auto n = ::read(file, chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      auto problem = fail("reading failed");
      ::close(file);
      return problem;
    }
    if (n == 0) break;
    digest.update({chunk.data(), static_cast<std::size_t>(n)});
    if (!advance(static_cast<std::size_t>(n))) {
      ::close(file);
      return error{errc::interrupted, fmt::format("{}: interrupted while reading", path.string())};
    }
  }
  ::close(file);
  return digest.finish();
}

}  // namespace

bool belongs_to_model(std::string_view name) {
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") ||
         name == "config.json" || name == "tokenizer.model" || name == "spiece.model" ||
         name.starts_with("tokenizer") || name == "generation_config.json" ||
         name == "special_tokens_map.json" || name == "added_tokens.json" ||
         name == "chat_template.jinja" || name == "vocab.json" || name == "merges.txt";
}

result<std::string> hash_file(const fs::path& path, const work_watch& watch) {
  std::error_code status;
  const auto size = fs::file_size(path, status);
  const double all = status || size == 0 ? 1.0 : static_cast<double>(size);
  double done = 0;
  return hash(path, [&](std::size_t bytes) {
    done += static_cast<double>(bytes);
    watch.show(std::min(1.0, done / all));
    return !watch.stopped();
  });
}

result<checksum_list> hash_model_files(const fs::path& folder, const work_watch& watch) {
  std::error_code status;
  std::map<std::string, std::uintmax_t> sizes;
  for (fs::directory_iterator at(folder, status), end; !status && at != end; at.increment(status)) {
    const auto name = at->path().filename().string();
    std::error_code ignored;
    if (at->is_regular_file(ignored) && belongs_to_model(name))
      sizes[name] = at->file_size(ignored);
  }
  if (status)
    return error{status == std::errc::no_such_file_or_directory ? errc::not_found : errc::io,
                 fmt::format("{}: cannot be listed: {}; name the folder of a model",
                             folder.string(), status.message())};
  double all = 1, done = 0;
  for (const auto& [name, size] : sizes) all += static_cast<double>(size);
  checksum_list list;
  for (const auto& [name, size] : sizes) {
    auto digest = hash(folder / name, [&](std::size_t bytes) {
      done += static_cast<double>(bytes);
      watch.show(std::min(1.0, done / all));
      return !watch.stopped();
    });
    if (!digest) return digest.error();
    list[name] = std::move(*digest);
  }
  return list;
}

result<checksum_list> read_checksums(const fs::path& folder) {
  const auto path = folder / checksums_name;
  const auto text = read_file(path, most_checksum_bytes);
  if (!text) return text.error();
  checksum_list list;
  std::size_t number = 0;
  for (std::string_view rest = *text; !rest.empty();) {
    const auto end = std::min(rest.find('\n'), rest.size());
    const auto line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++number;
    const auto bad = [&](const char* what) {
      return error{
          errc::malformed,
          fmt::format("{}:{}: {}, expected 64 hexadecimal digits in lower case, two spaces and the "
                      "plain name of a file, each name once; write the list again with `ordermoe "
                      "model verify --write-checksums` once the files are known to be good",
                      path.string(), number, what)};
    };
    if (line.empty()) continue;
    if (line.size() < digest_digits + 3) return bad("found a short line");
    const auto digits = line.substr(0, digest_digits);
    if (digits.find_first_not_of("0123456789abcdef") != std::string_view::npos)
      return bad("found something else than a digest");
    const auto between = line.substr(digest_digits, 2);
    if (between != "  " && between != " *") return bad("found no two spaces behind the digest");
    const auto name = line.substr(digest_digits + 2);
    if (name == "." || name == ".." ||
        name.find_first_of(std::string_view("/\\\0\r", 4)) != std::string_view::npos)
      return bad("found a name that is not of a file in this folder");
    if (!list.emplace(name, digits).second) return bad("found a name again");
  }
  return list;
}

std::string checksums_text(const checksum_list& list) {
  std::string text;
  for (const auto& [name, digest] : list) text += fmt::format("{}  {}\n", digest, name);
  return text;
}

}  // namespace ordermoe::model
