#include "config/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "config/files.hpp"

namespace ordermoe {

namespace {

using nlohmann::json;

constexpr std::size_t max_depth = 64;

/// Builds the tree, and remembers where and why it stopped.
class tree_builder : public json::json_sax_t {
 public:
  explicit tree_builder(json& root) : root_(root) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(json::number_integer_t value) override { return add(value); }
  bool number_unsigned(json::number_unsigned_t value) override { return add(value); }
  bool number_float(json::number_float_t value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(json::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    if (open_.back()->contains(name)) {
      reason = fmt::format("found the member '{}' twice, expected it once; remove one", name);
      return false;
    }
    key_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::detail::exception& problem) override {
    byte = position;
    const bool too_large = problem.id == 406;
    reason =
        too_large
            ? fmt::format("found the number {}, expected one that fits 64 bits; correct it", token)
            : fmt::format("found {}, expected JSON; correct the syntax", printable(token));
    return false;
  }

  std::optional<std::size_t> byte;  ///< One-based, of the last byte read.
  std::string reason;

 private:
  static std::string printable(const std::string& token) {
    if (token.empty()) return "the end of the text or an unreadable byte";
    constexpr std::size_t shown = 40;
    std::string text;
    for (const char c : token.size() > shown ? token.substr(token.size() - shown) : token)
      text += c >= 0x20 && c < 0x7f ? c : '?';
    return fmt::format("'{}'", text);
  }

  json* place(json&& value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    auto& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }

  bool add(json&& value) {
    place(std::move(value));
    return true;
  }

  bool open(json&& value) {
    if (open_.size() == max_depth) {
      reason = fmt::format("found more than {} levels of nesting, expected fewer; flatten it",
                           max_depth);
      return false;
    }
    open_.push_back(place(std::move(value)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  json& root_;
  std::vector<json*> open_;
  std::string key_;
};

std::string line_and_column(std::string_view text, std::size_t byte) {
  std::size_t line = 1;
  std::size_t column = 1;
  for (std::size_t i = 0; i + 1 < byte && i < text.size(); ++i) {
    ++column;
    if (text[i] == '\n') {
      ++line;
      column = 1;
    }
  }
  return fmt::format("{}:{}", line, column);
}

/// The value as a message shows it: scalars whole (long strings cut), arrays and objects by their
/// size.
std::string shown(const json& node) {
  switch (node.type()) {
    case json::value_t::object:
      return fmt::format("an object with {} members", node.size());
    case json::value_t::array:
      return fmt::format("an array of {} values", node.size());
    case json::value_t::string: {
      constexpr std::size_t longest = 60;
      const auto& text = node.get_ref<const std::string&>();
      return text.size() <= longest ? fmt::format("\"{}\"", text)
                                    : fmt::format("a string of {} bytes", text.size());
    }
    default:
      return node.dump();
  }
}

std::string range_text(double low, double high, std::string_view kind) {
  constexpr double limit = std::numeric_limits<double>::max();
  if (low == -limit && high == limit) return fmt::format("{}", kind);
  if (low == high) return fmt::format("{} that is {}", kind, low);
  if (high == limit) return fmt::format("{} of at least {}", kind, low);
  if (low == -limit) return fmt::format("{} of at most {}", kind, high);
  return fmt::format("{} from {} to {}", kind, low, high);
}

template <class Integer>
std::string whole_range_text(Integer low, Integer high) {
  using limits = std::numeric_limits<Integer>;
  if (low == limits::min() && high == limits::max()) return "a whole number";
  if (low == high) return fmt::format("the whole number {}", low);
  if (high == limits::max()) return fmt::format("a whole number of at least {}", low);
  return fmt::format("a whole number from {} to {}", low, high);
}

}  // namespace

nlohmann::ordered_json parse_told(std::string_view text) {
  constexpr std::size_t most_members = 1'000;
  // Of each that is open, whether it is an object, and its commas.
  std::vector<std::pair<bool, std::size_t>> open;
  bool is_quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char each = text[i];
    if (is_quoted) {
      if (each == '\\') ++i;
      if (each == '"') is_quoted = false;
    } else if (each == '"') {
      is_quoted = true;
    } else if (each == '[' || each == '{') {
      open.emplace_back(each == '{', 0);
      if (open.size() > max_depth) return nlohmann::ordered_json::value_t::discarded;
    } else if (!open.empty() && (each == ']' || each == '}')) {
      open.pop_back();
    } else if (!open.empty() && each == ',' && open.back().first &&
               ++open.back().second >= most_members) {
      return nlohmann::ordered_json::value_t::discarded;
    }
  }
  return nlohmann::ordered_json::parse(text, nullptr, false);
}

json_document::json_document() : tree_(std::make_unique<json>()) {}
json_document::~json_document() = default;

result<std::unique_ptr<json_document>> json_document::parse(std::string_view text,
                                                            std::string place) {
  std::unique_ptr<json_document> document(new json_document);
  document->place_ = std::move(place);
  tree_builder builder(*document->tree_);
  if (!json::sax_parse(text, &builder)) {
    const auto position =
        builder.byte ? fmt::format(":{}", line_and_column(text, *builder.byte)) : std::string();
    return error{errc::malformed,
                 fmt::format("{}{}: {}", document->place_, position, builder.reason)};
  }
  return document;
}

json_value json_document::root() {
  return {tree_.get(), this, ""};
}

result<void> json_document::outcome() const {
  if (problem_) return *problem_;
  return {};
}

void json_document::report(errc code, const std::string& path, std::string_view message) {
  if (problem_) return;
  problem_ =
      error{code, path.empty() ? fmt::format("{}: {}; {}", place_, message, remedy_)
                               : fmt::format("{}: {}: {}; {}", place_, path, message, remedy_)};
}

bool json_value::readable() const {
  return node_ != nullptr && !document_->failed();
}

void json_value::refuse(std::string_view found, std::string_view expected, errc code) const {
  document_->report(code, path_, fmt::format("found {}, expected {}", found, expected));
}

void json_value::wrong_type(std::string_view expected) const {
  refuse(shown(*node_), expected, errc::malformed);
}

json_value json_value::child(const json& node, std::string_view key) const {
  return {&node, document_, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key)};
}

json_value json_value::child(const json& node, std::size_t index) const {
  return {&node, document_, fmt::format("{}[{}]", path_, index)};
}

json_value json_value::at(std::string_view key) const {
  if (!readable()) return nowhere();
  if (!node_->is_object()) {
    wrong_type(fmt::format("an object with the member '{}'", key));
    return nowhere();
  }
  const auto member = node_->find(std::string(key));
  if (member == node_->end()) {
    refuse(fmt::format("no member '{}'", key), "it to be there", errc::malformed);
    return nowhere();
  }
  return child(*member, key);
}

std::optional<json_value> json_value::find(std::string_view key) const {
  if (!readable()) return std::nullopt;
  if (!node_->is_object()) {
    wrong_type("an object");
    return std::nullopt;
  }
  const auto member = node_->find(std::string(key));
  if (member == node_->end() || member->is_null()) return std::nullopt;
  return child(*member, key);
}

void json_value::only(std::initializer_list<std::string_view> keys) const {
  if (!readable()) return;
  if (!node_->is_object()) return wrong_type("an object");
  for (const auto& [key, value] : node_->items())
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      return refuse(fmt::format("the unknown member '{}'", key),
                    fmt::format("one of {}", fmt::join(keys, ", ")), errc::malformed);
}

std::vector<std::string> json_value::keys() const {
  std::vector<std::string> names;
  if (!readable()) return names;
  if (!node_->is_object()) {
    wrong_type("an object");
    return names;
  }
  for (const auto& [key, value] : node_->items()) names.push_back(key);
  return names;
}

std::vector<json_value> json_value::items(std::size_t count) const {
  std::vector<json_value> values;
  if (!readable()) return values;
  if (!node_->is_array()) {
    wrong_type(count == any_count ? "an array" : fmt::format("an array of {} values", count));
    return values;
  }
  if (count != any_count && node_->size() != count) {
    refuse(fmt::format("an array of {} values", node_->size()), fmt::format("{} values", count),
           errc::mismatch);
    return values;
  }
  values.reserve(node_->size());
  for (std::size_t i = 0; i < node_->size(); ++i) values.push_back(child((*node_)[i], i));
  return values;
}

bool json_value::is_null() const {
  return node_ == nullptr || node_->is_null();
}
bool json_value::is_object() const {
  return node_ != nullptr && node_->is_object();
}
bool json_value::is_array() const {
  return node_ != nullptr && node_->is_array();
}
bool json_value::is_string() const {
  return node_ != nullptr && node_->is_string();
}
bool json_value::is_number() const {
  return node_ != nullptr && node_->is_number();
}

std::string json_value::string() const {
  if (!readable()) return {};
  if (!node_->is_string()) {
    wrong_type("a string");
    return {};
  }
  return node_->get<std::string>();
}

std::size_t json_value::one_of(std::initializer_list<std::string_view> names) const {
  if (!readable()) return 0;
  const auto expected = [&] { return fmt::format("one of {}", fmt::join(names, ", ")); };
  if (!node_->is_string()) {
    wrong_type(expected());
    return 0;
  }
  const auto found = std::find(names.begin(), names.end(), node_->get_ref<const std::string&>());
  if (found == names.end()) {
    refuse(shown(*node_), expected());
    return 0;
  }
  return static_cast<std::size_t>(found - names.begin());
}

bool json_value::boolean() const {
  if (!readable()) return false;
  if (!node_->is_boolean()) {
    wrong_type("true or false");
    return false;
  }
  return node_->get<bool>();
}

std::optional<double> json_value::number_in(const json& node, double low, double high) const {
  if (!node.is_number()) return std::nullopt;
  const auto value = node.get<double>();
  // Written so that a NaN is refused.
  if (!(value >= low && value <= high)) return std::nullopt;
  return value;
}

double json_value::number(double low, double high) const {
  if (!readable()) return 0;
  if (const auto value = number_in(*node_, low, high)) return *value;
  if (!node_->is_number())
    wrong_type(range_text(low, high, "a number"));
  else
    refuse(shown(*node_), range_text(low, high, "a number"));
  return 0;
}

std::int64_t json_value::integer(std::int64_t low, std::int64_t high) const {
  if (!readable()) return 0;
  if (!node_->is_number_integer()) {
    wrong_type(whole_range_text(low, high));
    return 0;
  }
  const bool too_large = node_->is_number_unsigned() &&
                         node_->get<std::uint64_t>() >
                             static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const auto value = too_large ? 0 : node_->get<std::int64_t>();
  if (too_large || value < low || value > high) {
    refuse(shown(*node_), whole_range_text(low, high));
    return 0;
  }
  return value;
}

std::uint64_t json_value::unsigned_integer(std::uint64_t low, std::uint64_t high) const {
  if (!readable()) return 0;
  if (!node_->is_number_integer()) {
    wrong_type(whole_range_text(low, high));
    return 0;
  }
  if (!node_->is_number_unsigned() || node_->get<std::uint64_t>() < low ||
      node_->get<std::uint64_t>() > high) {
    refuse(shown(*node_), whole_range_text(low, high));
    return 0;
  }
  return node_->get<std::uint64_t>();
}

std::vector<double> json_value::numbers(std::size_t count, double low, double high) const {
  std::vector<double> values;
  if (!readable()) return values;
  if (!node_->is_array() || (count != any_count && node_->size() != count)) {
    items(count);
    return values;
  }
  values.reserve(node_->size());
  for (std::size_t i = 0; i < node_->size(); ++i) {
    const auto value = number_in((*node_)[i], low, high);
    if (!value) {
      child((*node_)[i], i).number(low, high);
      return {};
    }
    values.push_back(*value);
  }
  return values;
}

std::vector<double> json_value::matrix(std::size_t rows, std::size_t columns, double low,
                                       double high) const {
  std::vector<double> values;
  for (const auto& row : items(rows)) {
    const auto content = row.numbers(columns, low, high);
    if (content.size() != columns) return {};
    values.insert(values.end(), content.begin(), content.end());
  }
  return values;
}

std::vector<std::uint32_t> json_value::indices(std::uint32_t bound, std::size_t count) const {
  std::vector<std::uint32_t> values;
  if (!readable()) return values;
  if (!node_->is_array() || (count != any_count && node_->size() != count)) {
    items(count);
    return values;
  }
  values.reserve(node_->size());
  for (std::size_t i = 0; i < node_->size(); ++i) {
    const auto& node = (*node_)[i];
    if (!node.is_number_unsigned() || node.get<std::uint64_t>() >= bound) {
      child(node, i).refuse(shown(node), bound == 0
                                             ? std::string("no value")
                                             : whole_range_text<std::uint64_t>(0, bound - 1));
      return {};
    }
    values.push_back(node.get<std::uint32_t>());
  }
  return values;
}

std::vector<std::string> json_value::strings(std::size_t count) const {
  std::vector<std::string> values;
  for (const auto& item : items(count)) values.push_back(item.string());
  if (document_->failed()) return {};
  return values;
}

result<std::unique_ptr<json_document>> read_json(const std::filesystem::path& path,
                                                 std::size_t max_bytes) {
  const auto text = read_file(path, max_bytes);
  if (!text) return text.error();
  return json_document::parse(*text, path.string());
}

}  // namespace ordermoe
