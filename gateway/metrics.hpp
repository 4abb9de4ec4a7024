#pragma once

#include <string>

#include "gateway/figures.hpp"
#include "gateway/gateway.hpp"

namespace ordermoe::gateway {

/// What a gateway counted and what its servers say, as Prometheus reads it. Names begin with vllm: where they mean what vLLM's
/// do, the others with ordermoe_. `servers`: as backend::servers() has it; of a figure that a server does not tell there is no line.
std::string metrics_text(const gateway_figures& figures, const served_model& served,
                         const net::http_figures& http, const std::string& servers);

}  // namespace ordermoe::gateway
