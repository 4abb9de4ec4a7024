#include "model/checkpoint/safetensors.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "config/files.hpp"
#include "model/checkpoint/part.hpp"
#include "model/checkpoint/strict_json.hpp"

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

namespace ordermoe::model {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr std::uint64_t most_header_bytes = 100'000'000;
constexpr std::size_t length_bytes = 8;
constexpr const char* redo = "fetch or write the file again";

std::optional<tensor_type> type_of(std::string_view name) {
  if (name == "F32") return tensor_type::f32;
  if (name == "F16") return tensor_type::f16;
  if (name == "BF16") return tensor_type::bf16;
  if (name == "I16") return tensor_type::i16;
  if (name == "I8") return tensor_type::i8;
  if (name == "U8") return tensor_type::u8;
  return std::nullopt;
}

float widen_half(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  const std::uint32_t fraction = half & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1.0p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

std::uint16_t narrow_half(float number) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(number);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 leaves round(x * 2^24) in the low bits of the sum.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(sum) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

std::uint16_t narrow_bf16(float number) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(number);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// Version in a format of packed_tensors.hpp, 0 in any other; nothing where there is none behind
/// the prefix.
std::optional<unsigned> packed_version_in(std::string_view format) {
  if (!format.starts_with(packed_format_prefix)) return 0;
  format.remove_prefix(packed_format_prefix.size());
  unsigned version = 0;
  const auto [end, problem] =
      std::from_chars(format.data(), format.data() + format.size(), version);
  if (problem != std::errc() || end != format.data() + format.size() || version == 0)
    return std::nullopt;
  return version;
}

std::string shape_text(std::span<const std::size_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace

const char* to_string(tensor_type type) {
  switch (type) {
    case tensor_type::f32:
      return "F32";
    case tensor_type::f16:
      return "F16";
    case tensor_type::bf16:
      return "BF16";
    case tensor_type::i16:
      return "I16";
    case tensor_type::i8:
      return "I8";
    case tensor_type::u8:
      return "U8";
  }
  return "?";
}

std::size_t bytes_per_number(tensor_type type) {
  switch (type) {
    case tensor_type::f32:
      return 4;
    case tensor_type::f16:
    case tensor_type::bf16:
    case tensor_type::i16:
      return 2;
    case tensor_type::i8:
    case tensor_type::u8:
      return 1;
  }
  return 1;
}

std::size_t tensor_view::size() const {
  return bytes.size() / bytes_per_number(type);
}

void widen(tensor_type type, std::span<const std::byte> stored, std::span<float> numbers) {
  ORDERMOE_CHECK(stored.size() == numbers.size() * bytes_per_number(type),
                 "stored numbers and room for them differ in number");
  if (numbers.empty()) return;
  if (type == tensor_type::f32) {
    std::memcpy(numbers.data(), stored.data(), stored.size());
    return;
  }
  const auto half_at = [&](std::size_t i) {
    std::uint16_t half;
    std::memcpy(&half, stored.data() + 2 * i, 2);
    return half;
  };
  if (type == tensor_type::i8) {
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = static_cast<float>(static_cast<std::int8_t>(stored[i]));
  } else if (type == tensor_type::u8) {
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = static_cast<float>(static_cast<std::uint8_t>(stored[i]));
  } else if (type == tensor_type::f16) {
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = widen_half(half_at(i));
  } else {
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = std::bit_cast<float>(static_cast<std::uint32_t>(half_at(i)) << 16);
  }
}

namespace {

/// Whether no number of n has all bits of its exponent set.
template <class Bits>
bool no_exponent_is_full(const std::byte* stored, std::size_t n, Bits exponent) {
  Bits full = 0;
  for (std::size_t i = 0; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, stored + sizeof(Bits) * i, sizeof(Bits));
    full = static_cast<Bits>(full | static_cast<Bits>((bits & exponent) == exponent));
  }
  return full == 0;
}

}  // namespace

bool all_finite(tensor_type type, std::span<const std::byte> stored) {
  const std::size_t n = stored.size() / bytes_per_number(type);
  switch (type) {
    case tensor_type::f32:
      return no_exponent_is_full<std::uint32_t>(stored.data(), n, 0x7f800000u);
    case tensor_type::f16:
      return no_exponent_is_full<std::uint16_t>(stored.data(), n, 0x7c00u);
    case tensor_type::bf16:
      return no_exponent_is_full<std::uint16_t>(stored.data(), n, 0x7f80u);
    case tensor_type::i16:
    case tensor_type::i8:
    case tensor_type::u8:
      return true;
  }
  return false;
}

std::vector<float> tensor_view::to_fp32() const {
  std::vector<float> numbers(size());
  widen(type, bytes, numbers);
  return numbers;
}

namespace {

std::uintptr_t page_bytes() {
  static const auto bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

/// The whole pages inside a range of a mapped tensor; nothing where there is none.
std::span<std::byte> pages_inside(const tensor_view& view, std::size_t first, std::size_t n) {
  ORDERMOE_CHECK(first <= view.bytes.size() && n <= view.bytes.size() - first,
                 "bytes beyond a tensor");
  if (!view.mapped) return {};
  const auto page = page_bytes();
  const auto start = reinterpret_cast<std::uintptr_t>(view.bytes.data()) + first;
  const auto begin = (start + page - 1) / page * page;
  const auto end = (start + n) / page * page;
  if (end <= begin) return {};
  return {reinterpret_cast<std::byte*>(begin), end - begin};
}

}  // namespace

void expect_reading(const tensor_view& view, std::size_t first, std::size_t n) {
  const auto pages = pages_inside(view, first, n);
  if (!pages.empty()) ::madvise(pages.data(), pages.size(), MADV_WILLNEED);
}

bool bring_in(const tensor_view& view, std::size_t first, std::size_t n) {
  ORDERMOE_CHECK(first <= view.bytes.size() && n <= view.bytes.size() - first,
                 "bytes beyond a tensor");
  if (!view.mapped || n == 0) return true;
  const auto page = page_bytes();
  const auto start = reinterpret_cast<std::uintptr_t>(view.bytes.data()) + first;
  const auto begin = start / page * page;
  const auto end = (start + n + page - 1) / page * page;
  int outcome = 0;
  do outcome = ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_READ);
  while (outcome != 0 && errno == EINTR);
  // Systems before Linux 5.14 do not know it: pages come when they are read.
  return outcome == 0 || errno == EINVAL;
}

bool copy_stored(const tensor_view& view, std::size_t first, std::span<std::byte> target) {
  ORDERMOE_CHECK(first <= view.bytes.size() && target.size() <= view.bytes.size() - first,
                 "bytes beyond a tensor");
  if (view.descriptor < 0) return false;
  while (!target.empty()) {
    const ssize_t n = ::pread(view.descriptor, target.data(), target.size(),
                              static_cast<off_t>(view.offset + first));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    first += static_cast<std::size_t>(n);
    target = target.subspan(static_cast<std::size_t>(n));
  }
  return true;
}

void finish_reading(const tensor_view& view, std::size_t first, std::size_t n) {
  const auto pages = pages_inside(view, first, n);
  if (!pages.empty()) ::madvise(pages.data(), pages.size(), MADV_DONTNEED);
}

bool same_numbers(const tensor_view& a, const tensor_view& b) {
  if (a.size() != b.size()) return false;
  constexpr std::size_t piece = std::size_t{1} << 18;
  std::vector<float> left(piece), right(piece);
  for (std::size_t first = 0; first < a.size(); first += piece) {
    const std::size_t n = std::min(piece, a.size() - first);
    const auto part = [&](const tensor_view& view, std::vector<float>& numbers) {
      const std::size_t width = bytes_per_number(view.type);
      widen(view.type, view.bytes.subspan(first * width, n * width), std::span(numbers).first(n));
      finish_reading(view, first * width, n * width);
    };
    part(a, left);
    part(b, right);
    if (!std::equal(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(n), right.begin()))
      return false;
  }
  return true;
}

/// A whole file, mapped read-only and open.
class checkpoint::mapping {
 public:
  static result<std::shared_ptr<const mapping>> open(const fs::path& path) {
    const auto fail = [&](errc code, const char* step) {
      return error{code, fmt::format("{}: {}: {}; check the path and its permissions",
                                     path.string(), step, std::strerror(errno))};
    };
    // A fifo, which is refused below, would wait for a writer.
    const int file = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (file < 0) return fail(errno == ENOENT ? errc::not_found : errc::io, "cannot be opened");
    struct stat status {};
    if (::fstat(file, &status) != 0) {
      auto problem = fail(errc::io, "cannot be examined");
      ::close(file);
      return problem;
    }
    if (!S_ISREG(status.st_mode)) {
      ::close(file);
      return error{errc::not_found,
                   fmt::format("{}: not a regular file; name a .safetensors file", path.string())};
    }
    auto content = std::make_shared<mapping>();
    content->file_ = file;
    content->size_ = static_cast<std::size_t>(status.st_size);
    if (content->size_ > 0) {
      void* start = ::mmap(nullptr, content->size_, PROT_READ, MAP_PRIVATE, file, 0);
      if (start == MAP_FAILED) return fail(errc::io, "cannot be mapped");
      content->start_ = start;
    }
    return std::shared_ptr<const mapping>(std::move(content));
  }

  mapping() = default;
  mapping(const mapping&) = delete;
  mapping& operator=(const mapping&) = delete;
  ~mapping() {
    if (start_ != nullptr) ::munmap(start_, size_);
    if (file_ >= 0) ::close(file_);
  }

  int file() const { return file_; }

  /// What is read from the disk from now on comes in huge pages where the file system has them. A
  /// refusal costs speed only.
  void use_huge_pages() const { static_cast<void>(::madvise(start_, size_, MADV_HUGEPAGE)); }

  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(start_), size_};
  }

