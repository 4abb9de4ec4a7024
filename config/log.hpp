#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

/// What a process tells of itself while it runs: records with a stable name and fields, from whoever notices something to
/// whoever owns the process. Nobody here writes; the owner does (cli/log_writer.hpp), or hands records to its own log.
///
/// What can be told stands in log_events.hpp, and in a table of docs/OPERATING.md.
namespace ordermoe {

enum class log_level : std::uint8_t { debug, info, warning, error, off };
const char* to_string(log_level of);
std::optional<log_level> parse_log_level(std::string_view text);

enum class log_event : std::uint8_t;

struct log_field {
  using content = std::variant<std::string, std::int64_t, std::uint64_t, double, bool>;
  std::string name;
  content value;

  log_field(std::string named, std::string text) : name(std::move(named)), value(std::move(text)) {}
  log_field(std::string named, const char* text)
      : name(std::move(named)), value(std::string(text)) {}
  template <class Number, class = std::enable_if_t<std::is_arithmetic_v<Number>>>
  log_field(std::string named, Number number) : name(std::move(named)), value(widened(number)) {}

 private:
  template <class Number>
  static content widened(Number number) {
    if constexpr (std::is_same_v<Number, bool>)
      return number;
    else if constexpr (std::is_floating_point_v<Number>)
      return static_cast<double>(number);
    else if constexpr (std::is_signed_v<Number>)
      return static_cast<std::int64_t>(number);
    else
      return static_cast<std::uint64_t>(number);
  }
};
/// The value alone: text as it is, numbers in decimal, true or false.
std::string text_of(const log_field& field);

struct log_record {
  log_event event{};
  std::vector<log_field> fields;

  std::string_view name() const;
  log_level level() const;
};
/// `session.down peer=lyon why="was silent for 2.5 s"`: one line, whatever the fields hold.
std::string text_of(const log_record& record);
/// `"event":"session.down","peer":"lyon","why":"..."`: members of a JSON object, one line.
std::string json_members_of(const log_record& record);

/// The way out of records from a level on. Copies share that level, which may change meanwhile. From any thread, as what it
/// was made with must allow.
class log_outlet {
 public:
  using taker = std::function<void(const log_record&)>;

  /// Takes nothing.
  log_outlet() = default;
  explicit log_outlet(taker to, log_level least = log_level::info)
      : to_(std::move(to)), least_(std::make_shared<std::atomic<log_level>>(least)) {}

  bool takes(log_level level) const { return to_ && level >= *least_; }
  void tell(log_event event, std::vector<log_field> fields) const;
  log_level least() const { return least_ ? least_->load() : log_level::off; }
  /// Nothing where it takes nothing.
  void set_least(log_level level) const {
    if (least_) *least_ = level;
  }

 private:
  taker to_;
  std::shared_ptr<std::atomic<log_level>> least_;
};

}  // namespace ordermoe
