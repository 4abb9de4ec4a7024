#include "config/node_file.hpp"

#include <fmt/format.h>

#include <set>

#include "config/cluster.hpp"
#include "config/devices.hpp"
#include "config/files.hpp"
#include "config/toml_section.hpp"

namespace ordermoe {

namespace {

constexpr std::int64_t node_file_version = 1;
constexpr std::size_t max_file_bytes = std::size_t{1} << 20;

class node_reader {
 public:
  node_reader(const toml::table& file, std::filesystem::path folder)
      : top_(file, "a node file",
             {"version",      "name",         "cluster",     "model",          "plan",
              "profile",      "state",        "trace",       "listen",         "costs",
              "kv_precision", "channel",      "threads",     "most_positions", "load_period_ms",
              "links",        "certificates", "member",      "rehearsal",      "drift",
              "log",          "device",       "busy_poll_us"}),
        folder_(std::move(folder)) {}

  node_file read() {
    top_.integer("version", node_file_version, node_file_version);
    content_.name = top_.name("name");
    content_.cluster = path(top_, "cluster");
    content_.model = path(top_, "model");
    content_.plan = path(top_, "plan");
    content_.profile = path(top_, "profile");
    content_.state = path(top_, "state");
    if (top_.find("trace") != nullptr) content_.trace = path(top_, "trace");
    if (top_.find("listen") != nullptr) content_.listen = top_.strings("listen");
    if (top_.find("costs") != nullptr) content_.costs = top_.name("costs");
    if (top_.find("kv_precision") != nullptr) content_.kv_precision = kv_precision();
    if (top_.find("device") != nullptr) content_.device = device();
    if (top_.find("channel") != nullptr) content_.channel = channel();
    if (top_.find("threads") != nullptr)
      content_.threads = static_cast<std::size_t>(top_.integer("threads", 0, 1024));
    if (top_.find("most_positions") != nullptr)
      content_.most_positions =
          static_cast<std::uint32_t>(top_.integer("most_positions", 0, 1 << 24));
    if (top_.find("load_period_ms") != nullptr)
      content_.load_period_ms = top_.number("load_period_ms", {0, 60'000});
    if (top_.find("busy_poll_us") != nullptr)
      content_.busy_poll_us = top_.number("busy_poll_us", {0, 10'000});
    if (top_.find("links") != nullptr) content_.measures_links = measures_links();
    read_certificates();
    if (top_.find("member") != nullptr) read_members();
    if (top_.find("rehearsal") != nullptr) read_rehearsal();
    if (top_.find("drift") != nullptr) read_drift();
    if (top_.find("log") != nullptr) read_log();
    return std::move(content_);
  }

 private:
  std::filesystem::path path(const section& from, std::string_view key) const {
    const auto text = from.string(key);
    if (text.empty())
      refuse(errc::out_of_range, from.place(key),
             fmt::format("found an empty {}, expected a path; name the file", key));
    const std::filesystem::path given(text);
    return given.is_absolute() ? given : folder_ / given;
  }

  std::string kv_precision() const {
    auto text = top_.string("kv_precision");
    if (text != "bf16" && text != "fp32")
      refuse(errc::out_of_range, top_.place("kv_precision"),
             fmt::format("found kv_precision = \"{}\", expected bf16 or fp32; correct it", text));
    return text;
  }

  std::string device() const {
    auto text = top_.string("device");
    if (const auto known = check_device(text); !known)
      refuse(errc::out_of_range, top_.place("device"), known.error().message);
    return text;
  }

  std::string channel() const {
    auto text = top_.string("channel");
    if (text != "asio" && text != "caf")
      refuse(errc::out_of_range, top_.place("channel"),
             fmt::format("found channel = \"{}\", expected asio or caf; correct it", text));
    return text;
  }

  bool measures_links() const {
    const auto text = top_.string("links");
    if (text != "measured" && text != "stated")
      refuse(errc::out_of_range, top_.place("links"),
             fmt::format("found links = \"{}\", expected measured or stated; correct it", text));
    return text == "measured";
  }

  void read_certificates() {
    const section from(top_.table("certificates"), "certificates",
                       {"authority", "certificate", "key"});
    content_.authority = path(from, "authority");
    content_.certificate = path(from, "certificate");
    content_.key = path(from, "key");
  }

  void read_members() {
    std::set<std::string> names{content_.name};
    for (const auto& item : top_.array_of_tables("member")) {
      const section member(*item.as_table(), "a member", {"name", "address", "spare"});
      node_member made;
      made.name = member.name("name");
      if (!names.insert(made.name).second)
        refuse(errc::malformed, member.place("name"),
               fmt::format("found the member '{}' again, expected each other node once; remove it",
                           made.name));
      if (member.find("address") != nullptr) made.address = member.string("address");
      made.spare = member.boolean("spare", false);
      content_.members.push_back(std::move(made));
    }
  }

  void read_rehearsal() {
    const section from(top_.table("rehearsal"), "rehearsal", {"dilation", "stretch"});
    rehearsal made;
    if (from.find("dilation") != nullptr)
      made.dilation = from.number("dilation", {least_dilation, most_dilation});
    if (from.find("stretch") != nullptr)
      made.stretch = static_cast<std::uint32_t>(from.integer("stretch", 1, most_stretch));
    content_.rehearsed = made;
  }

  void read_drift() {
    const section from(top_.table("drift"), "drift",
                       {"margin_percent", "period_s", "least_rows", "half_life_s"});
    auto& made = content_.drift;
    if (from.find("margin_percent") != nullptr)
      made.margin_percent = from.number("margin_percent", {0, 1000});
    if (from.find("period_s") != nullptr) made.period_s = from.number("period_s", {0.1, 86'400});
    if (from.find("least_rows") != nullptr)
      made.least_rows = from.integer("least_rows", 1, 1'000'000'000);
    if (from.find("half_life_s") != nullptr)
      made.half_life_s = from.number("half_life_s", {10, 1e9});
  }

  void read_log() {
    const section from(top_.table("log"), "log", {"level", "format", "file"});
    const auto one_of = [&](const char* key, const char* expected, auto parse) {
      auto text = from.string(key);
      if (!parse(text))
        refuse(
            errc::out_of_range, from.place(key),
            fmt::format("found {} = \"{}\", expected one of {}; correct it", key, text, expected));
      return text;
    };
    if (from.find("level") != nullptr)
      content_.log.level =
          one_of("level", "debug, info, warning, error, off",
                 [](const std::string& text) { return parse_log_level(text).has_value(); });
    if (from.find("format") != nullptr)
      content_.log.format = one_of("format", "text, json", [](const std::string& text) {
        return parse_log_format(text).has_value();
      });
    if (from.find("file") != nullptr) content_.log.file = path(from, "file").string();
  }

  section top_;
  std::filesystem::path folder_;
  node_file content_;
};

}  // namespace

result<node_file> read_node_file(const std::filesystem::path& path) {
  const auto text = read_file(path, max_file_bytes);
  if (!text) return text.error();
  return read_toml<node_file>(
      *text, path.string(), "config/README.md",
      [&](const toml::table& file) { return node_reader(file, path.parent_path()).read(); });
}

namespace {

/// A TOML string.
std::string toml_string(const std::string& text) {
  std::string made = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') {
      made += fmt::format("\\u{:04x}", static_cast<int>(c));
      continue;
    }
    if (c == '"' || c == '\\') made += '\\';
    made += c;
  }
  return made + '"';
}

}  // namespace

std::string node_toml(const node_file& content) {
  std::string text = fmt::format("version = {}\n", node_file_version);
  const auto add = [&](const char* key, const std::string& value) {
    text += fmt::format("{} = {}\n", key, toml_string(value));
  };
  add("name", content.name);
  add("cluster", content.cluster.string());
  add("model", content.model.string());
  add("plan", content.plan.string());
  add("profile", content.profile.string());
  add("state", content.state.string());
  if (!content.trace.empty()) add("trace", content.trace.string());
  text += "listen = [";
  for (std::size_t i = 0; i < content.listen.size(); ++i)
    text += (i > 0 ? ", " : "") + toml_string(content.listen[i]);
  text += "]\n";
  add("costs", content.costs);
  add("kv_precision", content.kv_precision);
  if (!content.device.empty()) add("device", content.device);
  if (content.channel != "asio") add("channel", content.channel);
  if (!content.measures_links) add("links", "stated");
  if (content.busy_poll_us != node_file{}.busy_poll_us)
    text += fmt::format("busy_poll_us = {}\n", content.busy_poll_us);
  text += fmt::format("threads = {}\nmost_positions = {}\nload_period_ms = {}\n", content.threads,
                      content.most_positions, content.load_period_ms);
  text += "\n[certificates]\n";
  add("authority", content.authority.string());
  add("certificate", content.certificate.string());
  add("key", content.key.string());
  for (const auto& member : content.members) {
    text += "\n[[member]]\n";
    add("name", member.name);
    if (!member.address.empty()) add("address", member.address);
    if (member.spare) text += "spare = true\n";
  }
  if (content.rehearsed)
    text += fmt::format("\n[rehearsal]\ndilation = {}\nstretch = {}\n", content.rehearsed->dilation,
                        content.rehearsed->stretch);
  if (content.drift != drift_watch{})
    text += fmt::format(
        "\n[drift]\nmargin_percent = {}\nperiod_s = {}\nleast_rows = {}\nhalf_life_s = {}\n",
        content.drift.margin_percent, content.drift.period_s, content.drift.least_rows,
        content.drift.half_life_s);
  const auto& log = content.log;
  if (log.level || log.format || log.file) text += "\n[log]\n";
  if (log.level) add("level", *log.level);
  if (log.format) add("format", *log.format);
  if (log.file) add("file", *log.file);
  return text;
}

}  // namespace ordermoe
