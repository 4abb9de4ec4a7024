#pragma once

#include <climits>  // Says whether the library is glibc.

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace ordermoe {

/// What this process frees is kept for what it asks next. As the allocator comes, blocks of megabytes, of which a prompt needs some for
/// each layer, go back to the system at once, and what is asked next comes from there page by page: that costs little on most
/// machines and more than the products of a prompt on one whose pages two systems share out. For programs; an embedding program's
/// memory is its own (docs/EMBEDDING.md).
inline void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int largest_kept_block = 32 << 20, most_kept = 256 << 20;
  ::mallopt(M_MMAP_THRESHOLD, largest_kept_block);
  ::mallopt(M_TRIM_THRESHOLD, most_kept);
#endif
}

}  // namespace ordermoe
