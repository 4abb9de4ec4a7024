#include "actors/device/device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <exception>
#include <utility>

namespace ordermoe::actors {

const char* to_string(work_kind kind) {
  switch (kind) {
    case work_kind::attend:
      return "attend";
    case work_kind::expert:
      return "expert";
    case work_kind::head:
      return "head";
  }
  return "unknown";
}

void batch::count_cost(const cost_profile& costs, std::int64_t expert_bytes,
                       std::size_t hidden_size) {
  rows = flops = bytes_read = 0;
  switch (kind) {
    case work_kind::attend:
      bytes_read = costs.attention_bytes;
      for (const auto& work : attends) {
        const auto n = static_cast<std::int64_t>(work.n);
        const auto first = static_cast<std::int64_t>(work.first);
        rows += n;
        flops += n * costs.attention_flops;
        flops += costs.attention_flops_per_context * (n * first + n * (n + 1) / 2);
        bytes_read += (first + n) * costs.kv_row_bytes;
      }
      break;
    case work_kind::expert:
      for (const auto& share : experts) rows += share.n;
      flops = rows * costs.expert_flops;
      bytes_read = expert_bytes;
      break;
    case work_kind::head:
      for (const auto& work : heads)
        rows += static_cast<std::int64_t>(work.hidden.size() / hidden_size);
      flops = rows * costs.head_flops;
      bytes_read = costs.head_bytes;
      break;
  }
}

std::size_t batch::waiting_rows() const {
  std::size_t n = heads.size();
  for (const auto& work : attends) n += work.n;
  for (const auto& share : experts) n += share.n;
  return n;
}

void batch::clear() {
  attends.clear();
  experts.clear();
  heads.clear();
  attended.clear();
  head_results.clear();
  complete.clear();
  unserved.clear();
  failed.reset();
  overtaken = 0;
  streamed.content.blocks.clear();
  streamed.access.clear();
  streamed.epochs.clear();
}

batch& batch_queue::joinable(work_kind kind, std::uint32_t layer, std::uint32_t expert) {
  const auto index = index_of(kind, layer, expert);
  if (index >= open_.size()) open_.resize(index_of(work_kind::head, 0, 0) + 1, nullptr);
  auto& found = open_[index];
  if (found == nullptr) {
    if (spare_.empty()) {
      waiting_.push_back(std::make_shared<batch>());
    } else {
      waiting_.push_back(std::move(spare_.back()));
      spare_.pop_back();
    }
    found = waiting_.back().get();
    found->kind = kind;
    found->layer = layer;
    found->expert = expert;
  }
  return *found;
}

std::size_t batch_queue::next() const {
  const auto most_overtaken = index_of(work_kind::head, 0, 0) + 1;
  if (waiting_.front()->overtaken >= most_overtaken) return 0;
  std::size_t farthest = 0;
  for (const auto& each : waiting_) farthest = std::max(farthest, step_of(*each));
  const auto is_at = [this](std::size_t step) {
    return [this, step](const std::shared_ptr<batch>& each) { return step_of(*each) == step; };
  };
  auto chosen = waiting_.end();
  if (farthest > 0) chosen = std::ranges::find_if(waiting_, is_at(farthest - 1));
  if (chosen == waiting_.end()) chosen = std::ranges::find_if(waiting_, is_at(farthest));
  return static_cast<std::size_t>(chosen - waiting_.begin());
}

std::shared_ptr<batch> batch_queue::take() {
  if (waiting_.empty()) return nullptr;
  const auto at = next();
  auto taken = std::move(waiting_[at]);
  for (std::size_t i = 0; i < at; ++i) waiting_[i]->overtaken += 1;
  waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(at));
  open_[index_of(taken->kind, taken->layer, taken->expert)] = nullptr;
  return taken;
}

void batch_queue::recycle(std::shared_ptr<batch> done) {
  constexpr std::size_t most_spare = 16;
  if (done.use_count() > 1 || spare_.size() >= most_spare) return;
  done->clear();
  spare_.push_back(std::move(done));
}

void batch_queue::drop(std::uint64_t request) {
  std::erase_if(waiting_, [&](const std::shared_ptr<batch>& each) {
    const auto erased = std::erase_if(
        each->attends, [&](const attend_work& work) { return work.terms.request == request; });
    if (erased == 0 || !each->attends.empty()) return false;
    open_[index_of(each->kind, each->layer, each->expert)] = nullptr;
    return true;
  });
}

