#include "net/bulk/transfer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace ordermoe::net {

namespace {

constexpr std::size_t number_bytes = sizeof(std::uint64_t);

void put(std::uint64_t number, std::string& into) {
  into.append(reinterpret_cast<const char*>(&number), number_bytes);
}

std::uint64_t number_at(std::string_view bytes, std::size_t place) {
  std::uint64_t number = 0;
  std::memcpy(&number, bytes.data() + place, number_bytes);
  return number;
}

}  // namespace

// -------------------------------------------------------------------------------------------- sender

result<void> bulk_sender::take(const frame_header& header, std::string_view payload) {
  switch (static_cast<bulk_kind>(header.kind)) {
    case bulk_kind::ask:
      return take_ask(header, payload);
    case bulk_kind::stop:
      std::erase_if(asked_, [&](const transfer& each) { return each.request == header.request; });
      return {};
    case bulk_kind::part:
    case bulk_kind::refusal:
      break;
  }
  return error{errc::malformed,
               fmt::format("bulk: found kind {}, expected an ask or a stop", header.kind)};
}

result<void> bulk_sender::take_ask(const frame_header& header, std::string_view payload) {
  const auto name_bytes = payload.size() - std::min(payload.size(), 2 * number_bytes);
  if (name_bytes < 1 || name_bytes > most_bulk_name_bytes)
    return error{errc::malformed,
                 fmt::format("bulk ask: found {} bytes, expected {} to {}", payload.size(),
                             2 * number_bytes + 1, 2 * number_bytes + most_bulk_name_bytes)};
  transfer wanted{header.request, header.attempt, std::string(payload.substr(2 * number_bytes)),
                  number_at(payload, 0), number_at(payload, number_bytes)};
  const auto same = [&](const transfer& each) { return each.request == header.request; };
  const auto before = std::ranges::find_if(asked_, same);
  if (before != asked_.end() && before->attempt > header.attempt) return {};
  if (before != asked_.end()) asked_.erase(before);
  const auto refused = [&](std::string_view why) {
    refuse(header.request, header.attempt, why);
    return result<void>{};
  };
  if (asked_.size() >= most_asked)
    return refused(
        fmt::format("{} transfers are under way, expected fewer than {}; ask again when "
                    "some of them are done",
                    asked_.size(), most_asked));
  const auto found = shelf_.find(wanted.name);
  if (!found) return refused(found.error().message);
  if (*found != wanted.bytes || wanted.offset >= wanted.bytes)
    return refused(
        fmt::format("{} bytes from {} on are asked for, and there are {}; is it of the "
                    "same plan?",
                    wanted.bytes, wanted.offset, *found));
  asked_.push_back(std::move(wanted));
  return {};
}

void bulk_sender::refuse(std::uint64_t request, std::uint32_t attempt, std::string_view why) {
  // Whoever asks on and on without hearing gets no more memory here.
  if (refusals_.size() >= most_asked) return;
  refusals_.push_back(
      {bulk_kind::refusal, request, attempt, std::string(why.substr(0, most_bulk_refusal_bytes))});
}

std::optional<bulk_frame> bulk_sender::next() {
  while (refusals_.empty() && !asked_.empty()) {
    auto& now = asked_.front();
    const auto n = std::min<std::uint64_t>(bulk_part_bytes, now.bytes - now.offset);
    const auto bytes = shelf_.read(now.name, now.offset, n);
    if (!bytes || bytes->size() != n) {
      refuse(now.request, now.attempt, bytes ? "it became shorter" : bytes.error().message);
      asked_.pop_front();
      break;
    }
    bulk_frame part{bulk_kind::part, now.request, now.attempt, {}};
    part.payload.reserve(number_bytes + n);
    put(now.offset, part.payload);
    part.payload += *bytes;
    now.offset += n;
    if (now.offset == now.bytes) asked_.pop_front();
    return part;
  }
  if (refusals_.empty()) return std::nullopt;
  auto first = std::move(refusals_.front());
  refusals_.pop_front();
  return first;
}

void bulk_sender::forget() {
  asked_.clear();
  refusals_.clear();
}

// ------------------------------------------------------------------------------------------ receiver

bulk_receiver::bulk_receiver(bulk_item wanted, std::uint64_t request, sink into)
    : wanted_(std::move(wanted)), request_(request), into_(std::move(into)) {
  ORDERMOE_CHECK(!wanted_.name.empty() && wanted_.name.size() <= most_bulk_name_bytes,
                 "what is asked for has a name of a length that may be asked for");
  ORDERMOE_CHECK(wanted_.bytes > 0, "what is asked for has bytes");
}

result<void> bulk_receiver::keep(std::string_view bytes) {
  if (bytes.size() > wanted_.bytes - there_)
    return over(errc::out_of_range,
                fmt::format("found {} bytes kept, expected at most {}; begin anew",
                            there_ + bytes.size(), wanted_.bytes));
  digest_.update(bytes);
  there_ += bytes.size();
  return there_ == wanted_.bytes ? check_whole() : result<void>{};
}

bulk_frame bulk_receiver::ask() {
  ORDERMOE_CHECK(!done_, "what is there is not asked for");
  bulk_frame made{bulk_kind::ask, request_, ++attempt_, {}};
  put(there_, made.payload);
  put(wanted_.bytes, made.payload);
  made.payload += wanted_.name;
  return made;
}

bulk_frame bulk_receiver::stop() const {
  return {bulk_kind::stop, request_, attempt_, {}};
}

result<void> bulk_receiver::take(const frame_header& header, std::string_view payload) {
  if (done_ || over_ || header.request != request_ || header.attempt != attempt_) return {};
  switch (static_cast<bulk_kind>(header.kind)) {
    case bulk_kind::part:
      return take_part(payload);
    case bulk_kind::refusal:
      return over(errc::failed,
                  fmt::format("the peer refuses: {}", payload.substr(0, most_bulk_refusal_bytes)));
    case bulk_kind::ask:
    case bulk_kind::stop:
      break;
  }
  return over(errc::malformed,
              fmt::format("found kind {}, expected a part or a refusal", header.kind));
}

result<void> bulk_receiver::take_part(std::string_view payload) {
  const auto size = payload.size() - std::min(payload.size(), number_bytes);
  const auto missing = wanted_.bytes - there_;
  if (size == 0 || size > bulk_part_bytes || size > missing)
    return over(errc::malformed, fmt::format("found a part of {} bytes, expected 1 to {}", size,
                                             std::min<std::uint64_t>(bulk_part_bytes, missing)));
  if (const auto offset = number_at(payload, 0); offset != there_)
    return over(errc::malformed,
                fmt::format("found a part from {} on, expected from {} on", offset, there_));
  const auto bytes = payload.substr(number_bytes);
  if (auto taken = into_(bytes); !taken) {
    over_ = true;
    return taken;
  }
  digest_.update(bytes);
  there_ += size;
  return there_ == wanted_.bytes ? check_whole() : result<void>{};
}

result<void> bulk_receiver::check_whole() {
  const auto found = digest_.finish();
  if (found != wanted_.sha256)
    return over(errc::mismatch, fmt::format("found SHA-256 {}, expected {}; drop what came and ask "
                                            "for it anew",
                                            found, wanted_.sha256));
  done_ = true;
  return {};
}

error bulk_receiver::over(errc code, std::string text) {
  over_ = true;
  return {code, fmt::format("bulk {}: {}", wanted_.name, text)};
}

}  // namespace ordermoe::net
