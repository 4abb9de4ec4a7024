#include "gateway/keys.hpp"

#include <fmt/format.h>

#include <cctype>
#include <sstream>

#include "config/files.hpp"
#include "config/sha256.hpp"
#include "net/identity/certificates.hpp"

namespace ordermoe::gateway {

namespace {

constexpr std::size_t shortest_key = 16;
constexpr std::size_t most_file_bytes = 1u << 20;

}  // namespace

std::string_view bearer_of(std::string_view authorization) {
  constexpr std::string_view word = "bearer ";
  if (authorization.size() <= word.size()) return {};
  for (std::size_t i = 0; i < word.size(); ++i)
    if (std::tolower(static_cast<unsigned char>(authorization[i])) != word[i]) return {};
  return authorization.substr(word.size());
}

api_keys::api_keys(const std::vector<std::string>& keys) {
  for (const auto& key : keys) digests_.push_back(sha256_hex(key));
}

result<api_keys> api_keys::read(const std::filesystem::path& file) {
  const auto text = read_file(file, most_file_bytes);
  if (!text) return text.error();
  if (auto good = net::check_owner_alone(file); !good) return good.error();
  std::vector<std::string> keys;
  std::istringstream lines(*text);
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.pop_back();
    if (line.empty() || line.front() == '#') continue;
    if (line.size() < shortest_key)
      return error{errc::usage,
                   fmt::format("{}:{}: a key of {} characters, expected {} at least; make one with "
                               "`openssl rand -hex 24`",
                               file.string(), number, line.size(), shortest_key)};
    keys.push_back(line);
  }
  if (keys.empty())
    return error{
        errc::usage,
        fmt::format("{}: no key is in it, expected one a line; make one with `openssl rand "
                    "-hex 24`",
                    file.string())};
  return api_keys(keys);
}

bool api_keys::allow(std::string_view authorization) const {
  if (digests_.empty()) return true;
  const auto key = bearer_of(authorization);
  if (key.empty()) return false;
  const auto digest = sha256_hex(key);
  bool found = false;
  for (const auto& each : digests_) found |= same_digest(each, digest);
  return found;
}

}  // namespace ordermoe::gateway
