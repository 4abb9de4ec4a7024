#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "net/channel/identity_keeper.hpp"

/// What a node tells of its certificate and of what is revoked, and an operator's order to look at them again.
namespace ordermoe::actors {

/// {"serial", "not_after_s", "days_left", "expires_soon", "revoked", "revocations": number of the list, "n_revoked"}
nlohmann::ordered_json certificate_json(const net::tls_identity& identity, std::int64_t now_s);

/// What changed, as an event and a reply have it: "certificate": the new one's serial and until when, "revocations":
/// number and count; only those that changed.
nlohmann::ordered_json change_json(const net::identity_keeper::change& made);

/// Reads the node's files anew and takes the list that came with the order (empty: none). `dry_run`: says what would be.
/// Nothing: nothing is other than before. Errors: those of the keeper.
result<std::optional<net::identity_keeper::change>> reload_identity(net::identity_keeper& keeper,
                                                                    const std::string& revocations,
                                                                    bool dry_run);

}  // namespace ordermoe::actors
