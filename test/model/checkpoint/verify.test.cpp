#include "model/checkpoint/verify.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "config/sha256.hpp"
#include "model/checkpoint/random_model.hpp"
#include "test/model/fixture.hpp"

namespace {

namespace om = ordermoe::model;
namespace fs = std::filesystem;
using fixture::check_error;
using nlohmann::json;
using ordermoe::errc;

/// A whole small model in its own folder, in several shards where asked for.
class model_folder {
 public:
  explicit model_folder(std::size_t shard_bytes = std::size_t{1} << 30,
                        om::family kind = om::family::mixtral, bool tied = false)
      : path_(place_.path() / "model") {
    auto options = fixture::small_model(kind);
    options.shape.tied_embeddings = tied;
    options.shard_bytes = shard_bytes;
    fixture::need(om::write_random_model(path_, options));
  }

  const fs::path& path() const { return path_; }
  fs::path shard(std::size_t number) const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(path_))
      if (entry.path().extension() == ".safetensors") found.push_back(entry.path());
    std::ranges::sort(found);
    return found.at(number);
  }
  void write(const std::string& name, std::string_view bytes) const {
    const auto written = ordermoe::write_file(path_ / name, bytes);
    if (!written) BOOST_FAIL(written.error().message);
  }
  json read_json(const std::string& name) const {
    return json::parse(fixture::need(ordermoe::read_file(path_ / name)));
  }
  /// Writes the one file of weights again with other tensors.
  template <class Change>
  void change_tensors(Change change) const {
    std::vector<om::tensor_data> tensors;
    {
      const auto source = fixture::need(om::checkpoint::open_folder(path_));
      for (const auto& [name, view] : source->tensors())
        tensors.push_back({name, view.type, view.shape, om::to_bytes(view.to_fp32(), view.type)});
    }
    change(tensors);
    const auto written = om::write_safetensors(path_ / "model.safetensors", tensors);
    if (!written) BOOST_FAIL(written.error().message);
  }

 private:
  fixture::scratch_folder place_;
  fs::path path_;
};

om::tensor_data& find(std::vector<om::tensor_data>& tensors, const std::string& name) {
  for (auto& tensor : tensors)
    if (tensor.name == name) return tensor;
  throw std::logic_error(name);
}

om::verify_report check_of(const model_folder& folder,
                           om::checksum_check checksums = om::checksum_check::skip) {
  return fixture::need(om::verify_model(folder.path(), checksums));
}

