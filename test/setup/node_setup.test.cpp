#include "setup/node_setup.hpp"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <string>

#include "config/files.hpp"
#include "model/checkpoint/safetensors.hpp"
#include "net/session/hello.hpp"

namespace {

using namespace ordermoe;
namespace fs = std::filesystem;

/// A copy of the tiny model whose texts end as a generation_config.json says, or as config.json does.
struct model_copy {
  fs::path folder;

  explicit model_copy(const std::string& name, const std::string& generation = "")
      : folder(fs::temp_directory_path() /
               ("ordermoe-node-setup-" + name + "-" + std::to_string(::getpid()))) {
    const fs::path from = ORDERMOE_TEST_DATA "/mixtral-tiny";
    fs::create_directories(folder);
    for (const char* file : {"config.json", "model.safetensors", "tokenizer.model"})
      fs::copy_file(from / file, folder / file);
    if (!generation.empty())
      BOOST_REQUIRE(write_file(folder / "generation_config.json", generation).has_value());
  }
  ~model_copy() { fs::remove_all(folder); }

  net::hello hello(const std::string& node) const {
    const auto digest = model::model_digest(folder);
    const auto shape = model::read_model_config(folder);
    BOOST_REQUIRE((digest.has_value() && shape.has_value()));
    net::hello made;
    made.cluster = "edge";
    made.node = node;
    made.agreed = setup::model_agreements(*digest, *shape);
    return made;
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(node_setup)

BOOST_AUTO_TEST_CASE(nodes_whose_texts_end_otherwise_do_not_work_together) {
  const model_copy plain("plain"), other("other", R"({"eos_token_id": [2, 7]})"),
      turned("turned", R"({"eos_token_id": [7, 2]})");
  BOOST_TEST(!net::disagreement(plain.hello("a"), plain.hello("b"), "b").has_value());
  const auto why = net::disagreement(plain.hello("a"), other.hello("b"), "b");
  BOOST_REQUIRE(why.has_value());
  BOOST_TEST(why->message == "hello.ends: found 2 7, expected 2");
  // In what order a file has them is nothing.
  BOOST_TEST(!net::disagreement(turned.hello("a"), other.hello("b"), "b").has_value());
}

BOOST_AUTO_TEST_SUITE_END()
