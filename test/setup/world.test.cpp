#include "setup/world.hpp"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <string>

#include "config/files.hpp"
#include "config/job.hpp"
#include "planning/profile.hpp"

namespace ordermoe {

namespace {

namespace fs = std::filesystem;

/// A model's folder without a profile, and clusters of one server and of two.
struct place {
  fs::path folder = fs::temp_directory_path() / ("ordermoe-world-" + std::to_string(::getpid()));
  fs::path model = folder / "model", one = folder / "one.toml", two = folder / "two.toml";

  place() {
    const fs::path from = ORDERMOE_TEST_DATA "/mixtral-tiny";
    fs::create_directories(model);
    for (const char* name : {"config.json", "model.safetensors", "tokenizer.model"})
      fs::create_symlink(from / name, model / name);
    auto servers = read_cluster(ORDERMOE_DATA "/clusters/edge8.toml");
    BOOST_REQUIRE(servers.has_value());
    write(one, first(*servers, 1));
    write(two, first(*servers, 2));
  }
  ~place() { fs::remove_all(folder); }

  static cluster first(cluster servers, std::size_t n) {
    std::vector<link_spec> links;
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j) links.push_back(servers.link(server_id{i}, server_id{j}));
    servers.servers.resize(n);
    for (auto& each : servers.servers) each.arrival_share = 1 / static_cast<double>(n);
    servers.links = std::move(links);
    return servers;
  }
  static void write(const fs::path& to, const cluster& servers) {
    BOOST_REQUIRE(write_file(to, cluster_toml(servers)).has_value());
  }

  setup::world_options options() const {
    setup::world_options made;
    made.model = model.string();
    made.cluster = one.string();
    made.has_budget = false;
    return made;
  }
};

setup::world loaded(const setup::world_options& options) {
  job work;
  auto made = setup::load_world(options, work);
  BOOST_REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().message));
  return std::move(*made);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(world)

BOOST_AUTO_TEST_CASE(one_server_where_nothing_may_be_lost_has_no_profile_made) {
  const place at;
  const auto alone = loaded(at.options());
  BOOST_TEST(alone.knows_nothing);
  BOOST_TEST(!alone.made_profile);
  auto options = at.options();
  options.has_budget = true;
  BOOST_TEST(loaded(options).made_profile);
  options = at.options();
  options.cluster = at.two.string();
  const auto several = loaded(options);
  BOOST_TEST(several.made_profile);
  BOOST_TEST(!several.knows_nothing);
  options = at.options();
  auto coarser = several.servers;
  coarser.servers.front().expert_precision = precision::int4;
  place::write(at.one, place::first(coarser, 1));
  BOOST_TEST(loaded(options).made_profile);
}

BOOST_AUTO_TEST_CASE(one_server_goes_by_a_profile_that_is_there) {
  const place at;
  auto options = at.options();
  options.has_budget = true;
  const auto text = planning::profile_json(loaded(options).profile);
  const auto named = at.folder / "named.json";
  BOOST_REQUIRE(write_file(named, text).has_value());
  options = at.options();
  options.profile = named.string();
  BOOST_TEST(!loaded(options).knows_nothing);
  options = at.options();
  BOOST_REQUIRE(write_file(at.model / "profile.json", text).has_value());
  const auto beside = loaded(options);
  BOOST_TEST(!beside.knows_nothing);
  BOOST_TEST(!beside.made_profile);
}

BOOST_AUTO_TEST_CASE(precisions_that_may_be_chosen_need_a_profile_on_one_server_too) {
  const place at;
  auto options = at.options();
  options.choose_precision = true;
  job work;
  // The one that is made does not say what they cost.
  const auto made = setup::load_world(options, work);
  BOOST_REQUIRE(!made.has_value());
  BOOST_TEST(work.now().phase == "calibrating");
  BOOST_TEST(made.error().message.find("does not say what coarser") != std::string::npos,
             made.error().message);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
