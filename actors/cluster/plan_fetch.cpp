#include "actors/cluster/plan_fetch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

#include "actors/cluster/control.hpp"
#include "config/files.hpp"
#include "config/log_events.hpp"
#include "net/bulk/transfer.hpp"

namespace ordermoe::actors {

namespace {

namespace fs = std::filesystem;
using clock = std::chrono::steady_clock;
using net::peer_id;
using net::session_event;

constexpr std::chrono::milliseconds look_at_arrivals(20);
/// In this order: with the plan everything that it needs is there.
constexpr std::array fetched_in_order{paper::profile, paper::activation, paper::plan};

/// A text on its way here, on the disk and in memory.
class coming_paper {
 public:
  static result<coming_paper> open(const fs::path& folder, const std::string& sha256) {
    std::error_code failed;
    fs::create_directories(folder, failed);
    coming_paper made(folder / (sha256 + ".coming"));
    auto before = read_file(made.path_, most_bytes(paper::profile));
    if (before) made.text_ = std::move(*before);
    made.file_.open(made.path_, std::ios::binary | std::ios::app);
    if (!made.file_) return made.problem("opened");
    return made;
  }

  const std::string& text() const { return text_; }
  result<void> append(std::string_view bytes) {
    text_ += bytes;
    file_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file_.flush();
    return file_ ? result<void>{} : problem("written");
  }
  result<void> begin_anew() {
    text_.clear();
    file_.close();
    file_.open(path_, std::ios::binary | std::ios::trunc);
    return file_ ? result<void>{} : problem("written");
  }
  void remove() {
    file_.close();
    std::error_code ignored;
    fs::remove(path_, ignored);
  }

 private:
  explicit coming_paper(fs::path path) : path_(std::move(path)) {}
  error problem(const char* what) const {
    return {errc::io, fmt::format("{}: cannot be {}; check the folder's permissions, and that the "
                                  "disk has room",
                                  path_.string(), what)};
  }

  fs::path path_;
  std::string text_;
  std::ofstream file_;
};

}  // namespace

std::string plan_to_take(const std::optional<plan_at_hand>& mine,
                         const std::vector<plan_told_of>& told, std::size_t n_members) {
  const auto best = std::ranges::max_element(told, [](const auto& a, const auto& b) {
    return std::tie(a.members, a.epoch, a.sha256) < std::tie(b.members, b.epoch, b.sha256);
  });
  if (best == told.end()) return {};
  if (!mine || best->sha256 == mine->sha256) return best->sha256;
  if (2 * best->members > n_members) return best->sha256;
  const auto latest = std::ranges::max_element(told, {}, &plan_told_of::epoch);
  return latest->epoch > mine->epoch ? latest->sha256 : std::string();
}

namespace {

/// The thread that calls fetch_plan() waits here for what the transport's thread hears.
class fetcher final : public net::transport_user {
 public:
  explicit fetcher(plan_fetch_options options) : options_(std::move(options)) {
    std::erase_if(options_.members, [](const auto& each) { return each.absent; });
    n_members_ = options_.members.size() + 1;
    std::erase_if(options_.members, [](const auto& each) { return !each.at; });
    members_.resize(options_.members.size());
  }
  ~fetcher() override {
    if (transport_) transport_->stop();
  }

  result<std::optional<fetched_plan>> run() {
    if (auto begun = begin(); !begun) return begun.error();
    for (;;) {
      if (auto asked = await_notices(); !asked) return asked.error();
      auto taken = choose();
      if (!taken) return taken.error();
      if (*taken) {
        auto fetched = fetch(**taken);
        if (!fetched) return fetched.error();
        if (*fetched) return fetched;
      }
      if (options_.once || (!*taken && own_is_in_force_)) return std::optional<fetched_plan>();
      if (auto waited = wait_before_asking_again(); !waited) return waited.error();
    }
  }

 private:
  struct member {
    bool up = false;
    bool failed = false;  ///< It cannot be reached for now, or does not say what it should.
    std::optional<plan_notice> told;
  };
  struct arrival {
    peer_id from = 0;
    session_event event;
  };

