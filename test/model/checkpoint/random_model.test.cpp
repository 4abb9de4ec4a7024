#include "model/checkpoint/random_model.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <numeric>

#include "model/checkpoint/safetensors.hpp"
#include "model/reference.hpp"
#include "test/model/fixture.hpp"

namespace {

namespace om = ordermoe::model;
using fixture::check_error;
using fixture::logits_of;
using fixture::small_model;
using ordermoe::errc;

constexpr om::family all_families[] = {om::family::mixtral, om::family::qwen2_moe,
                                       om::family::qwen3_moe, om::family::olmoe,
                                       om::family::switch_transformers};

std::size_t entries(const std::filesystem::path& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

/// Files may not grow beyond this while the object lives: the disk is full.
class small_disk {
 public:
  explicit small_disk(rlim_t bytes) {
    previous_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~small_disk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, previous_);
  }

 private:
  rlimit before_{};
  void (*previous_)(int);
};

}  // namespace

BOOST_AUTO_TEST_SUITE(random_model)

BOOST_AUTO_TEST_CASE(a_written_folder_is_complete_and_its_activations_are_sane) {
  const fixture::scratch_folder place;
  for (const auto kind : all_families) BOOST_TEST_CONTEXT(om::to_string(kind)) {
      const auto folder = place.path() / om::to_string(kind);
      const auto report = fixture::need(om::write_random_model(folder, small_model(kind)));
      BOOST_TEST(report.n_files == 1u);
      BOOST_TEST(entries(folder) == 4u);
      BOOST_TEST(fixture::need(om::tokenizer::load(folder))->vocab_size() <=
                 om::small_shape(kind).vocab_size);
      const auto logits = logits_of(folder);
      double squares = 0;
      for (const float x : logits) {
        BOOST_REQUIRE(std::isfinite(x));
        squares += static_cast<double>(x) * x;
      }
      const double size = std::sqrt(squares / static_cast<double>(logits.size()));
      BOOST_TEST(size > 1.0);
      BOOST_TEST(size < 4.0);
    }
}

BOOST_AUTO_TEST_CASE(the_same_seed_gives_the_same_bytes_and_another_does_not) {
  const fixture::scratch_folder place;
  const auto bytes = [&](const char* name, std::uint64_t seed) {
    fixture::need(
        om::write_random_model(place.path() / name, small_model(om::family::olmoe, seed)));
    return fixture::need(ordermoe::read_file(place.path() / name / "model.safetensors"));
  };
  const auto first = bytes("a", 3);
  BOOST_TEST((first == bytes("b", 3)));
  BOOST_TEST((first != bytes("c", 4)));
}

BOOST_AUTO_TEST_CASE(shards_with_an_index_hold_the_same_model) {
  const fixture::scratch_folder place;
  auto options = small_model(om::family::qwen2_moe);
  fixture::need(om::write_random_model(place.path() / "one", options));
  options.shard_bytes = 100'000;
  const auto report = fixture::need(om::write_random_model(place.path() / "many", options));
  BOOST_TEST(report.n_files > 3u);
  BOOST_TEST(entries(place.path() / "many") == report.n_files + 4);
  const auto one = logits_of(place.path() / "one"), many = logits_of(place.path() / "many");
  BOOST_TEST(fixture::same_bits(one.data(), many.data(), one.size()));
}

BOOST_AUTO_TEST_CASE(numbers_have_the_mean_and_deviation_of_their_plan) {
  const fixture::scratch_folder place;
  const auto options = small_model(om::family::qwen3_moe);
  fixture::need(om::write_random_model(place.path() / "model", options));
  const auto source = fixture::need(om::checkpoint::open_folder(place.path() / "model"));
  const auto plans = om::tensors_of(options.shape);
  BOOST_TEST(plans.size() == source->tensors().size());
  std::size_t checked = 0;
  for (const auto& plan : plans) {
    const auto numbers = fixture::need(source->read(plan.name, plan.shape));
    if (numbers.size() < 1000) continue;
    ++checked;
    const double n = static_cast<double>(numbers.size());
    const double mean = std::accumulate(numbers.begin(), numbers.end(), 0.0) / n;
    double variance = 0;
    for (const float x : numbers) variance += (x - mean) * (x - mean) / n;
    // Five standard errors; the variance of a uniform number's square is 0.8 of its variance
    // squared.
    BOOST_TEST(std::abs(mean - plan.mean) < 5 * plan.deviation / std::sqrt(n));
    BOOST_TEST(std::abs(variance / (plan.deviation * plan.deviation) - 1) <
               5 * std::sqrt(0.8 / n) + 0.01);
  }
  BOOST_TEST(checked > 70u);
}

BOOST_AUTO_TEST_CASE(an_interrupt_leaves_nothing) {
  const fixture::scratch_folder place;
  auto options = small_model(om::family::mixtral);
  std::size_t asked = 0;
  options.should_stop = [&] { return ++asked == 40; };
  check_error(om::write_random_model(place.path() / "model", options), errc::interrupted,
              {"model", "interrupted"});
  BOOST_TEST(asked == 40u);
  BOOST_TEST(entries(place.path()) == 0u);
}

BOOST_AUTO_TEST_CASE(a_full_disk_leaves_nothing) {
  const fixture::scratch_folder place;
  const small_disk limit(200'000);
  check_error(om::write_random_model(place.path() / "model", small_model(om::family::mixtral)),
              errc::io, {"model.safetensors", "writing failed"});
  BOOST_TEST(entries(place.path()) == 0u);
}

BOOST_AUTO_TEST_CASE(what_is_there_already_is_not_touched) {
  const fixture::scratch_folder place;
  place.write("notes.txt", "keep me");
  check_error(om::write_random_model(place.path(), small_model(om::family::mixtral)), errc::io,
              {place.path().string(), "no empty folder"});
  BOOST_TEST(entries(place.path()) == 1u);
  const auto empty = place.path() / "empty";
  std::filesystem::create_directory(empty);
  fixture::need(om::write_random_model(empty, small_model(om::family::mixtral)));
  BOOST_TEST(entries(empty) == 4u);
}

BOOST_AUTO_TEST_CASE(published_shapes_have_the_published_numbers_of_weights) {
  const std::pair<om::family, std::size_t> models[] = {{om::family::mixtral, 46'702'792'704},
                                                       {om::family::qwen2_moe, 14'315'784'192},
                                                       {om::family::qwen3_moe, 30'532'122'624},
                                                       {om::family::olmoe, 6'919'161'856}};
  for (const auto& [kind, expected] : models) {
    std::size_t n = 0;
    for (const auto& tensor : om::tensors_of(om::published_shape(kind))) n += tensor.size();
    BOOST_TEST_CONTEXT(om::to_string(kind)) BOOST_TEST(n == expected);
  }
}

BOOST_AUTO_TEST_SUITE_END()
