#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

namespace ordermoe {

/// Brings what was made, renamed or removed in a folder to the disk, where its file system can: without it a name may be gone after a power cut
/// though the bytes of its file are there.
inline void sync_folder(const std::filesystem::path& folder) {
  const int opened =
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0) return;
  ::fsync(opened);
  ::close(opened);
}

}  // namespace ordermoe