void device::run(batch& content) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    compute(content);
  } catch (const std::exception& problem) {
    fail(content, {errc::failed, problem.what()});
    // Their rows count as present, and are not.
    for (const auto& work : content.attends) incomplete_.insert(work.terms.request);
  }
  content.tensor_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin)
          .count();
}

void device::compute(batch& content) {
  switch (content.kind) {
    case work_kind::attend:
      set_apart_incomplete(content);
      return content.attends.empty() ? void() : run_attention(content);
    case work_kind::expert:
      return run_experts(content);
    case work_kind::head:
      return run_heads(content);
  }
}

void device::fail(batch& content, error what) {
  content.failed = std::move(what);
  content.attended.clear();
  content.head_results.clear();
  content.streamed.content.blocks.clear();
  content.streamed.access.clear();
  content.streamed.epochs.clear();
  for (auto& share : content.experts) {
    if (!share.call) continue;
    share.call->failed = content.failed;
    if (--share.call->batches_left == 0) content.complete.push_back(std::move(share.call));
  }
}

void device::store(const store_kv& content) {
  for (const auto& block : content.content.blocks) {
    try {
      auto& target = cache(block.request, content.content.layer, content.capacity);
      // A cache is as large as whoever came first said; its server reserved what the rows fit into.
      if (std::size_t{block.first} + block.n > target.capacity()) {
        incomplete_.insert(block.request);
        continue;
      }
      const auto width = target.row_bytes();
      for (std::size_t row = 0; row < block.n; ++row)
        target.put_bytes(block.first + row, std::span(block.rows).subspan(row * width, width));
    } catch (const std::exception&) {
      incomplete_.insert(block.request);
    }
  }
}

void device::drop(std::uint64_t request) {
  caches_.erase(request);
  incomplete_.erase(request);
}

namespace {

/// Of a request's cache, as its terms say.
std::size_t capacity_of(const wire::request_terms& terms) {
  return std::size_t{terms.prompt_tokens} + std::max(1u, terms.max_new_tokens);
}

}  // namespace

/// Whether the rows are within the cache of their request, which is as large as whoever came first said, those before them are
/// there, or come in this batch, and those that an encoder reads are all of a prompt.
bool device::can_attend(const batch& content, const attend_work& work) const {
  const auto& shape = model_->config();
  if (shape.encoder_decoder) {
    const bool is_whole_prompt = work.first == 0 && work.n == work.terms.prompt_tokens;
    const bool is_decoded =
        work.first >= work.terms.prompt_tokens && !shape.of_encoder(layer_id{content.layer});
    if (!is_whole_prompt && !is_decoded) return false;
  }
  auto capacity = capacity_of(work.terms);
  std::size_t there = 0;
  if (const auto known = caches_.find(work.terms.request); known != caches_.end()) {
    const auto& made = known->second[content.layer];
    if (made.capacity() > 0) capacity = made.capacity();
    there = made.contiguous();
  }
  if (std::size_t{work.first} + work.n > capacity) return false;
  for (const auto& before : content.attends) {
    if (work.first <= there || &before == &work) break;
    if (before.terms.request == work.terms.request && before.first <= there)
      there = std::max(there, std::size_t{before.first} + before.n);
  }
  return work.first <= there;
}

/// Takes out the work of requests that lost rows, or whose rows are not as attention needs them.
void device::set_apart_incomplete(batch& content) {
  for (const auto& work : content.attends)
    if (!can_attend(content, work)) incomplete_.insert(work.terms.request);
  if (incomplete_.empty()) return;
  std::erase_if(content.attends, [&](attend_work& work) {
    if (!incomplete_.contains(work.terms.request)) return false;
    content.unserved.push_back(
        {work.token,
         {errc::failed, "its KV rows are not as attention needs them, or could not be kept"}});
    return true;
  });
}

model::kv_cache& device::cache(std::uint64_t request, std::uint32_t layer, std::size_t capacity) {
  auto& layers = caches_[request];
  const auto& shape = model_->config();
  // Rows of all layers have one size, as they have on the wire.
  const auto make = [&](std::size_t rows) {
    return model::kv_cache(rows, shape.kv_row_size(), model_->kv(), shape.head_dim);
  };
  if (layers.empty()) {
    layers.reserve(shape.n_layers);
    for (std::size_t l = 0; l < shape.n_layers; ++l) layers.push_back(make(0));
  }
  auto& found = layers[layer];
  if (found.capacity() == 0) found = make(capacity);
  return found;
}

