#include "model/checkpoint/packed_tensors.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "model/checkpoint/convert.hpp"
#include "model/checkpoint/matrix_source.hpp"
#include "model/checkpoint/verify.hpp"
#include "test/model/fixture.hpp"

// Folders whose matrices stand in their files as they are computed with.

namespace {

namespace om = ordermoe::model;
namespace fs = std::filesystem;
using fixture::check_error;
using fixture::logits_of;
using fixture::same_bits;
using fixture::sharded_qwen;
using om::precision;
using om::weight_storage;
using ordermoe::errc;
using ordermoe::expert_id;
using ordermoe::layer_id;

constexpr om::family all_families[] = {om::family::mixtral, om::family::qwen2_moe,
                                       om::family::qwen3_moe, om::family::olmoe,
                                       om::family::switch_transformers};
constexpr weight_storage all_storages[] = {weight_storage::fp32, weight_storage::bf16,
                                           weight_storage::int8, weight_storage::int4};

om::pack_options to(precision experts, precision dense = precision::stored) {
  om::pack_options options;
  options.experts = experts;
  options.dense = dense;
  options.shard_bytes = 500'000;
  return options;
}

om::load_options as(const om::pack_options& options) {
  om::load_options same;
  same.expert_precision = options.experts;
  same.dense_precision = options.dense;
  return same;
}

std::vector<fs::path> weight_files(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") found.push_back(entry.path());
  std::ranges::sort(found);
  return found;
}

/// The tensors of an opened folder in the order of their bytes.
std::vector<om::tensor_data> tensors_in(const fs::path& folder) {
  const auto source = fixture::need(om::checkpoint::open_folder(folder));
  std::vector<const om::tensor_view*> views;
  for (const auto& [name, view] : source->tensors()) views.push_back(&view);
  std::ranges::sort(views, [](const auto* a, const auto* b) {
    return a->file != b->file ? a->file < b->file : a->offset < b->offset;
  });
  std::vector<om::tensor_data> tensors;
  for (const auto* view : views)
    tensors.push_back(
        {view->name, view->type, view->shape,
         std::string(reinterpret_cast<const char*>(view->bytes.data()), view->bytes.size())});
  return tensors;
}

om::tensor_data& named(std::vector<om::tensor_data>& tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &om::tensor_data::name);
  BOOST_REQUIRE(found != tensors.end());
  return *found;
}

/// A file whose tensors begin `skew` bytes behind a page.
std::string file_of(const std::vector<om::tensor_data>& tensors, const std::string& format,
                    std::size_t skew = 0) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", format}};
  std::size_t offset = 0;
  for (const auto& each : tensors) {
    header[each.name] = {{"dtype", om::to_string(each.type)},
                         {"shape", each.shape},
                         {"data_offsets", {offset, offset + each.bytes.size()}}};
    offset += each.bytes.size();
  }
  std::string text = header.dump();
  text.append(4096 - (8 + text.size()) % 4096 + skew, ' ');
  const std::uint64_t length = text.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  bytes += text;
  for (const auto& each : tensors) bytes += each.bytes;
  return bytes;
}

/// A packed folder that can be damaged: its weights are written again as one file.
class damaged {
 public:
  explicit damaged(const om::pack_options& options = {},
                   const fs::path& original = sharded_qwen()) {
    fixture::need(om::pack_model(original, place_.path() / "model", options));
    tensors = tensors_in(place_.path() / "model");
    for (const auto& file : weight_files(place_.path() / "model")) fs::remove(file);
    fs::remove(place_.path() / "model" / om::shard_index_name);
  }

  const fs::path& write(const std::string& format = om::packed_format(), std::size_t skew = 0) {
    folder_ = place_.path() / "model";
    const auto written =
        ordermoe::write_file(folder_ / "model.safetensors", file_of(tensors, format, skew));
    if (!written) BOOST_FAIL(written.error().message);
    return folder_;
  }

  std::vector<om::tensor_data> tensors;

 private:
  fixture::scratch_folder place_;
  fs::path folder_;
};

