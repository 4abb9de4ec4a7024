#include "model/checkpoint/expert_shelf.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "config/files.hpp"
#include "config/folder_sync.hpp"
#include "config/json.hpp"
#include "config/sha256.hpp"
#include "model/checkpoint/checkpoint_writer.hpp"
#include "model/checkpoint/packed_tensors.hpp"
#include "model/checkpoint/quantised_rows.hpp"

namespace ordermoe::model {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t piece_bytes = std::size_t{1} << 20;
constexpr std::size_t most_index_bytes = std::size_t{64} << 20;
constexpr const char* whole_end = ".safetensors";
constexpr const char* coming_end = ".coming";

/// Null where the checkpoint has none of that name.
void add(const checkpoint& source, const std::string& name, std::vector<const tensor_view*>& into) {
  if (const auto* view = source.find(name)) into.push_back(view);
}

error no_such_expert(layer_id layer, expert_id expert, const model_config& config) {
  return {errc::out_of_range,
          fmt::format("found expert {} of layer {}, expected one of {} experts of {} layers",
                      expert.index(), layer.index(), config.n_experts, config.n_layers)};
}

bool is_of(const model_config& config, layer_id layer, expert_id expert) {
  return layer.index() < config.n_layers && expert.index() < config.n_experts;
}

/// The layer and expert that a name in the folder of those that came is of.
std::optional<std::pair<std::size_t, std::size_t>> parse_name(std::string_view name,
                                                              std::string_view end) {
  if (!name.ends_with(end)) return std::nullopt;
  name.remove_suffix(end.size());
  std::pair<std::size_t, std::size_t> which;
  const auto* last = name.data() + name.size();
  const auto layer = std::from_chars(name.data(), last, which.first);
  if (layer.ec != std::errc() || layer.ptr == last || *layer.ptr != '-') return std::nullopt;
  const auto expert = std::from_chars(layer.ptr + 1, last, which.second);
  if (expert.ec != std::errc() || expert.ptr != last) return std::nullopt;
  return which;
}

}  // namespace

// ------------------------------------------------------------------------------------ an expert's file

std::optional<expert_image> expert_image::of(std::shared_ptr<const checkpoint> source,
                                             const model_config& config, const model_tensors& all,
                                             layer_id layer, expert_id expert) {
  if (!is_of(config, layer, expert)) return std::nullopt;
  const auto& tensors = experts_at(config, all, layer)[expert.index()];
  expert_image made;
  std::size_t matrices = 0;
  for (const auto* matrix : {tensors.gate ? &*tensors.gate : nullptr, &tensors.up, &tensors.down}) {
    if (matrix == nullptr) continue;
    ++matrices;
    add(*source, matrix->name, made.tensors_);
    if (made.tensors_.size() < matrices) return std::nullopt;
  }
  for (const auto* view : std::vector(made.tensors_))
    add(*source, scale_name(view->name), made.tensors_);
  std::vector<tensor_entry> entries;
  for (const auto* view : made.tensors_) {
    entries.push_back({view->name, view->type, view->shape});
    made.bytes_ += view->bytes.size();
  }
  made.header_ = safetensors_header(
      entries, made.tensors_.front()->packed != 0 ? packed_format() : std::string("pt"));
  made.bytes_ += made.header_.size();
  made.source_ = std::move(source);
  return made;
}

result<std::string> expert_image::read(std::uint64_t offset, std::size_t n) const {
  std::string bytes;
  bytes.reserve(n);
  if (offset < header_.size()) bytes = header_.substr(offset, n);
  std::uint64_t begin = header_.size();
  for (const auto* view : tensors_) {
    const auto at = offset + bytes.size();
    const auto end = begin + view->bytes.size();
    if (bytes.size() < n && at >= begin && at < end) {
      const auto some = std::min<std::uint64_t>(n - bytes.size(), end - at);
      const auto held = bytes.size();
      bytes.resize(held + some);
      const auto into = std::as_writable_bytes(std::span(bytes)).subspan(held);
      if (view->mapped && !copy_stored(*view, at - begin, into))
        return error{errc::io, fmt::format("{}: tensor '{}' cannot be read: the file has become "
                                           "shorter, or the disk failed; bring it again",
                                           view->file.string(), view->name)};
      if (!view->mapped) std::memcpy(into.data(), view->bytes.data() + (at - begin), some);
    }
    begin = end;
  }
  return bytes;
}

