#include <algorithm>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>

#include "model/checkpoint/matrix_source.hpp"
#include "model/checkpoint/random_model.hpp"
#include "model/reference.hpp"
#include "model/transformer.hpp"
#include "test/model/fixture.hpp"
#include "test/support/devices.hpp"

// From the files to the weights that are computed with: parts of a model, their memory, their bits.

namespace {

namespace om = ordermoe::model;
using fixture::check_error;
using fixture::same_bits;
using fixture::sharded_qwen;
using ordermoe::errc;
using ordermoe::expert_id;
using ordermoe::layer_id;

/// Rounded to bf16, so that every storage keeps them.
std::vector<float> bf16_numbers(std::size_t n, std::uint64_t seed) {
  auto numbers = fixture::numbers(n, seed);
  for (float& x : numbers) x = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0xffff0000u);
  return numbers;
}

om::tensor_view view_of(const std::string& bytes, om::tensor_type type, std::size_t n_out,
                        std::size_t n_in) {
  om::tensor_view view;
  view.name = "matrix";
  view.type = type;
  view.shape = {n_out, n_in};
  view.bytes = std::as_bytes(std::span(bytes));
  return view;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(loading)

BOOST_AUTO_TEST_CASE(packing_from_stored_rows_equals_packing_from_fp32_for_every_type_and_shape) {
  const std::pair<std::size_t, std::size_t> shapes[] = {{1, 1},     {7, 5},   {16, 32}, {48, 64},
                                                        {64, 96},   {65, 33}, {72, 40}, {130, 31},
                                                        {192, 256}, {80, 8},  {100, 37}};
  for (const auto& [n_out, n_in] : shapes)
    for (const auto type : {om::tensor_type::f32, om::tensor_type::f16, om::tensor_type::bf16}) {
      const om::packed_layout layout{n_out, n_in};
      const std::string bytes = om::to_bytes(fixture::numbers(n_out * n_in, 1 + n_out), type);
      const auto view = view_of(bytes, type, n_out, n_in);
      const auto numbers = view.to_fp32();
      for (const auto storage : {om::weight_storage::fp32, om::weight_storage::bf16,
                                 om::weight_storage::int8, om::weight_storage::int4}) {
        std::vector<std::byte> expected(layout.bytes(storage)),
            found(layout.bytes(storage), std::byte{0xad});
        om::pack(layout, numbers, storage, expected);
        om::matrix_source source(view);
        om::pack(layout, source, storage, found);
        BOOST_TEST_CONTEXT(n_out << " x " << n_in << " " << om::to_string(type) << " to "
                                 << om::to_string(storage))
        BOOST_TEST((found == expected));
        BOOST_TEST((source.not_finite() == nullptr));
      }
    }
}

BOOST_AUTO_TEST_CASE(parts_of_different_types_are_one_matrix) {
  const std::size_t n_in = 40;
  const auto numbers = bf16_numbers(110 * n_in, 5);
  const std::string top = om::to_bytes(std::span(numbers).first(50 * n_in), om::tensor_type::bf16);
  const std::string bottom =
      om::to_bytes(std::span(numbers).subspan(50 * n_in), om::tensor_type::f32);
  const om::packed_layout layout{110, n_in};
  for (const auto storage : {om::weight_storage::fp32, om::weight_storage::bf16}) {
    om::matrix_source source(view_of(top, om::tensor_type::bf16, 50, n_in));
    source.append(om::matrix_source());
    source.append(om::matrix_source(view_of(bottom, om::tensor_type::f32, 60, n_in)));
    BOOST_TEST(source.n_out() == 110u);
    BOOST_TEST(source.fits_bf16());
    std::vector<std::byte> expected(layout.bytes(storage)), found(layout.bytes(storage));
    om::pack(layout, numbers, storage, expected);
    om::pack(layout, source, storage, found);
    BOOST_TEST((found == expected));
  }
}

BOOST_AUTO_TEST_CASE(rows_copied_out_of_the_file_give_the_bits_of_mapped_ones) {
  const fixture::scratch_folder place;
  const std::size_t n_in = 72;
  const auto numbers = bf16_numbers(230 * n_in, 9);
  auto bad = numbers;
  bad[150 * n_in] = std::numeric_limits<float>::infinity();
  const auto rows = [&](const std::vector<float>& from, std::size_t first, std::size_t n) {
    return std::span(from).subspan(first * n_in, n * n_in);
  };
  const om::tensor_data tensors[] = {{"top",
                                      om::tensor_type::bf16,
                                      {100, n_in},
                                      om::to_bytes(rows(numbers, 0, 100), om::tensor_type::bf16)},
                                     {"below",
                                      om::tensor_type::f32,
                                      {130, n_in},
                                      om::to_bytes(rows(numbers, 100, 130), om::tensor_type::f32)},
                                     {"bad",
                                      om::tensor_type::bf16,
                                      {130, n_in},
                                      om::to_bytes(rows(bad, 100, 130), om::tensor_type::bf16)}};
  const auto path = place.path() / "model.safetensors";
  BOOST_REQUIRE(static_cast<bool>(om::write_safetensors(path, tensors)));
  const auto opened = fixture::need(om::checkpoint::open_file(path));
  const om::packed_layout layout{230, n_in};
  std::vector<std::byte> room;
  for (const auto storage : {om::weight_storage::fp32, om::weight_storage::bf16}) {
    om::matrix_source source(*opened->find("top"));
    source.append(om::matrix_source(*opened->find("below")));
    source.read_into(room);
    std::vector<std::byte> expected(layout.bytes(storage)), found(layout.bytes(storage));
    om::pack(layout, numbers, storage, expected);
    om::pack(layout, source, storage, found);
    BOOST_TEST((found == expected));
    BOOST_TEST((source.not_finite() == nullptr));
  }
  // 64 rows of the wider type: no more than one call begins.
  BOOST_TEST(room.size() == 64 * n_in * 4);

  om::matrix_source source(*opened->find("bad"));
  source.read_into(room);
  std::vector<std::byte> packed(om::packed_layout{130, n_in}.bytes(om::weight_storage::bf16));
  om::pack({130, n_in}, source, om::weight_storage::bf16, packed);
  BOOST_REQUIRE(source.not_finite() != nullptr);
  BOOST_TEST(source.not_finite()->name == "bad");
}

BOOST_AUTO_TEST_CASE(stored_bytes_are_copied_until_the_file_is_shorter) {
  const fixture::scratch_folder place;
  const auto path = place.path() / "model.safetensors";
  const std::string bytes = om::to_bytes(bf16_numbers(4096, 4), om::tensor_type::f32);
  const om::tensor_data tensor{"numbers", om::tensor_type::f32, {4096}, bytes};
  BOOST_REQUIRE(static_cast<bool>(om::write_safetensors(path, std::span(&tensor, 1))));
  const auto opened = fixture::need(om::checkpoint::open_file(path));
  const auto& view = *opened->find("numbers");
  std::vector<std::byte> copy(1000);
  BOOST_TEST(om::copy_stored(view, 5000, copy));
  BOOST_TEST((std::memcmp(copy.data(), bytes.data() + 5000, copy.size()) == 0));
  std::filesystem::resize_file(path, view.offset + 5999);
  BOOST_TEST(!om::copy_stored(view, 5000, copy));
  BOOST_TEST(!om::copy_stored(view_of(bytes, om::tensor_type::f32, 64, 64), 0, copy));
}

BOOST_AUTO_TEST_CASE(f16_numbers_that_bf16_does_not_keep_are_noticed) {
  std::vector<float> numbers(64 * 32, 1.0f);
  numbers[1999] = 1.0f + 0x1p-10f;
  const std::string bytes = om::to_bytes(numbers, om::tensor_type::f16);
  const om::matrix_source source(view_of(bytes, om::tensor_type::f16, 64, 32));
  BOOST_TEST(!source.fits_bf16());
}

BOOST_AUTO_TEST_CASE(weight_memory_is_aligned_and_as_large_as_asked_for) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, std::size_t{5'000'000}}) {
    const auto memory = om::weight_memory(bytes);
    BOOST_TEST(reinterpret_cast<std::uintptr_t>(memory.get()) % 64 == 0u);
    std::fill_n(memory.get(), bytes, std::byte{7});
    BOOST_TEST(std::count(memory.get(), memory.get() + bytes, std::byte{7}) ==
               static_cast<std::ptrdiff_t>(bytes));
  }
}

