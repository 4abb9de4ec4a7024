#pragma once

#include <memory>

#include "actors/context.hpp"
#include "actors/service/service.hpp"

/// What a service's actors share, from its options.
namespace ordermoe::actors {

std::shared_ptr<service_context> make_context(const service_options& options);

/// Whether a service can run with these options, and the context that was made of them. Errors: out_of_range, unsupported, mismatch, and those of
/// check_kv_fits.
result<void> check_options(const service_options& options, const service_context& context);

}  // namespace ordermoe::actors
