#include "config/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "config/folder_sync.hpp"
#include "config/sha256.hpp"
#include "config/write_all.hpp"

namespace ordermoe {

namespace fs = std::filesystem;

result<std::string> read_file(const fs::path& path, std::size_t max_bytes) {
  std::error_code status;
  if (!fs::exists(path, status) && status)
    return error{errc::io,
                 fmt::format("{}: cannot be reached: {}; check the path and its permissions",
                             path.string(), status.message())};
  if (!fs::exists(path, status))
    return error{errc::not_found, fmt::format("{}: no such file; check the path", path.string())};
  if (fs::is_directory(path, status))
    return error{errc::not_found, fmt::format("{}: is a folder, expected a file", path.string())};
  std::ifstream stream(path, std::ios::binary);
  if (!stream)
    return error{errc::io,
                 fmt::format("{}: cannot be opened: {}", path.string(), std::strerror(errno))};
  std::string bytes;
  char buffer[1 << 16];
  while (stream.read(buffer, sizeof buffer) || stream.gcount() > 0) {
    bytes.append(buffer, static_cast<std::size_t>(stream.gcount()));
    if (bytes.size() > max_bytes)
      return error{errc::out_of_range,
                   fmt::format("{}: larger than the {} bytes allowed", path.string(), max_bytes)};
  }
  if (stream.bad()) return error{errc::io, fmt::format("{}: reading failed", path.string())};
  return bytes;
}

namespace {

error refused(const fs::path& path, std::string_view what) {
  return {errc::io, fmt::format("{}: {}; choose another destination", path.string(), what)};
}

error failed(const fs::path& path, const char* step, int code) {
  return {errc::io, fmt::format("{}: {} failed: {}; nothing was changed, make room or choose "
                                "another destination",
                                path.string(), step, std::strerror(code))};
}

/// What stands under a name, links followed.
struct destination {
  fs::path path;                       ///< To replace; or to open, where it is written through.
  std::optional<struct stat> old;      ///< Of the regular file that is there.
  bool through = false;                ///< A device, a fifo, an open standard stream.
  std::optional<int> standard_stream;  ///< The descriptor that the file is open as.
};

/// Follows links that lead nowhere, so that what they name is made.
result<fs::path> follow_dangling(const fs::path& path) {
  constexpr int most_links = 40;
  auto place = path;
  for (int i = 0; i < most_links; ++i) {
    std::error_code status;
    if (!fs::is_symlink(fs::symlink_status(place, status))) return place;
    const auto target = fs::read_symlink(place, status);
    if (status) return refused(path, "following the symbolic link failed: " + status.message());
    place = target.is_absolute() ? target : place.parent_path() / target;
  }
  return refused(path, "too many symbolic links");
}

std::optional<int> standard_stream_of(const struct stat& file) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat open {};
    if (::fstat(stream, &open) == 0 && open.st_dev == file.st_dev && open.st_ino == file.st_ino)
      return stream;
  }
  return std::nullopt;
}

/// A name that nothing has yet, or that of a regular file.
result<destination> replaceable(const fs::path& path, fs::path place,
                                std::optional<struct stat> old) {
  if (place.filename().empty())
    return refused(path, "found the name of a folder, expected that of a file");
  const auto folder = place.has_parent_path() ? place.parent_path() : fs::path(".");
  std::error_code status;
  if (!fs::is_directory(folder, status))
    return error{errc::io, fmt::format("{}: there is no folder {}; make it or choose another "
                                       "destination",
                                       path.string(), folder.string())};
  if (old && ::faccessat(AT_FDCWD, place.c_str(), W_OK, AT_EACCESS) != 0)
    return refused(path, fmt::format("may not be written: {}", std::strerror(errno)));
  return destination{std::move(place), old, false, std::nullopt};
}

result<destination> find_destination(const fs::path& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) {
    if (errno != ENOENT)
      return refused(path, fmt::format("cannot be reached: {}", std::strerror(errno)));
    auto place = follow_dangling(path);
    if (!place) return place.error();
    return replaceable(path, std::move(*place), std::nullopt);
  }
  if (S_ISDIR(found.st_mode)) return refused(path, "is a folder, expected the name of a file");
  const auto stream = standard_stream_of(found);
  if (!S_ISREG(found.st_mode) || stream) return destination{path, std::nullopt, true, stream};
  std::error_code status;
  auto place = fs::canonical(path, status);
  if (status) return refused(path, "following the symbolic link failed: " + status.message());
  return replaceable(path, std::move(place), found);
}