BOOST_AUTO_TEST_CASE(a_part_of_the_experts_takes_their_memory_only_and_gives_the_same_bits) {
  const auto whole = fixture::need(om::transformer::load(sharded_qwen()));
  om::load_options options;
  options.hosts = [](layer_id layer, expert_id expert) {
    return (layer.index() + expert.index()) % 3 == 0;
  };
  const auto part = fixture::need(om::transformer::load(sharded_qwen(), options));
  const auto& shape = whole->config();
  std::size_t absent = 0;
  const auto normed = fixture::numbers(5 * shape.hidden_size, 3);
  std::vector<float> expected(normed.size()), found(normed.size());
  for (std::size_t l = 0; l < shape.n_layers; ++l)
    for (std::size_t e = 0; e < shape.n_experts; ++e) {
      BOOST_TEST(whole->hosts(layer_id{l}, expert_id{e}));
      const bool there = (l + e) % 3 == 0;
      BOOST_TEST(part->hosts(layer_id{l}, expert_id{e}) == there);
      if (!there) {
        ++absent;
        continue;
      }
      whole->run_expert(layer_id{l}, expert_id{e}, normed, expected);
      part->run_expert(layer_id{l}, expert_id{e}, normed, found);
      BOOST_TEST(same_bits(expected.data(), found.data(), found.size()));
    }
  // Widths are multiples of 16, so that nothing is padded.
  const std::size_t expert_bytes = 3 * shape.hidden_size * shape.intermediate_size * 2;
  BOOST_TEST(whole->resident_bytes() - part->resident_bytes() == absent * expert_bytes);
}

