#pragma once

#include <cstddef>
#include <functional>

#include "config/error.hpp"

/// How far a strategy that prunes experts goes for a budget.
namespace ordermoe::setup {

/// What trying a cut says.
enum class cut_trial {
  within,        ///< The budget is kept.
  beyond,        ///< It is not.
  does_not_fit,  ///< Memory is too small for what would be left, and a farther cut is needed.
};

/// The farthest cut from 0 to `most` that is not beyond a budget and behind none that was found beyond: sixteenths of `most` are tried from the
/// first on, and between the last one within and the first one beyond by bisection. A farther cut may lose less again on some texts, since without certain
/// experts a model is right by chance more often than it deserves; on other texts it then loses more. 0,
/// which loses nothing, is not tried; what is returned may not fit, which planning it says. Errors: those of `tried`.
result<std::size_t> farthest_cut(std::size_t most,
                                 const std::function<result<cut_trial>(std::size_t)>& tried);

/// How often farthest_cut() tries one at most.
std::size_t most_cut_trials(std::size_t most);

}  // namespace ordermoe::setup
