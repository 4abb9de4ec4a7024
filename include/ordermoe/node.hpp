#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "ordermoe/result.hpp"

/// OrderMoE inside another program: answers of a Mixture-of-Experts model that several servers hold. No type of the actor
/// framework is in this header; ordermoe/actors.hpp is for programs that have actors of their own.
///
///     auto opened = ordermoe::api::node::start({.model = "models/lineage", .cluster = "edge8.toml"});
///     if (!opened) return fail(opened.problem().message);
///     auto answer = opened->ask({.text = "Q: 75 * 5\nA:", .max_tokens = 48});
///     if (answer) puts(answer->text.c_str());
///
/// docs/EMBEDDING.md says how to build against it, and what it needs of threads and memory.
namespace ordermoe::api {

/// All servers of a cluster in this process.
struct cluster_options {
  std::string model;    ///< Folder: config.json, weights, tokenizer, and profile.json beside them.
  std::string cluster;  ///< Cluster file (TOML): the servers, their memory, and the links.
  /// plan.json, as `ordermoe plan` or `run --save-plan` wrote it; empty: a plan is made at the start, which takes seconds, and
  /// half a minute and more where a budget is calibrated.
  std::string plan = {};
  std::string profile =
      {};  ///< File; empty: that of the model's folder, or made on the bundled text.
  std::string strategy = {};  ///< Empty: that of `plan`, or ordermoe.
  /// Perplexity that answers may lose, in per cent; negative: without limit. None: that of `plan`, or 0. It holds for every
  /// request that does not state less (prompt::quality_percent).
  std::optional<double> quality_percent = {};
  /// What the planner charges a token's work: `measured`, which is that of the model that runs, or a larger model's, as
  /// mixtral-8x7b. Empty: that of `plan`, or measured.
  std::string costs = {};
  std::size_t search_steps = 10000;  ///< Of the planner's search.
  double concurrency = 4;            ///< Requests in flight that are planned for.
  std::size_t threads =
      0;  ///< That each server computes with; 0: the machine's, divided among them.
  std::uint32_t most_positions =
      0;                   ///< Of a request, prompt and answer; 0: twice the model's context.
  std::uint64_t seed = 1;  ///< Of the planner's trials.
  /// What every server computes on, as cluster files have it: cpu (the kernels), libtorch:cpu, libtorch:cuda:0; empty: what the
  /// cluster file says of each.
  std::string device = {};
};

/// Something that a node noticed: sessions that come and go, who was refused, what operators ordered. docs/OPERATING.md has
/// a table of all events.
struct log_record {
  std::string level;                                        ///< debug, info, warning or error.
  std::string event;                                        ///< A stable name, as session.down.
  std::vector<std::pair<std::string, std::string>> fields;  ///< Name and value, in a stable order.
  std::string line;  ///< All of it as one line of text, without level and time; safe to print.
};

/// One server of a cluster whose others are other processes.
struct member_options {
  std::string config;  ///< node.toml, as `ordermoe cluster prepare` writes it.
  /// Told of what happens, on any thread, and to return soon, without calling what waits for a node: for the host's own log,
  /// since none is written. What it throws is dropped. May be empty.
  std::function<void(const log_record&)> log = {};
  std::string log_level =
      "info";  ///< The least that is told; `log level set` of an operator's console changes it.
  /// Where plan or profile are missing, start() waits until the other members have sent those in force. Where the others refuse
  /// the node for its plan, it fetches theirs while it runs and starts anew by it: answers that have begun fail with
  /// `interrupted`, those asked for meanwhile wait. The files that node.toml names are written. False: none of it; the files
  /// are the host's matter.
  bool fetches_plan = true;
  /// That start() waits for a plan; 0: as long as it takes. Problem: timed_out, with what the other members said.
  std::chrono::milliseconds longest{0};
  /// Ends start(), wherever it is, with `interrupted`: for a host program that is to end while it waits. After start() it
  /// means nothing.
  std::stop_token give_up = {};
};

/// A cluster that runs elsewhere.
struct client_options {
  std::string address;  ///< HOST:PORT of any of its nodes.
  /// The cluster's folder: certificates/ca.crt, console.crt and console.key are used, and the channel is that of its node
  /// files. Or, where it is empty, three files, and the usual channel ("asio").
  std::string folder = {};
  std::string authority = {}, certificate = {}, key = {};
  std::chrono::milliseconds longest{5000};  ///< Until it is connected.
};

/// What an operator orders of a running cluster. docs/OPERATING.md has the verbs; `ordermoe admin --json` prints their replies.
struct admin_order {
  std::string verb;              ///< As in status, plan.propose, policy.set.
  std::string arguments = "{}";  ///< A JSON object.
  bool dry_run = false;
  std::string token =
      {};  ///< Secret of an access token, whose role counts where it is more than the certificate's.
  std::chrono::milliseconds longest{
      15000};  ///< Until the reply; plan.propose and plan.apply may take minutes.
};

/// What is asked. A text or ids, not both.
struct prompt {
  std::string text = {};
  std::vector<std::int32_t> ids = {};
  std::uint32_t max_tokens = 64;
  double temperature = 0;  ///< 0: greedy.
  std::uint64_t seed = 0;  ///< Of sampling.
  /// Requests with the same seed and stream draw the same; none: the request's number.
  std::optional<std::uint64_t> stream = {};
  std::vector<std::string> stop = {};  ///< The answer ends before any of these.
  /// Perplexity that this answer may lose, in per cent, 0 to 100; 0: none, and the ids are the model's own. What is above the
  /// plan's budget counts as that: answer::quality_percent says what was in force. None: the plan's.
  std::optional<double> quality_percent = {};
  std::uint32_t server = 0;  ///< Where its user is, for cluster_options; others ignore it.
  std::chrono::milliseconds deadline{0};  ///< Of the whole answer; 0: two minutes.
};

/// One token of an answer.
struct token {
  std::uint64_t request = 0;
  std::uint32_t index = 0;  ///< From 0.
  std::int32_t id = 0;
  std::string text;  ///< What is certain of the text now and was not before; may be empty.
};

/// How an answer ended.
struct answer {
  std::uint64_t request = 0;
  /// length, end_of_text, stop_string or context where it is complete; cancelled, or stopped with the node: what there was;
  /// failed: `why` says it.
  std::string finish;
  std::optional<problem> why;
  std::string text;
  std::string tail;  ///< The end of `text` that came with no token.
  std::vector<std::int32_t> ids;
  std::uint32_t attempts = 1;
  std::chrono::nanoseconds first_token{0}, duration{0};  ///< Since it was asked, as servers saw it.
  /// What was in force of quality_percent; negative: without limit. None: it never began.
  std::optional<double> quality_percent;
  /// Of quality, for the whole answer; infinite where it is without limit.
  double budget_nats = 0;
  double spent_nats = 0;
};

/// Where an answer goes. Both are called on threads that serve, one at a time for each node, tokens in order and once each,
/// then on_end once, perhaps before submit() has returned. They must return soon: nobody else is told anything meanwhile. What
/// they throw is dropped. They may call submit(), cancel() and outstanding(); the others refuse there.
struct answer_sink {
  std::function<void(const token&)> on_token = {};
  std::function<void(const answer&)> on_end = {};
};

class node_content;

/// Servers of this process, or the way to others. A node may be moved, not copied, and a moved-from one only destroyed or
/// assigned to; but for that, all members may be called from any thread at any time.
class node {
 public:
  /// Returns when it serves. It has threads of an actor system of its own (as many as the machine's processors, two at least,
  /// and CAF's two or three), cluster_options::threads that compute for each server here (or those of the node file), one that plans, and
  /// with member_options one for the network, one that answers questions, as many again as compute and one more for experts that others
  /// ask for and, where it fetches plans, one that does. None lives longer than stop().
  /// A thread that starts a node needs no actor system, and is none of its threads afterwards.
  static result<node> start(const cluster_options& options);
  static result<node> start(const member_options& options);
  /// Returns when it is connected. One thread, for the network.
  static result<node> connect(const client_options& options);

