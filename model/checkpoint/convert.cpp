#include "model/checkpoint/convert.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "config/files.hpp"
#include "model/architecture/model_config.hpp"
#include "model/checkpoint/expert_shelf.hpp"
#include "model/checkpoint/matrix_source.hpp"
#include "model/checkpoint/packed_tensors.hpp"
#include "model/checkpoint/part.hpp"
#include "model/checkpoint/quantised_rows.hpp"
#include "model/checkpoint/safetensors.hpp"
#include "model/checkpoint/verify.hpp"

namespace ordermoe::model {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t chunk_bytes = std::size_t{1} << 20;
constexpr std::size_t most_side_file_bytes = std::size_t{256} << 20;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// What both ways of writing a model again have in common.
class rewriter {
 public:
  rewriter(const fs::path& target, const work_watch& watch) : target_(target), watch_(watch) {}

 protected:
  /// Opens a model that is whole and not packed.
  result<void> open(const fs::path& folder) {
    if (auto opened = open_any(folder); !opened) return opened;
    for (const auto& [name, view] : source_->tensors()) {
      if (view.packed != 0)
        return error{errc::unsupported,
                     fmt::format("{}: tensor '{}' is packed already; convert the model that it was "
                                 "made from",
                                 view.file.string(), name)};
      all_bytes_ += static_cast<double>(view.bytes.size());
    }
    return {};
  }

  /// Opens a model that is whole.
  result<void> open_any(const fs::path& folder) {
    auto config = read_model_config(folder);
    if (!config) return config.error();
    config_ = std::move(*config);
    auto source = checkpoint::open_folder(folder);
    if (!source) return source.error();
    source_ = std::move(*source);
    const auto part = read_part(folder);
    if (!part) return part.error();
    if (*part)
      return error{
          errc::unsupported,
          fmt::format("{}: is a part of a model, that of server {}; name the folder of the "
                      "whole model",
                      folder.string(), (*part)->server)};
    const auto problems = compare_tensors(config_, source_->place().string(), source_->tensors());
    if (!problems.empty()) return problems.front();
    return {};
  }

  void expect_bytes(const std::vector<const tensor_view*>& views) {
    for (const auto* view : views) all_bytes_ += static_cast<double>(view->bytes.size());
  }

  void count_half_as_done() {
    done_bytes_ = all_bytes_;
    all_bytes_ *= 2;
  }

  result<void> advance(const tensor_view& view, std::size_t bytes, bool finite) {
    if (!finite)
      return error{
          errc::out_of_range,
          fmt::format("{}: tensor '{}' has a number that is not finite; fetch or train the "
                      "weights again",
                      view.file.string(), view.name)};
    done_bytes_ += static_cast<double>(bytes);
    watch_.show(std::min(1.0, done_bytes_ / all_bytes_));
    if (watch_.stopped())
      return error{errc::interrupted,
                   fmt::format("{}: interrupted; nothing is kept", target_.string())};
    return {};
  }

  /// A tensor in its own type or in another one that is no integer.
  result<void> write_plain(checkpoint_writer& writer, const tensor_view& view, tensor_type type) {
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

  /// Everything else that belongs to the model; `edit` changes the text of config.json.
  template <class Edit>
  result<void> copy_side_files(checkpoint_writer& writer, const fs::path& folder, Edit edit) {
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
      if (name == "config.json") bytes = edit(*bytes);
      if (auto written = writer.add_file(name, *bytes); !written) return written;
    }
    return {};
  }

  const fs::path& target_;
  const work_watch& watch_;
  model_config config_;
  std::shared_ptr<const checkpoint> source_;

 private:
  double all_bytes_ = 1, done_bytes_ = 0;
};

class converter : rewriter {
 public:
  converter(const fs::path& target, const convert_options& options)
      : rewriter(target, options.watch), options_(options) {}

