#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

/// What can go wrong, as values: nothing of OrderMoE throws into a program that embeds it.
namespace ordermoe::api {

enum class problem_code {
  usage,  ///< What is asked for does not exist, does not fit together, or comes at the wrong time.
  not_found,     ///< A file or folder that was named is not there.
  io,            ///< The operating system or the network refused.
  malformed,     ///< Input is not of the format that it claims.
  out_of_range,  ///< Input is well formed, but a value lies outside what is allowed.
  mismatch,      ///< Two inputs are each valid and do not belong together.
  unsupported,   ///< Input is valid and asks for something that this version does not do.
  infeasible,    ///< There is no solution; the message says by how much it falls short.
  timed_out,     ///< An answer did not come within its time.
  interrupted,   ///< The work was stopped.
  failed,        ///< It went wrong otherwise.
};

/// The message names the place (file and line, folder, address, member), what was found, what was expected and what to do.
struct problem {
  problem_code code = problem_code::failed;
  std::string message;
};

/// Either a value or a problem. Reading the one that is not there throws std::bad_variant_access: ask first.
template <class T>
class [[nodiscard]] result {
 public:
  result(T value) : content_(std::in_place_index<0>, std::move(value)) {}
  result(api::problem why) : content_(std::in_place_index<1>, std::move(why)) {}

  explicit operator bool() const noexcept { return content_.index() == 0; }
  T& value() & { return std::get<0>(content_); }
  const T& value() const& { return std::get<0>(content_); }
  T&& value() && { return std::get<0>(std::move(content_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::get<0>(std::move(content_)); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const api::problem& problem() const { return std::get<1>(content_); }

 private:
  std::variant<T, api::problem> content_;
};

/// Success, or a problem. Reading the problem of a success throws std::bad_optional_access.
template <>
class [[nodiscard]] result<void> {
 public:
  result() = default;
  result(api::problem why) : problem_(std::move(why)) {}

  explicit operator bool() const noexcept { return !problem_; }
  const api::problem& problem() const { return problem_.value(); }

 private:
  std::optional<api::problem> problem_;
};

}  // namespace ordermoe::api
