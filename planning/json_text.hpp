#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "config/error.hpp"
#include "config/json.hpp"

/// What the JSON files of this folder share: a head that names format and version, and their
/// layout.
namespace ordermoe::planning {

/// Objects and lists of lists indented, lists of plain values on one line; ends with a newline.
/// Numbers are written with as many digits as they need to be read back exactly.
std::string json_text(const nlohmann::ordered_json& content);

/// Parses a document with the members "format" and "version". Errors: malformed where it is not
/// JSON or not of this format; unsupported where it is of another version.
result<std::unique_ptr<json_document>> parse_versioned(const std::string& text,
                                                       const std::string& place,
                                                       std::string_view format,
                                                       std::uint64_t version);

}  // namespace ordermoe::planning
