#include "model/checkpoint/npy.hpp"

#include "test/model/fixture.hpp"

BOOST_AUTO_TEST_SUITE(npy)

BOOST_AUTO_TEST_CASE(the_bytes_are_those_of_the_format) {
  const fixture::scratch_folder folder;
  const std::vector<float> numbers{1, 2, 3, 4, 5, -6.5f};
  BOOST_REQUIRE(ordermoe::model::write_npy(folder.path() / "a.npy", numbers, 2, 3));
  const auto bytes = fixture::need(ordermoe::read_file(folder.path() / "a.npy"));
  BOOST_REQUIRE_EQUAL(bytes.size(), 128u + 24u);
  BOOST_TEST(bytes.substr(0, 8) == std::string("\x93NUMPY\x01\x00", 8));
  BOOST_TEST(static_cast<unsigned char>(bytes[8]) + 256 * static_cast<unsigned char>(bytes[9]) ==
             118);
  const std::string header = bytes.substr(10, 118);
  BOOST_TEST(header.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"));
  BOOST_TEST(header.back() == '\n');
  BOOST_TEST(std::memcmp(bytes.data() + 128, numbers.data(), 24) == 0);
}

BOOST_AUTO_TEST_CASE(a_folder_that_is_not_there_is_an_error) {
  const std::vector<float> numbers{1};
  fixture::check_error(ordermoe::model::write_npy("/nowhere/at/all.npy", numbers, 1, 1),
                       ordermoe::errc::io, {"/nowhere/at/all.npy"});
}

BOOST_AUTO_TEST_SUITE_END()
