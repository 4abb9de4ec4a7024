#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "config/error.hpp"

namespace ordermoe::training {

/// The files of data/eval, name and content, from the synthetic corpus. Deterministic in the seed.
///   held-out.txt     documents of the held-out split, an empty line between two; about 16,000
///                    tokens
///   calibration.txt  the same of the calibration split; about 60,000 tokens, of which the first
///                    24,576 share no item with the others
///   retold.txt       documents of the second generator (retelling.hpp); about 16,000 tokens
///   problems.jsonl   256 held-out arithmetic problems: {"prompt", "answer"}
///   prompts.jsonl    96 beginnings of held-out documents, 20 to 60 tokens each, every domain in
///                    turn: {"prompt"}
struct evaluation_file {
  std::string name;
  std::string content;
};
result<std::vector<evaluation_file>> evaluation_files(std::uint64_t seed);

/// Writes them into a folder, which is made. Errors: io.
result<void> write_evaluation_data(const std::filesystem::path& folder, std::uint64_t seed);

}  // namespace ordermoe::training