 private:
  int file_ = -1;
  void* start_ = nullptr;
  std::size_t size_ = 0;
};

result<void> checkpoint::add_file(const fs::path& path) {
  auto mapped = mapping::open(path);
  if (!mapped) return mapped.error();
  const auto bytes = (*mapped)->bytes();
  const std::string place = path.string();
  const auto bad = [&](const std::string& what) {
    return error{errc::malformed, fmt::format("{}: {}; {}", place, what, redo)};
  };
  if (bytes.size() < length_bytes)
    return bad(
        fmt::format("{} bytes long, expected at least the 8 of the header length", bytes.size()));
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), length_bytes);
  if (header_bytes > most_header_bytes)
    return bad(fmt::format("states a header of {} bytes, at most {} are allowed", header_bytes,
                           most_header_bytes));
  if (header_bytes > bytes.size() - length_bytes)
    return bad(fmt::format("states a header of {} bytes, but only {} follow; the file is cut short",
                           header_bytes, bytes.size() - length_bytes));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + length_bytes,
                              static_cast<std::size_t>(header_bytes));
  if (text.empty() || text.front() != '{') return bad("its header does not begin with '{'");
  auto header = parse_strict(text, place + ": header", redo);
  if (!header) return header.error();
  const auto data = bytes.subspan(length_bytes + static_cast<std::size_t>(header_bytes));

  struct range {
    std::uint64_t begin;
    std::uint64_t end;
    std::string name;
  };
  std::vector<range> ranges;
  unsigned packed = 0;
  if (const auto metadata = header->find("__metadata__"); metadata != header->end()) {
    if (!metadata->is_object()) return bad("__metadata__ is not an object of strings");
    for (const auto& [key, value] : metadata->items())
      if (!value.is_string()) return bad(fmt::format("__metadata__: '{}' is not a string", key));
    if (const auto format = metadata->find("format"); format != metadata->end()) {
      const auto name = format->get<std::string>();
      const auto version = packed_version_in(name);
      if (!version)
        return bad(fmt::format("__metadata__: format '{}' does not end in a version", name));
      packed = *version;
    }
  }
  for (const auto& [name, entry] : header->items()) {
    if (name == "__metadata__") continue;
    const auto wrong = [&](const std::string& what) {
      return bad(fmt::format("tensor '{}': {}", name, what));
    };
    if (!entry.is_object()) return wrong("its entry is not an object");
    if (!entry.contains("dtype") || !entry["dtype"].is_string())
      return wrong("dtype is absent or not a string");
    const auto type = type_of(entry["dtype"].get<std::string>());
    if (!type || (*type == tensor_type::i16 && packed == 0))
      return error{errc::unsupported,
                   fmt::format("{}: tensor '{}': dtype {}, expected F32, F16 or BF16; convert it",
                               place, name, entry["dtype"].get<std::string>())};
    if (!entry.contains("shape") || !entry["shape"].is_array())
      return wrong("shape is absent or not a list");
    tensor_view view;
    view.name = name;
    view.type = *type;
    view.file = path;
    view.mapped = true;
    view.descriptor = (*mapped)->file();
    view.packed = packed;
    std::uint64_t n_bytes = bytes_per_number(*type);
    for (const auto& side : entry["shape"]) {
      if (!side.is_number_unsigned()) return wrong("shape has something that is no natural number");
      const auto length = side.get<std::uint64_t>();
      if (__builtin_mul_overflow(n_bytes, length, &n_bytes))
        return wrong("the product of its shape does not fit 64 bits");
      view.shape.push_back(static_cast<std::size_t>(length));
    }
    const auto offsets = entry.find("data_offsets");
    if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 ||
        !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned())
      return wrong("data_offsets is not a pair of natural numbers");
    const auto begin = (*offsets)[0].get<std::uint64_t>();
    const auto end = (*offsets)[1].get<std::uint64_t>();
    if (end < begin)
      return wrong(fmt::format("data_offsets [{}, {}] end before they begin", begin, end));
    if (end > data.size())
      return wrong(fmt::format("data_offsets [{}, {}] reach beyond the {} bytes of data", begin,
                               end, data.size()));
    if (end - begin != n_bytes)
      return wrong(fmt::format("data_offsets [{}, {}] span {} bytes, but {} {} takes {}", begin,
                               end, end - begin, to_string(*type), shape_text(view.shape),
                               n_bytes));
    for (const auto& [key, value] : entry.items())
      if (key != "dtype" && key != "shape" && key != "data_offsets")
        return wrong(fmt::format("unknown field '{}'", key));
    view.bytes = data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(n_bytes));
    view.offset = static_cast<std::size_t>(view.bytes.data() - bytes.data());
    ranges.push_back({begin, end, name});
    if (const auto* other = find(name))
      return wrong(fmt::format("is in {} as well", other->file.string()));
    tensors_.emplace(name, std::move(view));
  }
  std::ranges::sort(ranges, [](const range& a, const range& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t covered = 0;
  for (const auto& r : ranges) {
    if (r.begin < covered)
      return bad(fmt::format("tensor '{}': data_offsets [{}, {}] overlap those of another tensor",
                             r.name, r.begin, r.end));
    if (r.begin > covered)
      return bad(fmt::format("tensor '{}': data_offsets [{}, {}] leave bytes {} to {} unused",
                             r.name, r.begin, r.end, covered, r.begin));
    covered = r.end;
  }
  if (covered != data.size())
    return bad(fmt::format("{} bytes of data, but its tensors take {}", data.size(), covered));
  if (packed != 0) (*mapped)->use_huge_pages();
  mappings_.push_back(*mapped);
  return {};
}

std::shared_ptr<const void> checkpoint::memory() const {
  return std::make_shared<const std::vector<std::shared_ptr<const mapping>>>(mappings_);
}

result<std::shared_ptr<const checkpoint>> checkpoint::open_file(const fs::path& path) {
  auto opened = std::make_shared<checkpoint>();
  opened->place_ = path;
  if (auto added = opened->add_file(path); !added) return added.error();
  return std::shared_ptr<const checkpoint>(std::move(opened));
}

result<std::shared_ptr<const checkpoint>> checkpoint::open_folder(const fs::path& folder) {
  std::error_code status;
  if (!fs::is_directory(folder, status))
    return error{errc::not_found,
                 fmt::format("{}: no such folder; name the folder of a model", folder.string())};
  const auto whole = folder / "model.safetensors";
  if (fs::exists(whole, status)) return open_file(whole);
  auto index = read_shard_index(folder);
  if (!index) {
    if (index.error().code != errc::not_found) return index.error();
    return error{errc::not_found,
                 fmt::format("{}: has neither model.safetensors nor {}; name the folder of a model",
                             folder.string(), shard_index_name)};
  }
  const auto index_path = folder / shard_index_name;
  auto opened = std::make_shared<checkpoint>();
  opened->place_ = folder;
  for (const auto& [file, names] : index->files()) {
    const auto path = folder / file;
    if (!fs::exists(path, status))
      return error{errc::not_found,
                   fmt::format("{}: names the shard {} for tensor '{}', but there is no such file; "
                               "fetch the missing shard",
                               index_path.string(), path.string(), names.front())};
    if (auto added = opened->add_file(path); !added) return added.error();
  }
  for (const auto& [tensor, file] : index->file_of) {
    const auto* found = opened->find(tensor);
    const auto expected = folder / file;
    if (found == nullptr || found->file != expected)
      return error{errc::mismatch,
                   fmt::format("{}: tensor '{}' is {}, expected in {}; fetch index and shards of "
                               "the same model",
                               index_path.string(), tensor,
                               found == nullptr ? "in no shard" : "in " + found->file.string(),
                               expected.string())};
  }
  for (const auto& [tensor, view] : opened->tensors_)
    if (!index->file_of.contains(tensor))
      return error{errc::mismatch,
                   fmt::format("{}: tensor '{}' is not in the index {}; fetch index and shards of "
                               "the same model",
                               view.file.string(), tensor, index_path.string())};
  return std::shared_ptr<const checkpoint>(std::move(opened));
}

std::map<std::string, std::vector<std::string>> shard_index::files() const {
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [tensor, file] : file_of) shards[file].push_back(tensor);
  return shards;
}