result<expert_list> list_experts(const checkpoint& source, const model_config& config,
                                 std::string of, const work_watch& watch) {
  expert_list list;
  list.of = std::move(of);
  // The list does not outlive the call, nor does what is made of the checkpoint.
  const std::shared_ptr<const checkpoint> held(std::shared_ptr<void>(), &source);
  const auto all = tensors_by_use(config);
  for (std::size_t l = 0; l < config.n_layers; ++l) {
    auto& facts = list.experts.emplace_back();
    for (std::size_t e = 0; e < config.n_experts; ++e) {
      const auto image = expert_image::of(held, config, all, layer_id{l}, expert_id{e});
      if (!image)
        return error{errc::mismatch,
                     fmt::format("{}: expert {} of layer {} is not there, expected a whole model",
                                 source.place().string(), e, l)};
      watch.show(static_cast<double>(l * config.n_experts + e) /
                 static_cast<double>(config.n_layers * config.n_experts));
      sha256 digest;
      for (std::uint64_t at = 0; at < image->bytes(); at += piece_bytes) {
        if (watch.stopped())
          return error{errc::interrupted,
                       fmt::format("{}: interrupted while reading", source.place().string())};
        const auto bytes =
            image->read(at, std::min<std::uint64_t>(piece_bytes, image->bytes() - at));
        if (!bytes) return bytes.error();
        digest.update(*bytes);
      }
      facts.push_back({image->bytes(), digest.finish()});
    }
  }
  return list;
}

std::string expert_list_text(const expert_list& list) {
  nlohmann::ordered_json bytes = nlohmann::json::array(), digests = nlohmann::json::array();
  for (const auto& layer : list.experts) {
    auto& sizes = bytes.emplace_back(nlohmann::json::array());
    auto& texts = digests.emplace_back(nlohmann::json::array());
    for (const auto& each : layer) {
      sizes.push_back(each.bytes);
      texts.push_back(each.sha256);
    }
  }
  return nlohmann::ordered_json{{"format", "ordermoe-experts"},
                                {"version", 1},
                                {"of", list.of},
                                {"bytes", std::move(bytes)},
                                {"sha256", std::move(digests)}}
             .dump() +
         "\n";
}

result<std::optional<expert_list>> read_expert_list(const fs::path& folder,
                                                    const model_config& config) {
  const auto path = folder / expert_list_name;
  std::error_code status;
  if (!fs::exists(path, status)) return std::optional<expert_list>();
  auto document = read_json(path, most_index_bytes);
  if (!document) return document.error();
  (*document)->set_remedy("write the part again with `ordermoe model shard`");
  const auto root = (*document)->root();
  root.only({"format", "version", "of", "bytes", "sha256"});
  root.at("format").one_of({"ordermoe-experts"});
  root.at("version").unsigned_integer(1, 1);
  expert_list list;
  list.of = root.at("of").string();
  const auto bytes = root.at("bytes").items(config.n_layers);
  const auto digests = root.at("sha256").items(config.n_layers);
  for (std::size_t l = 0; l < std::min(bytes.size(), digests.size()); ++l) {
    const auto sizes = bytes[l].items(config.n_experts);
    const auto texts = digests[l].items(config.n_experts);
    auto& facts = list.experts.emplace_back();
    for (std::size_t e = 0; e < std::min(sizes.size(), texts.size()); ++e) {
      facts.push_back({sizes[e].unsigned_integer(1), texts[e].string()});
      const auto& digest = facts.back().sha256;
      if (digest.size() != 64 || digest.find_first_not_of("0123456789abcdef") != std::string::npos)
        texts[e].refuse(digest, "64 hexadecimal digits in lower case", errc::malformed);
    }
  }
  auto read = (*document)->finish(std::move(list));
  if (!read) return read.error();
  return std::optional(std::move(*read));
}

