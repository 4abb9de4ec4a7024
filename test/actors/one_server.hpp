#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "actors/server_actors.hpp"
#include "planning/serving/token_visits.hpp"
#include "test/actors/probe_server.hpp"

/// An edge server among probes, for the tests of edge_server.
namespace ordermoe {

using actors::request_phase;
using wire::frame_kind;
using wire::reserve_step;
using what = actors::peer_event::what;

constexpr std::uint64_t foreign = 50;  ///< A request of a user of server 0.
constexpr std::uint64_t own = 7;       ///< A request of a user of this server.
/// What `foreign` reserves here: eight positions at three layers.
constexpr std::int64_t foreign_bytes = 8 * 3 * test::probe_server::kv_row_bytes;

inline bool says(const std::string& text, const char* words) {
  return text.find(words) != std::string::npos;
}

struct one_server : test::probe_server {
  actors::edge_server_actor edge = keep(actors::spawn_edge_server(system(), context, id));

  /// Ends what it has spawned, too.
  ~one_server() { tell(edge, actors::stop_server{}); }

  void attach() {
    view->server = edge;
    tell(edge, actors::attach_view{view});
  }
  /// Under the first plan, admitting.
  void open() {
    attach();
    tell(edge, actors::resume_admission{});
  }
  /// These plans, by epoch; requests begin under the last, or the one of that epoch.
  void install(std::vector<std::shared_ptr<const actors::plan_in_force>> plans,
               std::uint64_t begins = 0,
               std::shared_ptr<const model::transformer> experts = nullptr) {
    actors::install_plans message;
    message.begins_under = begins > 0 ? begins : plans.back()->plan.epoch;
    message.plans = std::move(plans);
    message.number = ++n_installs;
    message.planner = planner.as<actors::planner_actor>();
    message.model = std::move(experts);
    tell(edge, std::move(message));
  }
  std::uint64_t n_installs = 0;
  actors::server_status status() {
    return ask<actors::edge_status>(edge, actors::status_query{}).content;
  }
  template <class Message>
  void receive(std::uint32_t from, const Message& content) {
    tell(edge, frame_from(from, content));
  }

  // ------------------------------------------------------------------------ requests of server 0

  wire::reservation ask_of(reserve_step step, std::uint32_t ask = 1,
                           std::uint32_t attempt = 0) const {
    wire::reservation made;
    made.request = foreign;
    made.attempt = attempt;
    made.ask = ask;
    made.step = step;
    made.server = id;
    made.access = 0;
    if (step == reserve_step::attempt || step == reserve_step::wait) made.bytes = foreign_bytes;
    made.lease_ns = 5'000'000'000;
    return made;
  }
  void reserve() { receive(0, ask_of(reserve_step::attempt)); }
  wire::token_state token_at(std::uint32_t first, std::uint32_t layer,
                             std::uint32_t attempt = 0) const {
    wire::token_state made;
    made.terms.request = foreign;
    made.terms.attempt = attempt;
    made.terms.prompt_tokens = 4;
    made.terms.given_tokens = 4;
    made.terms.max_new_tokens = 4;
    made.first = first;
    made.layer = layer;
    made.ids = {5};
    made.allowance = {0};
    if (layer > 0) made.hidden.assign(context->wire.hidden_size, 0.0f);
    return made;
  }
  /// At layer 0, with an output of a server to come.
  wire::token_state token_awaiting(std::uint32_t first, std::uint32_t server) const {
    auto made = token_at(first, 0);
    made.hidden.assign(context->wire.hidden_size, 0.0f);
    made.slots_of_row = {1};
    made.slots = {{server, server, 1.0f}};
    return made;
  }
  wire::expert_output output_for(std::uint32_t first, std::uint32_t layer) const {
    wire::expert_output made;
    made.token = {foreign, 0, 0, first};
    made.layer = layer;
    made.rows = {{0, wire::whole_row}};
    made.y.assign(context->wire.hidden_size, 1.0f);
    return made;
  }
  wire::kv_rows rows_of(std::uint32_t layer, std::uint32_t first = 0) const {
    wire::kv_rows made;
    made.layer = layer;
    made.blocks.push_back({foreign, 0, first, 1, {}});
    made.blocks[0].rows.resize(context->wire.kv_row_bytes);
    return made;
  }

  // ------------------------------------------------------------------------ requests of this server

  void submit(std::uint64_t number = own) {
    auto spec = std::make_shared<actors::request_spec>();
    spec->access = id;
    spec->prompt = {5, 6, 7};
    spec->max_new_tokens = 2;
    tell(edge, actors::submit_request{number, spec, client.as<actors::client_actor>()});
  }
  wire::reservation answer_of(std::uint32_t from, reserve_step step, std::uint32_t ask = 1,
                              std::uint64_t request = own) const {
    wire::reservation made;
    made.request = request;
    made.ask = ask;
    made.step = step;
    made.server = from;
    made.access = id;
    made.bytes = 50;
    return made;
  }
  /// Memory is granted everywhere.
  void grant() {
    receive(0, answer_of(0, reserve_step::granted));
    receive(2, answer_of(2, reserve_step::granted));
  }
  wire::progress_report token_of_own(std::uint32_t position, bool last = false) const {
    wire::progress_report made;
    made.request = own;
    made.access = id;
    made.position = position;
    made.id = 30;
    made.last = last;
    return made;
  }
  // ------------------------------------------------------------------------------ other servers

  void happens(std::uint32_t peer, actors::peer_event::what kind) {
    actors::peer_event event;
    event.kind = kind;
    event.server = peer;
    tell(edge, std::move(event));
  }
  /// R_l of every layer is this, for users of `access`.
  void keep_rows_at(std::uint32_t access, planning::server_mask members) {
    auto content = view->placed->plan;
    content.residence[access].layers.assign(n_layers, members);
    view->placed = plan_of_epoch(1, std::move(content));
  }
  /// What the client of the one request that ended was told.
  std::string reason() const {
    const auto outcome = client.only<actors::answer_end>().outcome;
    return outcome->problem ? outcome->problem->message : outcome->finish;
  }
  std::vector<wire::failure_report> failures(std::uint32_t to) const {
    return decoded<wire::failure_report>(to, frame_kind::failure, wire::decode_failure);
  }
  request_phase phase_of_own() {
    const auto requests = status().requests;
    const auto found = std::ranges::find(requests, own, &actors::request_status::request);
    return found == requests.end() ? request_phase::ended : found->phase;
  }

  std::string finish() const { return client.only<actors::answer_end>().outcome->finish; }

  template <class Message>
  std::vector<Message> decoded(std::uint32_t to, frame_kind kind, const auto& decode) const {
    std::vector<Message> made;
    for (const auto& each : sent(to, kind)) made.push_back(*decode(each));
    return made;
  }
  std::vector<wire::reservation> reservations(std::uint32_t to) const {
    return decoded<wire::reservation>(to, frame_kind::reservation, wire::decode_reservation);
  }
};

}  // namespace ordermoe
