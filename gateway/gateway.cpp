#include "gateway/gateway.hpp"

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
  made.created_s = static_cast<std::int64_t>(std::time(nullptr));
  return made;
}

namespace {

net::http_server_options http_of(const gateway_options& options) {
  net::http_server_options made;
  made.listen = options.listen;
  made.limits = options.limits;
  made.tls = options.tls;
  made.allows_remote = options.tls && !options.keys.empty();
  made.problem_type = "application/json";
  made.problem_body = [](int status, std::string_view what) {
    return problem_json(problem_of_status(status, what));
  };
  return made;
}

/// Of an address, with what a gateway's user can do about it.
error explained(error why) {
  if (why.code == errc::usage)
    why.message += ". An address for others needs --api-keys and --tls-certificate with --tls-key";
  return why;
}

}  // namespace

result<void> check_gateway(const gateway_options& options) {
  if (auto good = net::check_listen(http_of(options)); !good) return explained(good.error());
  return {};
}

std::string backend::order(const std::string& node, const actors::bearer_order&,
                           actors::order_sink sink) {
  sink(error{errc::unsupported, "there is nothing to administer here"});
  return node;
}

class gateway::content {
 public:
  content(gateway_options options, std::unique_ptr<backend> behind)
      : options_(std::move(options)), behind_(std::move(behind)), desk_(options_, *behind_) {}

  ~content() { stop(); }

  result<void> begin() {
    auto how = http_of(options_);
    how.most_body = [this](const net::http_request& head) { return desk_.most_body(head); };
    auto made =
        net::http_server::start(std::move(how), [this](std::shared_ptr<net::http_exchange> from) {
          // Somebody may come before there is a server to post to.
          has_server_.wait(false);
          desk_.take(std::move(from));
        });
    if (!made) return explained(made.error());
    server_ = std::move(*made);
    desk_.use(*server_, behind_->tell_in_turns([to = server_.get()] { to->begin_turn(); },
                                               [to = server_.get()] { to->end_turn(); }));
    has_server_ = true;
    has_server_.notify_all();
    return {};
  }

  net::address listens_at() const { return server_->listens_at(); }

  void stop() {
    if (std::exchange(is_stopped_, true)) return;
    if (server_) server_->stop();
    desk_.stop();
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
