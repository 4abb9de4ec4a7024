#include "cli/admin_session.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>

#include "cli/connection.hpp"
#include "config/files.hpp"
#include "config/json_text.hpp"
#include "setup/cluster_folder.hpp"

namespace ordermoe::cli {

using nlohmann::ordered_json;

namespace {

/// A secret, from a file that nobody else reads; empty where none is named.
result<std::string> read_token(const std::string& path) {
  if (path.empty()) return std::string();
  struct ::stat status {};
  if (::stat(path.c_str(), &status) == 0 && (status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    return error{
        errc::usage,
        fmt::format("--token-file {}: others than its owner may read it; chmod 600 it", path)};
  constexpr std::size_t most_bytes = 4096;
  auto text = read_file(path, most_bytes);
  if (!text) return at("--token-file", text.error());
  text->erase(text->find_last_not_of(" \t\r\n") + 1);
  if (text->empty())
    return error{errc::usage, fmt::format("--token-file {}: found nothing in it, expected the "
                                          "token that `token create` printed",
                                          path)};
  return text;
}

}  // namespace

result<std::vector<std::string>> admin_session::chosen_nodes() const {
  if (!flags_.node.empty() && flags_.node != "all") return std::vector{flags_.node};
  const auto files = setup::read_cluster_folder({flags_.folder});
  if (!files) return files.error();
  std::vector<std::string> names;
  for (const auto& file : *files) names.push_back(file.name);
  return names;
}

result<std::string> admin_session::other_than(const std::string& name) {
  if (!flags_.node.empty() && flags_.node != name) return flags_.node;
  const auto files = files_to_ask();
  if (!files) return files.error();
  error last{errc::usage, "no other node is there to ask"};
  for (const auto& file : *files) {
    if (file.name == name || file.listen.empty()) continue;
    if (const auto client = connect(file.name))
      return file.name;
    else
      last = client.error();
  }
  return last;
}

result<ordered_json> admin_session::order(const std::string& node, const std::string& verb,
                                          const ordered_json& arguments,
                                          std::chrono::seconds longest) {
  const auto token = read_token(flags_.token_file);
  if (!token) return token.error();
  const auto client = connect(node.empty() ? flags_.node : node);
  if (!client) return client.error();
  const auto reply = (*client)->order(verb, json_text(arguments), flags_.dry_run, longest, *token);
  if (!reply && reply.error().code == errc::io) clients_.clear();
  if (!reply) return at((*client)->node_name(), reply.error());
  return ordered_json::parse(*reply);
}

result<std::vector<node_file>> admin_session::files_to_ask() const {
  auto files = setup::read_cluster_folder({flags_.folder});
  if (!files) return files;
  if (const auto absent = setup::absent_members(*files))
    std::ranges::stable_partition(
        *files, [&](const node_file& each) { return !absent->contains(each.name); });
  return files;
}

result<admin_session::client_ptr> admin_session::connect(const std::string& wanted) {
  if (const auto found = clients_.find(wanted); found != clients_.end()) return found->second;
  const auto files = files_to_ask();
  if (!files) return files.error();
  std::vector<std::string> names;
  error last{errc::not_found, ""};
  for (const auto& file : *files) {
    names.push_back(file.name);
    if ((!wanted.empty() && file.name != wanted) || file.listen.empty()) continue;
    auto client = connect_to(file.listen.front(), flags_.folder);
    if (client) return clients_[wanted] = std::move(*client);
    last = client.error();
  }
  if (!last.message.empty()) return last;
  return error{errc::usage,
               fmt::format("found node '{}', expected one of {}", wanted, fmt::join(names, ", "))};
}

}  // namespace ordermoe::cli
