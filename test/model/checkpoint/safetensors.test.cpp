#include "model/checkpoint/safetensors.hpp"

#include <sys/stat.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "model/checkpoint/checksums.hpp"
#include "test/model/fixture.hpp"

namespace {

namespace om = ordermoe::model;
using fixture::check_error;
using fixture::scratch_folder;
using nlohmann::json;
using ordermoe::errc;

std::string file_of(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

json entry(const json& shape, const json& offsets, const std::string& type = "F32") {
  return {{"dtype", type}, {"shape", shape}, {"data_offsets", offsets}};
}

/// Opens a file of this header over 16 bytes of data and expects to be refused with file, tensor
/// and these words.
void refuse(const json& header, const std::vector<std::string>& words,
            errc code = errc::malformed) {
  const scratch_folder folder;
  const auto path = folder.write("bad.safetensors", file_of(header.dump(), std::string(16, 'x')));
  auto expected = words;
  expected.push_back("bad.safetensors");
  check_error(om::checkpoint::open_file(path), code, expected);
}

om::tensor_data tensor(const std::string& name, const std::vector<std::size_t>& shape,
                       const std::vector<float>& numbers,
                       om::tensor_type type = om::tensor_type::f32) {
  return {name, type, shape, om::to_bytes(numbers, type)};
}

void write(const std::filesystem::path& path, const std::vector<om::tensor_data>& tensors) {
  const auto written = om::write_safetensors(path, tensors);
  if (!written) BOOST_FAIL(written.error().message);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(safetensors)

BOOST_AUTO_TEST_CASE(what_is_written_is_read_back) {
  const scratch_folder folder;
  const auto path = folder.path() / "model.safetensors";
  write(path, {tensor("b", {2, 3}, {1, 2, 3, 4, 5, 6}, om::tensor_type::bf16),
               tensor("a", {3}, {0.1f, -0.0f, 1e30f}), tensor("empty", {0, 4}, {}),
               tensor("scalar", {}, {7}, om::tensor_type::f16)});
  const auto read = fixture::need(om::checkpoint::open_folder(folder.path()));
  BOOST_TEST(read->tensors().size() == 4u);
  const std::size_t two_by_three[] = {2, 3};
  BOOST_TEST(fixture::need(read->read("b", two_by_three)) == (std::vector<float>{1, 2, 3, 4, 5, 6}),
             boost::test_tools::per_element());
  BOOST_TEST(read->find("a")->to_fp32() == (std::vector<float>{0.1f, -0.0f, 1e30f}),
             boost::test_tools::per_element());
  BOOST_TEST(read->find("empty")->size() == 0u);
  BOOST_TEST(read->find("scalar")->to_fp32().at(0) == 7.0f);
  BOOST_TEST(read->find("nothing") == nullptr);
}

BOOST_AUTO_TEST_CASE(bf16_numbers_are_rounded_to_nearest_with_ties_to_even) {
  const auto round = [](float x) {
    const auto bytes = om::to_bytes(std::vector<float>{x}, om::tensor_type::bf16);
    om::tensor_view view;
    view.type = om::tensor_type::bf16;
    view.bytes = std::as_bytes(std::span(bytes));
    return view.to_fp32().at(0);
  };
  BOOST_TEST(round(1.0f + 0x1p-8f) == 1.0f);
  BOOST_TEST(round(1.0f + 0x1.8p-7f) == 1.0f + 0x1p-6f);
  BOOST_TEST(round(1.0f + 0x1.01p-8f) == 1.0f + 0x1p-7f);
  BOOST_TEST(round(std::numeric_limits<float>::max()) == std::numeric_limits<float>::infinity());
  BOOST_TEST(std::isnan(round(std::numeric_limits<float>::quiet_NaN())));
}

BOOST_AUTO_TEST_CASE(every_f16_number_survives_widening_and_narrowing) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    om::tensor_view view;
    view.type = om::tensor_type::f16;
    view.bytes = std::as_bytes(std::span(&half, 1));
    const auto wide = view.to_fp32();
    if (std::isnan(wide[0])) continue;
    const auto bytes = om::to_bytes(wide, om::tensor_type::f16);
    std::uint16_t back;
    std::memcpy(&back, bytes.data(), 2);
    BOOST_REQUIRE_EQUAL(back, half);
  }
}

BOOST_AUTO_TEST_CASE(f16_numbers_are_rounded_to_nearest_with_ties_to_even) {
  const auto round = [](float x) {
    const auto bytes = om::to_bytes(std::vector<float>{x}, om::tensor_type::f16);
    std::uint16_t half;
    std::memcpy(&half, bytes.data(), 2);
    return half;
  };
  BOOST_TEST(round(1.0f) == 0x3c00);
  BOOST_TEST(round(1.0f + 0x1p-11f) == 0x3c00);
  BOOST_TEST(round(1.0f + 0x1.8p-10f) == 0x3c02);
  BOOST_TEST(round(65504.0f) == 0x7bff);
  BOOST_TEST(round(65519.996f) == 0x7bff);
  BOOST_TEST(round(65520.0f) == 0x7c00);
  BOOST_TEST(round(0x1p-24f) == 0x0001);
  BOOST_TEST(round(0x1p-25f) == 0x0000);
  BOOST_TEST(round(0x1.8p-24f) == 0x0002);
  BOOST_TEST(round(-0x1p-14f) == 0x8400);
  BOOST_TEST(round(0x1.ffcp-15f) == 0x0400);
}

BOOST_AUTO_TEST_CASE(a_header_longer_than_the_file_is_refused) {
  const scratch_folder folder;
  auto bytes = file_of(json{{"a", entry({4}, {0, 16})}}.dump(), std::string(16, 'x'));
  const std::uint64_t lengths[] = {bytes.size() - 7, 99'999'999, 1ull << 40, ~0ull};
  for (const std::uint64_t length : lengths) {
    std::memcpy(bytes.data(), &length, 8);
    check_error(om::checkpoint::open_file(folder.write("bad", bytes)), errc::malformed,
                {"bad", "header"});
  }
}

BOOST_AUTO_TEST_CASE(a_file_cut_short_anywhere_is_refused) {
  const scratch_folder folder;
  const auto bytes = file_of(json{{"a", entry({4}, {0, 16})}}.dump(), std::string(16, 'x'));
  BOOST_TEST(om::checkpoint::open_file(folder.write("good", bytes)).has_value());
  for (std::size_t n = 0; n < bytes.size(); ++n)
    check_error(om::checkpoint::open_file(folder.write("cut", bytes.substr(0, n))), errc::malformed,
                {"cut"});
  check_error(om::checkpoint::open_file(folder.write("long", bytes + "x")), errc::malformed,
              {"long"});
}

BOOST_AUTO_TEST_CASE(a_product_that_overflows_is_refused) {
  refuse({{"weight", entry({1ull << 32, 1ull << 32}, {0, 16})}}, {"'weight'", "product"});
  refuse({{"weight", entry({1ull << 62, 2, 2}, {0, 0})}}, {"'weight'", "product"});
  refuse({{"weight", entry({(1ull << 62) + 1}, {0, 4})}}, {"'weight'", "product"});
}

BOOST_AUTO_TEST_CASE(offsets_that_are_no_range_inside_the_data_are_refused) {
  refuse({{"weight", entry({4}, {16, 0})}}, {"'weight'", "end before"});
  refuse({{"weight", entry({4}, {-4, 12})}}, {"'weight'", "data_offsets"});
  refuse({{"weight", entry({4}, {0.0, 16.0})}}, {"'weight'", "data_offsets"});
  refuse({{"weight", entry({4}, {0, 16, 32})}}, {"'weight'", "data_offsets"});
  refuse({{"weight", entry({8}, {0, 32})}}, {"'weight'", "beyond"});
  refuse({{"weight", entry({4}, {8, ~0ull})}}, {"'weight'", "beyond"});
  refuse({{"weight", entry({3}, {0, 16})}}, {"'weight'", "span 16 bytes"});
  refuse({{"weight", entry({-4}, {0, 16})}}, {"'weight'", "shape"});
}

BOOST_AUTO_TEST_CASE(overlapping_ranges_and_gaps_are_refused) {
  refuse({{"one", entry({3}, {0, 12})}, {"two", entry({2}, {8, 16})}}, {"'two'", "overlap"});
  refuse({{"one", entry({4}, {0, 16})}, {"two", entry({4}, {0, 16})}}, {"'two'", "overlap"});
  refuse({{"one", entry({1}, {0, 4})}, {"two", entry({2}, {8, 16})}}, {"'two'", "unused"});
  refuse({{"one", entry({2}, {0, 8})}}, {"16 bytes of data"});
}

BOOST_AUTO_TEST_CASE(types_that_are_not_read_are_refused_by_name) {
  refuse({{"weight", entry({4}, {0, 16}, "I32")}}, {"'weight'", "I32"}, errc::unsupported);
  refuse({{"weight", entry({4}, {0, 16}, "f32")}}, {"'weight'", "f32"}, errc::unsupported);
}

BOOST_AUTO_TEST_CASE(headers_that_are_no_proper_json_are_refused) {
  const scratch_folder folder;
  const std::string data(16, 'x');
  const std::string good = entry({4}, {0, 16}).dump();
  for (const std::string& header :
       {std::string("{"), std::string("[1]"), std::string("nonsense"), std::string(),
        std::string("{\"a\":1}"), std::string("{\"a\":[]}"),
        "{\"a\":" + good + ",\"a\":" + good + "}", "{\"a\":" + good + "} {}",
        "{\"__metadata__\":{\"x\":1},\"a\":" + good + "}", std::string(100'000, '[')})
    check_error(om::checkpoint::open_file(folder.write("bad", file_of(header, data))),
                errc::malformed, {"bad"});
}

BOOST_AUTO_TEST_CASE(the_writer_refuses_what_does_not_fit_together) {
  const scratch_folder folder;
  const auto path = folder.path() / "out";
  auto wrong = tensor("weight", {2, 2}, {1, 2, 3, 4});
  wrong.shape = {2, 3};
  check_error(om::write_safetensors(path, std::vector{wrong}), errc::out_of_range, {"'weight'"});
  const auto good = tensor("weight", {2}, {1, 2});
  check_error(om::write_safetensors(path, std::vector{good, good}), errc::out_of_range,
              {"'weight'", "twice"});
  BOOST_TEST(!std::filesystem::exists(path));
}

BOOST_AUTO_TEST_CASE(shards_are_read_by_their_index) {
  const scratch_folder folder;
  write(folder.path() / "one.safetensors", {tensor("a", {2}, {1, 2})});
  write(folder.path() / "two.safetensors", {tensor("b", {1}, {3})});
  folder.write("model.safetensors.index.json",
               json{{"weight_map", {{"a", "one.safetensors"}, {"b", "two.safetensors"}}}}.dump());
  const auto read = fixture::need(om::checkpoint::open_folder(folder.path()));
  BOOST_TEST(read->find("a")->to_fp32().at(1) == 2.0f);
  BOOST_TEST(read->find("b")->to_fp32().at(0) == 3.0f);
}

BOOST_AUTO_TEST_CASE(an_index_that_does_not_fit_its_shards_is_refused) {
  const scratch_folder folder;
  write(folder.path() / "one.safetensors", {tensor("a", {2}, {1, 2})});
  write(folder.path() / "two.safetensors", {tensor("b", {1}, {3})});
  const auto open = [&](const json& map) {
    folder.write("model.safetensors.index.json", json{{"weight_map", map}}.dump());
    return om::checkpoint::open_folder(folder.path());
  };
  check_error(open({{"a", "one.safetensors"}, {"b", "three.safetensors"}}), errc::not_found,
              {"three.safetensors", "'b'"});
  check_error(open({{"a", "two.safetensors"}, {"b", "one.safetensors"}}), errc::mismatch,
              {"index.json", "'a'"});
  check_error(open({{"a", "one.safetensors"}}).has_value()
                  ? open({{"a", "one.safetensors"}, {"c", "two.safetensors"}})
                  : open({{"a", "one.safetensors"}}),
              errc::mismatch, {"'c'"});
  check_error(open({{"a", "one.safetensors"}, {"b", "two.safetensors"}, {"c", "two.safetensors"}}),
              errc::mismatch, {"'c'", "in no shard"});
  write(folder.path() / "two.safetensors", {tensor("b", {1}, {3}), tensor("more", {1}, {3})});
  check_error(open({{"a", "one.safetensors"}, {"b", "two.safetensors"}}), errc::mismatch,
              {"two.safetensors", "'more'"});
  write(folder.path() / "two.safetensors", {tensor("b", {1}, {3}), tensor("a", {1}, {3})});
  check_error(open({{"a", "one.safetensors"}, {"b", "two.safetensors"}}), errc::malformed,
              {"'a'", "as well"});
}

BOOST_AUTO_TEST_CASE(file_names_in_an_index_may_not_leave_the_folder) {
  const scratch_folder folder;
  write(folder.path() / "one.safetensors", {tensor("a", {2}, {1, 2})});
  for (const std::string name : {"../one.safetensors", "/etc/passwd", "sub/one.safetensors", "..",
                                 ".", "", "..\\one.safetensors"}) {
    folder.write("model.safetensors.index.json", json{{"weight_map", {{"a", name}}}}.dump());
    check_error(om::checkpoint::open_folder(folder.path()), errc::malformed,
                {"index.json", "'a'", "plain name"});
  }
}

BOOST_AUTO_TEST_CASE(a_folder_without_weights_is_refused) {
  const scratch_folder folder;
  check_error(om::checkpoint::open_folder(folder.path()), errc::not_found,
              {"model.safetensors", folder.path().string()});
  check_error(om::checkpoint::open_folder(folder.path() / "nowhere"), errc::not_found, {"nowhere"});
  check_error(om::checkpoint::open_file(folder.path()), errc::not_found, {"regular file"});
}

BOOST_AUTO_TEST_CASE(a_fifo_is_refused_and_nobody_waits_for_its_writer) {
  const scratch_folder folder;
  const auto path = folder.path() / "model.safetensors";
  BOOST_REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  check_error(om::checkpoint::open_folder(folder.path()), errc::not_found,
              {"model.safetensors", "regular file"});
  check_error(om::hash_file(path), errc::not_found, {"model.safetensors", "regular file"});
}

BOOST_AUTO_TEST_CASE(a_digest_changes_with_the_weights_and_the_configuration) {
  const scratch_folder folder;
  std::filesystem::copy_file(fixture::tiny / "config.json", folder.path() / "config.json");
  write(folder.path() / "model.safetensors", {tensor("a", {2}, {1, 2})});
  const auto first = fixture::need(om::model_digest(folder.path()));
  BOOST_TEST(first == fixture::need(om::model_digest(folder.path())));
  write(folder.path() / "model.safetensors", {tensor("a", {2}, {1, 3})});
  const auto second = fixture::need(om::model_digest(folder.path()));
  folder.write("config.json", "{}");
  const auto third = fixture::need(om::model_digest(folder.path()));
  BOOST_TEST(first != second);
  BOOST_TEST(second != third);
}

BOOST_AUTO_TEST_SUITE_END()
