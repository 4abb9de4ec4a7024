#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/common.hpp"
#include "net/identity/certificates.hpp"

namespace ordermoe::cli {

namespace {

struct cert_options {
  std::string folder, cluster = "ordermoe", file, role = "node";
  net::certificate_request wanted;
  std::int64_t authority_days = 3650;
  bool json = false;
};

std::string day(std::int64_t seconds) {
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(static_cast<std::time_t>(seconds)));
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

result<void> show(const std::filesystem::path& file, bool json) {
  const auto facts = net::read_certificate(file);
  if (!facts) return facts.error();
  if (json) {
    fmt::print("{}\n", to_json(*facts).dump(2));
    return {};
  }
  fmt::print("{}\n  {}\n  issued by  {}\n  in force   {} to {}\n  serial     {}\n  sha256     {}\n",
             file.string(),
             facts->is_authority  ? "authority, " + facts->subject
             : facts->uri.empty() ? "no name of ours, " + facts->subject
                                  : facts->uri,
             facts->issuer, day(facts->not_before_s), day(facts->not_after_s), facts->serial,
             facts->fingerprint);
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

void add_folder(CLI::App& command, cert_options& options) {
  command.add_option("--dir", options.folder, "Folder of the cluster's certificates")->required();
  command.add_flag("--json", options.json, "Print JSON on standard output");
}

}  // namespace

void add_cert(CLI::App& app) {
  auto& parent = *app.add_subcommand("cert", "Certificates of a cluster's nodes and consoles");
  parent.require_subcommand(1);

  auto& first = *parent.add_subcommand("init", "Make a cluster's certificate authority");
  auto options = std::make_shared<cert_options>();
  add_folder(first, *options);
  first.add_option("--cluster", options->cluster, "Name of the cluster")->capture_default_str();
  first.add_option("--days", options->authority_days, "In force for so long")
      ->check(whole_from(1, 36'500))
      ->capture_default_str();
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
  second.add_option("--days", options->wanted.days, "In force for so long")
      ->check(whole_from(1, 36'500))
      ->capture_default_str();
  second
      .add_option("--host", options->wanted.hosts,
                  "DNS name or address, for what checks those besides the name")
      ->delimiter(',');
  second.footer("Example:\n  ordermoe cert issue berlin --dir certificates");
  set_body(second, [options] { return issue(*options); });

  auto& third = *parent.add_subcommand("show", "What a certificate says");
  options = std::make_shared<cert_options>();
  third.add_option("file", options->file, "In PEM")->required();
  third.add_flag("--json", options->json, "Print JSON on standard output");
  third.footer("Example:\n  ordermoe cert show certificates/berlin.crt");
  set_body(third, [options] { return show(options->file, options->json); });
}

}  // namespace ordermoe::cli