  result<void> begin() {
    if (options_.members.empty())
      return error{errc::usage,
                   "nobody can be asked for the plan in force: no other member has an address at "
                   "which it can be dialled; bring plan and profile here by hand, or give a member "
                   "an address in node.toml"};
    net::transport_options through;
    through.identity = options_.identity;
    through.carried_by = options_.carried_by;
    through.limits = options_.limits;
    through.peers = options_.members;
    through.is_client = true;
    through.dials_for = net::dial_purpose::joining;
    auto transport = net::transport::start(std::move(through), *this);
    if (!transport) return transport.error();
    transport_ = std::move(*transport);
    return {};
  }

  // ------------------------------------------------------------------------- of the transport's thread

  void take(peer_id from, std::vector<session_event> events) override {
    const std::lock_guard lock(mutex_);
    for (auto& each : events) arrived_.push_back({from, std::move(each)});
    changed_.notify_all();
  }
  void client_came(peer_id, const net::certificate_name&) override {}
  void problem(const std::string& who, const error& why) override {
    // "NAME (HOST:PORT)" of whom it dials.
    const auto name = who.substr(0, who.find(' '));
    for (peer_id peer = 0; peer < options_.members.size(); ++peer)
      if (options_.members[peer].name == name)
        take(peer, {{session_event::what::refused, {}, why.message}});
  }

  // ---------------------------------------------------------------------------- of the calling thread

  const std::string& name_of(peer_id peer) const { return options_.members[peer].name; }

  /// What came since; waits a moment where nothing has. Error: interrupted.
  result<std::deque<arrival>> next_arrivals() {
    if (options_.pause && options_.pause())
      return error{errc::interrupted, "interrupted before the plan in force was there"};
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, look_at_arrivals, [this] { return !arrived_.empty(); });
    return std::exchange(arrived_, {});
  }

  /// Of anybody, but for parts that are awaited.
  void hear(const arrival& each) {
    auto& who = members_[each.from];
    switch (each.event.kind) {
      case session_event::what::up:
        who.up = true;
        who.failed = false;
        transport_->send(each.from, net::lane::control,
                         static_cast<std::uint8_t>(control_kind::plan_asked), 0, 0, 0, {});
        return;
      case session_event::what::down:
      case session_event::what::cut:
        who = {};
        who.failed = true;
        return;
      case session_event::what::refused:
      case session_event::what::fault:
        who.failed = !who.told;
        return tell_refusal(each.from, each.event.text);
      case session_event::what::frame:
        transport_->used(each.from, each.event.header.of,
                         net::session::frame_bytes(each.event.header));
        if (static_cast<control_kind>(each.event.header.kind) == control_kind::plan_told)
          hear_notice(each.from, each.event.text);
        return;
      default:
        return;
    }
  }

  void hear_notice(peer_id from, const std::string& text) {
    auto told = parse_notice(text);
    if (!told) return give_up(from, told.error().message);
    members_[from].told = std::move(*told);
  }

  /// It says what makes no sense, or is of no use.
  void give_up(peer_id from, const std::string& why) {
    tell_refusal(from, why);
    members_[from].told.reset();
    members_[from].failed = true;
  }

  /// Each thing once: whoever is no member yet hears the same of everybody, again and again.
  void tell_refusal(peer_id from, const std::string& why) {
    if (told_.size() < most_told && told_.insert({from, why}).second)
      options_.log.tell(log_event::plan_refused, {{"peer", name_of(from)}, {"why", why}});
  }

  result<void> await_notices() {
    const auto since = clock::now();
    std::optional<clock::time_point> first;
    for (;;) {
      const auto all = std::ranges::all_of(
          members_, [](const member& each) { return each.told.has_value() || each.failed; });
      const auto any =
          std::ranges::any_of(members_, [](const member& each) { return each.told.has_value(); });
      if (any && !first) first = clock::now();
      if (any && (all || clock::now() - *first >= options_.deciding_for)) return {};
      if (options_.once && (all || clock::now() - since >= options_.asking_for)) return {};
      auto came = next_arrivals();
      if (!came) return came.error();
      for (const auto& each : *came) hear(each);
    }
  }

