#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "bench/experiments/testbed/statistics.hpp"

/// Figures by gnuplot, which is a program of its own.
namespace ordermoe::experiments::testbed {

/// A script that writes NAME.svg and NAME.png into the folder where it runs, with its data inside; empty where nothing was
/// measured. Bars and points have the interval over clusters.
std::string plot_script(const experiment& of, const std::vector<row>& rows);

enum class drawn { figures, no_gnuplot };
/// Writes NAME.gp and runs it. Errors: io; failed where gnuplot refuses the script.
result<drawn> draw_figures(const std::filesystem::path& folder, const experiment& of,
                           const std::vector<row>& rows);

}  // namespace ordermoe::experiments::testbed
