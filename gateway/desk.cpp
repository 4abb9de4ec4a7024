#include "gateway/desk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/algorithm/string/predicate.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "gateway/job.hpp"
#include "gateway/metrics.hpp"
#include "gateway/openai/json_text.hpp"
#include "gateway/openai/reply.hpp"
#include "gateway/static_files.hpp"
#include "planning/strategies/strategies.hpp"

namespace ordermoe::gateway {

using nlohmann::ordered_json;

namespace {

constexpr const char* json_type = "application/json";
/// That wait to hear how the servers are.
constexpr std::size_t most_lookers = 256;

api_problem no_such_model(const std::string& name) {
  return {.status = 404,
          .message = fmt::format("The model '{}' does not exist.", name),
          .param = "model",
          .code = "model_not_found"};
}

/// "127.0.0.1:8080" without its port.
std::string_view host_of(std::string_view authority) {
  if (authority.starts_with('[')) return authority.substr(0, authority.find(']') + 1);
  return authority.substr(0, authority.find(':'));
}

/// An address, or a name that no stranger's name server can give another meaning.
bool is_own_name(std::string_view host) {
  return host.empty() || boost::iequals(host, "localhost") || host.starts_with('[') ||
         host.find_first_not_of("0123456789.") == std::string_view::npos;
}

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/// "a%2Fb" as "a/b"; what is no escape stays as it is.
std::string unescaped(std::string_view text) {
  std::string made;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool may_be = text[i] == '%' && i + 2 < text.size();
    const int high = may_be ? digit_of(text[i + 1]) : -1;
    const int low = may_be ? digit_of(text[i + 2]) : -1;
    if (high < 0 || low < 0) {
      made += text[i];
      continue;
    }
    made += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return made;
}

bool has_strange_origin(const net::http_request& request) {
  const auto origin = request.field("origin");
  const auto scheme = origin.find("://");
  return !origin.empty() &&
         (scheme == std::string_view::npos || origin.substr(scheme + 3) != request.field("host"));
}

/// A page of somebody else in a browser of this machine: it needs no answer to do harm.
bool is_of_strange_page(const net::http_request& request) {
  return !is_own_name(host_of(request.field("host"))) || has_strange_origin(request);
}

}  // namespace

namespace {

bool has_method(std::string_view of_route, std::string_view asked) {
  return asked == of_route || (asked == "HEAD" && of_route == "GET");
}

}  // namespace

void refuse(net::http_exchange& to, const api_problem& what) {
  net::http_fields fields{{"Content-Type", json_type}};
  if (what.retry_after_s) fields.emplace_back("Retry-After", std::to_string(*what.retry_after_s));
  if (what.status == 401) fields.emplace_back("WWW-Authenticate", "Bearer");
  to.respond(what.status, fields, problem_json(what));
}

void reply(net::http_exchange& to, std::string_view json) {
  to.respond(200, {{"Content-Type", json_type}}, json);
}

desk::desk(const gateway_options& options, backend& behind)
    : options_(options),
      behind_(behind),
      orders_(behind, options.orders),
      random_(std::random_device()()) {
  asker_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ends_ || is_wanted_; });
      if (ends_) return;
      is_wanted_ = false;
      lock.unlock();
      server_->post([this, servers = behind_.servers()] { take_servers(servers); });
      lock.lock();
    }
  });
}

desk::~desk() {
  stop();
}

void desk::stop() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  if (asker_.joinable()) asker_.join();
  orders_.stop();
}

// ------------------------------------------------------------------------------------------ routes

