#include "model/checkpoint/convert.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "model/checkpoint/part.hpp"
#include "model/checkpoint/quantised_rows.hpp"
#include "model/checkpoint/random_model.hpp"
#include "model/checkpoint/verify.hpp"
#include "model/reference.hpp"
#include "test/model/fixture.hpp"

namespace {

namespace om = ordermoe::model;
namespace fs = std::filesystem;
using fixture::check_error;
using fixture::logits_of;
using fixture::sharded_qwen;
using om::weight_storage;
using ordermoe::errc;

om::convert_options to(weight_storage kept) {
  om::convert_options options;
  options.kept = kept;
  options.shard_bytes = 500'000;
  return options;
}

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), {}));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(convert)

BOOST_AUTO_TEST_CASE(bf16_to_fp32_and_back_keeps_every_bit) {
  const fixture::scratch_folder place;
  const auto wide = place.path() / "wide", narrow = place.path() / "narrow";
  const auto written =
      fixture::need(om::convert_model(sharded_qwen(), wide, to(weight_storage::fp32)));
  BOOST_TEST(written.n_files > 1u);
  fixture::need(om::convert_model(wide, narrow, to(weight_storage::bf16)));
  const auto before = fixture::need(om::checkpoint::open_folder(sharded_qwen()));
  const auto middle = fixture::need(om::checkpoint::open_folder(wide));
  const auto after = fixture::need(om::checkpoint::open_folder(narrow));
  BOOST_TEST(before->tensors().size() == after->tensors().size());
  for (const auto& [name, view] : before->tensors()) {
    BOOST_TEST((middle->find(name)->type == om::tensor_type::f32));
    const auto* found = after->find(name);
    BOOST_TEST((found != nullptr && found->type == view.type &&
                std::ranges::equal(found->bytes, view.bytes)));
  }
  const auto config =
      nlohmann::json::parse(fixture::need(ordermoe::read_file(wide / "config.json")));
  BOOST_TEST(config["torch_dtype"] == "float32");
}

BOOST_AUTO_TEST_CASE(what_chats_need_beside_the_weights_comes_along) {
  const fixture::scratch_folder place;
  const auto model = place.path() / "model";
  fs::copy(fixture::tiny, model);
  const std::pair<const char*, std::string> files[] = {
      {"added_tokens.json", R"({"<|im_end|>": 320})"}, {"chat_template.jinja", "{{ 'A:' }}"}};
  for (const auto& [name, text] : files)
    BOOST_REQUIRE(ordermoe::write_file(model / name, text).has_value());
  fixture::need(om::convert_model(model, place.path() / "wide", to(weight_storage::fp32)));
  fixture::need(om::pack_model(model, place.path() / "packed", {}));
  const auto all = [](ordermoe::layer_id, ordermoe::expert_id) { return true; };
  fixture::need(om::write_part(model, place.path() / "part", "s0", all));
  for (const char* made : {"wide", "packed", "part"})
    for (const auto& [name, text] : files) BOOST_TEST_CONTEXT(made) {
        const auto found = ordermoe::read_file(place.path() / made / name);
        BOOST_REQUIRE(found.has_value());
        BOOST_TEST(*found == text);
      }
}