// ------------------------------------------------------------------------------------- one that comes

coming_expert::~coming_expert() {
  if (file_ >= 0) ::close(file_);
}

error coming_expert::problem(const char* step) const {
  return {errc::io, fmt::format("{}: {} failed: {}; make room, or mend the disk", path_.string(),
                                step, std::strerror(errno))};
}

result<void> coming_expert::each_piece(
    const std::function<result<void>(std::string_view)>& use) const {
  std::string piece(piece_bytes, '\0');
  for (std::uint64_t at = 0; at < there_;) {
    const auto n = ::pread(file_, piece.data(), std::min<std::uint64_t>(piece.size(), there_ - at),
                           static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return problem("reading");
    if (auto used = use({piece.data(), static_cast<std::size_t>(n)}); !used) return used;
    at += static_cast<std::uint64_t>(n);
  }
  return {};
}

result<void> coming_expert::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto n = ::pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(there_));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return problem("writing");
    bytes.remove_prefix(static_cast<std::size_t>(n));
    there_ += static_cast<std::uint64_t>(n);
  }
  return {};
}

result<void> coming_expert::begin_anew() {
  if (::ftruncate(file_, 0) != 0) return problem("emptying");
  there_ = 0;
  return {};
}

// ------------------------------------------------------------------------------------------- the shelf

result<std::shared_ptr<expert_shelf>> expert_shelf::open(const fs::path& folder, fs::path beside) {
  std::shared_ptr<expert_shelf> made(new expert_shelf());
  made->folder_ = folder;
  made->beside_ = std::move(beside);
  auto config = read_model_config(folder);
  if (!config) return config.error();
  made->config_ = std::move(*config);
  made->tensors_ = tensors_by_use(made->config_);
  auto source = checkpoint::open_folder(folder);
  if (!source) return source.error();
  made->source_ = std::move(*source);
  auto part = read_part(folder);
  if (!part) return part.error();
  made->part_ = std::move(*part);
  if (!made->part_) return made;
  auto list = read_expert_list(folder, made->config_);
  if (!list) return list.error();
  made->list_ = std::move(*list);
  if (made->list_ && made->list_->of != made->part_->of)
    return error{errc::mismatch,
                 fmt::format("{}: is of a model with digest {}, {} beside it of one with {}; write "
                             "the part again with `ordermoe model shard`",
                             (folder / expert_list_name).string(), made->list_->of.substr(0, 12),
                             part_name, made->part_->of.substr(0, 12))};
  made->look_beside();
  return made;
}

/// What belongs to another model, by its size or its name, is as if it were not there.
void expert_shelf::look_beside() {
  std::error_code failed;
  for (fs::directory_iterator at(beside_, failed), end; !failed && at != end;
       at.increment(failed)) {
    const auto which = parse_name(at->path().filename().string(), whole_end);
    if (!which || !list_ || which->first >= config_.n_layers || which->second >= config_.n_experts)
      continue;
    std::error_code unknown;
    if (at->file_size(unknown) == list_->experts[which->first][which->second].bytes && !unknown)
      came_.insert(*which);
  }
}

fs::path expert_shelf::path_of(const key& which, const char* end) const {
  return beside_ / fmt::format("{}-{}{}", which.first, which.second, end);
}

bool expert_shelf::is_in_model(layer_id layer, expert_id expert) const {
  return is_of(config_, layer, expert) && (!part_ || part_->has(layer, expert));
}

bool expert_shelf::has(layer_id layer, expert_id expert) const {
  if (is_in_model(layer, expert)) return true;
  const std::lock_guard lock(mutex_);
  return came_.contains({layer.index(), expert.index()});
}

result<expert_image> expert_shelf::find(layer_id layer, expert_id expert) const {
  auto source = source_;
  if (!is_in_model(layer, expert)) {
    auto came = open_came(layer, expert);
    if (!came) return came.error();
    source = std::move(*came);
  }
  auto image = expert_image::of(std::move(source), config_, tensors_, layer, expert);
  if (image) return std::move(*image);
  return error{errc::not_found,
               fmt::format("expert {} of layer {} is not here", expert.index(), layer.index())};
}