const desk::route* desk::find_route(std::string_view path) {
  // It is looked at on the server's thread, which answers nobody meanwhile.
  constexpr std::size_t most_text = 1u << 20;
  static constexpr route routes[] = {
      {"POST", "/v1/chat/completions", &desk::chat, guard::key},
      {"POST", "/v1/completions", &desk::completions, guard::key},
      {"GET", "/v1/models", &desk::models, guard::key},
      {"POST", "/tokenize", &desk::tokenize, guard::key, most_text},
      {"POST", "/detokenize", &desk::detokenize, guard::key, most_text},
      {"GET", "/health", &desk::ready, guard::open},
      {"GET", "/health/live", &desk::live, guard::open},
      {"GET", "/health/ready", &desk::ready, guard::open},
      {"GET", "/metrics", &desk::metrics, guard::key},
      {"GET", "/ordermoe/status", &desk::status, guard::key},
      {"POST", "/admin/orders", &desk::take_order, guard::token, 2 * order_desk::most_body_bytes},
  };
  static constexpr route one_model{"GET", "/v1/models/", &desk::models, guard::key};
  static constexpr route one_order{"GET", "/admin/orders/", &desk::look_at_order, guard::token};
  static constexpr route pages{"GET", "/", &desk::page, guard::open};
  for (const auto& each : routes)
    if (each.path == path) return &each;
  for (const auto* each : {&one_model, &one_order})
    if (path.starts_with(each->path)) return each;
  return path == "/" || path.starts_with("/dashboard") ? &pages : nullptr;
}

void desk::take(std::shared_ptr<net::http_exchange> from) {
  const auto& request = from->request();
  const auto* at = find_route(request.path);
  if (at == nullptr)
    return refuse(*from, {.status = 404,
                          .message = fmt::format("Invalid URL ({} {})", request.method,
                                                 request.path.substr(0, 200))});
  if (!has_method(at->method, request.method))
    return from->respond(
        405, {{"Content-Type", json_type}, {"Allow", at->method == "GET" ? "GET, HEAD" : "POST"}},
        problem_json({.status = 405,
                      .message = fmt::format("Not allowed to {} on {} (HINT: use {})",
                                             request.method, request.path, at->method),
                      .code = "method_not_supported"}));
  if (const auto why = shut_out(*at, request)) return refuse(*from, *why);
  (this->*at->answer)(from);
}

std::size_t desk::most_body(const net::http_request& head) const {
  const auto* at = find_route(head.path);
  if (at == nullptr || at->method == "GET" || !has_method(at->method, head.method) ||
      shut_out(*at, head))
    return 0;
  return at->most_body;
}

std::optional<api_problem> desk::shut_out(const route& at, const net::http_request& request) const {
  if (at.by == guard::open) return std::nullopt;
  if (is_strange(at.by, request))
    return api_problem{
        .status = 403,
        .message = options_.keys.empty()
                       ? "this gateway has no API keys and answers pages of its own alone, "
                         "under an address or localhost; start it with keys"
                       : "orders come from pages of this gateway alone; a proxy before it "
                         "has to hand on the Host that it was asked for",
        .code = "forbidden"};
  if (at.by == guard::token) return std::nullopt;
  if (options_.keys.allow(request.field("authorization"))) return std::nullopt;
  const bool has_some = !request.field("authorization").empty();
  return api_problem{.status = 401,
                     .message = has_some
                                    ? "Incorrect API key provided."
                                    : "You didn't provide an API key. You need to provide your API "
                                      "key in an Authorization header using Bearer auth (i.e. "
                                      "Authorization: Bearer YOUR_KEY).",
                     .code = has_some ? "invalid_api_key" : ""};
}

/// A browser sends no token that a page does not know; what comes from another page is refused all the same.
bool desk::is_strange(guard by, const net::http_request& request) const {
  if (options_.keys.empty()) return is_of_strange_page(request);
  return by == guard::token && has_strange_origin(request);
}

request_limits desk::limits() const {
  request_limits made;
  made.choices = options_.most_choices;
  made.vocabulary = options_.model.vocabulary;
  return made;
}

/// A request need not name the one model that there is.
bool desk::knows(net::http_exchange& from, const std::string& model) const {
  if (model.empty() || model == options_.model.id) return true;
  refuse(from, no_such_model(model));
  return false;
}

bool desk::may_fit(net::http_exchange& from, std::size_t text_bytes, const char* param) const {
  // No text of a language has as many bytes a token; one of them alone may have.
  constexpr std::size_t bytes_a_token = 64, at_least = 64u << 10;
  const auto most = std::max(at_least, bytes_a_token * options_.model.context);
  if (text_bytes <= most) return true;
  refuse(from, {.message = fmt::format("This model's maximum context length is {} tokens. However, "
                                       "your messages have {} bytes of text, and more than {} are "
                                       "not looked at. Please reduce the length of the messages.",
                                       options_.model.context, text_bytes, most),
                .param = param,
                .code = "context_length_exceeded"});
  return false;
}

