#include "actors/admin/gathering.hpp"

#include <utility>

namespace ordermoe::actors {

std::uint64_t gathering_book::begin(std::set<std::uint32_t> waits, told_reports own,
                                    const span_of_time& when, finish done) {
  told_times told_at;
  for (const auto& [server, report] : own) told_at[server] = when.now_ns;
  if (waits.empty()) {
    done(own, told_at);
    return 0;
  }
  open_[next_] = {std::move(waits), std::move(own), std::move(told_at), when.until_ns,
                  std::move(done)};
  return next_++;
}

void gathering_book::end(std::map<std::uint64_t, one>::iterator which) {
  const auto ended = open_.extract(which);
  ended.mapped().done(ended.mapped().told, ended.mapped().told_at);
}

void gathering_book::take(std::uint64_t question, std::uint32_t server,
                          nlohmann::ordered_json report, std::int64_t now_ns) {
  const auto found = open_.find(question);
  if (found == open_.end() || found->second.waits.erase(server) == 0) return;
  found->second.told[server] = std::move(report);
  found->second.told_at[server] = now_ns;
  if (found->second.waits.empty()) end(found);
}

void gathering_book::lose(std::uint32_t server) {
  for (auto each = open_.begin(); each != open_.end();) {
    const auto here = each++;
    if (here->second.waits.erase(server) > 0 && here->second.waits.empty()) end(here);
  }
}

void gathering_book::expire(std::int64_t now_ns) {
  for (auto each = open_.begin(); each != open_.end();) {
    const auto here = each++;
    if (here->second.until_ns <= now_ns) end(here);
  }
}

}  // namespace ordermoe::actors