BOOST_AUTO_TEST_CASE(resident_bytes_are_those_of_the_files_and_the_tables) {
  const auto model = fixture::need(om::transformer::load(sharded_qwen()));
  const auto& shape = model->config();
  std::size_t bytes = 0;
  for (const auto& tensor : om::tensors_of(shape)) {
    // Vectors are widened; a matrix of one row is padded to 16.
    if (tensor.shape.size() == 1)
      bytes += 4 * tensor.size();
    else
      bytes += 2 * tensor.size();
  }
  bytes += shape.n_layers * (2 * (16 - 1) * shape.hidden_size + 2 * (16 - 8) * shape.hidden_size);
  bytes += shape.max_context * shape.head_dim * sizeof(float);
  BOOST_TEST(model->resident_bytes() == bytes);
}

BOOST_AUTO_TEST_CASE(tensors_of_experts_that_are_not_loaded_are_still_checked) {
  const fixture::scratch_folder folder;
  std::filesystem::copy_file(fixture::tiny / "config.json", folder.path() / "config.json");
  const auto source = fixture::need(om::checkpoint::open_folder(fixture::tiny));
  const auto write = [&](const std::string& name, auto change) {
    std::vector<om::tensor_data> tensors;
    for (const auto& [each, view] : source->tensors())
      tensors.push_back({each, view.type, view.shape, om::to_bytes(view.to_fp32(), view.type)});
    std::erase_if(tensors, [&](auto& tensor) { return tensor.name == name && change(tensor); });
    const auto written = om::write_safetensors(folder.path() / "model.safetensors", tensors);
    if (!written) BOOST_FAIL(written.error().message);
  };
  om::load_options none;
  none.hosts = [](layer_id, expert_id) { return false; };
  const std::string name = "model.layers.0.block_sparse_moe.experts.1.w2.weight";
  write(name, [](om::tensor_data&) { return true; });
  check_error(om::transformer::load(folder.path(), none), errc::mismatch, {name, "absent"});
  write(name, [](om::tensor_data& tensor) {
    std::swap(tensor.shape[0], tensor.shape[1]);
    return false;
  });
  check_error(om::transformer::load(folder.path(), none), errc::mismatch, {name, "shape"});
}

