#include "gateway/static_files.hpp"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <fstream>

namespace ordermoe::gateway {

namespace fs = std::filesystem;

BOOST_AUTO_TEST_SUITE(static_files)

BOOST_AUTO_TEST_CASE(pages_of_the_folder_and_nothing_else) {
  const auto base = fs::temp_directory_path() / ("ordermoe-pages-" + std::to_string(::getpid()));
  const auto folder = base / "pages";
  fs::create_directories(folder / "parts");
  std::ofstream(folder / "index.html") << "front";
  std::ofstream(folder / "parts" / "a.min.js") << "script";
  std::ofstream(folder / ".hidden") << "hidden";
  std::ofstream(base / "secret") << "secret";
  for (const char* path : {"/", "/dashboard", "/dashboard/", "/dashboard/index.html"})
    BOOST_TEST(read_page(folder, path).value_or(page_content{}).bytes == "front", path);
  const auto script = read_page(folder, "/dashboard/parts/a.min.js");
  BOOST_TEST_REQUIRE(script.has_value());
  BOOST_TEST(script->type == "text/javascript; charset=utf-8");
  for (const char* path :
       {"/dashboard/../secret", "/dashboard/parts/../../secret", "/dashboard/.hidden",
        "/dashboard//index.html", "/dashboard/%2e%2e/secret", "/dashboard/parts/",
        "/dashboard/parts", "/dashboard/none", "/dashboardindex.html", "/index.html",
        "/dashboard/..", "/dashboard/a..b"})
    BOOST_TEST(!read_page(folder, path).has_value(), path);
  BOOST_TEST(!read_page({}, "/").has_value());
  BOOST_TEST(!read_page(base / "none", "/").has_value());
  fs::remove_all(base);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::gateway
