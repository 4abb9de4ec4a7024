#include "planning/serving/kv_reservations.hpp"

#include <algorithm>
#include <limits>

namespace ordermoe::serving {

using wire::reservation;
using wire::reserve_step;

namespace {

reservation answer_to(const reservation& message, reserve_step step) {
  auto answer = message;
  answer.step = step;
  return answer;
}

}  // namespace

kv_reservations::outcome kv_reservations::take(const reservation& message, std::int64_t now_ns,
                                               std::uint64_t epoch) {
  outcome made;
  switch (message.step) {
    case reserve_step::attempt:
    case reserve_step::wait:
      ask(message, now_ns, epoch, made);
      break;
    case reserve_step::release: {
      const auto held = sequences_.find(message.request);
      if (held != sequences_.end() && message.ask >= held->second.ask) {
        close(message.request, made);
        serve_queue(made);
      }
      break;
    }
    case reserve_step::fence:
      fence(message, now_ns, made);
      break;
    default:
      break;
  }
  return made;
}

void kv_reservations::ask(const reservation& message, std::int64_t now_ns, std::uint64_t epoch,
                          outcome& made) {
  const auto held = sequences_.find(message.request);
  if (held != sequences_.end()) {
    const auto& known = held->second;
    if (message.ask < known.ask) return;
    if (message.ask == known.ask) {
      if (known.granted) made.answers.push_back(answer_to(message, reserve_step::granted));
      return;
    }
    close(message.request, made);
    serve_queue(made);
  }
  const bool waits = message.step == reserve_step::wait;
  if (!waits && (!queue_.empty() || !fits(message.bytes))) {
    made.answers.push_back(answer_to(message, reserve_step::refused));
    return;
  }
  sequences_[message.request] = {
      message.attempt,           message.ask, message.access, message.bytes,
      now_ns + message.lease_ns, false,       epoch};
  queue_.push_back(message.request);
  serve_queue(made);
}

void kv_reservations::fence(const reservation& message, std::int64_t now_ns, outcome& made) {
  const auto held = sequences_.find(message.request);
  if (held == sequences_.end() || !held->second.granted) {
    made.answers.push_back(answer_to(message, reserve_step::refused));
    return;
  }
  auto& known = held->second;
  if (message.attempt < known.attempt || message.ask < known.ask) return;
  const bool again = message.attempt == known.attempt;
  known.ask = message.ask;
  known.attempt = message.attempt;
  known.lease_until_ns = now_ns + message.lease_ns;
  if (!again)
    made.events.push_back(
        {event::what::fenced, message.request, message.attempt, 0, reserved_bytes_});
  made.answers.push_back(answer_to(message, reserve_step::fenced));
}

kv_reservations::outcome kv_reservations::expire(std::int64_t now_ns) {
  std::vector<std::uint64_t> over;
  for (const auto& [request, held] : sequences_)
    if (held.lease_until_ns <= now_ns) over.push_back(request);
  std::sort(over.begin(), over.end());
  outcome made;
  for (const auto request : over) close(request, made);
  serve_queue(made);
  return made;
}

kv_reservations::outcome kv_reservations::end(std::uint64_t request) {
  outcome made;
  if (!sequences_.contains(request)) return made;
  close(request, made);
  serve_queue(made);
  return made;
}

const kv_reservations::sequence* kv_reservations::find(std::uint64_t request) const {
  const auto held = sequences_.find(request);
  return held == sequences_.end() || !held->second.granted ? nullptr : &held->second;
}

std::int64_t kv_reservations::next_expiry_ns() const {
  auto earliest = std::numeric_limits<std::int64_t>::max();
  for (const auto& [request, held] : sequences_) earliest = std::min(earliest, held.lease_until_ns);
  return earliest;
}

bool kv_reservations::fits(std::int64_t bytes) const {
  return bytes <= capacity_bytes_ - reserved_bytes_;
}

void kv_reservations::grant(std::uint64_t request, outcome& made) {
  auto& held = sequences_.at(request);
  held.granted = true;
  reserved_bytes_ += held.bytes;
  peak_bytes_ = std::max(peak_bytes_, reserved_bytes_);
  made.events.push_back({event::what::granted, request, held.attempt, held.bytes, reserved_bytes_});
  reservation answer;
  answer.request = request;
  answer.attempt = held.attempt;
  answer.ask = held.ask;
  answer.step = reserve_step::granted;
  answer.server = self_;
  answer.access = held.access;
  answer.bytes = held.bytes;
  made.answers.push_back(answer);
}

void kv_reservations::close(std::uint64_t request, outcome& made) {
  const auto held = sequences_.find(request);
  if (held->second.granted) {
    reserved_bytes_ -= held->second.bytes;
    made.events.push_back(
        {event::what::ended, request, held->second.attempt, -held->second.bytes, reserved_bytes_});
  } else {
    queue_.erase(std::find(queue_.begin(), queue_.end(), request));
  }
  sequences_.erase(held);
}

void kv_reservations::serve_queue(outcome& made) {
  while (!queue_.empty() && fits(sequences_.at(queue_.front()).bytes)) {
    const auto request = queue_.front();
    queue_.pop_front();
    grant(request, made);
  }
}

}  // namespace ordermoe::serving
