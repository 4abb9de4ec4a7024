#include "setup/cluster_folder.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>

#include "config/files.hpp"
#include "net/channel/tls.hpp"

namespace ordermoe {

namespace {

namespace fs = std::filesystem;

struct scratch_folder {
  fs::path path;
  scratch_folder() {
    std::string pattern = (fs::temp_directory_path() / "ordermoe-cluster-XXXXXX").string();
    BOOST_REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~scratch_folder() { fs::remove_all(path); }
};

setup::cluster_folder_contents three_servers() {
  draw_options draw;
  draw.n_servers = 3;
  draw.costs = *named_cost_profile("mixtral-8x7b");
  setup::cluster_folder_contents made;
  made.servers = draw_cluster(draw);
  made.servers.name = "edge3";
  made.plan = "a plan";
  made.profile = "a profile";
  made.model = "/models/lineage";
  made.costs = "measured";
  made.kv_precision = "fp32";
  made.threads = 3;
  made.most_positions = 77;
  for (int m = 0; m < 3; ++m) made.addresses.push_back(fmt::format("127.0.0.1:{}", 7400 + m));
  return made;
}

std::string text_of(const fs::path& file) {
  const auto text = read_file(file);
  BOOST_REQUIRE_MESSAGE(text.has_value(), file);
  return *text;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cluster_folder)

BOOST_AUTO_TEST_CASE(a_folder_reads_back_and_tells_each_node_what_it_is_and_who_the_others_are) {
  const scratch_folder scratch;
  const setup::cluster_folder folder{scratch.path / "edge"};
  auto contents = three_servers();
  contents.trace = true;
  contents.load_period_ms = 7.5;
  contents.rehearsed = rehearsal{2.5, 2};
  const auto written = setup::write_cluster_folder(folder, contents);
  BOOST_REQUIRE_MESSAGE(written, (written ? "" : written.error().message));
  BOOST_TEST(text_of(folder.plan()) == "a plan");
  BOOST_TEST(text_of(folder.profile()) == "a profile");
  const auto files = setup::read_cluster_folder(folder);
  BOOST_REQUIRE_MESSAGE(files, (files ? "" : files.error().message));
  BOOST_REQUIRE_EQUAL(files->size(), 3u);
  for (std::size_t m = 0; m < 3; ++m) {
    const auto& file = (*files)[m];
    BOOST_TEST(file.name == contents.servers.servers[m].name);
    BOOST_TEST(fs::equivalent(file.cluster, folder.cluster()));
    BOOST_TEST(fs::equivalent(file.plan, folder.plan()));
    BOOST_TEST(fs::equivalent(file.profile, folder.profile()));
    BOOST_TEST(file.model == contents.model);
    BOOST_TEST(file.state == folder.node(file.name) / "state");
    BOOST_TEST(file.trace == folder.node(file.name) / "trace.jsonl");
    BOOST_TEST(file.costs == "measured");
    BOOST_TEST(file.kv_precision == "fp32");
    BOOST_TEST(file.threads == 3u);
    BOOST_TEST(file.most_positions == 77u);
    BOOST_TEST(file.load_period_ms == 7.5);
    BOOST_TEST((file.rehearsed == rehearsal{2.5, 2}));
    BOOST_TEST(file.listen == std::vector<std::string>{contents.addresses[m]},
               boost::test_tools::per_element());
    BOOST_REQUIRE_EQUAL(file.members.size(), 2u);
    for (const auto& member : file.members) BOOST_TEST(member.name != file.name);
    const auto identity = net::tls_identity::load(file.authority, file.certificate, file.key);
    BOOST_REQUIRE_MESSAGE(identity, (identity ? "" : identity.error().message));
    BOOST_TEST(net::uri_of((*identity)->name()) == "ordermoe://edge3/node/" + file.name);
  }
  const auto console = net::read_certificate(folder.certificates() / "console.crt");
  BOOST_REQUIRE(console.has_value());
  BOOST_TEST(console->uri == "ordermoe://edge3/admin/console");
}

BOOST_AUTO_TEST_CASE(a_folder_that_was_moved_still_fits_together) {
  const scratch_folder scratch;
  BOOST_REQUIRE(setup::write_cluster_folder({scratch.path / "here"}, three_servers()).has_value());
  fs::rename(scratch.path / "here", scratch.path / "there");
  const auto files = setup::read_cluster_folder({scratch.path / "there"});
  BOOST_REQUIRE_MESSAGE(files, (files ? "" : files.error().message));
  for (const auto& file : *files)
    BOOST_TEST(net::tls_identity::load(file.authority, file.certificate, file.key).has_value());
}

BOOST_AUTO_TEST_CASE(a_cluster_is_not_written_over_and_one_that_is_not_there_is_missed) {
  const scratch_folder scratch;
  const setup::cluster_folder folder{scratch.path / "edge"};
  const auto missing = setup::read_cluster_folder(folder);
  BOOST_REQUIRE(!missing.has_value());
  BOOST_TEST((missing.error().code == errc::not_found));
  BOOST_TEST(missing.error().message.find("`ordermoe cluster up --dir") != std::string::npos);
  BOOST_REQUIRE(setup::write_cluster_folder(folder, three_servers()).has_value());
  const auto key = text_of(folder.certificates() / "ca.key");
  const auto again = setup::write_cluster_folder(folder, three_servers());
  BOOST_REQUIRE(!again.has_value());
  BOOST_TEST((again.error().code == errc::usage));
  BOOST_TEST(again.error().message.find("there is a cluster already") != std::string::npos);
  BOOST_TEST(text_of(folder.certificates() / "ca.key") == key);
}

BOOST_AUTO_TEST_CASE(names_that_no_certificate_can_have_are_refused_before_anything_is_made) {
  const scratch_folder scratch;
  const setup::cluster_folder folder{scratch.path / "edge"};
  for (const std::string name : {"Berlin", "s_0", "console", "ca"}) {
    auto contents = three_servers();
    contents.servers.servers[2].name = name;
    const auto refused = setup::write_cluster_folder(folder, contents);
    BOOST_REQUIRE(!refused.has_value());
    BOOST_TEST((refused.error().code == errc::usage));
    BOOST_TEST(refused.error().message.find("name of a server: found '" + name + "'") !=
               std::string::npos);
    BOOST_TEST(!fs::exists(folder.path));
  }
  auto contents = three_servers();
  contents.servers.name = "Edge3";
  const auto refused = setup::write_cluster_folder(folder, contents);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST(refused.error().message.find("name: found 'Edge3'") != std::string::npos);
  BOOST_TEST(!fs::exists(folder.path));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
