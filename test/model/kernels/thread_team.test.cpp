#include "model/kernels/thread_team.hpp"

#include <chrono>
#include <cmath>
#include <thread>

#include "model/expert_weights.hpp"
#include "test/model/fixture.hpp"

namespace {

namespace om = ordermoe::model;
using fixture::numbers;
using fixture::same_bits;
using ordermoe::precision;

constexpr precision every_precision[] = {precision::stored, precision::bf16, precision::int8,
                                         precision::int4};

/// compute(output) without a team and with teams of 2 and 5: whether all outputs have equal bits.
template <class Compute>
bool no_team_changes_bits(std::size_t n, const Compute& compute) {
  std::vector<float> alone(n, NAN);
  compute(alone.data());
  for (const std::size_t size : {2u, 5u}) {
    om::thread_team team(size);
    const om::team_scope scope(&team);
    std::vector<float> shared(n, NAN);
    compute(shared.data());
    if (!same_bits(alone.data(), shared.data(), n)) return false;
  }
  return true;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(thread_team)

BOOST_AUTO_TEST_CASE(every_part_of_every_job_runs_once) {
  for (std::size_t size = 1; size <= 4; ++size) {
    om::thread_team team(size);
    BOOST_TEST(team.size() == size);
    for (std::size_t job = 0; job < 3000; ++job) {
      const std::size_t n_parts = job % 37;
      std::vector<std::atomic<int>> times(n_parts);
      team.run(n_parts, [&](std::size_t part) { ++times[part]; });
      for (const auto& n : times) BOOST_REQUIRE(n == 1);
      // Long enough that helpers go to sleep.
      if (job % 1000 == 999) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

BOOST_AUTO_TEST_CASE(what_is_worth_it_is_shared_out_in_ranges_that_cover_everything_once) {
  om::thread_team team(3);
  const om::team_scope scope(&team);
  for (const std::size_t n : {1u, 2u, 7u, 1000u}) {
    std::vector<std::atomic<int>> times(n);
    std::atomic<int> n_ranges{0};
    om::share_out(n, 1e9, [&](std::size_t first, std::size_t last) {
      ++n_ranges;
      for (; first < last; ++first) ++times[first];
    });
    for (const auto& count : times) BOOST_TEST(count == 1);
    BOOST_TEST(n_ranges == static_cast<int>(std::min<std::size_t>(n, 12)));
  }
}

BOOST_AUTO_TEST_CASE(a_little_work_stays_on_its_thread_and_so_does_all_of_it_without_a_team) {
  const auto whole_and_here = [](double work) {
    int n_ranges = 0;
    om::share_out(100, work, [&, me = std::this_thread::get_id()](std::size_t a, std::size_t b) {
      if (a == 0 && b == 100 && std::this_thread::get_id() == me) ++n_ranges;
    });
    return n_ranges == 1;
  };
  BOOST_TEST(whole_and_here(1e9));
  om::thread_team team(2), alone(1);
  {
    const om::team_scope scope(&team);
    BOOST_TEST(whole_and_here(1000));
    BOOST_TEST(!whole_and_here(1e9));
    const om::team_scope other(&alone);
    BOOST_TEST(whole_and_here(1e9));
  }
  BOOST_TEST((om::current_team() == nullptr));
}

BOOST_AUTO_TEST_CASE(products_have_the_same_bits_however_many_threads_share_them) {
  constexpr std::size_t n_in = 520, n_out = 1500;  // Fills neither groups nor blocks.
  const auto weights = numbers(n_in * n_out, 1);
  for (const auto kept : every_precision)
    for (const std::size_t n : {1u, 3u, 40u, 200u}) {
      const om::projection matrix(weights, n_out, n_in, {}, kept);
      const auto rows = numbers(n * n_in, 2);
      BOOST_TEST_CONTEXT(to_string(kept) << ", " << n << " rows")
      BOOST_TEST(no_team_changes_bits(
          n * n_out, [&](float* output) { matrix.apply(rows.data(), output, n); }));
    }
}

BOOST_AUTO_TEST_CASE(experts_have_the_same_bits_however_many_threads_share_them) {
  constexpr std::size_t width = 520, inner = 1111;
  const auto gate = numbers(width * inner, 1), up = numbers(width * inner, 2),
             down = numbers(width * inner, 3);
  for (const auto kept : every_precision)
    for (const bool gated : {true, false}) {
      om::matrix_source up_source(up, inner, width), down_source(down, width, inner);
      const auto expert =
          gated ? om::expert_weights(gate, up, down, width, inner, om::compute_place(), kept)
                : om::expert_weights(up_source, down_source, {}, kept);
      for (const std::size_t n : {1u, 3u, 40u, 200u}) {
        const auto rows = numbers(n * width, 4);
        BOOST_TEST_CONTEXT(to_string(kept) << (gated ? ", gated, " : ", ") << n << " rows")
        BOOST_TEST(no_team_changes_bits(
            n * width, [&](float* output) { expert.apply(rows.data(), output, n); }));
      }
    }
}

BOOST_AUTO_TEST_CASE(models_have_the_same_bits_however_many_threads_share_their_products) {
  for (const auto kind : {om::family::mixtral, om::family::qwen2_moe, om::family::qwen3_moe,
                          om::family::olmoe, om::family::switch_transformers}) {
    const fixture::scratch_folder place;
    auto options = fixture::small_model(kind);
    for (auto* size : {&options.shape.hidden_size, &options.shape.intermediate_size,
                       &options.shape.dense_intermediate_size, &options.shape.head_dim})
      *size *= 8;
    options.shape.max_context = 1024;
    fixture::need(om::write_random_model(place.path() / "model", options));
    const auto model = fixture::need(om::transformer::load(place.path() / "model"));
    // Long enough that attention is shared out too.
    std::vector<std::int32_t> ids(400);
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<std::int32_t>(3 + i * i % (model->config().vocab_size - 3));
    BOOST_TEST_CONTEXT(om::to_string(kind))
    BOOST_TEST(no_team_changes_bits(model->config().vocab_size, [&](float* output) {
      const auto logits = fixture::need(om::logits(*model, ids));
      std::copy_n(logits.end() - static_cast<std::ptrdiff_t>(model->config().vocab_size),
                  model->config().vocab_size, output);
    }));
  }
}

BOOST_AUTO_TEST_SUITE_END()
