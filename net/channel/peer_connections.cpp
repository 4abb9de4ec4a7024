#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "net/channel/peer_book.hpp"

// Of the book of peers: connections that come, go and are made, and time.
namespace ordermoe::net {

namespace {

constexpr std::size_t most_greeting = 64;  ///< Connections that have not said who they are.
constexpr std::int64_t tick_ns = 50'000'000;
constexpr std::int64_t closing_ns = 1'000'000'000;  ///< That last words may wait for room.

bool fits(const peer& expected, const certificate_name& who) {
  return !expected.spec.absent && who.of == role::node &&
         (expected.spec.name.empty() || expected.spec.name == who.name);
}

}  // namespace

// ----------------------------------------------------------------------------------------- reading

void peer_book::came(const connection_ptr& with, std::string_view wire, bool drained) {
  if (ending_) return;
  if (!with->owner) return greet(with, wire);
  const auto owner = with->owner;
  error problem;
  {
    const auto lock = hold(*owner);
    owner->read_bytes += wire.size();
    ++owner->reads;
    plain_.clear();
    auto taken = with->take(wire, plain_);
    owner->link->receive(with->id, plain_, steady_ns(), drained);
    write_all(owner);
    if (!taken) problem = taken.error();
    if (with->ended()) problem.message = "ended by the peer";
  }
  dispatch(owner);
  if (!problem.message.empty()) finish(with, problem.message);
}

void peer_book::has_room(const connection_ptr& with) {
  if (with->closed || ending_) return;
  const auto owner = with->owner;
  if (!owner) {
    with->write();
    return;
  }
  const auto lock = hold(*owner);
  if (!with->closed) write_all(owner);
}

void peer_book::was_closed(const connection_ptr& with, std::string_view why) {
  finish(with, why);
}

// --------------------------------------------------------------------------------------- who is there

void peer_book::accepted(connection_ptr with) {
  if (ending_) return with->close();
  make_room();
  add(std::move(with), nullptr);
}

void peer_book::add(connection_ptr with, peer_ptr expected) {
  with->id = next_connection_++;
  with->dialled = expected != nullptr;
  with->since_ns = steady_ns();
  greeting_.push_back({with, std::move(expected)});
  plain_.clear();
  if (with->established()) attach(with);
}

void peer_book::make_room() {
  const auto is_from_outside = [](const greeting& each) { return each.expected == nullptr; };
  if (static_cast<std::size_t>(std::ranges::count_if(greeting_, is_from_outside)) < most_greeting)
    return;
  const auto oldest = std::ranges::find_if(greeting_, is_from_outside)->with;
  drop(oldest);
  tell_once(oldest->remote, {errc::failed, fmt::format("{} connections have not said who they are",
                                                       most_greeting)});
}

void peer_book::greet(const connection_ptr& with, std::string_view wire) {
  plain_.clear();
  const auto taken = with->take(wire, plain_);
  if (!taken) return turn_away(with, taken.error());
  if (with->established()) attach(with);
}

void peer_book::turn_away(connection_ptr with, const error& why) {
  const auto expected = expected_of(with);
  say_why(*with, why.message);
  drop(with);
  expected ? could_not_reach(expected, with->which(), why) : tell_once(with->remote, why);
}

void peer_book::say_why(connection& with, std::string_view why) {
  if (!with.established()) return;
  frame_header header;
  header.version = wire_version;
  header.word = session_word::refusal;
  header.of = with.which() == stream::bulk ? lane::bulk : lane::control;
  header.length = static_cast<std::uint32_t>(why.size());
  std::string frame;
  put(header, frame);
  frame += why;
  if (!with.put(frame)) return;
  with.end();
  with.write();
}

void peer_book::drop(connection_ptr with) {
  std::erase_if(greeting_, [&](const greeting& each) { return each.with == with; });
  with->closed = true;
  with->close();
}

peer_ptr peer_book::expected_of(const connection_ptr& with) const {
  const auto found =
      std::ranges::find_if(greeting_, [&](const greeting& each) { return each.with == with; });
  return found == greeting_.end() ? nullptr : found->expected;
}

void peer_book::attach(const connection_ptr& with) {
  const auto& who = with->peer();
  const auto which = with->which();
  const auto expected = expected_of(with);
  // Before a client is made of it, which would stay.
  if (is_revoked(*with))
    return turn_away(with,
                     {errc::mismatch, fmt::format("{} {}, which is revoked (serial {}); "
                                                  "renew it with `ordermoe cert renew`",
                                                  with->proof(), uri_of(who), with->serial())});
  const auto owner = expected ? expected : owner_of(*with);
  if (!owner || (expected && !fits(*expected, who)))
    return turn_away(with,
                     {errc::mismatch, fmt::format("{} {}, expected {}", with->proof(), uri_of(who),
                                                  expected && !expected->spec.absent
                                                      ? fmt::format("node {}", expected->spec.name)
                                                      : "a node of the member list")});
  std::erase_if(greeting_, [&](const greeting& each) { return each.with == with; });
  if (expected) expected->dialled_of(which).busy = false;
  attach_to(owner, with);
  dispatch(owner);
}

void peer_book::attach_to(const peer_ptr& owner, const connection_ptr& with) {
  const auto& name = with->peer().name;
  const auto lock = hold(*owner);
  if (!owner->link) {
    owner->spec.name = name;
    make_session(*owner, name, options_.agreed, 0);
  }
  with->owner = owner;
  with->written_bytes = 0;
  owner->connections.push_back(with);
  ++owner->n_connections;
  owner->link->connected(with->id, with->which(), with->dialled, name, steady_ns());
  owner->link->receive(with->id, plain_, steady_ns());
  write_all(owner);
}

peer_ptr peer_book::owner_of(const connection& with) {
  const auto& who = with.peer();
  if (with.joins() && who.of != role::node) return nullptr;
  if (who.of == role::node) {
    const auto found = std::ranges::find_if(
        members_, [&](const peer_ptr& each) { return each->spec.name == who.name; });
    if (found == members_.end() || (*found)->spec.absent) return nullptr;
    if (!with.joins()) return *found;
  }
  if (!options_.takes_clients || with.which() != stream::fast) return nullptr;
  auto made = std::make_shared<peer>();
  made->is_client = true;
  made->joins = with.joins();
  made->spec.name = who.name;
  {
    const std::lock_guard lock(clients_mutex_);
    made->id = static_cast<peer_id>(members_.size()) + n_clients_++;
    clients_[made->id] = made;
  }
  make_session(*made, who.name, {}, made->id);
  call_user([&] { user_.client_came(made->id, who); });
  return made;
}

// --------------------------------------------------------------------------------------------- the end

void peer_book::finish(const connection_ptr& with, std::string_view why) {
  if (ending_) return;
  const auto owner = with->owner;
  if (!owner) {
    if (with->closed) return;
    return turn_away(with, {errc::io, std::string(why)});
  }
  bool unheard = false;
  {
    const auto lock = hold(*owner);
    if (std::exchange(with->closed, true)) return;
    std::erase(owner->connections, with);
    unheard = !with->closing && owner->link->now_in() == session::phase::away;
    owner->link->disconnected(with->id, steady_ns(), with->problem.empty() ? why : with->problem);
    with->close();
    write_all(owner);
  }
  if (with->dialled && unheard)
    could_not_reach(owner, with->which(),
                    {errc::io, fmt::format("{}, before it said who it is", why)});
  else if (with->dialled)
    retry_later(*owner, with->which());
  dispatch(owner);
  if (owner->is_client && owner->connections.empty()) forget_unborn(owner, why);
}

void peer_book::forget_unborn(const peer_ptr& client, std::string_view why) {
  if (!find(client->id)) return;
  {
    const std::lock_guard lock(clients_mutex_);
    clients_.erase(client->id);
  }
  tell_user(*client, {{session_event::what::down, {}, std::string(why)}});
}

// --------------------------------------------------------------------------------- another certificate

void peer_book::adopt(std::shared_ptr<const tls_identity> identity) {
  if (ending_) return;
  const auto& own = options_.identity->name();
  if (identity->name() != own)
    return tell("certificates",
                {errc::mismatch, fmt::format("found one of {}, expected {}",
                                             uri_of(identity->name()), uri_of(own))});
  if (auto used = connections_->use(identity); !used) return tell("certificates", used.error());
  options_.identity = std::move(identity);
  for (const auto& each : everybody()) end_revoked(each);
  // Whoever was refused for what there was before need not wait.
  for (const auto& each : members_)
    for (auto& state : each->dialled) state.next_ns = 0;
}

/// The connections alone: its session goes on where it comes back with another certificate.
void peer_book::end_revoked(const peer_ptr& of) {
  std::vector<connection_ptr> revoked;
  {
    const auto lock = hold(*of);
    std::ranges::copy_if(of->connections, std::back_inserter(revoked),
                         [&](const connection_ptr& each) { return is_revoked(*each); });
  }
  if (revoked.empty()) return;
  const auto why = fmt::format("its certificate (serial {}) is revoked", revoked[0]->serial());
  tell(of->spec.name, {errc::mismatch, why});
  for (const auto& each : revoked) finish(each, why);
}

void peer_book::dismiss(const peer_ptr& whom) {
  give_up(whom, "it is no member of the cluster any more");
  std::vector<connection_ptr> open;
  {
    const auto lock = hold(*whom);
    open = whom->connections;
  }
  for (const auto& each : open)
    if (!each->closing) finish(each, "it is no member any more");
  for (const auto& each : everybody())
    if (each->joins && each->spec.name == whom->spec.name)
      give_up(each, "it is no member of the cluster any more");
}

// --------------------------------------------------------------------------------------------- dialling

void peer_book::dial_where_due() {
  for (const auto& each : members_) {
    if (!each->dials || each->spec.absent) continue;
    bool up = false;
    std::array<bool, n_streams> there{};
    {
      const auto lock = hold(*each);
      up = each->link && each->link->now_in() == session::phase::up;
      for (const auto& with : each->connections)
        there[static_cast<std::size_t>(with->which())] |= !with->closing;
    }
    for (const auto which : {stream::fast, stream::bulk}) {
      const auto& state = each->dialled_of(which);
      if (which == stream::bulk && (!up || options_.is_client)) continue;
      if (there[static_cast<std::size_t>(which)] || state.busy || steady_ns() < state.next_ns)
        continue;
      dial(each, which);
    }
  }
}

void peer_book::dial(const peer_ptr& to, stream which) {
  to->dialled_of(which).busy = true;
  connections_->dial(*to->spec.at, which, [this, to, which](result<connection_ptr> made) {
    if (ending_) {
      if (made) (*made)->close();
      return;
    }
    if (!made) return could_not_reach(to, which, made.error());
    (*made)->remote = fmt::format("{} ({})", to->spec.name, to_string(*to->spec.at));
    add(std::move(*made), to);
  });
}

void peer_book::could_not_reach(const peer_ptr& to, stream which, const error& why) {
  retry_later(*to, which);
  if (!to->dialled_of(which).told.is_new(why.message)) return;
  tell(fmt::format("{} ({})", to->spec.name, to_string(*to->spec.at)), why);
  call_user([&] { user_.could_not_reach(to->id, why); });
}

void peer_book::retry_later(peer& to, stream which) {
  auto& state = to.dialled_of(which);
  state.busy = false;
  state.next_ns = steady_ns() + static_cast<std::int64_t>(static_cast<double>(state.backoff_ns) *
                                                          jitter_.uniform(0.5, 1.5));
  state.backoff_ns = std::min(dialling::most_backoff_ns, 2 * state.backoff_ns);
}

// ------------------------------------------------------------------------------------------------ time

void peer_book::tick() {
  if (ending_) return;
  const auto now = steady_ns();
  // Less is a machine that has much else to do, and would only have silence last longer.
  const auto stood_still_ns = options_.limits.suspect_ns / 2;
  const auto late_ns =
      tick_due_ns_ != 0 && now - tick_due_ns_ > stood_still_ns ? now - tick_due_ns_ : 0;
  for (const auto& each : everybody()) {
    std::vector<connection_ptr> stuck;
    {
      const auto lock = hold(*each);
      if (!each->link) continue;
      each->link->tick(now, late_ns);
      write_all(each);
      for (const auto& with : each->connections)
        if (with->closing && now - with->closing_since_ns >= closing_ns) stuck.push_back(with);
    }
    dispatch(each);
    for (const auto& with : stuck) finish(with, "it does not take what is left to say");
  }
  while (!greeting_.empty() && now - greeting_.front().with->since_ns >= options_.limits.hello_ns)
    turn_away(greeting_.front().with,
              {errc::timed_out, fmt::format("no TLS handshake within {:g} s",
                                            static_cast<double>(options_.limits.hello_ns) * 1e-9)});
  dial_where_due();
  tick_due_ns_ = steady_ns() + tick_ns;
  connections_->after(tick_ns, [this] { tick(); });
}

void peer_book::end() {
  // What the user has taken and not worked on yet would stay so.
  rest();
  ending_ = true;
  connections_->stop_listening();
  std::vector<connection_ptr> open;
  for (const auto& each : everybody()) {
    const auto lock = hold(*each);
    if (each->link) each->link->leave("it stops");
    write_all(each);
    open.insert(open.end(), each->connections.begin(), each->connections.end());
  }
  see_off(std::move(open), steady_ns() + connections_->farewell_ns());
}

void peer_book::see_off(std::vector<connection_ptr> open, std::int64_t until_ns) {
  std::erase_if(open, [&](const connection_ptr& each) {
    const auto lock = hold(*each->owner);
    return each->see_off();
  });
  const auto left_ns = until_ns - steady_ns();
  if (open.empty() || left_ns <= 0) return end_now();
  connections_->await(open, left_ns, [this, open, until_ns] { see_off(open, until_ns); });
}

void peer_book::end_now() {
  for (const auto& each : everybody()) {
    const auto lock = hold(*each);
    for (const auto& with : each->connections) {
      with->closed = true;
      with->close();
    }
    each->connections.clear();
  }
  for (const auto& each : greeting_) each.with->close();
  greeting_.clear();
  connections_->halt();
}

}  // namespace ordermoe::net
