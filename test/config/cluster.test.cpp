#include "config/cluster.hpp"

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <numeric>
#include <set>

#include "config/files.hpp"

namespace {

using namespace ordermoe;

draw_options options_of(std::uint64_t seed, std::size_t n_servers = 8, std::size_t n_sites = 0) {
  draw_options options;
  options.seed = seed;
  options.n_servers = n_servers;
  options.n_sites = n_sites;
  options.costs = *named_cost_profile("mixtral-8x7b");
  return options;
}

bool same(const cluster& a, const cluster& b) {
  if (a.name != b.name || a.seed != b.seed || a.size() != b.size() ||
      a.links.size() != b.links.size())
    return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto& x = a.servers[i];
    const auto& y = b.servers[i];
    if (x.name != y.name || x.flops_per_s != y.flops_per_s ||
        x.memory_bandwidth_bytes_per_s != y.memory_bandwidth_bytes_per_s ||
        x.memory_bytes != y.memory_bytes || x.kv_bytes != y.kv_bytes ||
        x.arrival_share != y.arrival_share)
      return false;
  }
  for (std::size_t i = 0; i < a.links.size(); ++i)
    if (a.links[i].bandwidth_bytes_per_s != b.links[i].bandwidth_bytes_per_s ||
        a.links[i].latency_ns != b.links[i].latency_ns)
      return false;
  return true;
}

/// A correct file of two servers, to change one thing at a time.
const std::string two_servers = R"(version = 1
name = "pair"

[[servers]]
name = "a"
tflops = 50
memory_bandwidth_gb_per_s = 400.5
memory_gb = 24
kv_gb = 2
arrival_share = 0.25

[[servers]]
name = "b"
tflops = 20.5
memory_bandwidth_gb_per_s = 200
memory_gb = 12
kv_gb = 1
arrival_share = 0.75

[network]
links = [
  {from = "a", to = "b", bandwidth_gbps = 2.5, latency_ms = 3},
]
)";

std::string problem(const result<ordermoe::cluster>& read) {
  return read ? "" : read.error().message;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto place = text.find(from);
  BOOST_REQUIRE_MESSAGE(place != std::string::npos, "the file does not contain " << from);
  return text.replace(place, from.size(), to);
}

/// The file is refused with this code, at this line and column, in words that contain all of
/// `parts`.
void check_refused(const std::string& text, errc code, const std::string& position,
                   std::initializer_list<std::string> parts) {
  const auto read = parse_cluster(text, "file.toml");
  BOOST_REQUIRE_MESSAGE(!read, "accepted:\n" << text);
  const auto& reason = read.error();
  BOOST_CHECK_MESSAGE(reason.code == code, reason.message);
  BOOST_CHECK_MESSAGE(reason.message.starts_with("file.toml:" + position + ": "), reason.message);
  for (const auto& part : parts)
    BOOST_CHECK_MESSAGE(reason.message.find(part) != std::string::npos,
                        "'" << reason.message << "' does not say '" << part << "'");
}

void check_refused(const std::string& from, const std::string& to, errc code,
                   const std::string& position, std::initializer_list<std::string> parts) {
  BOOST_TEST_CONTEXT(from << " -> " << to) {
    check_refused(replaced(two_servers, from, to), code, position, parts);
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cluster)

BOOST_AUTO_TEST_CASE(drawn_values_stay_in_the_papers_ranges) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      const auto drawn = draw_cluster(options_of(seed, 2 + seed % 12));
      for (const auto& server : drawn.servers) {
        BOOST_TEST(server.flops_per_s >= 20e12);
        BOOST_TEST(server.flops_per_s <= 110e12);
        BOOST_TEST(server.memory_bandwidth_bytes_per_s >= 200e9);
        BOOST_TEST(server.memory_bandwidth_bytes_per_s <= 1000e9);
        BOOST_TEST(server.arrival_share > 0);
      }
      for (std::size_t i = 0; i < drawn.size(); ++i)
        for (std::size_t j = 0; j < drawn.size(); ++j) {
          const auto& link = drawn.link(server_id{i}, server_id{j});
          if (i == j) {
            BOOST_TEST(link.bandwidth_bytes_per_s == 0);
            continue;
          }
          BOOST_TEST(link.bandwidth_bytes_per_s >= 125e6);
          BOOST_TEST(link.bandwidth_bytes_per_s <= 1250e6);
          BOOST_TEST(link.latency_ns >= 200'000);
          BOOST_TEST(link.latency_ns <= 20'000'000);
          const auto& back = drawn.link(server_id{j}, server_id{i});
          BOOST_TEST(link.bandwidth_bytes_per_s == back.bandwidth_bytes_per_s);
          BOOST_TEST(link.latency_ns == back.latency_ns);
        }
    }
  }
}