  result<void> wait_before_asking_again() {
    const auto until = clock::now() + options_.again_after;
    while (clock::now() < until) {
      auto came = next_arrivals();
      if (!came) return came.error();
      for (const auto& each : *came) hear(each);
    }
    for (peer_id peer = 0; peer < members_.size(); ++peer) {
      if (!members_[peer].up) continue;
      members_[peer].told.reset();
      members_[peer].failed = false;
      transport_->send(peer, net::lane::control,
                       static_cast<std::uint8_t>(control_kind::plan_asked), 0, 0, 0, {});
    }
    return {};
  }

  bool fits(const plan_notice& told) const {
    return told.model == options_.model && told.cluster_file == options_.cluster_file;
  }

  /// Which plan is fetched, if any; as one of those who go by it has told. Error: mismatch.
  result<std::optional<plan_notice>> choose() {
    own_is_in_force_ = false;
    std::vector<plan_told_of> plans;
    std::optional<error> other;
    for (peer_id peer = 0; peer < members_.size(); ++peer) {
      const auto& told = members_[peer].told;
      if (!told) continue;
      if (!fits(*told)) {
        other = mismatch_of(name_of(peer), *told);
        continue;
      }
      auto found = std::ranges::find(plans, told->plan().sha256, &plan_told_of::sha256);
      if (found == plans.end())
        found = plans.insert(plans.end(), {told->plan().sha256, told->epoch, 0});
      ++found->members;
    }
    if (plans.empty() && other) return *other;
    const auto wanted = plan_to_take(options_.mine, plans, n_members_);
    if (wanted.empty()) return std::optional<plan_notice>();
    own_is_in_force_ = options_.mine && wanted == options_.mine->sha256;
    for (const auto& each : members_) {
      if (!each.told || !fits(*each.told) || each.told->plan().sha256 != wanted) continue;
      if (own_is_in_force_ && each.told->profile().sha256 == options_.profile)
        return std::optional<plan_notice>();
      return each.told;
    }
    return std::optional<plan_notice>();
  }

  error mismatch_of(const std::string& member, const plan_notice& told) const {
    const bool model = told.model != options_.model;
    const auto& theirs = model ? told.model : told.cluster_file;
    const auto& ours = model ? options_.model : options_.cluster_file;
    return {errc::mismatch,
            fmt::format("{} goes by a plan for another {}: digest {}, this host's has {}; bring "
                        "this host the {} of the other members",
                        member, model ? "model" : "cluster file", theirs.substr(0, 12),
                        ours.substr(0, 12), model ? "model" : "cluster file")};
  }

  bool needs(paper which, const plan_notice& told) const {
    const auto& facts = told.of(which);
    if (!facts) return false;
    if (which == paper::profile) return facts->sha256 != options_.profile;
    return which != paper::plan || !options_.mine || facts->sha256 != options_.mine->sha256;
  }

  /// Nothing where no member has sent all of it.
  result<std::optional<fetched_plan>> fetch(const plan_notice& told) {
    options_.log.tell(log_event::plan_wanted,
                      {{"why", fmt::format("the plan of epoch {} is in force", told.epoch)}});
    fetched_plan made;
    made.told = told;
    for (const auto which : fetched_in_order) {
      if (!needs(which, told)) continue;
      auto text = fetch_paper(which, told, made.from);
      if (!text) return text.error();
      if (!*text) return std::optional<fetched_plan>();
      made.texts[static_cast<std::size_t>(which)] = std::move(**text);
    }
    return std::optional(std::move(made));
  }

  result<std::optional<std::string>> fetch_paper(paper which, const plan_notice& told,
                                                 std::string& from) {
    const auto& facts = *told.of(which);
    auto come = coming_paper::open(options_.folder, facts.sha256);
    if (!come) return come.error();
    for (peer_id peer = 0; peer < members_.size(); ++peer) {
      const auto& who = members_[peer].told;
      if (!who || who->plan() != told.plan() || who->of(which) != facts) continue;
      auto done =
          fetch_from(peer, {paper_name(which, facts.sha256), facts.bytes, facts.sha256}, *come);
      if (!done) return done.error();
      if (!*done) continue;
      from = name_of(peer);
      auto text = come->text();
      come->remove();
      return std::optional(std::move(text));
    }
    return std::optional<std::string>();
  }

