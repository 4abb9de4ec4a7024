#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"

/// Reading and writing the JSON files of this folder: every error names file and JSON path.
namespace ordermoe::planning {

/// Objects and lists of lists indented, lists of plain values on one line; ends with a newline.
std::string json_text(const nlohmann::ordered_json& content);

/// A parsed document and the first thing found wrong in it.
class json_document {
 public:
  /// Errors: malformed with line and column; malformed where `format` is another file's;
  /// unsupported where `version` is not this one.
  static result<json_document> parse(const std::string& text, const std::string& place,
                                     std::string_view format, std::uint64_t version);

  /// A value of the document. Reading a value of the wrong kind records the first error of the
  /// document and gives an empty value, so that a reader can go straight through and ask for the
  /// error at the end.
  class view {
   public:
    view(json_document& document, const nlohmann::json* node, std::string path)
        : document_(&document), node_(node), path_(std::move(path)) {}

    view operator[](const char* key) const;
    view operator[](std::size_t index) const;
    std::size_t size() const;  ///< Of a list.
    double number() const;
    std::uint64_t count(
        std::uint64_t limit = UINT64_MAX) const;  ///< A whole number from 0 to limit.
    std::int64_t integer() const;
    std::string text() const;
    std::vector<double> numbers() const;
    std::vector<std::uint32_t> indices() const;
    std::vector<std::int64_t> integers() const;
    void fail(errc code, std::string_view expected) const;
    const std::string& path() const { return path_; }

   private:
    json_document* document_;
    const nlohmann::json* node_;  ///< Null after a failure.
    std::string path_;
  };

  view root() { return {*this, &content_, ""}; }
  /// The first failure of a view, with the place in front.
  const std::optional<error>& problem() const { return problem_; }

 private:
  std::string place_;
  nlohmann::json content_;
  std::optional<error> problem_;
};

}  // namespace ordermoe::planning
