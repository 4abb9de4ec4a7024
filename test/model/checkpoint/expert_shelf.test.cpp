#include "model/checkpoint/expert_shelf.hpp"

#include "config/sha256.hpp"
#include "model/checkpoint/convert.hpp"
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

const layer_id a_layer{0};
const expert_id here{0}, elsewhere{1};

/// A model's folder, a part of it, and the shelves of two hosts.
struct two_hosts {
  fixture::scratch_folder place;
  fs::path model, part = place.path() / "part", beside = place.path() / "state" / "experts";
  std::shared_ptr<om::expert_shelf> whole, shelf;

  explicit two_hosts(const fs::path& of = sharded_qwen()) : model(of) {
    need(om::write_part(model, part, "s1", is_here));
    whole = need(om::expert_shelf::open(model, place.path() / "nothing"));
    reopen();
  }
  void reopen() { shelf = need(om::expert_shelf::open(part, beside)); }
  std::string file(layer_id layer, expert_id expert) const {
    const auto image = need(whole->find(layer, expert));
    return need(image.read(0, image.bytes()));
  }
  void bring(layer_id layer, expert_id expert) const {
    auto coming = need(shelf->receive(layer, expert));
    BOOST_REQUIRE(coming->append(file(layer, expert)).has_value());
    BOOST_REQUIRE(shelf->keep(layer, expert, std::move(coming)).has_value());
  }
};

std::vector<float> output(const om::expert_weights& expert, std::size_t width) {
  const auto rows = fixture::numbers(3 * width, 7);
  std::vector<float> made(rows.size());
  expert.apply(rows.data(), made.data(), 3);
  return made;
}