BOOST_AUTO_TEST_CASE(draws_reach_both_ends_of_their_ranges) {
  double slowest = 1e18, fastest = 0, thinnest = 1e18, widest = 0;
  std::int64_t nearest = 1'000'000'000, farthest = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto drawn = draw_cluster(options_of(seed, 4));
    for (const auto& server : drawn.servers) {
      slowest = std::min(slowest, server.flops_per_s);
      fastest = std::max(fastest, server.flops_per_s);
    }
    for (const auto& link : drawn.links) {
      if (link.latency_ns == 0) continue;
      thinnest = std::min(thinnest, link.bandwidth_bytes_per_s);
      widest = std::max(widest, link.bandwidth_bytes_per_s);
      nearest = std::min(nearest, link.latency_ns);
      farthest = std::max(farthest, link.latency_ns);
    }
  }
  BOOST_TEST(slowest < 22e12);
  BOOST_TEST(fastest > 108e12);
  BOOST_TEST(thinnest < 130e6);
  BOOST_TEST(widest > 1200e6);
  BOOST_TEST(nearest < 400'000);
  BOOST_TEST(farthest > 18'000'000);
}

BOOST_AUTO_TEST_CASE(a_faster_server_also_reads_memory_faster) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    auto servers = draw_cluster(options_of(seed)).servers;
    std::sort(servers.begin(), servers.end(),
              [](const auto& a, const auto& b) { return a.flops_per_s < b.flops_per_s; });
    for (std::size_t i = 1; i < servers.size(); ++i)
      BOOST_TEST(servers[i - 1].memory_bandwidth_bytes_per_s <=
                 servers[i].memory_bandwidth_bytes_per_s);
  }
}

BOOST_AUTO_TEST_CASE(no_relay_is_faster_than_the_direct_path_of_a_draw) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto drawn = draw_cluster(options_of(seed, seed % 10 == 0 ? 64 : 8, seed % 4));
    const auto n = drawn.size();
    bool holds = true;
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j)
        for (std::size_t k = 0; k < n; ++k)
          if (i != j && j != k && i != k)
            holds =
                holds && drawn.links[i * n + j].latency_ns <=
                             drawn.links[i * n + k].latency_ns + drawn.links[k * n + j].latency_ns;
    BOOST_TEST(holds, "seed " << seed);
  }
}

BOOST_AUTO_TEST_CASE(memory_left_for_experts_sums_to_the_ratio_asked_for) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    auto options = options_of(seed, 1 + seed % 16);
    options.memory_ratio = 0.5 + 0.25 * static_cast<double>(seed % 12);
    options.costs = *named_cost_profile(cost_profile_names()[seed % 3]);
    const auto drawn = draw_cluster(options);
    std::int64_t sum = 0, least = std::numeric_limits<std::int64_t>::max(), most = 0;
    for (const auto& server : drawn.servers) {
      const auto left = expert_memory_bytes(server, options.costs, options.n_layers);
      sum += left;
      least = std::min(least, left);
      most = std::max(most, left);
    }
    const auto replica = static_cast<double>(options.costs.expert_bytes * 6 * 8);
    BOOST_TEST(static_cast<double>(sum) == std::round(replica * options.memory_ratio),
               "seed " << seed);
    // Shares keep the proportions of 12 to 48 GB.
    BOOST_TEST(static_cast<double>(most) <= 4.0 * static_cast<double>(least) + 64, "seed " << seed);
  }
}

