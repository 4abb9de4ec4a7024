#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

/// Pages that a gateway serves as they lie in a folder.
namespace ordermoe::gateway {

struct page_content {
  std::string bytes, type;
};

/// "/" and "/dashboard" are FOLDER/index.html, "/dashboard/NAME" is FOLDER/NAME: letters, digits, dots, hyphens, underscores, and
/// slashes between; no part begins with a dot. Nothing where there is no such file.
std::optional<page_content> read_page(const std::filesystem::path& folder, std::string_view path);

}  // namespace ordermoe::gateway