/// Loading and verifying name the same thing.
void check_refused(const fs::path& folder, errc code, const std::vector<std::string>& words) {
  check_error(om::transformer::load(folder), code, words);
  const auto report = fixture::need(om::verify_model(folder, om::checksum_check::skip));
  BOOST_REQUIRE(!report.problems.empty());
  check_error(ordermoe::result<int>(report.problems.front()), code, words);
}

const std::string expert = "model.layers.1.mlp.experts.4.down_proj.weight";
const std::string router = "model.layers.1.mlp.gate.weight";

}  // namespace

BOOST_AUTO_TEST_SUITE(packed_tensors)

BOOST_AUTO_TEST_CASE(every_family_gives_the_bits_of_loading_the_original_in_every_precision) {
  const om::pack_options kinds[] = {to(precision::stored), to(precision::bf16, precision::bf16),
                                    to(precision::int8, precision::int4),
                                    to(precision::int4, precision::int8), to(precision::int8)};
  for (const auto family : all_families)
    for (const bool tied : {false, true}) {
      const fixture::scratch_folder place;
      const auto original = place.path() / "original";
      auto options = fixture::small_model(family, 7);
      options.shape.tied_embeddings = tied;
      if (tied && family == om::family::qwen3_moe) {
        // With dense blocks among the sparse ones.
        options.shape.sparse_blocks = {1, 2, 4};
        options.shape.dense_intermediate_size = 36;
      }
      fixture::need(om::write_random_model(original, options));
      for (const auto& kind : kinds)
        BOOST_TEST_CONTEXT(om::to_string(family)
                           << " " << ordermoe::to_string(kind.experts) << " "
                           << ordermoe::to_string(kind.dense) << (tied ? ", tied" : "")) {
          const fixture::scratch_folder out;
          const auto packed = out.path() / "packed";
          const auto written = fixture::need(om::pack_model(original, packed, kind));
          const auto expected = logits_of(original, as(kind)), found = logits_of(packed);
          BOOST_REQUIRE(found.size() == expected.size());
          BOOST_TEST(same_bits(expected.data(), found.data(), found.size()));
          // The same where the precisions are asked for by name.
          BOOST_TEST((logits_of(packed, as(kind)) == found));
          BOOST_TEST(fixture::need(om::transformer::load(packed))->resident_bytes() ==
                     fixture::need(om::transformer::load(original, as(kind)))->resident_bytes());
          const auto whole = fixture::need(om::verify_model(packed, om::checksum_check::verify));
          for (const auto& problem : whole.problems) BOOST_ERROR(problem.message);
          BOOST_TEST(whole.n_tensors == written.n_tensors);
          BOOST_TEST(fixture::need(ordermoe::read_file(packed / "config.json")) ==
                     fixture::need(ordermoe::read_file(original / "config.json")));
        }
    }
}

BOOST_AUTO_TEST_CASE(a_packed_folder_says_that_rows_are_rounded_before_its_bf16_weights) {
  const fixture::scratch_folder place;
  const auto original = sharded_qwen();
  const auto by_rows = place.path() / "rows", rounded = place.path() / "rounded";
  fixture::need(om::pack_model(original, by_rows, to(precision::stored)));
  fixture::need(om::pack_model(original, rounded, to(precision::bf16)));
  const auto type = [](const fs::path& folder, const std::string& name) {
    return fixture::need(om::checkpoint::open_folder(folder))->find(name)->type;
  };
  BOOST_TEST((type(by_rows, expert) == om::tensor_type::bf16));
  BOOST_TEST((type(rounded, expert) == om::tensor_type::i16));
  BOOST_TEST((type(rounded, router) == om::tensor_type::bf16));
  // Other bits, and the same bytes of weights, which can be asked for in either way.
  const auto exact = logits_of(by_rows), coarse = logits_of(rounded);
  BOOST_TEST((exact != coarse));
  BOOST_TEST((logits_of(by_rows, as(to(precision::bf16))) == coarse));
  BOOST_TEST(om::model_digest(by_rows).value() != om::model_digest(rounded).value());
  // Row by row nothing is of that type.
  auto tensors = tensors_in(original);
  named(tensors, "model.norm.weight").type = om::tensor_type::i16;
  const auto odd = place.path() / "odd";
  fs::create_directory(odd);
  fs::copy_file(original / "config.json", odd / "config.json");
  BOOST_REQUIRE(ordermoe::write_file(odd / "model.safetensors", file_of(tensors, "pt")));
  check_error(om::transformer::load(odd), errc::unsupported, {"model.norm.weight", "I16"});
}

