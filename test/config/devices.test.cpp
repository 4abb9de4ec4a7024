#include "config/devices.hpp"

#include <boost/test/unit_test.hpp>

namespace {

using namespace ordermoe;

/// A cluster file with a server for each device; none is written for an empty name.
std::string file_with(const std::vector<std::string>& devices, const std::string& more = "") {
  std::string text = "version = 1\nname = \"lab\"\n";
  for (std::size_t i = 0; i < devices.size(); ++i) {
    text += "[[servers]]\nname = \"s" + std::to_string(i) +
            "\"\ntflops = 10.0\nmemory_bandwidth_gb_per_s = 100.0\nmemory_gb = 8.0\nkv_gb = 1.0\n";
    if (!devices[i].empty()) text += "device = \"" + devices[i] + "\"\n";
    text += more;
  }
  return text + "[network]\ndefault_bandwidth_gbps = 1.0\ndefault_latency_ms = 1.0\n";
}

cluster of(const std::vector<std::string>& devices) {
  auto read = parse_cluster(file_with(devices), "lab.toml");
  BOOST_REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().message));
  return std::move(*read);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(devices)

BOOST_AUTO_TEST_CASE(devices_of_one_kind_differ_in_their_number_alone) {
  struct row {
    const char *name, *kind, *torch;
  };
  for (const auto& each : {row{"cpu", "cpu", ""}, row{"libtorch:cpu", "libtorch:cpu", "cpu"},
                           row{"libtorch:cuda", "libtorch:cuda", "cuda"},
                           row{"libtorch:cuda:0", "libtorch:cuda", "cuda:0"},
                           row{"libtorch:cuda:12", "libtorch:cuda", "cuda:12"},
                           row{"libtorch:cuda:1@h100", "libtorch:cuda@h100", "cuda:1"},
                           row{"libtorch:cpu@Zen-4.b", "libtorch:cpu@Zen-4.b", "cpu"}}) {
    BOOST_TEST(check_device(each.name).has_value(), each.name);
    BOOST_TEST(device_kind(each.name) == each.kind);
    BOOST_TEST(torch_device(each.name) == each.torch);
  }
}

BOOST_AUTO_TEST_CASE(other_names_are_refused_with_what_is_known) {
  for (const char* name : {"",
                           "gpu",
                           "CPU",
                           "cuda:0",
                           "cpu:0",
                           "cpu@a",
                           "libtorch",
                           "libtorch:",
                           "libtorch::0",
                           "libtorch:cuda:",
                           "libtorch:cuda:x",
                           "libtorch:cuda:1234",
                           "libtorch:cuda:0:1",
                           "libtorch:cuda@",
                           "libtorch:@a",
                           "libtorch:cuda:@a",
                           "libtorch:cuda:0@a b",
                           "libtorch:cu da",
                           "libtorch:cuda:-1",
                           "Libtorch:cpu"}) {
    const auto known = check_device(name);
    BOOST_REQUIRE_MESSAGE(!known.has_value(), name);
    BOOST_TEST((known.error().code == errc::out_of_range));
    for (const char* part : {"expected cpu", "libtorch:cuda:0", "correct it"})
      BOOST_TEST(known.error().message.find(part) != std::string::npos, known.error().message);
  }
  BOOST_TEST(!check_device("libtorch:cuda@" + std::string(80, 'a')).has_value());
}

BOOST_AUTO_TEST_CASE(a_cluster_file_names_devices_and_is_written_as_it_was_without) {
  const auto mixed = of({"", "libtorch:cuda:0", "cpu", "libtorch:cuda:1"});
  BOOST_TEST(mixed.servers[0].device == "cpu");
  BOOST_TEST(mixed.servers[1].device == "libtorch:cuda:0");
  const auto again = parse_cluster(cluster_toml(mixed), "again");
  BOOST_REQUIRE(again.has_value());
  for (std::size_t m = 0; m < mixed.size(); ++m)
    BOOST_TEST(again->servers[m].device == mixed.servers[m].device);
  // A digest of a file without devices is what it was before there were any.
  BOOST_TEST(cluster_toml(of({"", "cpu"})).find("device") == std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_wrong_device_of_a_server_is_refused_with_its_place) {
  const auto refused = [](const std::string& text, const std::vector<std::string>& parts) {
    const auto read = parse_cluster(text, "lab.toml");
    BOOST_REQUIRE(!read.has_value());
    BOOST_TEST((read.error().code == errc::out_of_range));
    for (const auto& part : parts)
      BOOST_TEST(read.error().message.find(part) != std::string::npos, read.error().message);
  };
  refused(file_with({"", "cuda:0"}), {"lab.toml:15:", "device = \"cuda:0\"", "libtorch:cuda:0"});
  refused(file_with({"libtorch:cpu"}, "expert_precision = \"int8\"\n"),
          {"lab.toml:9:", "expert_precision = \"int8\"", "only the kernels"});
}

BOOST_AUTO_TEST_CASE(a_cluster_of_several_kinds_says_so_and_one_of_one_kind_does_not) {
  BOOST_TEST(mixed_devices(of({"", "cpu"})) == "");
  BOOST_TEST(!names_devices(of({"", "cpu"})));
  const auto one_kind = of({"libtorch:cuda:0", "libtorch:cuda:1"});
  BOOST_TEST(mixed_devices(one_kind) == "");
  BOOST_TEST(names_devices(one_kind));
  BOOST_TEST(to_string(device_groups(one_kind)) == "libtorch:cuda: s0, s1");
  const auto mixed =
      of({"libtorch:cuda:0@a100", "", "libtorch:cuda:0@h100", "libtorch:cuda:1@a100"});
  BOOST_TEST(to_string(device_groups(mixed)) ==
             "libtorch:cuda@a100: s0, s3; cpu: s1; libtorch:cuda@h100: s2");
  const auto said = mixed_devices(mixed);
  for (const char* part : {"3 kinds", "cpu: s1", "not claimed", "tolerance and perplexity"})
    BOOST_TEST(said.find(part) != std::string::npos, said);
}

BOOST_AUTO_TEST_SUITE_END()
