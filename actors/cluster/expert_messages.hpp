#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"
#include "config/precision.hpp"

/// Rows that a client has experts run on, and what comes back: what calibrating a model needs that no process holds.
///
/// Bytes, not JSON: nearly all of a message are fp32 numbers, which stay as they are, bit for bit. Little-endian.
///
///   ask     ref u64 | layer u32 | expert u32 | kept u32 | n u32 | n numbers
///   answer  ref u64 | code u32 | bytes of text u32 | text | n u32 | n numbers
namespace ordermoe::actors {

/// Of numbers in one message at most. What is more goes in several.
inline constexpr std::size_t most_row_bytes = std::size_t{1} << 20;
/// Of asks of one client that wait for their answers, and of all that wait at one node; a node refuses what is beyond.
inline constexpr std::size_t most_asks = 16, most_waiting_asks = 128;

struct expert_ask {
  std::uint64_t ref = 0;  ///< The asker's own number.
  std::uint32_t layer = 0, expert = 0;
  precision kept = precision::stored;  ///< stored, int8 or int4: how the expert is kept that runs.
  std::vector<float> rows;             ///< [n, hidden_size] normed hidden states
};

struct expert_answer {
  std::uint64_t ref = 0;
  errc code = errc::failed;
  std::string problem;      ///< Empty: it ran.
  std::vector<float> rows;  ///< [n, hidden_size] outputs
};

std::string encode(const expert_ask& ask);
std::string encode(const expert_answer& answer);
// Errors: malformed, saying what was found and what is expected.
result<expert_ask> decode_expert_ask(std::string_view bytes);
result<expert_answer> decode_expert_answer(std::string_view bytes);

}  // namespace ordermoe::actors