BOOST_AUTO_TEST_CASE(numbers_that_bf16_does_not_keep_are_packed_in_fp32) {
  const fixture::scratch_folder place;
  const auto original = place.path() / "original", packed = place.path() / "packed";
  fs::create_directory(original);
  for (const char* name : {"config.json", "tokenizer.model"})
    fs::copy_file(fixture::tiny / name, original / name);
  // One up matrix decides for its gate; the down matrix is on its own.
  const std::string up = "model.layers.0.block_sparse_moe.experts.1.w3.weight";
  auto tensors = tensors_in(fixture::tiny);
  for (const std::string& name : {up, std::string("model.layers.0.self_attn.k_proj.weight"),
                                  std::string("model.embed_tokens.weight")}) {
    auto& each = named(tensors, name);
    om::tensor_view view;
    view.type = each.type;
    view.bytes = std::as_bytes(std::span(each.bytes));
    auto numbers = view.to_fp32();
    numbers[17] *= 1.0f + 0x1p-12f;
    each.bytes = om::to_bytes(numbers, each.type = om::tensor_type::f32);
  }
  BOOST_REQUIRE(ordermoe::write_file(original / "model.safetensors", file_of(tensors, "pt")));
  fixture::need(om::pack_model(original, packed, {}));
  const auto expected = logits_of(original), found = logits_of(packed);
  BOOST_TEST(same_bits(expected.data(), found.data(), found.size()));
  const auto source = fixture::need(om::checkpoint::open_folder(packed));
  const auto type = [&](const std::string& name) { return source->find(name)->type; };
  const std::string place_of = "model.layers.0.block_sparse_moe.experts.";
  BOOST_TEST((type(up) == om::tensor_type::f32));
  BOOST_TEST((type(place_of + "1.w1.weight") == om::tensor_type::f32));
  BOOST_TEST((type(place_of + "1.w2.weight") == om::tensor_type::bf16));
  BOOST_TEST((type(place_of + "2.w3.weight") == om::tensor_type::bf16));
  BOOST_TEST((type("model.layers.0.self_attn.qkv_proj.weight") == om::tensor_type::f32));
  BOOST_TEST((type("model.embed_tokens.weight") == om::tensor_type::f32));
}

BOOST_AUTO_TEST_CASE(matrices_are_the_packed_bytes_on_pages_of_several_files) {
  const fixture::scratch_folder place;
  const auto packed = place.path() / "packed";
  const auto report =
      fixture::need(om::pack_model(sharded_qwen(), packed, to(precision::int4, precision::int8)));
  BOOST_TEST(report.n_files > 1u);
  const auto before = fixture::need(om::checkpoint::open_folder(sharded_qwen()));
  const auto after = fixture::need(om::checkpoint::open_folder(packed));
  std::size_t n_packed = 0;
  for (const auto& each : om::packed_tensors(fixture::need(om::read_model_config(packed)))) {
    const auto& view = *after->find(each.name);
    BOOST_TEST(view.packed == om::packed_version);
    if (!each.packed()) continue;
    ++n_packed;
    std::vector<float> numbers;
    for (const auto& part : each.parts) {
      const auto more = before->find(part)->to_fp32();
      numbers.insert(numbers.end(), more.begin(), more.end());
    }
    using role = om::packed_tensor::role;
    const auto kept = each.kind == role::expert  ? weight_storage::int4
                      : each.kind == role::dense ? weight_storage::int8
                                                 : weight_storage::bf16;
    const om::packed_layout layout{each.shape[0], each.shape[1]};
    std::vector<std::byte> expected(view.bytes.size());
    om::pack(layout, numbers, kept, std::span(expected).first(layout.bytes(kept)));
    BOOST_TEST_CONTEXT(each.name) {
      BOOST_TEST((view.type == om::packed_type({kept})));
      BOOST_TEST(view.offset % 4096 == 0u);
      BOOST_TEST(view.bytes.size() == (layout.bytes(kept) + 4095) / 4096 * 4096);
      BOOST_TEST(std::ranges::equal(view.bytes, expected));
    }
  }
  // Per layer: experts of three matrices, shared expert and its gate, router, qkv and o.
  BOOST_TEST(n_packed == 3u * (8 * 3 + 3 + 1 + 1 + 2) + 1u);
}