const std::string& desk::piece_of(std::int32_t id) const {
  std::call_once(has_pieces_, [this] {
    const auto& tokens = *options_.model.tokens;
    pieces_.reserve(options_.model.vocabulary + 1);
    for (std::size_t i = 0; i < options_.model.vocabulary; ++i) {
      const auto each = static_cast<std::int32_t>(i);
      pieces_.push_back(tokens.decode_further({&each, 1}));
    }
    pieces_.emplace_back();  // Of what is no token.
  });
  return pieces_[std::min(static_cast<std::size_t>(id), pieces_.size() - 1)];
}

void desk::live(const exchange& from) {
  reply(*from, R"({"status":"live"})");
}

void desk::ready(const exchange& from) {
  if (behind_.is_ready()) return reply(*from, R"({"status":"ready"})");
  refuse(*from, {.status = 503,
                 .message = behind_.why_not_ready(),
                 .type = "server_error",
                 .code = "not_ready",
                 .retry_after_s = 1});
}

void desk::models(const exchange& from) {
  const auto& served = options_.model;
  const auto one = model_json(served.id, served.created_s, served.context);
  const std::string_view path = from->request().path;
  constexpr std::string_view list = "/v1/models";
  if (path == list) return reply(*from, models_json(one));
  const auto name = path.substr(list.size() + 1);
  if (unescaped(name) == served.id) return reply(*from, one);
  refuse(*from, no_such_model(std::string(name)));
}

// ------------------------------------------------------------------------------------------ answers

namespace {

/// How many tokens an answer to this prompt may have, or why none.
std::variant<std::uint32_t, api_problem> room_for(std::size_t prompt_tokens,
                                                  std::optional<std::uint32_t> wanted,
                                                  const gateway_options& options,
                                                  const char* param) {
  const auto context = options.model.context;
  // What an encoder read leaves the decoder's positions alone; the service counts both.
  if (prompt_tokens >= context || (wanted && prompt_tokens + *wanted > context))
    return api_problem{
        .message = fmt::format(
            "This model's maximum context length is {} tokens. However, your messages resulted in "
            "{} tokens{}. Please reduce the length of the messages{}.",
            context, prompt_tokens,
            wanted ? fmt::format(" and you asked for {} more", *wanted) : std::string(),
            wanted ? " or of the completion" : ""),
        .param = param,
        .code = "context_length_exceeded"};
  if (wanted) return *wanted;
  return static_cast<std::uint32_t>(
      std::min<std::size_t>(context - prompt_tokens, options.default_tokens));
}

/// A budget that the plan cannot keep. One above the plan's is none: what is in force is told with the answer.
std::optional<api_problem> beyond_us(const generation& how, const served_model& served) {
  const auto granted =
      planning::grant_quality(served.quality, unbounded_budget, how.quality_percent);
  if (granted) return std::nullopt;
  return api_problem{.message = granted.error().message,
                     .param = "ordermoe.quality_budget_percent",
                     .code = "unsupported_parameter"};
}

}  // namespace

void desk::completions(const exchange& from) {
  auto asked = parse_completion(from->request().body, limits());
  if (asked.problem) return refuse(*from, *asked.problem);
  if (!knows(*from, asked.content.model)) return;
  job::order made;
  made.kind = reply_kind::completion;
  made.how = std::move(asked.content.how);
  if (const auto why = beyond_us(made.how, options_.model)) return refuse(*from, *why);
  for (auto& prompt : asked.content.prompts) {
    if (!may_fit(*from, prompt.text.size(), "prompt")) return;
    auto ids = prompt.ids.empty() ? options_.model.tokens->encode(prompt.text) : prompt.ids;
    const auto room = room_for(ids.size(), made.how.max_tokens, options_, "prompt");
    if (const auto* why = std::get_if<api_problem>(&room)) return refuse(*from, *why);
    made.max_tokens = std::get<std::uint32_t>(room);
    if (asked.content.echo)
      made.echoed.push_back(prompt.ids.empty() ? std::move(prompt.text)
                                               : options_.model.tokens->decode(prompt.ids));
    made.prompts.push_back(std::move(ids));
  }
  admit(std::make_shared<job>(*this, from, std::move(made)));
}

