#include "actors/cluster/expert_messages.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>

namespace ordermoe::actors {

namespace {

static_assert(std::endian::native == std::endian::little, "numbers are sent as they are in memory");

template <class Number>
void put(std::string& into, Number number) {
  into.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void put(std::string& into, const std::vector<float>& rows) {
  put(into, static_cast<std::uint32_t>(rows.size()));
  into.append(reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(float));
}

/// Takes one thing after the other; after the first that is not there, nothing any more.
class taker {
 public:
  explicit taker(std::string_view bytes) : rest_(bytes) {}

  template <class Number>
  Number number() {
    Number taken{};
    if (const auto bytes = some(sizeof(taken)); ok_)
      std::memcpy(&taken, bytes.data(), sizeof(taken));
    return taken;
  }
  std::string_view some(std::size_t n) {
    if (n > rest_.size()) ok_ = false;
    if (!ok_) return {};
    const auto taken = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return taken;
  }
  std::vector<float> rows() {
    const std::size_t n = number<std::uint32_t>();
    if (n > most_row_bytes / sizeof(float)) ok_ = false;
    const auto bytes = some(n * sizeof(float));
    std::vector<float> taken(ok_ ? n : 0);
    if (!taken.empty()) std::memcpy(taken.data(), bytes.data(), bytes.size());
    return taken;
  }
  bool is_whole() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

error malformed(const char* what, std::string_view bytes) {
  return {errc::malformed,
          fmt::format("{}: found {} bytes that are none, expected its head and at most {} numbers; "
                      "both ends must be of one version",
                      what, bytes.size(), most_row_bytes / sizeof(float))};
}

}  // namespace

std::string encode(const expert_ask& ask) {
  std::string bytes;
  put(bytes, ask.ref);
  put(bytes, ask.layer);
  put(bytes, ask.expert);
  put(bytes, static_cast<std::uint32_t>(ask.kept));
  put(bytes, ask.rows);
  return bytes;
}

std::string encode(const expert_answer& answer) {
  std::string bytes;
  put(bytes, answer.ref);
  put(bytes, static_cast<std::uint32_t>(answer.code));
  put(bytes, static_cast<std::uint32_t>(answer.problem.size()));
  bytes += answer.problem;
  put(bytes, answer.rows);
  return bytes;
}

result<expert_ask> decode_expert_ask(std::string_view bytes) {
  taker from(bytes);
  expert_ask ask;
  ask.ref = from.number<std::uint64_t>();
  ask.layer = from.number<std::uint32_t>();
  ask.expert = from.number<std::uint32_t>();
  const auto kept = from.number<std::uint32_t>();
  ask.rows = from.rows();
  ask.kept = static_cast<precision>(kept);
  const bool known = kept == static_cast<std::uint32_t>(precision::stored) ||
                     kept == static_cast<std::uint32_t>(precision::int8) ||
                     kept == static_cast<std::uint32_t>(precision::int4);
  if (!from.is_whole() || !known || ask.rows.empty())
    return malformed("an ask for an expert", bytes);
  return ask;
}

result<expert_answer> decode_expert_answer(std::string_view bytes) {
  taker from(bytes);
  expert_answer answer;
  answer.ref = from.number<std::uint64_t>();
  const auto code = from.number<std::uint32_t>();
  answer.problem = from.some(from.number<std::uint32_t>());
  answer.rows = from.rows();
  if (!from.is_whole() || code > static_cast<std::uint32_t>(errc::failed) ||
      answer.rows.empty() == answer.problem.empty())
    return malformed("an expert's answer", bytes);
  answer.code = static_cast<errc>(code);
  return answer;
}

}  // namespace ordermoe::actors
