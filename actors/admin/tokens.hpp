#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/error.hpp"

/// Access tokens: secrets by which a console has a role that its certificate has not. No CAF type in this header.
///
/// A secret is shown once, when it is made. What is kept, and told to the other nodes, is its scrypt hash with a salt of
/// its own (RFC 7914). Books of two nodes are merged entry by entry: an entry never changes, but for being revoked, which
/// it stays; so all nodes that hear of each other end up with the same book, in whatever order they do.
namespace ordermoe::actors {

struct access_token {
  std::string id;            ///< 16 hexadecimal digits, in the secret too.
  std::string name;          ///< As orders of its bearer are audited.
  std::string role;          ///< viewer, operator or admin.
  std::string salt, hash;    ///< Hexadecimal.
  std::int64_t made_s = 0;   ///< Seconds since 1970.
  std::int64_t until_s = 0;  ///< Likewise; 0: it does not expire.
  bool revoked = false;
  bool operator==(const access_token&) const = default;

  bool holds(std::int64_t now_s) const { return !revoked && (until_s == 0 || now_s < until_s); }
};

/// One thread at a time.
class token_book {
 public:
  static constexpr std::size_t most_tokens = 256;
  static constexpr std::int64_t longest_s = std::int64_t{10} * 365 * 86'400;

  struct made {
    access_token what;
    std::string secret;
  };
  /// Errors: usage, for a name, role or time that is none or a name that holds; failed where the book is full.
  result<made> make(const std::string& name, const std::string& role, std::int64_t for_s,
                    std::int64_t now_s);
  /// All of this name that hold. Error: not_found.
  result<void> revoke(const std::string& name, std::int64_t now_s);

  /// Whose the secret is. Costs some milliseconds for the first time, and at most once a second for each token where it is
  /// wrong; compares in constant time. Error: usage, which does not say what is wrong with the secret.
  result<access_token> check(const std::string& secret, std::int64_t now_s);

  /// Takes over what is new of another book; whether anything was.
  bool merge(const token_book& other, std::int64_t now_s);

  /// Of all that are kept; no secret is in it.
  std::string text() const;
  /// Errors: malformed or out_of_range, naming `place` and the member.
  static result<token_book> parse(const std::string& text, const std::string& place);

  /// By name, then age; those that expired are forgotten, since they hold nowhere.
  std::vector<access_token> all() const;
  bool empty() const { return tokens_.empty(); }

 private:
  void forget_expired(std::int64_t now_s);

  std::map<std::string, access_token> tokens_;     ///< By id.
  std::map<std::string, std::string> recognised_;  ///< By id: digest of the secret that was right.
  std::map<std::string, std::int64_t> failed_s_;   ///< By id: when a secret was wrong last.
};

}  // namespace ordermoe::actors
