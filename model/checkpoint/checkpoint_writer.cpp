#include "model/checkpoint/checkpoint_writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "config/files.hpp"
#include "config/folder_sync.hpp"
#include "config/sha256.hpp"
#include "model/checkpoint/checksums.hpp"

namespace ordermoe::model {

namespace fs = std::filesystem;

namespace {

/// A new file that is written from front to back; its bytes are on the disk after finish(). It is
/// written in huge pages, so that the system keeps it in them and maps it so.
class growing_file {
 public:
  explicit growing_file(fs::path path)
      : path_(std::move(path)),
        file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) {
    if (file_ < 0) code_ = errno;
  }
  ~growing_file() {
    if (file_ >= 0) ::close(file_);
  }
  growing_file(const growing_file&) = delete;
  growing_file& operator=(const growing_file&) = delete;

  result<void> append(std::string_view bytes) {
    digest_.update(bytes);
    waiting_ += bytes;
    const std::size_t whole = waiting_.size() / huge_page * huge_page;
    if (whole == 0) return outcome("writing");
    auto written = write(std::string_view(waiting_).substr(0, whole));
    waiting_.erase(0, whole);
    return written;
  }

  /// Gives the digest of all bytes.
  result<std::string> finish() {
    if (auto written = write(waiting_); !written) return written.error();
    if (file_ >= 0 && code_ == 0 && ::fsync(file_) != 0) code_ = errno;
    if (auto flushed = outcome("flushing to disk"); !flushed) return flushed.error();
    return digest_.finish();
  }

 private:
  static constexpr std::size_t huge_page = std::size_t{2} << 20;

  result<void> write(std::string_view bytes) {
    while (file_ >= 0 && code_ == 0 && !bytes.empty()) {
      const auto n = ::write(file_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0)
        code_ = n < 0 ? errno : ENOSPC;
      else
        bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return outcome("writing");
  }

  result<void> outcome(const char* step) const {
    if (code_ == 0) return {};
    return error{errc::io,
                 fmt::format("{}: {} failed: {}; nothing is kept, make room or choose another "
                             "destination",
                             path_.string(), step, std::strerror(code_))};
  }

  fs::path path_;
  int file_;
  int code_ = 0;
  std::string waiting_;
  sha256 digest_;
};

/// A folder that is removed with all it holds unless it was renamed.
class building_folder {
 public:
  /// Beside the target, so that renaming stays within a file system.
  static result<fs::path> create(const fs::path& target) {
    std::error_code status;
    if (target.has_parent_path()) fs::create_directories(target.parent_path(), status);
    if (status)
      return error{errc::io, fmt::format("{}: cannot be made: {}; choose another destination",
                                         target.parent_path().string(), status.message())};
    std::string pattern = target.string() + ".XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr)
      return error{errc::io, fmt::format("{}: making a folder beside it failed: {}; choose another "
                                         "destination",
                                         target.string(), std::strerror(errno))};
    fs::permissions(pattern, static_cast<fs::perms>(0755), status);
    return fs::path(pattern);
  }

  explicit building_folder(fs::path path) : path_(std::move(path)) {}
  ~building_folder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  building_folder(const building_folder&) = delete;
  building_folder& operator=(const building_folder&) = delete;

  const fs::path& path() const { return path_; }
  result<void> become(const fs::path& target) {
    if (::rename(path_.c_str(), target.c_str()) != 0)
      return error{errc::io,
                   fmt::format("{}: renaming to it failed: {}; nothing is kept, choose another "
                               "destination",
                               target.string(), std::strerror(errno))};
    path_.clear();
    // The new name survives a crash of the machine once its folder is on the disk.
    sync_folder(target.parent_path());
    return {};
  }

 private:
  fs::path path_;
};

constexpr std::size_t page = 4096;

}  // namespace

std::string safetensors_header(std::span<const tensor_entry> tensors, const std::string& format) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  header["__metadata__"] = {{"format", format}};
  std::uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    const std::uint64_t end = offset + tensor.n_bytes();
    header[tensor.name] = {{"dtype", to_string(tensor.type)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  std::string length(8, '\0');
  // The tensors begin at a page, so that those of whole pages lie on pages wherever they are.
  text.append(page - (length.size() + text.size()) % page, ' ');
  const std::uint64_t size = text.size();
  std::memcpy(length.data(), &size, length.size());
  return length + text;
}

std::uint64_t tensor_entry::n_bytes() const {
  std::uint64_t n = bytes_per_number(type);
  for (const std::size_t side : shape) n *= side;
  return n;
}

result<void> check_free(const fs::path& target) {
  std::error_code status;
  if (!fs::exists(target, status) ||
      (fs::is_directory(target, status) && fs::is_empty(target, status)))
    return {};
  return error{errc::io, fmt::format("{}: is there already and is no empty folder; remove it or "
                                     "choose another destination",
                                     target.string())};
}

struct checkpoint_writer::state {
  fs::path target;
  building_folder building;
  std::string format;
  std::vector<tensor_entry> tensors;
  std::vector<std::pair<std::size_t, std::size_t>> shards;  ///< First tensor and how many.
  std::optional<growing_file> file;
  std::size_t shard = 0;   ///< That is written now.
  std::size_t tensor = 0;  ///< Whose bytes come next.
  std::uint64_t tensor_done = 0;
  nlohmann::ordered_json weight_map;
  checksum_list checksums;
  written_model report;

  state(fs::path where, fs::path made, std::vector<tensor_entry> all, std::size_t shard_bytes,
        std::string of_format)
      : target(std::move(where)),
        building(std::move(made)),
        format(std::move(of_format)),
        tensors(std::move(all)) {
    std::size_t first = 0;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::uint64_t more = tensors[i].n_bytes();
      if (i > first && bytes + more > shard_bytes) {
        shards.emplace_back(first, i - first);
        first = i;
        bytes = 0;
      }
      bytes += more;
      report.weight_bytes += more;
    }
    shards.emplace_back(first, tensors.size() - first);
    report.n_tensors = tensors.size();
    report.n_files = shards.size();
  }

  std::string shard_name() const {
    return shards.size() == 1
               ? "model.safetensors"
               : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards.size());
  }

