#include "config/sha256.hpp"

#include <boost/test/unit_test.hpp>

#include "config/files.hpp"

using namespace ordermoe;

BOOST_AUTO_TEST_SUITE(sha256)

BOOST_AUTO_TEST_CASE(hashes_are_those_of_the_standard) {
  BOOST_TEST(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  BOOST_TEST(sha256_hex("abc") ==
             "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

BOOST_AUTO_TEST_CASE(what_is_fed_in_parts_counts_as_one) {
  ordermoe::sha256 digest;
  digest.update("a");
  digest.update("");
  digest.update("bc");
  BOOST_TEST(digest.finish() == sha256_hex("abc"));
}

BOOST_AUTO_TEST_CASE(digests_are_the_same_where_all_of_them_is) {
  const auto one = sha256_hex("a");
  BOOST_TEST(same_digest(one, sha256_hex("a")));
  BOOST_TEST(same_digest("", ""));
  BOOST_TEST(!same_digest(one, sha256_hex("b")));
  BOOST_TEST(!same_digest(one, one.substr(1)));
  BOOST_TEST(!same_digest(one, ""));
  for (std::size_t i = 0; i < one.size(); ++i) {
    auto other = one;
    other[i] = static_cast<char>(other[i] ^ 1);
    BOOST_TEST(!same_digest(one, other));
  }
}

BOOST_AUTO_TEST_SUITE_END()
