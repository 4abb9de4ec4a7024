#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/experiments/testbed/experiment_table.hpp"

/// A folder of experiments: settings.json, and NAME.csv and NAME.json of each experiment.
namespace ordermoe::experiments::testbed {

/// Everything that a row depends on besides its point, by name. Of them `build` says which program measured: it is in no digest, so that two builds
/// that measure the same write the same bytes, and a folder has rows of one build all the same.
using settings = nlohmann::ordered_json;

/// Where what is there differs from what is asked, either having what the other has not: "requests: found 2, expected 3"; empty: nowhere.
std::string difference_of(const settings& found, const settings& expected);

/// Of the settings' text without `build`, 16 hexadecimal digits: what stands in every row.
std::string digest_of(const settings& asked);

/// Error: io.
result<void> make_folder(const std::filesystem::path& folder);

/// settings.json of a folder. Errors: io; malformed.
result<settings> read_settings(const std::filesystem::path& folder);
/// --quick or not.
scale scale_of(const settings& asked);

/// Whether the folder is new, and is made, or was begun with these settings, which are then in its settings.json. Errors: io; malformed;
/// mismatch where a setting differs, which names it and both values.
result<void> claim_folder(const std::filesystem::path& folder, const settings& asked);

/// The folder is one process's as long as this lives, however it ends. Errors: io; usage where another process has it.
class folder_lock {
 public:
  static result<folder_lock> take(const std::filesystem::path& folder);
  folder_lock(folder_lock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  folder_lock& operator=(folder_lock&&) = delete;
  ~folder_lock();

 private:
  explicit folder_lock(int file) : file_(file) {}
  int file_;
};

/// Rows of one experiment in the order of its file: by the place of their point in the table, then by seed.
class rows_of_experiment {
 public:
  rows_of_experiment(const experiment& of, scale how_much);

  /// Null where it is not there yet.
  const row* find(const point& what) const;
  /// Takes its place; one that is there already is replaced. Error: mismatch where the experiment has no such point.
  result<void> put(row content);
  std::vector<row> in_order() const;
  const experiment& of() const { return *of_; }

 private:
  std::optional<std::size_t> place_of(point what) const;
  const experiment* of_;
  std::map<std::string, std::size_t> places_;  ///< By key, of seed 0.
  std::map<std::pair<std::size_t, std::uint64_t>, row> rows_;
};

std::string csv_text(const std::vector<row>& rows, const std::string& digest);
std::string json_text(const experiment& of, const std::vector<row>& rows, const settings& asked);

/// Reads NAME.csv where there is one. Errors: io; malformed and mismatch, with file and line.
result<void> read_rows(const std::filesystem::path& folder, const std::string& digest,
                       rows_of_experiment& rows);
/// Writes NAME.csv and NAME.json, each as a whole. Error: io.
result<void> write_rows(const std::filesystem::path& folder, const settings& asked,
                        const rows_of_experiment& rows);

}  // namespace ordermoe::experiments::testbed
