#include "bench/experiments/testbed/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "bench/experiments/testbed/substitution_map.hpp"
#include "config/files.hpp"

namespace ordermoe::experiments::testbed {

namespace {

/// One row of a table as texts.
using texts = std::vector<std::string>;

struct text_table {
  texts head;
  std::vector<texts> body;
};

/// A row a setting and budget.
text_table table_of_map(const measured_experiment& content) {
  text_table made;
  made.head = {"setting",
               "budget, %",
               "saved of the fastest exact latency, %",
               "by pruning alone, %",
               "the fastest exact",
               "perplexity above that of exact plans, %",
               "the same of static-pruning",
               "an exact rival's plan",
               "a core of what pruning keeps"};
  for (const auto& one : map_of(*content.of, content.rows)) {
    auto exact = one.fastest_exact;
    if (one.n_without_exact > 0)
      exact = exact.empty() ? std::string("none fits")
                            : fmt::format("{} (none fits on {} of {})", exact, one.n_without_exact,
                                          one.n_clusters);
    made.body.push_back({one.setting, fmt::format("{:g}", one.where.percent),
                         shown(one.saved_percent), shown(one.saved_by_pruning_percent),
                         std::move(exact), shown(one.increase_percent),
                         shown(one.increase_by_pruning_percent),
                         fmt::format("{} of {}{}", one.n_rival_forms, one.n_clusters,
                                     one.n_pruned_forms > 0
                                         ? fmt::format(", static-pruning's {}", one.n_pruned_forms)
                                         : ""),
                         fmt::format("{} of {}", one.n_core_forms, one.n_clusters)});
  }
  return made;
}

text_table table_of(const measured_experiment& content) {
  const auto& of = *content.of;
  if (of.kind == figure_kind::map) return table_of_map(content);
  text_table made;
  made.head.emplace_back("strategy");
  if (of.swept != axis::nothing) made.head.emplace_back(title_of(of.swept));
  for (const auto column : of.columns) made.head.emplace_back(title_of(column));
  for (const auto& one : cells_of(of, content.rows)) {
    texts line{one.series};
    if (of.swept != axis::nothing) line.push_back(one.place);
    const auto n_measured = one.rows.size() - one.n_infeasible();
    for (const auto column : of.columns) {
      const auto value = one[column];
      line.push_back(shown(value));
      if (value && value->n < n_measured) line.back() += fmt::format(" (of {})", value->n);
    }
    if (const auto n = one.n_infeasible(); n > 0)
      line.front() += fmt::format(" (infeasible on {} of {})", n, one.rows.size());
    made.body.push_back(std::move(line));
  }
  return made;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const auto c : text) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  return out;
}

std::string html_of(const text_table& content) {
  std::string out = "<div class=\"wide\"><table>\n<thead><tr>";
  for (const auto& one : content.head) out += fmt::format("<th>{}</th>", escaped(one));
  out += "</tr></thead>\n<tbody>\n";
  for (const auto& line : content.body) {
    out += "<tr>";
    for (const auto& one : line) out += fmt::format("<td>{}</td>", escaped(one));
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

/// A figure without what only a file of its own needs; empty where there is none.
std::string inline_svg(const std::filesystem::path& file) {
  const auto text = read_file(file);
  if (!text) return {};
  const auto begin = text->find("<svg");
  return begin == std::string::npos ? std::string() : text->substr(begin);
}

std::string number(const std::optional<double>& value) {
  return value ? fmt::format("{:.3g}", *value) : std::string("-");
}

/// With the number of clusters, since not all need have all that a finding is about.
std::string shown_with_n(const std::optional<interval>& value) {
  return value ? fmt::format("{}, n = {}", shown(value), value->n) : shown(value);
}

std::string claims_html(const std::vector<judgement>& found) {
  std::string out =
      "<h2>What the paper found</h2>\n<p>Held against these rows: the order first, then the "
      "number where the paper has one. Numbers are ratios of the two that are compared, or the "
      "value itself, as the finding says; absolute times and bytes of other hardware are not "
      "compared. n: clusters that the finding was measured on; of fewer than six the interval is "
      "their range, and of one there is none. <b>agrees</b>: the whole interval is where the "
      "column beside it says, <b>disagrees</b>: none of it is, and it is as far on the other side "
      "of the bound; <b>undecided</b>: the interval is on both sides or too near; "
      "<b>near</b>: the paper's number is in the interval or within a tenth. Why is what the "
      "methods' rules make likely, and was not measured.</p>\n"
      "<div class=\"wide\"><table>\n<thead><tr><th>figure</th><th>finding</th><th>judged</th>"
      "<th>the paper's</th><th>agrees "
      "from</th><th>measured</th><th>order</th><th>number</th><th>likely why</th></tr>"
      "</thead>\n<tbody>\n";
  for (const auto& one : found) {
    const auto* near = !one.number_agrees ? "-" : *one.number_agrees ? "near" : "not near";
    out += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td "
        "class=\"{}\">{}</td><td>{}</td><td>{}</td></tr>\n",
        escaped(one.about->figure), escaped(one.about->says), escaped(one.subject),
        number(one.about->published), rule_of(*one.about), escaped(shown_with_n(one.value)),
        one.ordering == verdict::agrees      ? "yes"
        : one.ordering == verdict::disagrees ? "no"
                                             : "open",
        to_string(one.ordering), near, escaped(one.why));
  }
  return out + "</tbody></table></div>\n";
}

std::string settings_html(const settings& asked) {
  std::string out = "<h2>Settings</h2>\n<div class=\"wide\"><table><tbody>\n";
  for (const auto& [name, value] : asked.items())
    out += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", escaped(name),
                       escaped(value.is_string() ? value.get<std::string>() : value.dump()));
  return out + "</tbody></table></div>\n";
}

constexpr std::string_view head = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>OrderMoE testbed</title>
<style>
body { font: 15px/1.45 sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #222; }
table { border-collapse: collapse; font-size: 13px; }
th, td { border-bottom: 1px solid #ddd; padding: 3px 8px; text-align: left; vertical-align: top; }
th { background: #f4f4f4; }
.wide { overflow-x: auto; }
.yes { color: #14702a; } .no { color: #b01525; } .open { color: #8a6100; }
figure { margin: 1em 0; } figure svg { max-width: 100%; height: auto; }
</style>
</head>
<body>
)";

std::size_t n_clusters(const std::vector<measured_experiment>& all) {
  std::set<std::uint64_t> seeds;
  for (const auto& one : all)
    for (const auto& each : one.rows) seeds.insert(each.what.seed);
  return seeds.size();
}

std::string experiment_html(const std::filesystem::path& folder,
                            const measured_experiment& content) {
  const auto& of = *content.of;
  auto out = fmt::format("<h2 id=\"{0}\">{0}{1}</h2>\n<p>{2}{3}{4}</p>\n", escaped(of.name),
                         of.figure.empty() ? "" : fmt::format(" ({})", escaped(of.figure)),
                         escaped(of.question), of.note.empty() ? "" : " ", escaped(of.note));
  const auto figure = inline_svg(folder / fmt::format("{}.svg", of.name));
  if (!figure.empty()) out += fmt::format("<figure>\n{}</figure>\n", figure);
  if (of.kind == figure_kind::map)
    for (const auto& sentence : map_sentences(map_of(of, content.rows)))
      out += fmt::format("<p>{}</p>\n", escaped(sentence));
  out += html_of(table_of(content));
  std::set<std::string> told;
  for (const auto& each : content.rows)
    if (each.is_infeasible)
      told.insert(fmt::format("{}{}{}: {}", series_of(of, each.what),
                              of.swept == axis::nothing ? "" : ", ",
                              place_name(of.swept, each.what), each.note));
  if (told.empty()) return out;
  out += "<details><summary>What is infeasible, and why</summary><ul>\n";
  for (const auto& one : told) out += fmt::format("<li>{}</li>\n", escaped(one));
  return out + "</ul></details>\n";
}

}  // namespace

std::string table_text(const measured_experiment& content) {
  const auto table = table_of(content);
  std::string out;
  const auto line = [&](const texts& cells) {
    for (const auto& one : cells) out += "| " + one + " ";
    out += "|\n";
  };
  line(table.head);
  for (std::size_t i = 0; i < table.head.size(); ++i) out += "|---";
  out += "|\n";
  for (const auto& each : table.body) line(each);
  if (content.of->kind == figure_kind::map)
    for (const auto& sentence : map_sentences(map_of(*content.of, content.rows)))
      out += fmt::format("\n{}\n", sentence);
  return out;
}

std::vector<judgement> judgements(const std::vector<measured_experiment>& all) {
  std::vector<judgement> found;
  for (const auto& about : claims())
    for (const auto& one : all) {
      if (one.of->name != about.experiment || one.rows.empty()) continue;
      const bool names_both = !about.first.strategy.empty();
      found.push_back(judge(about, names_both ? about.first.strategy : "paper", one.rows));
      if (names_both) continue;
      auto ours = judge(about, "ordermoe", one.rows);
      if (ours.value) found.push_back(std::move(ours));
    }
  return found;
}

std::string judgement_text(const judgement& one) {
  auto text = fmt::format("{}, {}: {} ", one.about->figure, one.subject, one.about->says);
  text += one.about->published ? fmt::format("Published {:.3g}, measured", *one.about->published)
                               : std::string("Measured");
  text += fmt::format(" {}", shown(one.value));
  if (one.value)
    text += fmt::format(" on {} cluster{}", one.value->n, one.value->n == 1 ? "" : "s");
  text += fmt::format(": {} ({})", to_string(one.ordering), rule_of(*one.about));
  if (one.number_agrees)
    text += *one.number_agrees ? ", and near the number" : ", and not near the number";
  return text + ".";
}

std::string page_html(const std::filesystem::path& folder, const settings& asked,
                      const std::vector<measured_experiment>& all) {
  std::string out(head);
  const auto n = n_clusters(all);
  out += fmt::format(
      "<h1>OrderMoE testbed</h1>\n<p>{} on the emulation in virtual time, {}. {}Settings {}.</p>\n",
      escaped(asked.value("model", "")),
      n == 1 ? std::string("one drawn cluster: nothing here says how clusters differ")
      : n < fewest_for_interval
          ? fmt::format("{} drawn clusters, medians with ranges over them", n)
          : fmt::format("{} drawn clusters, medians with 95 % intervals over them", n),
      asked.value("quick", false)
          ? "Measured quickly, with few points, texts and requests: what is seen here is to be "
            "measured whole. "
          : "",
      digest_of(asked));
  out += "<p>Experiments: ";
  for (const auto& one : all)
    out += fmt::format("<a href=\"#{0}\">{0}</a> ", escaped(one.of->name));
  out += "</p>\n" + claims_html(judgements(all));
  for (const auto& one : all)
    if (!one.rows.empty()) out += experiment_html(folder, one);
  return out + settings_html(asked) + "</body>\n</html>\n";
}

}  // namespace ordermoe::experiments::testbed