BOOST_AUTO_TEST_CASE(every_tensor_of_a_family_has_one_place) {
  for (const auto family : all_families) {
    const auto shape = om::small_shape(family);
    std::multiset<std::string> expected, found;
    for (const auto& plan : om::tensors_of(shape)) expected.insert(plan.name);
    if (shape.tied_embeddings) expected.insert("shared.weight");
    std::set<std::string> names;
    for (const auto& each : om::packed_tensors(shape)) {
      found.insert(each.parts.begin(), each.parts.end());
      BOOST_TEST(names.insert(each.name).second);
      for (const auto& part : each.parts)
        if (!each.name.starts_with("lm_head")) BOOST_TEST(om::packed_name(part) == each.name);
    }
    BOOST_TEST((found == expected), om::to_string(family));
  }
}

BOOST_AUTO_TEST_CASE(a_quantised_folder_is_packed_as_it_is) {
  for (const auto kept : {weight_storage::int8, weight_storage::int4}) {
    const fixture::scratch_folder place;
    const auto quantised = place.path() / "quantised", packed = place.path() / "packed";
    om::convert_options options;
    options.kept = kept;
    fixture::need(om::convert_model(sharded_qwen(), quantised, options));
    fixture::need(om::pack_model(quantised, packed, {}));
    BOOST_TEST((logits_of(packed) == logits_of(quantised)));
  }
}

BOOST_AUTO_TEST_CASE(a_part_of_the_experts_takes_their_memory_only_and_the_others_are_not_read) {
  damaged copy(to(precision::int8));
  om::load_options options;
  options.hosts = [](layer_id layer, expert_id expert_) {
    return layer.index() != 1 || expert_.index() != 4;
  };
  const auto whole = fixture::need(om::transformer::load(copy.write()));
  const auto expected = whole->resident_bytes();
  // A scale of the expert that is left out.
  const float bad = std::numeric_limits<float>::quiet_NaN();
  const om::packed_layout layout{whole->config().hidden_size, whole->config().intermediate_size};
  auto& bytes = named(copy.tensors, expert).bytes;
  std::memcpy(bytes.data() + layout.n_groups() * 32 * 64 + 4, &bad, 4);
  const auto part = fixture::need(om::transformer::load(copy.write(), options));
  BOOST_TEST(!part->hosts(layer_id{1}, expert_id{4}));
  BOOST_TEST(expected - part->resident_bytes() ==
             om::expert_bytes(part->config(), precision::int8));
  check_refused(copy.write(), errc::out_of_range, {expert, "not finite"});
}

BOOST_AUTO_TEST_CASE(other_precisions_than_stored_and_other_kernels_are_refused) {
  const fixture::scratch_folder place;
  const auto packed = place.path() / "packed";
  fixture::need(om::pack_model(sharded_qwen(), packed, to(precision::int8, precision::int4)));
  om::load_options options;
  options.expert_precision = precision::int4;
  check_error(om::transformer::load(packed, options), errc::unsupported,
              {"expert", "stored packed in int8", "asked for is int4"});
  options = {};
  options.dense_precision = precision::bf16;
  check_error(om::transformer::load(packed, options), errc::unsupported,
              {"qkv_proj.weight", "stored packed in int4", "asked for is bf16"});
  options = {};
  options.precision_of = [](layer_id layer, expert_id) {
    return layer.index() == 2 ? precision::bf16 : precision::int8;
  };
  check_error(om::transformer::load(packed, options), errc::unsupported,
              {"model.layers.2.mlp.experts.0.", "stored packed in int8", "asked for is bf16"});
  options = {};
  options.device = "libtorch:cpu";
  check_error(om::transformer::load(packed, options), errc::unsupported, {"packed", "kernels"});
  check_error(om::pack_model(packed, place.path() / "again", {}), errc::unsupported,
              {"packed already"});
  check_error(om::convert_model(packed, place.path() / "again", {}), errc::unsupported,
              {"packed already"});
}

