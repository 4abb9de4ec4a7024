#include "model/transformer.hpp"

#include <limits>
#include <nlohmann/json.hpp>

#include "model/checkpoint/safetensors.hpp"
#include "model/reference.hpp"
#include "test/model/fixture.hpp"

namespace {

namespace om = ordermoe::model;
using fixture::check_error;
using ordermoe::errc;

/// The tiny checkpoint, to be changed and written elsewhere.
std::vector<om::tensor_data> tiny_tensors(om::tensor_type type = om::tensor_type::bf16) {
  const auto source = fixture::need(om::checkpoint::open_folder(fixture::tiny));
  std::vector<om::tensor_data> tensors;
  for (const auto& [name, view] : source->tensors())
    tensors.push_back({name, type, view.shape, om::to_bytes(view.to_fp32(), type)});
  return tensors;
}

om::tensor_data& find(std::vector<om::tensor_data>& tensors, const std::string& name) {
  for (auto& tensor : tensors)
    if (tensor.name == name) return tensor;
  throw std::logic_error(name);
}

ordermoe::result<std::shared_ptr<const om::transformer>> load(
    const fixture::scratch_folder& folder, const std::vector<om::tensor_data>& tensors) {
  std::error_code ignored;
  std::filesystem::copy_file(fixture::tiny / "config.json", folder.path() / "config.json", ignored);
  const auto written = om::write_safetensors(folder.path() / "model.safetensors", tensors);
  if (!written) BOOST_FAIL(written.error().message);
  return om::transformer::load(folder.path());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(transformer)

BOOST_AUTO_TEST_CASE(the_same_weights_in_fp32_give_the_same_bits) {
  const fixture::scratch_folder folder;
  const auto wide = fixture::need(load(folder, tiny_tensors(om::tensor_type::f32)));
  const std::vector<std::int32_t> ids{1, 20, 300, 4};
  const auto expected = fixture::need(om::logits(*fixture::tiny_model(), ids));
  const auto found = fixture::need(om::logits(*wide, ids));
  BOOST_TEST(fixture::same_bits(expected.data(), found.data(), found.size()));
}

BOOST_AUTO_TEST_CASE(weights_that_do_not_fit_bf16_are_kept_in_fp32) {
  const fixture::scratch_folder folder;
  auto tensors = tiny_tensors(om::tensor_type::f32);
  for (auto& tensor : tensors) {
    auto numbers = std::vector<float>(tensor.bytes.size() / 4);
    std::memcpy(numbers.data(), tensor.bytes.data(), tensor.bytes.size());
    for (float& x : numbers) x *= 1.0001f;
    tensor.bytes = om::to_bytes(numbers, om::tensor_type::f32);
  }
  const auto changed = fixture::need(load(folder, tensors));
  const std::vector<std::int32_t> ids{1, 20, 300, 4};
  const auto before = fixture::need(om::logits(*fixture::tiny_model(), ids));
  const auto after = fixture::need(om::logits(*changed, ids));
  BOOST_TEST(!fixture::same_bits(before.data(), after.data(), after.size()));
  for (std::size_t i = 0; i < after.size(); ++i) BOOST_TEST(std::abs(before[i] - after[i]) < 0.05);
}

BOOST_AUTO_TEST_CASE(a_missing_tensor_is_named) {
  const fixture::scratch_folder folder;
  for (const std::string name :
       {"model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight",
        "model.layers.2.block_sparse_moe.experts.5.w2.weight", "model.norm.weight",
        "lm_head.weight"}) {
    auto tensors = tiny_tensors();
    std::erase_if(tensors, [&](const auto& tensor) { return tensor.name == name; });
    check_error(load(folder, tensors), errc::mismatch, {name, "absent", "model.safetensors"});
  }
}

BOOST_AUTO_TEST_CASE(a_tensor_too_many_is_named) {
  const fixture::scratch_folder folder;
  auto tensors = tiny_tensors();
  tensors.push_back(tensors.front());
  tensors.back().name = "model.layers.3.input_layernorm.weight";
  check_error(load(folder, tensors), errc::mismatch,
              {"model.layers.3.input_layernorm.weight", "model.safetensors"});
}

BOOST_AUTO_TEST_CASE(a_tensor_of_another_shape_is_named) {
  const fixture::scratch_folder folder;
  auto tensors = tiny_tensors();
  std::swap(find(tensors, "model.layers.0.block_sparse_moe.experts.1.w2.weight").shape[0],
            find(tensors, "model.layers.0.block_sparse_moe.experts.1.w2.weight").shape[1]);
  check_error(load(folder, tensors), errc::mismatch,
              {"model.layers.0.block_sparse_moe.experts.1.w2.weight", "[36, 40]", "[40, 36]"});
}

BOOST_AUTO_TEST_CASE(a_number_that_is_not_finite_is_refused) {
  const fixture::scratch_folder folder;
  auto tensors = tiny_tensors();
  auto& norm = find(tensors, "model.norm.weight");
  std::vector<float> numbers(40, 1.0f);
  numbers[7] = std::numeric_limits<float>::quiet_NaN();
  norm.bytes = om::to_bytes(numbers, norm.type);
  check_error(load(folder, tensors), errc::out_of_range, {"model.norm.weight", "not finite"});
}

BOOST_AUTO_TEST_CASE(tied_embeddings_serve_as_the_output_projection) {
  const fixture::scratch_folder folder;
  auto config = fixture::tiny_model()->config();
  config.tied_embeddings = true;
  folder.write("config.json", om::model_config_json(config));
  auto tensors = tiny_tensors();
  check_error(load(folder, tensors), errc::mismatch, {"lm_head.weight", "tie_word_embeddings"});
  find(tensors, "lm_head.weight").bytes = find(tensors, "model.embed_tokens.weight").bytes;
  const auto both = fixture::need(load(folder, tensors));
  std::erase_if(tensors, [](const auto& tensor) { return tensor.name == "lm_head.weight"; });
  const auto one = fixture::need(load(folder, tensors));
  const std::vector<std::int32_t> ids{1, 20, 300};
  const auto expected = fixture::need(om::logits(*both, ids));
  const auto found = fixture::need(om::logits(*one, ids));
  BOOST_TEST(fixture::same_bits(expected.data(), found.data(), found.size()));
}

BOOST_AUTO_TEST_CASE(a_device_that_is_not_there_is_refused) {
  for (const std::string device :
       {"nonsense", "cuda:99", "", "libtorch:", "libtorch:nonsense", "libtorch:cuda:99"})
    check_error(om::transformer::load(fixture::tiny, {.device = device}), errc::unsupported,
                {"device '" + device + "'", "cpu"});
}

BOOST_AUTO_TEST_CASE(a_shard_of_another_model_is_refused) {
  const fixture::scratch_folder folder;
  std::filesystem::copy_file(fixture::tiny / "config.json", folder.path() / "config.json");
  auto tensors = tiny_tensors();
  const std::vector<om::tensor_data> first(tensors.begin(), tensors.begin() + 20);
  const std::vector<om::tensor_data> rest(tensors.begin() + 20, tensors.end());
  nlohmann::json map;
  for (const auto& tensor : first) map[tensor.name] = "a.safetensors";
  for (const auto& tensor : rest) map[tensor.name] = "b.safetensors";
  folder.write("model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  BOOST_REQUIRE(om::write_safetensors(folder.path() / "a.safetensors", first));
  BOOST_REQUIRE(om::write_safetensors(folder.path() / "b.safetensors", rest));
  BOOST_TEST(om::transformer::load(folder.path()).has_value());
  std::filesystem::rename(folder.path() / "a.safetensors", folder.path() / "c.safetensors");
  check_error(om::transformer::load(folder.path()), errc::not_found, {"a.safetensors"});
  std::filesystem::rename(folder.path() / "b.safetensors", folder.path() / "a.safetensors");
  std::filesystem::rename(folder.path() / "c.safetensors", folder.path() / "b.safetensors");
  check_error(om::transformer::load(folder.path()), errc::mismatch, {"expected in"});
}

BOOST_AUTO_TEST_CASE(a_cache_counts_rows_without_a_gap) {
  om::kv_cache cache(4, 2);
  const float row[] = {1.0f, 2.0f};
  cache.put(1, row);
  BOOST_TEST(cache.contiguous() == 0u);
  BOOST_TEST(cache.has(1));
  BOOST_TEST(!cache.has(0));
  cache.put(0, row);
  BOOST_TEST(cache.contiguous() == 2u);
  cache.put(3, row);
  BOOST_TEST(cache.contiguous() == 2u);
  cache.put(2, row);
  BOOST_TEST(cache.contiguous() == 4u);
  BOOST_TEST(!cache.has(4));
  BOOST_TEST(cache.row(2)[1] == 2.0f);
}

BOOST_AUTO_TEST_SUITE_END()
