#include "net/wire/codec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstring>
#include <functional>
#include <type_traits>

namespace ordermoe::wire {

namespace {

static_assert(std::endian::native == std::endian::little,
              "frames are little-endian and copied as they are");

template <class T>
concept number = std::integral<T> || std::floating_point<T> || std::is_enum_v<T>;

/// Counts the bytes that a writer would write, so that a frame is allocated once.
class sizer {
 public:
  template <class... Fields>
  void operator()(const Fields&... fields) {
    (add(fields), ...);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  template <number T>
  void add(const T&) {
    bytes_ += sizeof(T);
  }
  template <number T>
  void add(const std::vector<T>& values) {
    bytes_ += sizeof(std::uint32_t) + values.size() * sizeof(T);
  }
  template <class T>
  void add(const std::vector<T>& values) {
    bytes_ += sizeof(std::uint32_t);
    for (const auto& value : values) add(value);
  }
  void add(const std::string& text) { bytes_ += sizeof(std::uint32_t) + text.size(); }
  template <class T>
  void add(const T& value) {
    fields(*this, const_cast<T&>(value));
  }
  std::size_t bytes_ = 0;
};

/// Bytes of a message whose vectors are empty.
template <class T>
std::size_t least_size() {
  sizer size;
  size(T{});
  return size.bytes();
}

class writer {
 public:
  explicit writer(std::size_t size) { bytes_.reserve(size); }

  template <class... Fields>
  void operator()(const Fields&... fields) {
    (write(fields), ...);
  }
  std::string take() { return std::move(bytes_); }

 private:
  template <number T>
  void write(const T& value) {
    append(&value, sizeof value);
  }
  template <number T>
  void write(const std::vector<T>& values) {
    write(static_cast<std::uint32_t>(values.size()));
    append(values.data(), values.size() * sizeof(T));
  }
  template <class T>
  void write(const std::vector<T>& values) {
    write(static_cast<std::uint32_t>(values.size()));
    for (const auto& value : values) write(value);
  }
  void write(const std::string& text) {
    write(static_cast<std::uint32_t>(text.size()));
    append(text.data(), text.size());
  }
  template <class T>
  void write(const T& value) {
    fields(*this, const_cast<T&>(value));
  }
  void append(const void* data, std::size_t size) {
    if (size != 0) bytes_.append(static_cast<const char*>(data), size);
  }
  std::string bytes_;
};

class reader {
 public:
  explicit reader(const std::string& bytes) : bytes_(bytes) {}

  template <class... Fields>
  void operator()(Fields&... fields) {
    (read(fields), ...);
  }
  bool failed() const { return failed_; }
  std::size_t position() const { return position_; }
  bool at_end() const { return position_ == bytes_.size(); }

