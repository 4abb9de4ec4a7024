#include "actors/admin/member_roll.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <tuple>

#include "config/files.hpp"
#include "config/json.hpp"
#include "net/channel/address.hpp"

namespace ordermoe::actors {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

bool member_word::is_newer_than(const member_word& other) const {
  // A node that lost what it kept may give a number again: then what it says decides, so that all end with the same.
  return std::tie(number, by, member, address) >
         std::tie(other.number, other.by, other.member, other.address);
}

std::string members_text(const member_words& words) {
  auto servers = ordered_json::array();
  for (const auto& [name, word] : words)
    if (word.number > 0)
      servers.push_back({{"name", name},
                         {"number", word.number},
                         {"by", word.by},
                         {"member", word.member},
                         {"address", word.address}});
  return ordered_json{{"version", 1}, {"servers", std::move(servers)}}.dump();
}

result<member_words> parse_members(std::string_view text, std::string_view place) {
  const auto document = json_document::parse(text, std::string(place));
  if (!document) return document.error();
  const auto root = (*document)->root();
  root.only({"version", "servers"});
  root.at("version").unsigned_integer(1, 1);
  member_words words;
  for (const auto& each : root.at("servers").items()) {
    each.only({"name", "number", "by", "member", "address"});
    member_word word;
    const auto name = each.at("name").string();
    word.number = each.at("number").unsigned_integer(1, member_word::most_number);
    word.by = each.at("by").string();
    word.member = each.at("member").boolean();
    word.address = each.at("address").string();
    if (!word.address.empty() && !net::parse_address(word.address))
      each.at("address").refuse(word.address, "HOST:PORT", errc::malformed);
    if (!words.emplace(name, std::move(word)).second)
      each.at("name").refuse(name, "each server once", errc::malformed);
  }
  return (*document)->finish(std::move(words));
}

result<std::shared_ptr<member_roll>> member_roll::open(fs::path file,
                                                       const std::set<std::string>& spare) {
  member_words first;
  for (const auto& name : spare) first[name].member = false;
  if (!file.empty()) {
    const auto text = read_file(file, std::size_t{1} << 20);
    if (!text && text.error().code != errc::not_found) return text.error();
    if (text) {
      const auto kept = parse_members(*text, file.string());
      // Done without it a node would let in again who was removed.
      if (!kept)
        return error{kept.error().code,
                     fmt::format("{}; or copy the file from another node, whose is the same",
                                 kept.error().message)};
      for (const auto& [name, word] : *kept) first[name] = word;
    }
  }
  return std::shared_ptr<member_roll>(new member_roll(std::move(file), std::move(first)));
}

member_words member_roll::now() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

bool member_roll::is_absent(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = now_.find(name);
  return found != now_.end() && !found->second.member;
}

std::set<std::string> member_roll::absent() const {
  std::set<std::string> names;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, word] : now_)
    if (!word.member) names.insert(name);
  return names;
}

member_roll::outcome member_roll::take(const member_words& words) {
  const std::lock_guard changing(changing_);
  outcome done;
  member_words next;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, word] : words) {
      auto& known = now_[name];
      if (!word.is_newer_than(known)) continue;
      known = word;
      done.changed.push_back(name);
    }
    next = now_;
  }
  if (done.changed.empty()) return done;
  if (user_) user_(next);
  if (file_.empty()) return done;
  std::error_code ignored;
  fs::create_directories(file_.parent_path(), ignored);
  done.kept = write_file(file_, members_text(next) + "\n");
  return done;
}

planning::server_mask mask_of(const std::set<std::string>& names, const cluster& servers) {
  planning::server_mask mask = 0;
  for (std::size_t server = 0; server < servers.size(); ++server)
    if (names.contains(servers.servers[server].name)) mask |= planning::server_bit(server);
  return mask;
}

}  // namespace ordermoe::actors
