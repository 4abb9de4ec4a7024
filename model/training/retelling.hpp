#pragma once

#include <cstdint>

#include "model/training/corpus.hpp"

/// A second generator: the world and the words of the corpus, put together as none of its texts is.
/// Two operations in a row, facts of two towns in a sentence, journeys with a stop, records in
/// lists. No model was trained and no budget was tuned on any of it: it stands for what users ask
/// that is new to a model and not strange to it.
namespace ordermoe::training {

/// The index-th document; the six domains occur in the shares that the corpus has them in.
/// Deterministic in (seed, index) and the same on every machine. Keys are the texts themselves.
document retold_document(std::uint64_t seed, std::uint64_t index);

}  // namespace ordermoe::training