 private:
  template <number T>
  void read(T& value) {
    copy(&value, sizeof value);
  }
  template <number T>
  void read(std::vector<T>& values) {
    const auto n = count(sizeof(T));
    values.resize(n);
    copy(values.data(), n * sizeof(T));
  }
  template <class T>
  void read(std::vector<T>& values) {
    static const std::size_t least = least_size<T>();
    values.resize(count(least));
    for (auto& value : values) {
      read(value);
      if (failed_) return;
    }
  }
  void read(std::string& text) {
    text.resize(count(1));
    copy(text.data(), text.size());
  }
  template <class T>
  void read(T& value) {
    fields(*this, value);
  }
  /// A size that the rest of the frame can hold, at `element` bytes or more each.
  std::size_t count(std::size_t element) {
    std::uint32_t n = 0;
    read(n);
    if (failed_ || n > (bytes_.size() - position_) / element) {
      failed_ = true;
      return 0;
    }
    return n;
  }
  void copy(void* target, std::size_t size) {
    if (failed_ || size > bytes_.size() - position_) {
      failed_ = true;
      return;
    }
    if (size != 0) std::memcpy(target, bytes_.data() + position_, size);
    position_ += size;
  }
  const std::string& bytes_;
  std::size_t position_ = 0;
  bool failed_ = false;
};

/// A byte with a flag in its lowest bit, and above it which parts follow a message that most are without: those have the
/// bytes that they would have anyway.
class flags_byte {
 public:
  flags_byte(std::uint8_t& flag, bool first, bool second)
      : flag_(flag), bits(static_cast<std::uint8_t>(flag | (first ? 2 : 0) | (second ? 4 : 0))) {}
  flags_byte(std::uint8_t& flag, bool first, bool second, bool third)
      : flags_byte(flag, first, second) {
    known_ = 2 | 4 | 8;
    if (third) bits = static_cast<std::uint8_t>(bits | 8);
  }
  bool has_first() const { return (bits & 2) != 0; }
  bool has_second() const { return (bits & 4) != 0; }
  bool has_third() const { return (bits & known_ & 8) != 0; }
  /// Once it was read; a message that is written stays untouched. Bits that mean nothing stay in the flag, which is then
  /// none.
  void set_flag() {
    const auto flag = static_cast<std::uint8_t>(bits & ~known_);
    if (flag_ != flag) flag_ = flag;
  }

 private:
  std::uint8_t& flag_;
  int known_ = 2 | 4;

