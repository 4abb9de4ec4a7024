#include "net/channel/transport.hpp"

#include <utility>

#include "net/channel/peer_book.hpp"

namespace ordermoe::net {

transport::transport(std::unique_ptr<peer_book> book) : book_(std::move(book)) {}
transport::~transport() {
  stop();
}

result<std::unique_ptr<transport>> transport::start(transport_options options,
                                                    transport_user& user) {
  auto book = std::make_unique<peer_book>(std::move(options), user);
  if (auto begun = book->begin(); !begun) return begun.error();
  return std::unique_ptr<transport>(new transport(std::move(book)));
}

bool transport::send(peer_id to, lane of, std::uint8_t kind, std::uint64_t request,
                     std::uint32_t attempt, std::uint32_t epoch, std::string payload,
                     std::uint64_t stamp, std::size_t padding) {
  return book_->send(to, of, kind, request, attempt, epoch, std::move(payload), stamp, padding);
}
void transport::used(peer_id from, lane of, std::uint64_t bytes) {
  book_->used(from, of, bytes);
}
void transport::begin_turn() {
  book_->begin_turn();
}
bool transport::holds() const {
  return book_->holds();
}
void transport::flush(std::int64_t held_ns) {
  book_->flush(held_ns);
}
void transport::end_turn() {
  book_->end_turn();
}
void transport::after(std::int64_t ns, std::function<void()> what) {
  book_->after(ns, std::move(what));
}
void transport::agree(std::string_view what, const std::string& value) {
  book_->agree(what, value);
}
void transport::use(std::shared_ptr<const tls_identity> identity) {
  book_->use(std::move(identity));
}
void transport::admit(peer_id node, bool member, std::optional<address> at) {
  book_->admit(node, member, std::move(at));
}
void transport::leave(peer_id client, std::string_view why) {
  book_->leave(client, why);
}
peer_figures transport::figures(peer_id of) const {
  return book_->figures(of);
}
const std::vector<address>& transport::listens_at() const {
  return book_->listens_at();
}
void transport::stop() {
  book_->stop();
}

}  // namespace ordermoe::net