BOOST_AUTO_TEST_CASE(another_layout_is_refused_with_the_tensor_named) {
  damaged copy;
  check_refused(copy.write("ordermoe-packed-1"), errc::unsupported,
                {"model.layers.", "layout 1", "reads layout 2", "convert"});
  for (const char* format : {"ordermoe-packed-", "ordermoe-packed-0", "ordermoe-packed-2x",
                             "ordermoe-packed-99999999999"})
    check_error(om::transformer::load(copy.write(format)), errc::malformed,
                {"model.safetensors", format, "version"});
  // Without the format they are tensors of other shapes.
  check_error(om::transformer::load(copy.write("pt")), errc::mismatch, {"shape"});
}

BOOST_AUTO_TEST_CASE(a_file_that_is_not_packed_among_packed_ones_is_refused) {
  const fixture::scratch_folder place;
  const auto packed = place.path() / "packed";
  fixture::need(om::pack_model(sharded_qwen(), packed, to(precision::stored)));
  const auto first = weight_files(packed).front();
  auto bytes = fixture::need(ordermoe::read_file(first));
  const auto at = bytes.find(om::packed_format());
  BOOST_REQUIRE(at != std::string::npos);
  bytes.replace(at, om::packed_format().size(), "somebody's-format");
  BOOST_REQUIRE(ordermoe::write_file(first, bytes));
  check_refused(packed, errc::mismatch, {first.string(), "row by row", "ordermoe-packed-2"});
}

BOOST_AUTO_TEST_CASE(absent_and_further_tensors_are_named) {
  damaged copy;
  const auto whole = copy.tensors;
  std::erase_if(copy.tensors, [](const auto& each) { return each.name == expert; });
  check_refused(copy.write(), errc::mismatch, {expert, "absent", "packed"});
  copy.tensors = whole;
  std::erase_if(copy.tensors, [](const auto& each) { return each.name == "model.norm.weight"; });
  check_refused(copy.write(), errc::mismatch, {"model.norm.weight", "absent"});
  copy.tensors = whole;
  copy.tensors.push_back({"model.layers.0.self_attn.q_proj.weight",
                          om::tensor_type::bf16,
                          {2048},
                          std::string(4096, '\0')});
  check_refused(copy.write(), errc::mismatch, {"q_proj.weight", "no place"});
}

BOOST_AUTO_TEST_CASE(other_sizes_types_and_places_are_named) {
  damaged copy(to(precision::int8));
  const auto whole = copy.tensors;
  const auto check = [&](auto change, errc code, const std::vector<std::string>& words) {
    copy.tensors = whole;
    change();
    check_refused(copy.write(), code, words);
  };
  check([&] { named(copy.tensors, expert).type = om::tensor_type::u8; }, errc::mismatch,
        {expert, "int4"});
  check(
      [&] {
        named(copy.tensors, expert).bytes.resize(4096);
        named(copy.tensors, expert).shape = {4096};
      },
      errc::mismatch, {expert, "[4096]", "[8192]", "int8"});
  check(
      [&] {
        named(copy.tensors, expert).shape = {64, 128};
      },
      errc::mismatch, {expert, "[64, 128]"});
  check(
      [&] {
        auto& each = named(copy.tensors, expert);
        each.type = om::tensor_type::f16;
        each.shape = {4096};
      },
      errc::unsupported, {expert, "F16"});
  check(
      [&] {
        auto& each = named(copy.tensors, router);
        const om::packed_layout layout{8, 64};
        each.type = om::tensor_type::i8;
        each.shape = {om::packed_size(layout, weight_storage::int8)};
        each.bytes.resize(each.shape[0]);
      },
      errc::unsupported, {router, "I8", "F32 or BF16"});
  check([&] { named(copy.tensors, router).type = om::tensor_type::i16; }, errc::unsupported,
        {router, "I16", "F32 or BF16"});
  check([&] { named(copy.tensors, "model.norm.weight").type = om::tensor_type::i16; },
        errc::unsupported, {"model.norm.weight", "I16"});
  check(
      [&] {
        auto& each = named(copy.tensors, "model.layers.0.mlp.experts.2.up_proj.weight");
        const om::packed_layout layout{48, 64};
        each.type = om::tensor_type::bf16;
        each.shape = {om::packed_size(layout, weight_storage::bf16)};
        each.bytes.assign(2 * each.shape[0], '\0');
      },
      errc::mismatch, {"experts.2.gate_proj", "experts.2.up_proj", "I8", "BF16"});
  check(
      [&] {
        auto& each = named(copy.tensors, "model.embed_tokens.weight");
        each.shape = {each.shape[1], each.shape[0]};
      },
      errc::mismatch, {"model.embed_tokens.weight", "[64, 512]", "[512, 64]"});
  check(
      [&] {
        auto& each = named(copy.tensors, "model.embed_tokens.weight");
        each.type = om::tensor_type::i8;
        each.bytes.resize(each.bytes.size() / 2);
      },
      errc::unsupported, {"model.embed_tokens.weight", "I8"});

  copy.tensors = whole;
  check_refused(copy.write(om::packed_format(), 8), errc::mismatch,
                {copy.tensors.front().name, "begins at byte", "multiple of 4096"});
  // One that is shorter than whole pages moves those behind it.
  om::tensor_data small{"model.norm.weight", om::tensor_type::bf16, {64}, {}};
  small.bytes = named(copy.tensors, small.name).bytes;
  std::erase_if(copy.tensors, [&](const auto& each) { return each.name == small.name; });
  copy.tensors.insert(copy.tensors.begin() + 3, small);
  check_refused(copy.write(), errc::mismatch, {"begins at byte", "multiple of 4096"});
}