BOOST_AUTO_TEST_CASE(a_quantised_folder_gives_the_bits_of_quantising_when_loading) {
  const std::pair<weight_storage, om::precision> kinds[] = {
      {weight_storage::int8, om::precision::int8}, {weight_storage::int4, om::precision::int4}};
  for (const auto& [kept, loaded_as] : kinds) {
    const fixture::scratch_folder place;
    const auto made = place.path() / "model";
    const auto report = fixture::need(om::convert_model(sharded_qwen(), made, to(kept)));
    om::load_options options;
    options.expert_precision = loaded_as;
    const auto expected = logits_of(sharded_qwen(), options);
    const auto found = logits_of(made);
    BOOST_TEST_CONTEXT(om::to_string(kept)) {
      BOOST_TEST(fixture::same_bits(expected.data(), found.data(), found.size()));
      BOOST_TEST(!fixture::same_bits(logits_of(sharded_qwen()).data(), found.data(), found.size()));
      const auto whole = fixture::need(om::verify_model(made, om::checksum_check::verify));
      for (const auto& problem : whole.problems) BOOST_ERROR(problem.message);
      BOOST_TEST(whole.n_tensors == report.n_tensors);
      BOOST_TEST(whole.tensors_of_type.at(kept == weight_storage::int8 ? "I8" : "U8") ==
                 3u * 3u * (8u + 1u));
      // The same once more, where it is asked for by name.
      BOOST_TEST((logits_of(made, options) == found));
    }
    om::load_options other;
    other.expert_precision =
        kept == weight_storage::int8 ? om::precision::int4 : om::precision::int8;
    check_error(om::transformer::load(made, other), errc::unsupported,
                {"stored in", om::to_string(kept), "asked for"});
    other = {};
    other.device = "libtorch:cpu";
    check_error(om::transformer::load(made, other), errc::unsupported, {"kernels"});
    check_error(om::convert_model(made, place.path() / "again", to(weight_storage::bf16)),
                errc::unsupported, {"quantised already"});
  }
}

BOOST_AUTO_TEST_CASE(quantised_rows_go_through_the_packed_form_for_every_shape) {
  for (const auto kept : {weight_storage::int8, weight_storage::int4})
    for (const auto& [n_out, n_in] : {std::pair<std::size_t, std::size_t>{1, 1},
                                      {16, 32},
                                      {17, 33},
                                      {64, 96},
                                      {48, 100},
                                      {63, 31}}) {
      const om::packed_layout layout{n_out, n_in};
      std::vector<std::byte> packed(layout.bytes(kept)), again(layout.bytes(kept), std::byte{0x5a});
      om::pack(layout, fixture::numbers(n_out * n_in, n_out), kept, packed);
      const auto rows = om::from_packed(layout, kept, packed);
      om::to_packed(layout, kept, std::as_bytes(std::span(rows.weight)),
                    std::as_bytes(std::span(rows.scale)), again);
      BOOST_TEST_CONTEXT(om::to_string(kept) << " " << n_out << " x " << n_in)
      BOOST_TEST((packed == again));
    }
}

BOOST_AUTO_TEST_CASE(stored_integers_times_their_scales_are_the_weights_that_are_computed_with) {
  const std::size_t n_out = 5, n_in = 40;
  const om::packed_layout layout{n_out, n_in};
  const auto numbers = fixture::numbers(n_out * n_in, 8);
  for (const auto kept : {weight_storage::int8, weight_storage::int4}) {
    std::vector<std::byte> packed(layout.bytes(kept));
    om::pack(layout, numbers, kept, packed);
    const auto meant = om::unpack({layout, kept, packed.data()});
    const auto rows = om::from_packed(layout, kept, packed);
    for (std::size_t o = 0; o < n_out; ++o)
      for (std::size_t i = 0; i < n_in; ++i) {
        float integer, scale;
        if (kept == weight_storage::int8) {
          integer = static_cast<float>(static_cast<signed char>(rows.weight[o * n_in + i]));
          std::memcpy(&scale, rows.scale.data() + o * 4, 4);
        } else {
          const auto both = static_cast<unsigned char>(rows.weight[(o * 2 + i / 32) * 16 + i % 16]);
          integer = static_cast<float>((i % 32 < 16 ? both & 15 : both >> 4) - 8);
          std::uint32_t bits = 0;
          std::memcpy(reinterpret_cast<char*>(&bits) + 2, rows.scale.data() + (o * 2 + i / 32) * 2,
                      2);
          std::memcpy(&scale, &bits, 4);
        }
        BOOST_REQUIRE_EQUAL(integer * scale, meant[o * n_in + i]);
      }
  }
}

