#include "bench/experiments/testbed/row_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "config/files.hpp"

namespace ordermoe::experiments::testbed {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

namespace {

std::string named(const experiment& of, const char* ending) {
  return fmt::format("{}.{}", of.name, ending);
}

bool is_there(const fs::path& path) {
  std::error_code status;
  return fs::exists(path, status);
}

}  // namespace

std::string difference_of(const settings& found, const settings& expected) {
  for (const auto& [name, value] : expected.items()) {
    const auto there = found.is_object() && found.contains(name) ? found[name] : json(nullptr);
    if (there != value)
      return fmt::format("{}: found {}, expected {}", name, there.dump(), value.dump());
  }
  for (const auto& [name, value] : found.items())
    if (!expected.contains(name))
      return fmt::format("{}: found {}, expected none", name, value.dump());
  return {};
}

std::string digest_of(const settings& asked) {
  constexpr std::size_t digits = 16;
  auto of_rows = asked;
  of_rows.erase("build");
  return sha256_hex(of_rows.dump()).substr(0, digits);
}

result<void> make_folder(const fs::path& folder) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (!failed) return {};
  return error{errc::io, fmt::format("{}: {}; name a folder that can be made", folder.string(),
                                     failed.message())};
}

result<settings> read_settings(const fs::path& folder) {
  const auto path = folder / "settings.json";
  const auto text = read_file(path);
  if (!text) return text.error();
  auto found = settings::parse(*text, nullptr, false);
  if (!found.is_object())
    return error{errc::malformed,
                 fmt::format("{}: found no JSON object, expected the settings of a testbed; name "
                             "another folder",
                             path.string())};
  return found;
}

scale scale_of(const settings& asked) {
  const auto quick = asked.find("quick");
  const bool is_quick = quick != asked.end() && quick->is_boolean() && quick->get<bool>();
  return is_quick ? scale::quick : scale::whole;
}

result<void> claim_folder(const fs::path& folder, const settings& asked) {
  const auto path = folder / "settings.json";
  if (!is_there(path)) {
    if (auto made = make_folder(folder); !made) return made;
    for (const auto& one : experiments())
      if (is_there(folder / named(one, "csv")))
        return error{errc::mismatch,
                     fmt::format("{}: found {} without settings.json, expected both or neither; "
                                 "give --out another name",
                                 folder.string(), named(one, "csv"))};
    return write_file(path, asked.dump(1) + "\n");
  }
  const auto found = read_settings(folder);
  if (!found) return found.error();
  const auto other = difference_of(*found, asked);
  if (!other.empty())
    return error{errc::mismatch,
                 fmt::format("{}: {}; what was measured with other settings cannot be continued: "
                             "give --out another name",
                             path.string(), other)};
  return {};
}

result<folder_lock> folder_lock::take(const fs::path& folder) {
  const auto path = folder / ".lock";
  constexpr mode_t everybody = 0666;
  const auto file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, everybody);
  if (file < 0)
    return error{errc::io, fmt::format("{}: cannot be made; name a folder that can be written",
                                       path.string())};
  folder_lock held(file);
  if (::flock(file, LOCK_EX | LOCK_NB) != 0)
    return error{errc::usage, fmt::format("{}: found another process that measures into it; wait "
                                          "for its end, or give --out another name",
                                          folder.string())};
  return held;
}

folder_lock::~folder_lock() {
  if (file_ >= 0) ::close(file_);
}

rows_of_experiment::rows_of_experiment(const experiment& of, scale how_much) : of_(&of) {
  for (const auto& what : of.points(how_much, 0)) places_.emplace(key_of(what), places_.size());
}

std::optional<std::size_t> rows_of_experiment::place_of(point what) const {
  what.seed = 0;
  const auto found = places_.find(key_of(what));
  return found == places_.end() ? std::nullopt : std::optional(found->second);
}

const row* rows_of_experiment::find(const point& what) const {
  const auto place = place_of(what);
  const auto found = place ? rows_.find({*place, what.seed}) : rows_.end();
  return found == rows_.end() ? nullptr : &found->second;
}

result<void> rows_of_experiment::put(row content) {
  const auto place = place_of(content.what);
  if (!place)
    return error{errc::mismatch, fmt::format("{}: found the point {}, expected one of this "
                                             "experiment; give --out another name",
                                             of_->name, key_of(content.what))};
  const auto seed = content.what.seed;
  rows_.insert_or_assign({*place, seed}, std::move(content));
  return {};
}

std::vector<row> rows_of_experiment::in_order() const {
  std::vector<row> all;
  for (const auto& each : rows_) all.push_back(each.second);
  return all;
}

std::string csv_text(const std::vector<row>& rows, const std::string& digest) {
  auto text = fmt::format("{}\n", fmt::join(row_columns(), ","));
  for (const auto& each : rows) text += row_line(each, digest) + "\n";
  return text;
}

std::string json_text(const experiment& of, const std::vector<row>& rows, const settings& asked) {
  json out{{"experiment", of.name}, {"question", of.question}, {"digest", digest_of(asked)}};
  out["settings"] = asked;
  out["rows"] = json::array();
  for (const auto& each : rows) {
    auto& one = out["rows"].emplace_back(json::object());
    const auto cells = point_cells(each.what);
    for (std::size_t i = 0; i < cells.size(); ++i) one[point_columns()[i]] = cells[i];
    one["status"] = each.is_infeasible ? "infeasible" : "measured";
    for (std::size_t i = 0; i < n_metrics; ++i)
      one[name_of(static_cast<metric>(i))] = each.values[i] ? json(*each.values[i]) : json(nullptr);
    one["note"] = each.note;
  }
  return out.dump(1) + "\n";
}

result<void> read_rows(const fs::path& folder, const std::string& digest,
                       rows_of_experiment& rows) {
  const auto path = folder / named(rows.of(), "csv");
  if (!is_there(path)) return {};
  const auto text = read_file(path);
  if (!text) return text.error();
  std::istringstream lines(*text);
  std::string line;
  const auto header = fmt::format("{}", fmt::join(row_columns(), ","));
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    const auto place = fmt::format("{}:{}", path.string(), number);
    if (number == 1) {
      if (line != header)
        return error{errc::mismatch, fmt::format("{}: found other columns than this version "
                                                 "writes; give --out another name",
                                                 place)};
      continue;
    }
    auto read = row_of(line, digest);
    if (!read)
      return error{read.error().code,
                   fmt::format("{}: {}; remove the file to measure it again, or give --out "
                               "another name",
                               place, read.error().message)};
    if (auto put = rows.put(std::move(*read)); !put) return at(place, put.error());
  }
  return {};
}

result<void> write_rows(const fs::path& folder, const settings& asked,
                        const rows_of_experiment& rows) {
  const auto all = rows.in_order();
  const auto& of = rows.of();
  if (auto kept = write_file(folder / named(of, "csv"), csv_text(all, digest_of(asked))); !kept)
    return kept;
  return write_file(folder / named(of, "json"), json_text(of, all, asked));
}

}  // namespace ordermoe::experiments::testbed