BOOST_AUTO_TEST_CASE(files_that_are_cut_short_are_refused) {
  damaged copy;
  const auto path = copy.write() / "model.safetensors";
  fs::resize_file(path, fs::file_size(path) - 1);
  check_refused(path.parent_path(), errc::malformed, {"model.safetensors", "beyond"});
}

BOOST_AUTO_TEST_CASE(a_file_that_becomes_shorter_after_it_was_mapped_is_noticed) {
  damaged copy;
  const auto path = copy.write() / "model.safetensors";
  const auto opened = fixture::need(om::checkpoint::open_file(path));
  const auto& view = *opened->find(expert);
  const auto matrix = fixture::need(om::packed_view(view, 64, 48));
  om::matrix_source source(view, matrix, opened->memory());
  BOOST_TEST((source.bring_in() == nullptr));
  fs::resize_file(path, 4096);
  om::matrix_source cut(view, matrix, opened->memory());
  const auto* unreadable = cut.bring_in();
  BOOST_REQUIRE(unreadable != nullptr);
  BOOST_TEST(unreadable->name == expert);
}

BOOST_AUTO_TEST_CASE(a_number_that_is_not_finite_is_found_wherever_it_is) {
  const std::pair<std::size_t, std::size_t> shapes[] = {{5, 3}, {64, 64}, {100, 40}, {150, 96}};
  for (const auto& [n_out, n_in] : shapes)
    for (const auto kept : all_storages) {
      const om::packed_layout layout{n_out, n_in};
      std::vector<std::byte> packed(layout.bytes(kept));
      om::pack(layout, fixture::numbers(n_out * n_in, 3), kept, packed);
      const om::packed_matrix matrix{layout, kept, packed.data()};
      const std::size_t end = layout.padded_out();
      BOOST_TEST(om::all_finite(matrix, 0, end));
      // Where unpack() finds it: every infinite number or scale makes some weight infinite or NaN,
      // and those in the padding make none.
      const std::size_t width =
          kept == weight_storage::fp32 || kept == weight_storage::int8 ? 4 : 2;
      std::size_t found = 0, met = 0;
      for (std::size_t at = 0; at + width <= packed.size(); at += width) {
        const auto kept_bytes = std::vector<std::byte>(
            packed.begin() + static_cast<long>(at), packed.begin() + static_cast<long>(at + width));
        const float bad = std::numeric_limits<float>::infinity();
        std::memcpy(packed.data() + at, reinterpret_cast<const char*>(&bad) + 4 - width, width);
        const auto meant = om::unpack(matrix);
        const bool finite = om::all_finite(matrix, 0, end);
        const bool harms = !std::ranges::all_of(meant, [](float x) { return std::isfinite(x); });
        if (harms) BOOST_REQUIRE(!finite);
        found += !finite;
        met += harms;
        // By blocks the same.
        bool by_blocks = true;
        for (std::size_t first = 0; first < end; first += 64)
          by_blocks = om::all_finite(matrix, first, first + 64) && by_blocks;
        BOOST_REQUIRE(by_blocks == finite);
        std::ranges::copy(kept_bytes, packed.begin() + static_cast<long>(at));
      }
      BOOST_TEST_CONTEXT(om::to_string(kept) << " " << n_out << " x " << n_in) {
        BOOST_TEST(met > 0u);
        // What it finds beyond that is in the padding of outputs and, in bf16, of inputs.
        const std::size_t numbers = kept == weight_storage::int8   ? end
                                    : kept == weight_storage::int4 ? end * layout.n_groups()
                                    : kept == weight_storage::bf16 ? end * 2 * layout.n_pairs()
                                                                   : end * n_in;
        BOOST_TEST(found == numbers);
      }
    }
}