  /// Steps over what is complete: tensors without numbers, files, and opens the next file.
  result<void> settle() {
    for (;;) {
      const auto [first, n] = shards[shard];
      if (!file) {
        file.emplace(building.path() / shard_name());
        const auto part = std::span(tensors).subspan(first, n);
        if (auto written = file->append(safetensors_header(part, format)); !written) return written;
        for (const auto& each : part) weight_map[each.name] = shard_name();
      }
      while (tensor < first + n && tensor_done == tensors[tensor].n_bytes()) {
        ++tensor;
        tensor_done = 0;
      }
      if (tensor < first + n) return {};
      auto digest = file->finish();
      if (!digest) return digest.error();
      checksums[shard_name()] = std::move(*digest);
      file.reset();
      if (shard + 1 == shards.size()) {
        ++shard;
        return {};
      }
      ++shard;
    }
  }
};

checkpoint_writer::checkpoint_writer(std::unique_ptr<state> content) : state_(std::move(content)) {}
checkpoint_writer::~checkpoint_writer() = default;

result<std::unique_ptr<checkpoint_writer>> checkpoint_writer::begin(
    const fs::path& folder, std::vector<tensor_entry> tensors, std::size_t shard_bytes,
    std::string format) {
  std::error_code status;
  const fs::path target = folder.has_filename() ? folder : folder.parent_path();
  if (auto free = check_free(target); !free) return free.error();
  auto made = building_folder::create(target);
  if (!made) return made.error();
  auto content =
      std::make_unique<state>(target, *made, std::move(tensors), shard_bytes, std::move(format));
  const auto room = fs::space(content->building.path(), status);
  if (!status && room.available < content->report.weight_bytes)
    return error{errc::io,
                 fmt::format("{}: the weights take {} bytes, the disk has room for {}; make room "
                             "or choose another destination",
                             target.string(), content->report.weight_bytes, room.available)};
  std::unique_ptr<checkpoint_writer> writer(new checkpoint_writer(std::move(content)));
  if (auto opened = writer->state_->settle(); !opened) return opened.error();
  return writer;
}

const std::vector<tensor_entry>& checkpoint_writer::tensors() const {
  return state_->tensors;
}

result<void> checkpoint_writer::append(std::string_view bytes) {
  state& s = *state_;
  ORDERMOE_CHECK(
      s.tensor < s.tensors.size() && bytes.size() <= s.tensors[s.tensor].n_bytes() - s.tensor_done,
      "more bytes than the tensor has");
  if (auto written = s.file->append(bytes); !written) return written;
  s.tensor_done += bytes.size();
  if (s.tensor_done < s.tensors[s.tensor].n_bytes()) return {};
  return s.settle();
}

const fs::path& checkpoint_writer::folder() const {
  return state_->building.path();
}

result<void> checkpoint_writer::add_file(const std::string& name, std::string_view bytes) {
  if (auto written = write_file(state_->building.path() / name, bytes); !written) return written;
  state_->checksums[name] = sha256_hex(bytes);
  return {};
}

result<void> checkpoint_writer::add_unlisted_file(const std::string& name, std::string_view bytes) {
  return write_file(state_->building.path() / name, bytes);
}

result<written_model> checkpoint_writer::finish() {
  state& s = *state_;
  ORDERMOE_CHECK(s.tensor == s.tensors.size() && !s.file, "a tensor has not all its bytes");
  if (s.shards.size() > 1) {
    const nlohmann::ordered_json index = {{"metadata", {{"total_size", s.report.weight_bytes}}},
                                          {"weight_map", s.weight_map}};
    if (auto written = add_file(shard_index_name, index.dump(2) + "\n"); !written)
      return written.error();
  }
  if (auto written = write_file(s.building.path() / checksums_name, checksums_text(s.checksums));
      !written)
    return written.error();
  if (auto renamed = s.building.become(s.target); !renamed) return renamed.error();
  return s.report;
}

}  // namespace ordermoe::model
