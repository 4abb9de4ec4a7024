#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/common.hpp"
#include "config/json_text.hpp"
#include "net/identity/revocations.hpp"

namespace ordermoe::cli {

namespace {

constexpr std::int64_t day_s = 86'400;

struct cert_options {
  std::string folder, cluster = "ordermoe", file, role = "node", what;
  net::certificate_request wanted;
  net::renewal renewal;
  std::int64_t authority_days = 3650;
  bool older = false, json = false;
};

std::int64_t now_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string day(std::int64_t seconds) {
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

/// "in force", "expires in 12 days", "expired", "revoked".
std::string state_of(std::int64_t until_s, bool revoked) {
  const auto left_s = until_s - now_s();
  if (revoked) return "revoked";
  if (left_s <= 0) return "expired";
  if (left_s < net::expires_soon_s) return fmt::format("expires in {} days", left_s / day_s);
  return "in force";
}

nlohmann::ordered_json to_json(const net::certificate_facts& facts) {
  return {{"uri", facts.uri},
          {"subject", facts.subject},
          {"issuer", facts.issuer},
          {"serial", facts.serial},
          {"sha256", facts.fingerprint},
          {"not_before_s", facts.not_before_s},
          {"not_after_s", facts.not_after_s},
          {"is_authority", facts.is_authority},
          {"hosts", facts.hosts}};
}

/// What is revoked by the folder's list; empty where there is none.
result<net::revocation_list> revocations_in(const std::filesystem::path& folder) {
  std::error_code failed;
  if (!std::filesystem::exists(folder / "ca.crt", failed)) return net::revocation_list{};
  auto read = net::read_revocations(folder / net::revocations_file, folder / "ca.crt");
  if (!read) return read.error();
  return read->value_or(net::revocation_list{});
}

result<void> show_list(const std::filesystem::path& file, bool json) {
  const auto read = net::read_revocations(file, file.parent_path() / "ca.crt");
  if (!read) return read.error();
  if (!*read)
    return error{errc::not_found,
                 fmt::format("{}: no such file; `ordermoe cert revoke` makes it", file.string())};
  const auto& list = *read;
  if (json) {
    nlohmann::ordered_json j{{"number", list->number}, {"issued_s", list->issued_s}};
    j["revoked"] = nlohmann::ordered_json::array();
    for (const auto& each : list->revoked)
      j["revoked"].push_back({{"serial", each.serial}, {"since_s", each.since_s}});
    fmt::print("{}\n", json_text(j, 2));
    return {};
  }
  fmt::print("{}\n  list {} of {}\n", file.string(), list->number, day(list->issued_s));
  for (const auto& each : list->revoked)
    fmt::print("  {}  revoked {}\n", each.serial, day(each.since_s));
  return {};
}

result<void> show(const std::filesystem::path& file, bool json) {
  if (file.filename() == net::revocations_file) return show_list(file, json);
  const auto facts = net::read_certificate(file);
  if (!facts) return facts.error();
  const auto list = revocations_in(file.parent_path());
  if (!list) return list.error();
  const auto revoked = list->has(facts->serial);
  const auto state = state_of(facts->not_after_s, revoked);
  if (json) {
    auto j = to_json(*facts);
    j["state"] = state;
    j["revoked"] = revoked;
    fmt::print("{}\n", json_text(j, 2));
    return {};
  }
  fmt::print("{}\n  {}\n  issued by  {}\n  in force   {} to {}\n  state      {}\n", file.string(),
             facts->is_authority  ? "authority, " + facts->subject
             : facts->uri.empty() ? "no name of ours, " + facts->subject
                                  : facts->uri,
             facts->issuer, day(facts->not_before_s), day(facts->not_after_s), state);
  fmt::print("  serial     {}\n  sha256     {}\n", facts->serial, facts->fingerprint);
  for (const auto& host : facts->hosts) fmt::print("  host       {}\n", host);
  return {};
}

result<void> init(const cert_options& options) {
  if (auto made = net::make_authority(options.folder, options.cluster, options.authority_days);
      !made)
    return made;
  return show(std::filesystem::path(options.folder) / "ca.crt", options.json);
}

result<void> issue(cert_options options) {
  const auto of = net::parse_role(options.role);
  if (!of) return at("--role", of.error());
  options.wanted.of = *of;
  if (auto made = net::issue(options.folder, options.wanted); !made) return made;
  return show(std::filesystem::path(options.folder) / (options.wanted.name + ".crt"), options.json);
}

result<void> renew(const cert_options& options) {
  const auto& name = options.wanted.name;
  const auto before = net::renew(options.folder, name, options.renewal);
  if (!before) return before.error();
  if (!options.json)
    fmt::print(
        "took the place of serial {}; when its holder has the new one: ordermoe cert revoke "
        "{} --older --dir {}\n",
        before->serial, name, options.folder);
  return show(std::filesystem::path(options.folder) / (name + ".crt"), options.json);
}

nlohmann::ordered_json to_json(const net::issued_certificate& each) {
  return {{"serial", each.serial},
          {"role", net::to_string(each.of)},
          {"name", each.name},
          {"not_after_s", each.until_s}};
}

result<void> revoke(const cert_options& options) {
  const auto revoked =
      net::revoke(options.folder, options.what,
                  options.older ? net::revoke_which::all_but_latest : net::revoke_which::all);
  if (!revoked) return revoked.error();
  const auto list = revocations_in(options.folder);
  if (!list) return list.error();
  if (options.json) {
    nlohmann::ordered_json j{{"list", list->number}};
    j["revoked"] = nlohmann::ordered_json::array();
    for (const auto& each : *revoked) j["revoked"].push_back(to_json(each));
    fmt::print("{}\n", json_text(j, 2));
    return {};
  }
  for (const auto& each : *revoked)
    fmt::print("revoked {} {}, serial {}\n", net::to_string(each.of), each.name, each.serial);
  fmt::print(
      "{}: list {}, {} certificates; nodes that have this folder find it by themselves, "
      "others by `ordermoe admin cert reload`\n",
      (std::filesystem::path(options.folder) / net::revocations_file).string(), list->number,
      list->revoked.size());
  return {};
}

result<void> list_all(const cert_options& options) {
  const auto issued = net::read_issued(options.folder);
  if (!issued) return issued.error();
  const auto list = revocations_in(options.folder);
  if (!list) return list.error();
  if (options.json) {
    auto all = nlohmann::ordered_json::array();
    for (const auto& each : *issued) {
      auto j = to_json(each);
      j["state"] = state_of(each.until_s, list->has(each.serial));
      all.push_back(std::move(j));
    }
    fmt::print("{}\n", json_text(nlohmann::ordered_json{{"certificates", std::move(all)}}, 2));
    return {};
  }
  fmt::print("{:<16} {:<9} {:<33} {:<21} {}\n", "name", "role", "serial", "until", "state");
  for (const auto& each : *issued)
    fmt::print("{:<16} {:<9} {:<33} {:<21} {}\n", each.name, net::to_string(each.of), each.serial,
               day(each.until_s), state_of(each.until_s, list->has(each.serial)));
  return {};
}

void add_folder(CLI::App& command, cert_options& options) {
  command.add_option("--dir", options.folder, "Folder of the cluster's certificates")
      ->type_name(folder_value)
      ->required();
  command.add_flag("--json", options.json, "Print JSON on standard output");
}

void add_days(CLI::App& command, std::int64_t& days) {
  command.add_option("--days", days, "In force for so long")
      ->check(whole_from(1, 36'500))
      ->capture_default_str();
}

void add_renew(CLI::App& parent) {
  auto& command = *parent.add_subcommand(
      "renew", "Make another certificate for a name that has one, with a new key");
  auto options = std::make_shared<cert_options>();
  command.add_option("name", options->wanted.name, "Of the node, or of whoever is at the console")
      ->required();
  add_folder(command, *options);
  add_days(command, options->renewal.days);
  command.add_flag("--keep-key", options->renewal.keeps_key, "For the key that it has");
  command.footer(
      "Role and hosts stay. The one before is good until it expires or is revoked.\n"
      "Example:\n  ordermoe cert renew berlin --dir certificates");
  set_body(command, [options] { return renew(*options); });
}

void add_revoke(CLI::App& parent) {
  auto& command = *parent.add_subcommand(
      "revoke", "Have certificates not believed any more: a new ca.crl, signed by the authority");
  auto options = std::make_shared<cert_options>();
  command.add_option("what", options->what, "A name: all of its certificates; or a serial")
      ->required();
  add_folder(command, *options);
  command.add_flag("--older", options->older,
                   "Of a name: all but the latest, as after `cert renew`");
  command.footer("Example:\n  ordermoe cert revoke ann --dir certificates");
  set_body(command, [options] { return revoke(*options); });
}

void add_list(CLI::App& parent) {
  auto& command = *parent.add_subcommand("list", "Certificates that were issued, and their state");
  auto options = std::make_shared<cert_options>();
  add_folder(command, *options);
  command.footer("Example:\n  ordermoe cert list --dir certificates");
  set_body(command, [options] { return list_all(*options); });
}

}  // namespace

void add_cert(CLI::App& app) {
  auto& parent = *app.add_subcommand("cert", "Certificates of a cluster's nodes and consoles");
  parent.require_subcommand(1);

  auto& first = *parent.add_subcommand("init", "Make a cluster's certificate authority");
  auto options = std::make_shared<cert_options>();
  add_folder(first, *options);
  first.add_option("--cluster", options->cluster, "Name of the cluster")->capture_default_str();
  add_days(first, options->authority_days);
  first.footer("Example:\n  ordermoe cert init --dir certificates --cluster edge8");
  set_body(first, [options] { return init(*options); });

  auto& second = *parent.add_subcommand("issue", "Make a key and a certificate for a name");
  options = std::make_shared<cert_options>();
  second.add_option("name", options->wanted.name, "Of the node, or of whoever is at the console")
      ->required();
  add_folder(second, *options);
  second
      .add_option("--role", options->role,
                  "node, or for consoles: viewer, operator (drains and resumes) or admin")
      ->capture_default_str();
  add_days(second, options->wanted.days);
  second
      .add_option("--host", options->wanted.hosts,
                  "DNS name or address, for what checks those besides the name")
      ->delimiter(',');
  second.footer("Example:\n  ordermoe cert issue berlin --dir certificates");
  set_body(second, [options] { return issue(*options); });

  add_renew(parent);
  add_revoke(parent);
  add_list(parent);

  auto& third = *parent.add_subcommand(
      "show", "What a certificate says, and whether it is revoked by ca.crl beside it");
  options = std::make_shared<cert_options>();
  third.add_option("file", options->file, "In PEM; or ca.crl")->type_name(file_value)->required();
  third.add_flag("--json", options->json, "Print JSON on standard output");
  third.footer("Example:\n  ordermoe cert show certificates/berlin.crt");
  set_body(third, [options] { return show(options->file, options->json); });
}

}  // namespace ordermoe::cli
