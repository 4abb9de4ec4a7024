#pragma once

#include <string>

#include "model/architecture/config_fields.hpp"
#include "model/architecture/model_config.hpp"

/// config.json of SwitchTransformersForConditionalGeneration, whose fields are T5's and not those
/// of the decoders.
namespace ordermoe::model {

/// Everything but `kind`, which is known. Errors stay in `fields`.
///
/// Sparse are the blocks whose number, counted from 0, is 1 modulo (blocks / sparse blocks) of
/// their stack; all where that is 1. Positions have no end in this family: max_context is
/// n_positions for the prompt and as many for the answer, n_positions being 512 where the file
/// says nothing, as in T5.
void read_switch_config(field_reader& fields, model_config& config);

/// The config.json text for this shape, keys in a stable order.
std::string switch_config_json(const model_config& config);

}  // namespace ordermoe::model
