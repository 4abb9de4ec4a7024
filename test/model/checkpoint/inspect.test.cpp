#include "model/checkpoint/inspect.hpp"

#include "model/checkpoint/random_model.hpp"
#include "test/model/fixture.hpp"

namespace {

namespace om = ordermoe::model;
using ordermoe::errc;

const om::storage_sizes& in(const om::model_sizes& sizes, om::weight_storage kept) {
  return sizes.storages.at(static_cast<std::size_t>(kept));
}

ordermoe::cluster cluster_of(const std::vector<std::int64_t>& memory, std::int64_t kv) {
  ordermoe::cluster servers;
  for (const auto bytes : memory) {
    ordermoe::server_spec server;
    server.memory_bytes = bytes;
    server.kv_bytes = kv;
    servers.servers.push_back(server);
  }
  return servers;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(inspect)

BOOST_AUTO_TEST_CASE(an_expert_of_mixtral_weighs_what_its_matrices_do) {
  const auto sizes = om::sizes_of(om::published_shape(om::family::mixtral));
  constexpr std::int64_t weights = std::int64_t{3} * 4096 * 14336;
  BOOST_TEST(sizes.total_weights == 46'702'792'704u);
  BOOST_TEST(sizes.n_experts == 256u);
  BOOST_TEST(sizes.expert_weights == static_cast<std::uint64_t>(weights));
  BOOST_TEST(in(sizes, om::weight_storage::fp32).expert_bytes == 4 * weights);
  BOOST_TEST(in(sizes, om::weight_storage::bf16).expert_bytes == 2 * weights);
  BOOST_TEST(in(sizes, om::weight_storage::int8).expert_bytes == weights + 4 * (2 * 14336 + 4096));
  BOOST_TEST(in(sizes, om::weight_storage::int4).expert_bytes == weights * 9 / 16);
  for (const auto& each : sizes.storages)
    BOOST_TEST(each.total_bytes == each.non_expert_bytes + 256 * each.expert_bytes);
  BOOST_TEST(in(sizes, om::weight_storage::int4).non_expert_bytes ==
             in(sizes, om::weight_storage::bf16).non_expert_bytes);
}

BOOST_AUTO_TEST_CASE(a_shared_expert_is_no_routed_expert) {
  const auto shape = om::published_shape(om::family::qwen2_moe);
  const auto sizes = om::sizes_of(shape);
  BOOST_TEST(sizes.n_experts == 24u * 60u);
  BOOST_TEST(sizes.non_expert_weights > std::uint64_t{24} * 3 * 2048 * 5632);
}

BOOST_AUTO_TEST_CASE(servers_hold_what_fits_beside_the_other_parts_and_the_kv_rows) {
  const auto sizes = om::sizes_of(om::small_shape(om::family::mixtral));
  const auto& bf16 = in(sizes, om::weight_storage::bf16);
  const std::int64_t kv = 1000;
  const auto base = bf16.non_expert_bytes + kv;
  const auto servers = cluster_of({base + 10 * bf16.expert_bytes, base + 14 * bf16.expert_bytes - 1,
                                   base - 1, base + 1000 * bf16.expert_bytes},
                                  kv);
  const auto room =
      om::room_in(servers, sizes).at(static_cast<std::size_t>(om::weight_storage::bf16));
  BOOST_TEST(room.servers[0].n_experts == 10u);
  BOOST_TEST(room.servers[1].n_experts == 13u);
  BOOST_TEST(room.servers[2].n_experts == 0u);
  BOOST_TEST(room.servers[2].left_bytes == -1);
  BOOST_TEST(room.servers[3].n_experts == 24u);
  BOOST_TEST(room.holds_a_copy);
  const auto three = cluster_of({base + 10 * bf16.expert_bytes, base + 13 * bf16.expert_bytes}, kv);
  const auto less =
      om::room_in(three, sizes).at(static_cast<std::size_t>(om::weight_storage::bf16));
  BOOST_TEST(!less.holds_a_copy);
  BOOST_TEST(less.n_experts == 23u);
  BOOST_TEST(less.missing_bytes == bf16.expert_bytes);
}

BOOST_AUTO_TEST_CASE(kinds_of_storage_have_names) {
  for (const auto kept : om::all_storages)
    BOOST_TEST((fixture::need(om::parse_storage(om::to_string(kept))) == kept));
  fixture::check_error(om::parse_storage("int2"), errc::usage, {"int2", "int4"});
}

BOOST_AUTO_TEST_SUITE_END()
