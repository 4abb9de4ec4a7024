#include "actors/cluster/expert_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <ranges>
#include <utility>

#include "config/log_events.hpp"

namespace ordermoe::actors {

namespace {

constexpr std::string_view name_begin = "expert/1/";
/// That wait at a session, so that the network is never without and memory stays small.
constexpr std::uint64_t most_waiting_bytes = 1 << 20;
constexpr std::chrono::milliseconds look_again(2), look_at_silence(50);
/// That are kept open for others.
constexpr std::size_t most_open = 64;

std::string name_of(layer_id layer, expert_id expert) {
  return fmt::format("{}{}/{}", name_begin, layer.index(), expert.index());
}

std::optional<std::pair<layer_id, expert_id>> parse_name(std::string_view name) {
  if (!name.starts_with(name_begin)) return std::nullopt;
  name.remove_prefix(name_begin.size());
  std::uint32_t layer = 0, expert = 0;
  const auto* last = name.data() + name.size();
  const auto first = std::from_chars(name.data(), last, layer);
  if (first.ec != std::errc() || first.ptr == last || *first.ptr != '/') return std::nullopt;
  const auto second = std::from_chars(first.ptr + 1, last, expert);
  if (second.ec != std::errc() || second.ptr != last) return std::nullopt;
  return std::pair{layer_id{layer}, expert_id{expert}};
}

}  // namespace

class expert_exchange::offered final : public net::bulk_shelf {
 public:
  explicit offered(std::shared_ptr<const model::expert_shelf> shelf) : shelf_(std::move(shelf)) {}

  result<std::uint64_t> find(const std::string& name) override {
    const auto which = parse_name(name);
    if (!which) return error{errc::usage, "found a name that no expert has"};
    auto image = shelf_->find(which->first, which->second);
    if (!image) return image.error();
    if (open_.size() >= most_open) open_.clear();
    const auto bytes = image->bytes();
    open_.insert_or_assign(name, std::move(*image));
    return bytes;
  }

  result<std::string> read(const std::string& name, std::uint64_t offset,
                           std::size_t bytes) override {
    if (!open_.contains(name))
      if (auto found = find(name); !found) return found.error();
    return open_.at(name).read(offset, bytes);
  }

  /// Nobody asks for anything: files that came here do not stay mapped.
  void close() { open_.clear(); }

 private:
  std::shared_ptr<const model::expert_shelf> shelf_;
  std::map<std::string, model::expert_image> open_;
};

expert_exchange::expert_exchange(std::shared_ptr<model::expert_shelf> shelf, ways to,
                                 log_outlet log, std::chrono::milliseconds silent_for)
    : shelf_(std::move(shelf)),
      to_(std::move(to)),
      log_(std::move(log)),
      silent_for_(silent_for),
      offered_(std::make_unique<offered>(shelf_)) {
  for (std::size_t i = 0; i < to_.names.size(); ++i) senders_.emplace_back(*offered_);
  thread_ = std::thread([this] { work(); });
}

expert_exchange::~expert_exchange() {
  stop();
}

void expert_exchange::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void expert_exchange::take(net::peer_id from, net::frame_header header, std::string payload) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  arrived_.push_back({arrival::what::frame, from, header, std::move(payload)});
  wake_.notify_one();
}

void expert_exchange::lose(net::peer_id peer) {
  const std::lock_guard lock(mutex_);
  arrived_.push_back({arrival::what::lost, peer, {}, {}});
  wake_.notify_one();
}

result<void> expert_exchange::fetch(std::uint64_t change, std::vector<wanted_expert> wanted) {
  std::erase_if(wanted,
                [this](const wanted_expert& each) { return shelf_->has(each.layer, each.expert); });
  if (wanted.empty()) return {};
  std::unique_lock lock(mutex_);
  if (stopping_) return error{errc::interrupted, "the node ends"};
  begins_.emplace();
  begins_->change = change;
  begins_->wanted = std::move(wanted);
  outcome_.reset();
  arrived_.push_back({arrival::what::begin, 0, {}, {}});
  wake_.notify_one();
  ended_.wait(lock, [this] { return outcome_.has_value(); });
  if (*outcome_) return std::move(**outcome_);
  return {};
}

