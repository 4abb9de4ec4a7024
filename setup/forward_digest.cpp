#include "setup/forward_digest.hpp"

#include <unistd.h>

#include <fmt/format.h>

#include <cstdint>
#include <vector>

#include "config/devices.hpp"
#include "config/files.hpp"
#include "config/random.hpp"
#include "model/checkpoint/random_model.hpp"
#include "model/reference.hpp"
#include "model/sampling.hpp"

namespace ordermoe::setup {

namespace {

/// Logits of a fixed text, and what is drawn from them, appended as bytes.
result<void> run(const std::filesystem::path& folder, precision kept, const std::string& device,
                 std::string& into) {
  model::load_options options;
  options.device = device;
  options.kv = model::kv_precision::bf16;
  options.expert_precision = options.dense_precision = kept;
  const auto loaded = model::transformer::load(folder, options);
  if (!loaded) return loaded.error();
  const auto vocab = (*loaded)->config().vocab_size;
  constexpr std::size_t n_ids = 24;
  std::vector<std::int32_t> ids;
  random_stream draws(1, 0x666f7277617264);
  for (std::size_t i = 0; i < n_ids; ++i)
    ids.push_back(static_cast<std::int32_t>(draws.below(vocab)));
  const auto logits = model::logits(**loaded, ids);
  if (!logits) return logits.error();
  into.append(reinterpret_cast<const char*>(logits->data()), logits->size() * sizeof(float));
  for (std::size_t i = 0; i < n_ids; ++i) {
    const auto id = model::sample(std::span(*logits).subspan(i * vocab, vocab), {0.8, 1}, 1, i);
    into.append(reinterpret_cast<const char*>(&id), sizeof(id));
  }
  return {};
}

}  // namespace

result<std::string> forward_digest(model::family kind, const std::filesystem::path& scratch,
                                   const std::string& device) {
  const auto folder = scratch / fmt::format("self-check-{}", ::getpid());
  std::error_code ignored;
  std::filesystem::create_directories(scratch, ignored);
  std::filesystem::remove_all(folder, ignored);
  model::random_model_options options;
  options.shape = model::small_shape(kind);
  options.tokenizer = "none";
  std::string computed;
  result<void> done;
  if (auto written = model::write_random_model(folder, options); !written) done = written.error();
  for (const auto kept : {precision::stored, precision::bf16, precision::int8, precision::int4})
    if (done && (kept == precision::stored || device == kernels_device))
      done = run(folder, kept, device, computed);
  std::filesystem::remove_all(folder, ignored);
  if (!done) return at("a small model to compare processors by", done.error());
  return sha256_hex(computed);
}

}  // namespace ordermoe::setup