void desk::chat(const exchange& from) {
  auto asked = parse_chat(from->request().body, limits());
  if (asked.problem) return refuse(*from, *asked.problem);
  if (!knows(*from, asked.content.model)) return;
  const auto& served = options_.model;
  if (!served.chat)
    return refuse(*from, {.message = fmt::format("the model '{}' has no chat template ({}); use "
                                                 "/v1/completions",
                                                 served.id, served.no_chat),
                          .param = "messages",
                          .code = "unsupported_endpoint"});
  job::order made;
  made.kind = reply_kind::chat;
  made.how = std::move(asked.content.how);
  if (const auto why = beyond_us(made.how, served)) return refuse(*from, *why);
  std::size_t text_bytes = 0;
  for (const auto& each : asked.content.messages) text_bytes += each.content.size();
  if (!may_fit(*from, text_bytes, "messages")) return;
  auto ids = served.chat->encode(*served.tokens, asked.content.messages);
  if (!ids)
    return refuse(*from,
                  {.message = ids.error().message, .param = "messages", .code = "invalid_value"});
  const auto room = room_for(ids->size(), made.how.max_tokens, options_, "messages");
  if (const auto* why = std::get_if<api_problem>(&room)) return refuse(*from, *why);
  made.max_tokens = std::get<std::uint32_t>(room);
  made.prompts.push_back(std::move(*ids));
  for (auto& end : served.chat->turn_ends()) made.how.stop.push_back(end);
  admit(std::make_shared<job>(*this, from, std::move(made)));
}

// ------------------------------------------------------------------------------------------ admission

std::string desk::new_id(const char* kind) {
  return fmt::format("{}-{:016x}{:08x}", kind, random_(), static_cast<std::uint32_t>(random_()));
}

void desk::admit(std::shared_ptr<job> asked) {
  const auto n = asked->answers();
  const bool has_turn =
      waiting_.empty() && (n_running_ == 0 || n_running_ + n <= options_.most_running);
  if (!has_turn && n_waiting_ + n > options_.most_waiting) {
    ++figures_.turned_away;
    return asked->turn_away({.status = 429,
                             .message = fmt::format("{} answers are being made and {} wait, of {} "
                                                    "that may (--most-waiting); try again later",
                                                    n_running_, n_waiting_, options_.most_waiting),
                             .type = "rate_limit_error",
                             .code = "rate_limit_exceeded",
                             .retry_after_s = retry_after_s()});
  }
  asked->watch_peer();
  n_waiting_ += n;
  waiting_.push_back(std::move(asked));
  start_waiting();
}

void desk::start_waiting() {
  while (!waiting_.empty()) {
    const auto next = waiting_.front();
    const auto n = next->answers();
    if (n_running_ > 0 && n_running_ + n > options_.most_running) break;
    waiting_.pop_front();
    n_waiting_ -= n;
    n_running_ += n;
    next->start();
  }
  figures_.running = n_running_;
  figures_.waiting = n_waiting_;
}

void desk::ended(std::size_t answers) {
  n_running_ -= answers;
  start_waiting();
}

void desk::forget(const job* waiting) {
  const auto found = std::ranges::find(waiting_, waiting, &std::shared_ptr<job>::get);
  if (found == waiting_.end()) return;
  n_waiting_ -= (*found)->answers();
  waiting_.erase(found);
  start_waiting();
}

/// Until those that wait now will have had their turn, as long as recent answers took.
int desk::retry_after_s() const {
  constexpr double longest_s = 60;
  const auto rounds = static_cast<double>(n_waiting_ + n_running_) /
                      static_cast<double>(std::max<std::size_t>(1, options_.most_running));
  return static_cast<int>(std::ceil(std::clamp(rounds * figures_.recent_answer_s, 1.0, longest_s)));
}

// ------------------------------------------------------------------------------------------ the rest