/// A new file in the folder of another, with that one's owner and mode where there is one.
struct temporary {
  int file = -1;
  fs::path path;
};

result<temporary> make_beside(const fs::path& asked, const destination& to) {
  static std::atomic<unsigned> count{0};
  temporary made;
  do {
    made.path = to.path.parent_path() /
                fmt::format(".ordermoe-{}-{}.partial", ::getpid(), count.fetch_add(1));
    made.file =
        ::open(made.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, to.old ? 0600 : 0666);
  } while (made.file < 0 && errno == EEXIST);
  if (made.file < 0) return failed(asked, "creating a temporary file beside it", errno);
  if (!to.old) return made;
  // Only the administrator may give files away; otherwise the new file is its writer's.
  [[maybe_unused]] const int given = ::fchown(made.file, to.old->st_uid, to.old->st_gid);
  if (::fchmod(made.file, to.old->st_mode & 07777) != 0) {
    const int code = errno;
    ::close(made.file);
    ::unlink(made.path.c_str());
    return failed(asked, "setting permissions", code);
  }
  return made;
}

}  // namespace

struct output_file::state {
  fs::path asked;
  destination to;
  int file = -1;
  fs::path partial;  ///< Empty where the bytes go straight to their destination.
  std::optional<error> problem;

  ~state() {
    if (file >= 0) ::close(file);
    if (!partial.empty()) ::unlink(partial.c_str());
  }

  error fail(const char* step, int code) {
    if (to.through)
      problem = refused(asked, fmt::format("{} failed: {}", step, std::strerror(code)));
    else
      problem = failed(asked, step, code);
    return *problem;
  }
};

output_file::output_file(std::unique_ptr<state> opened) : state_(std::move(opened)) {}
output_file::output_file(output_file&&) noexcept = default;
output_file& output_file::operator=(output_file&&) noexcept = default;
output_file::~output_file() = default;

result<output_file> output_file::open(const fs::path& path) {
  auto to = find_destination(path);
  if (!to) return to.error();
  auto opened = std::make_unique<state>();
  opened->asked = path;
  opened->to = std::move(*to);
  if (opened->to.standard_stream) {
    std::fflush(nullptr);
    opened->file = ::fcntl(*opened->to.standard_stream, F_DUPFD_CLOEXEC, 3);
  } else if (opened->to.through) {
    opened->file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
  } else {
    auto made = make_beside(path, opened->to);
    if (!made) return made.error();
    opened->file = made->file;
    opened->partial = std::move(made->path);
  }
  if (opened->file < 0) return opened->fail("opening", errno);
  return output_file(std::move(opened));
}

result<void> output_file::write(std::string_view bytes) {
  if (state_->problem) return *state_->problem;
  if (!write_all(state_->file, bytes)) return state_->fail("writing", errno);
  return {};
}

result<void> output_file::commit() {
  auto& s = *state_;
  if (s.problem) return *s.problem;
  // Devices and pipes have nothing to bring to a disk.
  if (!s.to.through && ::fsync(s.file) != 0) return s.fail("flushing to disk", errno);
  const int closed = ::close(std::exchange(s.file, -1));
  if (closed != 0) return s.fail("closing", errno);
  if (s.to.through) return {};
  if (::rename(s.partial.c_str(), s.to.path.c_str()) != 0) return s.fail("renaming", errno);
  s.partial.clear();
  sync_folder(s.to.path.parent_path());
  return {};
}

result<void> check_writable(const fs::path& path) {
  auto to = find_destination(path);
  if (!to) return to.error();
  if (!to->through) {
    auto made = make_beside(path, *to);
    if (!made) return made.error();
    ::close(made->file);
    ::unlink(made->path.c_str());
  } else if (!to->standard_stream && ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0) {
    return refused(path, fmt::format("may not be written: {}", std::strerror(errno)));
  }
  return {};
}

bool is_written_through(const fs::path& path) {
  const auto to = find_destination(path);
  return to && to->through;
}

result<void> write_file(const fs::path& path, std::string_view bytes) {
  auto file = output_file::open(path);
  if (!file) return file.error();
  if (auto written = file->write(bytes); !written) return written;
  return file->commit();
}

std::string sha256_hex(std::string_view bytes) {
  sha256 digest;
  digest.update(bytes);
  return digest.finish();
}

}  // namespace ordermoe
