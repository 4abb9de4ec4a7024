#include "model/convert.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "config/files.hpp"
#include "model/matrix_source.hpp"
#include "model/model_config.hpp"
#include "model/quantised_rows.hpp"
#include "model/safetensors.hpp"
#include "model/verify.hpp"

namespace ordermoe::model {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t chunk_bytes = std::size_t{1} << 20;
constexpr std::size_t most_side_file_bytes = std::size_t{256} << 20;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class converter {
 public:
  converter(const fs::path& target, const convert_options& options)
      : target_(target), options_(options) {}

  result<written_model> run(const fs::path& folder) {
    const auto config = read_model_config(folder);
    if (!config) return config.error();
    const auto source = checkpoint::open_folder(folder);
    if (!source) return source.error();
    const auto problems =
        compare_tensors(*config, (*source)->place().string(), (*source)->tensors());
    if (!problems.empty()) return problems.front();
    std::vector<const tensor_view*> views;
    for (const auto& [name, view] : (*source)->tensors()) {
      if (view.type == tensor_type::i8 || view.type == tensor_type::u8)
        return error{
            errc::unsupported,
            fmt::format("{}: tensor '{}' is quantised already ({}); convert the model that "
                        "it was made from",
                        view.file.string(), name, to_string(view.type))};
      views.push_back(&view);
      all_bytes_ += static_cast<double>(view.bytes.size());
    }
    std::ranges::sort(views, [](const tensor_view* a, const tensor_view* b) {
      return a->file != b->file ? a->file < b->file : a->bytes.data() < b->bytes.data();
    });
    std::vector<tensor_entry> entries;
    for (const auto* view : views) {
      if (!is_quantised(*view)) {
        entries.push_back({view->name, type_for(*view), view->shape});
        continue;
      }
      const auto shape = stored_shape(options_.kept, view->shape[0], view->shape[1]);
      entries.push_back({view->name, shape.weight_type, shape.weight});
      entries.push_back({scale_name(view->name), shape.scale_type, shape.scale});
    }
    // Readers of other projects refuse a format that they do not know.
    auto begun = checkpoint_writer::begin(
        target_, std::move(entries), options_.shard_bytes,
        quantised(options_.kept) ? fmt::format("ordermoe-{}", to_string(options_.kept)) : "pt");
    if (!begun) return begun.error();
    for (const auto* view : views) {
      const auto written =
          is_quantised(*view) ? write_quantised(**begun, *view) : write_plain(**begun, *view);
      if (!written) return written.error();
    }
    if (auto copied = copy_side_files(**begun, folder); !copied) return copied.error();
    return (*begun)->finish();
  }

 private:
  /// The matrices of experts, shared ones included, but not a shared expert's gate.
  bool is_quantised(const tensor_view& view) const {
    return quantised(options_.kept) && is_expert_matrix(view.name) && view.shape.size() == 2;
  }

  tensor_type type_for(const tensor_view& view) const {
    if (options_.kept == weight_storage::fp32) return tensor_type::f32;
    if (options_.kept == weight_storage::bf16) return tensor_type::bf16;
    return view.type;
  }

  result<void> advance(const tensor_view& view, std::size_t bytes, bool finite) {
    if (!finite)
      return error{
          errc::out_of_range,
          fmt::format("{}: tensor '{}' has a number that is not finite; fetch or train the "
                      "weights again",
                      view.file.string(), view.name)};
    done_bytes_ += static_cast<double>(bytes);
    options_.watch.show(done_bytes_ / all_bytes_);
    if (options_.watch.stopped())
      return error{errc::interrupted,
                   fmt::format("{}: interrupted; nothing is kept", target_.string())};
    return {};
  }

  result<void> write_plain(checkpoint_writer& writer, const tensor_view& view) {
    const auto type = type_for(view);
    const std::size_t width = bytes_per_number(view.type);
    std::vector<float> numbers;
    for (std::size_t first = 0; first < view.bytes.size(); first += chunk_bytes) {
      const std::size_t n = std::min(chunk_bytes, view.bytes.size() - first);
      const auto stored = view.bytes.subspan(first, n);
      const bool finite = all_finite(view.type, stored);
      if (type == view.type) {
        if (auto written = writer.append(text_of(stored)); !written) return written;
      } else {
        numbers.resize(n / width);
        widen(view.type, stored, numbers);
        const std::string bytes = to_bytes(numbers, type);
        if (!all_finite(type, std::as_bytes(std::span(bytes))) && finite)
          return error{errc::out_of_range,
                       fmt::format("{}: tensor '{}' has a number beyond what {} can hold; choose "
                                   "fp32",
                                   view.file.string(), view.name, to_string(type))};
        if (auto written = writer.append(bytes); !written) return written;
      }
      finish_reading(view, first, n);
      if (auto going = advance(view, n, finite); !going) return going;
    }
    return {};
  }

  result<void> write_quantised(checkpoint_writer& writer, const tensor_view& view) {
    matrix_source source(view);
    std::string scales;
    std::vector<float> numbers;
    std::vector<std::byte> packed;
    for (std::size_t first = 0; first < source.n_out(); first += packed_layout::block) {
      const packed_layout part{std::min(packed_layout::block, source.n_out() - first),
                               source.n_in()};
      source.begin_rows(first, part.n_out);
      numbers.resize(part.n_out * part.n_in);
      source.read(first, numbers);
      source.end_rows(first, part.n_out);
      const bool finite = source.not_finite() == nullptr;
      packed.resize(part.bytes(options_.kept));
      if (finite) pack(part, numbers, options_.kept, packed);
      const auto bytes = numbers.size() * bytes_per_number(view.type);
      if (auto going = advance(view, bytes, finite); !going) return going;
      const auto rows = from_packed(part, options_.kept, packed);
      if (auto written = writer.append(rows.weight); !written) return written;
      scales += rows.scale;
    }
    return writer.append(scales);
  }

  result<void> copy_side_files(checkpoint_writer& writer, const fs::path& folder) {
    std::error_code status;
    std::map<std::string, fs::path> files;
    for (fs::directory_iterator at(folder, status), end; !status && at != end;
         at.increment(status)) {
      const auto name = at->path().filename().string();
      std::error_code ignored;
      if (at->is_regular_file(ignored) && belongs_to_model(name) &&
          !name.ends_with(".safetensors") && !name.ends_with(".safetensors.index.json"))
        files[name] = at->path();
    }
    if (status)
      return error{errc::io, fmt::format("{}: cannot be listed: {}; check its permissions",
                                         folder.string(), status.message())};
    for (const auto& [name, path] : files) {
      auto bytes = read_file(path, most_side_file_bytes);
      if (!bytes) return bytes.error();
      if (name == "config.json") bytes = with_type(*bytes);
      if (auto written = writer.add_file(name, *bytes); !written) return written;
    }
    return {};
  }

  /// config.json with the type of its numbers. It was read before.
  std::string with_type(const std::string& text) const {
    if (quantised(options_.kept)) return text;
    auto content = nlohmann::ordered_json::parse(text);
    for (const char* field : {"torch_dtype", "dtype"})
      if (content.contains(field))
        content[field] = options_.kept == weight_storage::fp32 ? "float32" : "bfloat16";
    return content.dump(2) + "\n";
  }

  const fs::path& target_;
  const convert_options& options_;
  double all_bytes_ = 1, done_bytes_ = 0;
};

}  // namespace

result<written_model> convert_model(const fs::path& folder, const fs::path& target,
                                    const convert_options& options) {
  return converter(target, options).run(folder);
}

}  // namespace ordermoe::model