result<std::shared_ptr<const checkpoint>> expert_shelf::open_came(layer_id layer,
                                                                  expert_id expert) const {
  const key which{layer.index(), expert.index()};
  const auto path = path_of(which, whole_end);
  bool compared = false;
  {
    const std::lock_guard lock(mutex_);
    if (!came_.contains(which))
      return error{errc::not_found,
                   fmt::format("expert {} of layer {} is not here", which.second, which.first)};
    compared = compared_.contains(which);
  }
  if (compared) return checkpoint::open_file(path);
  const auto& expected = list_->experts[which.first][which.second].sha256;
  const auto found = hash_file(path);
  const bool is_whole = found && *found == expected;
  {
    const std::lock_guard lock(mutex_);
    if (is_whole)
      compared_.insert(which);
    else
      came_.erase(which);  // Whoever wants it fetches it again.
  }
  if (is_whole) return checkpoint::open_file(path);
  if (!found) return found.error();
  return error{errc::mismatch,
               fmt::format("{}: found the SHA-256 {}, expected {}; the next plan that a running "
                           "node goes over to fetches the expert again, and a node that does not "
                           "start needs its part again from `ordermoe model shard`",
                           path.string(), found->substr(0, 12), expected.substr(0, 12))};
}

result<expert_facts> expert_shelf::facts(layer_id layer, expert_id expert) const {
  if (!is_of(config_, layer, expert)) return no_such_expert(layer, expert, config_);
  if (list_) return list_->experts[layer.index()][expert.index()];
  return error{errc::unsupported,
               fmt::format("{}: has no {}, by which what other hosts send is checked; write the "
                           "part again with `ordermoe model shard`",
                           folder_.string(), expert_list_name)};
}

result<std::unique_ptr<coming_expert>> expert_shelf::receive(layer_id layer,
                                                             expert_id expert) const {
  auto expected = facts(layer, expert);
  if (!expected) return expected.error();
  std::error_code failed;
  fs::create_directories(beside_, failed);
  auto path = path_of({layer.index(), expert.index()}, coming_end);
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  struct stat found {};
  if (file < 0 || ::fstat(file, &found) != 0) {
    const auto why = std::string(std::strerror(errno));
    if (file >= 0) ::close(file);
    return error{errc::io, fmt::format("{}: cannot be opened: {}; check the folder's permissions",
                                       path.string(), why)};
  }
  std::unique_ptr<coming_expert> made(new coming_expert(std::move(path), std::move(*expected), file,
                                                        static_cast<std::uint64_t>(found.st_size)));
  // Of another model, or of a disk that failed.
  if (made->there_ >= made->facts_.bytes)
    if (auto anew = made->begin_anew(); !anew) return anew.error();
  return made;
}

result<void> expert_shelf::keep(layer_id layer, expert_id expert,
                                std::unique_ptr<coming_expert> come) {
  const key which{layer.index(), expert.index()};
  if (::fsync(come->file_) != 0) return come->problem("bringing it to the disk");
  if (::rename(come->path_.c_str(), path_of(which, whole_end).c_str()) != 0)
    return come->problem("renaming");
  sync_folder(beside_);
  const std::lock_guard lock(mutex_);
  came_.insert(which);
  return {};
}

void expert_shelf::keep_only(const std::function<bool(layer_id, expert_id)>& wanted) {
  std::error_code failed;
  for (fs::directory_iterator at(beside_, failed), end; !failed && at != end;
       at.increment(failed)) {
    const auto name = at->path().filename().string();
    auto which = parse_name(name, whole_end);
    if (!which) which = parse_name(name, coming_end);
    if (!which) continue;
    const bool is_ours = which->first < config_.n_layers && which->second < config_.n_experts;
    if (is_ours && wanted(layer_id{which->first}, expert_id{which->second})) continue;
    std::error_code ignored;
    fs::remove(at->path(), ignored);
    const std::lock_guard lock(mutex_);
    came_.erase(*which);
    compared_.erase(*which);
  }
}

}  // namespace ordermoe::model
