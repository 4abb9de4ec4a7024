#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "config/error.hpp"
#include "gateway/backend.hpp"
#include "gateway/keys.hpp"
#include "model/text/chat_template.hpp"
#include "model/text/tokenizer.hpp"
#include "net/http/server.hpp"
#include "planning/strategies/quality_terms.hpp"

/// An HTTP server that answers as OpenAI's does, from the servers of a cluster.
namespace ordermoe::gateway {

/// What is served, as a gateway must know it.
struct served_model {
  std::string id, digest;
  std::shared_ptr<const model::tokenizer> tokens;
  std::optional<model::chat_template> chat;
  std::string no_chat;  ///< Why there is no chat template.
  std::size_t vocabulary = 0;
  std::size_t context = 0;          ///< Positions of a request, prompt and answer.
  std::int64_t created_s = 0;       ///< Since 1970.
  planning::quality_terms quality;  ///< Of its plan; of which it needs no units.
  /// All its servers compute on one kind of device: others round differently, and an exact answer
  /// may depend on which server computed what.
  bool computes_alike = true;
};

/// Reads what a model's folder says. Errors name the file.
result<served_model> describe_model(const std::filesystem::path& folder);

/// Of operators' orders.
struct order_times {
  std::chrono::milliseconds hold{2'000};  ///< One that takes longer is answered with 202.
  std::chrono::milliseconds second{
      1'000};  ///< In which each verb's limit is counted; less where a test does not wait.
};

struct gateway_options {
  net::address listen{"127.0.0.1", 8080};
  std::optional<net::http_tls_files> tls;
  api_keys keys;
  net::http_limits limits;
  served_model model;
  std::size_t most_running = 64;        ///< Answers at a time.
  std::size_t most_waiting = 256;       ///< Answers that wait for their turn.
  std::size_t most_choices = 16;        ///< Of one request.
  std::uint32_t default_tokens = 1024;  ///< Of a chat that states none, at most.
  std::chrono::milliseconds longest_answer{120'000};
  order_times orders;
  std::filesystem::path pages;  ///< Folder of a dashboard; empty, or not there: none.
};

/// What gateway::start() would refuse of the address, the keys and the files of TLS, for whoever has a backend to start
/// before. Errors: those of gateway::start().
result<void> check_gateway(const gateway_options& options);

class gateway {
 public:
  /// Errors: those of net::http_server; usage where others may reach the address and keys or TLS are missing.
  static result<std::unique_ptr<gateway>> start(gateway_options options,
                                                std::unique_ptr<backend> behind);
  /// stop().
  ~gateway();
  net::address listens_at() const;
  /// Every peer is cut off, what was asked for is cancelled, and the backend stops.
  void stop();

 private:
  class content;
  explicit gateway(std::unique_ptr<content> made);
  std::unique_ptr<content> content_;
};

}  // namespace ordermoe::gateway