BOOST_AUTO_TEST_CASE(numbers_that_are_not_finite_are_named_by_their_tensor) {
  for (const auto kept : {precision::stored, precision::int8, precision::int4})
    for (const char* name :
         {"model.layers.2.mlp.shared_expert.up_proj.weight", "model.embed_tokens.weight",
          "model.layers.0.self_attn.qkv_proj.weight", "model.norm.weight",
          "model.layers.1.self_attn.k_proj.bias", "lm_head.weight"}) {
      damaged copy(to(kept, kept));
      auto& each = named(copy.tensors, name);
      std::size_t at = each.bytes.size() / 2;
      float bad = std::numeric_limits<float>::infinity();
      std::size_t width = each.type == om::tensor_type::f32 ? 4 : 2;
      if (each.type == om::tensor_type::i8) {
        at = 64 * 64;  // The first scale of a matrix of 64 inputs.
        width = 4;
      } else if (each.type == om::tensor_type::u8) {
        at = 64 * 16;
      }
      std::memcpy(each.bytes.data() + at, reinterpret_cast<const char*>(&bad) + 4 - width, width);
      check_refused(copy.write(), errc::out_of_range, {name, "not finite"});
    }
}

BOOST_AUTO_TEST_CASE(what_cannot_be_packed_leaves_nothing_behind) {
  const fixture::scratch_folder place;
  auto options = to(precision::int8);
  std::size_t asked = 0;
  options.watch.should_stop = [&] { return ++asked == 40; };
  check_error(om::pack_model(sharded_qwen(), place.path() / "packed", options), errc::interrupted,
              {"nothing is kept"});
  BOOST_TEST(fs::is_empty(place.path()));

  const auto original = place.path() / "original";
  fs::create_directory(original);
  fs::copy_file(fixture::tiny / "config.json", original / "config.json");
  auto tensors = tensors_in(fixture::tiny);
  const std::string name = "model.layers.1.self_attn.v_proj.weight";
  auto& each = named(tensors, name);
  om::tensor_view view;
  view.type = each.type;
  view.bytes = std::as_bytes(std::span(each.bytes));
  auto numbers = view.to_fp32();
  each.type = om::tensor_type::f32;
  numbers[5] = std::numeric_limits<float>::max();
  each.bytes = om::to_bytes(numbers, each.type);
  BOOST_REQUIRE(ordermoe::write_file(original / "model.safetensors", file_of(tensors, "pt")));
  check_error(
      om::pack_model(original, place.path() / "packed", to(precision::stored, precision::bf16)),
      errc::out_of_range, {"self_attn", "beyond what bf16 can hold"});
  numbers[5] = std::numeric_limits<float>::quiet_NaN();
  each.bytes = om::to_bytes(numbers, each.type);
  BOOST_REQUIRE(ordermoe::write_file(original / "model.safetensors", file_of(tensors, "pt")));
  check_error(om::pack_model(original, place.path() / "packed", {}), errc::out_of_range,
              {name, "not finite"});
  BOOST_TEST(!fs::exists(place.path() / "packed"));
}

BOOST_AUTO_TEST_SUITE_END()
