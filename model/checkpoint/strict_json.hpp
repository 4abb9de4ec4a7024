#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "config/error.hpp"

namespace ordermoe::model {

/// Parses an object of JSON in which no object may name a key twice (the second would silently win otherwise), in time that grows with
/// its length. redo: what to do about bad text. Error: malformed, naming the place.
result<nlohmann::json> parse_strict(std::string_view text, const std::string& place,
                                    std::string_view redo);

}  // namespace ordermoe::model
