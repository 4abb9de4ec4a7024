#pragma once

#include <climits>  // Says whether the library is glibc.

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace ordermoe {

/// What this process frees is kept for what it asks next. As the allocator comes, blocks of megabytes, of which a prompt needs some for
/// each layer, go back to the system at once, and what is asked next comes from there page by page, which on a virtual machine took
/// longer than the products of a prompt (docs/RESULTS.md, "Beside another engine"). Of programs alone: an embedding program's memory
/// is its own.
inline void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int largest_kept_block = 32 << 20, most_kept = 256 << 20;
  ::mallopt(M_MMAP_THRESHOLD, largest_kept_block);
  ::mallopt(M_TRIM_THRESHOLD, most_kept);
#endif
}

}  // namespace ordermoe
