#include "net/channel/tls.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <array>
#include <boost/test/unit_test.hpp>
#include <optional>

#include "config/random.hpp"
#include "test/net/channel/credentials.hpp"

namespace ordermoe {

namespace {

using net::stream;
using net::tls_channel;
using test::credentials;

constexpr std::size_t all = std::string::npos;

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

/// Whoever holds OpenSSL and not our code, and checks nobody.
struct strange {
  std::string name;  ///< Of the certificate; empty: none.
  std::string protocol = "ordermoe-fast/1";
  int newest = TLS1_3_VERSION;
  bool accepts = false;
};
class stranger {
 public:
  stranger(const credentials& from, const strange& how) : context_(SSL_CTX_new(TLS_method())) {
    if (!how.name.empty()) show(from, how.name);
    SSL_CTX_set_max_proto_version(context_, how.newest);
    ssl_ = SSL_new(context_);
    const auto offered = static_cast<char>(how.protocol.size()) + how.protocol;
    if (!how.protocol.empty())
      SSL_set_alpn_protos(ssl_, reinterpret_cast<const unsigned char*>(offered.data()),
                          static_cast<unsigned>(offered.size()));
    SSL_set_bio(ssl_, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    how.accepts ? SSL_set_accept_state(ssl_) : SSL_set_connect_state(ssl_);
  }
  ~stranger() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  stranger(const stranger&) = delete;
  stranger& operator=(const stranger&) = delete;

  void take(std::string_view wire, std::string& plain) {
    if (!wire.empty()) BIO_write(SSL_get_rbio(ssl_), wire.data(), static_cast<int>(wire.size()));
    SSL_do_handshake(ssl_);
    std::array<char, 4096> bytes{};
    for (int n = 0; (n = SSL_read(ssl_, bytes.data(), static_cast<int>(bytes.size()))) > 0;)
      plain.append(bytes.data(), static_cast<std::size_t>(n));
    ERR_clear_error();
  }
  void take_output(std::string& wire) {
    SSL_do_handshake(ssl_);
    ERR_clear_error();
    std::array<char, 4096> bytes{};
    for (int n = 0;
         (n = BIO_read(SSL_get_wbio(ssl_), bytes.data(), static_cast<int>(bytes.size()))) > 0;)
      wire.append(bytes.data(), static_cast<std::size_t>(n));
  }

 private:
  void show(const credentials& from, const std::string& name) {
    BOOST_REQUIRE(SSL_CTX_use_certificate_file(context_, from.file(name + ".crt").c_str(),
                                               SSL_FILETYPE_PEM) == 1);
    BOOST_REQUIRE(SSL_CTX_use_PrivateKey_file(context_, from.file(name + ".key").c_str(),
                                              SSL_FILETYPE_PEM) == 1);
  }
  SSL_CTX* context_;
  SSL* ssl_;
};

/// Two ends of ours, and what each said of its input.
struct two_ends {
  tls_channel dialled, accepted;
  std::array<std::string, 2> plain;  ///< That the accepting end, the dialling end was told.
  std::array<std::string, 2> problem;
  std::size_t flip =
      all;  ///< Of the bytes in all, in the order in which they go: the one that is damaged.
  std::size_t gone = 0;

  two_ends(std::shared_ptr<const net::tls_identity> dials,
           std::shared_ptr<const net::tls_identity> accepts, stream which = stream::fast)
      : dialled(std::move(dials), which), accepted(std::move(accepts)) {}

