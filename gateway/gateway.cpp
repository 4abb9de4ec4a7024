#include "gateway/gateway.hpp"

#include <fmt/format.h>

#include <atomic>
#include <ctime>
#include <utility>

#include "gateway/desk.hpp"
#include "model/architecture/model_config.hpp"
#include "model/checkpoint/safetensors.hpp"

namespace ordermoe::gateway {

result<served_model> describe_model(const std::filesystem::path& folder) {
  const auto shape = model::read_model_config(folder);
  if (!shape) return shape.error();
  auto tokens = model::tokenizer::load(folder);
  if (!tokens) return tokens.error();
  auto digest = model::model_digest(folder);
  if (!digest) return digest.error();
  served_model made;
  made.id = std::filesystem::absolute(folder / ".").lexically_normal().parent_path().filename();
  made.digest = std::move(*digest);
  made.tokens = std::move(*tokens);
  auto chat = model::chat_template::load(folder);
  if (chat)
    made.chat = std::move(*chat);
  else if (chat.error().code == errc::not_found || chat.error().code == errc::unsupported)
    made.no_chat = chat.error().message;
  else
    return chat.error();
  made.vocabulary = shape->vocab_size;
  made.context = shape->max_context;
  made.is_encoder_decoder = shape->encoder_decoder.has_value();
  made.created_s = static_cast<std::int64_t>(std::time(nullptr));
  return made;
}

class gateway::content {
 public:
  content(gateway_options options, std::unique_ptr<backend> behind)
      : options_(std::move(options)), behind_(std::move(behind)), desk_(options_, *behind_) {}

  ~content() { stop(); }

  result<void> begin() {
    net::http_server_options http;
    http.listen = options_.listen;
    http.limits = options_.limits;
    http.tls = options_.tls;
    http.allows_remote = options_.tls && !options_.keys.empty();
    http.problem_type = "application/json";
    http.problem_body = [](int status, std::string_view what) {
      return problem_json(problem_of_status(status, what));
    };
    auto made = net::http_server::start(http, [this](std::shared_ptr<net::http_exchange> from) {
      // Somebody may come before there is a server to post to.
      has_server_.wait(false);
      desk_.take(std::move(from));
    });
    if (!made && made.error().code == errc::usage)
      return error{errc::usage,
                   fmt::format("{}. An address for others needs --api-keys and --tls-certificate "
                               "with --tls-key",
                               made.error().message)};
    if (!made) return made.error();
    server_ = std::move(*made);
    desk_.use(*server_);
    has_server_ = true;
    has_server_.notify_all();
    return {};
  }

  net::address listens_at() const { return server_->listens_at(); }

  void stop() {
    if (std::exchange(is_stopped_, true)) return;
    if (server_) server_->stop();
    behind_->stop();
  }

 private:
  gateway_options options_;
  std::unique_ptr<net::http_server> server_;
  std::unique_ptr<backend> behind_;
  desk desk_;
  std::atomic<bool> has_server_ = false;
  bool is_stopped_ = false;
};

gateway::gateway(std::unique_ptr<content> made) : content_(std::move(made)) {}
gateway::~gateway() = default;

result<std::unique_ptr<gateway>> gateway::start(gateway_options options,
                                                std::unique_ptr<backend> behind) {
  auto made = std::make_unique<content>(std::move(options), std::move(behind));
  if (auto begun = made->begin(); !begun) return begun.error();
  return std::unique_ptr<gateway>(new gateway(std::move(made)));
}

net::address gateway::listens_at() const {
  return content_->listens_at();
}
void gateway::stop() {
  content_->stop();
}

}  // namespace ordermoe::gateway
