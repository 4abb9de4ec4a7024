#include "actors/admin/tokens.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "config/files.hpp"
#include "config/json.hpp"
#include "config/sha256.hpp"

namespace ordermoe::actors {

namespace {

using nlohmann::ordered_json;

constexpr std::int64_t format_version = 1;
constexpr const char* prefix = "omt_";
constexpr std::size_t id_bytes = 8, secret_bytes = 32, salt_bytes = 16, hash_bytes = 32;
constexpr std::size_t id_digits = 2 * id_bytes;
constexpr std::size_t secret_digits = 2 * secret_bytes;

std::string hex(const unsigned char* bytes, std::size_t n) {
  std::string text;
  for (std::size_t i = 0; i < n; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

template <std::size_t n>
std::string random_hex() {
  std::array<unsigned char, n> bytes{};
  ORDERMOE_CHECK(RAND_bytes(bytes.data(), static_cast<int>(n)) == 1, "random bytes can be drawn");
  return hex(bytes.data(), n);
}

/// 256 random bits need no slow hash; this one costs 4 MiB and some milliseconds.
std::string hashed(const std::string& secret, const std::string& salt) {
  constexpr std::uint64_t cost = 4096, block = 8, lanes = 1, most_bytes = 32u << 20;
  std::array<unsigned char, hash_bytes> out{};
  const bool done = EVP_PBE_scrypt(secret.data(), secret.size(),
                                   reinterpret_cast<const unsigned char*>(salt.data()), salt.size(),
                                   cost, block, lanes, most_bytes, out.data(), out.size()) == 1;
  ORDERMOE_CHECK(done, "scrypt has its memory");
  return hex(out.data(), out.size());
}

bool is_hex(const std::string& text, std::size_t digits) {
  return text.size() == digits && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool is_name(const std::string& text) {
  return !text.empty() && text.size() <= 64 && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
  });
}

constexpr std::array roles{"viewer", "operator", "admin"};

error does_not_hold() {
  return {errc::usage,
          "the token does not hold here: none such, expired or revoked; `token list` of an admin "
          "has those that do"};
}

}  // namespace

result<token_book::made> token_book::make(const std::string& name, const std::string& role,
                                          std::int64_t for_s, std::int64_t now_s) {
  if (!is_name(name))
    return error{errc::usage, fmt::format("found the name '{}', expected 1 to 64 lower-case "
                                          "letters, digits, hyphens and dots",
                                          name)};
  if (std::ranges::find(roles, role) == roles.end())
    return error{errc::usage,
                 fmt::format("found role '{}', expected viewer, operator or admin", role)};
  if (for_s < 0 || for_s > longest_s)
    return error{errc::usage,
                 fmt::format("found {} s, expected 0 (for ever) to {}", for_s, longest_s)};
  forget_expired(now_s);
  for (const auto& [id, each] : tokens_)
    if (each.name == name && each.holds(now_s))
      return error{
          errc::usage,
          fmt::format("token {} is there already; revoke it first, or choose another name", name)};
  if (tokens_.size() >= most_tokens)
    return error{errc::failed, fmt::format("{} tokens are kept, and no more are; give tokens a "
                                           "time, after which they are forgotten",
                                           most_tokens)};
  made fresh;
  fresh.what = {random_hex<id_bytes>(),         name, role, random_hex<salt_bytes>(), "", now_s,
                for_s == 0 ? 0 : now_s + for_s, false};
  const auto secret = random_hex<secret_bytes>();
  fresh.what.hash = hashed(secret, fresh.what.salt);
  fresh.secret = fmt::format("{}{}_{}", prefix, fresh.what.id, secret);
  tokens_[fresh.what.id] = fresh.what;
  return fresh;
}

result<void> token_book::revoke(const std::string& name, std::int64_t now_s) {
  bool any = false;
  for (auto& [id, each] : tokens_) {
    if (each.name != name || !each.holds(now_s)) continue;
    each.revoked = any = true;
    recognised_.erase(id);
  }
  if (any) return {};
  return error{errc::not_found,
               fmt::format("no token {} holds; `token list` has those that do", name)};
}

result<access_token> token_book::check(const std::string& secret, std::int64_t now_s) {
  const std::string begin = prefix;
  if (secret.size() != begin.size() + id_digits + 1 + secret_digits || !secret.starts_with(begin))
    return does_not_hold();
  const auto id = secret.substr(begin.size(), id_digits);
  const auto found = tokens_.find(id);
  if (found == tokens_.end() || !found->second.holds(now_s)) return does_not_hold();
  const auto& known = found->second;
  const auto rest = secret.substr(begin.size() + id_digits + 1);
  const auto digest = sha256_hex(secret);
  if (const auto before = recognised_.find(id); before != recognised_.end())
    if (same_digest(before->second, digest)) return known;
  if (const auto failed = failed_s_.find(id); failed != failed_s_.end() && failed->second == now_s)
    return error{errc::usage, "the token was tried with a wrong secret; try again in a second"};
  if (!same_digest(known.hash, hashed(rest, known.salt))) {
    failed_s_[id] = now_s;
    return does_not_hold();
  }
  recognised_[id] = digest;
  return known;
}

bool token_book::merge(const token_book& other, std::int64_t now_s) {
  // They would stand in the way of new ones.
  forget_expired(now_s);
  bool changed = false;
  for (const auto& [id, theirs] : other.tokens_) {
    if (theirs.until_s != 0 && theirs.until_s <= now_s) continue;
    const auto found = tokens_.find(id);
    if (found == tokens_.end()) {
      if (tokens_.size() >= most_tokens) continue;
      tokens_[id] = theirs;
      changed = true;
    } else if (theirs.revoked && !found->second.revoked) {
      found->second.revoked = changed = true;
      recognised_.erase(id);
    }
  }
  return changed;
}

void token_book::forget_expired(std::int64_t now_s) {
  std::erase_if(tokens_, [&](const auto& each) {
    return each.second.until_s != 0 && each.second.until_s <= now_s;
  });
  std::erase_if(recognised_, [&](const auto& each) { return !tokens_.contains(each.first); });
  std::erase_if(failed_s_, [&](const auto& each) { return !tokens_.contains(each.first); });
}

std::string token_book::text() const {
  auto list = ordered_json::array();
  for (const auto& [id, each] : tokens_)
    list.push_back({{"id", id},
                    {"name", each.name},
                    {"role", each.role},
                    {"salt", each.salt},
                    {"scrypt", each.hash},
                    {"made_s", each.made_s},
                    {"until_s", each.until_s},
                    {"revoked", each.revoked}});
  return ordered_json{{"version", format_version}, {"tokens", std::move(list)}}.dump(1) + "\n";
}

result<token_book> token_book::parse(const std::string& text, const std::string& place) {
  auto document = json_document::parse(text, place);
  if (!document) return document.error();
  const auto root = (*document)->root();
  root.only({"version", "tokens"});
  root.at("version").integer(format_version, format_version);
  token_book book;
  bool good = true;
  for (const auto& item : root.at("tokens").items()) {
    item.only({"id", "name", "role", "salt", "scrypt", "made_s", "until_s", "revoked"});
    access_token each;
    each.id = item.at("id").string();
    each.name = item.at("name").string();
    each.role = roles[item.at("role").one_of({"viewer", "operator", "admin"})];
    each.salt = item.at("salt").string();
    each.hash = item.at("scrypt").string();
    each.made_s = item.at("made_s").integer(0);
    each.until_s = item.at("until_s").integer(0);
    each.revoked = item.at("revoked").boolean();
    good = good && is_hex(each.id, id_digits) && is_name(each.name) &&
           is_hex(each.salt, 2 * salt_bytes) && is_hex(each.hash, 2 * hash_bytes) &&
           book.tokens_.size() < most_tokens;
    book.tokens_[each.id] = std::move(each);
  }
  if (auto read = (*document)->finish(0); !read) return read.error();
  if (!good)
    return error{errc::malformed,
                 fmt::format("{}: found a token with an id, name, salt or hash that is none, or "
                             "more than {}; remove it",
                             place, most_tokens)};
  return book;
}

std::vector<access_token> token_book::all() const {
  std::vector<access_token> list;
  for (const auto& [id, each] : tokens_) list.push_back(each);
  std::ranges::sort(
      list, {}, [](const access_token& each) { return std::tie(each.name, each.made_s, each.id); });
  return list;
}

}  // namespace ordermoe::actors