result<shard_index> read_shard_index(const fs::path& folder) {
  const auto path = folder / shard_index_name;
  auto text = read_file(path, most_header_bytes);
  if (!text) return text.error();
  auto parsed = parse_strict(*text, path.string(), redo);
  if (!parsed) return parsed.error();
  const auto bad = [&](const std::string& what) {
    return error{errc::malformed, fmt::format("{}: {}; {}", path.string(), what, redo)};
  };
  const auto map = parsed->find("weight_map");
  if (map == parsed->end() || !map->is_object()) return bad("weight_map is absent or no object");
  shard_index content;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) return bad(fmt::format("tensor '{}': its file is no string", tensor));
    const auto name = file.get<std::string>();
    if (name.empty() || name == "." || name == ".." ||
        name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos)
      return bad(fmt::format("tensor '{}': '{}' is not the plain name of a file in this folder",
                             tensor, name));
    content.file_of[tensor] = name;
  }
  const auto metadata = parsed->find("metadata");
  if (metadata != parsed->end() && metadata->is_object()) {
    const auto total = metadata->find("total_size");
    if (total != metadata->end()) {
      // Some writers state it as a floating-point number.
      const double number = total->is_number() ? total->get<double>() : -1.0;
      if (!(number >= 0 && number < 0x1p63) || number != std::floor(number))
        return bad("total_size is no natural number");
      content.total_size = total->get<std::uint64_t>();
    }
  }
  return content;
}

