#include "cli/admin_tables.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "config/json_text.hpp"

namespace ordermoe::cli {

using nlohmann::ordered_json;

namespace {

std::string text_of(const ordered_json& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{:.3f}", value.get<double>());
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  return json_text(value);
}

/// Members that are no tables.
void print_members(const ordered_json& of) {
  for (const auto& [name, value] : of.items())
    if (!value.is_structured()) fmt::print("{}: {}\n", name, text_of(value));
}

/// As in 1.3 GB, to three digits or so.
std::string bytes_text(const ordered_json& bytes) {
  if (!bytes.is_number()) return "-";
  const auto n = bytes.get<double>();
  return n >= 1e9   ? fmt::format("{:.2f} GB", n * 1e-9)
         : n >= 1e6 ? fmt::format("{:.1f} MB", n * 1e-6)
                    : fmt::format("{:.1f} kB", n * 1e-3);
}

/// As in 0-3,7.
std::string ranges_text(const ordered_json& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    auto end = i;
    while (end + 1 < numbers.size() && numbers[end + 1].get<int>() == numbers[end].get<int>() + 1)
      ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", numbers[i].get<int>());
    if (end > i) text += fmt::format("-{}", numbers[end].get<int>());
    i = end + 1;
  }
  return text;
}

std::string date_text(const ordered_json& seconds) {
  const auto at = static_cast<std::time_t>(seconds.get<std::int64_t>());
  if (at == 0) return "never";
  std::tm parts{};
  ::gmtime_r(&at, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

void print_rows(const ordered_json& rows, const std::vector<std::string>& columns) {
  std::vector<std::size_t> widths;
  for (const auto& column : columns) {
    auto width = column.size();
    for (const auto& row : rows)
      width = std::max(width, text_of(row.value(column, ordered_json(""))).size());
    widths.push_back(width);
  }
  const auto line = [&](auto&& cell) {
    std::string text;
    for (std::size_t i = 0; i < columns.size(); ++i)
      text += fmt::format("{}{:<{}}", i == 0 ? "" : "  ", cell(columns[i]), widths[i]);
    text.erase(text.find_last_not_of(' ') + 1);
    fmt::print("{}\n", text);
  };
  line([](const std::string& column) { return column; });
  for (const auto& row : rows)
    line([&](const std::string& column) { return text_of(row.value(column, ordered_json(""))); });
}

void print_members_table(const ordered_json& result) {
  print_members(result);
  fmt::print("epochs: {}\n",
             fmt::join(result.at("epochs").get<std::vector<std::uint64_t>>(), ", "));
  auto rows = result.at("members");
  // As nodetool has it: up or down, and whether it takes what is asked of it; what is known of others is the former.
  for (auto& row : rows) {
    const bool self = row.value("self", false);
    row["state"] = !row.value("member", true)                         ? "--"
                   : !row.value("up", false)                          ? "DN"
                   : self && result.value("drained", false)           ? "UL"
                   : self && result.value("change", "none") != "none" ? "UM"
                                                                      : "UN";
  }
  print_rows(rows, {"state", "name", "server", "self"});
}

void print_status(const ordered_json& result) {
  print_members(result);
  auto rows = result.at("nodes");
  const auto others =
      std::ranges::count_if(
          rows, [](const ordered_json& row) { return row.value("state", "") != "--"; }) -
      1;
  for (auto& row : rows) {
    if (!row.contains("requests")) continue;
    row["tokens/s"] = fmt::format("{:.1f}", row.value("tokens_per_s", 0.0));
    row["reserved"] = bytes_text(row["reserved_bytes"]);
    row["of"] = bytes_text(row["kv_bytes"]);
    row["peers"] = fmt::format("{}/{}", row.value("connected", 0), others);
  }
  print_rows(rows, {"state", "name", "epoch", "tokens/s", "requests", "answered", "reserved", "of",
                    "peers"});
}

void print_peers(const ordered_json& result) {
  print_members(result);
  print_rows(result.at("peers"), {"state", "name", "boot", "round_trip_ms", "mbit_s", "connections",
                                  "resent_frames", "written_bytes", "read_bytes"});
  fmt::print("\n");
  print_rows(result.at("lanes"), {"peer", "lane", "credit_bytes", "outstanding_bytes",
                                  "waiting_bytes", "sent_bytes", "received_bytes"});
}

void print_topology(const ordered_json& result) {
  print_members(result);
  auto servers = result.at("servers");
  for (auto& row : servers) {
    row["memory"] = bytes_text(row["memory_bytes"]);
    row["kv"] = bytes_text(row["kv_bytes"]);
  }
  print_rows(servers,
             {"name", "device", "tflops", "memory_gb_per_s", "memory", "kv", "arrival_share"});
  fmt::print("\n");
  print_rows(result.at("links"), {"from", "to", "up", "stated_round_trip_ms", "round_trip_ms",
                                  "stated_mbit_s", "mbit_s"});
}

void print_experts(const ordered_json& result) {
  print_members(result);
  auto rows = result.at("hosted");
  for (auto& row : rows) row["experts"] = ranges_text(row["experts"]);
  print_rows(rows, {"layer", "server", "experts"});
}

void print_drift(const ordered_json& result) {
  print_members(result);
  const auto planned = result.at("cost_planned_ms").get<double>();
  const auto measured = result.at("cost_measured_ms").get<double>();
  fmt::print("off by: {:+.1f} %\n", 100 * (measured / planned - 1));
  print_rows(result.at("layers"), {"layer", "rows", "moved_percent"});
}

void print_tokens(const ordered_json& result) {
  auto rows = result.at("tokens");
  for (auto& row : rows) {
    row["made"] = date_text(row["made_s"]);
    row["expires"] = date_text(row["until_s"]);
  }
  print_rows(rows, {"name", "role", "state", "made", "expires"});
}

void print_diff(const ordered_json& result) {
  print_members(result);
  const auto list = [](const ordered_json& experts) {
    std::string text;
    for (const auto& each : experts)
      text += fmt::format("{}{}.{}", text.empty() ? "" : " ", each.at(0).get<int>(),
                          each.at(1).get<int>());
    return text.empty() ? std::string("-") : text;
  };
  auto rows = result.at("servers");
  for (auto& row : rows) {
    row["gains (layer.expert)"] = list(row.at("gains"));
    row["loses (layer.expert)"] = list(row.at("loses"));
  }
  print_rows(rows, {"name", "gains (layer.expert)", "loses (layer.expert)"});
}

void print_summary(const ordered_json& result) {
  print_members(result);
  if (result.contains("servers")) print_rows(result.at("servers"), {"name", "bytes_to_load"});
}

void print_member_change(const ordered_json& result) {
  print_members(result);
  if (const auto& names = result.at("not_told"); !names.empty())
    fmt::print("not told, as they are not connected: {}\n",
               fmt::join(names.get<std::vector<std::string>>(), ", "));
}

void print_reply(const admin_flags& flags, const ordered_json& reply, const show_function& show) {
  if (flags.json) {
    fmt::print("{}\n", json_text(reply, 2));
    return;
  }
  if (reply.contains("operation"))
    fmt::print("{}operation {}, epoch {} -> {}\n",
               reply.value("dry_run", false) ? "nothing was done; would be " : "",
               reply.value("operation", ""), reply.value("epoch_before", 0),
               reply.value("epoch_after", 0));
  if (show)
    show(reply.at("result"));
  else
    print_members(reply.at("result"));
  std::fflush(stdout);
}

show_function table(std::string rows, std::vector<std::string> columns) {
  return [rows = std::move(rows), columns = std::move(columns)](const ordered_json& result) {
    print_members(result);
    print_rows(result.at(rows), columns);
  };
}

void print_json(const ordered_json& result) {
  fmt::print("{}\n", json_text(result, 2));
}

void print_event(const admin_flags& flags, const ordered_json& event) {
  if (flags.json) {
    fmt::print("{}\n", json_text(event));
  } else {
    auto about = event;
    for (const auto* name : {"number", "time_s", "event"}) about.erase(name);
    fmt::print("{:>6} {:>10.3f} s  {} {}\n", event.value("number", 0), event.value("time_s", 0.0),
               event.value("event", ""), about.empty() ? std::string() : json_text(about));
  }
  std::fflush(stdout);
}

}  // namespace ordermoe::cli
