#include "net/identity/revocations.hpp"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "config/files.hpp"

namespace ordermoe {

namespace {

namespace fs = std::filesystem;
using net::revoke_which;

struct scratch_folder {
  fs::path path = fs::temp_directory_path() / ("ordermoe-revoked-" + std::to_string(::getpid()));
  scratch_folder() {
    fs::remove_all(path);
    BOOST_REQUIRE(net::make_authority(path / "a", "edge8", 3650).has_value());
    BOOST_REQUIRE(net::make_authority(path / "b", "edge8", 3650).has_value());
    issue("berlin", net::role::node);
    issue("ann", net::role::viewer);
  }
  ~scratch_folder() { fs::remove_all(path); }

  fs::path in(const char* name) const { return path / "a" / name; }
  void issue(const char* name, net::role of) const {
    BOOST_REQUIRE(net::issue(path / "a", {of, name, {"10.0.0.7", "berlin.lan"}, 90}).has_value());
  }
  std::string serial(const char* name) const {
    const auto facts = net::read_certificate(in(name));
    BOOST_REQUIRE(facts.has_value());
    return facts->serial;
  }
  net::certificate_facts renew(const char* name, net::renewal wanted = {}) const {
    auto before = net::renew(path / "a", name, wanted);
    BOOST_REQUIRE(before.has_value());
    return *before;
  }
  net::revocation_list list() const {
    const auto read = net::read_revocations(in("ca.crl"), in("ca.crt"));
    BOOST_REQUIRE(read.has_value() && read->has_value());
    return **read;
  }
  std::size_t revoke(const std::string& what, revoke_which which = revoke_which::all) const {
    const auto revoked = net::revoke(path / "a", what, which);
    BOOST_REQUIRE(revoked.has_value());
    return revoked->size();
  }
};

template <class T>
std::string problem(const result<T>& refused) {
  BOOST_REQUIRE(!refused.has_value());
  return refused.error().message;
}
bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}
std::string text_of(const fs::path& file) {
  const auto text = read_file(file);
  BOOST_REQUIRE(text.has_value());
  return *text;
}
std::int64_t now_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(revocations, scratch_folder)

BOOST_AUTO_TEST_CASE(a_renewed_certificate_has_the_same_name_role_and_hosts_and_a_new_key) {
  const auto before = *net::read_certificate(in("ann.crt"));
  const auto key = text_of(in("ann.key"));
  const auto told = renew("ann", {.days = 30, .keeps_key = false});
  BOOST_TEST(told.serial == before.serial);
  const auto after = *net::read_certificate(in("ann.crt"));
  BOOST_TEST(after.serial != before.serial);
  BOOST_TEST(after.uri == before.uri);
  BOOST_TEST(after.hosts == before.hosts, boost::test_tools::per_element());
  BOOST_TEST(std::abs(after.not_after_s - now_s() - 30 * 86'400) < 60);
  BOOST_TEST(text_of(in("ann.key")) != key);
  BOOST_TEST(net::check_identity(in("ca.crt"), in("ann.crt"), in("ann.key"), now_s()).has_value());
  struct stat mode {};
  BOOST_REQUIRE(::stat(in("ann.key").c_str(), &mode) == 0);
  BOOST_TEST((mode.st_mode & 0777) == 0600u);
}

BOOST_AUTO_TEST_CASE(a_certificate_can_be_renewed_for_the_key_that_it_has) {
  const auto key = text_of(in("berlin.key"));
  const auto before = serial("berlin.crt");
  renew("berlin", {.days = 365, .keeps_key = true});
  BOOST_TEST(text_of(in("berlin.key")) == key);
  BOOST_TEST(serial("berlin.crt") != before);
  BOOST_TEST(
      net::check_identity(in("ca.crt"), in("berlin.crt"), in("berlin.key"), now_s()).has_value());
}

BOOST_AUTO_TEST_CASE(what_cannot_be_renewed_is_said) {
  BOOST_TEST(has(problem(net::renew(path / "a", "oslo", {})), "there is none to renew"));
  BOOST_TEST(has(problem(net::renew(path / "a", "ca", {})), "that is the authority"));
  BOOST_TEST(has(problem(net::renew(path / "a", "ann", {.days = 0})), "expected 1 to 36500"));
  fs::copy_file(in("ann.crt"), in("oslo.crt"));
  BOOST_TEST(has(problem(net::renew(path / "a", "oslo", {})), "expected oslo of cluster edge8"));
}

BOOST_AUTO_TEST_CASE(a_list_has_what_was_revoked_and_its_number_grows) {
  const auto none = net::read_revocations(in("ca.crl"), in("ca.crt"));
  BOOST_REQUIRE(none.has_value());
  BOOST_TEST(!none->has_value());
  const auto ann = serial("ann.crt"), berlin = serial("berlin.crt");
  BOOST_TEST(revoke("ann") == 1u);
  BOOST_TEST(list().number == 1u);
  BOOST_TEST(list().has(ann));
  BOOST_TEST(!list().has(berlin));
  BOOST_TEST(std::abs(list().issued_s - now_s()) < 60);
  BOOST_TEST(revoke(berlin) == 1u);
  BOOST_TEST(list().number == 2u);
  BOOST_TEST(list().has(ann));
  BOOST_TEST(list().has(berlin));
  BOOST_TEST(list().revoked.size() == 2u);
}

BOOST_AUTO_TEST_CASE(who_revoke_at_once_revoke_all) {
  std::vector<std::string> names;
  for (int i = 0; i < 6; ++i) {
    names.push_back("n" + std::to_string(i));
    issue(names.back().c_str(), net::role::viewer);
  }
  std::vector<std::thread> all;
  std::atomic<int> n_done = 0;
  for (const auto& name : names)
    all.emplace_back(
        [&] { n_done += net::revoke(path / "a", name, revoke_which::all).has_value() ? 1 : 0; });
  for (auto& each : all) each.join();
  BOOST_TEST(n_done == 6);
  BOOST_TEST(list().number == 6u);
  BOOST_TEST(list().revoked.size() == 6u);
}

BOOST_AUTO_TEST_CASE(a_name_means_all_of_its_certificates_or_all_but_the_latest) {
  const auto first = renew("berlin").serial;
  const auto second = renew("berlin").serial;
  BOOST_TEST(revoke("berlin", revoke_which::all_but_latest) == 2u);
  BOOST_TEST(list().has(first));
  BOOST_TEST(list().has(second));
  BOOST_TEST(!list().has(serial("berlin.crt")));
  BOOST_TEST(has(problem(net::revoke(path / "a", "berlin", revoke_which::all_but_latest)),
                 "only the latest is in force"));
  BOOST_TEST(revoke("berlin") == 1u);
  BOOST_TEST(list().has(serial("berlin.crt")));
  BOOST_TEST(has(problem(net::revoke(path / "a", "berlin", revoke_which::all)),
                 "all of it was revoked before"));
}

BOOST_AUTO_TEST_CASE(certificates_of_a_folder_without_a_list_of_what_was_issued_can_be_revoked) {
  fs::remove(in("issued"));
  BOOST_TEST(revoke("berlin") == 1u);
  BOOST_TEST(list().has(serial("berlin.crt")));
  BOOST_TEST(has(problem(net::revoke(path / "a", "oslo", revoke_which::all)),
                 "neither a certificate in force of the name 'oslo'"));
  BOOST_REQUIRE(write_file(in("issued"), "zz node berlin\n").has_value());
  BOOST_TEST(has(problem(net::read_issued(path / "a")), "issued:1: found 'zz node berlin'"));
}

BOOST_AUTO_TEST_CASE(half_a_line_at_the_end_of_what_was_issued_is_no_certificate_and_takes_none) {
  const auto n = net::read_issued(path / "a")->size();
  const auto text = text_of(in("issued"));
  const std::string half = "ab12 node ber";
  BOOST_REQUIRE(write_file(in("issued"), text + half).has_value());
  const auto all = net::read_issued(path / "a");
  BOOST_REQUIRE_MESSAGE(all.has_value(), (all ? "" : all.error().message));
  BOOST_TEST(all->size() == n);
  // Whole but for its newline, as an editor may leave the last line.
  BOOST_REQUIRE(write_file(in("issued"), text.substr(0, text.size() - 1)).has_value());
  BOOST_TEST(net::read_issued(path / "a")->size() == n);
  BOOST_REQUIRE(write_file(in("issued"), text + half).has_value());
  renew("berlin");
  const auto line = serial("berlin.crt") + " node berlin ";
  BOOST_TEST(text_of(in("issued")).starts_with(text + line));
  BOOST_TEST(net::read_issued(path / "a")->size() == n + 1);
  BOOST_REQUIRE(write_file(in("issued"), text.substr(0, text.size() - 1)).has_value());
  renew("berlin");
  BOOST_TEST(text_of(in("issued")).starts_with(text + serial("berlin.crt") + " node berlin "));
}

BOOST_AUTO_TEST_CASE(a_disk_that_fills_up_while_a_certificate_is_listed_is_told) {
  const auto n = net::read_issued(path / "a")->size();
  const auto previous = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  BOOST_REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  auto small = before;
  small.rlim_cur = fs::file_size(in("issued")) + 10;
  BOOST_REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const auto refused = net::add_issued(path / "a", {"ab12", net::role::node, "berlin", 1});
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, previous);
  BOOST_TEST(has(problem(refused), "issued: cannot be written: "));
  BOOST_TEST(has(problem(refused), std::strerror(EFBIG)));
  BOOST_TEST(fs::file_size(in("issued")) == small.rlim_cur - 10);
  BOOST_TEST(net::read_issued(path / "a")->size() == n);
}

BOOST_AUTO_TEST_CASE(only_the_own_authoritys_whole_lists_are_believed) {
  revoke("ann");
  const auto pem = text_of(in("ca.crl"));
  BOOST_TEST(has(problem(net::parse_revocations(pem, path / "b" / "ca.crt", "theirs")),
                 "theirs: is not signed by"));
  auto changed = pem;
  const auto at = pem.size() / 2;
  changed[at] = changed[at] == 'A' ? 'B' : 'A';
  BOOST_TEST(!net::parse_revocations(changed, in("ca.crt"), "changed").has_value());
  BOOST_TEST(has(problem(net::parse_revocations("nonsense", in("ca.crt"), "it")),
                 "it: found no list of revoked certificates"));
  const std::string much(net::most_revocations_bytes + 1, 'x');
  BOOST_TEST(has(problem(net::parse_revocations(much, in("ca.crt"), "it")), "expected at most"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
