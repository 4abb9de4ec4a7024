#include "model/checkpoint/matrix_source.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "config/error.hpp"
#include "model/checkpoint/packed_tensors.hpp"
#include "model/checkpoint/quantised_rows.hpp"

namespace ordermoe::model {

namespace {

constexpr std::size_t block = packed_layout::block;
/// The disk is asked for this much ahead of the rows that are converted.
constexpr std::size_t read_ahead_bytes = std::size_t{8} << 20;

/// Two numbers of a row side by side.
using number_pair = std::uint32_t;
constexpr std::size_t tile = 4;
using pairs = number_pair __attribute__((vector_size(tile * sizeof(number_pair))));

pairs load_pairs(const std::byte* from) {
  pairs numbers;
  std::memcpy(&numbers, from, sizeof numbers);
  return numbers;
}

/// target[c * step + r] = row r, pair c of a tile of 4 x 4; `rows` are where the tile's rows begin.
void transpose_tile(const std::byte* const (&rows)[tile], std::size_t offset, number_pair* target,
                    std::size_t step) {
  const pairs a = load_pairs(rows[0] + offset), b = load_pairs(rows[1] + offset);
  const pairs c = load_pairs(rows[2] + offset), d = load_pairs(rows[3] + offset);
  const pairs ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const pairs ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const pairs cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const pairs cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  const pairs columns[tile] = {__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5),
                               __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7),
                               __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5),
                               __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7)};
  for (std::size_t k = 0; k < tile; ++k) std::memcpy(target + k * step, &columns[k], sizeof(pairs));
}

/// Copies `n` pairs, a multiple of a cache line. Packed weights are not read again before all of
/// a matrix are there: where both sides lie on a boundary of 16 bytes, they go past the caches,
/// which spares reading the memory that they replace.
void put_away(const number_pair* from, number_pair* to, std::size_t n) {
#if defined(__x86_64__)
  if (reinterpret_cast<std::uintptr_t>(to) % sizeof(__m128i) == 0) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(to);
    for (std::size_t i = 0; i < n * sizeof(*from) / sizeof(__m128i); ++i)
      _mm_stream_si128(target + i, _mm_load_si128(source + i));
    return;
  }
#endif
  std::memcpy(to, from, n * sizeof(*from));
}

/// Before another thread is told of what was put away.
void finish_putting_away() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

/// packed[j * width + r] = row r's numbers 2 j and 2 j + 1, for `width` rows of which the first n
/// are there; zero where a row has ended.
void transpose_block(std::span<const std::byte* const> rows, std::size_t n_in, std::size_t width,
                     number_pair* packed) {
  const std::size_t n = rows.size(), n_pairs = (n_in + 1) / 2;
  const auto pair_of = [&](std::size_t r, std::size_t j) {
    number_pair both = 0;
    if (r < n) std::memcpy(&both, rows[r] + 4 * j, 2 * j + 1 < n_in ? 4 : 2);
    return both;
  };
  // A run of a cache line of each row, four rows at a time: lines of more rows would fall out of
  // the cache before they are used up where rows are a power of two apart.
  constexpr std::size_t run = 16;
  alignas(64) number_pair gathered[run * block];
  std::size_t j = 0;
  for (; 2 * (j + run) <= n_in; j += run) {
    for (std::size_t r = 0; r < width; r += tile) {
      if (r + tile > n) {
        for (std::size_t c = 0; c < run; ++c)
          for (std::size_t i = r; i < r + tile; ++i) gathered[c * width + i] = pair_of(i, j + c);
        continue;
      }
      const std::byte* from[tile];
      std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(r), tile, from);
      for (std::size_t c = 0; c < run; c += tile)
        transpose_tile(from, 4 * (j + c), gathered + c * width + r, width);
    }
    put_away(gathered, packed + j * width, run * width);
  }
  for (; j < n_pairs; ++j)
    for (std::size_t r = 0; r < width; ++r) packed[j * width + r] = pair_of(r, j);
  finish_putting_away();
}

}  // namespace

matrix_source::matrix_source(std::span<const float> row_major, std::size_t n_out, std::size_t n_in)
    : n_out_(n_out), n_in_(n_in) {
  ORDERMOE_CHECK(row_major.size() == n_out * n_in, "a matrix of another shape");
  tensor_view view;
  view.shape = {n_out, n_in};
  view.bytes = std::as_bytes(row_major);
  parts_.push_back({std::move(view), 0, n_out});
}

