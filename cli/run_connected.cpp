#include "cli/run_connected.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>

#include "actors/cluster/client.hpp"
#include "cli/answers.hpp"
#include "cli/common.hpp"
#include "cli/connection.hpp"
#include "config/json_text.hpp"

namespace ordermoe::cli {

namespace {

using clock = std::chrono::steady_clock;

/// One request as this end saw it.
struct seen_answer {
  clock::time_point asked, first_token, ended;
  actors::request_outcome outcome;
};

nlohmann::ordered_json percent_or_null(const std::optional<double>& percent) {
  return percent ? nlohmann::ordered_json(*percent) : nlohmann::ordered_json();
}

double ms(clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

/// What the node says of itself that answers are read by; null where it says nothing of it, or is gone.
struct said_by_node {
  nlohmann::json rehearsal, mixed_devices;
};
said_by_node ask_node(actors::cluster_client& client) {
  const auto status = client.status(std::chrono::seconds(5));
  if (!status) return {};
  const auto read = nlohmann::json::parse(*status, nullptr, false);
  if (!read.is_object()) return {};
  const auto of = [&](const char* name) {
    return read.contains(name) ? read[name] : nlohmann::json();
  };
  return {of("rehearsal"), of("mixed_devices")};
}

class asker {
 public:
  asker(const connected_run& options, actors::cluster_client& client)
      : options_(options),
        client_(client),
        answers_(options.prompts.size()),
        printer_(options.prompts, answer_printer::layout::continued),
        shown_(printer_.sink()) {}

  result<void> ask_all() {
    const auto n = options_.prompts.size();
    const auto most = options_.concurrency > 0 ? options_.concurrency : n;
    for (std::size_t next = 0; next < n || client_.outstanding() > 0;) {
      for (; next < n && client_.outstanding() < most; ++next) ask(next);
      const auto waiting = client_.outstanding();
      client_.wait([&] { return client_.outstanding() < std::max<std::size_t>(1, waiting); },
                   stop_requested);
      if (stop_requested()) return error{errc::interrupted, "interrupted"};
    }
    for (std::size_t i = 0; i < n; ++i)
      if (answers_[i].outcome.problem)
        return at(options_.prompts[i].place, *answers_[i].outcome.problem);
    return {};
  }

  void print_json(const std::string& node, double seconds, const said_by_node& said) const {
    nlohmann::ordered_json answers = nlohmann::json::array();
    std::size_t tokens = 0;
    for (std::size_t i = 0; i < answers_.size(); ++i) {
      const auto& each = answers_[i];
      tokens += each.outcome.token_ids.size();
      answers.push_back({{"request", i},
                         {"text", each.outcome.text},
                         {"token_ids", each.outcome.token_ids},
                         {"finish", each.outcome.finish},
                         {"attempts", each.outcome.attempts},
                         {"quality_budget_percent", percent_or_null(each.outcome.quality_percent)},
                         {"budget", each.outcome.budget},
                         {"spent", each.outcome.spent},
                         {"ttft_ms", ms(each.first_token - each.asked)},
                         {"latency_ms", ms(each.ended - each.asked)}});
    }
    fmt::print("{}\n", json_text(nlohmann::ordered_json{{"mode", "cluster"},
                                                        {"node", node},
                                                        {"seed", options_.seed},
                                                        {"seconds", seconds},
                                                        {"tokens", tokens},
                                                        {"rehearsal", said.rehearsal},
                                                        {"mixed_devices", said.mixed_devices},
                                                        {"answers", answers}},
                                 2));
  }

  void tell_of_smaller_budgets() const {
    std::vector<stated_budget> budgets;
    for (std::size_t i = 0; i < answers_.size(); ++i)
      budgets.push_back({stated(i), answers_[i].outcome.quality_percent});
    cli::tell_of_smaller_budgets(budgets);
  }

 private:
  std::optional<double> stated(std::size_t i) const {
    const auto& own = options_.prompts[i].quality_percent;
    return own ? own : options_.quality_percent;
  }

  void ask(std::size_t i) {
    actors::remote_request wanted;
    wanted.text = options_.prompts[i].text;
    auto& spec = wanted.spec;
    spec.quality_percent = stated(i);
    spec.max_new_tokens = options_.max_new_tokens;
    spec.temperature = options_.temperature;
    spec.sampling_seed = options_.seed;
    // As the other modes number them: the same seed draws the same.
    spec.sampling_stream = i;
    if (!options_.stop.empty()) spec.stop_strings = {options_.stop};
    answers_[i].asked = clock::now();
    client_.submit(std::move(wanted), {[this, i](const actors::answer_token& token) {
                                         const std::lock_guard lock(mutex_);
                                         if (token.index == 0)
                                           answers_[i].first_token = clock::now();
                                         if (options_.json) return;
                                         auto told = token;
                                         told.request = i;
                                         shown_.on_token(told);
                                       },
                                       [this, i](const actors::request_outcome& outcome) {
                                         const std::lock_guard lock(mutex_);
                                         answers_[i].ended = clock::now();
                                         // An answer that ends at once has no token.
                                         if (answers_[i].first_token == clock::time_point())
                                           answers_[i].first_token = answers_[i].ended;
                                         answers_[i].outcome = outcome;
                                         answers_[i].outcome.request = i;
                                         if (!options_.json) shown_.on_end(answers_[i].outcome);
                                       }});
  }

  const connected_run& options_;
  actors::cluster_client& client_;
  std::mutex mutex_;
  std::vector<seen_answer> answers_;
  answer_printer printer_;
  actors::answer_sink shown_;
};

}  // namespace

result<void> run_connected(const connected_run& options) {
  for (const auto& prompt : options.prompts)
    if (!prompt.messages.empty())
      return error{errc::unsupported,
                   fmt::format("{}: messages of a conversation go to a model of this process; send "
                               "a plain prompt to a cluster",
                               prompt.place)};
  auto client = connect_to(options.address, options.folder);
  if (!client) return client.error();
  const auto begin = clock::now();
  asker asking(options, **client);
  if (auto done = asking.ask_all(); !done) {
    client->reset();  // Tells nobody anything from here on.
    return done;
  }
  const auto seconds = std::chrono::duration<double>(clock::now() - begin).count();
  asking.tell_of_smaller_budgets();
  const auto said = ask_node(**client);
  if (said.mixed_devices.is_string())
    fmt::print(stderr, "ordermoe: {}\n", said.mixed_devices.get<std::string>());
  if (options.json)
    asking.print_json((*client)->node_name(), seconds, said);
  else if (!said.rehearsal.is_null())
    fmt::print(
        stderr,
        "ordermoe: a rehearsal at dilation {:g}: its times are what the cost profile charges "
        "(`ordermoe cluster status` says how near they are)\n",
        said.rehearsal.value("dilation", 1.0));
  return {};
}

}  // namespace ordermoe::cli
