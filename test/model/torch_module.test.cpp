#include "model/torch_module.hpp"

#include <cstdlib>
#include <fstream>

#include "model/compute_device.hpp"
#include "model/reference.hpp"
#include "test/model/fixture.hpp"

namespace {

namespace om = ordermoe::model;
namespace fs = std::filesystem;
using fixture::check_error;
using ordermoe::errc;

/// Whether a file of that name is mapped into this process.
bool maps(std::string_view name) {
  std::ifstream list("/proc/self/maps");
  for (std::string line; std::getline(list, line);)
    if (line.find(name) != std::string::npos) return true;
  return false;
}

/// $ORDERMOE_TORCH_MODULE for a while.
struct named_module {
  explicit named_module(const fs::path& file) {
    ::setenv("ORDERMOE_TORCH_MODULE", file.c_str(), 1);
  }
  ~named_module() { ::unsetenv("ORDERMOE_TORCH_MODULE"); }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(torch_module)

// In the order of the cases: what is loaded stays.
BOOST_AUTO_TEST_CASE(a_model_on_the_kernels_brings_no_libtorch_into_the_process) {
  const auto model = fixture::need(om::transformer::load(fixture::tiny));
  const std::vector<std::int32_t> ids = {1, 2, 3, 4};
  BOOST_REQUIRE(om::logits(*model, ids));
  BOOST_TEST(!om::torch_is_loaded());
  BOOST_TEST(!maps("libtorch"));
  BOOST_TEST(!maps("libc10"));
}

BOOST_AUTO_TEST_CASE(a_missing_or_foreign_module_is_named_with_what_to_do) {
  {
    const named_module nowhere("/nonexistent/module.so");
    check_error(
        om::open_device("cpu"), errc::unsupported,
        {"device 'libtorch:cpu'", "not at /nonexistent/module.so", "ORDERMOE_TORCH_MODULE"});
    check_error(om::transformer::load(fixture::tiny, {.device = "libtorch:cpu"}), errc::unsupported,
                {"/nonexistent/module.so"});
  }
  {
    const named_module text(fixture::tiny / "config.json");
    check_error(om::open_device("cpu"), errc::unsupported, {"config.json: cannot be loaded"});
  }
  {
    // A shared library that every process has, and that is no module.
    const named_module other("/proc/self/exe");
    const auto opened = om::open_device("cpu");
    BOOST_REQUIRE(!opened);
    BOOST_TEST((opened.error().code == errc::unsupported));
  }
  BOOST_TEST(!om::torch_is_loaded());
}

BOOST_AUTO_TEST_CASE(what_asks_for_libtorch_gets_it) {
  BOOST_REQUIRE(om::open_device("cpu"));
  BOOST_TEST(om::torch_is_loaded());
  BOOST_TEST(maps("libtorch"));
}

BOOST_AUTO_TEST_SUITE_END()