bool device::is_unread(const wire::request_terms& terms, std::size_t layer,
                       std::size_t position) const {
  return leaves_unread_ && layer + 1 == model_->config().n_layers && terms.score == 0 &&
         position + 1 < terms.given_tokens;
}

void device::run_attention(batch& content) {
  const auto& shape = model_->config();
  const auto width = shape.hidden_size;
  std::vector<float> hidden;
  std::vector<model::attention_row> rows;
  for (auto& work : content.attends) {
    const std::size_t n = work.n;
    const auto offset = hidden.size();
    if (work.hidden.empty()) {
      hidden.resize(offset + n * width);
      model_->embed(work.ids, std::span(hidden).subspan(offset));
    } else {
      hidden.insert(hidden.end(), work.hidden.begin(), work.hidden.end());
    }
    auto& store = cache(work.terms.request, content.layer, capacity_of(work.terms));
    for (std::size_t i = 0; i < n; ++i)
      rows.push_back({&store, work.first + i, work.terms.prompt_tokens,
                      is_unread(work.terms, content.layer, work.first + i)});
  }
  const auto total = rows.size();
  std::vector<float> normed(total * width);
  std::vector<float> logits(total * shape.n_experts);
  const layer_id layer{content.layer};
  model_->attend(layer, rows, hidden);
  model_->route(layer, rows, hidden, normed, logits);

  std::size_t row = 0;
  content.attended.reserve(content.attends.size());
  for (auto& work : content.attends) {
    const std::size_t n = work.n;
    const auto slice = [&](const std::vector<float>& from, std::size_t columns) {
      const auto begin = from.begin() + static_cast<std::ptrdiff_t>(row * columns);
      return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(n * columns));
    };
    const auto is_finite = [&](const std::vector<float>& of) {
      return all_finite(std::span(of).subspan(row * width, n * width));
    };
    if (!is_finite(hidden) || !is_finite(normed)) {
      content.unserved.push_back(
          {work.token,
           {errc::failed, fmt::format("the attention of layer {} gives numbers that are not finite",
                                      content.layer)}});
      row += n;
      continue;
    }
    // Its room is used again.
    auto row_hidden = std::move(work.hidden);
    row_hidden.assign(hidden.begin() + static_cast<std::ptrdiff_t>(row * width),
                      hidden.begin() + static_cast<std::ptrdiff_t>((row + n) * width));
    content.attended.push_back(
        {work.token,
         {work.terms.request, work.terms.attempt, work.terms.access, work.first},
         work.epoch,
         work.terms.access,
         content.layer,
         std::move(row_hidden),
         slice(normed, width),
         slice(logits, shape.n_experts),
         std::move(work.allowance),
         work.pool,
         work.tokens_left,
         work.terms.unread_before(),
         work.terms.decodes(work.first),
         std::move(work.chosen),
         std::move(work.lent)});
    if (work.stream) {
      wire::kv_block block{work.terms.request, work.terms.attempt, work.first, work.n, {}};
      const auto* cache = rows[row].cache;
      const auto row_bytes = cache->row_bytes();
      block.rows.resize(n * row_bytes);
      for (std::size_t i = 0; i < n; ++i)
        cache->read_bytes(work.first + i, std::span(block.rows).subspan(i * row_bytes, row_bytes));
      content.streamed.content.layer = content.layer;
      content.streamed.content.blocks.push_back(std::move(block));
      content.streamed.access.push_back(work.terms.access);
      content.streamed.epochs.push_back(work.epoch);
    }
    row += n;
  }
}

