#include "actors/context.hpp"

#include <fmt/format.h>

#include <utility>

namespace ordermoe::actors {

void service_context::derive() {
  decoding.n_layers = static_cast<std::uint32_t>(shape().n_layers);
  decoding.start_rows = shape().encoder_decoder ? 1 : 0;
  decoding.decoded_layer = shape().first_layer(model::row_kind::decoded).value;
  decoding.max_context = static_cast<std::uint32_t>(shape().max_context);
  wire = {shape().hidden_size, shape().kv_row_size() * model::bytes_per_number(model->kv())};
}

std::shared_ptr<frame_outlet> service_context::outlet(std::uint32_t from, std::uint32_t to) const {
  if (seat) return seat->outlets[to];
  return network ? network->outlet(from, to) : nullptr;
}

std::uint32_t service_context::boot(std::uint32_t server) const {
  if (seat) return seat->boot;
  return network ? network->boot(server) : 1;
}

arrival_limits service_context::limits(std::uint32_t server) const {
  arrival_limits made;
  made.self = server;
  made.n_servers = n_servers();
  made.n_layers = decoding.n_layers;
  made.n_experts = static_cast<std::uint32_t>(shape().n_experts);
  made.top_k = static_cast<std::uint32_t>(shape().top_k);
  made.vocabulary = static_cast<std::uint32_t>(shape().vocab_size);
  made.decoded_layer = decoding.decoded_layer;
  // Behind a prompt come an encoder-decoder's start row and one position for each new token.
  made.most_positions = most_positions + decoding.start_rows;
  made.most_rows =
      static_cast<std::uint32_t>(shape().encoder_decoder ? most_positions : chunk_rows);
  made.kv_bytes = servers.servers[server].kv_bytes;
  made.hidden_size = static_cast<std::uint32_t>(shape().hidden_size);
  return made;
}

void server_view::send(caf::scheduled_actor* self, std::uint32_t to, wire::frame content) const {
  send(self, to, std::move(content), placed->plan.epoch);
}

void server_view::send(caf::scheduled_actor* self, std::uint32_t to, wire::frame content,
                       std::uint64_t epoch) const {
  content.epoch = epoch;
  caf::actor_cast<caf::strong_actor_ptr>(links[to])->enqueue(
      caf::make_mailbox_element(nullptr, caf::make_message_id(), {}, std::move(content)),
      self->context());
}

error server_view::not_connected(std::uint32_t server) const {
  return {errc::failed, fmt::format("server {} ({}) is not connected, and the request needs it",
                                    server, context->servers.servers[server].name)};
}

std::uint32_t server_view::start_server(std::uint32_t access, std::uint32_t from,
                                        std::uint32_t layer) const {
  return nearest_member(members(access, layer), from, context->prices);
}

}  // namespace ordermoe::actors
