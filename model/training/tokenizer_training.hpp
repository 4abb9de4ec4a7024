#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "config/error.hpp"

namespace ordermoe::training {

struct tokenizer_options {
  /// Upper bound: 259 control and byte pieces, the characters, and as many merges as fit and occur
  /// at least twice.
  std::size_t vocab_size = 768;
};

/// Trains a byte-pair encoding with byte fallback on lines of text and returns the bytes of a
/// SentencePiece tokenizer.model. Text is not normalised and spaces are kept; digits stay single;
/// pieces cross neither a space nor a change between letters and signs; unk 0, bos 1, eos 2.
/// Deterministic. Written here because Debian's SentencePiece and LibTorch bring two protobufs that
/// one program cannot hold.
/// Error: out_of_range where there is no text.
result<std::string> train_tokenizer(const std::vector<std::string>& lines,
                                    const tokenizer_options& options = {});

}  // namespace ordermoe::training