void device::run_experts(batch& content) {
  const auto width = model_->config().hidden_size;
  std::vector<float> x, y;
  x.reserve(static_cast<std::size_t>(content.rows) * width);
  for (const auto& share : content.experts) {
    const auto& call = share.call->work.call;
    for (const auto& item : call.items) {
      if (item.expert != content.expert) continue;
      const auto begin = call.x.begin() + static_cast<std::ptrdiff_t>(item.x_row * width);
      x.insert(x.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
    }
  }
  y.resize(x.size());
  model_->run_expert(layer_id{content.layer}, expert_id{content.expert}, x, y);
  std::size_t row = 0;
  for (auto& share : content.experts) {
    const auto& items = share.call->work.call.items;
    for (std::size_t item = 0; item < items.size(); ++item) {
      if (items[item].expert != content.expert) continue;
      std::copy_n(y.begin() + static_cast<std::ptrdiff_t>(row * width), width,
                  share.call->outputs.begin() + static_cast<std::ptrdiff_t>(item * width));
      ++row;
    }
    if (--share.call->batches_left == 0) content.complete.push_back(std::move(share.call));
  }
}

/// Room for logits that nobody reads any more, or new room: what is new has to come from the system page by page.
std::shared_ptr<std::vector<float>> device::logit_room() {
  constexpr std::size_t most_kept = 3;
  for (const auto& each : logit_rooms_)
    if (each.use_count() == 1) {
      // Whoever gave up the last other share has read what it shows.
      std::atomic_thread_fence(std::memory_order_acquire);
      return each;
    }
  auto made = std::make_shared<std::vector<float>>();
  if (logit_rooms_.size() < most_kept) logit_rooms_.push_back(made);
  return made;
}

void device::run_heads(batch& content) {
  const auto width = model_->config().hidden_size;
  const auto vocabulary = model_->config().vocab_size;
  std::vector<float> hidden;
  for (const auto& work : content.heads)
    hidden.insert(hidden.end(), work.hidden.begin(), work.hidden.end());
  const auto logits = logit_room();
  const std::size_t n = hidden.size() / width * vocabulary;
  if (logits->size() < n) logits->resize(n);
  model_->head(hidden, std::span(*logits).first(n));
  std::size_t first = 0;
  for (auto& work : content.heads) {
    const auto count = work.hidden.size() / width * vocabulary;
    content.head_results.push_back({logits, first, count, std::move(work.lent)});
    first += count;
  }
}

/// By exponents, so that compilers find vector instructions for it.
bool all_finite(std::span<const float> numbers) {
  constexpr std::uint32_t exponent = 0x7f800000u;
  std::uint32_t any = 0;
  for (const float number : numbers)
    any |= (std::bit_cast<std::uint32_t>(number) & exponent) == exponent;
  return any == 0;
}

wire::expert_output failed_output(const wire::expert_call& call, const error& why) {
  wire::expert_output output;
  output.token = call.token;
  output.layer = call.layer;
  for (const auto& item : call.items) {
    const bool whole = call.whole[item.x_row] != 0;
    const wire::output_row row{call.rows[item.x_row], whole ? wire::whole_row : item.slot};
    if (output.rows.empty() || output.rows.back() != row) output.rows.push_back(row);
  }
  output.code = static_cast<std::uint8_t>(why.code);
  output.problem =
      why.message.empty() ? "no reason given" : why.message.substr(0, wire::most_problem_bytes);
  return output;
}

wire::expert_output assemble_output(const running_call& running, std::size_t hidden_size) {
  const auto& call = running.work.call;
  wire::expert_output output;
  output.token = call.token;
  output.layer = call.layer;
  // A row comes back whole, or once for each of its items.
  std::size_t n_rows = 0;
  for (const auto& each : call.items) n_rows += call.whole[each.x_row] ? 0 : 1;
  for (const auto whole : call.whole) n_rows += whole ? 1 : 0;
  output.rows.reserve(n_rows);
  output.y.reserve(n_rows * hidden_size);
  std::size_t item = 0;
  std::vector<float> gates;
  std::vector<const float*> parts;
  for (std::uint32_t x_row = 0; x_row < call.rows.size(); ++x_row) {
    gates.clear();
    parts.clear();
    for (; item < call.items.size() && call.items[item].x_row == x_row; ++item) {
      const float* part = running.outputs.data() + item * hidden_size;
      if (call.whole[x_row]) {
        gates.push_back(call.items[item].gate);
        parts.push_back(part);
      } else {
        output.rows.push_back({call.rows[x_row], call.items[item].slot});
        output.y.insert(output.y.end(), part, part + hidden_size);
      }
    }
    if (!call.whole[x_row]) continue;
    const auto offset = output.y.size();
    output.rows.push_back({call.rows[x_row], wire::whole_row});
    output.y.resize(offset + hidden_size);
    model::weigh_slots(std::span(output.y).subspan(offset), gates, parts);
  }
  return output;
}

}  // namespace ordermoe::actors
