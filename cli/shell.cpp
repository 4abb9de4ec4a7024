#include "cli/shell.hpp"

#include <cstdio>
#include <string_view>

#include "cli/common.hpp"
#include "cli/complete.hpp"
#include "cli/manual.hpp"

namespace ordermoe::cli {

std::optional<int> answer_shell(const CLI::App& app, int argc, char** argv) {
  const std::string_view asked = argc > 1 ? argv[1] : "";
  if (asked == "__complete") {
    const auto text = text_of(complete(app, {argv + 2, argv + argc}));
    std::fputs(text.c_str(), stdout);
    return 0;
  }
  if (asked == "__manual") {
    if (argc != 3)
      return report({errc::usage, "__manual: expected one folder for the manual pages"});
    const auto written = write_manual(app, argv[2]);
    return written ? 0 : report(written.error());
  }
  return std::nullopt;
}

}  // namespace ordermoe::cli