  /// Until both have nothing to say, in pieces of so many bytes.
  void run(std::size_t piece = all) {
    for (bool moved = true; moved;) {
      moved = move(dialled, accepted, 0, piece);
      moved |= move(accepted, dialled, 1, piece);
    }
  }
  bool move(tls_channel& from, tls_channel& to, std::size_t end, std::size_t piece) {
    std::string wire;
    from.take_output(wire);
    if (flip >= gone && flip - gone < wire.size()) wire[flip - gone] ^= 0x10;
    gone += wire.size();
    for (std::size_t at = 0; at < wire.size(); at += std::min(piece, wire.size() - at))
      if (const auto taken = to.take(std::string_view(wire).substr(at, piece), plain[end]);
          !taken && problem[end].empty())
        problem[end] = taken.error().message;
    return !wire.empty();
  }
  bool established() const { return dialled.established() && accepted.established(); }
};

/// What the end of ours says of a stranger; empty: nothing against it.
std::string said_of(tls_channel& ours, stranger& theirs) {
  std::string plain;
  for (bool moved = true; moved;) {
    std::string there, back;
    theirs.take_output(there);
    if (const auto taken = ours.take(there, plain); !taken) return taken.error().message;
    ours.take_output(back);
    theirs.take(back, plain);
    moved = !there.empty() || !back.empty();
  }
  return {};
}

struct cluster_of_two {
  credentials issued{"tls"};
  std::shared_ptr<const net::tls_identity> berlin = issued.identity("berlin"),
                                           paris = issued.identity("paris");
  std::string said_of_a_dialler(const strange& how) const { return said_of_a_dialler(how, issued); }
  std::string said_of_a_dialler(const strange& how, const credentials& from) const {
    stranger theirs(from, how);
    tls_channel ours(berlin);
    auto said = said_of(ours, theirs);
    BOOST_TEST(ours.established() == said.empty());
    return said;
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(tls, cluster_of_two)

BOOST_AUTO_TEST_CASE(both_ends_learn_the_others_name_and_which_stream_it_is) {
  const auto ann = issued.identity("ann", net::role::viewer);
  for (const auto which : {stream::fast, stream::bulk}) {
    two_ends ends(ann, berlin, which);
    BOOST_TEST(!ends.established());
    ends.run();
    BOOST_TEST_REQUIRE(ends.established(), ends.problem[0] + ends.problem[1]);
    BOOST_TEST((ends.accepted.peer() == net::certificate_name{"edge8", net::role::viewer, "ann"}));
    BOOST_TEST((ends.dialled.peer() == net::certificate_name{"edge8", net::role::node, "berlin"}));
    BOOST_TEST((ends.accepted.which() == which));
    BOOST_TEST((ends.dialled.which() == which));
  }
}

BOOST_AUTO_TEST_CASE(a_handshake_comes_in_pieces_of_any_size) {
  for (const std::size_t piece : {1u, 2u, 5u, 100u, 1000u}) {
    two_ends ends(paris, berlin, stream::bulk);
    ends.run(piece);
    BOOST_TEST_REQUIRE(ends.established(), piece << ": " << ends.problem[0] << ends.problem[1]);
    BOOST_TEST(ends.accepted.peer().name == "paris");
    BOOST_REQUIRE(ends.dialled.put("in pieces").has_value());
    ends.run(piece);
    BOOST_TEST(ends.plain[0] == "in pieces");
  }
}

BOOST_AUTO_TEST_CASE(data_of_every_size_goes_both_ways) {
  two_ends ends(paris, berlin);
  ends.run();
  random_stream draws(1);
  for (const std::size_t size : {1u, 2u, 100u, 16'383u, 16'384u, 16'385u, 100'000u, 1u << 20}) {
    std::array<std::string, 2> sent;
    for (auto& each : sent)
      for (std::size_t i = 0; i < size; ++i) each += static_cast<char>(draws.bits());
    ends.plain = {};
    BOOST_REQUIRE(ends.dialled.put(sent[0]).has_value());
    BOOST_REQUIRE(ends.accepted.put(sent[1]).has_value());
    ends.run(1 + draws.below(5000));
    for (std::size_t end = 0; end < 2; ++end) BOOST_TEST((ends.plain[end] == sent[end]), size);
  }
  BOOST_REQUIRE(ends.dialled.put("").has_value());
  ends.plain = {};
  ends.run();
  BOOST_TEST(ends.plain[0].empty());
  BOOST_TEST(ends.problem[0] + ends.problem[1] == "");
}

BOOST_AUTO_TEST_CASE(data_may_come_with_the_end_of_the_handshake) {
  two_ends ends(paris, berlin);
  ends.move(ends.dialled, ends.accepted, 0, all);
  ends.move(ends.accepted, ends.dialled, 1, all);
  BOOST_TEST_REQUIRE(ends.dialled.established());
  BOOST_TEST(!ends.accepted.established());
  BOOST_REQUIRE(ends.dialled.put("early").has_value());
  ends.run();
  BOOST_TEST(ends.accepted.established());
  BOOST_TEST(ends.plain[0] == "early");
}

BOOST_AUTO_TEST_CASE(what_is_said_is_not_on_the_wire) {
  two_ends ends(paris, berlin);
  ends.run();
  const std::string secret = "hidden state of layer 7";
  BOOST_REQUIRE(ends.dialled.put(secret).has_value());
  std::string wire;
  ends.dialled.take_output(wire);
  BOOST_TEST(wire.size() > secret.size());
  BOOST_TEST(!has(wire, secret.c_str()));
  std::string nothing;
  ends.dialled.take_output(nothing);
  BOOST_TEST(nothing.empty());
}

BOOST_AUTO_TEST_CASE(an_end_is_told_from_a_connection_that_breaks) {
  two_ends ends(paris, berlin);
  ends.run();
  BOOST_REQUIRE(ends.dialled.put("last words").has_value());
  ends.dialled.end();
  BOOST_TEST(!ends.accepted.ended());
  ends.run();
  BOOST_TEST(ends.accepted.ended());
  BOOST_TEST(ends.plain[0] == "last words");
  BOOST_TEST(ends.problem[0] == "");
  BOOST_TEST(!ends.dialled.put("more").has_value());
}

BOOST_AUTO_TEST_CASE(nothing_is_said_at_the_end_of_a_handshake_that_was_not) {
  tls_channel ours(berlin);
  ours.end();
  std::string wire;
  ours.take_output(wire);
  BOOST_TEST(wire.empty());
}

BOOST_AUTO_TEST_CASE(the_certificate_of_another_authority_is_refused_by_whoever_sees_it) {
  const credentials other("tls-other");
  const auto imposter = other.identity("paris");
  two_ends dials(imposter, berlin);
  dials.run();
  BOOST_TEST(has(dials.problem[1], "the peer's certificate: self-signed certificate in"),
             dials.problem[1]);
  BOOST_TEST(!dials.established());
  two_ends accepts(berlin, imposter);
  accepts.run();
  BOOST_TEST(has(accepts.problem[1], "the peer's certificate: self-signed certificate in"),
             accepts.problem[1]);
  BOOST_TEST(has(accepts.problem[0], "unknown ca"), accepts.problem[0]);
  // One that looks at no certificate itself.
  BOOST_TEST(has(said_of_a_dialler({"paris"}, other),
                 "the peer's certificate: unable to get local issuer"));
}

BOOST_AUTO_TEST_CASE(the_certificate_of_another_cluster_under_the_same_authority_is_refused) {
  issued.sign({"lyon", "URI:ordermoe://edge9/node/lyon"});
  two_ends dials(issued.identity("lyon"), berlin);
  dials.run();
  BOOST_TEST(has(dials.problem[0], "of cluster edge9, expected edge8"), dials.problem[0]);
  BOOST_TEST(has(dials.problem[1], "of cluster edge8, expected edge9"), dials.problem[1]);
  BOOST_TEST(!dials.accepted.established());
  two_ends accepts(berlin, issued.identity("lyon"));
  accepts.run();
  BOOST_TEST(has(accepts.problem[1], "of cluster edge9, expected edge8"), accepts.problem[1]);
  BOOST_TEST(!accepts.dialled.established());
}

BOOST_AUTO_TEST_CASE(a_certificate_that_is_not_in_force_is_refused) {
  issued.sign({"old", "URI:ordermoe://edge8/node/old", -7200, -3600});
  issued.sign({"young", "URI:ordermoe://edge8/node/young", 3600, 7200});
  BOOST_TEST(has(said_of_a_dialler({"old"}), "the peer's certificate: certificate has expired"));
  BOOST_TEST(
      has(said_of_a_dialler({"young"}), "the peer's certificate: certificate is not yet valid"));
  const auto own = net::tls_identity::load(issued.file("ca.crt"), issued.file("old.crt"),
                                           issued.file("old.key"));
  BOOST_REQUIRE(!own.has_value());
  BOOST_TEST(has(own.error().message, "old.crt: expired on"), own.error().message);
}

BOOST_AUTO_TEST_CASE(a_certificate_without_one_name_of_ours_is_refused) {
  issued.sign({"nobody", ""});
  issued.sign({"web", "DNS:berlin.lan,URI:https://edge8/node/berlin"});
  for (const char* name : {"nobody", "web"})
    BOOST_TEST(has(said_of_a_dialler({name}), "its certificate has no name of ours"), name);
  issued.sign({"two", "URI:ordermoe://edge8/viewer/ann,URI:ordermoe://edge8/node/berlin"});
  BOOST_TEST(has(said_of_a_dialler({"two"}), "its certificate has more than one name of ours"));
}

BOOST_AUTO_TEST_CASE(a_clients_certificate_does_not_make_a_server) {
  two_ends ends(berlin, issued.identity("ann", net::role::viewer));
  ends.run();
  BOOST_TEST(has(ends.problem[1], "purpose"), ends.problem[1]);
  BOOST_TEST(!ends.established());
}

BOOST_AUTO_TEST_CASE(whoever_shows_no_certificate_is_refused) {
  BOOST_TEST(has(said_of_a_dialler({}), "peer did not return a certificate"));
}

BOOST_AUTO_TEST_CASE(tls_1_2_is_refused) {
  BOOST_TEST(
      has(said_of_a_dialler({"paris", "ordermoe-fast/1", TLS1_2_VERSION}), "unsupported protocol"));
  stranger accepts(issued, {"paris", "", TLS1_2_VERSION, true});
  tls_channel ours(berlin, stream::fast);
  BOOST_TEST(!said_of(ours, accepts).empty());
  BOOST_TEST(!ours.established());
}

BOOST_AUTO_TEST_CASE(other_protocols_over_tls_are_refused) {
  BOOST_TEST(has(said_of_a_dialler({"paris", ""}), "no protocol of ours"));
  for (const char* other : {"h2", "ordermoe-fast/2", "ordermoe-fast/", "ordermoe-fast/1x"})
    BOOST_TEST(has(said_of_a_dialler({"paris", other}), "no application protocol"), other);
  // A server that does not know of protocols takes none of them up.
  stranger accepts(issued, {"paris", "", TLS1_3_VERSION, true});
  tls_channel ours(berlin, stream::fast);
  BOOST_TEST(has(said_of(ours, accepts), "no protocol of ours"));
  BOOST_TEST(!ours.established());
}

BOOST_AUTO_TEST_CASE(a_stranger_with_everything_right_is_taken) {
  for (const char* protocol : {"ordermoe-fast/1", "ordermoe-bulk/1"})
    BOOST_TEST(said_of_a_dialler({"paris", protocol}) == "");
}

BOOST_AUTO_TEST_CASE(what_is_no_tls_is_refused_by_either_end) {
  random_stream draws(3);
  std::string noise(5000, '\0');
  for (auto& each : noise) each = static_cast<char>(draws.bits());
  noise[0] = 'x';  // No record begins with it.
  for (const std::string& text :
       {std::string("GET / HTTP/1.1\r\nHost: berlin\r\n\r\n"),
        std::string("PRI * HTTP/2.0\r\n\r\n"), std::string("ssh, or anything that is plain text"),
        noise, std::string(100, '\0')}) {
    std::string plain;
    tls_channel accepts(berlin);
    const auto taken = accepts.take(text, plain);
    BOOST_REQUIRE(!taken.has_value());
    BOOST_TEST((taken.error().code == errc::malformed));
    BOOST_TEST(has(taken.error().message, "TLS: "), taken.error().message);
    BOOST_TEST(!has(taken.error().message, "no reason given"), taken.error().message);
    tls_channel dials(berlin, stream::fast);
    BOOST_TEST(!dials.take(text, plain).has_value());
    // Whatever follows, it stays so.
    for (int i = 0; i < 3; ++i) BOOST_TEST(!accepts.take(text, plain).has_value());
    BOOST_TEST(!accepts.established());
    BOOST_TEST(plain.empty());
  }
}

BOOST_AUTO_TEST_CASE(http_is_called_so) {
  std::string plain;
  tls_channel accepts(berlin);
  const auto taken = accepts.take("GET / HTTP/1.1\r\n\r\n", plain);
  BOOST_REQUIRE(!taken.has_value());
  BOOST_TEST(has(taken.error().message, "http request"), taken.error().message);
}

BOOST_AUTO_TEST_CASE(a_damaged_record_is_refused_and_what_came_before_it_is_not_lost) {
  for (const std::size_t place : {0u, 1u, 3u, 5u, 30u, 60u}) {
    two_ends ends(paris, berlin);
    ends.run();
    BOOST_REQUIRE(ends.dialled.put("whole").has_value());
    std::string first, second;
    ends.dialled.take_output(first);
    BOOST_REQUIRE(ends.dialled.put(std::string(50, 'x')).has_value());
    ends.dialled.take_output(second);
    second[place] ^= 0x40;
    std::string plain;
    const auto taken = ends.accepted.take(first + second + std::string(20'000, '\0'), plain);
    BOOST_TEST(!taken.has_value(), place);
    BOOST_TEST(plain == "whole");
    if (!taken) BOOST_TEST(has(taken.error().message, "TLS: "), taken.error().message);
    BOOST_TEST(!ends.accepted.take("", plain).has_value(), place);
  }
}

BOOST_AUTO_TEST_CASE(a_handshake_that_is_damaged_anywhere_fails_or_still_tells_the_truth) {
  std::size_t size = 0, failed = 0, tried = 0;
  {
    two_ends ends(paris, berlin);
    ends.run();
    size = ends.gone;
  }
  for (std::size_t flip = 0; flip < size; flip += 9) {
    two_ends ends(paris, berlin);
    ends.flip = flip;
    ends.run();
    ++tried;
    failed += ends.problem[0].empty() && ends.problem[1].empty() ? 0 : 1;
    if (ends.accepted.established()) BOOST_TEST(ends.accepted.peer().name == "paris");
    if (ends.dialled.established()) BOOST_TEST(ends.dialled.peer().name == "berlin");
  }
  // What no end checks: the version of the outermost record, or a length that waits for more.
  BOOST_TEST(failed * 10 > tried * 9, failed << " of " << tried);
}

BOOST_AUTO_TEST_CASE(a_record_that_comes_twice_is_refused) {
  two_ends ends(paris, berlin);
  ends.run();
  BOOST_REQUIRE(ends.dialled.put("once").has_value());
  std::string wire, plain;
  ends.dialled.take_output(wire);
  BOOST_TEST(ends.accepted.take(wire, plain).has_value());
  BOOST_TEST(!ends.accepted.take(wire, plain).has_value());
  BOOST_TEST(plain == "once");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