void expert_exchange::stop_fetching(std::uint64_t change) {
  const std::lock_guard lock(mutex_);
  stopped_change_ = change;
  wake_.notify_one();
}

// ------------------------------------------------------------------------------------------ the thread

void expert_exchange::work() {
  std::unique_lock lock(mutex_);
  for (bool more = false; !stopping_;) {
    const auto woken = [&] {
      return stopping_ || !arrived_.empty() || (task_ && should_stop(task_->change));
    };
    if (more)
      wake_.wait_for(lock, look_again, woken);
    else if (task_)
      wake_.wait_for(lock, std::min(look_at_silence, silent_for_), woken);
    else
      wake_.wait(lock, woken);
    auto arrived = std::exchange(arrived_, {});
    const bool stops = task_ && should_stop(task_->change);
    lock.unlock();
    for (auto& each : arrived) handle(each);
    if (stops && task_)
      end(error{errc::interrupted, "the change of plan was given up while experts were fetched"});
    look_at_time();
    more = send_some();
    if (!more) offered_->close();
    lock.lock();
  }
  lock.unlock();
  if (task_) end(error{errc::interrupted, "the node ends"});
  lock.lock();
  // Of a call that had not begun yet.
  if (!outcome_) outcome_.emplace(error{errc::interrupted, "the node ends"});
  ended_.notify_all();
}

void expert_exchange::handle(arrival& each) {
  switch (each.kind) {
    case arrival::what::begin: {
      std::unique_lock lock(mutex_);
      task_ = std::exchange(begins_, std::nullopt);
      const bool stops = should_stop(task_->change);
      lock.unlock();
      if (stops) return end(error{errc::interrupted, "the change of plan was given up"});
      log_.tell(log_event::experts_fetching, {{"experts", task_->wanted.size()}});
      return begin_expert();
    }
    case arrival::what::lost:
      senders_[each.peer].forget();
      if (task_ && task_->receiver && task_->asked == each.peer)
        give_up_peer("is not connected any more");
      return;
    case arrival::what::frame:
      take_frame(each);
      to_.used(each.peer, net::session::frame_bytes(each.header));
      // The disk takes long, and who sends would write nothing of its lane meanwhile, prompts' rows neither.
      if (task_ && task_->receiver && task_->receiver->done()) keep_expert();
      return;
  }
}

void expert_exchange::take_frame(arrival& each) {
  const auto kind = static_cast<net::bulk_kind>(each.header.kind);
  if (kind == net::bulk_kind::part || kind == net::bulk_kind::refusal)
    return take_part(each.peer, each.header, each.payload);
  if (auto taken = senders_[each.peer].take(each.header, each.payload); !taken)
    log_.tell(log_event::peer_ignored,
              {{"peer", to_.names[each.peer]}, {"why", taken.error().message}});
}

bool expert_exchange::send_some() {
  bool left = false;
  for (net::peer_id peer = 0; peer < senders_.size(); ++peer) {
    auto& sender = senders_[peer];
    if (!sender.has_next()) continue;
    for (auto waiting = to_.waiting_bytes(peer); waiting < most_waiting_bytes;) {
      auto next = sender.next();
      if (!next) break;
      waiting += next->payload.size();
      if (to_.send(peer, std::move(*next))) continue;
      sender.forget();
      break;
    }
    left |= sender.has_next();
  }
  return left;
}

// ------------------------------------------------------------------------------------- what comes here