const tensor_view* checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

result<const tensor_view*> checkpoint::get(std::string_view name,
                                           std::span<const std::size_t> shape) const {
  const auto* view = find(name);
  if (view == nullptr)
    return error{errc::mismatch,
                 fmt::format("{}: tensor '{}' is absent, expected with shape {}; config.json and "
                             "weights must be of the same model",
                             place_.string(), name, shape_text(shape))};
  if (!std::ranges::equal(view->shape, shape))
    return error{
        errc::mismatch,
        fmt::format("{}: tensor '{}' has shape {}, expected {}; config.json and weights "
                    "must be of the same model",
                    view->file.string(), name, shape_text(view->shape), shape_text(shape))};
  return view;
}

result<std::vector<float>> checkpoint::read(std::string_view name,
                                            std::span<const std::size_t> shape) const {
  const auto view = get(name, shape);
  if (!view) return view.error();
  return (*view)->to_fp32();
}

std::string digest_of(const std::string& config,
                      const std::map<std::string, tensor_view, std::less<>>& tensors) {
  constexpr std::size_t sample_bytes = 4096;
  std::string sampled = fmt::format("{}:{}", config.size(), config);
  for (const auto& [name, view] : tensors) {
    sampled += fmt::format("{}:{}{}{}:{}:", name.size(), name, to_string(view.type),
                           shape_text(view.shape), view.bytes.size());
    const auto first = view.bytes.first(std::min(sample_bytes, view.bytes.size()));
    const auto last = view.bytes.last(std::min(sample_bytes, view.bytes.size()));
    sampled.append(reinterpret_cast<const char*>(first.data()), first.size());
    sampled.append(reinterpret_cast<const char*>(last.data()), last.size());
  }
  return sha256_hex(sampled);
}