  /// Whether all of it is there. Errors: io, interrupted.
  result<bool> fetch_from(peer_id peer, const net::bulk_item& wanted, coming_paper& come) {
    std::optional<error> disk;
    const auto write = [&](std::string_view bytes) -> result<void> {
      auto written = come.append(bytes);
      if (!written) disk = written.error();
      return written;
    };
    if (come.text().size() > wanted.bytes)
      if (auto anew = come.begin_anew(); !anew) return anew.error();
    std::optional<net::bulk_receiver> receiver;
    receiver.emplace(wanted, ++requests_, write);
    // What came before and has another digest is of no use to anybody.
    if (auto kept = receiver->keep(come.text()); !kept) {
      if (auto anew = come.begin_anew(); !anew) return anew.error();
      receiver.emplace(wanted, ++requests_, write);
    }
    while (!receiver->done()) {
      auto why = fetch_window(peer, *receiver);
      if (!why) return why.error();
      if (disk) return std::move(*disk);
      if (!*why) continue;
      give_up(peer, (*why)->message);
      return false;
    }
    return true;
  }

  /// Asks for what follows, and takes it in; why this member is asked no more, if so. Error: interrupted.
  using why_not = std::optional<error>;
  result<why_not> fetch_window(peer_id peer, net::bulk_receiver& receiver) {
    auto ask = receiver.ask();
    if (!transport_->send(peer, net::lane::control,
                          static_cast<std::uint8_t>(control_kind::paper_asked), ask.request,
                          ask.attempt, 0, std::move(ask.payload)))
      return why_not(error{errc::io, "is not connected any more"});
    const auto until = clock::now() + options_.silent_for;
    std::size_t parts = 0;
    while (parts < papers_window && !receiver.done()) {
      if (clock::now() >= until)
        return why_not(
            error{errc::timed_out,
                  fmt::format("has sent no {} parts within {} s", papers_window,
                              std::chrono::duration<double>(options_.silent_for).count())});
      auto came = next_arrivals();
      if (!came) return came.error();
      for (const auto& each : *came) {
        hear(each);
        if (each.from != peer) continue;
        if (!members_[peer].up) return why_not(error{errc::io, "its connection ended"});
        if (each.event.kind != session_event::what::frame) continue;
        auto taken = take_part(receiver, each.event);
        if (!taken) return why_not(taken.error());
        parts += *taken;
      }
    }
    return why_not();
  }

  /// Whether it was the next part.
  static result<bool> take_part(net::bulk_receiver& receiver, const session_event& event) {
    const auto kind = static_cast<control_kind>(event.header.kind);
    if (kind == control_kind::plan_told) return false;
    auto header = event.header;
    header.kind = static_cast<std::uint8_t>(
        kind == control_kind::paper_refused ? net::bulk_kind::refusal : net::bulk_kind::part);
    const auto missing = receiver.wanted().bytes - receiver.bytes_there();
    const auto whole =
        std::min<std::uint64_t>(missing, net::bulk_part_bytes) + sizeof(std::uint64_t);
    if (kind == control_kind::paper_part && event.text.size() != whole)
      return error{errc::malformed,
                   fmt::format("found a part of {} bytes, expected {}", event.text.size(), whole)};
    if (kind != control_kind::paper_part && kind != control_kind::paper_refused)
      return error{errc::malformed, fmt::format("found a message of kind {}, expected parts",
                                                static_cast<int>(event.header.kind))};
    const auto before = receiver.bytes_there();
    if (auto taken = receiver.take(header, event.text); !taken) return taken.error();
    return receiver.bytes_there() != before;
  }

  static constexpr std::size_t most_told = 256;

  plan_fetch_options options_;
  std::size_t n_members_ = 0;  ///< This host included.
  std::unique_ptr<net::transport> transport_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<arrival> arrived_;
  // Of the calling thread:
  std::vector<member> members_;
  std::set<std::pair<peer_id, std::string>> told_;
  std::uint64_t requests_ = 0;
  bool own_is_in_force_ = false;
};

}  // namespace

result<std::optional<fetched_plan>> fetch_plan(plan_fetch_options options) {
  return fetcher(std::move(options)).run();
}

}  // namespace ordermoe::actors
