#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace ordermoe {

/// A SHA-256 digest that grows with what is fed to it.
class sha256 {
 public:
  sha256();
  ~sha256();
  sha256(sha256&&) noexcept;
  sha256& operator=(sha256&&) noexcept;

  void update(std::string_view bytes);
  /// Lower-case hexadecimal; nothing can be fed afterwards.
  std::string finish();

 private:
  struct state;
  std::unique_ptr<state> state_;
};

/// Whether two digests, or other texts of a known length, are the same, in a time that says nothing of what is in them.
bool same_digest(std::string_view left, std::string_view right);

}  // namespace ordermoe
