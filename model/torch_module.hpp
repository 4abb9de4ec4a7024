#pragma once

#include "config/error.hpp"

/// LibTorch comes into a process when something asks for it, and not before: what trains and what
/// computes through LibTorch is a library of its own (model/torch), loaded here by dlopen. The rest
/// of the project never links LibTorch, so that a command that serves on the host's kernels starts
/// in milliseconds and keeps LibTorch's memory for itself.
///
/// The module is the first of these files that is there:
///   $ORDERMOE_TORCH_MODULE, where it is set; then no other is tried
///   libordermoe_torch.so beside the program
///   ../lib/ordermoe/libordermoe_torch.so from there, where it is installed
///   the one that this program was built with
namespace ordermoe::model {

/// Changes with every interface that crosses into the module: what was built of other sources or by
/// another compiler is refused.
inline constexpr const char* torch_module_build = "ordermoe-torch 3, " __VERSION__;

/// What the module's entry function of that name returns; the module is loaded at the first call
/// and stays. Safe to call from several threads. Errors: unsupported, with where it was looked for
/// and what to do, where there is no module, where it does not load or is of another build.
result<const void*> torch_entry(const char* name);

/// Whether the module is in this process.
bool torch_is_loaded();

}  // namespace ordermoe::model
