#include "net/identity/certificates.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <fstream>

namespace ordermoe {

namespace {

namespace fs = std::filesystem;

struct scratch_folder {
  fs::path path = fs::temp_directory_path() / ("ordermoe-cert-" + std::to_string(::getpid()));
  scratch_folder() { fs::remove_all(path); }
  ~scratch_folder() { fs::remove_all(path); }
};

std::int64_t now_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

template <class T>
std::string problem(const result<T>& refused) {
  BOOST_REQUIRE(!refused.has_value());
  return refused.error().message;
}
bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(certificates)

BOOST_AUTO_TEST_CASE(what_an_authority_issues_says_who_it_is_and_is_checked) {
  const scratch_folder folder;
  const auto in = [&](const char* name) { return folder.path / name; };
  BOOST_REQUIRE(net::make_authority(folder.path, "edge8", 3650).has_value());
  BOOST_REQUIRE(net::issue(folder.path,
                           {net::role::node, "berlin", {"10.0.0.7", "fd00::7", "berlin.lan"}, 90})
                    .has_value());
  BOOST_REQUIRE(net::issue(folder.path, {net::role::viewer, "ann", {}, 1}).has_value());
  const auto facts = net::read_certificate(in("berlin.crt"));
  BOOST_REQUIRE(facts.has_value());
  BOOST_TEST(facts->uri == "ordermoe://edge8/node/berlin");
  BOOST_TEST(!facts->is_authority);
  BOOST_TEST(facts->fingerprint.size() == 64u);
  const std::vector<std::string> hosts{"10.0.0.7", "fd00:0:0:0:0:0:0:7", "berlin.lan"};
  BOOST_TEST(facts->hosts == hosts, boost::test_tools::per_element());
  BOOST_TEST(std::abs(facts->not_after_s - now_s() - 90 * 86'400) < 60);
  const auto root = net::read_certificate(in("ca.crt"));
  BOOST_REQUIRE(root.has_value());
  BOOST_TEST(root->is_authority);
  BOOST_TEST(facts->issuer == root->subject);
  BOOST_TEST(facts->serial != root->serial);

  const auto who = net::check_identity(in("ca.crt"), in("berlin.crt"), in("berlin.key"), now_s());
  BOOST_REQUIRE(who.has_value());
  BOOST_TEST((*who == net::certificate_name{"edge8", net::role::node, "berlin"}));
  const auto viewer = net::check_identity(in("ca.crt"), in("ann.crt"), in("ann.key"), now_s());
  BOOST_REQUIRE(viewer.has_value());
  BOOST_TEST((viewer->of == net::role::viewer));

  struct stat key {};
  BOOST_REQUIRE(::stat(in("berlin.key").c_str(), &key) == 0);
  BOOST_TEST((key.st_mode & 0777) == 0600u);

  BOOST_TEST(
      has(problem(net::check_identity(in("ca.crt"), in("berlin.crt"), in("ann.key"), now_s())),
          "ann.key: is not the key of"));
  BOOST_TEST(has(problem(net::check_identity(in("ca.crt"), in("ann.crt"), in("ann.key"),
                                             now_s() + 3 * 86'400)),
                 "expired on 20"));
  BOOST_TEST(has(
      problem(net::check_identity(in("ca.crt"), in("ann.crt"), in("ann.key"), now_s() - 86'400)),
      "is in force from 20"));
  BOOST_TEST(has(problem(net::check_identity(in("ca.crt"), in("ca.crt"), in("ca.key"), now_s())),
                 "URI: found ''"));
  fs::permissions(in("ann.key"), fs::perms::group_read, fs::perm_options::add);
  BOOST_TEST(has(problem(net::check_identity(in("ca.crt"), in("ann.crt"), in("ann.key"), now_s())),
                 "chmod 600"));
}

BOOST_AUTO_TEST_CASE(the_longest_names_fit_into_a_certificate) {
  const scratch_folder folder;
  const std::string longest(63, 'a');
  BOOST_REQUIRE(net::make_authority(folder.path, longest, 10).has_value());
  BOOST_REQUIRE(net::issue(folder.path, {net::role::operate, longest, {}, 10}).has_value());
  const auto who =
      net::check_identity(folder.path / "ca.crt", folder.path / fmt::format("{}.crt", longest),
                          folder.path / fmt::format("{}.key", longest), now_s());
  BOOST_REQUIRE(who.has_value());
  BOOST_TEST((*who == net::certificate_name{longest, net::role::operate, longest}));
}

BOOST_AUTO_TEST_CASE(another_authoritys_certificates_do_not_count) {
  const scratch_folder folder;
  const auto own = folder.path / "own", other = folder.path / "other";
  BOOST_REQUIRE(net::make_authority(own, "edge8", 10).has_value());
  BOOST_REQUIRE(net::make_authority(other, "edge8", 10).has_value());
  BOOST_REQUIRE(net::issue(other, {net::role::node, "berlin", {}, 10}).has_value());
  BOOST_TEST(has(problem(net::check_identity(own / "ca.crt", other / "berlin.crt",
                                             other / "berlin.key", now_s())),
                 "is not signed by"));
  fs::copy_file(other / "ca.key", own / "ca.key", fs::copy_options::overwrite_existing);
  BOOST_TEST(has(problem(net::issue(own, {net::role::node, "berlin", {}, 10})),
                 "is not the key of ca.crt"));
}

BOOST_AUTO_TEST_CASE(nothing_is_replaced_and_nothing_is_left_half) {
  const scratch_folder folder;
  BOOST_REQUIRE(net::make_authority(folder.path, "edge8", 10).has_value());
  BOOST_TEST(
      has(problem(net::make_authority(folder.path, "edge8", 10)), "ca.key: is there already"));
  BOOST_REQUIRE(net::issue(folder.path, {net::role::node, "berlin", {}, 10}).has_value());
  BOOST_TEST(has(problem(net::issue(folder.path, {net::role::node, "berlin", {}, 10})),
                 "berlin.key: is there already"));
  std::ofstream(folder.path / "paris.crt") << "kept";
  BOOST_TEST(has(problem(net::issue(folder.path, {net::role::node, "paris", {}, 10})),
                 "paris.crt: is there already"));
  BOOST_TEST(!fs::exists(folder.path / "paris.key"));
}

BOOST_AUTO_TEST_CASE(names_hosts_days_and_files_that_make_no_sense_are_named) {
  const scratch_folder folder;
  BOOST_TEST(
      has(problem(net::make_authority(folder.path, "Edge 8", 10)), "cluster: found 'Edge 8'"));
  BOOST_TEST(has(problem(net::make_authority(folder.path, "edge8", 0)), "days: found 0"));
  BOOST_TEST(has(problem(net::issue(folder.path, {net::role::node, "a", {}, 10})), "ca.crt"));
  BOOST_REQUIRE(net::make_authority(folder.path, "edge8", 10).has_value());
  for (const char* name : {"", "-a", "../a", "a/b", "A", "a b", "ca"})
    BOOST_TEST(
        has(problem(net::issue(folder.path, {net::role::node, name, {}, 10})), "name: found"));
  for (const char* host : {"", "a,URI:ordermoe://edge8/admin/x", "a b"})
    BOOST_TEST(
        has(problem(net::issue(folder.path, {net::role::node, "a", {host}, 10})), "host: found"));
  BOOST_TEST(!fs::exists(folder.path / "a.key"));
  std::ofstream(folder.path / "bad.crt") << "nonsense";
  BOOST_TEST(has(problem(net::read_certificate(folder.path / "bad.crt")),
                 "bad.crt: found no certificate"));
  BOOST_TEST(has(problem(net::read_certificate(folder.path / "none.crt")), "none.crt"));
  BOOST_TEST(has(problem(net::check_identity(folder.path / "ca.crt", folder.path / "ca.crt",
                                             folder.path / "none.key", 0)),
                 "none.key"));
}

BOOST_AUTO_TEST_CASE(a_uri_is_a_cluster_a_role_and_a_name) {
  for (const auto of : {net::role::node, net::role::viewer, net::role::operate, net::role::admin}) {
    const net::certificate_name who{"edge8", of, "n1.lan"};
    const auto read = net::parse_uri(net::uri_of(who));
    BOOST_REQUIRE(read.has_value());
    BOOST_TEST((*read == who));
  }
  for (const char* bad : {"", "ordermoe://", "ordermoe://edge8/node", "ordermoe://edge8/node/",
                          "ordermoe://edge8/root/a", "https://edge8/node/a",
                          "ordermoe://edge8/node/a/b", "ordermoe:///node/a", "ordermoe://edge8//a"})
    BOOST_TEST(has(problem(net::parse_uri(bad)), "URI: found"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