void expert_exchange::begin_expert() {
  auto& now = *task_;
  now.come.reset();
  now.receiver.reset();
  now.in_vain.clear();
  while (now.next < now.wanted.size() &&
         shelf_->has(now.wanted[now.next].layer, now.wanted[now.next].expert))
    ++now.next;
  if (now.next == now.wanted.size()) {
    log_.tell(log_event::experts_fetched, {{"experts", now.wanted.size()}, {"bytes", now.bytes}});
    return end(std::nullopt);
  }
  const auto& which = now.wanted[now.next];
  auto come = shelf_->receive(which.layer, which.expert);
  if (!come) return end(come.error());
  now.come = std::move(*come);
  now.to_ask.clear();
  for (net::peer_id peer = 0; peer < to_.names.size(); ++peer)
    if (std::ranges::find(which.hosts, peer) == which.hosts.end()) now.to_ask.push_back(peer);
  // Not all of the first host.
  for (std::size_t i = 0; i < which.hosts.size(); ++i)
    now.to_ask.push_back(which.hosts[(now.next + i) % which.hosts.size()]);
  ask_next();
}

result<void> expert_exchange::open_receiver() {
  auto& now = *task_;
  const auto& which = now.wanted[now.next];
  const auto& facts = now.come->facts();
  now.receiver.emplace(
      net::bulk_item{name_of(which.layer, which.expert), facts.bytes, facts.sha256},
      next_request_++, [this](std::string_view bytes) -> result<void> {
        auto written = task_->come->append(bytes);
        if (!written) task_->disk = written.error();
        task_->bytes += bytes.size();
        return written;
      });
  return now.come->each_piece([&](std::string_view bytes) { return now.receiver->keep(bytes); });
}

void expert_exchange::ask_next() {
  auto& now = *task_;
  while (!now.to_ask.empty()) {
    now.asked = now.to_ask.back();
    now.to_ask.pop_back();
    if (auto opened = open_receiver(); !opened) return end(opened.error());
    now.heard = clock::now();
    if (to_.send(now.asked, now.receiver->ask())) return;
    now.in_vain += fmt::format("; {} is not connected", to_.names[now.asked]);
  }
  const auto& which = now.wanted[now.next];
  end(error{errc::failed,
            fmt::format("expert {} of layer {} is not on this node's disk and could not be had{}",
                        which.expert.index(), which.layer.index(),
                        now.in_vain.empty() ? ": there is no other node" : now.in_vain)});
}

void expert_exchange::take_part(net::peer_id from, const net::frame_header& header,
                                std::string_view payload) {
  if (!task_ || !task_->receiver || task_->asked != from) return;
  auto& now = *task_;
  const auto before = now.receiver->bytes_there();
  auto taken = now.receiver->take(header, payload);
  if (now.disk) return end(std::move(now.disk));
  if (now.receiver->bytes_there() != before) now.heard = clock::now();
  if (taken) return;
  // Whoever has sent something else is not asked again, and none of it stays.
  if (taken.error().code == errc::mismatch)
    if (auto anew = now.come->begin_anew(); !anew) return end(anew.error());
  if (taken.error().code != errc::failed)
    log_.tell(log_event::expert_refused,
              {{"peer", to_.names[from]}, {"why", taken.error().message}});
  give_up_peer(taken.error().message);
}

void expert_exchange::keep_expert() {
  auto& now = *task_;
  const auto& which = now.wanted[now.next];
  now.receiver.reset();
  if (auto kept = shelf_->keep(which.layer, which.expert, std::move(now.come)); !kept)
    return end(kept.error());
  ++now.next;
  begin_expert();
}

void expert_exchange::give_up_peer(const std::string& why) {
  auto& now = *task_;
  to_.send(now.asked, now.receiver->stop());
  now.in_vain += fmt::format("; {}: {}", to_.names[now.asked], why);
  now.receiver.reset();
  ask_next();
}

void expert_exchange::look_at_time() {
  if (task_ && task_->receiver && clock::now() - task_->heard >= silent_for_)
    give_up_peer(fmt::format("has sent nothing for {} s",
                             std::chrono::duration<double>(silent_for_).count()));
}

void expert_exchange::end(std::optional<error> why) {
  if (task_->receiver) to_.send(task_->asked, task_->receiver->stop());
  task_.reset();
  const std::lock_guard lock(mutex_);
  outcome_.emplace(std::move(why));
  ended_.notify_all();
}

}  // namespace ordermoe::actors
