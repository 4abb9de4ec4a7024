#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/openai/problem.hpp"

/// Checked reading of a request's body: every getter goes on with a harmless value after the first problem, which names the
/// member as `param`.
namespace ordermoe::gateway {

class fields {
 public:
  /// `path`: of the object inside the body, as "stream_options"; empty for the body itself.
  fields(const nlohmann::json& object, std::string path, std::optional<api_problem>& problem);

  /// Whether the member is there and not null.
  bool has(const char* name) const { return find(name) != nullptr; }
  /// The member as it is; null where there is none.
  const nlohmann::json* find(const char* name) const;
  /// Members that are not among these are refused.
  void only(std::initializer_list<std::string_view> names,
            std::span<const std::string_view> more = {}) const;

  bool boolean(const char* name, bool otherwise) const;
  double number(const char* name, double low, double high, double otherwise) const;
  std::int64_t integer(const char* name, std::int64_t low, std::int64_t high,
                       std::int64_t otherwise) const;
  /// Any whole number of 64 bits; what is below 0 as its two's complement.
  std::optional<std::uint64_t> seed(const char* name) const;
  std::string string(const char* name, std::string otherwise) const;
  /// The object, or an empty one.
  fields object(const char* name) const;

  void refuse(std::string_view name, std::string message, std::string code = {}) const;
  bool failed() const { return problem_->has_value(); }
  std::string path_of(std::string_view name) const;

 private:
  void wrong_type(const char* name, const nlohmann::json& found, const char* expected) const;

  const nlohmann::json* object_;
  std::string path_;
  std::optional<api_problem>* problem_;
};

/// "a string", "an array": of a value that was found.
std::string kind_of(const nlohmann::json& value);

/// A body as JSON: an object, in UTF-8, no member twice, no deeper than 32.
nlohmann::json parse_body(std::string_view text, std::optional<api_problem>& problem);

}  // namespace ordermoe::gateway
