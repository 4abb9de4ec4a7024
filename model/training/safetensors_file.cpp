#include "model/training/safetensors_file.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "config/files.hpp"

namespace ordermoe::training {
namespace {

std::size_t count(const std::vector<std::int64_t>& shape) {
  std::size_t n = 1;
  for (const auto size : shape) n *= static_cast<std::size_t>(size);
  return n;
}

}  // namespace

const stored_tensor* stored_file::find(std::string_view name) const {
  for (const auto& tensor : tensors)
    if (tensor.name == name) return &tensor;
  return nullptr;
}

result<bool> is_there(const std::filesystem::path& path) {
  std::error_code unknown;
  const bool there = std::filesystem::exists(path, unknown);
  if (unknown)
    return error{errc::io,
                 fmt::format("{}: cannot be reached: {}; check the path and its permissions",
                             path.string(), unknown.message())};
  return there;
}

std::string safetensors_bytes(const stored_file& content) {
  nlohmann::ordered_json header;
  auto& metadata = header["__metadata__"] = nlohmann::ordered_json::object();
  for (const auto& [key, value] : content.metadata) metadata[key] = value;
  std::size_t offset = 0;
  for (const auto& tensor : content.tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes.size()}}};
    offset += tensor.bytes.size();
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i)
    bytes[i] = static_cast<char>((static_cast<std::uint64_t>(text.size()) >> (8 * i)) & 0xff);
  bytes.reserve(8 + text.size() + offset);
  bytes += text;
  for (const auto& tensor : content.tensors) bytes += tensor.bytes;
  return bytes;
}

result<void> write_safetensors(const std::filesystem::path& path, const stored_file& content) {
  return write_file(path, safetensors_bytes(content));
}

result<stored_file> read_stored_file(const std::filesystem::path& path) {
  auto bytes = read_file(path);
  if (!bytes) return bytes.error();
  const auto broken = [&](const std::string& what) {
    return error{errc::malformed,
                 fmt::format("{}: {}; expected a file that training wrote; remove it to start over",
                             path.string(), what)};
  };
  if (bytes->size() < 8)
    return broken(fmt::format("{} bytes are too few for a header", bytes->size()));
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i)
    length |= static_cast<std::uint64_t>(static_cast<unsigned char>((*bytes)[i])) << (8 * i);
  const std::uint64_t room = bytes->size() - 8;
  if (length > room)
    return broken(fmt::format("a header of {} bytes in a file of {}", length, bytes->size()));
  const auto header = nlohmann::ordered_json::parse(
      bytes->begin() + 8, bytes->begin() + 8 + static_cast<std::ptrdiff_t>(length), nullptr, false);
  if (!header.is_object()) return broken("the header is not a JSON object");
  const std::string_view data = std::string_view(*bytes).substr(8 + length);
  stored_file content;
  try {
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") {
        content.metadata = entry.get<std::map<std::string, std::string>>();
        continue;
      }
      stored_tensor tensor{name,
                           entry.at("dtype").get<std::string>(),
                           entry.at("shape").get<std::vector<std::int64_t>>(),
                           {}};
      const auto begin = entry.at("data_offsets").at(0).get<std::uint64_t>(),
                 end = entry.at("data_offsets").at(1).get<std::uint64_t>();
      std::uint64_t size = tensor.dtype == "F32" ? 4 : tensor.dtype == "BF16" ? 2 : 0;
      if (size == 0) return broken(fmt::format("tensor {} has dtype {}", name, tensor.dtype));
      for (const auto extent : tensor.shape) {
        if (extent < 0 ||
            (extent > 0 && size > data.size() / static_cast<std::uint64_t>(extent) + 1))
          return broken(fmt::format("tensor {} is larger than the file", name));
        size *= static_cast<std::uint64_t>(extent);
      }
      if (begin > end || end > data.size() || end - begin != size)
        return broken(
            fmt::format("tensor {} claims bytes {} to {} for {} bytes of shape in {} bytes of data",
                        name, begin, end, size, data.size()));
      tensor.bytes = data.substr(begin, size);
      content.tensors.push_back(std::move(tensor));
    }
  } catch (const nlohmann::json::exception& problem) {
    return broken(problem.what());
  }
  return content;
}

stored_tensor store_f32(std::string name, std::vector<std::int64_t> shape, const float* values) {
  stored_tensor tensor{std::move(name), "F32", std::move(shape), {}};
  tensor.bytes.resize(count(tensor.shape) * 4);
  std::memcpy(tensor.bytes.data(), values, tensor.bytes.size());
  return tensor;
}

stored_tensor store_bf16(std::string name, std::vector<std::int64_t> shape, const float* values) {
  stored_tensor tensor{std::move(name), "BF16", std::move(shape), {}};
  const auto n = count(tensor.shape);
  tensor.bytes.resize(n * 2);
  for (std::size_t i = 0; i < n; ++i) {
    auto bits = std::bit_cast<std::uint32_t>(values[i]);
    const std::uint32_t upper =
        std::isnan(values[i]) ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    tensor.bytes[2 * i] = static_cast<char>(upper & 0xff);
    tensor.bytes[2 * i + 1] = static_cast<char>(upper >> 8);
  }
  return tensor;
}

}  // namespace ordermoe::training