BOOST_AUTO_TEST_CASE(memory_as_drawn_is_that_of_the_ranges_whatever_the_model_weighs) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    auto options = options_of(seed, 1 + seed % 16);
    options.memory_as_drawn = true;
    options.costs = *named_cost_profile(cost_profile_names()[seed % 3]);
    options.n_layers = 1 + seed % 40;
    const auto drawn = draw_cluster(options);
    auto scaled = options;
    scaled.memory_as_drawn = false;
    const auto other = draw_cluster(scaled);
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      const auto& server = drawn.servers[i];
      BOOST_TEST((server.memory_bytes >= 12'000'000'000 && server.memory_bytes <= 48'000'000'000),
                 "seed " << seed);
      BOOST_TEST(server.kv_bytes == other.servers[i].kv_bytes);
      BOOST_TEST(server.flops_per_s == other.servers[i].flops_per_s);
      // In the same order as scaled.
      for (std::size_t j = 0; j < i; ++j)
        BOOST_TEST((server.memory_bytes < drawn.servers[j].memory_bytes ||
                    other.servers[i].memory_bytes >= other.servers[j].memory_bytes));
    }
  }
}

BOOST_AUTO_TEST_CASE(dense_parts_by_layer_leave_room_for_as_many_whole_layers_as_hold_their_own) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    auto options = options_of(seed, 8);
    options.memory_as_drawn = true;
    options.costs = *named_cost_profile("mixtral-8x7b");
    options.n_layers = 32;
    const auto everywhere = draw_cluster(options);
    options.dense_by_layer = true;
    const auto by_layer = draw_cluster(options);
    const auto& costs = options.costs;
    const auto of_layer =
        8 * costs.expert_bytes + costs.attention_bytes + 16384 * costs.kv_row_bytes;
    for (std::size_t i = 0; i < 8; ++i) {
      const auto drawn = everywhere.servers[i].memory_bytes;
      const auto own = (drawn - costs.embedding_bytes - costs.head_bytes) / of_layer;
      BOOST_TEST(expert_memory_bytes(by_layer.servers[i], costs, 32) / (8 * costs.expert_bytes) ==
                 own);
      BOOST_TEST(by_layer.servers[i].memory_bytes > drawn);
      BOOST_TEST(by_layer.servers[i].flops_per_s == everywhere.servers[i].flops_per_s);
    }
  }
}

BOOST_AUTO_TEST_CASE(arrival_shares_of_a_draw_sum_to_one_and_differ) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const auto drawn = draw_cluster(options_of(seed, 2 + seed));
    double sum = 0;
    std::set<double> different;
    for (const auto& server : drawn.servers) {
      sum += server.arrival_share;
      different.insert(server.arrival_share);
    }
    BOOST_TEST(std::abs(sum - 1) < 1e-12, "seed " << seed << ": " << sum);
    BOOST_TEST(different.size() > 1u);
  }
}

BOOST_AUTO_TEST_CASE(servers_of_one_site_are_close) {
  const auto drawn = draw_cluster(options_of(3, 12, 3));
  for (std::size_t i = 0; i < 12; ++i)
    for (std::size_t j = 0; j < 12; ++j) {
      if (i == j || i % 3 != j % 3) continue;
      const auto& link = drawn.link(server_id{i}, server_id{j});
      BOOST_TEST(link.latency_ns <= 1'000'000);
      BOOST_TEST(link.bandwidth_bytes_per_s >= 625e6);
    }
}

BOOST_AUTO_TEST_CASE(the_same_options_draw_the_same_cluster_and_another_seed_another) {
  BOOST_TEST(same(draw_cluster(options_of(5)), draw_cluster(options_of(5))));
  BOOST_TEST(!same(draw_cluster(options_of(5)), draw_cluster(options_of(6))));
}

BOOST_AUTO_TEST_CASE(a_written_cluster_reads_back_to_the_same_values) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    auto drawn = draw_cluster(options_of(seed, 1 + seed % 64, seed % 5));
    if (seed % 3 == 0 &&
        drawn.size() > 1) {  // The ways out of the first server differ from those in.
      drawn.links[1].bandwidth_bytes_per_s -= 1;
      for (std::size_t to = 1; to < drawn.size(); ++to) drawn.links[to].latency_ns += 1;
    }
    if (seed % 7 == 0) drawn.seed = std::numeric_limits<std::uint64_t>::max() - seed;
    const auto read = parse_cluster(cluster_toml(drawn), "drawn.toml");
    BOOST_REQUIRE_MESSAGE(read, "seed " << seed << ": " << problem(read));
    BOOST_TEST(same(*read, drawn), "seed " << seed);
  }
}

