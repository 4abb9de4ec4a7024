#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/error.hpp"

/// For the sources that read config.json; nlohmann's header comes with it.
namespace ordermoe::model {

using nlohmann::json;

/// Of all layers together, far more than published models have: each has tensors with names before any is looked for.
inline constexpr std::size_t most_experts = std::size_t{1} << 18;

/// Reads fields one after the other and keeps the first error.
class field_reader {
 public:
  field_reader(const json& content, std::string place)
      : content_(content), place_(std::move(place)) {}

  bool ok() const { return !problem_; }
  const error& problem() const { return *problem_; }

  void fail(errc code, const char* field, const std::string& what) {
    if (!problem_) problem_ = error{code, fmt::format("{}: {}: {}", place_, field, what)};
  }

  /// Null where the field is absent or null.
  const json* find(const char* field) const {
    const auto found = content_.find(field);
    return found == content_.end() || found->is_null() ? nullptr : &*found;
  }

  void natural(const char* field, std::size_t low, std::size_t high, std::size_t& value,
               std::optional<std::size_t> otherwise = std::nullopt) {
    const json* found = find(field);
    if (found == nullptr) {
      if (otherwise)
        value = *otherwise;
      else
        fail(errc::malformed, field,
             fmt::format("is absent, expected an integer from {} to {}", low, high));
      return;
    }
    if (!found->is_number_integer()) {
      fail(errc::malformed, field,
           fmt::format("{}, expected an integer from {} to {}", shown(*found), low, high));
      return;
    }
    if (!found->is_number_unsigned() || found->get<std::uint64_t>() < low ||
        found->get<std::uint64_t>() > high) {
      fail(errc::out_of_range, field,
           fmt::format("{}, allowed are {} to {}", shown(*found), low, high));
      return;
    }
    value = found->get<std::size_t>();
  }

  void positive(const char* field, double high, double& value, double otherwise) {
    const json* found = find(field);
    if (found == nullptr) {
      value = otherwise;
      return;
    }
    if (!found->is_number()) {
      fail(errc::malformed, field, fmt::format("{}, expected a number", shown(*found)));
      return;
    }
    const double number = found->get<double>();
    if (!(number > 0) || !(number <= high)) {
      fail(errc::out_of_range, field,
           fmt::format("{}, allowed is more than 0, up to {}", shown(*found), high));
      return;
    }
    value = number;
  }

  void token_id(const char* field, std::size_t vocab_size, std::int32_t& value) {
    const json* found = find(field);
    if (found == nullptr) return;
    if (found->is_array())
      return fail(errc::unsupported, field,
                  fmt::format("{}, expected one id; name the one that ends or begins a text",
                              shown(*found)));
    std::size_t id = 0;
    natural(field, 0, vocab_size > 0 ? vocab_size - 1 : 0, id);
    value = static_cast<std::int32_t>(id);
  }

  /// One id, or a list of ids of which the first is the value.
  void token_ids(const char* field, std::size_t vocab_size, std::int32_t& value,
                 std::vector<std::int32_t>& others) {
    const json* found = find(field);
    if (found == nullptr || !found->is_array()) return token_id(field, vocab_size, value);
    if (found->empty())
      return fail(errc::malformed, field, "found an empty list, expected an id or ids");
    for (const json& item : *found) {
      if (!item.is_number_unsigned() || item.get<std::uint64_t>() >= vocab_size)
        return fail(
            item.is_number_integer() ? errc::out_of_range : errc::malformed, field,
            fmt::format("{} in the list, allowed are ids below {}", shown(item), vocab_size));
      const auto id = item.get<std::int32_t>();
      if (&item == &found->front())
        value = id;
      else if (id != value && std::ranges::find(others, id) == others.end())
        others.push_back(id);
    }
  }

  void flag(const char* field, bool& value) {
    const json* found = find(field);
    if (found == nullptr) return;
    if (!found->is_boolean())
      return fail(errc::malformed, field, fmt::format("{}, expected true or false", shown(*found)));
    value = found->get<bool>();
  }

  /// Refuses more experts in all layers than a model may have. `layers` names the fields that say how many layers there are.
  void check_experts(const char* field, std::size_t n_experts, const char* layers,
                     std::size_t n_layers) {
    if (n_experts * n_layers > most_experts)
      fail(errc::out_of_range, field,
           fmt::format("found {}, which {} layers ({}) make {} altogether, allowed are up to {}",
                       n_experts, n_layers, layers, n_experts * n_layers, most_experts));
  }

  /// Refuses a field that is there with another value than the one that changes nothing.
  void neutral(const char* field, const json& value) {
    const json* found = find(field);
    if (found != nullptr && *found != value)
      fail(errc::unsupported, field,
           fmt::format("{} would change the computation, supported is {} (or leaving it out)",
                       shown(*found), value.dump()));
  }

  static std::string shown(const json& value) {
    std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
    if (text.size() > 60) text = text.substr(0, 57) + "...";
    return "found " + text;
  }

 private:
  const json& content_;
  std::string place_;
  std::optional<error> problem_;
};

}  // namespace ordermoe::model
