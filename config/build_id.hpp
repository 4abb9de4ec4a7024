#pragma once

#include <string_view>

namespace ordermoe {

/// The last commit that changed anything that this program is compiled from, as ten digits, with a + where the sources had changes that no commit has;
/// empty where it was not built in a repository. What is printed in virtual time is the same bits by one build.
std::string_view build_id();

}  // namespace ordermoe
