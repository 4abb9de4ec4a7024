#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "config/error.hpp"

/// What a host that joins and a member say to each other before the host can say by which plan it goes. The host dials with
/// its node's certificate for `joining` (net/channel/tls.hpp) and is a client of the member for as long as the connection
/// lasts, taken only while the member list has it. Everything goes over lane control.
///
///   joining host        member
///   plan_asked  ------>              no content
///               <------  plan_told   a plan_notice: by what the member goes, how large its papers are, and their digests
///   paper_asked ------>              as bulk_kind::ask (net/bulk/transfer.hpp), of a name that paper_name() gives
///               <------  paper_part  as bulk_kind::part, papers_window of them, or those up to the end
///               <------  paper_refused  as bulk_kind::refusal: it goes by another plan by now
///
/// Parts go out for an ask and for nothing else: the host asks again for what follows when a window of them has come, so that
/// the member keeps nothing of it and its links carry no more than a window at a time. Whoever sends anything else is not
/// heard any more.
namespace ordermoe::actors {

/// Parts that follow an ask: 64 KiB.
inline constexpr std::size_t papers_window = 4;

/// What a node goes by beside its own files.
enum class paper : std::uint8_t {
  plan,        ///< plan.json, as hellos compare it.
  profile,     ///< profile.json.
  activation,  ///< What routers were measured to choose, where the plan goes by that.
};
inline constexpr std::size_t n_papers = 3;
const char* to_string(paper which);
/// That a host takes: more is refused before a byte of it comes.
std::uint64_t most_bytes(paper which);

struct paper_facts {
  std::uint64_t bytes = 0;
  std::string sha256;  ///< Hexadecimal.
  friend bool operator==(const paper_facts&, const paper_facts&) = default;
};

struct plan_notice {
  std::string model, cluster_file;  ///< Digests, as in hellos.
  std::uint64_t epoch = 0;          ///< Of the plan.
  /// Plan and profile are always there.
  std::array<std::optional<paper_facts>, n_papers> papers;

  const paper_facts& plan() const { return *papers[0]; }
  const paper_facts& profile() const { return *papers[1]; }
  const std::optional<paper_facts>& of(paper which) const {
    return papers[static_cast<std::size_t>(which)];
  }
  friend bool operator==(const plan_notice&, const plan_notice&) = default;
};

std::string notice_text(const plan_notice& content);
/// Errors: malformed or out_of_range, naming the member, what was found and what is expected.
result<plan_notice> parse_notice(std::string_view text);

/// In an ask: another paper of the same kind has another name.
std::string paper_name(paper which, const std::string& sha256);

}  // namespace ordermoe::actors
