#include "model/training/safetensors_file.hpp"

#include <boost/test/unit_test.hpp>

#include <bit>
#include <cstring>
#include <filesystem>
#include <string>

#include "config/files.hpp"
#include "model/checkpoint/safetensors.hpp"

using namespace ordermoe;
using namespace ordermoe::training;

BOOST_AUTO_TEST_SUITE(safetensors_file)

namespace {

struct folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() /
                               ("ordermoe_safetensors_file_" + std::to_string(::getpid()));
  folder() { std::filesystem::create_directories(path); }
  ~folder() { std::filesystem::remove_all(path); }
};

stored_file sample() {
  const float values[] = {1.0f, -2.5f, 3.25f, 0.0f, 1e-3f, 7.0f};
  stored_file content;
  content.metadata["format"] = "pt";
  content.tensors.push_back(store_f32("a", {2, 3}, values));
  content.tensors.push_back(store_bf16("b", {6}, values));
  return content;
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_is_written_is_read_back) {
  const folder here;
  BOOST_TEST_REQUIRE(write_safetensors(here.path / "x.safetensors", sample()).has_value());
  const auto read = read_stored_file(here.path / "x.safetensors");
  BOOST_TEST_REQUIRE(read.has_value());
  BOOST_TEST(read->metadata.at("format") == "pt");
  BOOST_TEST_REQUIRE(read->tensors.size() == 2u);
  const auto original = sample();
  for (const auto& tensor : original.tensors) {
    const auto* found = read->find(tensor.name);
    BOOST_TEST_REQUIRE(found != nullptr);
    BOOST_TEST((found->bytes == tensor.bytes));
    BOOST_TEST((found->shape == tensor.shape));
  }
}

BOOST_AUTO_TEST_CASE(the_model_reader_accepts_the_file) {
  const folder here;
  BOOST_TEST_REQUIRE(write_safetensors(here.path / "model.safetensors", sample()).has_value());
  const auto opened = model::checkpoint::open_folder(here.path);
  BOOST_TEST_REQUIRE(opened.has_value());
  const std::size_t shape[] = {2, 3};
  const auto values = (*opened)->read("a", shape);
  BOOST_TEST_REQUIRE(values.has_value());
  BOOST_TEST((*values)[1] == -2.5f);
}

BOOST_AUTO_TEST_CASE(bf16_rounds_to_nearest_even) {
  const float values[] = {1.0f, std::bit_cast<float>(0x3f808000u),
                          std::bit_cast<float>(0x3f818000u), std::bit_cast<float>(0x3f808001u)};
  const auto tensor = store_bf16("x", {4}, values);
  std::uint16_t bits[4];
  std::memcpy(bits, tensor.bytes.data(), sizeof bits);
  BOOST_TEST(bits[0] == 0x3f80);
  BOOST_TEST(bits[1] == 0x3f80);
  BOOST_TEST(bits[2] == 0x3f82);
  BOOST_TEST(bits[3] == 0x3f81);
}

BOOST_AUTO_TEST_CASE(a_damaged_file_is_refused_wherever_it_is_cut) {
  const folder here;
  const auto bytes = safetensors_bytes(sample());
  const auto path = here.path / "cut.safetensors";
  for (std::size_t n = 0; n < bytes.size(); n += 7) {
    BOOST_TEST_REQUIRE(write_file(path, std::string_view(bytes).substr(0, n)).has_value());
    const auto read = read_stored_file(path);
    BOOST_TEST_REQUIRE(!read.has_value(), "cut at " << n);
    BOOST_TEST((read.error().code == errc::malformed));
  }
}

BOOST_AUTO_TEST_CASE(ranges_and_sizes_are_checked) {
  const folder here;
  const auto path = here.path / "bad.safetensors";
  const auto refused = [&](const std::string& header) {
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size());
    BOOST_TEST_REQUIRE(write_file(path, bytes + header + std::string(16, 'x')).has_value());
    return !read_stored_file(path).has_value();
  };
  BOOST_TEST(!refused(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})"));
  BOOST_TEST(refused(R"({"a":{"dtype":"F32","shape":[5],"data_offsets":[0,16]}})"));
  BOOST_TEST(refused(R"({"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}})"));
  BOOST_TEST(refused(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}})"));
  BOOST_TEST(refused(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[4,20]}})"));
  BOOST_TEST(refused(R"({"a":{"dtype":"I8","shape":[16],"data_offsets":[0,16]}})"));
  BOOST_TEST(
      refused(R"({"a":{"dtype":"F32","shape":[4294967296,4294967297],"data_offsets":[0,16]}})"));
  BOOST_TEST(refused("[1,2]"));
}

BOOST_AUTO_TEST_SUITE_END()