 public:
  std::uint8_t bits;
};

template <class Archive>
void fields(Archive& a, sampling_rules& x) {
  a(x.top_p, x.top_k, x.presence_penalty, x.frequency_penalty, x.logprobs, x.bias_ids, x.bias,
    x.answered);
}
template <class Archive>
void fields(Archive& a, token_logprob& x) {
  a(x.id, x.logprob);
}
template <class Archive>
void fields(Archive& a, std::optional<ran_slots>& x) {
  if (!x) x.emplace();
  a((*x)[0], (*x)[1], (*x)[2], (*x)[3]);
}
template <class Archive>
void fields(Archive& a, executed_slot& x) {
  a(x.server, x.expert, x.gate);
}
template <class Archive>
void fields(Archive& a, token_state& x) {
  auto& of = x.terms;
  flags_byte flags(of.ignore_end_of_text, x.sampling.has_value(), x.ran.has_value(),
                   !x.chosen.empty());
  a(of.request, of.attempt, of.access, of.prompt_tokens, of.max_new_tokens, of.given_tokens,
    of.sampling_stream, of.sampling_seed, of.temperature, of.continue_in_place, of.score,
    flags.bits, x.first, x.layer, x.ids, x.forced, x.pool, x.allowance, x.spent, x.hidden,
    x.slots_of_row, x.slots);
  flags.set_flag();
  if (flags.has_first() && !x.sampling) x.sampling.emplace();
  if (flags.has_first()) a(*x.sampling);
  if (flags.has_second()) a(x.ran);
  if (flags.has_third()) a(x.chosen);
  // None where some are said to follow: the flag is none then, and the message is refused by it.
  if (flags.has_third() && x.chosen.empty() && (of.ignore_end_of_text & 8) == 0)
    of.ignore_end_of_text = static_cast<std::uint8_t>(of.ignore_end_of_text | 8);
}
template <class Archive>
void fields(Archive& a, token_key& x) {
  a(x.request, x.attempt, x.access, x.first);
}
template <class Archive>
void fields(Archive& a, call_item& x) {
  a(x.x_row, x.slot, x.expert, x.gate);
}
template <class Archive>
void fields(Archive& a, expert_call& x) {
  a(x.token, x.layer, x.reply_to, x.rows, x.whole, x.items, x.x);
}
template <class Archive>
void fields(Archive& a, output_row& x) {
  a(x.row, x.slot);
}
template <class Archive>
void fields(Archive& a, expert_output& x) {
  a(x.token, x.layer, x.rows, x.y, x.code, x.problem);
}
template <class Archive>
void fields(Archive& a, kv_block& x) {
  a(x.request, x.attempt, x.first, x.n, x.rows);
}
template <class Archive>
void fields(Archive& a, kv_rows& x) {
  a(x.layer, x.blocks);
}
template <class Archive>
void fields(Archive& a, progress_report& x) {
  flags_byte flags(x.last, !x.logprobs.empty(), x.ran.has_value());
  a(x.request, x.attempt, x.access, x.position, x.id, flags.bits, x.pool, x.spent, x.losses,
    x.hidden);
  flags.set_flag();
  if (flags.has_first()) a(x.logprobs);
  // None where some are said to follow: the flag is none then, and the message is refused by it.
  if (flags.has_first() && x.logprobs.empty() && (x.last & 2) == 0)
    x.last = static_cast<std::uint8_t>(x.last | 2);
  if (flags.has_second()) a(x.ran);
}
template <class Archive>
void fields(Archive& a, reservation& x) {
  a(x.request, x.attempt, x.ask, x.step, x.server, x.access, x.bytes, x.lease_ns);
}
template <class Archive>
void fields(Archive& a, load_report& x) {
  a(x.server, x.number, x.wait_ns, x.link_wait_ns);
}
template <class Archive>
void fields(Archive& a, link_measure& x) {
  a(x.latency_ns, x.bytes_per_s);
}
template <class Archive>
void fields(Archive& a, link_report& x) {
  a(x.server, x.number, x.links);
}
template <class Archive>
void fields(Archive& a, failure_report& x) {
  a(x.request, x.attempt, x.server, x.code, x.text);
}

template <class T>
frame make_frame(frame_kind kind, const T& message) {
  sizer size;
  size(message);
  writer out(size.bytes());
  out(message);
  frame content;
  content.kind = kind;
  content.bytes = out.take();
  return content;
}

/// `of`: whatever has a request and an attempt.
template <class Named>
void name(frame& content, const Named& of) {
  content.request = of.request;
  content.attempt = of.attempt;
}

template <class T, class Named>
frame make_frame(frame_kind kind, const T& message, const Named& of) {
  auto content = make_frame(kind, message);
  name(content, of);
  return content;
}

template <class T>
result<T> read_frame(const frame& content, frame_kind expected) {
  if (content.kind != expected)
    return error{errc::malformed, fmt::format("frame of kind {} where {} was expected",
                                              to_string(content.kind), to_string(expected))};
  T message;
  reader in(content.bytes);
  in(message);
  if (in.failed() || !in.at_end())
    return error{errc::malformed,
                 fmt::format("{} frame of {} bytes stops making sense at byte {}; the sender runs "
                             "another version or the link corrupts data",
                             to_string(expected), content.bytes.size(), in.position())};
  return message;
}

error bad_shape(frame_kind kind, const char* what) {
  return error{errc::malformed, fmt::format("{} frame: {}", to_string(kind), what)};
}

/// No infinity, no NaN. By exponents, so that compilers find vector instructions for it.
bool all_finite(const std::vector<float>& numbers) {
  constexpr std::uint32_t exponent = 0x7f800000u;
  std::uint32_t any = 0;
  for (const float number : numbers)
    any |= (std::bit_cast<std::uint32_t>(number) & exponent) == exponent;
  return any == 0;
}

}  // namespace

const char* to_string(frame_kind kind) {
  switch (kind) {
    case frame_kind::token:
      return "token";
    case frame_kind::call:
      return "call";
    case frame_kind::output:
      return "output";
    case frame_kind::kv:
      return "kv";
    case frame_kind::progress:
      return "progress";
    case frame_kind::reservation:
      return "reservation";
    case frame_kind::load:
      return "load";
    case frame_kind::failure:
      return "failure";
    case frame_kind::links:
      return "links";
  }
  return "unknown";
}

frame encode(const token_state& message) {
  auto content = make_frame(frame_kind::token, message, message.terms);
  if (!message.hidden.empty()) content.hidden_rows = static_cast<std::uint32_t>(message.ids.size());
  content.value_bytes = static_cast<std::int64_t>(message.hidden.size() * sizeof(float));
  content.uncharged_bytes = choice_bytes(message.chosen.size());
  return content;
}

std::int64_t choice_bytes(std::size_t n_chosen) {
  if (n_chosen == 0) return 0;
  return static_cast<std::int64_t>(sizeof(std::uint32_t) + n_chosen * sizeof(std::uint16_t));
}

frame encode(const expert_call& message) {
  auto content = make_frame(frame_kind::call, message, message.token);
  content.hidden_rows = static_cast<std::uint32_t>(message.rows.size());
  content.value_bytes = static_cast<std::int64_t>(message.x.size() * sizeof(float));
  return content;
}

frame encode(const expert_output& message) {
  auto content = make_frame(frame_kind::output, message, message.token);
  if (!message.y.empty()) content.hidden_rows = static_cast<std::uint32_t>(message.rows.size());
  content.value_bytes = static_cast<std::int64_t>(message.y.size() * sizeof(float));
  return content;
}

frame encode(const kv_rows& message) {
  auto content = make_frame(frame_kind::kv, message);
  if (!message.blocks.empty()) name(content, message.blocks.front());
  for (const auto& block : message.blocks) {
    content.kv_rows += block.n;
    content.value_bytes += static_cast<std::int64_t>(block.rows.size());
  }
  return content;
}

frame encode(const progress_report& message) {
  auto content = make_frame(frame_kind::progress, message, message);
  // Kept for whoever compares it; a cost profile charges nothing for it.
  content.value_bytes = static_cast<std::int64_t>(message.hidden.size() * sizeof(float));
  return content;
}
frame encode(const reservation& message) {
  return make_frame(frame_kind::reservation, message, message);
}
frame encode(const load_report& message) {
  return make_frame(frame_kind::load, message);
}
frame encode(const link_report& message) {
  return make_frame(frame_kind::links, message);
}
frame encode(const failure_report& message) {
  return make_frame(frame_kind::failure, message, message);
}

result<token_state> decode_token(const frame& content, const wire_shape& shape) {
  auto message = read_frame<token_state>(content, frame_kind::token);
  if (!message) return message;
  const auto& state = *message;
  const auto n = state.ids.size();
  const auto refuse = [&](const char* what) { return bad_shape(content.kind, what); };
  if (n == 0) return refuse("no rows");
  if (!state.hidden.empty() && state.hidden.size() != n * shape.hidden_size)
    return refuse("hidden state and rows disagree");
  if (!all_finite(state.hidden)) return refuse("hidden state that is not finite");
  if (state.allowance.size() != n) return refuse("allowances and rows disagree");
  if (state.slots_of_row.empty() != state.slots.empty())
    return refuse("executed slots and rows disagree");
  if (state.sampling) {
    const auto& rules = *state.sampling;
    if (rules.bias_ids.size() != rules.bias.size()) return refuse("biases and their ids disagree");
    if (!all_finite(rules.bias) || !std::isfinite(rules.top_p) ||
        !std::isfinite(rules.presence_penalty) || !std::isfinite(rules.frequency_penalty))
      return refuse("a rule of sampling that is not finite");
  }
  if (!state.chosen.empty() && n != 1) return refuse("choices of several rows");
  if (std::ranges::adjacent_find(state.chosen, std::ranges::greater_equal()) != state.chosen.end())
    return refuse("choices in another order");
  if (state.slots_of_row.empty()) return message;
  std::uint64_t total = 0;
  for (const auto count : state.slots_of_row) total += count;
  if (state.slots_of_row.size() != n || total != state.slots.size())
    return refuse("executed slots and rows disagree");
  if (state.hidden.empty()) return refuse("outputs are awaited without a hidden state");
  for (const auto& slot : state.slots)
    if (!std::isfinite(slot.gate)) return refuse("a gate that is not finite");
  return message;
}

namespace {

/// Items in the order of rows and slots, one at least for each row.
bool covers_rows(const expert_call& call) {
  std::size_t row = 0;
  for (std::size_t i = 0; i < call.items.size(); ++i) {
    const auto& item = call.items[i];
    if (i > 0 && item.x_row == row) {
      if (item.slot <= call.items[i - 1].slot) return false;
      continue;
    }
    if (item.x_row != (i == 0 ? 0 : row + 1)) return false;
    row = item.x_row;
  }
  return !call.items.empty() && row + 1 == call.rows.size();
}

}  // namespace

result<expert_call> decode_call(const frame& content, const wire_shape& shape) {
  auto message = read_frame<expert_call>(content, frame_kind::call);
  if (!message) return message;
  const auto& call = *message;
  const auto refuse = [&](const char* what) { return bad_shape(content.kind, what); };
  if (call.rows.empty() || call.x.size() != call.rows.size() * shape.hidden_size ||
      call.whole.size() != call.rows.size())
    return refuse("rows and hidden states disagree");
  for (std::size_t i = 0; i < call.rows.size(); ++i) {
    if (i > 0 && call.rows[i] <= call.rows[i - 1]) return refuse("rows out of order");
    if (call.whole[i] > 1) return refuse("a row that is neither whole nor in parts");
  }
  if (!covers_rows(call)) return refuse("items that are not those of its rows in order");
  for (const auto& item : call.items)
    if (!std::isfinite(item.gate)) return refuse("a gate that is not finite");
  if (!all_finite(call.x)) return refuse("hidden states that are not finite");
  return message;
}

result<expert_output> decode_output(const frame& content, const wire_shape& shape) {
  auto message = read_frame<expert_output>(content, frame_kind::output);
  if (!message) return message;
  const bool failed = !message->problem.empty();
  if (message->rows.empty() ||
      message->y.size() != (failed ? 0 : message->rows.size() * shape.hidden_size))
    return bad_shape(content.kind, "rows and outputs disagree");
  if (!all_finite(message->y)) return bad_shape(content.kind, "outputs that are not finite");
  return message;
}

result<kv_rows> decode_kv(const frame& content, const wire_shape& shape) {
  auto message = read_frame<kv_rows>(content, frame_kind::kv);
  if (!message) return message;
  if (message->blocks.empty()) return bad_shape(content.kind, "no rows");
  for (const auto& block : message->blocks)
    if (block.n == 0 || block.rows.size() != block.n * shape.kv_row_bytes)
      return bad_shape(content.kind, "rows and their count disagree");
  return message;
}

result<progress_report> decode_progress(const frame& content) {
  auto message = read_frame<progress_report>(content, frame_kind::progress);
  if (!message) return message;
  if (message->losses.size() > 1) return bad_shape(content.kind, "more than one loss");
  for (const double loss : message->losses)
    if (!std::isfinite(loss)) return bad_shape(content.kind, "a loss that is not finite");
  for (const auto& each : message->logprobs)
    if (!std::isfinite(each.logprob))
      return bad_shape(content.kind, "a logprob that is not finite");
  return message;
}

result<reservation> decode_reservation(const frame& content) {
  auto message = read_frame<reservation>(content, frame_kind::reservation);
  if (message && message->step > reserve_step::fenced)
    return bad_shape(content.kind, "unknown step");
  return message;
}

result<load_report> decode_load(const frame& content) {
  return read_frame<load_report>(content, frame_kind::load);
}

result<link_report> decode_links(const frame& content) {
  return read_frame<link_report>(content, frame_kind::links);
}

result<failure_report> decode_failure(const frame& content) {
  return read_frame<failure_report>(content, frame_kind::failure);
}

}  // namespace ordermoe::wire