  node(node&& other) noexcept;
  node& operator=(node&& other) noexcept;
  /// stop(). From within a callback it cannot wait: what it has is left behind then, silent, until the process ends. Where another
  /// thread is in a callback at that moment, that one call may still be on its way.
  ~node();

  /// Asks for an answer; its number. What is wrong with the prompt itself is told by on_end, on finish `failed`. Problem: usage
  /// where neither or both of text and ids are given, or after stop().
  result<std::uint64_t> submit(const prompt& wanted, answer_sink sink);
  /// Asks and waits. Problems: those of submit(), and that of an answer that failed; usage from within a callback.
  result<answer> ask(const prompt& wanted);
  /// The answer ends at once with what there is of it; nothing where it has ended or never was.
  void cancel(std::uint64_t request);
  /// Requests whose on_end has not returned.
  std::size_t outstanding() const;

  /// What it is doing: a JSON object (docs/EMBEDDING.md). Waits up to half a minute. Problems: timed_out; io where the
  /// cluster is gone; usage after stop() and from within a callback.
  result<std::string> status();
  /// An operator's order to the node that it is connected to, with the role of its certificate: the reply, a JSON object
  /// (result, and where something changes operation, epoch_before and epoch_after). Waits. Problems: what the node refuses;
  /// timed_out; io where it is gone; unsupported but for client_options; usage after stop() and from within a callback.
  result<std::string> order(const admin_order& wanted);
  /// HOST:PORT where it listens; empty but for member_options.
  std::vector<std::string> listens_at() const;

  /// Ends everything: answers that have not ended are told `stopped`, on this thread; no callback runs any more when it
  /// returns, and no thread, socket or actor of it is left. Who waits in order() or status() of another process hears
  /// `interrupted`. Once stopped, stays so; again: nothing. Problem: usage from within a callback, of answers or of log
  /// records, where it would wait for itself, and nothing has happened then.
  result<void> stop();

 private:
  friend class node_access;
  explicit node(std::shared_ptr<node_content> content);
  std::shared_ptr<node_content> content_;
};

}  // namespace ordermoe::api
