#include "actors/request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "actors/observation.hpp"
#include "actors/token.hpp"
#include "actors/trace_lines.hpp"
#include "actors/virtual_time_worker.hpp"
#include "planning/ledger.hpp"

namespace ordermoe::actors {

namespace {

struct request_data {
  request_actor::pointer self = nullptr;
  std::shared_ptr<const server_view> view;
  request_spec spec;
  loss_units token_budget = 0;  ///< Average units per token; unbounded_budget: no limit.
  bool continue_in_place = true;
  request_outcome outcome;
  std::unique_ptr<model::streaming_decoder> decoder;
  std::vector<std::pair<std::uint32_t, std::int64_t>> members;  ///< Server and bytes, ascending.
  std::size_t answers = 0;
  std::size_t waiting_for = 0;  ///< Index into members while waiting in order.
  bool refused = false;
  bool in_order = false;
  bool done = false;
  bool held = false;      ///< Between hold_admission and resume_request.
  bool admitted = false;  ///< Left `arriving`.
  std::int64_t admitted_ns = 0;
  bool arrived = false;
  caf::typed_response_promise<caf::ok_atom> drained;  ///< Answered when the request is done.
  std::vector<std::uint32_t> granted;
  std::map<std::uint32_t, progress_report> reports;  ///< By position, those that came early.
  std::uint32_t next_position = 0;
  loss_units total_budget = 0;
  loss_units prompt_spent =
      0;  ///< By the prompt's chunks before the last, those that have reported.
  loss_units chain_spent = 0;      ///< By the last chunk and the positions after it.
  std::size_t chunks_running = 0;  ///< Chunks before the last that have not reported.

  const run_context& run() const { return *view->run; }
  std::int64_t now() const { return now_ns(self) - run().start_ns; }

  request_terms terms() const {
    request_terms t;
    t.request = spec.number;
    t.access = view->id;
    t.prompt_tokens = prompt_tokens(spec);
    t.max_new_tokens = max_new_tokens(spec);
    t.sampling_seed = spec.sampling_seed;
    t.temperature = spec.temperature;
    t.continue_in_place = continue_in_place && spec.stop_strings.empty();
    t.score = spec.score;
    t.ignore_end_of_text = spec.ignore_end_of_text || spec.score;
    return t;
  }

  std::size_t positions() const { return prompt_tokens(spec) + max_new_tokens(spec); }

  void arrive() {
    outcome.request = spec.number;
    outcome.access = view->id;
    outcome.arrival_ns = now();
    if (run().tokens && !spec.score)
      decoder = std::make_unique<model::streaming_decoder>(run().tokens);
    if (run().request_timeout_ns > 0)
      send_later(self, caf::actor_cast<request_actor>(self), run().request_timeout_ns,
                 request_deadline{});
    total_budget = token_budget >= planning::unbounded_budget
                       ? planning::unbounded_budget
                       : token_budget * static_cast<loss_units>(positions());
    outcome.budget = total_budget;
    arrived = true;
    if (!held) admit();
  }

  void admit() {
    admitted = true;
    admitted_ns = now();
    if (run().books->tracing())
      run().books->trace(request_line(spec, view->id, total_budget, admitted_ns));
    const auto need = kv_need(view->placed->plan.residence[view->id], run().servers.size(),
                              positions(), run().costs.kv_row_bytes);
    for (std::uint32_t m = 0; m < need.size(); ++m)
      if (need[m] > 0) members.emplace_back(m, need[m]);
    for (const auto& [server, bytes] : members) ask(server, bytes, reserve_step::attempt);
  }

  /// From the edge server: begin under no plan before resume() names it.
  caf::typed_response_promise<caf::ok_atom> hold() {
    held = true;
    auto answer = self->make_response_promise<caf::ok_atom>();
    if (admitted)
      drained = answer;
    else
      answer.deliver(caf::ok_atom::value);
    return answer;
  }

  void resume(std::shared_ptr<const server_view> current) {
    held = false;
    if (admitted) return;
    view = std::move(current);
    if (arrived) admit();
  }

  void ask(std::uint32_t server, std::int64_t bytes, reserve_step step) {
    self->send(view->server, reservation{spec.number, 0, step, server, view->id, bytes});
  }

  void answer(const reservation& message) {
    if (message.step == reserve_step::granted) granted.push_back(message.server);
    if (message.step == reserve_step::refused) refused = true;
    if (in_order) {
      ++waiting_for;
      if (waiting_for == members.size()) return run_prompt();
      return ask(members[waiting_for].first, members[waiting_for].second, reserve_step::wait);
    }
    if (++answers < members.size()) return;
    if (!refused) return run_prompt();
    give_back();
    in_order = true;
    ask(members[0].first, members[0].second, reserve_step::wait);
  }

  void give_back() {
    for (const auto server : granted) ask(server, 0, reserve_step::release);
    granted.clear();
  }

  void run_prompt() {
    const auto n = terms().prompt_tokens;
    // An encoder reads the whole prompt at once.
    const auto chunk =
        run().shape().encoder_decoder ? n : static_cast<std::uint32_t>(run().chunk_rows);
    const auto start = view->start_server(view->id, view->id);
    next_position = n + run().start_rows();
    for (std::uint32_t first = 0; first < n; first += chunk) {
      const auto rows = std::min(chunk, n - first);
      const bool last = first + rows == n;
      token_state state;
      state.terms = terms();
      state.first = first;
      state.ids.assign(spec.prompt.begin() + first, spec.prompt.begin() + first + rows);
      state.forced = forced_after(first + rows);
      const auto sharers = rows + (last ? state.terms.max_new_tokens : 0);
      state.pool = total_budget >= planning::unbounded_budget
                       ? planning::unbounded_budget
                       : token_budget * static_cast<loss_units>(sharers);
      state.allowance.assign(rows,
                             planning::fair_allowance(state.pool, sharers, run().allowance_factor));
      if (!last) ++chunks_running;
      start_at(start, std::move(state));
    }
  }

