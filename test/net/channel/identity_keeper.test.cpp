#include "net/channel/identity_keeper.hpp"

#include <boost/test/unit_test.hpp>

#include "config/files.hpp"
#include "test/net/channel/credentials.hpp"

namespace ordermoe {

namespace {

namespace fs = std::filesystem;
using test::credentials;

std::string text_of(const fs::path& file) {
  const auto text = read_file(file);
  BOOST_REQUIRE(text.has_value());
  return *text;
}

struct kept {
  credentials issued{"keeper"};
  net::identity_files files;
  std::vector<net::identity_keeper::identity_ptr> used;
  std::unique_ptr<net::identity_keeper> keeper;

  kept() {
    issued.identity("a");
    issued.identity("b");
    files = {issued.file("ca.crt"), issued.file("a.crt"), issued.file("a.key"),
             issued.file("ca.crl"), issued.file("state") / "ca.crl"};
    start();
  }
  void start() {
    auto first = net::tls_identity::load(files);
    BOOST_REQUIRE(first.has_value());
    keeper = std::make_unique<net::identity_keeper>(*first);
    keeper->tell([this](const auto& next) { used.push_back(next); });
  }
  void renew(const char* name) const {
    BOOST_REQUIRE(net::renew(issued.file(""), name, {}).has_value());
  }
  std::string serial(const char* name) const {
    return net::read_certificate(issued.file(name))->serial;
  }
  void revoke(const std::string& what) const {
    BOOST_REQUIRE(net::revoke(issued.file(""), what, net::revoke_which::all).has_value());
  }
  /// What a look makes of it; "": nothing.
  std::string look() const {
    const auto made = keeper->look();
    if (!made) return made.error().message;
    if (!*made) return "";
    return std::string((*made)->certificate ? "certificate " : "") +
           ((*made)->revocations ? "revocations" : "");
  }
};

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(identity_keeper, kept)

BOOST_AUTO_TEST_CASE(a_certificate_that_is_renewed_is_used_once) {
  BOOST_TEST(look() == "");
  renew("a");
  BOOST_TEST(look() == "certificate ");
  BOOST_TEST(look() == "");
  BOOST_REQUIRE(used.size() == 1u);
  BOOST_TEST(used[0]->facts().serial == serial("a.crt"));
  BOOST_TEST(keeper->now() == used[0]);
}

BOOST_AUTO_TEST_CASE(what_was_replaced_before_anybody_looked_is_seen) {
  auto first = net::tls_identity::load(files);
  BOOST_REQUIRE(first.has_value());
  // As while a model loads.
  renew("a");
  keeper = std::make_unique<net::identity_keeper>(*first);
  BOOST_TEST(look() == "certificate ");
  BOOST_TEST(keeper->now()->facts().serial == serial("a.crt"));
}

BOOST_AUTO_TEST_CASE(files_that_stay_broken_are_told_of_once_and_change_nothing) {
  const auto whole = text_of(issued.file("a.crt"));
  const auto before = keeper->now();
  BOOST_REQUIRE(write_file(issued.file("a.crt"), "half a certifi").has_value());
  BOOST_TEST(look() == "");
  BOOST_TEST(has(look(), "a.crt: found no certificate"));
  BOOST_TEST(look() == "");
  BOOST_TEST(keeper->now() == before);
  fs::remove(issued.file("a.crt"));
  BOOST_TEST(look() == "");
  BOOST_TEST(has(look(), "a.crt"));
  // A pair that does not fit, as between the two steps of replacing it, is not told.
  renew("b");
  fs::copy_file(issued.file("b.key"), issued.file("a.key"), fs::copy_options::overwrite_existing);
  BOOST_REQUIRE(write_file(issued.file("a.crt"), whole).has_value());
  BOOST_TEST(look() == "");
  fs::copy_file(issued.file("b.crt"), issued.file("a.crt"), fs::copy_options::overwrite_existing);
  BOOST_TEST(look() == "");
  BOOST_TEST(has(look(), "expected one of ordermoe://edge8/node/a"));
  BOOST_TEST(used.empty());
}

BOOST_AUTO_TEST_CASE(a_list_of_what_is_revoked_is_used_and_kept) {
  const auto ann = issued.identity("ann", net::role::viewer)->facts().serial;
  revoke("ann");
  BOOST_TEST(look() == "revocations");
  BOOST_TEST(keeper->now()->is_revoked(ann));
  BOOST_TEST(text_of(files.kept_revocations) == text_of(files.revocations));
  // It holds without the operator's file, also in another process.
  fs::remove(files.revocations);
  BOOST_TEST(look() == "");
  BOOST_TEST(keeper->now()->is_revoked(ann));
  start();
  BOOST_TEST(keeper->now()->is_revoked(ann));
}

BOOST_AUTO_TEST_CASE(a_list_that_cannot_be_kept_holds_all_the_same_and_is_kept_once_it_can_be) {
  BOOST_REQUIRE(write_file(issued.file("state"), "no folder").has_value());
  revoke("b");
  const auto made = keeper->look();
  BOOST_REQUIRE(made.has_value() && made->has_value());
  BOOST_REQUIRE((*made)->unkept.has_value());
  BOOST_TEST(has((*made)->unkept->message, "ca.crl"), (*made)->unkept->message);
  BOOST_TEST(used.size() == 1u);
  BOOST_TEST(keeper->now()->revocations().number == 1u);
  BOOST_TEST(look() == "");
  fs::remove(issued.file("state"));
  BOOST_TEST(look() == "");
  BOOST_TEST(text_of(files.kept_revocations) == text_of(files.revocations));
}

BOOST_AUTO_TEST_CASE(of_lists_that_come_from_elsewhere_only_newer_ones_of_the_authority_count) {
  revoke("b");
  const auto first = text_of(files.revocations);
  revoke("a");
  const auto second = text_of(files.revocations);
  fs::remove(files.revocations);
  const auto takes = [&](const std::string& pem, bool try_only = false) {
    const auto made = keeper->take_revocations(pem, try_only);
    return made ? made->has_value() ? "newer" : "known" : made.error().message;
  };
  BOOST_TEST(takes(second, true) == "newer");
  BOOST_TEST(used.empty());
  BOOST_TEST(takes(second) == "newer");
  BOOST_TEST(takes(second) == "known");
  BOOST_TEST(takes(first) == "known");
  BOOST_TEST(has(takes("nonsense"), "found no list of revoked certificates"));
  BOOST_REQUIRE(used.size() == 1u);
  BOOST_TEST(keeper->now()->revocations().number == 2u);
  BOOST_TEST(text_of(files.kept_revocations) == second);
  // An older file does not bring back what was revoked.
  BOOST_REQUIRE(write_file(files.revocations, first).has_value());
  BOOST_TEST(look() == "");
  BOOST_TEST(keeper->now()->revocations().number == 2u);
}

BOOST_AUTO_TEST_CASE(where_nobody_can_be_refused_no_list_is_taken_and_the_remedy_is_named) {
  auto first = net::tls_identity::load(files);
  keeper = std::make_unique<net::identity_keeper>(*first, net::revocation_use::impossible);
  keeper->tell([this](const auto& next) { used.push_back(next); });
  BOOST_TEST(look() == "");
  revoke("b");
  const auto list = text_of(files.revocations);
  const auto taken = keeper->take_revocations(list);
  BOOST_REQUIRE(!taken);
  BOOST_CHECK(taken.error().code == errc::unsupported);
  BOOST_TEST(has(taken.error().message, "set channel = \"asio\""), taken.error().message);
  // Files that change together are read again before anybody hears of them.
  BOOST_TEST(look() == "");
  const auto why = look();
  BOOST_TEST(has(why, "ca.crl: revokes 1 certificates"), why);
  BOOST_TEST(used.empty());
  BOOST_TEST(keeper->now()->revocations().number == 0u);
  // Of a list that revokes nobody nothing is missed.
  auto nobody = keeper->now()->revocations();
  nobody.revoked.clear();
  BOOST_TEST(net::check_can_honour(nobody, net::revocation_use::impossible, "ca.crl").has_value());
}

BOOST_AUTO_TEST_CASE(what_would_be_done_changes_nothing) {
  renew("a");
  const auto made = keeper->reload(true);
  BOOST_REQUIRE(made.has_value() && made->has_value());
  BOOST_TEST((*made)->certificate);
  BOOST_TEST(used.empty());
  BOOST_TEST(look() == "certificate ");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
