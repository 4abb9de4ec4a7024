#include "actors/admin/gathering.hpp"

#include <utility>

namespace ordermoe::actors {

std::uint64_t gathering_book::begin(std::set<std::uint32_t> waits, told_reports own,
                                    std::int64_t until_ns, finish done) {
  if (waits.empty()) {
    done(own);
    return 0;
  }
  open_[next_] = {std::move(waits), std::move(own), until_ns, std::move(done)};
  return next_++;
}

void gathering_book::end(std::map<std::uint64_t, one>::iterator which) {
  const auto ended = open_.extract(which);
  ended.mapped().done(ended.mapped().told);
}

void gathering_book::take(std::uint64_t question, std::uint32_t server,
                          nlohmann::ordered_json report) {
  const auto found = open_.find(question);
  if (found == open_.end() || found->second.waits.erase(server) == 0) return;
  found->second.told[server] = std::move(report);
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
