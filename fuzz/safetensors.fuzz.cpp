#include "model/checkpoint/safetensors.hpp"

#include <algorithm>
#include <cstring>

#include "fuzz/support.hpp"
#include "model/checkpoint/packed_tensors.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

/// Half of the time changes the header's text alone and states its new length; without that, nearly
/// every longer or shorter header would be refused for its length and nothing behind it reached.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  std::minstd_rand random(seed);
  std::uint64_t length = 0;
  if (size >= 8) std::memcpy(&length, data, 8);
  if (size < 8 || length > size - 8 || most < size || random() % 2 == 0)
    return LLVMFuzzerMutate(data, size, most);
  const std::string rest(reinterpret_cast<const char*>(data) + 8 + length, size - 8 - length);
  const std::size_t room = most - 8 - rest.size();
  length = LLVMFuzzerMutate(data + 8, static_cast<std::size_t>(length), room);
  std::memcpy(data, &length, 8);
  std::memcpy(data + 8 + length, rest.data(), rest.size());
  return 8 + static_cast<std::size_t>(length) + rest.size();
}

/// The bytes are a .safetensors file. Of what is accepted every tensor lies within the file and is
/// read.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace om = ordermoe::model;
  const auto path = fuzz::memory_folder() / "model.safetensors";
  fuzz::put(path, fuzz::text_of(data, size));
  const auto opened = om::checkpoint::open_file(path);
  if (!opened) {
    fuzz::check_refusal(opened.error(), "model.safetensors");
    return 0;
  }
  std::size_t bytes = 0;
  for (const auto& [name, view] : (*opened)->tensors()) {
    std::size_t n = 1;
    for (const std::size_t side : view.shape) n *= side;
    ORDERMOE_CHECK(n == view.size() && view.to_fp32().size() == n, "a tensor of another size");
    bytes += view.bytes.size();
    // What matrices would be in a packed model: refused, or wholly within the tensor.
    for (const auto [n_out, n_in] : {std::pair<std::size_t, std::size_t>{16, 32}, {64, 40}})
      if (const auto packed = om::packed_view(view, n_out, n_in))
        static_cast<void>(om::all_finite(*packed, 0, n_out));
  }
  ORDERMOE_CHECK(bytes <= size, "tensors take more than the file has");
  return 0;
}
