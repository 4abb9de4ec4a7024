#include "model/checkpoint/verify.hpp"
#include "model/architecture/half_trained.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "model/architecture/half_trained.hpp"
#include "model/architecture/tensor_plan.hpp"
#include "model/checkpoint/packed_tensors.hpp"
#include "model/checkpoint/part.hpp"
#include "model/checkpoint/quantised_rows.hpp"
#include "model/text/tokenizer.hpp"

namespace ordermoe::model {

namespace fs = std::filesystem;

namespace {

/// Numbers are checked in pieces of this size, and each piece's memory is given back.
constexpr std::size_t piece_bytes = std::size_t{4} << 20;

std::string shape_text(const std::vector<std::size_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

class verifier {
 public:
  verifier(fs::path folder, const work_watch& watch) : folder_(std::move(folder)), watch_(watch) {}

  result<verify_report> run(checksum_check checksums) {
    if (auto half = check_not_half_trained(folder_); !half) return half.error();
    std::error_code status;
    if (!fs::is_directory(folder_, status))
      return error{errc::not_found,
                   fmt::format("{}: no such folder; name the folder of a model", folder_.string())};
    const auto config = keep(read_model_config(folder_));
    open_weights();
    std::uint64_t listed_bytes = 0;
    std::optional<checksum_list> list;
    if (checksums == checksum_check::verify) {
      list = keep(read_checksums(folder_));
      if (list)
        for (const auto& [name, digest] : *list)
          if (const auto size = fs::file_size(folder_ / name, status); !status)
            listed_bytes += size;
    }
    all_bytes_ = static_cast<double>(report_.tensor_bytes + listed_bytes) + 1;
    const auto part = keep(read_part(folder_));
    if (config && files_are_whole_ && part)
      for (auto& problem : compare_tensors(
               *config, folder_.string(), tensors_,
               *part ? left_out(*config, **part) : std::set<std::string, std::less<>>()))
        report_.problems.push_back(std::move(problem));
    if (part && *part)
      if (const auto digest = model_digest(folder_); !digest)
        report_.problems.push_back(digest.error());
    if (config) check_tokenizer(*config);
    if (!check_numbers(config)) return interrupted();
    if (list && !check_digests(*list)) return interrupted();
    return std::move(report_);
  }

 private:
  error interrupted() const {
    return {errc::interrupted, fmt::format("{}: verification was interrupted", folder_.string())};
  }

  template <class T>
  std::optional<T> keep(result<T> outcome) {
    if (outcome) return std::move(*outcome);
    report_.problems.push_back(outcome.error());
    return std::nullopt;
  }
  void add(errc code, std::string message) {
    report_.problems.push_back({code, std::move(message)});
  }

  bool advance(std::size_t bytes) {
    done_bytes_ += static_cast<double>(bytes);
    watch_.show(std::min(1.0, done_bytes_ / all_bytes_));
    return !watch_.stopped();
  }

  void open_weights() {
    std::error_code status;
    if (fs::exists(folder_ / "model.safetensors", status)) {
      open_file("model.safetensors");
      if (fs::exists(folder_ / shard_index_name, status))
        add(errc::mismatch,
            fmt::format("{}: has both model.safetensors, which is read, and {}; remove one of them",
                        folder_.string(), shard_index_name));
      return;
    }
    const auto index = keep(read_shard_index(folder_));
    if (!index) {
      files_are_whole_ = false;
      return;
    }
    for (const auto& [file, names] : index->files()) {
      if (fs::exists(folder_ / file, status)) {
        open_file(file);
        continue;
      }
      files_are_whole_ = false;
      add(errc::not_found,
          fmt::format(
              "{}: names the shard {} for tensor '{}'{}, but there is no such file; fetch "
              "the missing shard",
              (folder_ / shard_index_name).string(), file, names.front(),
              names.size() == 1 ? std::string() : fmt::format(" and {} others", names.size() - 1)));
    }
    check_index(*index);
  }

  void open_file(const std::string& name) {
    const auto opened = keep(checkpoint::open_file(folder_ / name));
    if (!opened) {
      files_are_whole_ = false;
      return;
    }
    ++report_.n_files;
    for (const auto& [tensor, view] : (*opened)->tensors()) {
      const auto [at, is_new] = tensors_.emplace(tensor, view);
      if (!is_new) {
        add(errc::malformed,
            fmt::format(
                "{}: tensor '{}' is in {} as well; fetch index and shards of the same model",
                view.file.string(), tensor, at->second.file.string()));
        continue;
      }
      ++report_.n_tensors;
      ++report_.tensors_of_type[to_string(view.type)];
      report_.tensor_bytes += view.bytes.size();
    }
    opened_.push_back(*opened);
  }

  void check_index(const shard_index& index) {
    const auto place = (folder_ / shard_index_name).string();
    std::error_code status;
    for (const auto& [tensor, file] : index.file_of) {
      const auto found = tensors_.find(tensor);
      // A shard that cannot be read has its own problem.
      if (found == tensors_.end() && !files_are_whole_) continue;
      if (found == tensors_.end())
        add(errc::mismatch, fmt::format("{}: tensor '{}' is in no shard, expected in {}; fetch "
                                        "index and shards of the same model",
                                        place, tensor, file));
      else if (found->second.file != folder_ / file)
        add(errc::mismatch,
            fmt::format("{}: tensor '{}' is in {}, expected in {}; fetch index and shards of the "
                        "same model",
                        place, tensor, found->second.file.filename().string(), file));
    }
    for (const auto& [tensor, view] : tensors_)
      if (!index.file_of.contains(tensor))
        add(errc::mismatch,
            fmt::format("{}: tensor '{}' is not in the index {}; fetch index and shards of the "
                        "same model",
                        view.file.string(), tensor, shard_index_name));
    if (files_are_whole_ && index.total_size && *index.total_size != report_.tensor_bytes)
      add(errc::mismatch,
          fmt::format("{}: total_size is {}, but the tensors of its shards take {} bytes; fetch "
                      "index and shards of the same model",
                      place, *index.total_size, report_.tensor_bytes));
  }

  void check_tokenizer(const model_config& config) {
    const auto tokens = keep(tokenizer::load(folder_));
    if (!tokens) return;
    report_.tokenizer_pieces = (*tokens)->vocab_size();
    if (report_.tokenizer_pieces > config.vocab_size)
      add(errc::mismatch,
          fmt::format("{}: the tokenizer has {} pieces with ids up to {}, but vocab_size in "
                      "config.json is {}; fetch tokenizer and config.json of the same model",
                      folder_.string(), report_.tokenizer_pieces, report_.tokenizer_pieces - 1,
                      config.vocab_size));
  }

  /// False where interrupted.
  bool check_numbers(const std::optional<model_config>& config) {
    std::map<std::string, packed_matrix> quantised_ones;
    if (config && is_packed(tensors_))
      for (const auto& each : packed_tensors(*config)) {
        const auto found = tensors_.find(each.name);
        if (!each.packed() || found == tensors_.end()) continue;
        const auto matrix = packed_view(found->second, each.shape[0], each.shape[1]);
        if (matrix && quantised(matrix->storage)) quantised_ones.emplace(each.name, *matrix);
      }
    for (const auto& [name, view] : tensors_) {
      bool finite = true;
      // Scales are among the integers.
      if (const auto matrix = quantised_ones.find(name); matrix != quantised_ones.end())
        finite = all_finite(matrix->second, 0, matrix->second.layout.padded_out());
      for (std::size_t first = 0; first < view.bytes.size(); first += piece_bytes) {
        const std::size_t n = std::min(piece_bytes, view.bytes.size() - first);
        expect_reading(view, first, n);
        finite = all_finite(view.type, view.bytes.subspan(first, n)) && finite;
        finish_reading(view, first, n);
        if (!advance(n)) return false;
      }
      if (!finite)
        add(errc::out_of_range,
            fmt::format("{}: tensor '{}' has a number that is not finite; fetch or train the "
                        "weights again",
                        view.file.string(), name));
    }
    return true;
  }

  /// False where interrupted.
  bool check_digests(const checksum_list& list) {
    const auto place = (folder_ / checksums_name).string();
    for (const auto& [name, digest] : list) {
      double seen = 0;
      std::error_code status;
      const auto size = static_cast<double>(fs::file_size(folder_ / name, status));
      work_watch inner{[&](double share) {
                         const double now = share * size;
                         advance(static_cast<std::size_t>(std::max(0.0, now - seen)));
                         seen = now;
                       },
                       watch_.should_stop};
      const auto found = hash_file(folder_ / name, inner);
      if (!found) {
        if (found.error().code == errc::interrupted) return false;
        add(found.error().code, fmt::format("{}: lists {}, which cannot be read: {}", place, name,
                                            found.error().message));
        continue;
      }
      ++report_.n_checksums;
      if (*found != digest)
        add(errc::mismatch, fmt::format("{}: has SHA-256 {}, but {} lists {}; fetch the file again",
                                        (folder_ / name).string(), *found, checksums_name, digest));
    }
    std::error_code status;
    std::set<std::string> there;
    for (fs::directory_iterator at(folder_, status), end; !status && at != end;
         at.increment(status)) {
      std::error_code ignored;
      const auto name = at->path().filename().string();
      if (at->is_regular_file(ignored) && belongs_to_model(name)) there.insert(name);
    }
    for (const auto& name : there)
      if (!list.contains(name))
        add(errc::mismatch,
            fmt::format("{}: does not list {}, which belongs to the model; remove the file, or "
                        "write the list again with `ordermoe model verify --write-checksums`",
                        place, name));
    return true;
  }

  fs::path folder_;
  const work_watch& watch_;
  verify_report report_;
  std::vector<std::shared_ptr<const checkpoint>> opened_;
  tensor_map tensors_;
  bool files_are_whole_ = true;
  double all_bytes_ = 1, done_bytes_ = 0;
};

}  // namespace

result<verify_report> verify_model(const fs::path& folder, checksum_check checksums,
                                   const work_watch& watch) {
  return verifier(folder, watch).run(checksums);
}

std::vector<error> compare_tensors(const model_config& config, const std::string& place,
                                   const tensor_map& tensors,
                                   const std::set<std::string, std::less<>>& may_lack) {
  if (is_packed(tensors)) return compare_packed(config, place, tensors, may_lack);
  constexpr const char* remedy = "config.json and weights must be of the same model";
  std::vector<error> problems;
  std::set<std::string, std::less<>> expected;
  const auto compare = [&](const std::string& name, const std::vector<std::size_t>& shape) {
    expected.insert(name);
    const auto found = tensors.find(name);
    if (found == tensors.end() && may_lack.contains(name)) return;
    if (found == tensors.end())
      problems.push_back(
          {errc::mismatch, fmt::format("{}: tensor '{}' is absent, expected with shape {}; {}",
                                       place, name, shape_text(shape), remedy)});
    else if (found->second.shape != shape)
      problems.push_back(
          {errc::mismatch,
           fmt::format("{}: tensor '{}' has shape {}, expected {}; {}", found->second.file.string(),
                       name, shape_text(found->second.shape), shape_text(shape), remedy)});
  };
  for (const auto& plan : tensors_of(config)) {
    const auto found = tensors.find(plan.name);
    const bool integers = found != tensors.end() && (found->second.type == tensor_type::i8 ||
                                                     found->second.type == tensor_type::u8);
    if (!integers) {
      compare(plan.name, plan.shape);
      continue;
    }
    if (!is_expert_matrix(plan.name)) {
      expected.insert(plan.name);
      problems.push_back(
          {errc::unsupported,
           fmt::format("{}: tensor '{}' is of type {}; only the matrices of experts "
                       "may be quantised",
                       found->second.file.string(), plan.name, to_string(found->second.type))});
      continue;
    }
    const auto shape = stored_shape(
        found->second.type == tensor_type::i8 ? weight_storage::int8 : weight_storage::int4,
        plan.shape[0], plan.shape[1]);
    compare(plan.name, shape.weight);
    compare(scale_name(plan.name), shape.scale);
    const auto scale = tensors.find(scale_name(plan.name));
    if (scale != tensors.end() && scale->second.type != shape.scale_type)
      problems.push_back({errc::mismatch,
                          fmt::format("{}: tensor '{}' is of type {}, expected {}; "
                                      "convert the model again",
                                      scale->second.file.string(), scale->first,
                                      to_string(scale->second.type), to_string(shape.scale_type))});
  }
  const auto embedding = tensors.find(embedding_name(config));
  for (const auto& name : embedding_copies(config)) {
    const auto copy = tensors.find(name);
    if (copy == tensors.end()) continue;
    const std::size_t before = problems.size();
    compare(name, {config.vocab_size, config.hidden_size});
    if (problems.size() == before && embedding != tensors.end() &&
        !same_numbers(embedding->second, copy->second))
      problems.push_back(
          {errc::mismatch,
           fmt::format("{}: tensor '{}' differs from the embedding, though {}; correct one of them",
                       copy->second.file.string(), name,
                       name == "lm_head.weight" ? "config.json says tie_word_embeddings"
                                                : "encoder and decoder share it")});
  }
  for (const auto& [name, view] : tensors)
    if (!expected.contains(name))
      problems.push_back(
          {errc::mismatch,
           fmt::format("{}: tensor '{}' has no place in the model that config.json describes; {}",
                       view.file.string(), name, remedy)});
  return problems;
}

}  // namespace ordermoe::model
