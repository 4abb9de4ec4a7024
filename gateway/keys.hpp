#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"

/// Who may ask a gateway.
namespace ordermoe::gateway {

/// KEY of "Bearer KEY"; empty where it is none.
std::string_view bearer_of(std::string_view authorization);

class api_keys {
 public:
  /// No keys: everybody may ask.
  api_keys() = default;
  explicit api_keys(const std::vector<std::string>& keys);
  /// A key a line; empty lines and those that begin with # are none. Errors: those of read_file and net::check_owner_alone;
  /// usage where it has no key, or one of fewer than 16 characters.
  static result<api_keys> read(const std::filesystem::path& file);

  bool empty() const { return digests_.empty(); }
  std::size_t size() const { return digests_.size(); }
  /// Whether `authorization` is "Bearer KEY" with one of them. Takes as long for a wrong key as for a right one, wherever
  /// they differ.
  bool allow(std::string_view authorization) const;

 private:
  std::vector<std::string> digests_;
};

}  // namespace ordermoe::gateway
