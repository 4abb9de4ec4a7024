#include "setup/node_device.hpp"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>

namespace ordermoe {

namespace {

namespace fs = std::filesystem;

struct scratch {
  fs::path path = fs::temp_directory_path() / ("ordermoe-devices-" + std::to_string(::getpid()));
  ~scratch() { fs::remove_all(path); }
};

/// Of a node whose file names one device and whose cluster file another.
result<std::string> device_where(const std::string& own, const std::string& stated) {
  node_file file;
  file.name = "rack";
  file.cluster = "lab.toml";
  file.device = own;
  cluster servers;
  servers.servers.resize(2);
  servers.servers[1].name = "rack";
  servers.servers[1].device = stated;
  return setup::device_of(file, servers, 1);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(node_device)

BOOST_AUTO_TEST_CASE(a_node_computes_on_what_its_file_names_or_the_cluster_file) {
  BOOST_TEST(*device_where("", "cpu") == "cpu");
  BOOST_TEST(*device_where("", "libtorch:cuda:0") == "libtorch:cuda:0");
  BOOST_TEST(*device_where("libtorch:cuda:1", "libtorch:cuda:0") == "libtorch:cuda:1");
}

BOOST_AUTO_TEST_CASE(a_node_of_another_kind_than_all_nodes_are_told_is_refused_with_the_remedy) {
  for (const auto& [own, stated] : {std::pair{"libtorch:cuda:0", "cpu"},
                                    {"cpu", "libtorch:cpu"},
                                    {"libtorch:cuda:0@a100", "libtorch:cuda:0@h100"}}) {
    const auto device = device_where(own, stated);
    BOOST_REQUIRE(!device.has_value());
    BOOST_TEST((device.error().code == errc::mismatch));
    for (const std::string part : {"node rack", "lab.toml", "in the cluster file of all nodes"})
      BOOST_TEST(device.error().message.find(part) != std::string::npos, device.error().message);
  }
}

BOOST_AUTO_TEST_CASE(a_node_shows_what_its_device_computes_beside_what_the_kernels_do) {
  const scratch place;
  const auto kernels = setup::arithmetic_of("cpu", model::family::mixtral, place.path);
  BOOST_REQUIRE(kernels.has_value());
  BOOST_REQUIRE_EQUAL(kernels->size(), 1u);
  const auto first = setup::arithmetic_of("libtorch:cpu", model::family::mixtral, place.path),
             again = setup::arithmetic_of("libtorch:cpu", model::family::mixtral, place.path);
  BOOST_REQUIRE_MESSAGE(first.has_value(), (first ? "" : first.error().message));
  BOOST_REQUIRE_EQUAL(first->size(), 2u);
  BOOST_TEST((first->front() == kernels->front()));
  BOOST_TEST((*first)[1].first == "arithmetic[libtorch:cpu]");
  BOOST_TEST((*first)[1].second.size() == 64u);
  BOOST_TEST((*first)[1].second != kernels->front().second);
  BOOST_TEST((*first == *again));
}

BOOST_AUTO_TEST_CASE(a_device_that_is_not_on_this_host_is_named_with_what_to_do) {
  const scratch place;
  const auto digest =
      setup::arithmetic_of("libtorch:nonsense:3", model::family::mixtral, place.path);
  BOOST_REQUIRE(!digest.has_value());
  BOOST_TEST((digest.error().code == errc::unsupported));
  for (const char* part : {"libtorch:nonsense:3", "cpu"})
    BOOST_TEST(digest.error().message.find(part) != std::string::npos, digest.error().message);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