matrix_source::matrix_source(const tensor_view& tensor) {
  ORDERMOE_CHECK(tensor.shape.size() == 2, "a matrix has two sides");
  n_out_ = tensor.shape[0];
  n_in_ = tensor.shape[1];
  parts_.push_back({tensor, 0, n_out_});
}

matrix_source::matrix_source(const tensor_view& tensor, const tensor_view& scales,
                             weight_storage kept, std::size_t n_out, std::size_t n_in)
    : n_out_(n_out), n_in_(n_in), quantised_as_(kept) {
  const auto shape = stored_shape(kept, n_out, n_in);
  ORDERMOE_CHECK(tensor.shape == shape.weight && tensor.type == shape.weight_type &&
                     scales.shape == shape.scale && scales.type == shape.scale_type,
                 "a quantised matrix of another shape");
  parts_.push_back({tensor, 0, n_out});
  parts_.push_back({scales, 0, n_out});
}

matrix_source::matrix_source(const tensor_view& tensor, const packed_matrix& matrix,
                             std::shared_ptr<const void> owner)
    : n_out_(matrix.layout.n_out),
      n_in_(matrix.layout.n_in),
      packed_(matrix),
      owner_(std::move(owner)) {
  parts_.push_back({tensor, 0, n_out_});
}

const tensor_view* matrix_source::bring_in() {
  if (!stays()) return nullptr;
  // Small enough that the processor's cache still has what the system touched.
  constexpr std::size_t piece_bytes = std::size_t{2} << 20;
  part& all = parts_.front();
  const auto piece = [&](std::size_t first, std::size_t n, const auto& finite) {
    if (!model::bring_in(all.view, first, n)) return false;
    if (!finite()) all.not_finite = true;
    return true;
  };
  if (packed_.data == nullptr) {
    for (std::size_t first = 0; first < all.view.bytes.size(); first += piece_bytes) {
      const std::size_t n = std::min(piece_bytes, all.view.bytes.size() - first);
      const auto bytes = all.view.bytes.subspan(first, n);
      if (!piece(first, n, [&] { return all_finite(all.view.type, bytes); })) return &all.view;
      // Few of its rows are read: they come in again, from the system's cache, when they are.
      finish_reading(all.view, first, n);
    }
    return nullptr;
  }
  const packed_layout& layout = packed_.layout;
  const std::size_t padded = layout.padded_out();
  const std::size_t output_bytes = layout.bytes(packed_.storage) / padded;
  const std::size_t at_once =
      std::max<std::size_t>(1, piece_bytes / (block * output_bytes)) * block;
  for (std::size_t first = 0; first < padded; first += at_once) {
    const std::size_t end = std::min(first + at_once, padded);
    if (!piece(first * output_bytes, (end - first) * output_bytes,
               [&] { return all_finite(packed_, first, end); }))
      return &all.view;
  }
  return nullptr;
}

std::pair<std::span<const std::byte>, std::span<const std::byte>> matrix_source::quantised_rows(
    std::size_t first, std::size_t n) const {
  ORDERMOE_CHECK(quantised_as_, "a matrix that is not stored quantised");
  std::vector<std::span<const std::byte>> found;
  for_parts(*this, first, n, [&](const part& each, std::size_t at, std::size_t bytes) {
    found.push_back(each.stored(at, bytes));
  });
  return {found.at(0), found.at(1)};
}

void matrix_source::append(const matrix_source& below) {
  if (below.parts_.empty()) return;
  ORDERMOE_CHECK(!stays() && !below.stays(), "packed matrices are not joined");
  ORDERMOE_CHECK(!quantised_as_ && !below.quantised_as_, "quantised matrices are not joined");
  if (parts_.empty()) {
    *this = below;
    return;
  }
  ORDERMOE_CHECK(below.n_in_ == n_in_, "matrices of different numbers of columns");
  for (const auto& each : below.parts_)
    parts_.push_back({each.view, n_out_ + each.first_row, each.n_rows});
  n_out_ += below.n_out_;
}

std::size_t matrix_source::stored_bytes() const {
  std::size_t bytes = 0;
  for (const auto& each : parts_) bytes += each.view.bytes.size();
  return bytes;
}

