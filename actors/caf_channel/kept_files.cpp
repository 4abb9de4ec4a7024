#include "actors/caf_channel/kept_files.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "config/files.hpp"
#include "net/identity/certificates.hpp"

namespace ordermoe::actors {

namespace {

constexpr std::size_t most_bytes = std::size_t{1} << 20;

/// A descriptor of a nameless file in memory.
result<int> keep(const std::filesystem::path& file) {
  const auto text = read_file(file, most_bytes);
  if (!text) return text.error();
  const int made = ::memfd_create("ordermoe identity", MFD_CLOEXEC);
  const auto written = made < 0 ? -1 : ::write(made, text->data(), text->size());
  if (written == static_cast<ssize_t>(text->size())) return made;
  const auto problem = error{errc::io, fmt::format("{}: cannot keep a copy in memory: {}",
                                                   file.string(), std::strerror(errno))};
  if (made >= 0) ::close(made);
  return problem;
}

}  // namespace

result<kept_files> kept_files::of(const net::identity_files& files) {
  const auto fits =
      net::check_identity(files.authority, files.certificate, files.key, std::time(nullptr));
  if (!fits) return fits.error();
  kept_files kept;
  for (const auto* each : {&files.authority, &files.certificate, &files.key}) {
    const auto made = keep(*each);
    if (!made) return made.error();
    kept.descriptors_.push_back(*made);
  }
  return kept;
}

kept_files::kept_files(kept_files&& other) noexcept
    : descriptors_(std::exchange(other.descriptors_, {})) {}

kept_files::~kept_files() {
  for (const int each : descriptors_) ::close(each);
}

std::string kept_files::path(std::size_t i) const {
  return fmt::format("/proc/self/fd/{}", descriptors_[i]);
}

}  // namespace ordermoe::actors
