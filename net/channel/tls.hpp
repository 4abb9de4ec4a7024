#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "config/error.hpp"
#include "net/identity/certificates.hpp"
#include "net/identity/revocations.hpp"
#include "net/session/header.hpp"

struct ssl_ctx_st;
struct ssl_st;

/// TLS 1.3 between holders of certificates of one authority, without sockets: bytes of the wire and bytes of the user go
/// in and out, so that whoever owns the socket decides when and on which thread.
namespace ordermoe::net {

struct identity_files {
  std::filesystem::path authority, certificate, key;
  /// Lists of what is revoked: the operator's, and what was kept of those that came otherwise. Neither need exist; empty:
  /// there is none. The one with the larger number counts.
  std::filesystem::path revocations, kept_revocations;
};

/// An authority, and the certificate and key by which this end is known, and whose certificates it does not believe any
/// more. Read once; connections share it.
class tls_identity {
 public:
  /// `before`: no list of what is revoked with a smaller number counts. Errors: those of check_identity and
  /// read_revocations; failed where OpenSSL does not take them.
  static result<std::shared_ptr<const tls_identity>> load(const identity_files& files,
                                                          const tls_identity* before = nullptr);
  /// With the list that is beside the authority, where there is one.
  static result<std::shared_ptr<const tls_identity>> load(const std::filesystem::path& authority,
                                                          const std::filesystem::path& certificate,
                                                          const std::filesystem::path& key);
  /// The same with another list of what is revoked.
  std::shared_ptr<const tls_identity> with(revocation_list revocations) const;
  ~tls_identity();
  const certificate_name& name() const { return name_; }
  const identity_files& files() const { return files_; }
  const certificate_facts& facts() const { return facts_; }
  /// OpenSSL's, for connections that others make. Owned by this.
  ssl_ctx_st* context() const { return context_; }
  /// Number 0: nothing is.
  const revocation_list& revocations() const { return revocations_; }
  bool is_revoked(std::string_view serial) const { return revocations_.has(serial); }

 private:
  friend class tls_channel;
  tls_identity() = default;
  ssl_ctx_st* context_ = nullptr;
  certificate_name name_;
  certificate_facts facts_;
  identity_files files_;
  revocation_list revocations_;
};

/// Bytes on their way through TLS.
struct tls_wire {
  std::string_view in;  ///< From the wire, not read yet.
  std::string out;      ///< For the wire.
};

/// What somebody dials for.
enum class dial_purpose {
  session,  ///< One stream of a session, as node or client.
  joining,  ///< A node of the list asks another for the plan in force, before it can say by which it goes.
};

/// One end of one connection. Both ends must show a certificate; which of the two streams of a pair a connection is
/// stands in its ALPN protocol, "ordermoe-fast/1" or "ordermoe-bulk/1"; that of a node that joins is "ordermoe-join/1".
/// Not thread-safe.
class tls_channel {
 public:
  /// The end that accepted the connection.
  explicit tls_channel(std::shared_ptr<const tls_identity> self);
  /// The end that dialled it.
  tls_channel(std::shared_ptr<const tls_identity> self, stream which,
              dial_purpose what_for = dial_purpose::session);
  ~tls_channel();
  tls_channel(const tls_channel&) = delete;
  tls_channel& operator=(const tls_channel&) = delete;

  /// Bytes from the wire; appends what they say to `plain`. Error: malformed, for a handshake that failed, a record
  /// that was tampered with, or a peer without a name of ours; the channel is of no use then, but for its output.
  result<void> take(std::string_view wire, std::string& plain);
  /// Bytes for the wire. Precondition: established().
  result<void> put(std::string_view plain);
  /// Appends what is to be sent.
  void take_output(std::string& wire);

  bool established() const { return established_; }
  /// The peer said that it says no more.
  bool ended() const { return ended_; }
  /// Once established:
  const certificate_name& peer() const { return peer_; }
  const std::string& peer_serial() const { return peer_serial_; }
  stream which() const { return which_; }
  bool joins() const { return joins_; }
  /// Says that this end says no more.
  void end();

 private:
  result<void> go_on();
  result<void> establish();
  ssl_st* make(bool accepted);

  std::shared_ptr<const tls_identity> self_;
  tls_wire wire_;
  ssl_st* ssl_;
  bool established_ = false, ended_ = false, joins_ = false;
  certificate_name peer_;
  std::string peer_serial_;
  stream which_ = stream::fast;
};

}  // namespace ordermoe::net