template <class Self, class Body>
void matrix_source::for_parts(Self& self, std::size_t first, std::size_t n, Body body) {
  ORDERMOE_CHECK(first <= self.n_out_ && n <= self.n_out_ - first, "rows beyond a matrix");
  for (auto& each : self.parts_) {
    const std::size_t from = std::max(first, each.first_row);
    const std::size_t to = std::min(first + n, each.first_row + each.n_rows);
    if (from >= to) continue;
    const std::size_t row_bytes = each.view.bytes.size() / each.n_rows;
    body(each, (from - each.first_row) * row_bytes, (to - from) * row_bytes);
  }
}

const tensor_view* matrix_source::not_finite() const {
  const auto found = std::ranges::find_if(parts_, &part::not_finite);
  return found == parts_.end() ? nullptr : &found->view;
}

void matrix_source::expect() const {
  if (stays()) return;
  for (const auto& each : parts_)
    expect_reading(each.view, 0, std::min(read_ahead_bytes, each.view.bytes.size()));
}

std::pair<std::string, const std::byte*> matrix_source::place() const {
  if (parts_.empty()) return {};
  return {parts_.front().view.file.string(), parts_.front().view.bytes.data()};
}

bool matrix_source::fits_bf16() const {
  if (quantised_as_) return false;
  for (const auto& each : parts_) {
    if (each.view.type == tensor_type::bf16) continue;
    const std::size_t width = bytes_per_number(each.view.type);
    std::vector<float> numbers(std::size_t{1} << 16);
    for (std::size_t at = 0; at < each.view.size(); at += numbers.size()) {
      const std::size_t n = std::min(numbers.size(), each.view.size() - at);
      const auto piece = std::span(numbers).first(n);
      widen(each.view.type, each.view.bytes.subspan(at * width, n * width), piece);
      const bool fits = model::fits_bf16(piece);
      finish_reading(each.view, at * width, n * width);
      if (!fits) return false;
    }
  }
  return true;
}

void matrix_source::begin_rows(std::size_t first, std::size_t n) {
  std::size_t wanted_room = 0, filled = 0;
  if (room_ != nullptr) {
    for_parts(*this, first, n,
              [&](const part&, std::size_t, std::size_t bytes) { wanted_room += bytes; });
    if (room_->size() < wanted_room) room_->resize(wanted_room);
  }
  for_parts(*this, first, n, [&](part& each, std::size_t at, std::size_t bytes) {
    const tensor_view& view = each.view;
    const std::size_t end = at + bytes;
    const std::size_t wanted = std::min(end + read_ahead_bytes, view.bytes.size());
    if (wanted > each.expected_bytes &&
        (wanted - each.expected_bytes >= read_ahead_bytes / 2 || wanted == view.bytes.size())) {
      expect_reading(view, each.expected_bytes, wanted - each.expected_bytes);
      each.expected_bytes = wanted;
    }
    each.held = {};
    if (room_ != nullptr && view.descriptor >= 0) {
      const auto place = std::span(*room_).subspan(filled, bytes);
      if (copy_stored(view, at, place)) {
        each.held = place;
        each.held_first = at;
        filled += bytes;
      }
    }
    if (!all_finite(view.type, each.stored(at, bytes))) each.not_finite = true;
  });
}

std::span<const std::byte> matrix_source::part::stored(std::size_t at, std::size_t bytes) const {
  if (at < held_first || at - held_first > held.size() || bytes > held.size() - (at - held_first))
    return view.bytes.subspan(at, bytes);
  return held.subspan(at - held_first, bytes);
}

void matrix_source::end_rows(std::size_t first, std::size_t n) {
  for_parts(*this, first, n, [](part& each, std::size_t at, std::size_t bytes) {
    if (each.held.empty()) finish_reading(each.view, at, bytes);
    each.held = {};
  });
}

matrix_source::stored_row matrix_source::row(std::size_t index) const {
  stored_row found;
  for_parts(*this, index, 1, [&](const part& each, std::size_t at, std::size_t bytes) {
    found = {each.view.type, each.stored(at, bytes)};
  });
  return found;
}

void matrix_source::read(std::size_t first, std::span<float> numbers) const {
  ORDERMOE_CHECK(!quantised_as_, "a quantised matrix is read in fp32");
  std::size_t done = 0;
  for_parts(*this, first, numbers.size() / n_in_,
            [&](const part& each, std::size_t at, std::size_t bytes) {
              const std::size_t n = bytes / bytes_per_number(each.view.type);
              widen(each.view.type, each.stored(at, bytes), numbers.subspan(done, n));
              done += n;
            });
}