BOOST_AUTO_TEST_CASE(scales_that_are_absent_or_do_not_fit_are_refused) {
  const fixture::scratch_folder place;
  const auto made = place.path() / "model";
  fixture::need(om::convert_model(sharded_qwen(), made, to(weight_storage::int8)));
  const std::string name = "model.layers.1.mlp.experts.4.down_proj.weight_scale";
  const auto rewritten = [&](auto change) {
    const auto folder = place.path() / "changed";
    fs::remove_all(folder);
    fs::create_directory(folder);
    fs::copy_file(made / "config.json", folder / "config.json");
    fs::copy_file(made / "tokenizer.model", folder / "tokenizer.model");
    const auto source = fixture::need(om::checkpoint::open_folder(made));
    std::vector<om::tensor_data> tensors;
    for (const auto& [each, view] : source->tensors())
      tensors.push_back(
          {each, view.type, view.shape,
           std::string(reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size())});
    change(tensors);
    const auto written = om::write_safetensors(folder / "model.safetensors", tensors);
    if (!written) BOOST_FAIL(written.error().message);
    return folder;
  };
  const auto find = [](std::vector<om::tensor_data>& tensors, const std::string& wanted) {
    return std::ranges::find(tensors, wanted, &om::tensor_data::name);
  };
  auto folder = rewritten([&](auto& tensors) { tensors.erase(find(tensors, name)); });
  check_error(om::transformer::load(folder), errc::mismatch, {name, "absent"});
  folder = rewritten([&](auto& tensors) { find(tensors, name)->shape = {1, 64}; });
  check_error(om::transformer::load(folder), errc::mismatch, {name, "shape"});
  folder = rewritten([&](auto& tensors) {
    const auto at = find(tensors, name);
    at->type = om::tensor_type::bf16;
    at->bytes.resize(at->bytes.size() / 2);
  });
  check_error(om::transformer::load(folder), errc::unsupported, {name, "BF16", "F32"});
  BOOST_TEST(fixture::need(om::verify_model(folder, om::checksum_check::skip)).problems.size() ==
             1u);
  folder = rewritten([&](auto& tensors) {
    const float bad = std::numeric_limits<float>::infinity();
    find(tensors, name)
        ->bytes.replace(8, 4, om::to_bytes(std::span(&bad, 1), om::tensor_type::f32));
  });
  check_error(om::transformer::load(folder), errc::out_of_range, {name, "not finite"});
  folder = rewritten([&](auto& tensors) {
    const auto at = find(tensors, "model.layers.0.self_attn.q_proj.weight");
    at->type = om::tensor_type::i8;
    at->bytes.resize(at->bytes.size() / 2);
  });
  check_error(om::transformer::load(folder), errc::unsupported, {"q_proj", "I8"});
}

BOOST_AUTO_TEST_CASE(an_interrupt_and_a_target_that_is_there_leave_everything_as_it_was) {
  const fixture::scratch_folder place;
  for (const auto kept : {weight_storage::fp32, weight_storage::int4}) {
    auto options = to(kept);
    std::size_t asked = 0;
    options.watch.should_stop = [&] { return ++asked == 40; };
    check_error(om::convert_model(sharded_qwen(), place.path() / "model", options),
                errc::interrupted, {"nothing is kept"});
    BOOST_TEST(entries(place.path()) == 0u);
  }
  place.write("notes.txt", "keep me");
  check_error(om::convert_model(sharded_qwen(), place.path(), to(weight_storage::fp32)), errc::io,
              {"no empty folder"});
  BOOST_TEST(entries(place.path()) == 1u);
  check_error(om::convert_model(sharded_qwen(), sharded_qwen(), to(weight_storage::fp32)), errc::io,
              {"no empty folder"});
}

BOOST_AUTO_TEST_CASE(a_model_that_is_not_whole_is_not_converted) {
  const fixture::scratch_folder place;
  const auto broken = place.path() / "broken";
  fs::copy(sharded_qwen(), broken);
  auto config = nlohmann::json::parse(fixture::need(ordermoe::read_file(broken / "config.json")));
  config["moe_intermediate_size"] = 64;
  fixture::need(ordermoe::read_file(broken / "config.json"));
  const auto written = ordermoe::write_file(broken / "config.json", config.dump());
  BOOST_REQUIRE(written.has_value());
  check_error(om::convert_model(broken, place.path() / "out", to(weight_storage::int8)),
              errc::mismatch, {"shape"});
  BOOST_TEST(!fs::exists(place.path() / "out"));
}

BOOST_AUTO_TEST_SUITE_END()
