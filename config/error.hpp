#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

/// Errors that a caller can expect, and the assertion for those that it cannot.
///
/// Goals: one small value type that crosses every folder; a message that a user can act on.
/// Non-goals: exceptions as control flow. A message names the place (file, line, tensor, flag),
/// what was found, what was expected and what to do about it, in that order.
namespace ordermoe {

enum class errc {
  usage,      ///< The command line asks for something that does not exist or does not fit together.
  not_found,  ///< A file or folder that was named is not there.
  io,         ///< The operating system refused to read or write.
  malformed,  ///< Input is not of the format that it claims (syntax, header, truncated).
  out_of_range,  ///< Input is well formed, but a value lies outside what is allowed.
  mismatch,      ///< Two inputs are each valid and do not belong together.
  unsupported,   ///< Input is valid and asks for something that this version does not do.
  infeasible,    ///< The problem has no solution; the message says by how much it falls short.
  timed_out,     ///< An answer did not come within its time.
  interrupted,   ///< The user stopped the work; what was finished is kept.
  failed,        ///< A check or a run that was asked for did not hold.
};

/// One sentence about the code itself, without the particulars of one error.
const char* describe(errc code) noexcept;

/// The exit code of the command line: 0 done, 1 failed, 2 usage or bad input, 3 infeasible.
int exit_code(errc code) noexcept;

struct error {
  errc code = errc::failed;
  std::string message;
};

/// Prefixes the place to a message: "cluster.toml: <message>".
error at(const std::string& place, error inner);

/// Either a value or an error. Reading the wrong alternative is a broken invariant and ends the
/// program.
template <class T>
class [[nodiscard]] result {
 public:
  result(T value) : content_(std::in_place_index<0>, std::move(value)) {}
  result(ordermoe::error problem) : content_(std::in_place_index<1>, std::move(problem)) {}

  explicit operator bool() const noexcept { return content_.index() == 0; }
  bool has_value() const noexcept { return content_.index() == 0; }

  T& value() & { return *checked(); }
  const T& value() const& { return *const_cast<result*>(this)->checked(); }
  T&& value() && { return std::move(*checked()); }
  T& operator*() & { return *checked(); }
  const T& operator*() const& { return *const_cast<result*>(this)->checked(); }
  T&& operator*() && { return std::move(*checked()); }
  T* operator->() { return checked(); }
  const T* operator->() const { return const_cast<result*>(this)->checked(); }

  const ordermoe::error& error() const& { return *problem(); }

 private:
  T* checked();
  const ordermoe::error* problem() const;
  std::variant<T, ordermoe::error> content_;
};

/// Success, or an error: the result of something done for its effect.
template <>
class [[nodiscard]] result<void> {
 public:
  result() = default;
  result(ordermoe::error problem) : problem_(std::move(problem)) {}
  explicit operator bool() const noexcept { return !problem_; }
  bool has_value() const noexcept { return !problem_; }
  const ordermoe::error& error() const& { return *problem_; }

 private:
  std::optional<ordermoe::error> problem_;
};

/// Ends the program with a message: an invariant of the code, not an input, is broken.
[[noreturn]] void broken_invariant(const char* file, int line, const char* expression,
                                   const std::string& message);

/// A checked assertion that stays on in release builds.
#define ORDERMOE_CHECK(condition, message)                                     \
  do {                                                                         \
    if (!(condition)) [[unlikely]]                                             \
      ::ordermoe::broken_invariant(__FILE__, __LINE__, #condition, (message)); \
  } while (false)

template <class T>
T* result<T>::checked() {
  auto* value = std::get_if<0>(&content_);
  ORDERMOE_CHECK(value != nullptr,
                 "the value of a failed result was read: " + std::get<1>(content_).message);
  return value;
}

template <class T>
const error* result<T>::problem() const {
  auto* problem = std::get_if<1>(&content_);
  ORDERMOE_CHECK(problem != nullptr, "the error of a successful result was read");
  return problem;
}

}  // namespace ordermoe