void pack_block(matrix_source& source, std::size_t start, weight_storage storage,
                std::span<std::byte> packed, packing_room& room) {
  ORDERMOE_CHECK(!source.stays() && start % block == 0 && start < source.n_out(),
                 "no block of a matrix that is read");
  ORDERMOE_CHECK(!source.quantised_as() || source.quantised_as() == storage,
                 "a quantised matrix is packed as something else");
  const packed_layout layout{std::min(block, source.n_out() - start), source.n_in()};
  ORDERMOE_CHECK(packed.size() == layout.bytes(storage), "room for a block of another shape");
  source.begin_rows(start, layout.n_out);
  if (source.quantised_as()) {
    const auto [weight, scale] = source.quantised_rows(start, layout.n_out);
    to_packed(layout, storage, weight, scale, packed);
  } else if (storage != weight_storage::bf16) {
    room.wide.resize(layout.n_out * layout.n_in);
    source.read(start, room.wide);
    pack(layout, room.wide, storage, packed);
  } else {
    room.narrow.resize(block);
    room.rows.clear();
    for (std::size_t r = 0; r < layout.n_out; ++r) {
      const auto stored = source.row(start + r);
      if (stored.type == tensor_type::bf16) {
        room.rows.push_back(stored.bytes.data());
        continue;
      }
      room.wide.resize(layout.n_in);
      widen(stored.type, stored.bytes, room.wide);
      room.narrow[r] = to_bytes(room.wide, tensor_type::bf16);
      room.rows.push_back(reinterpret_cast<const std::byte*>(room.narrow[r].data()));
    }
    transpose_block(room.rows, layout.n_in, layout.padded_out(),
                    reinterpret_cast<number_pair*>(packed.data()));
  }
  source.end_rows(start, layout.n_out);
}

void pack(const packed_layout& layout, matrix_source& source, weight_storage storage,
          std::span<std::byte> packed) {
  ORDERMOE_CHECK(source.n_out() == layout.n_out && source.n_in() == layout.n_in,
                 "a matrix of another shape");
  ORDERMOE_CHECK(packed.size() == layout.bytes(storage),
                 "room for a packed matrix of another shape");
  packing_room room;
  for (std::size_t start = 0, done = 0; start < layout.n_out; start += block) {
    const packed_layout part{std::min(block, layout.n_out - start), layout.n_in};
    const auto target = packed.subspan(done, part.bytes(storage));
    done += target.size();
    pack_block(source, start, storage, target, room);
  }
}

kept_form form_of(precision kept, bool fits) {
  switch (kept) {
    case precision::stored:
      return {fits ? weight_storage::bf16 : weight_storage::fp32};
    case precision::bf16:
      return {weight_storage::bf16, row_precision::bf16};
    case precision::int8:
      return {weight_storage::int8};
    case precision::int4:
      return {weight_storage::int4};
  }
  return {};
}

kept_form form_for(std::initializer_list<const matrix_source*> together, precision kept) {
  bool fits = kept == precision::stored;
  for (const auto* each : together) {
    if (each == nullptr) continue;
    if (each->quantised_as()) return {*each->quantised_as()};
    fits = fits && each->fits_bf16();
  }
  return form_of(kept, fits);
}

std::shared_ptr<std::byte> weight_memory(std::size_t bytes) {
  constexpr std::size_t huge_page = std::size_t{2} << 20, line = 64, small_page = 4096;
  const auto whole = [](std::size_t number, std::size_t unit) {
    return (number + unit - 1) / unit * unit;
  };
  if (bytes < huge_page) {
    auto* start =
        static_cast<std::byte*>(std::aligned_alloc(line, whole(std::max(bytes, line), line)));
    if (start == nullptr) throw std::bad_alloc();
    return {start, [](std::byte* memory) { std::free(memory); }};
  }
  // Room to begin at a huge page; what lies before it and behind the end is given back at once.
  const std::size_t room = bytes + huge_page;
  void* mapped = ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* base = static_cast<std::byte*>(mapped);
  const auto address = reinterpret_cast<std::uintptr_t>(mapped);
  const std::size_t before = whole(address, huge_page) - address;
  const std::size_t kept = whole(bytes, small_page);
  const std::size_t behind = whole(room, small_page) - before - kept;
  if (before > 0) ::munmap(base, before);
  if (behind > 0) ::munmap(base + before + kept, behind);
  // A refusal costs speed only.
  static_cast<void>(::madvise(base + before, kept, MADV_HUGEPAGE));
  return {base + before, [kept](std::byte* memory) { ::munmap(memory, kept); }};
}

}  // namespace ordermoe::model
