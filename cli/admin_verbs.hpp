#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "cli/admin_session.hpp"
#include "cli/common.hpp"

/// An operator's verbs, as subcommands of whatever reads them: `ordermoe admin`, or a line that somebody typed.
namespace ordermoe::cli {

/// Has a body run where its command is chosen.
using bind_function = std::function<void(CLI::App&, command_body)>;

/// `session` is called by a verb that runs. Set what verbs inherit of `parent`, as fallthrough, before.
void add_verbs(CLI::App& parent, std::function<session_ptr()> session, bind_function bind);

}  // namespace ordermoe::cli
