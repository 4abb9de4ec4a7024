#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/random.hpp"

/// The synthetic corpus of the bundled models: six domains in one invented world, without end and
/// without files.
///
/// Goals: experts find something to specialise on; there are more facts than a small dense model
/// can keep; whether a problem was solved can be checked exactly; training, calibration and
/// held-out text are disjoint by construction. A document is made of items (one problem, one
/// sentence about a town, one record ...). Every item has a key, and split_of(key) alone says which
/// split may contain it, so no item of one split can occur in another. The facts of the world
/// (which river a town lies on) are shared: held-out text asks for known facts in sentences never
/// seen.
namespace ordermoe::training {

enum class split { train, calibration, eval };
const char* to_string(split part);

/// 5 % of all keys are held out, 5 % are for calibration, by a hash of the key.
split split_of(std::string_view key);

enum class domain { arithmetic, atlas, stories, code, records, calendar };
inline constexpr std::size_t n_domains = 6;
const char* to_string(domain what);
/// In the shares that documents of the corpus have.
domain drawn_domain(random_stream& random);

/// One indivisible piece of text and what decides its split.
struct corpus_item {
  std::string key;
  std::string text;
};

struct document {
  domain what = domain::arithmetic;
  std::vector<corpus_item> items;
  std::string text() const;
};

/// A document of the split. Deterministic in (seed, index) and the same on every machine.
document make_document(split part, std::uint64_t seed, std::uint64_t index);
document make_document(split part, domain what, random_stream& random);

/// Column addition with every carry written out.
std::string worked_sum(int a, int b);
/// Column subtraction with every borrow written out; a >= b.
std::string worked_difference(int a, int b);
/// Units and tens times a one-digit number, and their sum; 0 <= a < 100, 0 <= b < 10.
std::string worked_product(int a, int b);

/// An arithmetic problem: the model continues `prompt`, and final_answer of what it wrote should
/// equal `answer`.
struct problem {
  std::string key;
  std::string prompt;
  std::string worked;  ///< The worked solution that completes the prompt, with its newline.
  std::string answer;
};
problem make_problem(split part, random_stream& random);

/// The number behind the last "answer " on the first line of a generated solution; nothing where
/// there is none.
std::optional<std::string> final_answer(std::string_view generated);

}  // namespace ordermoe::training
