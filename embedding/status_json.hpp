#pragma once

#include <string>

#include "actors/protocol/status.hpp"

namespace ordermoe::embedding {

/// What a service of all servers says of itself: a JSON object (docs/EMBEDDING.md).
std::string status_json(const actors::service_status& status);

}  // namespace ordermoe::embedding
