#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"

/// Checked reading of JSON files: profiles, plans, traces, prompts, model configurations.
///
/// Goals: a reader that is one line per field, and messages that name the place in the file
/// (`plan.json: layers[2].transition: found ..., expected ...; ...`). So the first problem is
/// remembered by the document and every getter goes on with a harmless value; whoever reads asks
/// once, at the end, with `finish`. Non-goals: writing (nlohmann-json does), streaming of files
/// larger than memory.
///
///   auto document = json_document::parse(text, "plan.json");
///   if (!document) return document.error();
///   const auto root = document->root();
///   root.only({"version", "epoch", "layers"});
///   plan content;
///   content.epoch = root.at("epoch").unsigned_integer();
///   for (const auto& layer : root.at("layers").items()) ...
///   return document->finish(std::move(content));
namespace ordermoe {

class json_document;

/// What another process told, which may be anything; discarded where it is no JSON, or has more than 64 levels, for which whoever writes
/// it again would run out of stack, or an object of more than 1,000 members: keeping their order takes time with the square of them.
nlohmann::ordered_json parse_told(std::string_view text);

/// What a count of values must be.
inline constexpr std::size_t any_count = std::numeric_limits<std::size_t>::max();

/// One value inside a document, and where it is. A small view: it must not outlive the document.
/// After the document's first problem every getter returns its zero value (no items, "", 0, false).
class json_value {
 public:
  /// Where the value is, as in `layers[2].transition`; empty for the root.
  const std::string& path() const { return path_; }

  /// The member `key` of an object. Problem: it is not there, or this is no object.
  json_value at(std::string_view key) const;
  /// The member `key`, or nothing where the object has none or it is null. Problem: this is no
  /// object.
  std::optional<json_value> find(std::string_view key) const;
  /// Refuses members with other names than these.
  void only(std::initializer_list<std::string_view> keys) const;
  /// The names of an object's members, in alphabetical order.
  std::vector<std::string> keys() const;

  /// The values of an array. Problem: it is no array, or its length is not `count`.
  std::vector<json_value> items(std::size_t count = any_count) const;

  bool is_null() const;
  bool is_object() const;
  bool is_array() const;
  bool is_string() const;
  bool is_number() const;

  std::string string() const;
  /// A string that is one of these; the result is its index.
  std::size_t one_of(std::initializer_list<std::string_view> names) const;
  bool boolean() const;
  /// A finite number from low to high, both included. Whole numbers are taken too.
  double number(double low = -std::numeric_limits<double>::max(),
                double high = std::numeric_limits<double>::max()) const;
  /// A whole number from low to high, both included; 3.0 is refused.
  std::int64_t integer(std::int64_t low = std::numeric_limits<std::int64_t>::min(),
                       std::int64_t high = std::numeric_limits<std::int64_t>::max()) const;
  /// The same without sign, for seeds, hashes and counts.
  std::uint64_t unsigned_integer(
      std::uint64_t low = 0, std::uint64_t high = std::numeric_limits<std::uint64_t>::max()) const;
  std::size_t count(std::size_t low, std::size_t high) const {
    return static_cast<std::size_t>(unsigned_integer(low, high));
  }

  /// An array of numbers, all from low to high.
  std::vector<double> numbers(std::size_t count = any_count,
                              double low = -std::numeric_limits<double>::max(),
                              double high = std::numeric_limits<double>::max()) const;
  /// `rows` arrays of `columns` numbers each, one after the other.
  std::vector<double> matrix(std::size_t rows, std::size_t columns,
                             double low = -std::numeric_limits<double>::max(),
                             double high = std::numeric_limits<double>::max()) const;
  /// An array of whole numbers below `bound`: ids.
  std::vector<std::uint32_t> indices(std::uint32_t bound, std::size_t count = any_count) const;
  std::vector<std::string> strings(std::size_t count = any_count) const;

  /// Reports a problem of this value that the caller found: "<path>: found <found>, expected
  /// <expected>; <remedy>".
  void refuse(std::string_view found, std::string_view expected,
              errc code = errc::out_of_range) const;

 private:
  friend class json_document;
  json_value(const nlohmann::json* node, json_document* document, std::string path)
      : node_(node), document_(document), path_(std::move(path)) {}
  json_value child(const nlohmann::json& node, std::string_view key) const;
  json_value child(const nlohmann::json& node, std::size_t index) const;
  json_value nowhere() const { return {nullptr, document_, path_}; }
  /// True where the value is there and no problem was found yet.
  bool readable() const;
  void wrong_type(std::string_view expected) const;
  std::optional<double> number_in(const nlohmann::json& node, double low, double high) const;

  const nlohmann::json* node_;
  json_document* document_;
  std::string path_;
};

/// A parsed text and the first problem found in it. Movable; views point at what it owns.
class json_document {
 public:
  /// Parses one JSON value. `place` is what messages name (a path, or "trace.jsonl:17"). Errors
  /// (malformed): syntax with line and column, a member named twice, more than 64 levels, a number
  /// beyond a double's range.
  static result<std::unique_ptr<json_document>> parse(std::string_view text, std::string place);

  ~json_document();
  json_document(const json_document&) = delete;
  json_document& operator=(const json_document&) = delete;

  json_value root();
  const std::string& place() const { return place_; }
  /// What messages end with: what to do about a wrong value. "correct it" unless set ("calibrate
  /// the model again").
  void set_remedy(std::string remedy) { remedy_ = std::move(remedy); }

  bool failed() const { return problem_.has_value(); }
  result<void> outcome() const;
  /// The content that was read, or the first problem.
  template <class T>
  result<T> finish(T content) const {
    if (problem_) return *problem_;
    return content;
  }

 private:
  friend class json_value;
  json_document();
  void report(errc code, const std::string& path, std::string_view message);

  std::unique_ptr<nlohmann::json> tree_;
  std::string place_;
  std::string remedy_ = "correct it";
  std::optional<error> problem_;
};

/// The same for a file. Errors also: not_found, io, out_of_range where the file is larger than
/// max_bytes.
result<std::unique_ptr<json_document>> read_json(const std::filesystem::path& path,
                                                 std::size_t max_bytes = std::size_t{1} << 28);

}  // namespace ordermoe
