#include "ordermoe/node.hpp"

#include <utility>

#include "embedding/node_content.hpp"

namespace ordermoe::api {

namespace {

/// The node with what make() gives, or why there is none.
template <class Make>
result<node> made_of(Make make) {
  return without_exceptions([&]() -> result<node> {
    auto serving = make();
    if (!serving) return problem_of(serving.error());
    return node_access::make(std::move(*serving));
  });
}

}  // namespace

node::node(std::shared_ptr<node_content> content) : content_(std::move(content)) {}
node::node(node&& other) noexcept = default;

node& node::operator=(node&& other) noexcept {
  node before(std::move(*this));
  content_ = std::move(other.content_);
  return *this;
}

node::~node() {
  if (!content_) return;
  if (content_->is_called_back()) {
    content_->silence();
    // Whoever calls back still uses it, and nobody is left who could wait for that.
    static_cast<void>(new std::shared_ptr<node_content>(std::move(content_)));
    return;
  }
  static_cast<void>(stop());
}

result<node> node::start(const cluster_options& options) {
  return made_of([&] { return embedding::start_engine(options, nullptr); });
}
result<node> node::start(const member_options& options) {
  return made_of([&] { return embedding::start_engine(options, nullptr); });
}
result<node> node::connect(const client_options& options) {
  return made_of([&] { return embedding::connect_engine(options); });
}

result<std::uint64_t> node::submit(const prompt& wanted, answer_sink sink) {
  return without_exceptions([&] { return content_->submit(wanted, std::move(sink)); });
}
result<answer> node::ask(const prompt& wanted) {
  return without_exceptions([&] { return content_->ask(wanted); });
}
void node::cancel(std::uint64_t request) {
  static_cast<void>(without_exceptions([&]() -> result<void> {
    content_->cancel(request);
    return {};
  }));
}
std::size_t node::outstanding() const {
  return content_->outstanding();
}
result<std::string> node::status() {
  return without_exceptions([&] { return content_->status(); });
}
result<std::string> node::order(const admin_order& wanted) {
  return without_exceptions([&] { return content_->order(wanted); });
}
std::vector<std::string> node::listens_at() const {
  const auto places = without_exceptions(
      [&]() -> result<std::vector<std::string>> { return content_->listens_at(); });
  return places ? *places : std::vector<std::string>();
}
result<void> node::stop() {
  return without_exceptions([&] { return content_->stop(); });
}

}  // namespace ordermoe::api