  result<written_model> run(const fs::path& folder) {
    if (auto opened = open(folder); !opened) return opened.error();
    std::vector<const tensor_view*> views;
    for (const auto& [name, view] : source_->tensors()) {
      if (view.type == tensor_type::i8 || view.type == tensor_type::u8)
        return error{
            errc::unsupported,
            fmt::format("{}: tensor '{}' is quantised already ({}); convert the model that "
                        "it was made from",
                        view.file.string(), name, to_string(view.type))};
      views.push_back(&view);
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
      const auto written = is_quantised(*view) ? write_quantised(**begun, *view)
                                               : write_plain(**begun, *view, type_for(*view));
      if (!written) return written.error();
    }
    auto copied =
        copy_side_files(**begun, folder, [&](const std::string& text) { return with_type(text); });
    if (!copied) return copied.error();
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

  /// config.json with the type of its numbers. It was read before.
  std::string with_type(const std::string& text) const {
    if (quantised(options_.kept)) return text;
    auto content = nlohmann::ordered_json::parse(text);
    for (const char* field : {"torch_dtype", "dtype"})
      if (content.contains(field))
        content[field] = options_.kept == weight_storage::fp32 ? "float32" : "bfloat16";
    return content.dump(2) + "\n";
  }

  const convert_options& options_;
};

/// Some of the tensors, as they are.
class parter : rewriter {
 public:
  parter(const fs::path& target, const work_watch& watch) : rewriter(target, watch) {}

  result<written_model> run(const fs::path& folder, const std::string& server,
                            const std::function<bool(layer_id, expert_id)>& hosts) {
    if (auto opened = open_any(folder); !opened) return opened.error();
    if (auto free = check_free(target_); !free) return free.error();
    auto part = part_of(folder, server, hosts);
    if (!part) return part.error();
    // Half of the way is to read the whole, as far as anybody is shown.
    const work_watch reading{[this](double share) { watch_.show(share / 2); }, watch_.should_stop};
    const auto list = list_experts(*source_, config_, part->of, reading);
    if (!list) return list.error();
    const auto absent = left_out(config_, *part);
    tensor_map kept;
    for (const auto& [name, view] : source_->tensors())
      if (!absent.contains(name)) kept.emplace(name, view);
    const auto views = in_order(kept);
    std::vector<tensor_entry> entries;
    for (const auto* view : views) entries.push_back({view->name, view->type, view->shape});
    const auto config = read_file(folder / "config.json", most_side_file_bytes);
    if (!config) return config.error();
    part->digest = digest_of(*config, kept);
    auto begun = checkpoint_writer::begin(target_, std::move(entries), default_shard_bytes,
                                          is_packed(kept) ? packed_format() : "pt");
    if (!begun) return begun.error();
    expect_bytes(views);
    count_half_as_done();
    for (const auto* view : views)
      if (auto written = write_plain(**begun, *view, view->type); !written) return written.error();
    auto copied = copy_side_files(**begun, folder, [](const std::string& text) { return text; });
    if (!copied) return copied.error();
    if (auto written = (*begun)->add_file(part_name, text_of(*part)); !written)
      return written.error();
    if (auto written = (*begun)->add_file(expert_list_name, expert_list_text(*list)); !written)
      return written.error();
    return (*begun)->finish();
  }

 private:
  result<model_part> part_of(const fs::path& folder, const std::string& server,
                             const std::function<bool(layer_id, expert_id)>& hosts) const {
    auto digest = model_digest(folder);
    if (!digest) return digest.error();
    model_part part;
    part.of = std::move(*digest);
    part.server = server;
    part.experts.resize(config_.n_layers);
    for (std::size_t l = 0; l < config_.n_layers; ++l)
      for (std::uint32_t e = 0; e < config_.n_experts; ++e)
        if (hosts(layer_id{l}, expert_id{e})) part.experts[l].push_back(e);
    return part;
  }

  /// As they are in the files, those first that must begin at pages: these fill whole pages.
  static std::vector<const tensor_view*> in_order(const tensor_map& tensors) {
    std::vector<const tensor_view*> views;
    for (const auto& [name, view] : tensors) views.push_back(&view);
    const auto in_pages = [](const tensor_view& view) {
      return view.packed != 0 && view.offset % packed_alignment == 0 &&
             view.bytes.size() % packed_alignment == 0;
    };
    std::ranges::sort(views, [&](const tensor_view* a, const tensor_view* b) {
      if (in_pages(*a) != in_pages(*b)) return in_pages(*a);
      return a->file != b->file ? a->file < b->file : a->bytes.data() < b->bytes.data();
    });
    return views;
  }

  static std::string text_of(const model_part& part) {
    const nlohmann::ordered_json content{
        {"format", "ordermoe-part"}, {"version", 1},          {"of", part.of},
        {"digest", part.digest},     {"server", part.server}, {"experts", part.experts}};
    return content.dump() + "\n";
  }
};

class packer : rewriter {
 public:
  packer(const fs::path& target, const pack_options& options)
      : rewriter(target, options.watch), options_(options) {}