  /// The given ids from `position` on; none where ids are sampled.
  std::vector<std::int32_t> forced_after(std::uint32_t position) const {
    if (!spec.score) return {};
    return {spec.prompt.begin() + position, spec.prompt.end()};
  }

  void start_at(std::uint32_t server, token_state state) {
    if (server == view->id)
      self->send(view->server, start_token{std::move(state)});
    else
      view->send(server, encode(state));
  }

  void progress(progress_report& report) {
    if (report.id < 0) {
      prompt_spent += report.spent;
      --chunks_running;
      if (done && chunks_running == 0) settle();
      return;
    }
    if (done) return;
    reports[report.position] = std::move(report);
    while (!done) {
      const auto next = reports.find(next_position);
      if (next == reports.end()) return;
      const auto current = std::move(next->second);
      reports.erase(next);
      accept(current);
    }
  }

  void accept(const progress_report& report) {
    outcome.losses.insert(outcome.losses.end(), report.losses.begin(), report.losses.end());
    chain_spent = report.spent;
    if (outcome.token_ids.empty()) outcome.first_token_ns = now();
    ++next_position;
    if (run().shape().ends_text(report.id) && !terms().ignore_end_of_text)
      return finish("end_of_text");
    outcome.token_ids.push_back(report.id);
    if (decoder) outcome.text += decoder->push(report.id);
    if (cut_at_stop_string()) return finish("stop_string");
    if (report.last && spec.score) return finish("scored");
    if (report.last)
      return finish(outcome.token_ids.size() >= spec.max_new_tokens ? "length" : "context");
    if (terms().continue_in_place) return;
    auto next = successor(terms(), report.id, report.position, report.pool, report.spent,
                          run().allowance_factor, run().start_rows(), run().decoded_layer());
    next.forced = forced_after(report.position + 1 - run().start_rows());
    start_at(view->start_server(view->id, view->id, next.layer), std::move(next));
  }

  /// Ends the text before the first stop string in it.
  bool cut_at_stop_string() {
    auto first = std::string::npos;
    for (const auto& stop : spec.stop_strings) first = std::min(first, outcome.text.find(stop));
    if (first == std::string::npos) return false;
    outcome.text.resize(first);
    return true;
  }

  void finish(std::string reason) {
    done = true;
    if (decoder && reason != "stop_string") {
      outcome.text += decoder->finish();
      if (cut_at_stop_string()) reason = "stop_string";
    }
    outcome.finish = std::move(reason);
    outcome.done_ns = now();
    if (chunks_running == 0) settle();
  }

  /// The answer is complete, and every chunk of the prompt has said what it spent: one that ran
  /// elsewhere may say so after the last token is here.
  void settle() {
    outcome.spent = prompt_spent + chain_spent;
    if (run().books->tracing()) run().books->trace(done_line(outcome));
    give_back();
    tell_monitor();
    run().books->finish(std::move(outcome));
    if (drained.pending()) drained.deliver(caf::ok_atom::value);
    self->quit();
  }

  void tell_monitor() {
    if (!view->monitor) return;
    auto report = std::make_shared<answered_request>();
    report->request = spec.number;
    report->access = view->id;
    report->prompt_tokens = prompt_tokens(spec);
    report->new_tokens = static_cast<std::uint32_t>(outcome.token_ids.size());
    report->budget = outcome.budget;
    report->spent = outcome.spent;
    report->admitted_ns = admitted_ns;
    report->done_ns = outcome.done_ns;
    self->send(view->monitor, request_report{std::move(report)});
  }

  void deadline() {
    run().books->fail(
        {errc::timed_out, fmt::format("request {} was not answered within {:.1f} s", spec.number,
                                      static_cast<double>(run().request_timeout_ns) * 1e-9)});
  }
};

}  // namespace

request_actor spawn_request(caf::actor_system& system, std::shared_ptr<const server_view> view,
                            request_spec spec, loss_units token_budget, bool continue_in_place) {
  return system.spawn(
      [view = std::move(view), spec = std::move(spec), token_budget,
       continue_in_place](request_actor::stateful_pointer<request_data> self) mutable
      -> request_actor::behavior_type {
        auto& data = self->state;
        data.self = self;
        data.view = std::move(view);
        data.spec = std::move(spec);
        data.token_budget = token_budget;
        data.continue_in_place = continue_in_place;
        return {
            [&data](begin_request) { data.arrive(); },
            [&data](progress_report& report) { data.progress(report); },
            [&data](const reservation& message) { data.answer(message); },
            [&data](request_deadline) { data.deadline(); },
            [&data](hold_admission) { return data.hold(); },
            [&data](resume_request& message) { data.resume(std::move(message.view)); },
        };
      });
}

std::uint32_t prompt_tokens(const request_spec& spec) {
  return spec.score ? 1 : static_cast<std::uint32_t>(spec.prompt.size());
}

std::uint32_t max_new_tokens(const request_spec& spec) {
  return spec.score ? static_cast<std::uint32_t>(spec.prompt.size()) - 1 : spec.max_new_tokens;
}

std::vector<std::int64_t> kv_need(const planning::residency& residence, std::size_t n_servers,
                                  std::size_t positions, std::int64_t kv_row_bytes) {
  std::vector<std::int64_t> need(n_servers, 0);
  for (const auto members : residence.layers)
    for (std::size_t m = 0; m < n_servers; ++m)
      if ((members >> m) & 1u) need[m] += static_cast<std::int64_t>(positions) * kv_row_bytes;
  return need;
}

}  // namespace ordermoe::actors
