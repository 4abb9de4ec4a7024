#include "model/reference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "model/forward.hpp"

namespace ordermoe::model {

namespace {

result<void> check_ids(const model_config& config, std::span<const std::int32_t> ids) {
  if (ids.empty()) return error{errc::out_of_range, "the prompt is empty; give at least one token"};
  if (ids.size() > config.max_context)
    return error{errc::out_of_range,
                 fmt::format("the prompt has {} tokens, the model's context is {}; shorten it",
                             ids.size(), config.max_context)};
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || static_cast<std::size_t>(ids[i]) >= config.vocab_size)
      return error{errc::out_of_range,
                   fmt::format("token {} of the prompt has the id {}, allowed are 0 to {}; use the "
                               "model's own tokenizer",
                               i, ids[i], config.vocab_size - 1)};
  return {};
}

/// Where the first of the stop strings begins, or npos.
std::size_t find_stop(const std::string& text, const std::vector<std::string>& stops) {
  std::size_t first = std::string::npos;
  for (const auto& stop : stops)
    if (!stop.empty()) first = std::min(first, text.find(stop));
  return first;
}

}  // namespace

const char* to_string(finish_reason reason) {
  switch (reason) {
    case finish_reason::length:
      return "length";
    case finish_reason::end_of_text:
      return "end_of_text";
    case finish_reason::stop_string:
      return "stop_string";
    case finish_reason::context:
      return "context";
  }
  return "?";
}

result<generation> generate(const transformer& model, const tokenizer* tokens,
                            std::span<const std::int32_t> prompt,
                            const generation_options& options) {
  const model_config& config = model.config();
  if (auto checked = check_ids(config, prompt); !checked) return checked.error();
  if (!options.stop_strings.empty() && tokens == nullptr)
    return error{errc::usage, "stop strings need a tokenizer; give one or leave them out"};

  const std::size_t width = config.hidden_size;
  const std::size_t room = config.max_context - prompt.size();
  const std::size_t most_new = std::min(options.max_new_tokens, room);
  // The first new token follows the prompt's last row, or the decoder's start behind the prompt.
  const std::size_t started = prompt.size() + (config.encoder_decoder ? 1 : 0);
  auto caches = make_caches(model, std::max(started, prompt.size() + most_new));
  std::vector<float> hidden(prompt.size() * width);
  std::vector<float> scores(config.vocab_size);
  // Only the last row is read afterwards.
  const auto compute = [&](std::size_t first, std::span<const std::int32_t> ids) {
    hidden.resize(ids.size() * width);
    model.embed(ids, hidden);
    for (std::size_t l = 0; l < config.n_layers; ++l)
      run_layer(model, layer_id{l}, caches[l], {first, prompt.size(), ids.size() - 1}, hidden);
  };

  generation made;
  made.reason = options.max_new_tokens <= room ? finish_reason::length : finish_reason::context;
  std::optional<streaming_decoder> decoder;
  // The caller keeps the tokenizer alive; this pointer shares no ownership.
  if (tokens != nullptr)
    decoder.emplace(std::shared_ptr<const tokenizer>(std::shared_ptr<void>(), tokens),
                    config.encoder_decoder ? std::span<const std::int32_t>() : prompt);
  compute(0, prompt);
  if (config.encoder_decoder)
    compute(prompt.size(), std::span(&config.encoder_decoder->decoder_start_id, 1));
  while (made.token_ids.size() < most_new) {
    const auto last = std::span<const float>(hidden).last(width);
    model.head(last, scores);
    const std::size_t position = started + made.token_ids.size();
    const std::int32_t next =
        sample(scores, options.sampling, options.request, position, made.token_ids);
    if (config.ends_text(next)) {
      made.reason = finish_reason::end_of_text;
      break;
    }
    made.token_ids.push_back(next);
    if (decoder) made.text += decoder->push(next);
    if (find_stop(made.text, options.stop_strings) != std::string::npos) {
      made.reason = finish_reason::stop_string;
      break;
    }
    if (made.token_ids.size() < most_new) compute(position, std::span(&next, 1));
  }
  if (decoder) made.text += decoder->finish();
  const std::size_t stop = find_stop(made.text, options.stop_strings);
  if (stop != std::string::npos) {
    made.reason = finish_reason::stop_string;
    made.text.resize(stop);
  }
  made.final_hidden.assign(hidden.end() - static_cast<std::ptrdiff_t>(width), hidden.end());
  return made;
}

namespace {

/// The hidden state of a whole sequence after the last layer, [ids.size(), hidden_size].
std::vector<float> pass(const transformer& model, std::span<const std::int32_t> ids,
                        std::size_t prompt, const slot_override& override_slots) {
  const model_config& config = model.config();
  std::vector<float> hidden(ids.size() * config.hidden_size);
  model.embed(ids, hidden);
  for (std::size_t l = 0; l < config.n_layers; ++l) {
    kv_cache cache = model.make_cache(layer_id{l}, ids.size());
    run_layer(model, layer_id{l}, cache, {0, prompt}, hidden, override_slots);
  }
  return hidden;
}

/// Logits of the rows from `first` on.
std::vector<float> logits_behind(const transformer& model, std::span<const float> hidden,
                                 std::size_t first) {
  const auto rows = hidden.subspan(first * model.config().hidden_size);
  std::vector<float> scores(rows.size() / model.config().hidden_size * model.config().vocab_size);
  model.head(rows, scores);
  return scores;
}

}  // namespace

result<std::vector<float>> logits(const transformer& model, std::span<const std::int32_t> ids,
                                  const slot_override& override_slots) {
  const model_config& config = model.config();
  if (auto checked = check_ids(config, ids); !checked) return checked.error();
  if (!config.encoder_decoder) return logits_behind(model, pass(model, ids, 0, override_slots), 0);
  std::vector<std::int32_t> decoder_ids{config.encoder_decoder->decoder_start_id};
  decoder_ids.insert(decoder_ids.end(), ids.begin(), ids.end() - 1);
  return logits(model, ids, decoder_ids, override_slots);
}

result<std::vector<float>> logits(const transformer& model, std::span<const std::int32_t> ids,
                                  std::span<const std::int32_t> decoder_ids,
                                  const slot_override& override_slots) {
  const model_config& config = model.config();
  if (!config.encoder_decoder)
    return error{errc::usage, fmt::format("{} has no encoder; leave the decoder's ids out",
                                          architecture_of(config.kind))};
  if (auto checked = check_ids(config, ids); !checked) return checked.error();
  if (auto checked = check_ids(config, decoder_ids); !checked)
    return at("the decoder's input", checked.error());
  std::vector<std::int32_t> all(ids.begin(), ids.end());
  all.insert(all.end(), decoder_ids.begin(), decoder_ids.end());
  if (auto checked = check_ids(config, all); !checked)
    return at("encoder and decoder together", checked.error());
  return logits_behind(model, pass(model, all, ids.size(), override_slots), ids.size());
}

result<std::vector<double>> token_losses(const transformer& model,
                                         std::span<const std::int32_t> ids,
                                         const slot_override& override_slots) {
  const model_config& config = model.config();
  if (auto checked = check_ids(config, ids); !checked) return checked.error();
  if (ids.size() == 1) return std::vector<double>{};
  const auto text = as_rows(config, ids, 1);
  return target_losses(model, text, pass(model, text.ids, text.prompt, override_slots));
}

}  // namespace ordermoe::model
