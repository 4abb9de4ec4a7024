#pragma once

#include <string>
#include <vector>

#include "net/channel/tls.hpp"

namespace ordermoe::actors {

/// Copies of an identity's files that only this process has. CAF reads certificate and key from their files for every
/// connection, and a process that cannot read them just then ends: so what may be replaced or taken away is not what it
/// reads.
class kept_files {
 public:
  /// Errors: those of check_identity; io.
  static result<kept_files> of(const net::identity_files& files);
  kept_files(kept_files&& other) noexcept;
  kept_files& operator=(kept_files&&) = delete;
  ~kept_files();

  /// Of this process alone.
  std::string authority() const { return path(0); }
  std::string certificate() const { return path(1); }
  std::string key() const { return path(2); }

 private:
  kept_files() = default;
  std::string path(std::size_t i) const;
  std::vector<int> descriptors_;
};

}  // namespace ordermoe::actors
