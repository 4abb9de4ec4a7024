#include "fuzz/support.hpp"
#include "model/checkpoint/safetensors.hpp"

namespace om = ordermoe::model;

namespace {

om::tensor_data number(const char* name) {
  const float one = 1;
  return {name, om::tensor_type::f32, {1}, om::to_bytes(std::span(&one, 1), om::tensor_type::f32)};
}

/// A folder with the shards one (tensors a and b) and two (tensor c).
const fuzz::fs::path& folder_with_shards() {
  static const fuzz::fs::path& folder = [&]() -> const fuzz::fs::path& {
    const auto& made = fuzz::memory_folder();
    const om::tensor_data first[] = {number("a"), number("b")};
    const om::tensor_data second[] = {number("c")};
    ORDERMOE_CHECK(om::write_safetensors(made / "one.safetensors", first).has_value(), "shard");
    ORDERMOE_CHECK(om::write_safetensors(made / "two.safetensors", second).has_value(), "shard");
    return made;
  }();
  return folder;
}

}  // namespace

/// The bytes are a model.safetensors.index.json beside two sound shards.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto& folder = folder_with_shards();
  fuzz::put(folder / "model.safetensors.index.json", fuzz::text_of(data, size));
  const auto opened = om::checkpoint::open_folder(folder);
  if (!opened) {
    fuzz::check_refusal(opened.error(), folder.string());
    return 0;
  }
  for (const auto& [name, view] : (*opened)->tensors()) {
    ORDERMOE_CHECK(view.file.parent_path() == folder, "a shard outside the folder");
    ORDERMOE_CHECK(view.to_fp32() == std::vector<float>{1}, "a tensor of the wrong shard");
  }
  return 0;
}
