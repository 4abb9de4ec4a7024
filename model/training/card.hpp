#pragma once

#include <string>

#include "model/training/train.hpp"

namespace ordermoe::training {

/// The text of CARD.md: what the model is, how it was made, what was measured.
std::string card_text(const train_options& options, const train_report& report);

}  // namespace ordermoe::training
