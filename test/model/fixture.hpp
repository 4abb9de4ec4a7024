#pragma once

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "config/files.hpp"
#include "config/random.hpp"
#include "model/architecture/tensor_plan.hpp"
#include "model/checkpoint/random_model.hpp"
#include "model/reference.hpp"
#include "model/text/tokenizer.hpp"
#include "model/transformer.hpp"

/// What the tests of this folder share: the tiny checkpoint, seeded numbers, folders that vanish.
namespace fixture {

namespace fs = std::filesystem;

inline const fs::path tiny = fs::path(ORDERMOE_TEST_DATA) / "mixtral-tiny";
inline const fs::path other_tokenizer = fs::path(ORDERMOE_TEST_DATA) / "tokenizer-other";

template <class T>
T need(ordermoe::result<T> outcome) {
  if (!outcome) BOOST_FAIL(outcome.error().message);
  return std::move(*outcome);
}

inline std::shared_ptr<const ordermoe::model::transformer> tiny_model() {
  static const auto model = need(ordermoe::model::transformer::load(tiny));
  return model;
}

inline std::shared_ptr<const ordermoe::model::tokenizer> tiny_tokenizer() {
  static const auto tokens = need(ordermoe::model::tokenizer::load(tiny));
  return tokens;
}

inline std::vector<float> numbers(std::size_t n, std::uint64_t seed, double scale = 1.0) {
  ordermoe::random_stream random(seed);
  std::vector<float> made(n);
  for (float& x : made) x = static_cast<float>(random.uniform(-scale, scale));
  return made;
}

/// Equal bits: -0 and +0 differ, and a NaN equals itself.
inline bool same_bits(const float* a, const float* b, std::size_t n) {
  return std::memcmp(a, b, n * sizeof(float)) == 0;
}

/// An empty folder that is removed at the end.
class scratch_folder {
 public:
  scratch_folder() {
    std::string pattern = (fs::temp_directory_path() / "ordermoe-test-XXXXXX").string();
    BOOST_REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~scratch_folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;

  const fs::path& path() const { return path_; }
  fs::path write(const std::string& name, std::string_view bytes) const {
    const auto written = ordermoe::write_file(path_ / name, bytes);
    if (!written) BOOST_FAIL(written.error().message);
    return path_ / name;
  }

 private:
  fs::path path_;
};

/// A small random model of a family, to be written; it has the tiny checkpoint's tokenizer.
inline ordermoe::model::random_model_options small_model(ordermoe::model::family kind,
                                                         std::uint64_t seed = 1) {
  static const auto tokenizer = need(ordermoe::read_file(tiny / "tokenizer.model"));
  ordermoe::model::random_model_options options;
  options.shape = ordermoe::model::small_shape(kind);
  options.seed = seed;
  options.tokenizer = tokenizer;
  return options;
}

/// The folder of a small random model with a shared expert, in several files, made once.
inline const fs::path& sharded_qwen() {
  static const scratch_folder place;
  static const auto folder = [] {
    auto options = small_model(ordermoe::model::family::qwen2_moe);
    options.shard_bytes = 300'000;
    auto made = place.path() / "model";
    need(ordermoe::model::write_random_model(made, options));
    return made;
  }();
  return folder;
}

/// The reference's logits for 24 tokens of a small model.
inline std::vector<float> logits_of(const fs::path& folder,
                                    const ordermoe::model::load_options& options = {}) {
  const auto model = need(ordermoe::model::transformer::load(folder, options));
  std::vector<std::int32_t> ids(24);
  std::iota(ids.begin(), ids.end(), 100);
  return need(ordermoe::model::logits(*model, ids));
}

/// Fails unless the result is an error of this code whose message holds every one of the words.
template <class T>
void check_error(const ordermoe::result<T>& outcome, ordermoe::errc code,
                 const std::vector<std::string>& words) {
  BOOST_REQUIRE_MESSAGE(!outcome.has_value(), "expected an error");
  BOOST_CHECK_MESSAGE(outcome.error().code == code, ordermoe::describe(outcome.error().code)
                                                        << " in: " << outcome.error().message);
  for (const auto& word : words)
    BOOST_CHECK_MESSAGE(outcome.error().message.find(word) != std::string::npos,
                        "'" << word << "' is not in: " << outcome.error().message);
}

}  // namespace fixture
