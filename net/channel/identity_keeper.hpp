#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "net/channel/tls.hpp"

/// The identity of a process that goes on while its files change: a certificate that was renewed, a list of what is revoked.
///
///            files differ, and make one                 list of a larger number, signed
///   in use -----------------------------> in use <--------------------------------------- from another node
///     |
///     | files differ, and make none: what is in use stays
///     v
///   looks again; where they are the same files then, says once why, and waits until they change
///
/// A pair of key and certificate is replaced file by file, so that what is read in between fits together only at the next
/// look.
namespace ordermoe::net {

/// Whether what carries connections tells whose certificate a peer has.
enum class revocation_use {
  honoured,
  impossible,  ///< It does not: a list that revokes anything is refused, so that nobody believes that it holds.
};

/// Error, where the list revokes something: unsupported, naming `place` and what to do.
result<void> check_can_honour(const revocation_list& list, revocation_use use,
                              std::string_view place);

class identity_keeper {
 public:
  using identity_ptr = std::shared_ptr<const tls_identity>;
  explicit identity_keeper(identity_ptr first, revocation_use use = revocation_use::honoured);

  /// What is to be done with every identity that comes, on the thread that brought it; may be called from several, one
  /// at a time. Before anything else.
  void tell(std::function<void(const identity_ptr&)> user) { user_ = std::move(user); }

  identity_ptr now() const;

  struct change {
    identity_ptr before, next;
    bool certificate = false, revocations = false;  ///< Which of it is another.
    /// Why what is revoked is gone with the process, though it is used: it is tried again at every look.
    std::optional<error> unkept = std::nullopt;
  };
  /// Looks at the files, where they are others than at the last look. A change that was made; an error once for files that
  /// stay broken; else nothing.
  result<std::optional<change>> look();
  /// Reads the files, whatever was there before. `try_only`: nothing is used.
  result<std::optional<change>> reload(bool try_only);
  /// A list that came from somewhere. Nothing where it is no newer than the one in use; else it is used and kept on the
  /// disk. `try_only`: neither. Errors: those of parse_revocations and check_can_honour.
  result<std::optional<change>> take_revocations(const std::string& pem, bool try_only = false);

 private:
  /// Of a file, so far as it tells whether it is another.
  struct stamp {
    std::int64_t inode = -1, bytes = -1, changed_ns = -1;
    friend bool operator==(const stamp&, const stamp&) = default;
  };
  using stamps = std::array<stamp, 4>;
  stamps stamps_now() const;
  /// Lock of changing_ held.
  result<std::optional<change>> read(bool try_only);
  /// What is revoked now, to the disk; why not.
  std::optional<error> keep();
  void adopt(const change& made);

  const revocation_use use_;
  std::function<void(const identity_ptr&)> user_;
  std::mutex changing_;  ///< One change at a time.
  mutable std::mutex mutex_;
  identity_ptr now_;
  stamps seen_;
  bool failed_ = false, told_ = false;  ///< Of the files as they were seen.
  bool unkept_ = false;  ///< What is revoked could not be written, which each look tries again.
};

}  // namespace ordermoe::net
