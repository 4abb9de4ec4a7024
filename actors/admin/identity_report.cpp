#include "actors/admin/identity_report.hpp"

#include <nlohmann/json.hpp>
#include <utility>

namespace ordermoe::actors {

using net::identity_keeper;
using nlohmann::ordered_json;

ordered_json certificate_json(const net::tls_identity& identity, std::int64_t now_s) {
  const auto& facts = identity.facts();
  const auto left_s = facts.not_after_s - now_s;
  return {{"serial", facts.serial},
          {"not_after_s", facts.not_after_s},
          {"days_left", left_s / 86'400},
          {"expires_soon", left_s < net::expires_soon_s},
          {"revoked", identity.is_revoked(facts.serial)},
          {"revocations", identity.revocations().number},
          {"n_revoked", identity.revocations().revoked.size()}};
}

ordered_json change_json(const identity_keeper::change& made) {
  auto j = ordered_json::object();
  const auto& facts = made.next->facts();
  if (made.certificate)
    j["certificate"] = {{"serial", facts.serial}, {"not_after_s", facts.not_after_s}};
  if (made.revocations)
    j["revocations"] = {{"number", made.next->revocations().number},
                        {"n_revoked", made.next->revocations().revoked.size()}};
  if (made.unkept) j["not_kept"] = made.unkept->message;
  return j;
}

result<std::optional<identity_keeper::change>> reload_identity(identity_keeper& keeper,
                                                               const std::string& revocations,
                                                               bool dry_run) {
  auto read = keeper.reload(dry_run);
  if (!read || revocations.empty()) return read;
  auto taken = keeper.take_revocations(revocations, dry_run);
  if (!taken || !*taken) return taken ? std::move(read) : std::move(taken);
  if (!*read) return taken;
  // Both: one change, from what was there first.
  (*taken)->before = (*read)->before;
  (*taken)->certificate |= (*read)->certificate;
  if (dry_run && (*read)->certificate)
    (*taken)->next = (*read)->next->with((*taken)->next->revocations());
  return taken;
}

}  // namespace ordermoe::actors
