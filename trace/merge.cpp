#include "trace/merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <optional>
#include <queue>
#include <utility>

#include "config/sha256.hpp"
#include "trace/fields.hpp"
#include "trace/lines.hpp"
#include "trace/sink.hpp"

namespace ordermoe::trace {

namespace {

constexpr std::string_view opening = R"({"stamp":)";

/// The number behind `"name":`, as it stands; nothing where there is none.
std::optional<std::string_view> number_after(std::string_view text, std::string_view name) {
  const auto key = fmt::format("\"{}\":", name);
  const auto found = text.find(key);
  if (found == std::string_view::npos) return std::nullopt;
  const auto begin = found + key.size();
  const auto end = text.find_first_of(",}", begin);
  return text.substr(begin, end - begin);
}

template <class Number>
std::optional<Number> read(std::string_view text) {
  Number value{};
  const auto done = std::from_chars(text.data(), text.data() + text.size(), value);
  if (done.ec != std::errc{} || done.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

/// One server's file, a line at a time.
class part {
 public:
  explicit part(const std::filesystem::path& path)
      : path_(path.string()), file_(path, std::ios::binary) {}

  const std::string& header() const { return header_; }
  std::uint64_t begin_stamp() const { return begin_stamp_; }
  std::uint64_t stamp() const { return stamp_; }
  std::string& text() { return text_; }
  std::uint64_t bytes() const { return bytes_; }
  bool ended() const { return ended_; }

  error problem(errc code, const std::string& what) const {
    return {code, fmt::format("{}:{}: {}", path_, std::max<std::uint64_t>(n_, 1), what)};
  }

  result<void> open() {
    if (!file_.is_open()) return error{errc::not_found, fmt::format("{}: cannot be read", path_)};
    if (auto read = next(); !read) return read;
    if (ended_ || line_type(text_) != "run")
      return problem(errc::malformed, "found no header, expected a line of type run");
    header_ = std::move(text_);
    begin_stamp_ = stamp_;
    return {};
  }

  /// The line without its stamp.
  result<void> next() {
    if (!std::getline(file_, text_))
      return problem(errc::malformed,
                     "found no closing line, expected one of type end; the trace is cut short");
    ++n_;
    bytes_ += text_.size() + 1;
    if (line_type(text_) == "end") {
      ended_ = true;
      return {};
    }
    const auto comma = text_.find(',');
    const auto before = stamp_;
    const auto found = text_.starts_with(opening) && comma != std::string::npos
                           ? read<std::uint64_t>(std::string_view(text_).substr(
                                 opening.size(), comma - opening.size()))
                           : std::nullopt;
    if (!found || *found < before)
      return problem(errc::malformed,
                     "found no stamp, expected one as large as that of the line before; merge what "
                     "nodes write");
    stamp_ = *found;
    text_.replace(0, comma + 1, "{");
    return {};
  }

 private:
  std::string path_;
  std::ifstream file_;
  std::string header_, text_;
  std::uint64_t n_ = 0, bytes_ = 0, stamp_ = 0, begin_stamp_ = 0;
  bool ended_ = false;
};

class merger {
 public:
  explicit merger(const std::vector<std::filesystem::path>& paths) {
    for (const auto& path : paths) parts_.emplace_back(path);
  }

  result<merge_summary> merge(sink& into, double all_bytes,
                              const std::function<void(double)>& progress) {
    if (auto good = open(); !good) return good.error();
    into.line(parts_.front().header());
    summary_.lines = 1;
    const auto later = [&](std::size_t a, std::size_t b) {
      return std::pair(parts_[a].stamp(), a) > std::pair(parts_[b].stamp(), b);
    };
    std::priority_queue<std::size_t, std::vector<std::size_t>, decltype(later)> queue(later);
    for (std::size_t i = 0; i < parts_.size(); ++i)
      if (!parts_[i].ended()) queue.push(i);
    while (!queue.empty()) {
      const auto i = queue.top();
      queue.pop();
      if (auto taken = take(parts_[i], into); !taken) return taken.error();
      if (auto read = parts_[i].next(); !read) return read.error();
      if (!parts_[i].ended()) queue.push(i);
      if (progress && ++n_ % 4096 == 0) tell(all_bytes, progress);
    }
    if (auto closed = close(into); !closed) return closed.error();
    return summary_;
  }

 private:
  void tell(double all_bytes, const std::function<void(double)>& progress) const {
    double done = 0;
    for (const auto& each : parts_) done += static_cast<double>(each.bytes());
    progress(done / all_bytes);
  }

  result<void> open() {
    for (auto& each : parts_) {
      if (auto opened = each.open(); !opened) return opened;
      if (each.header() != parts_.front().header())
        return each.problem(errc::mismatch,
                            "found another header, expected that of the first file; merge files of "
                            "one run");
      begin_ = std::min(begin_, each.begin_stamp());
      if (auto read = each.next(); !read) return read;
    }
    return {};
  }

  static void set(std::string& text, std::string_view name, std::uint64_t value) {
    const auto old = number_after(text, name);
    if (!old) return;
    text.replace(static_cast<std::size_t>(old->data() - text.data()), old->size(),
                 std::to_string(value));
  }

  std::uint64_t moved(const part& from, std::string_view number) const {
    return from.begin_stamp() - begin_ + read<std::uint64_t>(number).value_or(0);
  }

  result<void> take(part& from, sink& into) {
    auto& text = from.text();
    const auto type = line_type(text);
    const auto time = from.stamp() - begin_;
    if (type == "answered") {
      summary_.requests +=
          read<std::uint64_t>(number_after(text, "requests").value_or("")).value_or(0);
      return {};
    }
    if (type == "link_ledger" || type == "server_ledger") return keep_ledger(from);
    if (type == "batch") {
      for (const auto* name : {"start_ns", "end_ns"})
        if (const auto old = number_after(text, name)) set(text, name, moved(from, *old));
    } else if (type == "transfer") {
      for (const auto* name : {"sent_ns", "start_ns", "end_ns", "arrival_ns"})
        set(text, name, time);
    } else if (type == "done") {
      set_done(from);
    } else {
      if (type == "token") remember(text, time);
      set(text, "time_ns", time);
      if (type == "plan" || type == "policy") {
        const auto first = is_first(from);
        if (!first) return first.error();
        if (!*first) return {};
      }
    }
    into.line(text);
    ++summary_.lines;
    return {};
  }

  /// Every server writes a change of plan or policy that all of them make: the first time it counts.
  result<bool> is_first(part& from) {
    auto text = from.text();
    set(text, "time_ns", 0);
    const auto number = [&](const char* name) {
      return read<std::uint64_t>(number_after(text, name).value_or("")).value_or(0);
    };
    const auto [place, first] = changes_.try_emplace(
        std::tuple(line_type(text) == "plan", number("epoch"), number("policy")), sha256_hex(text));
    if (!first && place->second != sha256_hex(text))
      return from.problem(errc::mismatch,
                          "found another plan or policy than a server before had under its "
                          "numbers, expected the same");
    return first;
  }

  /// When its first and last tokens were sampled, wherever that was.
  void remember(std::string_view text, std::uint64_t time) {
    const auto request = read<std::uint64_t>(number_after(text, "request").value_or(""));
    if (!request) return;
    const auto place = tokens_.try_emplace(*request, time, time).first;
    place->second.second = time;
  }

  /// Not before what they follow, whatever the clock of the request's server says.
  void set_done(part& from) {
    auto& text = from.text();
    const auto request = read<std::uint64_t>(number_after(text, "request").value_or(""));
    auto first = moved(from, number_after(text, "first_token_ns").value_or(""));
    auto last = moved(from, number_after(text, "time_ns").value_or(""));
    if (const auto found = tokens_.find(request.value_or(0)); found != tokens_.end()) {
      first = std::max(first, found->second.first);
      last = std::max({last, found->second.second, first});
      tokens_.erase(found);
    }
    set(text, "first_token_ns", first);
    set(text, "time_ns", last);
  }

  result<void> keep_ledger(part& from) {
    const auto& text = from.text();
    const bool of_link = line_type(text) == "link_ledger";
    const auto one =
        read<std::uint32_t>(number_after(text, of_link ? "from" : "server").value_or(""));
    const auto other = of_link ? read<std::uint32_t>(number_after(text, "to").value_or("")) : 0;
    if (!one || !other) return from.problem(errc::malformed, "found a ledger of nobody");
    if (!ledgers_.emplace(std::tuple(!of_link, *one, *other), text).second)
      return from.problem(errc::mismatch,
                          "found this ledger a second time, expected a file of each "
                          "server once");
    return {};
  }

  result<void> close(sink& into) {
    std::size_t servers = 0;
    for (const auto& [of, text] : ledgers_) servers += std::get<0>(of) ? 1 : 0;
    const auto n = servers * (servers - 1) + servers;
    if (servers != parts_.size() || ledgers_.size() != n)
      return error{errc::mismatch,
                   fmt::format("found {} ledgers in {} files, expected {} and those of a server in "
                               "each; name the file of every node",
                               ledgers_.size(), parts_.size(), n)};
    into.line(closing_line(summary_.requests));
    for (const auto& [of, text] : ledgers_) into.line(text);
    summary_.lines += 1 + ledgers_.size();
    return {};
  }

  std::vector<part> parts_;
  std::uint64_t begin_ = std::numeric_limits<std::uint64_t>::max();
  std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> tokens_;  ///< By request.
  /// Those of links, then those of servers.
  std::map<std::tuple<bool, std::uint32_t, std::uint32_t>, std::string> ledgers_;
  /// Digests of changes, by whether it is one of plan, its epoch and its policy.
  std::map<std::tuple<bool, std::uint64_t, std::uint64_t>, std::string> changes_;
  merge_summary summary_;
  std::uint64_t n_ = 0;
};

}  // namespace

result<merge_summary> merge_traces(const std::vector<std::filesystem::path>& parts,
                                   const std::filesystem::path& into,
                                   const std::function<void(double share)>& progress) {
  double all_bytes = 1;
  for (const auto& path : parts) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored))
      all_bytes += static_cast<double>(std::filesystem::file_size(path, ignored));
  }
  auto out = sink::open(into);
  if (!out) return out.error();
  auto merged = merger(parts).merge(**out, all_bytes, progress);
  if (!merged) return merged;
  if (auto closed = (*out)->close(); !closed) return closed.error();
  return merged;
}

}  // namespace ordermoe::trace