void check_same_expert(const two_hosts& hosts, ordermoe::precision kept) {
  const auto whole = need(om::expert_reader::open(hosts.model));
  const auto here_too = need(om::expert_reader::open(hosts.part, hosts.shelf));
  const auto width = hosts.shelf->config().hidden_size;
  const auto expected = output(need(whole->read(a_layer, elsewhere, kept)), width);
  const auto found = output(need(here_too->read(a_layer, elsewhere, kept)), width);
  BOOST_TEST(fixture::same_bits(expected.data(), found.data(), found.size()));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(expert_shelf)

BOOST_AUTO_TEST_CASE(an_expert_is_the_same_file_wherever_it_is_and_a_part_knows_its_digest) {
  const two_hosts hosts;
  const auto bytes = hosts.file(a_layer, here);
  const auto own = need(hosts.shelf->find(a_layer, here));
  BOOST_TEST((need(own.read(0, own.bytes())) == bytes));
  const auto& shape = hosts.shelf->config();
  for (std::size_t l = 0; l < shape.n_layers; ++l)
    for (std::size_t e = 0; e < shape.n_experts; ++e) {
      const auto file = hosts.file(layer_id{l}, expert_id{e});
      const auto facts = need(hosts.shelf->facts(layer_id{l}, expert_id{e}));
      BOOST_TEST(facts.bytes == file.size());
      BOOST_TEST(facts.sha256 == ordermoe::sha256_hex(file));
      BOOST_TEST(hosts.shelf->has(layer_id{l}, expert_id{e}) == is_here(layer_id{l}, expert_id{e}));
      BOOST_TEST(hosts.whole->has(layer_id{l}, expert_id{e}));
    }
}

BOOST_AUTO_TEST_CASE(a_file_is_read_from_anywhere) {
  const two_hosts hosts;
  const auto image = need(hosts.whole->find(a_layer, elsewhere));
  const auto bytes = hosts.file(a_layer, elsewhere);
  for (const std::size_t n : {std::size_t{1}, std::size_t{4095}, std::size_t{5000}})
    for (std::uint64_t at = 0; at + n <= bytes.size(); at += 3 * n + 1)
      BOOST_REQUIRE((need(image.read(at, n)) == bytes.substr(at, n)));
}

BOOST_AUTO_TEST_CASE(an_expert_that_came_has_the_bits_of_the_whole_models) {
  using ordermoe::precision;
  for (const auto kept : {precision::stored, precision::int8}) {
    const two_hosts hosts;
    BOOST_TEST(!hosts.shelf->has(a_layer, elsewhere));
    const auto before = need(om::expert_reader::open(hosts.part, hosts.shelf));
    check_error(before->read(a_layer, elsewhere, kept), errc::mismatch,
                {"expert 1 of layer 0", "server s1", "another host"});
    hosts.bring(a_layer, elsewhere);
    check_same_expert(hosts, kept);
  }
}

BOOST_AUTO_TEST_CASE(so_has_one_of_a_packed_or_a_quantised_model) {
  const fixture::scratch_folder place;
  const auto packed = place.path() / "packed", small = place.path() / "int8";
  need(om::pack_model(sharded_qwen(), packed, {}));
  om::convert_options options;
  options.kept = om::weight_storage::int8;
  need(om::convert_model(sharded_qwen(), small, options));
  for (const auto& model : {packed, small}) {
    const two_hosts hosts(model);
    hosts.bring(a_layer, elsewhere);
    check_same_expert(hosts, ordermoe::precision::stored);
  }
}

BOOST_AUTO_TEST_CASE(what_came_in_part_is_gone_on_with_by_the_next_process) {
  two_hosts hosts;
  const auto bytes = hosts.file(a_layer, elsewhere);
  {
    auto coming = need(hosts.shelf->receive(a_layer, elsewhere));
    BOOST_REQUIRE(coming->append(bytes.substr(0, 5000)).has_value());
  }
  hosts.reopen();
  BOOST_TEST(!hosts.shelf->has(a_layer, elsewhere));
  auto coming = need(hosts.shelf->receive(a_layer, elsewhere));
  BOOST_TEST(coming->bytes_there() == 5000u);
  std::string kept;
  BOOST_REQUIRE(coming
                    ->each_piece([&](std::string_view piece) -> ordermoe::result<void> {
                      kept += piece;
                      return {};
                    })
                    .has_value());
  BOOST_TEST((kept == bytes.substr(0, 5000)));
  BOOST_REQUIRE(coming->append(bytes.substr(5000)).has_value());
  BOOST_REQUIRE(hosts.shelf->keep(a_layer, elsewhere, std::move(coming)).has_value());
  hosts.reopen();
  BOOST_TEST(hosts.shelf->has(a_layer, elsewhere));
  check_same_expert(hosts, ordermoe::precision::stored);
}

BOOST_AUTO_TEST_CASE(more_than_the_whole_is_begun_anew) {
  const two_hosts hosts;
  {
    auto coming = need(hosts.shelf->receive(a_layer, elsewhere));
    BOOST_REQUIRE(coming->append(std::string(coming->facts().bytes, 'x')).has_value());
  }
  BOOST_TEST(need(hosts.shelf->receive(a_layer, elsewhere))->bytes_there() == 0u);
}

BOOST_AUTO_TEST_CASE(a_file_that_changed_on_the_disk_is_refused_and_named) {
  two_hosts hosts;
  hosts.bring(a_layer, elsewhere);
  const auto path = hosts.beside / "0-1.safetensors";
  auto bytes = need(ordermoe::read_file(path));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  BOOST_REQUIRE(ordermoe::write_file(path, bytes).has_value());
  hosts.reopen();
  const auto reader = need(om::expert_reader::open(hosts.part, hosts.shelf));
  check_error(reader->read(a_layer, elsewhere, ordermoe::precision::stored), errc::mismatch,
              {"0-1.safetensors", "SHA-256", "fetches the expert again"});
  // Without another start.
  BOOST_TEST(!hosts.shelf->has(a_layer, elsewhere));
  hosts.bring(a_layer, elsewhere);
  static_cast<void>(need(reader->read(a_layer, elsewhere, ordermoe::precision::stored)));
  BOOST_REQUIRE(ordermoe::write_file(path, "short").has_value());
  hosts.reopen();
  BOOST_TEST(!hosts.shelf->has(a_layer, elsewhere));
}

BOOST_AUTO_TEST_CASE(what_is_not_wanted_any_more_is_removed) {
  two_hosts hosts;
  hosts.bring(a_layer, elsewhere);
  hosts.bring(a_layer, expert_id{2});
  static_cast<void>(need(hosts.shelf->receive(layer_id{1}, expert_id{0})));
  // Of a model with more layers or experts, which was here before.
  for (const auto* other : {"99-0.safetensors", "0-99.coming"})
    BOOST_REQUIRE(ordermoe::write_file(hosts.beside / other, "?").has_value());
  hosts.shelf->keep_only([&](layer_id layer, expert_id expert) {
    BOOST_TEST((layer.index() < hosts.shelf->config().n_layers &&
                expert.index() < hosts.shelf->config().n_experts));
    return expert == expert_id{2};
  });
  BOOST_TEST(!hosts.shelf->has(a_layer, elsewhere));
  BOOST_TEST(hosts.shelf->has(a_layer, expert_id{2}));
  BOOST_TEST(hosts.shelf->has(a_layer, here));
  BOOST_TEST(std::distance(fs::directory_iterator(hosts.beside), fs::directory_iterator()) == 1);
}

BOOST_AUTO_TEST_CASE(a_part_without_the_list_or_with_another_models_says_what_to_do) {
  const two_hosts hosts;
  const auto list = hosts.part / om::expert_list_name;
  const auto text = need(ordermoe::read_file(list));
  fs::remove(list);
  const auto without = need(om::expert_shelf::open(hosts.part, hosts.beside));
  check_error(without->receive(a_layer, elsewhere), errc::unsupported,
              {"experts.json", "model shard"});
  check_error(without->facts(a_layer, expert_id{99}), errc::out_of_range, {"expert 99"});
  for (const char* wrong : {"{}", "[]", R"({"format": "ordermoe-experts", "version": 2})"}) {
    BOOST_REQUIRE(ordermoe::write_file(list, wrong).has_value());
    const auto opened = om::expert_shelf::open(hosts.part, hosts.beside);
    BOOST_REQUIRE(!opened.has_value());
    BOOST_TEST(opened.error().message.find("model shard") != std::string::npos);
  }
  auto other = text;
  const auto of = other.find("\"of\":\"") + 6;
  other[of] = other[of] == '0' ? '1' : '0';
  BOOST_REQUIRE(ordermoe::write_file(list, other).has_value());
  check_error(om::expert_shelf::open(hosts.part, hosts.beside), errc::mismatch,
              {"experts.json", "model shard"});
}

BOOST_AUTO_TEST_SUITE_END()
