#include "bench/experiments/testbed/plot.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "bench/experiments/testbed/substitution_map.hpp"
#include "config/files.hpp"

extern char** environ;

namespace ordermoe::experiments::testbed {

namespace {

using cells = std::vector<cell>;

/// As a gnuplot string in double quotes, whose texts are plain.
std::string plot_string(const std::string& text) {
  std::string out = "\"";
  for (const auto c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string numbers(const interval& value) {
  return fmt::format("{:.6g} {:.6g} {:.6g}", value.median, value.low, value.high);
}

std::vector<metric> measured_columns(const experiment& of, const cells& all) {
  std::vector<metric> kept;
  for (const auto column : of.columns)
    if (std::ranges::any_of(all, [&](const cell& one) { return one[column].has_value(); }))
      kept.push_back(column);
  return kept;
}

std::vector<std::string> series_in(const cells& all) {
  std::vector<std::string> names;
  for (const auto& one : all)
    if (std::ranges::find(names, one.series) == names.end()) names.push_back(one.series);
  return names;
}

/// The panel's own text of the whole script, once for each kind of picture.
struct drawing {
  std::string data, panels;
  std::size_t n_panels = 0, width = 520, height = 380, columns = 2;
};

/// Where a panel ends: what is far beyond the others is cut, and its number stands there.
double end_of(const cells& all, metric column) {
  std::vector<double> highs;
  for (const auto& one : all)
    if (const auto value = one[column]) highs.push_back(value->high);
  std::sort(highs.begin(), highs.end());
  // What four of five stay below, and half of it again.
  const auto usual = 1.5 * highs[highs.size() * 4 / 5];
  return highs.back() > usual && usual > 0 ? usual : 1.05 * highs.back();
}

/// Below 0 where a value is.
double lowest_of(const cells& all, metric column) {
  double least = 0;
  for (const auto& one : all)
    if (const auto value = one[column]) least = std::min(least, value->low);
  return least;
}

/// Four or so to a panel, at 1, 2 or 5 times a power of ten.
double tick_of(double end) {
  if (end <= 0) return 1;
  const auto rough = end / 4;
  const auto power = std::pow(10, std::floor(std::log10(rough)));
  const auto times = rough / power;
  return power * (times < 1.5 ? 1 : times < 3.5 ? 2 : times < 7.5 ? 5 : 10);
}

std::string bar_lines(const cells& all, metric column, double end) {
  std::string lines;
  std::size_t place = 0;
  for (const auto& one : all) {
    const auto at = all.size() - place++;
    const auto value = one[column];
    if (!value)
      lines += fmt::format(
          "{} {} NaN NaN NaN \"\"\n",
          plot_string(one.series + (one.n_infeasible() == one.rows.size() ? " (infeasible)" : "")),
          at);
    else
      lines += fmt::format("{} {} {} {}\n", plot_string(one.series), at, numbers(*value),
                           plot_string(value->median > end ? shown(interval{value->median, 0, 0, 1})
                                                           : std::string()));
  }
  return lines;
}

drawing bars(const experiment& of, const cells& all, const std::vector<metric>& columns) {
  drawing made;
  made.columns = 3;
  // Names stand beside their bars: as high as they are many.
  made.height = std::max<std::size_t>(260, 90 + 17 * all.size());
  for (const auto column : columns) {
    const auto block = fmt::format("$d{}", made.n_panels++);
    const auto end = end_of(all, column);
    made.data += fmt::format("{} << EOD\n{}EOD\n", block, bar_lines(all, column, end));
    made.panels += fmt::format(
        "set title {0}\nset yrange [0.3:{1}]\nset xrange [{4}:{2:.6g}]\nset xtics {5:.6g}\nset "
        "style "
        "fill solid 0.6\n"
        "plot {3} using 3:2:(0):3:($2-0.36):($2+0.36):ytic(1) with boxxyerror lc rgb '#4477aa' "
        "notitle, {3} using 3:2:4:5 with xerrorbars pt 0 lc rgb '#222222' notitle, {3} using "
        "({2:.6g}):2:6 with labels right offset -0.5,0 notitle\n",
        plot_string(title_of(column)), static_cast<double>(all.size()) + 0.7, end > 0 ? end : 1.0,
        block, lowest_of(all, column), tick_of(end));
  }
  return made;
}

constexpr const char* part_colours[] = {"#4477aa", "#66ccee", "#ee6677", "#ccbb44", "#bbbbbb"};

/// The execution kinds after one another on one bar; then the other columns as bars.
drawing stacked(const experiment& of, const cells& all, const std::vector<metric>& columns) {
  std::vector<metric> rest, shares;
  for (const auto column : columns)
    (column >= metric::local_exact && column <= metric::left_out ? shares : rest).push_back(column);
  auto made = bars(of, all, rest);
  made.data += "$parts << EOD\n";
  std::size_t place = 0;
  for (const auto& one : all) {
    made.data += fmt::format("{} {}", plot_string(one.series), all.size() - place++);
    double sum = 0;
    for (const auto share : shares) {
      const auto value = one[share];
      made.data += fmt::format(" {:.6g}", sum);
      sum += value ? value->median : 0;
      made.data += fmt::format(" {:.6g}", sum);
    }
    made.data += "\n";
  }
  made.data += "EOD\n";
  std::string plots;
  for (std::size_t i = 0; i < shares.size(); ++i)
    plots += fmt::format(
        "{}$parts using {}:2:{}:{}:($2-0.36):($2+0.36):ytic(1) with boxxyerror lc "
        "rgb '{}' title {}",
        i == 0 ? "" : ", ", 4 + 2 * i, 3 + 2 * i, 4 + 2 * i,
        part_colours[i % std::size(part_colours)], plot_string(title_of(shares[i])));
  made.panels =
      fmt::format(
          "set title 'share of expert calls'\nset yrange [0.3:{}]\nset xrange "
          "[0:1]\nset xtics 0.2\nset style fill solid 0.8\nset key outside below\nplot {}\nunset "
          "key\n",
          static_cast<double>(all.size()) + 0.7, plots) +
      made.panels;
  made.height += 40;
  ++made.n_panels;
  made.columns = 2;
  return made;
}

drawing lines(const experiment& of, const cells& all, const std::vector<metric>& columns) {
  drawing made;
  const auto series = series_in(all);
  std::string ticks;
  for (const auto& one : all)
    if (one.position && ticks.find(plot_string(one.place) + " ") == std::string::npos)
      ticks += fmt::format("{}{} {:g}", ticks.empty() ? "" : ", ", plot_string(one.place),
                           *one.position);
  made.panels = fmt::format("set xlabel {}\nset xtics ({})\nset key outside below\n",
                            plot_string(title_of(of.swept)), ticks);
  for (const auto column : columns) {
    std::string plots;
    for (std::size_t i = 0; i < series.size(); ++i) {
      const auto block = fmt::format("$d{}_{}", made.n_panels, i);
      made.data += block + " << EOD\n";
      bool has_any = false;
      for (const auto& one : all)
        if (const auto value = one[column]; value && one.position && one.series == series[i]) {
          made.data += fmt::format("{:g} {}\n", *one.position, numbers(*value));
          has_any = true;
        }
      made.data += "EOD\n";
      if (!has_any) continue;
      plots += fmt::format("{}{} using 1:2:3:4 with yerrorlines lw 2 pt {} lc {} title {}",
                           plots.empty() ? "" : ", ", block, 4 + i, i + 1, plot_string(series[i]));
    }
    made.panels += fmt::format(
        "set title {}\nset yrange [0:*]\nset offsets graph 0.04, graph "
        "0.04, graph 0.05, 0\nplot {}\n",
        plot_string(title_of(column)), plots);
    ++made.n_panels;
  }
  made.height = 300 + 20 * ((series.size() + 1) / 2);
  return made;
}

drawing scatter(const experiment& of, const cells& all, const std::vector<metric>&) {
  drawing made;
  made.data = "$d << EOD\n";
  for (const auto& one : all) {
    const auto loss = one[metric::increase_percent], latency = one[metric::latency_ms];
    if (!loss || !latency) continue;
    made.data +=
        fmt::format("{} {} {}\n", numbers(*loss), numbers(*latency), plot_string(one.place));
  }
  made.data += "EOD\n";
  made.panels = fmt::format(
      "set title {}\nset xlabel {}\nset ylabel {}\nset offsets graph 0.1, graph 0.1, graph 0.1, "
      "graph 0.1\nplot $d using 1:4:2:3:5:6 with xyerrorbars pt 7 lc rgb '#4477aa' notitle, $d "
      "using 1:4:7 with labels offset 0,1 notitle\n",
      plot_string(title_of(of.swept)), plot_string(title_of(metric::increase_percent)),
      plot_string(title_of(metric::latency_ms)));
  made.n_panels = made.columns = 1;
  return made;
}

/// Names in the order of their first appearance, and where each is.
class places {
 public:
  std::size_t of(const std::string& name) {
    const auto found = std::ranges::find(names_, name);
    if (found != names_.end()) return static_cast<std::size_t>(found - names_.begin());
    names_.push_back(name);
    return names_.size() - 1;
  }
  std::size_t size() const { return names_.size(); }
  std::string ticks() const {
    std::string made;
    for (std::size_t i = 0; i < names_.size(); ++i)
      made += fmt::format("{}{} {}", i == 0 ? "" : ", ", plot_string(names_[i]), i);
    return made;
  }

 private:
  std::vector<std::string> names_;
};

std::string network_and_load(const point& where) {
  const auto parts = setting_of(where);
  return fmt::format("{}, {}", parts.network, parts.load);
}

/// A panel a budget: memory across, network and load upwards, what is saved as colour and number.
drawing map(const experiment& of, const std::vector<row>& rows) {
  drawing made;
  places across, upwards;
  std::vector<double> budgets;
  const auto all = map_of(of, rows);
  for (const auto& one : all) {
    across.of(setting_of(one.where).memory);
    upwards.of(network_and_load(one.where));
    if (std::ranges::find(budgets, one.where.percent) == budgets.end())
      budgets.push_back(one.where.percent);
  }
  made.panels = fmt::format(
      "set xtics ({}) rotate by -25\nset ytics ({})\nset xrange [-0.5:{}]\nset yrange "
      "[-0.5:{}]\nset cbrange [-40:40]\nset palette defined (-40 '#b2182b', 0 '#f7f7f7', 40 "
      "'#2166ac')\nunset grid\n",
      across.ticks(), upwards.ticks(), static_cast<double>(across.size()) - 0.5,
      static_cast<double>(upwards.size()) - 0.5);
  for (const auto budget : budgets) {
    const auto block = fmt::format("$d{}", made.n_panels++);
    made.data += block + " << EOD\n";
    for (const auto& one : all) {
      if (one.where.percent != budget) continue;
      const auto saved = one.saved_percent;
      made.data +=
          fmt::format("{} {} {} {}\n", across.of(setting_of(one.where).memory),
                      upwards.of(network_and_load(one.where)),
                      saved ? fmt::format("{:.6g}", saved->median) : std::string("NaN"),
                      plot_string(saved ? fmt::format("{:.0f}", saved->median)
                                        : std::string(one.n_without_exact > 0 ? "alone" : "none")));
    }
    made.data += "EOD\n";
    made.panels += fmt::format(
        "set title {0}\nplot {1} using 1:2:($1-0.5):($1+0.5):($2-0.5):($2+0.5):3 with boxxyerror "
        "fs solid 1 fc palette notitle, {1} using 1:2:4 with labels notitle\n",
        plot_string(fmt::format("% saved of the fastest exact latency, budget {:g} %", budget)),
        block);
  }
  made.width = 160 + 90 * across.size();
  made.height = 150 + 40 * upwards.size();
  return made;
}

drawing drawing_of(const experiment& of, const std::vector<row>& rows, const cells& all,
                   const std::vector<metric>& columns) {
  switch (of.kind) {
    case figure_kind::map:
      return map(of, rows);
    case figure_kind::bars:
      return bars(of, all, columns);
    case figure_kind::stacked:
      return stacked(of, all, columns);
    case figure_kind::lines:
      return lines(of, all, columns);
    case figure_kind::scatter:
      break;
  }
  return scatter(of, all, columns);
}

/// Exit status of a program found on PATH, with this argument and nothing to say; -1 where it is not there.
int run_program(const char* name, const std::string& argument, const std::string& folder) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::string program = name, file = argument;
  char* arguments[] = {program.data(), file.data(), nullptr};
  pid_t child = 0;
  const auto failed = posix_spawnp(&child, name, &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  constexpr int not_there = -1, other = 127;
  if (failed != 0) return failed == ENOENT ? not_there : other;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return other;
  return WIFEXITED(status) ? WEXITSTATUS(status) : other;
}

}  // namespace

std::string plot_script(const experiment& of, const std::vector<row>& rows) {
  const auto all = cells_of(of, rows);
  const auto columns = measured_columns(of, all);
  if (columns.empty()) return {};
  const auto made = drawing_of(of, rows, all, columns);
  if (made.n_panels == 0) return {};
  const auto width = std::min(made.columns, made.n_panels);
  const auto height = (made.n_panels + width - 1) / width;
  const auto layout = fmt::format(
      "set multiplot layout {},{}\nunset key\nset grid lc rgb "
      "'#dddddd'\nset border 3\nset tics nomirror\n",
      height, width);
  auto identifier = std::string(of.name);
  std::ranges::replace(identifier, '-', '_');
  const auto size = fmt::format("{},{}", width * made.width, height * made.height);
  return fmt::format(
      "# {}\n{}set terminal svg size {} dynamic name {} font 'sans-serif,12' noenhanced "
      "background rgb 'white'\nset output '{}.svg'\n{}{}unset multiplot\nreset\nset terminal "
      "pngcairo size {} font 'sans,10' noenhanced\nset output '{}.png'\n{}{}unset "
      "multiplot\nunset output\n",
      of.question, made.data, size, plot_string(identifier), of.name, layout, made.panels, size,
      of.name, layout, made.panels);
}

result<drawn> draw_figures(const std::filesystem::path& folder, const experiment& of,
                           const std::vector<row>& rows) {
  const auto script = plot_script(of, rows);
  const auto name = fmt::format("{}.gp", of.name);
  // Figures of other rows would stand above today's where none can be drawn.
  if (const auto before = read_file(folder / name); !before || *before != script)
    for (const char* ending : {"svg", "png"}) {
      std::error_code ignored;
      std::filesystem::remove(folder / fmt::format("{}.{}", of.name, ending), ignored);
    }
  if (script.empty()) return drawn::figures;
  if (auto kept = write_file(folder / name, script); !kept) return kept.error();
  const auto status = run_program("gnuplot", name, folder.string());
  if (status == -1) return drawn::no_gnuplot;
  if (status != 0)
    return error{errc::failed,
                 fmt::format("{}: gnuplot ended with {}, expected 0; run it by hand in {} to see "
                             "why",
                             name, status, folder.string())};
  return drawn::figures;
}

}  // namespace ordermoe::experiments::testbed