void desk::tokenize(const exchange& from) {
  const auto asked = parse_tokenize(from->request().body, limits());
  if (asked.problem) return refuse(*from, *asked.problem);
  if (!knows(*from, asked.content.model)) return;
  const auto& served = options_.model;
  std::vector<std::int32_t> ids;
  if (!asked.content.messages.empty()) {
    auto encoded = served.chat ? served.chat->encode(*served.tokens, asked.content.messages)
                               : error{errc::unsupported, served.no_chat};
    if (!encoded)
      return refuse(
          *from,
          {.message = encoded.error().message, .param = "messages", .code = "invalid_value"});
    ids = std::move(*encoded);
  } else {
    ids = asked.content.add_special_tokens ? served.tokens->encode(asked.content.text)
                                           : served.tokens->encode_inside(asked.content.text);
  }
  ordered_json told{{"count", ids.size()}, {"max_model_len", served.context}, {"tokens", ids}};
  if (asked.content.return_pieces) {
    told["token_strs"] = ordered_json::array();
    for (const auto id : ids) told["token_strs"].push_back(piece_of(id));
  }
  reply(*from, json_text(told));
}

void desk::detokenize(const exchange& from) {
  const auto asked = parse_detokenize(from->request().body, limits());
  if (asked.problem) return refuse(*from, *asked.problem);
  if (!knows(*from, asked.content.model)) return;
  const auto context = options_.model.context;
  if (const auto n = asked.content.ids.size(); n > context)
    return refuse(*from,
                  {.message = fmt::format("This model's maximum context length is {} tokens. "
                                          "However, you sent {}. Please send fewer.",
                                          context, n),
                   .param = "tokens",
                   .code = "context_length_exceeded"});
  reply(*from,
        json_text(ordered_json{{"prompt", options_.model.tokens->decode(asked.content.ids)}}));
}

void desk::with_servers(const exchange& from, servers_function told) {
  if (answered_next_.size() + answered_later_.size() >= most_lookers)
    return refuse(*from, {.status = 503,
                          .message = fmt::format("{} requests wait to hear of the servers already; "
                                                 "try again later",
                                                 most_lookers),
                          .type = "server_error",
                          .code = "overloaded",
                          .retry_after_s = 1});
  answered_later_.push_back(std::move(told));
  if (answered_next_.empty()) ask_servers();
}

void desk::ask_servers() {
  answered_next_.swap(answered_later_);
  const std::lock_guard lock(mutex_);
  is_wanted_ = true;
  changed_.notify_all();
}

void desk::take_servers(const result<std::string>& servers) {
  for (const auto& told : std::exchange(answered_next_, {})) told(servers);
  // An answer may have let somebody ask who waited behind it.
  if (answered_next_.empty() && !answered_later_.empty()) ask_servers();
}

void desk::status(const exchange& from) {
  with_servers(from, [this, from](const result<std::string>& servers) {
    if (!servers) return refuse(*from, problem_of(servers.error()));
    const auto& served = options_.model;
    const ordered_json told{{"model", served.id},
                            {"quality_budget_percent", served.quality.percent},
                            {"ready", behind_.is_ready()},
                            {"running", n_running_},
                            {"waiting", n_waiting_},
                            {"prompt_tokens", figures_.prompt_tokens},
                            {"generation_tokens", figures_.generation_tokens},
                            {"budget_nats", figures_.budget_nats},
                            {"spent_nats", figures_.spent_nats},
                            {"takes_orders", behind_.takes_orders()},
                            {"strategies", planning::strategy_names()},
                            {"servers", ordered_json::parse(*servers)}};
    reply(*from, json_text(told));
  });
}

void desk::metrics(const exchange& from) {
  with_servers(from, [this, from](const result<std::string>& servers) {
    from->respond(200, {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}},
                  metrics_text(figures_, options_.model, server_->figures(),
                               servers ? *servers : std::string("[]")));
  });
}

void desk::page(const exchange& from) {
  const auto file = read_page(options_.pages, from->request().path);
  if (!file)
    return refuse(*from, {.status = 404,
                          .message = fmt::format("Invalid URL ({} {})", from->request().method,
                                                 from->request().path.substr(0, 200))});
  from->respond(
      200,
      {{"Content-Type", file->type},
       {"Cache-Control", "no-cache"},
       {"Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "
        "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
       {"Referrer-Policy", "no-referrer"},
       {"X-Content-Type-Options", "nosniff"}},
      file->bytes);
}

}  // namespace ordermoe::gateway