/// Expects exactly these problems, each of a code and with words, in any order.
void check_problems(const om::verify_report& report,
                    const std::vector<std::pair<errc, std::vector<std::string>>>& expected) {
  std::string all;
  for (const auto& problem : report.problems) all += problem.message + "\n";
  BOOST_TEST_CONTEXT(all) {
    BOOST_TEST(report.problems.size() == expected.size());
    for (const auto& [code, words] : expected) {
      const bool found = std::ranges::any_of(report.problems, [&](const ordermoe::error& problem) {
        return problem.code == code && std::ranges::all_of(words, [&](const std::string& word) {
                 return problem.message.find(word) != std::string::npos;
               });
      });
      BOOST_CHECK_MESSAGE(found, "no problem of this kind with '" << words.front() << "'");
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(verify)

BOOST_AUTO_TEST_CASE(a_whole_model_has_no_problems_in_one_file_or_in_many) {
  for (const std::size_t shard_bytes : {std::size_t{1} << 30, std::size_t{200'000}})
    for (const auto kind : {om::family::mixtral, om::family::qwen2_moe}) {
      const model_folder folder(shard_bytes, kind);
      const auto report = check_of(folder);
      check_problems(report, {});
      BOOST_TEST((report.n_files > 1) == (shard_bytes < 1'000'000));
      BOOST_TEST(report.n_tensors == om::tensors_of(om::small_shape(kind)).size());
      BOOST_TEST(report.tensors_of_type.at("BF16") == report.n_tensors);
      BOOST_TEST(report.tokenizer_pieces > 0u);
    }
}

BOOST_AUTO_TEST_CASE(every_problem_is_named_and_not_only_the_first) {
  const model_folder folder;
  folder.change_tensors([](std::vector<om::tensor_data>& tensors) {
    std::erase_if(tensors, [](const auto& t) {
      return t.name == "model.layers.1.block_sparse_moe.experts.3.w2.weight";
    });
    auto& norm = find(tensors, "model.norm.weight");
    norm.shape = {32, 2};
    auto& router = find(tensors, "model.layers.0.block_sparse_moe.gate.weight");
    const float infinite = std::numeric_limits<float>::infinity();
    router.bytes.replace(router.bytes.size() - 2, 2,
                         om::to_bytes(std::span(&infinite, 1), om::tensor_type::bf16));
    tensors.push_back({"model.extra", om::tensor_type::f32, {1}, std::string(4, '\0')});
  });
  check_problems(
      check_of(folder),
      {{errc::mismatch, {"'model.layers.1.block_sparse_moe.experts.3.w2.weight'", "absent"}},
       {errc::mismatch, {"'model.norm.weight'", "[32, 2]", "expected [64]"}},
       {errc::out_of_range, {"'model.layers.0.block_sparse_moe.gate.weight'", "not finite"}},
       {errc::mismatch, {"'model.extra'", "no place"}}});
}

BOOST_AUTO_TEST_CASE(numbers_that_are_not_finite_are_found_in_every_type_and_place) {
  for (const auto type : {om::tensor_type::f32, om::tensor_type::f16, om::tensor_type::bf16})
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()})
      for (const std::size_t at : {0u, 17u, 99u}) {
        std::vector<float> numbers(100, 1.5f);
        const std::string good = om::to_bytes(numbers, type);
        BOOST_TEST(om::all_finite(type, std::as_bytes(std::span(good))));
        numbers[at] = bad;
        const std::string stored = om::to_bytes(numbers, type);
        BOOST_TEST(!om::all_finite(type, std::as_bytes(std::span(stored))));
      }
}

BOOST_AUTO_TEST_CASE(a_configuration_of_another_model_is_found) {
  const model_folder folder;
  auto config = folder.read_json("config.json");
  config["intermediate_size"] = 64;
  folder.write("config.json", config.dump());
  const auto report = check_of(folder);
  BOOST_TEST(report.problems.size() == 3u * 8u * 3u);
  config["num_hidden_layers"] = "three";
  folder.write("config.json", config.dump());
  check_problems(check_of(folder), {{errc::malformed, {"config.json", "num_hidden_layers"}}});
}

BOOST_AUTO_TEST_CASE(a_tokenizer_with_ids_beyond_the_vocabulary_is_found) {
  const model_folder folder;
  const auto pieces = check_of(folder).tokenizer_pieces;
  auto config = folder.read_json("config.json");
  config["vocab_size"] = pieces - 1;
  folder.write("config.json", config.dump());
  folder.change_tensors([&](std::vector<om::tensor_data>& tensors) {
    for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
      auto& tensor = find(tensors, name);
      tensor.shape[0] = pieces - 1;
      tensor.bytes.resize((pieces - 1) * tensor.shape[1] * 2);
    }
  });
  check_problems(check_of(folder),
                 {{errc::mismatch,
                   {"tokenizer", std::to_string(pieces),
                    "vocab_size in config.json is " + std::to_string(pieces - 1)}}});
}

BOOST_AUTO_TEST_CASE(a_tokenizer_that_is_absent_or_broken_is_found) {
  const model_folder folder;
  folder.write("tokenizer.model", "nonsense");
  const auto broken = check_of(folder);
  BOOST_TEST(broken.problems.size() == 1u);
  BOOST_TEST(broken.problems.front().message.find("tokenizer.model") != std::string::npos);
  fs::remove(folder.path() / "tokenizer.model");
  check_problems(check_of(folder), {{errc::not_found, {"tokenizer.model", "tokenizer.json"}}});
}

BOOST_AUTO_TEST_CASE(a_shard_that_is_absent_is_named_once) {
  const model_folder folder(200'000);
  const auto gone = folder.shard(1);
  fs::remove(gone);
  check_problems(check_of(folder), {{errc::not_found, {gone.filename().string(), "no such file"}}});
}

BOOST_AUTO_TEST_CASE(shards_that_changed_places_are_found_tensor_by_tensor) {
  const model_folder folder(200'000);
  const auto a = folder.shard(0), b = folder.shard(1);
  fs::rename(a, folder.path() / "aside");
  fs::rename(b, a);
  fs::rename(folder.path() / "aside", b);
  const auto report = check_of(folder);
  const auto index = fixture::need(om::read_shard_index(folder.path()));
  const auto files = index.files();
  BOOST_TEST(report.problems.size() ==
             files.at(a.filename().string()).size() + files.at(b.filename().string()).size());
  for (const auto& problem : report.problems)
    BOOST_TEST((problem.code == errc::mismatch &&
                problem.message.find("expected in") != std::string::npos));
}

BOOST_AUTO_TEST_CASE(a_truncated_shard_hides_no_problem_of_the_others) {
  const model_folder folder(200'000);
  fs::resize_file(folder.shard(0), fs::file_size(folder.shard(0)) - 1);
  auto config = folder.read_json("config.json");
  fs::remove(folder.path() / "tokenizer.model");
  check_problems(check_of(folder),
                 {{errc::malformed, {folder.shard(0).filename().string(), "beyond"}},
                  {errc::not_found, {"tokenizer.model"}}});
}

BOOST_AUTO_TEST_CASE(an_index_that_disagrees_with_its_shards_is_found) {
  const model_folder folder(200'000);
  auto index = folder.read_json(om::shard_index_name);
  const auto good = index;
  index["metadata"]["total_size"] = index["metadata"]["total_size"].get<std::uint64_t>() + 2;
  folder.write(om::shard_index_name, index.dump());
  check_problems(check_of(folder), {{errc::mismatch, {"total_size"}}});

  index = good;
  index["weight_map"]["model.norm.weight"] = folder.shard(0).filename().string();
  folder.write(om::shard_index_name, index.dump());
  check_problems(check_of(folder), {{errc::mismatch, {"'model.norm.weight'", "expected in"}}});

  index = good;
  index["weight_map"]["model.more"] = folder.shard(0).filename().string();
  folder.write(om::shard_index_name, index.dump());
  check_problems(check_of(folder), {{errc::mismatch, {"'model.more'", "in no shard"}}});

  index = good;
  index["weight_map"].erase("model.norm.weight");
  folder.write(om::shard_index_name, index.dump());
  check_problems(check_of(folder), {{errc::mismatch, {"'model.norm.weight'", "not in the index"}}});

  index = good;
  index["metadata"]["total_size"] = -1;
  folder.write(om::shard_index_name, index.dump());
  check_problems(check_of(folder), {{errc::malformed, {"total_size"}}});
}

BOOST_AUTO_TEST_CASE(a_tied_output_projection_must_equal_the_embedding_where_it_is_stored) {
  const model_folder folder(std::size_t{1} << 30, om::family::mixtral, true);
  check_problems(check_of(folder), {});
  folder.change_tensors([](std::vector<om::tensor_data>& tensors) {
    auto head = find(tensors, "model.embed_tokens.weight");
    head.name = "lm_head.weight";
    tensors.push_back(head);
  });
  check_problems(check_of(folder), {});
  folder.change_tensors([](std::vector<om::tensor_data>& tensors) {
    auto& head = find(tensors, "lm_head.weight");
    head.bytes.back() = static_cast<char>(head.bytes.back() ^ 1);
  });
  check_problems(check_of(folder), {{errc::mismatch, {"'lm_head.weight'", "embedding"}}});
}

BOOST_AUTO_TEST_CASE(checksums_are_compared_where_asked_for) {
  const model_folder folder(200'000);
  folder.write(om::checksums_name,
               om::checksums_text(fixture::need(om::hash_model_files(folder.path()))));
  const auto whole = check_of(folder, om::checksum_check::verify);
  check_problems(whole, {});
  BOOST_TEST(whole.n_checksums == fixture::need(om::read_checksums(folder.path())).size());

  // A changed bit in a weight keeps everything else valid.
  auto bytes = fixture::need(ordermoe::read_file(folder.shard(2)));
  bytes[bytes.size() - 2] = static_cast<char>(bytes[bytes.size() - 2] ^ 1);
  folder.write(folder.shard(2).filename().string(), bytes);
  check_problems(check_of(folder), {});
  check_problems(check_of(folder, om::checksum_check::verify),
                 {{errc::mismatch, {folder.shard(2).filename().string(), "SHA-256"}}});
  bytes[bytes.size() - 2] = static_cast<char>(bytes[bytes.size() - 2] ^ 1);
  folder.write(folder.shard(2).filename().string(), bytes);

  folder.write("generation_config.json", "{}");
  check_problems(check_of(folder, om::checksum_check::verify),
                 {{errc::mismatch, {om::checksums_name, "generation_config.json", "not list"}}});
  fs::remove(folder.path() / "generation_config.json");

  auto list = fixture::need(om::read_checksums(folder.path()));
  list["absent.safetensors"] = std::string(64, '0');
  folder.write(om::checksums_name, om::checksums_text(list));
  check_problems(check_of(folder, om::checksum_check::verify),
                 {{errc::not_found, {"absent.safetensors"}}});
  fs::remove(folder.path() / om::checksums_name);
  check_problems(check_of(folder, om::checksum_check::verify),
                 {{errc::not_found, {om::checksums_name}}});
}

BOOST_AUTO_TEST_CASE(a_list_of_checksums_that_is_not_one_is_refused_with_its_line) {
  const fixture::scratch_folder folder;
  const std::string digest(64, 'a');
  for (const std::string& line :
       {std::string("short"), digest + " one-space", digest + "  ", digest + "  ../up",
        digest + "  sub/name", digest + "  ..", digest + "  good\n" + digest + "  good",
        std::string(64, 'g') + "  name", std::string(64, 'A') + "  name", digest + "  name\r"}) {
    folder.write(om::checksums_name, digest + "  first\n" + line + "\n");
    BOOST_TEST_CONTEXT(line)
    check_error(om::read_checksums(folder.path()), errc::malformed, {"SHA256SUMS:"});
  }
  folder.write(om::checksums_name, digest + "  first\n\n" + digest + " *second");
  BOOST_TEST(fixture::need(om::read_checksums(folder.path())).size() == 2u);
}

BOOST_AUTO_TEST_CASE(a_digest_grows_to_the_known_one) {
  // FIPS 180-2, the message of 56 letters.
  ordermoe::sha256 digest;
  digest.update("abcdbcdecdefdefgefghfghighij");
  digest.update("hijkijkljklmklmnlmnomnopnopq");
  BOOST_TEST(digest.finish() == "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

BOOST_AUTO_TEST_CASE(verification_ends_when_interrupted) {
  const model_folder folder;
  for (const std::size_t stop_at : {1u, 40u}) {
    std::size_t asked = 0;
    om::work_watch watch;
    watch.should_stop = [&] { return ++asked == stop_at; };
    check_error(om::verify_model(folder.path(), om::checksum_check::skip, watch), errc::interrupted,
                {"interrupted"});
  }
  check_error(om::verify_model(folder.path() / "nowhere", om::checksum_check::skip),
              errc::not_found, {"nowhere"});
}

BOOST_AUTO_TEST_CASE(progress_grows_to_all) {
  const model_folder folder;
  folder.write(om::checksums_name,
               om::checksums_text(fixture::need(om::hash_model_files(folder.path()))));
  double last = 0;
  om::work_watch watch;
  watch.progress = [&](double share) {
    BOOST_REQUIRE(share >= last);
    last = share;
  };
  fixture::need(om::verify_model(folder.path(), om::checksum_check::verify, watch));
  BOOST_TEST(last > 0.99);
  BOOST_TEST(last <= 1.0);
}

BOOST_AUTO_TEST_SUITE_END()
