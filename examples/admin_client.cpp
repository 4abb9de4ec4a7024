// An operator's console inside a program: how all nodes of a cluster do, and, with a policy, what setting it would change and
// then that. Replies are JSON, which a program of yours would read with a library.
//
//   admin_client HOST:PORT FOLDER ['{"omega_time": 0.7}' [TOKEN-FILE]]

#include <ordermoe/node.hpp>

#include <cstdio>
#include <fstream>
#include <string>

namespace api = ordermoe::api;

namespace {

/// Prints the reply, or why there is none.
bool order(api::node& cluster, const api::admin_order& wanted) {
  const auto reply = cluster.order(wanted);
  if (!reply) {
    std::fprintf(stderr, "admin_client: %s: %s\n", wanted.verb.c_str(),
                 reply.problem().message.c_str());
    return false;
  }
  std::printf("%s%s: %s\n", wanted.verb.c_str(), wanted.dry_run ? ", tried" : "", reply->c_str());
  return true;
}

/// A JSON string.
std::string quoted(const std::string& text) {
  std::string made = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') made += '\\';
    made += c;
  }
  return made + '"';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: admin_client HOST:PORT FOLDER [POLICY [TOKEN-FILE]]\n");
    return 2;
  }
  // The console's certificate of the folder says who this is; its role is what it may do.
  auto cluster = api::node::connect({.address = argv[1], .folder = argv[2]});
  if (!cluster) {
    std::fprintf(stderr, "admin_client: %s\n", cluster.problem().message.c_str());
    return 1;
  }
  if (!order(*cluster, {.verb = "status"})) return 1;
  if (argc < 4) return 0;
  api::admin_order change{.verb = "policy.set",
                          .arguments = "{\"policy\":" + quoted(argv[3]) + "}"};
  // A token may have more of a role than the certificate.
  if (argc > 4) std::getline(std::ifstream(argv[4]) >> std::ws, change.token);
  change.dry_run = true;
  if (!order(*cluster, change)) return 1;
  change.dry_run = false;
  return order(*cluster, change) ? 0 : 1;
}
