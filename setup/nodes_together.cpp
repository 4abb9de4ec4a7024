#include "setup/nodes_together.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>

namespace ordermoe::setup {

result<void> check_reach(const std::vector<node_file>& files) {
  const auto listens_to = [](const node_file& from, const node_file& to) {
    const auto found = std::ranges::find(from.members, to.name, &node_member::name);
    return found != from.members.end() && !found->address.empty() && !to.listen.empty();
  };
  for (std::size_t a = 0; a < files.size(); ++a)
    for (std::size_t b = a + 1; b < files.size(); ++b)
      if (!listens_to(files[a], files[b]) && !listens_to(files[b], files[a]))
        return error{
            errc::mismatch,
            fmt::format("nodes {} and {}: neither has an address at which the other can "
                        "dial it; give one of them `listen` and the other its `address`, by "
                        "forwarding a port if need be",
                        files[a].name, files[b].name)};
  return {};
}

namespace {

/// Something that all nodes have alike, as a node's file says it.
struct shared_field {
  const char* name;
  std::function<std::string(const node_file&)> of;
};

const std::vector<shared_field>& shared_fields() {
  static const std::vector<shared_field> all{
      {"channel", [](const node_file& file) { return file.channel; }},
      {"costs", [](const node_file& file) { return file.costs; }},
      {"kv_precision", [](const node_file& file) { return file.kv_precision; }},
      {"rehearsal",
       [](const node_file& file) {
         return file.rehearsed ? fmt::format("dilation {}, stretch {}", file.rehearsed->dilation,
                                             file.rehearsed->stretch)
                               : std::string("none");
       }},
      {"drift.half_life_s",
       [](const node_file& file) { return fmt::format("{}", file.drift.half_life_s); }},
  };
  return all;
}

}  // namespace

result<void> check_alike(const std::vector<node_file>& files) {
  for (const auto& field : shared_fields())
    for (std::size_t i = 1; i < files.size(); ++i)
      if (field.of(files[i]) != field.of(files[0]))
        return error{errc::mismatch,
                     fmt::format("{}: node {} has {} and node {} {}; all nodes have the same, "
                                 "change it in one of their files",
                                 field.name, files[0].name, field.of(files[0]), files[i].name,
                                 field.of(files[i]))};
  return {};
}

}  // namespace ordermoe::setup
