#include <utility>

#include "fuzz/support.hpp"
#include "net/wire/codec.hpp"
#include "planning/serving/arrivals.hpp"

namespace {

namespace om = ordermoe;
namespace wire = ordermoe::wire;
namespace planning = ordermoe::planning;

constexpr wire::wire_shape shape{4, 16};
constexpr std::uint32_t n_servers = 3, n_layers = 3, n_experts = 4;

constexpr om::serving::arrival_limits limits{
    .self = 1,
    .n_servers = n_servers,
    .n_layers = n_layers,
    .n_experts = n_experts,
    .top_k = 2,
    .vocabulary = 64,
    .decoded_layer = 0,
    .most_positions = 256,
    .most_rows = 16,
    .kv_bytes = 1 << 20,
    .hidden_size = shape.hidden_size,
};

/// Servers 0 and 1 answer for each other, 2 for itself.
const planning::plan& placed() {
  static const auto made = [] {
    planning::plan plan;
    plan.n_servers = n_servers;
    plan.n_layers = n_layers;
    plan.n_experts = n_experts;
    for (std::uint32_t server = 0; server < n_servers; ++server) {
      plan.residence.push_back(
          {std::vector<planning::server_mask>(n_layers, server < 2 ? 3u : 4u)});
      for (std::uint32_t layer = 0; layer < n_layers; ++layer)
        for (std::uint32_t expert = server % 2; expert < n_experts; expert += 2)
          plan.experts.push_back(
              {om::server_id{server}, om::layer_id{layer}, om::expert_id{expert}, {}, 0});
    }
    return plan;
  }();
  return made;
}

const planning::placement_index& index() {
  static const planning::placement_index made(placed());
  return made;
}

/// What was read is written as the same bytes; what is refused says of which frame it is.
template <class Message, class Check>
void use(const wire::frame& content, om::result<Message> message, Check check) {
  if (!message) return fuzz::check_refusal(message.error(), wire::to_string(content.kind));
  ORDERMOE_CHECK(wire::encode(*message).bytes == content.bytes, "a frame of two encodings");
  if (const auto possible = check(*message); !possible)
    fuzz::check_refusal(possible.error(), wire::to_string(content.kind));
}

}  // namespace

/// The first byte is the kind of a frame, the second its sender, the rest what it carries.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  wire::frame content;
  content.kind = static_cast<wire::frame_kind>(data[0] % wire::n_frame_kinds);
  content.bytes = std::string(fuzz::text_of(data + 2, size - 2));
  const std::uint32_t sender = data[1] % n_servers;
  using om::serving::check;
  switch (content.kind) {
    case wire::frame_kind::token:
      use(content, wire::decode_token(content, shape),
          [&](const auto& message) { return check(message, sender, limits, placed()); });
      break;
    case wire::frame_kind::call:
      use(content, wire::decode_call(content, shape),
          [&](const auto& message) { return check(message, sender, limits, placed(), index()); });
      break;
    case wire::frame_kind::output:
      use(content, wire::decode_output(content, shape),
          [&](const auto& message) { return check(message, sender, limits, index()); });
      break;
    case wire::frame_kind::kv:
      use(content, wire::decode_kv(content, shape),
          [&](const auto& message) { return check(message, limits); });
      break;
    case wire::frame_kind::progress:
      use(content, wire::decode_progress(content),
          [&](const auto& message) { return check(message, sender, limits, placed()); });
      break;
    case wire::frame_kind::reservation:
      use(content, wire::decode_reservation(content),
          [&](const auto& message) { return check(message, sender, limits, placed()); });
      break;
    case wire::frame_kind::load:
      use(content, wire::decode_load(content),
          [&](const auto& message) { return check(message, sender, limits); });
      break;
    case wire::frame_kind::links:
      use(content, wire::decode_links(content),
          [&](const auto& message) { return check(message, sender, limits); });
      break;
    case wire::frame_kind::failure:
      use(content, wire::decode_failure(content),
          [&](const auto& message) { return check(message, sender, limits, placed()); });
      break;
  }
  return 0;
}
