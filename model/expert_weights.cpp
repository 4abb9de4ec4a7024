#include "model/expert_weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/kernels/thread_team.hpp"

namespace ordermoe::model {

namespace {

std::size_t whole_lines(std::size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

/// As scratch_buffer, in bytes.
std::byte* aligned_room(std::size_t bytes) {
  thread_local scratch_buffer buffer;
  return reinterpret_cast<std::byte*>(buffer.room((bytes + sizeof(float) - 1) / sizeof(float)));
}

/// What a thread needs for n rows of a product, in the unit of share_out(): a core multiplies four
/// times while it reads a byte.
double work_of(const packed_matrix& matrix, std::size_t n_rows) {
  const auto& layout = matrix.layout;
  return std::max(static_cast<double>(layout.bytes(matrix.storage)),
                  static_cast<double>(layout.n_out * layout.n_in * n_rows) / 4);
}

/// output[i] = matrix * input[i] by the kernels; `input` has rows as the matrix takes them.
void multiply(const packed_matrix& matrix, const void* input, float* output, std::size_t n) {
  const auto& layout = matrix.layout;
  share_out(layout.n_blocks(), work_of(matrix, n), [&](std::size_t first, std::size_t last) {
    const auto part = blocks_of(matrix, first, last);
    float* place = output + first * packed_layout::block;
    if (quantised(matrix.storage))
      kernels().linear_quantised(part, static_cast<const quantised_group*>(input), place,
                                 layout.n_out, n);
    else if (rounds_rows(matrix))
      kernels().linear_rounded(part, static_cast<const std::uint32_t*>(input), place, layout.n_out,
                               n);
    else
      kernels().linear(part, static_cast<const float*>(input), layout.n_in, place, layout.n_out, n);
  });
}

/// Whether rows of numbers go into it as they are.
bool takes_numbers(const packed_matrix& matrix) {
  return !quantised(matrix.storage) && !rounds_rows(matrix);
}

/// Rows of n_in numbers as the matrix takes them, one after the other. Precondition: !takes_numbers(matrix).
void make_rows(const packed_matrix& matrix, const float* input, std::byte* rows, std::size_t n) {
  const auto& layout = matrix.layout;
  // Quantising takes about as long as reading sixteen bytes a number, rounding two.
  const double bytes_a_number = quantised(matrix.storage) ? 16 : 2;
  const double work = bytes_a_number * static_cast<double>(n * layout.n_in);
  share_out(n, work, [&](std::size_t first, std::size_t last) {
    const std::size_t words = layout.n_pairs() * kernels().rounded_words;
    for (std::size_t i = first; i < last; ++i)
      if (quantised(matrix.storage))
        kernels().quantise(input + i * layout.n_in, layout.n_in,
                           reinterpret_cast<quantised_group*>(rows) + i * layout.n_groups());
      else
        kernels().round_row(input + i * layout.n_in, layout.n_in,
                            reinterpret_cast<std::uint32_t*>(rows) + i * words);
  });
}

/// An expert that the thread's team shares: first all its units, then its outputs.
void run_shared(const packed_expert& expert, const float* input, float* output, std::size_t n,
                std::byte* scratch) {
  const auto& outer = expert.up.layout;
  const void* rows = input;
  if (!takes_numbers(expert.up)) {
    make_rows(expert.up, input, scratch, n);
    rows = scratch;
    scratch += whole_lines(n * row_bytes(expert.up));
  }
  const double work =
      work_of(expert.up, n) + (expert.gate.data != nullptr ? work_of(expert.gate, n) : 0);
  share_out(outer.n_blocks(), work, [&](std::size_t first, std::size_t last) {
    thread_local scratch_buffer room;
    kernels().expert_units(expert, first, last, rows, scratch, n,
                           room.room(2 * packed_layout::block * n));
  });
  multiply(expert.down, scratch, output, n);
}

/// What stays in its file, of a precision that it may be kept in.
packed_matrix kept_at(const matrix_source& source, precision kept) {
  auto matrix = source.packed();
  if (kept == precision::bf16) matrix.rows = row_precision::bf16;
  return matrix;
}

void throw_where_failed(const result<void>& done, const std::string& what) {
  if (!done) throw device_failure(fmt::format("{} on {}", what, done.error().message));
}

}  // namespace

projection::projection(std::span<const float> row_major, std::size_t n_out, std::size_t n_in,
                       const compute_place& place, precision kept) {
  matrix_source source(row_major, n_out, n_in);
  *this = projection(source, place, kept);
}

void scratch_buffer::grow(std::size_t n) {
  const std::size_t next = std::max(n, size_ + size_ / 2);
  size_ = 0;
  memory_.reset();
  memory_ = weight_memory(next * sizeof(float));
  numbers_ = reinterpret_cast<float*>(memory_.get());
  size_ = next;
}

projection::projection(matrix_source& source, const compute_place& place, precision kept) {
  if (source.stays()) {
    packed_ = kept_at(source, kept);
    host_ = source.owner();
    return;
  }
  packed_.layout = {source.n_out(), source.n_in()};
  if (place.device != nullptr) {
    ORDERMOE_CHECK(kept == precision::stored, "a device multiplies by weights as they are stored");
    auto matrix =
        place.device->keep(source.n_out(), source.n_in(),
                           [&](std::size_t first, std::size_t n, std::span<float> numbers) {
                             source.begin_rows(first, n);
                             source.read(first, numbers);
                             source.end_rows(first, n);
                           });
    if (!matrix) throw device_failure(matrix.error().message);
    device_ = std::move(*matrix);
    return;
  }
  const auto form = form_for({&source}, kept);
  packed_.storage = form.storage;
  packed_.rows = form.rows;
  const auto memory = weight_memory(packed_.layout.bytes(packed_.storage));
  pack(packed_.layout, source, packed_.storage,
       {memory.get(), packed_.layout.bytes(packed_.storage)});
  packed_.data = memory.get();
  host_ = memory;
}

std::size_t projection::bytes() const {
  if (device_ != nullptr) return device_->bytes();
  if (packed_.data == nullptr) return 0;
  return packed_.layout.bytes(packed_.storage);
}

std::optional<projection> projection::without_first(std::size_t n_outputs) const {
  if (packed_.data == nullptr) return std::nullopt;
  constexpr std::size_t block = packed_layout::block;
  ORDERMOE_CHECK(n_outputs % block == 0 && n_outputs < n_out(),
                 fmt::format("a matrix of {} outputs without the first {}", n_out(), n_outputs));
  projection rest = *this;
  rest.packed_ = blocks_of(packed_, n_outputs / block, packed_.layout.n_blocks());
  return rest;
}

void projection::apply(const float* input, float* output, std::size_t n) const {
  if (packed_.data == nullptr)
    return throw_where_failed(device_->apply(input, output, n),
                              fmt::format("a matrix [{}, {}]", n_out(), n_in()));
  if (takes_numbers(packed_)) return multiply(packed_, input, output, n);
  for (std::size_t start = 0; start < n; start += most_rows) {
    const std::size_t count = std::min(most_rows, n - start);
    std::byte* rows = aligned_room(count * row_bytes(packed_));
    make_rows(packed_, input + start * n_in(), rows, count);
    multiply(packed_, rows, output + start * n_out(), count);
  }
}

void expert_weights::keep(matrix_source* gate, matrix_source& up, matrix_source& down,
                          const compute_place& place, precision kept) {
  if (place.device != nullptr) {
    if (gate != nullptr) {
      gate->append(up);
      gate_and_up_ = projection(*gate, place, kept);
    } else {
      gate_and_up_ = projection(up, place, kept);
    }
    down_ = projection(down, place, kept);
    on_device_ = place.device->feed_forward(gate_and_up_.on_device(), down_.on_device());
    return;
  }
  if (up.stays()) {
    packed_ = {gate != nullptr ? kept_at(*gate, kept) : packed_matrix(), kept_at(up, kept),
               kept_at(down, kept)};
    host_ = up.owner();
    return;
  }
  // The kernel takes gate and up in one form.
  const auto wide = form_for({&up, gate}, kept), narrow = form_for({&down}, kept);
  packed_.up = {{up.n_out(), up.n_in()}, wide.storage, nullptr, wide.rows};
  packed_.gate = packed_.up;
  packed_.down = {{down.n_out(), down.n_in()}, narrow.storage, nullptr, narrow.rows};
  const std::size_t wide_bytes = packed_.up.layout.bytes(wide.storage);
  const std::size_t down_bytes = packed_.down.layout.bytes(packed_.down.storage);
  const std::size_t step = whole_lines(wide_bytes);
  const auto memory = weight_memory((gate == nullptr ? 1 : 2) * step + down_bytes);
  std::byte* next = memory.get();
  const auto keep_next = [&](packed_matrix& matrix, matrix_source& source, std::size_t room) {
    pack(matrix.layout, source, matrix.storage, {next, matrix.layout.bytes(matrix.storage)});
    matrix.data = next;
    next += room;
  };
  if (gate != nullptr) keep_next(packed_.gate, *gate, step);
  keep_next(packed_.up, up, step);
  keep_next(packed_.down, down, down_bytes);
  host_ = memory;
}

expert_weights::expert_weights(matrix_source& gate, matrix_source& up, matrix_source& down,
                               const compute_place& place, precision kept) {
  keep(&gate, up, down, place, kept);
}

expert_weights::expert_weights(std::span<const float> gate, std::span<const float> up,
                               std::span<const float> down, std::size_t width, std::size_t inner,
                               const compute_place& place, precision kept) {
  matrix_source first(gate, inner, width), second(up, inner, width), third(down, width, inner);
  keep(&first, second, third, place, kept);
}

expert_weights::expert_weights(matrix_source& up, matrix_source& down, const compute_place& place,
                               precision kept) {
  keep(nullptr, up, down, place, kept);
}

expert_weights::expert_weights(const packed_expert& packed, std::shared_ptr<const void> owner)
    : packed_(packed), host_(std::move(owner)) {
  ORDERMOE_CHECK(
      packed.gate.data == nullptr || (packed.gate.storage == packed.up.storage &&
                                      rounds_rows(packed.gate) == rounds_rows(packed.up)),
      "the gate and the up matrix of an expert are kept differently");
}

std::size_t expert_weights::bytes() const {
  if (packed_.up.data == nullptr) return gate_and_up_.bytes() + down_.bytes();
  std::size_t sum = 0;
  for (const auto* matrix : {&packed_.gate, &packed_.up, &packed_.down})
    if (matrix->data != nullptr) sum += matrix->layout.bytes(matrix->storage);
  return sum;
}

void expert_weights::apply(const float* input, float* output, std::size_t n) const {
  if (packed_.up.data != nullptr) {
    const std::size_t width = packed_.down.layout.n_out;
    for (std::size_t start = 0; start < n; start += most_rows) {
      const std::size_t count = std::min(most_rows, n - start);
      std::byte* scratch = aligned_room(expert_scratch(packed_, count));
      if (current_team() != nullptr)
        run_shared(packed_, input + start * width, output + start * width, count, scratch);
      else
        kernels().expert(packed_, input + start * width, output + start * width, count, scratch);
    }
    return;
  }
  throw_where_failed(on_device_->apply(input, output, n),
                     fmt::format("a feed-forward of {} units", down_.n_in()));
}

std::size_t expert_bytes(std::size_t width, std::size_t inner, precision kept, bool gated) {
  const auto storage = form_of(kept, true).storage;
  return (gated ? 2 : 1) * packed_layout{inner, width}.bytes(storage) +
         packed_layout{width, inner}.bytes(storage);
}

}  // namespace ordermoe::model
