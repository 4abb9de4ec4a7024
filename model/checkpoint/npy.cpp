#include "model/checkpoint/npy.hpp"

#include <fmt/format.h>

#include <cstring>
#include <string>

#include "config/files.hpp"

namespace ordermoe::model {

result<void> write_npy(const std::filesystem::path& path, std::span<const float> numbers,
                       std::size_t n_rows, std::size_t n_columns) {
  ORDERMOE_CHECK(numbers.size() == n_rows * n_columns, "numbers are not [n_rows, n_columns]");
  std::string header = fmt::format(
      "{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", n_rows, n_columns);
  // Magic, version and length take ten bytes; with the closing line break everything is a multiple
  // of 64.
  constexpr std::size_t before = 10;
  header.append(63 - (before + header.size()) % 64, ' ');
  header += '\n';
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() & 0xff);
  bytes += static_cast<char>(header.size() >> 8);
  bytes += header;
  const std::size_t start = bytes.size();
  bytes.resize(start + numbers.size_bytes());
  if (!numbers.empty()) std::memcpy(bytes.data() + start, numbers.data(), numbers.size_bytes());
  return write_file(path, bytes);
}

}  // namespace ordermoe::model
