#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"
#include "config/files.hpp"
#include "model/text/tokenizer.hpp"
#include "model/text/utf8.hpp"

/// What the fuzz targets share. A target reports what is wrong by ORDERMOE_CHECK, which aborts.
namespace fuzz {

namespace fs = std::filesystem;

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// An empty folder in memory (/dev/shm), one for each process, for readers that open files.
inline const fs::path& memory_folder() {
  static const fs::path folder = [] {
    std::string pattern = "/dev/shm/ordermoe-fuzz-XXXXXX";
    ORDERMOE_CHECK(::mkdtemp(pattern.data()) != nullptr, "no folder in /dev/shm");
    std::atexit([] {
      std::error_code ignored;
      fs::remove_all(memory_folder(), ignored);
    });
    return fs::path(pattern);
  }();
  return folder;
}

/// Replaces the file's content where it stands: quicker than ordermoe::write_file, which syncs.
inline void put(const fs::path& path, std::string_view bytes) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"),
                                                       &std::fclose);
  ORDERMOE_CHECK(file != nullptr, "a file in memory cannot be written");
  if (!bytes.empty())
    ORDERMOE_CHECK(std::fwrite(bytes.data(), 1, bytes.size(), file.get()) == bytes.size(),
                   "a file in memory cannot be written");
}

using ordermoe::model::is_utf8;

/// An error says where and why.
inline void check_refusal(const ordermoe::error& problem, std::string_view place) {
  ORDERMOE_CHECK(problem.message.find(place) != std::string::npos,
                 fmt::format("a message without its place: {}", problem.message));
}

/// What holds for every tokenizer that was read, whatever it was read from: ids are within the
/// vocabulary, decoded text is UTF-8, and streaming gives whole characters and the same text.
inline void check_tokenizer(const std::shared_ptr<const ordermoe::model::tokenizer>& tokens) {
  const std::string_view texts[] = {
      "",
      "The fox",
      "  a b  <|end|> I'LL 1234\r\n\n\t",
      "caf\xc3\xa9 e\xcc\x81 \xef\xac\x81 \xe6\xbc\xa2\xe5\xad\x97 \xf0\x9f\x91\xa9\xe2\x80\x8d",
      "\xff\xc3( [end]\xe2\x96\x81 \xf0\x9f",
  };
  const auto n = static_cast<std::int32_t>(tokens->vocab_size());
  std::vector<std::int32_t> every;
  for (const auto text : texts) {
    const auto ids = tokens->encode(text);
    for (const auto id : ids) ORDERMOE_CHECK(id >= 0 && id < n, "an id beyond the vocabulary");
    ORDERMOE_CHECK(is_utf8(tokens->decode(ids)), "decoded text is no UTF-8");
    every.insert(every.end(), ids.begin(), ids.end());
  }
  for (std::int32_t i = -1; i < 24; ++i) every.push_back(i < 12 ? i : n - (i - 12));
  std::string together;
  ordermoe::model::streaming_decoder stream(tokens);
  for (const auto id : every) {
    const std::string part = stream.push(id);
    ORDERMOE_CHECK(is_utf8(part), "a part of a stream is no UTF-8");
    together += part;
  }
  together += stream.finish();
  ORDERMOE_CHECK(together == tokens->decode(every), "a stream differs from the whole text");
}

}  // namespace fuzz
