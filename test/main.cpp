#define BOOST_TEST_MODULE ordermoe
#include <boost/test/unit_test.hpp>
