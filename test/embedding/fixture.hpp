#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "config/cluster.hpp"
#include "config/files.hpp"
#include "config/job.hpp"
#include "model/reference.hpp"
#include "ordermoe/node.hpp"
#include "setup/cluster_folder.hpp"
#include "setup/plan_file.hpp"
#include "setup/preparation.hpp"
#include "setup/world.hpp"

/// The bundled model on three drawn servers, as an embedder finds it on disk.
namespace ordermoe::test {

inline constexpr const char* lineage = ORDERMOE_DATA "/models/lineage";

inline bool says(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

class scratch_folder {
 public:
  scratch_folder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "ordermoe-embedding-XXXXXX").string();
    BOOST_REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~scratch_folder() { std::filesystem::remove_all(path); }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path / name) << text;
    return (path / name).string();
  }

  std::filesystem::path path;
};

inline cluster three_servers(double memory_ratio = 1.5) {
  draw_options draw;
  draw.n_servers = 3;
  draw.seed = 2;
  draw.n_layers = 6;
  draw.n_experts = 8;
  draw.memory_ratio = memory_ratio;
  draw.costs = *named_cost_profile("mixtral-8x7b");
  auto made = draw_cluster(draw);
  made.name = "edge3";
  return made;
}

/// Planned in no time, and exact: answers are those of the reference.
inline api::cluster_options options_in(const scratch_folder& scratch) {
  api::cluster_options options;
  options.model = lineage;
  options.cluster = scratch.write("three.toml", cluster_toml(three_servers()));
  options.strategy = "local-only";
  options.costs = "mixtral-8x7b";  // As the servers were drawn.
  options.threads = 1;
  return options;
}

inline api::node started(const api::cluster_options& options) {
  auto begun = api::node::start(options);
  BOOST_REQUIRE_MESSAGE(begun, (begun ? "" : begun.problem().message));
  return std::move(*begun);
}

inline std::vector<std::int32_t> reference_ids(const std::string& text, std::uint32_t max_tokens) {
  static const auto model = *model::transformer::load(lineage);
  static const auto tokens = *model::tokenizer::load(lineage);
  model::generation_options options;
  options.max_new_tokens = max_tokens;
  return model::generate(*model, tokens.get(), tokens->encode(text), options)->token_ids;
}

/// One answer as it is told, and whether it was told as it must be.
class heard_answer {
 public:
  api::answer_sink sink() {
    return {[this](const api::token& told) { take(told); },
            [this](const api::answer& told) { end(told); }};
  }
  api::answer wait() {
    std::unique_lock lock(mutex_);
    BOOST_REQUIRE(
        changed_.wait_for(lock, std::chrono::seconds(60), [this] { return ended_.has_value(); }));
    return *ended_;
  }
  void wait_for_tokens(std::size_t n) {
    std::unique_lock lock(mutex_);
    BOOST_REQUIRE(changed_.wait_for(lock, std::chrono::seconds(60),
                                    [&] { return ids_.size() >= n || ended_; }));
  }
  std::string mistake() const {
    const std::lock_guard lock(mutex_);
    return mistake_;
  }
  std::size_t n_tokens() const {
    const std::lock_guard lock(mutex_);
    return ids_.size();
  }
  bool has_ended() const {
    const std::lock_guard lock(mutex_);
    return ended_.has_value();
  }

  void take(const api::token& told) {
    const std::lock_guard lock(mutex_);
    if (ended_) mistake_ = "a token after the end";
    if (told.index != ids_.size()) mistake_ = "a token twice or out of order";
    ids_.push_back(told.id);
    text_ += told.text;
    changed_.notify_all();
  }
  void end(const api::answer& told) {
    const std::lock_guard lock(mutex_);
    if (ended_) mistake_ = "a second end";
    if (told.ids != ids_) mistake_ = "an end with other ids than were told";
    if (told.text != text_ + told.tail) mistake_ = "an end with another text than was told";
    ended_ = told;
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::int32_t> ids_;
  std::string text_, mistake_;
  std::optional<api::answer> ended_;
};

inline std::size_t entries_of(const char* folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}
inline std::size_t n_threads() {
  return entries_of("/proc/self/task");
}
/// How many threads stay: one that was joined is listed for a moment longer, one that leaked for
/// good.
inline std::size_t threads_in_the_end() {
  auto fewest = n_threads();
  for (int i = 0; i < 50; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    fewest = std::min(fewest, n_threads());
  }
  return fewest;
}

/// Ports of the loopback address that were free a moment ago.
inline std::vector<std::string> free_addresses(std::size_t n) {
  std::vector<int> held;
  std::vector<std::string> addresses;
  for (std::size_t i = 0; i < n; ++i) {
    held.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    BOOST_REQUIRE(::bind(held.back(), reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0);
    BOOST_REQUIRE(::getsockname(held.back(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
    addresses.push_back("127.0.0.1:" + std::to_string(ntohs(at.sin_port)));
  }
  for (const int each : held) ::close(each);
  return addresses;
}

/// A cluster's folder for three nodes on loopback, as `ordermoe cluster prepare` writes it.
inline setup::cluster_folder prepare_cluster(const scratch_folder& scratch,
                                             const std::string& name = "edge",
                                             double memory_ratio = 1.5) {
  job work;
  setup::world_options wanted;
  wanted.model = lineage;
  wanted.cluster = scratch.write("three.toml", cluster_toml(three_servers(memory_ratio)));
  const auto world = setup::load_world(wanted, work);
  BOOST_REQUIRE(world.has_value());
  setup::preparation_request request;
  request.strategy = "local-only";
  const auto ready = setup::prepare(*world, request, work);
  BOOST_REQUIRE(ready.has_value());
  setup::cluster_folder_contents contents;
  contents.servers = world->servers;
  contents.plan = setup::plan_file_json(*world, request, *ready);
  contents.profile = planning::profile_json(world->profile);
  contents.model = lineage;
  contents.costs = wanted.costs;
  contents.most_positions = 400;
  contents.addresses = free_addresses(3);
  const setup::cluster_folder folder{scratch.path / name};
  const auto written = setup::write_cluster_folder(folder, contents);
  BOOST_REQUIRE_MESSAGE(written, (written ? "" : written.error().message));
  return folder;
}

}  // namespace ordermoe::test
