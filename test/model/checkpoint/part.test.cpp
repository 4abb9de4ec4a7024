#include "model/checkpoint/part.hpp"

#include "model/checkpoint/convert.hpp"
#include "model/checkpoint/verify.hpp"
#include "test/model/fixture.hpp"

namespace {

namespace om = ordermoe::model;
namespace fs = std::filesystem;
using fixture::check_error;
using fixture::need;
using fixture::sharded_qwen;
using ordermoe::errc;
using ordermoe::expert_id;
using ordermoe::layer_id;

/// Every third expert, another third in each layer.
bool is_here(layer_id layer, expert_id expert) {
  return (expert.index() + layer.index()) % 3 == 0;
}

om::load_options those_here() {
  om::load_options options;
  options.hosts = is_here;
  return options;
}

fs::path part_in(const fixture::scratch_folder& place, const fs::path& model = sharded_qwen()) {
  auto made = place.path() / "part";
  need(om::write_part(model, made, "s1", is_here));
  return made;
}

/// What an expert makes of some rows.
std::vector<float> output(const om::transformer& model, layer_id layer, expert_id expert) {
  const auto width = model.config().hidden_size;
  const auto rows = fixture::numbers(3 * width, 7);
  std::vector<float> made(rows.size());
  model.run_expert(layer, expert, rows, made);
  return made;
}

void check_same_experts(const fs::path& whole_folder, const fs::path& part_folder) {
  const auto whole = need(om::transformer::load(whole_folder));
  const auto part = need(om::transformer::load(part_folder, those_here()));
  const auto& shape = whole->config();
  std::size_t compared = 0;
  for (std::size_t l = 0; l < shape.n_layers; ++l)
    for (std::size_t e = 0; e < shape.n_experts; ++e) {
      BOOST_TEST(part->hosts(layer_id{l}, expert_id{e}) == is_here(layer_id{l}, expert_id{e}));
      if (!part->hosts(layer_id{l}, expert_id{e})) continue;
      const auto a = output(*whole, layer_id{l}, expert_id{e}),
                 b = output(*part, layer_id{l}, expert_id{e});
      BOOST_TEST(fixture::same_bits(a.data(), b.data(), a.size()));
      ++compared;
    }
  BOOST_TEST(compared > 0u);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(part)

BOOST_AUTO_TEST_CASE(a_part_has_its_experts_and_everything_else_and_the_digest_of_the_whole) {
  const fixture::scratch_folder place;
  const auto folder = part_in(place);
  BOOST_TEST(need(om::model_digest(folder)) == need(om::model_digest(sharded_qwen())));
  const auto read = need(om::read_part(folder));
  BOOST_REQUIRE(read.has_value());
  BOOST_TEST(read->server == "s1");
  BOOST_TEST(!need(om::read_part(sharded_qwen())).has_value());
  const auto whole = need(om::checkpoint::open_folder(sharded_qwen()));
  const auto here = need(om::checkpoint::open_folder(folder));
  const auto absent = om::left_out(need(om::read_model_config(folder)), *read);
  for (const auto& [name, view] : whole->tensors()) {
    const auto* found = here->find(name);
    BOOST_TEST((found == nullptr) == absent.contains(name), name);
    if (found != nullptr) BOOST_TEST(std::ranges::equal(found->bytes, view.bytes), name);
  }
  BOOST_TEST(here->tensors().size() < whole->tensors().size());
  check_same_experts(sharded_qwen(), folder);
  BOOST_TEST(need(om::verify_model(folder, om::checksum_check::verify)).problems.empty());
}

BOOST_AUTO_TEST_CASE(a_part_of_a_packed_model_is_mapped_as_the_whole_is) {
  const fixture::scratch_folder place;
  const auto packed = place.path() / "packed";
  need(om::pack_model(sharded_qwen(), packed, {}));
  const auto folder = part_in(place, packed);
  check_same_experts(packed, folder);
  BOOST_TEST(need(om::verify_model(folder, om::checksum_check::verify)).problems.empty());
}

BOOST_AUTO_TEST_CASE(an_expert_that_is_not_in_the_part_is_named) {
  const fixture::scratch_folder place;
  const auto folder = part_in(place);
  check_error(om::transformer::load(folder), errc::mismatch,
              {"expert 1 of layer 0", "server s1", "model shard"});
}

BOOST_AUTO_TEST_CASE(a_part_whose_tensors_were_exchanged_is_refused) {
  const fixture::scratch_folder place;
  const auto folder = part_in(place);
  auto text = need(ordermoe::read_file(folder / "model.safetensors", 1u << 30));
  text.back() = static_cast<char>(text.back() ^ 1);
  BOOST_REQUIRE(ordermoe::write_file(folder / "model.safetensors", text).has_value());
  check_error(om::model_digest(folder), errc::mismatch, {"part.json", "model shard"});
  BOOST_TEST(!need(om::verify_model(folder, om::checksum_check::skip)).problems.empty());
}

BOOST_AUTO_TEST_CASE(a_part_is_not_parted_or_converted) {
  const fixture::scratch_folder place;
  const auto folder = part_in(place);
  check_error(om::write_part(folder, place.path() / "again", "s2", is_here), errc::unsupported,
              {"server s1", "whole model"});
  check_error(om::convert_model(folder, place.path() / "again", {}), errc::unsupported,
              {"server s1"});
}

BOOST_AUTO_TEST_CASE(a_part_json_that_makes_no_sense_is_refused) {
  const fixture::scratch_folder place;
  const auto folder = part_in(place);
  const auto refused = [&](const char* text, errc code) {
    BOOST_REQUIRE(ordermoe::write_file(folder / "part.json", text).has_value());
    check_error(om::model_digest(folder), code, {"part.json", "model shard"});
  };
  refused("{}", errc::malformed);
  refused("[]", errc::malformed);
  refused(R"({"format": "ordermoe-part", "version": 2})", errc::out_of_range);
  refused(R"({"format": "ordermoe-part", "version": 1, "of": "a", "digest": "b", "server": "s",
              "experts": [[-1]]})",
          errc::out_of_range);
}

BOOST_AUTO_TEST_SUITE_END()