BOOST_AUTO_TEST_CASE(a_number_that_is_not_finite_is_named_by_its_tensor_in_every_kind_of_weight) {
  const auto source = fixture::need(om::checkpoint::open_folder(sharded_qwen()));
  for (const char* name :
       {"model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight",
        "model.layers.1.self_attn.v_proj.bias", "model.layers.0.mlp.experts.2.up_proj.weight",
        "model.layers.2.mlp.shared_expert.down_proj.weight",
        "model.layers.2.mlp.shared_expert_gate.weight", "model.norm.weight", "lm_head.weight"}) {
    const fixture::scratch_folder folder;
    std::filesystem::copy_file(sharded_qwen() / "config.json", folder.path() / "config.json");
    std::vector<om::tensor_data> tensors;
    for (const auto& [each, view] : source->tensors()) {
      auto numbers = view.to_fp32();
      if (each == name) numbers[numbers.size() / 2] = std::numeric_limits<float>::quiet_NaN();
      tensors.push_back({each, view.type, view.shape, om::to_bytes(numbers, view.type)});
    }
    const auto written = om::write_safetensors(folder.path() / "model.safetensors", tensors);
    if (!written) BOOST_FAIL(written.error().message);
    check_error(om::transformer::load(folder.path()), errc::out_of_range, {name, "not finite"});
  }
}

BOOST_AUTO_TEST_CASE(loading_ends_when_interrupted_and_shows_how_far_it_is) {
  om::load_options options;
  std::size_t asked = 0;
  options.watch.should_stop = [&] { return ++asked == 5; };
  check_error(om::transformer::load(sharded_qwen(), options), errc::interrupted, {"interrupted"});
  double last = 0;
  options.watch.should_stop = {};
  options.watch.progress = [&](double share) {
    BOOST_REQUIRE(share > last);
    last = share;
  };
  fixture::need(om::transformer::load(sharded_qwen(), options));
  BOOST_TEST(last > 0.99);
}

BOOST_AUTO_TEST_CASE(a_model_with_other_experts_shares_the_rest_and_computes_the_same) {
  const std::string folder = ORDERMOE_TEST_DATA "/mixtral-tiny";
  const auto whole = om::transformer::load(folder);
  om::load_options even;
  even.hosts = [](layer_id, expert_id expert) { return expert.index() % 2 == 0; };
  const auto half = om::transformer::load(folder, even);
  const auto reader = om::expert_reader::open(folder);
  BOOST_REQUIRE(whole && half && reader);
  const auto low = [](layer_id, expert_id expert) { return expert.index() < 3; };
  const auto other = (*half)->with_experts(**reader, low, ordermoe::precision::stored);
  BOOST_REQUIRE_MESSAGE(other.has_value(), (other ? "" : other.error().message));
  const auto& shape = (*whole)->config();
  std::vector<float> rows(2 * shape.hidden_size), expected(rows.size()), found(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 11) * 0.1f - 0.5f;
  for (std::uint32_t l = 0; l < shape.n_layers; ++l)
    for (std::uint32_t e = 0; e < shape.n_experts; ++e) {
      const layer_id layer{l};
      const expert_id expert{e};
      BOOST_TEST((*other)->hosts(layer, expert) == low(layer, expert));
      BOOST_TEST((*half)->hosts(layer, expert) == (e % 2 == 0));
      if (!low(layer, expert)) continue;
      (*whole)->run_expert(layer, expert, rows, expected);
      (*other)->run_expert(layer, expert, rows, found);
      BOOST_TEST(found == expected, boost::test_tools::per_element());
    }
}

BOOST_AUTO_TEST_CASE(experts_that_are_read_later_go_to_the_device_that_the_others_are_on) {
  const std::string folder = ORDERMOE_TEST_DATA "/mixtral-tiny";
  const auto on_device = [&](bool with_experts) {
    om::load_options options;
    options.device = ordermoe::test::libtorch_device();
    if (!with_experts) options.hosts = [](layer_id, expert_id) { return false; };
    return fixture::need(om::transformer::load(folder, options));
  };
  const auto whole = on_device(true), bare = on_device(false);
  const auto reader = om::expert_reader::open(folder);
  BOOST_REQUIRE(reader.has_value());
  const auto other = fixture::need(bare->with_experts(
      **reader, [](layer_id, expert_id) { return true; }, ordermoe::precision::stored));
  // The kernels keep other bytes: rows padded, bf16 where that loses nothing.
  BOOST_TEST(other->resident_bytes() == whole->resident_bytes());
  const auto kernels = fixture::need(om::transformer::load(folder));
  BOOST_TEST(whole->resident_bytes() != kernels->resident_bytes());
}

BOOST_AUTO_TEST_SUITE_END()