BOOST_AUTO_TEST_CASE(the_bundled_cluster_is_the_draw_with_seed_one) {
  const auto bundled = read_file(ORDERMOE_DATA "/clusters/edge8.toml");
  BOOST_REQUIRE(bundled);
  BOOST_TEST(*bundled == cluster_toml(draw_cluster(options_of(1))));
  const auto read = read_cluster(ORDERMOE_DATA "/clusters/edge8.toml");
  BOOST_REQUIRE(read);
  BOOST_TEST(same(*read, draw_cluster(options_of(1))));
}

BOOST_AUTO_TEST_CASE(a_hand_written_file_reads_with_its_units) {
  const auto read = parse_cluster(two_servers, "file.toml");
  BOOST_REQUIRE_MESSAGE(read, problem(read));
  BOOST_TEST(read->name == "pair");
  BOOST_TEST(read->seed == 0u);
  BOOST_REQUIRE(read->size() == 2u);
  BOOST_TEST(read->servers[0].flops_per_s == 50e12);
  BOOST_TEST(read->servers[0].memory_bandwidth_bytes_per_s == 400.5e9);
  BOOST_TEST(read->servers[0].memory_bytes == 24'000'000'000);
  BOOST_TEST(read->servers[0].kv_bytes == 2'000'000'000);
  BOOST_TEST(read->servers[1].arrival_share == 0.75);
  for (const auto& link :
       {read->link(server_id{0}, server_id{1}), read->link(server_id{1}, server_id{0})}) {
    BOOST_TEST(link.bandwidth_bytes_per_s == 2.5e9 / 8);
    BOOST_TEST(link.latency_ns == 3'000'000);
  }
}

BOOST_AUTO_TEST_CASE(a_server_may_keep_its_experts_coarser) {
  const auto text = [](const std::string& line) {
    return "version = 1\nname = \"one\"\n[[servers]]\nname = \"a\"\ntflops = 1\n"
           "memory_bandwidth_gb_per_s = 1\nmemory_gb = 2\nkv_gb = 1\n" +
           line;
  };
  for (const auto kept : {precision::stored, precision::int8, precision::int4}) {
    const auto line = fmt::format("expert_precision = \"{}\"\n", to_string(kept));
    const auto read = parse_cluster(text(line), "a.toml");
    BOOST_TEST_REQUIRE(read.has_value());
    BOOST_TEST((read->servers[0].expert_precision == kept));
    const auto again = parse_cluster(cluster_toml(*read), "again.toml");
    BOOST_TEST_REQUIRE(again.has_value());
    BOOST_TEST((again->servers[0].expert_precision == kept));
  }
  BOOST_TEST((parse_cluster(text(""), "a.toml")->servers[0].expert_precision == precision::stored));
  for (const std::string wrong : {"\"bf16\"", "\"int2\"", "8"}) {
    const auto refused = parse_cluster(text("expert_precision = " + wrong + "\n"), "a.toml");
    BOOST_TEST_REQUIRE(!refused.has_value());
    BOOST_TEST(refused.error().message.find("a.toml:9:") == 0u, refused.error().message);
    BOOST_TEST(refused.error().message.find("expert_precision") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(a_default_serves_the_pairs_that_no_link_names) {
  const auto text = replaced(
      two_servers, "links = [\n  {from = \"a\", to = \"b\", bandwidth_gbps = 2.5, latency_ms = 3},",
      "default_bandwidth_gbps = 1\ndefault_latency_ms = 7\nlinks = [\n  {from = \"a\", to = "
      "\"b\", bandwidth_gbps = 2.5, latency_ms = 3, one_way = true},");
  const auto read = parse_cluster(text, "file.toml");
  BOOST_REQUIRE_MESSAGE(read, problem(read));
  BOOST_TEST(read->link(server_id{0}, server_id{1}).latency_ns == 3'000'000);
  BOOST_TEST(read->link(server_id{1}, server_id{0}).latency_ns == 7'000'000);
  BOOST_TEST(read->link(server_id{1}, server_id{0}).bandwidth_bytes_per_s == 125e6);
}

BOOST_AUTO_TEST_CASE(arrivals_are_even_where_no_share_is_given) {
  auto text = replaced(two_servers, "arrival_share = 0.25\n", "");
  text = replaced(text, "arrival_share = 0.75\n", "");
  const auto read = parse_cluster(text, "file.toml");
  BOOST_REQUIRE_MESSAGE(read, problem(read));
  BOOST_TEST(read->servers[0].arrival_share == 0.5);
  BOOST_TEST(read->servers[1].arrival_share == 0.5);
}

BOOST_AUTO_TEST_CASE(a_wrong_file_is_refused_with_its_place_and_a_remedy) {
  using enum errc;
  check_refused("tflops = 50\n", "tflops = \n", malformed, "6:10", {"TOML"});
  check_refused("tflops = 50\n", "tflops = 50\ntflops = 51\n", malformed, "7:10", {"tflops"});
  check_refused("tflops = 50", "tflop = 50", malformed, "6:1",
                {"'tflop'", "tflops, memory_bandwidth", "correct"});
  check_refused("version = 1", "version = 1\nspeed = 3", malformed, "2:1",
                {"'speed'", "a cluster file"});
  check_refused("[network]", "[network]\nlatency = 3", malformed, "21:1",
                {"'latency'", "default_latency_ms"});
  check_refused("latency_ms = 3", "latency_ms = 3, delay = 4", malformed, "22:64",
                {"'delay'", "a link"});
  check_refused("version = 1", "version = 2", out_of_range, "1:11", {"version = 2", "1 to 1"});
  check_refused("version = 1\n", "", malformed, "1:1", {"no 'version'"});
  check_refused("name = \"pair\"", "name = 7", malformed, "2:8", {"the integer 7", "a string"});
  check_refused("name = \"pair\"", "name = \"\"", out_of_range, "2:8", {"1 to 64"});
  check_refused("name = \"pair\"", "name = \"a pair\"", out_of_range, "2:8", {"a pair", "rename"});
  check_refused("name = \"pair\"", "name = \"pair\"\nseed = -1", out_of_range, "3:8",
                {"seed = -1"});
  check_refused("name = \"pair\"", "name = \"pair\"\nseed = \"12x\"", out_of_range, "3:8", {"12x"});
  check_refused("tflops = 50\n", "tflops = \"50\"\n", malformed, "6:10",
                {"the string \"50\"", "a number"});
  check_refused("tflops = 50\n", "tflops = 0\n", out_of_range, "6:10", {"tflops = 0", "5000"});
  check_refused("tflops = 50\n", "tflops = nan\n", out_of_range, "6:10", {"nan"});
  check_refused("tflops = 50\n", "tflops = inf\n", out_of_range, "6:10", {"inf"});
  check_refused("tflops = 50\n", "", malformed, "4:1", {"no 'tflops'", "add it"});
  check_refused("memory_gb = 24", "memory_gb = -24", out_of_range, "8:13", {"-24"});
  check_refused("kv_gb = 2\n", "kv_gb = 25\n", out_of_range, "9:9",
                {"kv_gb = 25", "memory_gb = 24", "lower it"});
  check_refused("name = \"b\"", "name = \"a\"", malformed, "13:8",
                {"second server named 'a'", "5:8"});
  check_refused("arrival_share = 0.25", "arrival_share = 1.25", out_of_range, "10:17",
                {"1.25", "0 to 1"});
  check_refused("arrival_share = 0.25", "arrival_share = 0.5", out_of_range, "4:1",
                {"1.25", "divide"});
  check_refused("arrival_share = 0.25\n", "", malformed, "4:1", {"1 of 2 servers"});
  check_refused("from = \"a\"", "from = \"c\"", mismatch, "22:11", {"\"c\"", "servers are a, b"});
  check_refused("to = \"b\"", "to = \"a\"", malformed, "22:21", {"'a' to itself"});
  check_refused("bandwidth_gbps = 2.5", "bandwidth_gbps = 0", out_of_range, "22:43",
                {"bandwidth_gbps = 0"});
  check_refused("latency_ms = 3", "latency_ms = -0.1", out_of_range, "22:61", {"-0.1"});
  check_refused("latency_ms = 3", "latency_ms = 3, one_way = 1", malformed, "22:74",
                {"true or false"});
  check_refused("latency_ms = 3", "latency_ms = 3, one_way = true", malformed, "20:1",
                {"no link from 'b' to 'a'", "default_latency_ms"});
  check_refused("latency_ms = 3}",
                "latency_ms = 3}, {from = \"b\", to = \"a\", bandwidth_gbps = 1, latency_ms = 3}",
                malformed, "22:65", {"second link from 'b' to 'a'", "22:3", "one_way"});
  check_refused("links = [", "links = 3\nlinks2 = [", malformed, "22:1", {"links2"});
  check_refused("links = [", "default_latency_ms = 3\nlinks = [", malformed, "20:1",
                {"no 'default_bandwidth_gbps'"});
}

BOOST_AUTO_TEST_CASE(a_latency_that_a_relay_beats_is_refused_by_name) {
  auto text = replaced(two_servers, "[network]", R"([[servers]]
name = "c"
tflops = 20
memory_bandwidth_gb_per_s = 200
memory_gb = 12
kv_gb = 1
arrival_share = 0

[network])");
  const auto with_links = [&](const std::string& links) {
    return replaced(text, "latency_ms = 3},", "latency_ms = 3}," + links);
  };
  const std::string good =
      "\n{from = \"a\", to = \"c\", bandwidth_gbps = 1, latency_ms = 4}"
      ", {from = \"b\", to = \"c\", bandwidth_gbps = 1, latency_ms = 7},";
  BOOST_TEST(static_cast<bool>(parse_cluster(with_links(good), "file.toml")));
  check_refused(with_links(replaced(good, "latency_ms = 7", "latency_ms = 7.000001")),
                errc::out_of_range, "31:61",
                {"7.000001 ms from 'b' to 'c'", "7 ms over 'a' (3 ms + 4 ms)", "lower it"});
}

BOOST_AUTO_TEST_CASE(one_to_sixty_four_servers_are_read_and_more_refused) {
  const auto of_size = [](std::size_t n) {
    std::string text = "version = 1\nname = \"many\"\n";
    for (std::size_t i = 0; i < n; ++i)
      text += "[[servers]]\nname = \"s" + std::to_string(i) +
              "\"\ntflops = 20\nmemory_bandwidth_gb_per_s = 200\nmemory_gb = 12\nkv_gb = 1\n";
    return text + "[network]\ndefault_bandwidth_gbps = 1\ndefault_latency_ms = 1\n";
  };
  BOOST_TEST(static_cast<bool>(parse_cluster(of_size(1), "file.toml")));
  const auto most = parse_cluster(of_size(64), "file.toml");
  BOOST_REQUIRE(most);
  BOOST_TEST(most->size() == 64u);
  check_refused(of_size(65), errc::out_of_range, "3:1", {"65 servers", "1 to 64"});
  check_refused("version = 1\nname = \"none\"\nservers = []\n", errc::out_of_range, "3:11",
                {"0 servers"});
  check_refused("version = 1\nname = \"none\"\n", errc::malformed, "1:1", {"no 'servers'"});
}

BOOST_AUTO_TEST_CASE(every_cut_of_a_file_is_read_or_refused_with_a_position) {
  const auto text = cluster_toml(draw_cluster(options_of(2, 3)));
  // What is cut inside its first server may still be a cluster of one.
  const auto second = text.find("[[servers]]", text.find("[[servers]]") + 1) + 11;
  for (std::size_t length = 0; length + 2 < text.size(); ++length) {
    const auto read = parse_cluster(text.substr(0, length), "cut.toml");
    if (read && length < second) continue;
    BOOST_REQUIRE_MESSAGE(!read, "accepted the first " << length << " bytes");
    BOOST_TEST(read.error().message.starts_with("cut.toml:"), read.error().message);
    BOOST_TEST(exit_code(read.error().code) == 2);
  }
}

BOOST_AUTO_TEST_CASE(a_missing_file_is_refused_by_its_path) {
  const auto read = read_cluster("/nowhere/edge.toml");
  BOOST_REQUIRE(!read);
  BOOST_TEST((read.error().code == errc::not_found));
  BOOST_TEST(read.error().message.find("/nowhere/edge.toml") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(bytes_take_their_time_on_a_link_rounded_up) {
  const link_spec link{1e9, 5'000'000};
  BOOST_TEST(transfer_ns(link, 0) == 0);
  BOOST_TEST(transfer_ns(link, 1) == 1);
  BOOST_TEST(transfer_ns(link, 8192) == 8192);
  BOOST_TEST(transfer_ns({3e9, 0}, 1) == 1);
  BOOST_TEST(transfer_ns({3e9, 0}, 3) == 1);
  BOOST_TEST(transfer_ns({3e9, 0}, 4) == 2);
}

BOOST_AUTO_TEST_CASE(a_batch_is_bound_by_arithmetic_or_by_memory) {
  server_spec server;
  server.flops_per_s = 1e12;
  server.memory_bandwidth_bytes_per_s = 1e9;
  BOOST_TEST(compute_ns(server, 1000, 0) == 1);
  BOOST_TEST(compute_ns(server, 1000, 5) == 5);
  BOOST_TEST(compute_ns(server, 9'000'000, 5) == 9000);
  BOOST_TEST(compute_ns(server, 0, 0) == 0);
}

BOOST_AUTO_TEST_CASE(overheads_come_to_every_batch_and_message_and_to_no_file) {
  auto options = draw_options{};
  options.costs = *named_cost_profile("mixtral-8x7b");
  const auto plain = draw_cluster(options);
  auto charged = plain;
  charge_overheads(charged, *named_cost_profile("mixtral-8x7b:batch-us=40:message-us=15"));
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const auto &before = plain.servers[i], &after = charged.servers[i];
    BOOST_TEST(compute_ns(after, 1'000'000'000, 1000) ==
               compute_ns(before, 1'000'000'000, 1000) + 40'000);
    BOOST_TEST(offloaded_ns(after, 1000, 1'000'000) ==
               offloaded_ns(before, 1000, 1'000'000) + 40'000);
    for (std::size_t j = 0; j < plain.size(); ++j)
      if (i != j)
        BOOST_TEST(transfer_ns(charged.link(server_id{i}, server_id{j}), 8192) ==
                   transfer_ns(plain.link(server_id{i}, server_id{j}), 8192) + 15'000);
  }
  BOOST_TEST(cluster_toml(charged) == cluster_toml(plain));
  charge_overheads(charged, options.costs);
  BOOST_TEST(compute_ns(charged.servers[0], 0, 0) == 0);
}

BOOST_AUTO_TEST_CASE(weights_in_a_hosts_memory_are_read_at_its_rate) {
  server_spec server;
  server.flops_per_s = 1e12;
  server.memory_bandwidth_bytes_per_s = 500e9;
  BOOST_TEST(offloaded_ns(server, 1000, 100) == 2);
  server.host_bandwidth_bytes_per_s = 1e9;
  BOOST_TEST(offloaded_ns(server, 1000, 100) == 100);
  BOOST_TEST(offloaded_ns(server, 1'000'000, 100) == 1000);
}

BOOST_AUTO_TEST_CASE(a_host_bandwidth_is_read_and_written_where_it_is_another) {
  const auto text = [](const std::string& more) {
    return "version = 1\nname = \"a\"\n[[servers]]\nname = \"s\"\ntflops = 1\n"
           "memory_bandwidth_gb_per_s = 1\nmemory_gb = 1\nkv_gb = 0\n" +
           more;
  };
  const auto usual = parse_cluster(text(""), "a.toml");
  BOOST_REQUIRE_MESSAGE(usual, (usual ? "" : usual.error().message));
  BOOST_TEST(usual->servers[0].host_bandwidth_bytes_per_s == 50e9);
  BOOST_TEST(cluster_toml(*usual).find("host_bandwidth") == std::string::npos);
  const auto other = parse_cluster(text("host_bandwidth_gb_per_s = 25.5\n"), "a.toml");
  BOOST_REQUIRE_MESSAGE(other, (other ? "" : other.error().message));
  BOOST_TEST(other->servers[0].host_bandwidth_bytes_per_s == 25.5e9);
  const auto again = parse_cluster(cluster_toml(*other), "again.toml");
  BOOST_REQUIRE(again.has_value());
  BOOST_TEST(again->servers[0].host_bandwidth_bytes_per_s == 25.5e9);
  const auto refused = parse_cluster(text("host_bandwidth_gb_per_s = 0\n"), "a.toml");
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST(refused.error().message.find("host_bandwidth_gb_per_s") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(uplinks_and_sites_are_read_and_written_and_bound_the_links) {
  auto text = replaced(two_servers, "arrival_share = 0.25\n",
                       "arrival_share = 0.25\nuplink_gbps = 2\nsite = \"east\"\n");
  text = replaced(text, "arrival_share = 0.75\n", "arrival_share = 0.75\nsite = \"west\"\n");
  text = replaced(text, "name = \"pair\"\n",
                  "name = \"pair\"\n[[sites]]\nname = \"east\"\nuplink_gbps = 0.5\n"
                  "[[sites]]\nname = \"west\"\n");
  const auto read = parse_cluster(text, "file.toml");
  BOOST_REQUIRE_MESSAGE(read, problem(read));
  BOOST_TEST(read->servers[0].uplink_bytes_per_s == 0.25e9);
  BOOST_TEST(read->servers[1].uplink_bytes_per_s == 0);
  BOOST_REQUIRE(read->sites.size() == 2u);
  BOOST_TEST(read->sites[0].uplink_bytes_per_s == 62.5e6);
  BOOST_TEST(read->site_of(read->servers[1]) == 1u);
  for (const auto& link :
       {read->link(server_id{0}, server_id{1}), read->link(server_id{1}, server_id{0})})
    BOOST_TEST(link.bandwidth_bytes_per_s == 62.5e6);
  const auto again = parse_cluster(cluster_toml(*read), "again.toml");
  BOOST_REQUIRE_MESSAGE(again, problem(again));
  BOOST_TEST(cluster_toml(*again) == cluster_toml(*read));
  // At one site its uplink is not on the way.
  const auto together = parse_cluster(replaced(text, "site = \"west\"", "site = \"east\""), "a");
  BOOST_REQUIRE_MESSAGE(together, problem(together));
  BOOST_TEST(together->link(server_id{0}, server_id{1}).bandwidth_bytes_per_s == 0.25e9);

  const auto refused = [](const std::string& wrong, std::initializer_list<std::string> parts) {
    const auto found = parse_cluster(wrong, "file.toml");
    BOOST_REQUIRE(!found.has_value());
    for (const auto& part : parts)
      BOOST_TEST(found.error().message.find(part) != std::string::npos, found.error().message);
  };
  refused(replaced(text, "site = \"west\"", "site = \"north\""),
          {"file.toml:", "site = \"north\"", "sites are east, west"});
  refused(
      replaced(two_servers, "arrival_share = 0.75\n", "arrival_share = 0.75\nsite = \"west\"\n"),
      {"there are none, add one"});
  refused(replaced(text, "name = \"west\"", "name = \"east\""), {"second site named 'east'"});
  refused(replaced(text, "uplink_gbps = 0.5", "uplink_gbps = 0"), {"uplink_gbps = 0"});
  refused(replaced(text, "uplink_gbps = 0.5", "uplink = 0.5"), {"'uplink'", "a site"});
}

BOOST_AUTO_TEST_CASE(uplinks_of_a_draw_change_nothing_else_of_it) {
  auto options = options_of(7, 6, 2);
  const auto plain = draw_cluster(options);
  BOOST_TEST(plain.sites.empty());
  options.uplink_bytes_per_s = 500e6;
  options.site_uplink_bytes_per_s = 125e6;
  auto drawn = draw_cluster(options);
  BOOST_REQUIRE(drawn.sites.size() == 2u);
  for (std::size_t i = 0; i < 6; ++i)
    for (std::size_t j = 0; j < 6; ++j) {
      if (i == j) continue;
      const auto before = plain.link(server_id{i}, server_id{j}),
                 now = drawn.link(server_id{i}, server_id{j});
      BOOST_TEST(now.latency_ns == before.latency_ns);
      BOOST_TEST(now.bandwidth_bytes_per_s ==
                 std::min(before.bandwidth_bytes_per_s, i % 2 == j % 2 ? 500e6 : 125e6));
    }
  const auto read = parse_cluster(cluster_toml(drawn), "drawn.toml");
  BOOST_REQUIRE_MESSAGE(read, problem(read));
  BOOST_TEST(cluster_toml(*read) == cluster_toml(drawn));
}

BOOST_AUTO_TEST_SUITE_END()
