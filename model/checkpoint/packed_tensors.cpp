#include "model/checkpoint/packed_tensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "model/architecture/tensor_plan.hpp"
#include "model/checkpoint/quantised_rows.hpp"

namespace ordermoe::model {

namespace {

constexpr const char* convert_again = "convert the model that it was made from again";

std::optional<kept_form> form_of(tensor_type type) {
  for (const kept_form& form : {kept_form{weight_storage::fp32}, kept_form{weight_storage::bf16},
                                kept_form{weight_storage::bf16, row_precision::bf16},
                                kept_form{weight_storage::int8}, kept_form{weight_storage::int4}})
    if (packed_type(form) == type) return form;
  return std::nullopt;
}

packed_tensor::role role_of(const tensor_plan& plan, std::string_view embedding) {
  using role = packed_tensor::role;
  const std::string_view name = plan.name;
  if (name == embedding) return role::rows;
  if (plan.shape.size() != 2 || name.ends_with(".relative_attention_bias.weight"))
    return role::plain;
  if (is_expert_matrix(name)) return role::expert;
  for (const char* end :
       {".gate.weight", ".router.classifier.weight", ".shared_expert_gate.weight"})
    if (name.ends_with(end)) return role::unrouted;
  return role::dense;
}

/// Of a gate the name of what it is multiplied with, and the other way round.
std::string counterpart(const std::string& name) {
  constexpr std::pair<std::string_view, std::string_view> pairs[] = {
      {".w1.weight", ".w3.weight"}, {".gate_proj.weight", ".up_proj.weight"}};
  for (const auto& [gate, up] : pairs) {
    if (name.ends_with(gate)) return name.substr(0, name.size() - gate.size()) + std::string(up);
    if (name.ends_with(up)) return name.substr(0, name.size() - up.size()) + std::string(gate);
  }
  return {};
}

/// Error where a tensor of a packed checkpoint is not of this version.
result<void> check_version(const tensor_view& view) {
  if (view.packed == packed_version) return {};
  if (view.packed == 0)
    return error{
        errc::mismatch,
        fmt::format("{}: tensor '{}' is stored row by row, expected as the kernels take it "
                    "(format {}), as in other files of the folder; {}",
                    view.file.string(), view.name, packed_format(), convert_again)};
  return error{
      errc::unsupported,
      fmt::format("{}: tensor '{}' is packed in layout {}, this version reads layout {}; {}",
                  view.file.string(), view.name, view.packed, packed_version, convert_again)};
}

result<void> check_plain(const tensor_view& view, const packed_tensor& expected) {
  if (auto known = check_version(view); !known) return known;
  if (view.shape != expected.shape)
    return error{errc::mismatch,
                 fmt::format("{}: tensor '{}' has shape [{}], expected [{}]; {}",
                             view.file.string(), view.name, fmt::join(view.shape, ", "),
                             fmt::join(expected.shape, ", "), convert_again)};
  if (bytes_per_number(view.type) == 1 || view.type == tensor_type::i16 ||
      (expected.kind == packed_tensor::role::rows && view.type == tensor_type::f16))
    return error{errc::unsupported,
                 fmt::format("{}: tensor '{}' is of type {}, expected F32 or BF16; {}",
                             view.file.string(), view.name, to_string(view.type), convert_again)};
  return {};
}

}  // namespace

std::string packed_format() {
  return fmt::format("{}{}", packed_format_prefix, packed_version);
}

std::string packed_name(std::string_view name) {
  struct joint {
    std::string_view place;
    std::vector<std::string_view> parts;
    std::string_view whole;
  };
  static const joint joints[] = {
      {".self_attn.", {"q_proj.weight", "k_proj.weight", "v_proj.weight"}, "qkv_proj.weight"},
      {".SelfAttention.", {"q.weight", "k.weight", "v.weight"}, "qkv.weight"},
      {".EncDecAttention.", {"k.weight", "v.weight"}, "kv.weight"}};
  for (const auto& [place, parts, whole] : joints)
    for (const auto part : parts)
      if (name.ends_with(part) && name.substr(0, name.size() - part.size()).ends_with(place))
        return std::string(name.substr(0, name.size() - part.size())) + std::string(whole);
  return std::string(name);
}

std::vector<packed_tensor> packed_tensors(const model_config& config) {
  const std::string embedding = embedding_name(config);
  std::vector<packed_tensor> all;
  std::map<std::string, std::size_t> place;
  for (const auto& plan : tensors_of(config)) {
    const auto name = packed_name(plan.name);
    const auto [at, is_new] = place.emplace(name, all.size());
    if (is_new) {
      all.push_back({name, role_of(plan, embedding), {plan.name}, plan.shape, counterpart(name)});
      continue;
    }
    all[at->second].parts.push_back(plan.name);
    all[at->second].shape[0] += plan.shape[0];
  }
  if (config.tied_embeddings)
    all.push_back({"lm_head.weight",
                   packed_tensor::role::dense,
                   {embedding},
                   {config.vocab_size, config.hidden_size},
                   {}});
  std::ranges::stable_partition(all, &packed_tensor::packed);
  return all;
}

tensor_type packed_type(const kept_form& kept) {
  switch (kept.storage) {
    case weight_storage::fp32:
      return tensor_type::f32;
    case weight_storage::bf16:
      return kept.rows == row_precision::bf16 ? tensor_type::i16 : tensor_type::bf16;
    case weight_storage::int8:
      return tensor_type::i8;
    case weight_storage::int4:
      return tensor_type::u8;
  }
  return tensor_type::f32;
}

std::size_t packed_size(const packed_layout& layout, weight_storage storage) {
  const std::size_t pages = (layout.bytes(storage) + packed_alignment - 1) / packed_alignment;
  return pages * packed_alignment / bytes_per_number(packed_type({storage}));
}

result<packed_matrix> packed_view(const tensor_view& view, std::size_t n_out, std::size_t n_in) {
  if (auto known = check_version(view); !known) return known.error();
  const auto kept = form_of(view.type);
  if (!kept)
    return error{errc::unsupported,
                 fmt::format("{}: tensor '{}' is of type {}, expected F32, BF16, I16, I8 or U8; {}",
                             view.file.string(), view.name, to_string(view.type), convert_again)};
  const packed_layout layout{n_out, n_in};
  const std::size_t size = packed_size(layout, kept->storage);
  if (view.shape != std::vector{size})
    return error{
        errc::mismatch,
        fmt::format("{}: tensor '{}' has shape [{}], expected [{}], [{}, {}] packed in {}; "
                    "{}",
                    view.file.string(), view.name, fmt::join(view.shape, ", "), size, n_out, n_in,
                    to_string(kept->storage), convert_again)};
  if (view.offset % packed_alignment != 0)
    return error{
        errc::mismatch,
        fmt::format("{}: tensor '{}' begins at byte {} of the file, expected a multiple of "
                    "{}; {}",
                    view.file.string(), view.name, view.offset, packed_alignment, convert_again)};
  return packed_matrix{layout, kept->storage, view.bytes.data(), kept->rows};
}

bool is_packed(const tensor_map& tensors) {
  return std::ranges::any_of(tensors, [](const auto& each) { return each.second.packed != 0; });
}

std::vector<error> compare_packed(const model_config& config, const std::string& place,
                                  const tensor_map& tensors,
                                  const std::set<std::string, std::less<>>& may_lack) {
  using role = packed_tensor::role;
  constexpr const char* same = "config.json and weights must be of the same model";
  std::vector<error> problems;
  std::set<std::string, std::less<>> expected;
  for (const auto& each : packed_tensors(config)) {
    expected.insert(each.name);
    const auto found = tensors.find(each.name);
    if (found == tensors.end() && may_lack.contains(each.name)) continue;
    if (found == tensors.end()) {
      problems.push_back(
          {errc::mismatch,
           fmt::format("{}: tensor '{}' is absent, expected [{}]{}; {}", place, each.name,
                       fmt::join(each.shape, ", "), each.packed() ? " packed" : "", same)});
      continue;
    }
    const tensor_view& view = found->second;
    if (!each.packed()) {
      if (auto fits = check_plain(view, each); !fits) problems.push_back(fits.error());
      continue;
    }
    const auto matrix = packed_view(view, each.shape[0], each.shape[1]);
    if (!matrix) {
      problems.push_back(matrix.error());
      continue;
    }
    if (each.kind == role::unrouted && (quantised(matrix->storage) || rounds_rows(*matrix)))
      problems.push_back(
          {errc::unsupported,
           fmt::format("{}: tensor '{}' is of type {}, expected F32 or BF16; {}",
                       view.file.string(), each.name, to_string(view.type), convert_again)});
    const auto other = tensors.find(each.like);
    if (other != tensors.end() && other->second.type != view.type)
      problems.push_back(
          {errc::mismatch,
           fmt::format("{}: tensor '{}' is of type {}, '{}' of type {}, expected the "
                       "same; {}",
                       view.file.string(), each.name, to_string(view.type), each.like,
                       to_string(other->second.type), convert_again)});
  }
  for (const auto& [name, view] : tensors)
    if (!expected.contains(name))
      problems.push_back(
          {errc::mismatch,
           fmt::format("{}: tensor '{}' has no place in the packed model that config.json "
                       "describes; {}",
                       view.file.string(), name, same)});
  return problems;
}

bool all_finite(const packed_matrix& matrix, std::size_t first, std::size_t end) {
  constexpr std::size_t block = packed_layout::block, half_group = packed_layout::group / 2;
  const packed_layout& layout = matrix.layout;
  const std::size_t padded = layout.padded_out(), n_groups = layout.n_groups();
  ORDERMOE_CHECK(first % block == 0, "outputs from the middle of a block on");
  end = std::min(end, padded);
  if (first >= end) return true;
  const std::size_t output_bytes = layout.bytes(matrix.storage) / padded;
  const auto* bytes = static_cast<const std::byte*>(matrix.data) + first * output_bytes;
  if (!quantised(matrix.storage))
    return all_finite(packed_type({matrix.storage}), {bytes, (end - first) * output_bytes});
  bool finite = true;
  for (std::size_t start = first; start < end; start += block) {
    const std::size_t width = std::min(block, padded - start);
    if (matrix.storage == weight_storage::int8) {
      bytes += n_groups * packed_layout::group * width;
      finite = all_finite(tensor_type::f32, {bytes, width * 4}) && finite;
      bytes += width * 4;
      continue;
    }
    for (std::size_t g = 0; g < n_groups; ++g) {
      bytes += half_group * width;
      finite = all_finite(tensor_type::bf16, {bytes, width * 2}) && finite;
      bytes += width * 2;
    }
  }
  return finite;
}

}  // namespace ordermoe::model
