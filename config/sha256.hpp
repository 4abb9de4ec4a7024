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

}  // namespace ordermoe