result<std::string> model_digest(const fs::path& folder) {
  const auto config = read_file(folder / "config.json", std::size_t{1} << 20);
  if (!config) return config.error();
  const auto weights = checkpoint::open_folder(folder);
  if (!weights) return weights.error();
  const auto part = read_part(folder);
  if (!part) return part.error();
  auto digest = digest_of(*config, (*weights)->tensors());
  if (!*part) return digest;
  if (digest == (*part)->digest) return (*part)->of;
  return error{
      errc::mismatch,
      fmt::format("{}: its tensors have the digest {}, {} says {}; write the part again "
                  "with `ordermoe model shard`",
                  folder.string(), digest.substr(0, 12), part_name, (*part)->digest.substr(0, 12))};
}

std::string to_bytes(std::span<const float> numbers, tensor_type type) {
  ORDERMOE_CHECK(bytes_per_number(type) >= 2, "fp32 numbers are not rounded to integers");
  std::string bytes(numbers.size() * bytes_per_number(type), '\0');
  if (type == tensor_type::f32) {
    if (!numbers.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
    return bytes;
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::uint16_t half =
        type == tensor_type::f16 ? narrow_half(numbers[i]) : narrow_bf16(numbers[i]);
    std::memcpy(bytes.data() + 2 * i, &half, 2);
  }
  return bytes;
}

result<void> write_safetensors(const fs::path& path, std::span<const tensor_data> tensors) {
  std::vector<const tensor_data*> sorted;
  for (const auto& tensor : tensors) sorted.push_back(&tensor);
  std::ranges::sort(sorted, [](const tensor_data* a, const tensor_data* b) {
    const auto wide_first = bytes_per_number(b->type) <=> bytes_per_number(a->type);
    return wide_first != 0 ? wide_first < 0 : a->name < b->name;
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  header["__metadata__"] = {{"format", "pt"}};
  std::size_t offset = 0;
  for (const auto* tensor : sorted) {
    std::size_t n_bytes = bytes_per_number(tensor->type);
    for (const std::size_t side : tensor->shape)
      if (__builtin_mul_overflow(n_bytes, side, &n_bytes)) n_bytes = SIZE_MAX;
    if (n_bytes != tensor->bytes.size())
      return error{errc::out_of_range,
                   fmt::format("{}: tensor '{}': {} bytes, but {} {} takes {}", path.string(),
                               tensor->name, tensor->bytes.size(), to_string(tensor->type),
                               shape_text(tensor->shape), n_bytes)};
    if (header.contains(tensor->name))
      return error{errc::out_of_range,
                   fmt::format("{}: tensor '{}' comes twice", path.string(), tensor->name)};
    header[tensor->name] = {{"dtype", to_string(tensor->type)},
                            {"shape", tensor->shape},
                            {"data_offsets", {offset, offset + n_bytes}}};
    offset += n_bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string bytes(length_bytes, '\0');
  const std::uint64_t header_bytes = text.size();
  std::memcpy(bytes.data(), &header_bytes, length_bytes);
  bytes.reserve(length_bytes + text.size() + offset);
  bytes += text;
  for (const auto* tensor : sorted) bytes += tensor->bytes;
  return write_file(path, bytes);
}

}  // namespace ordermoe::model