  result<written_model> run(const fs::path& folder) {
    if (auto opened = open(folder); !opened) return opened.error();
    const auto tensors = packed_tensors(config_);
    std::map<std::string_view, const packed_tensor*> by_name;
    for (const auto& each : tensors) by_name[each.name] = &each;
    std::vector<tensor_entry> entries;
    std::vector<kept_form> forms;
    for (const auto& each : tensors) {
      if (each.kind == packed_tensor::role::plain) {
        entries.push_back({each.name, source_->find(each.parts.front())->type, each.shape});
        forms.emplace_back();
        continue;
      }
      const auto source = source_of(each);
      if (each.kind == packed_tensor::role::rows) {
        entries.push_back(
            {each.name, source.fits_bf16() ? tensor_type::bf16 : tensor_type::f32, each.shape});
        forms.emplace_back();
        continue;
      }
      std::optional<matrix_source> like;
      if (!each.like.empty()) like = source_of(*by_name.at(each.like));
      const auto kept = form_for({&source, like ? &*like : nullptr}, precision_of(each.kind));
      forms.push_back(kept);
      entries.push_back({each.name,
                         packed_type(kept),
                         {packed_size({each.shape[0], each.shape[1]}, kept.storage)}});
    }
    auto begun = checkpoint_writer::begin(target_, entries, options_.shard_bytes, packed_format());
    if (!begun) return begun.error();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto written =
          tensors[i].packed()
              ? write_packed(**begun, tensors[i], forms[i].storage)
              : write_plain(**begun, *source_->find(tensors[i].parts.front()), entries[i].type);
      if (!written) return written.error();
    }
    auto copied = copy_side_files(**begun, folder, [](const std::string& text) { return text; });
    if (!copied) return copied.error();
    return (*begun)->finish();
  }

 private:
  precision precision_of(packed_tensor::role kind) const {
    if (kind == packed_tensor::role::expert) return options_.experts;
    return kind == packed_tensor::role::dense ? options_.dense : precision::stored;
  }

  matrix_source source_of(const packed_tensor& tensor) const {
    matrix_source source;
    for (const auto& part : tensor.parts) {
      const auto& view = *source_->find(part);
      if (bytes_per_number(view.type) > 1) {
        source.append(matrix_source(view));
        continue;
      }
      const auto kept = view.type == tensor_type::i8 ? weight_storage::int8 : weight_storage::int4;
      source = {view, *source_->find(scale_name(part)), kept, tensor.shape[0], tensor.shape[1]};
    }
    return source;
  }

  result<void> write_packed(checkpoint_writer& writer, const packed_tensor& tensor,
                            weight_storage kept) {
    auto source = source_of(tensor);
    std::vector<std::byte> packed;
    std::size_t done = 0;
    for (std::size_t start = 0; start < source.n_out(); start += packed_layout::block) {
      const packed_layout part{std::min(packed_layout::block, source.n_out() - start),
                               source.n_in()};
      packed.resize(part.bytes(kept));
      pack_block(source, start, kept, packed, room_);
      const auto* bad = source.not_finite();
      const auto& view = bad != nullptr ? *bad : *source_->find(tensor.parts.front());
      const auto bytes = source.stored_bytes() * part.n_out / source.n_out();
      if (auto going = advance(view, bytes, bad == nullptr); !going) return going;
      if (!all_finite(packed_matrix{part, kept, packed.data()}, 0, part.padded_out()))
        return error{errc::out_of_range,
                     fmt::format("{}: tensor '{}' has a number beyond what {} can hold; choose "
                                 "stored",
                                 view.file.string(), view.name, to_string(kept))};
      if (auto written = writer.append(text_of(packed)); !written) return written;
      done += packed.size();
    }
    const packed_layout whole{source.n_out(), source.n_in()};
    const std::size_t room = packed_size(whole, kept) * bytes_per_number(packed_type({kept}));
    return writer.append(std::string(room - done, '\0'));
  }

  const pack_options& options_;
  packing_room room_;
};

}  // namespace

result<written_model> convert_model(const fs::path& folder, const fs::path& target,
                                    const convert_options& options) {
  return converter(target, options).run(folder);
}

result<written_model> write_part(const fs::path& folder, const fs::path& target,
                                 const std::string& server,
                                 const std::function<bool(layer_id, expert_id)>& hosts,
                                 const work_watch& watch) {
  return parter(target, watch).run(folder, server, hosts);
}

result<written_model> pack_model(const fs::path& folder, const fs::path& target,
                                 const pack_options& options) {
  return packer(target, options).run(folder);
}

}  // namespace ordermoe::model
