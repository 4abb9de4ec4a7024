#include "actors/caf_channel/caf_connection.hpp"

#include <caf/all.hpp>
#include <chrono>
#include <exception>
#include <utility>

namespace ordermoe::actors {

namespace {

constexpr std::size_t most_at_once = 64 * 1024;  ///< Bytes of a message.
/// That an actor waits for the other end to close, too.
constexpr std::chrono::seconds farewell(2);

std::uint64_t window_of(net::stream which) {
  return which == net::stream::fast ? caf_connection::fast_window_bytes
                                    : caf_connection::bulk_window_bytes;
}

}  // namespace

void caf_connection::meet(net::certificate_name who, caf::actor other) {
  peer_ = std::move(who);
  other_ = std::move(other);
  established_ = true;
}

result<void> caf_connection::take(std::string_view wire, std::string& plain) {
  plain += wire;
  return {};
}

result<void> caf_connection::put(std::string_view plain) {
  for (; !plain.empty(); plain.remove_prefix(std::min(most_at_once, plain.size())))
    out_.emplace_back(plain.substr(0, most_at_once));
  return {};
}

bool caf_connection::has_window() const {
  return sent_bytes_ - taken_bytes_ < window_of(which_);
}

bool caf_connection::write() {
  if (!other_) return out_.empty();
  while (!out_.empty()) {
    // Last words wait for nobody.
    if (!ends_ && !has_window()) {
      awaits_room_ = true;
      // It may have come in between.
      if (!has_window() || !awaits_room_.exchange(false)) return false;
    }
    auto bytes = std::move(out_.front());
    out_.pop_front();
    sent_bytes_ += bytes.size();
    written_bytes += bytes.size();
    caf::anon_send(other_, caf_bytes{key_, std::move(bytes)});
  }
  if (ends_) say_end();
  return true;
}

void caf_connection::say_end() {
  if (other_ && !std::exchange(end_said_, true)) caf::anon_send(other_, caf_end{key_});
}

void caf_connection::close() {
  say_end();
  // Handles of actors must not outlive their system.
  other_ = nullptr;
  if (auto self = std::exchange(self_, nullptr)) caf::anon_send(self, caf::close_atom_v);
}

bool caf_connection::see_off() {
  ends_ = true;
  return (write() && lost_) || !other_;
}

void caf_connection::took(caf::event_based_actor* speaker, const std::string& bytes) {
  if (closed) return;
  // It may be closed meanwhile.
  const auto other = other_;
  user_.came(shared_from_this(), bytes, speaker->mailbox().empty());
  came_bytes_ += bytes.size();
  if (came_bytes_ - told_bytes_ < window_of(which_) / 4) return;
  told_bytes_ = came_bytes_;
  if (other) caf::anon_send(other, caf_taken{key_, came_bytes_});
}

void caf_connection::was_taken(std::uint64_t bytes) {
  if (bytes > sent_bytes_ || bytes < taken_bytes_)
    return lost("it says that more has come than was sent");
  taken_bytes_ = bytes;
  if (awaits_room_.exchange(false)) user_.has_room(shared_from_this());
}

void caf_connection::lost(std::string_view why) {
  if (std::exchange(lost_, true) || closed) return;
  user_.was_closed(shared_from_this(), why);
}

// ------------------------------------------------------------------------------------------- the actor

namespace {

struct speaker_state {
  caf_connection_ptr with;
  bool closed = false;  ///< By this end.
};

void end_if_over(caf::event_based_actor* self, const std::shared_ptr<speaker_state>& state) {
  if (state->closed && state->with->is_lost()) self->quit();
}

constexpr const char* broke = "the connection broke";

void watch(caf::event_based_actor* self, const std::shared_ptr<speaker_state>& state,
           const caf::actor& other) {
  self->monitor(other);
  self->set_down_handler([self, state, source = other.address()](const caf::down_msg& gone) {
    if (gone.source != source) return;
    state->with->lost(broke);
    end_if_over(self, state);
  });
}

caf::behavior speaking(caf::event_based_actor* self, const std::shared_ptr<speaker_state>& state) {
  return {
      [self, state](const caf_bytes& from_there) {
        if (from_there.key == state->with->key() && !state->closed)
          state->with->took(self, from_there.bytes);
      },
      [state](const caf_taken& from_there) {
        if (from_there.key == state->with->key() && !state->closed)
          state->with->was_taken(from_there.bytes);
      },
      [self, state](const caf_end& from_there) {
        if (from_there.key != state->with->key()) return;
        state->with->lost("closed by the peer");
        end_if_over(self, state);
      },
      [self, state](caf::close_atom) {
        state->closed = true;
        self->delayed_send(self, farewell, caf::delete_atom_v);
        end_if_over(self, state);
      },
      [self](caf::delete_atom) { self->quit(); },
  };
}

/// Until the other end has answered.
caf::behavior greeting(caf::event_based_actor* self, const std::shared_ptr<speaker_state>& state,
                       const std::shared_ptr<caf_dial_outcome>& dialled) {
  self->monitor(dialled->listener);
  self->set_down_handler([self, dialled](const caf::down_msg&) {
    dialled->failed({errc::io, broke});
    self->quit();
  });
  return {
      [self, state, dialled](const caf_welcome& answer) {
        if (answer.key != state->with->key() || !answer.from) return;
        self->demonitor(dialled->listener);
        watch(self, state, answer.from);
        self->become(speaking(self, state));
        dialled->welcomed(answer);
      },
      [self, state, dialled](const caf_refusal& answer) {
        if (answer.key != state->with->key()) return;
        dialled->failed({errc::mismatch, "it refuses: " + answer.why});
        self->quit();
      },
      [self](caf::close_atom) { self->quit(); },
  };
}

}  // namespace

namespace {

std::shared_ptr<speaker_state> begin(caf::event_based_actor* self, caf_connection_ptr with) {
  // What is thrown ends the program, as on any other thread; CAF calls this within its catch, so that std::terminate says what it was.
  self->set_exception_handler([](std::exception_ptr&) -> caf::error { std::terminate(); });
  self->set_default_handler(caf::drop);
  return std::make_shared<speaker_state>(speaker_state{std::move(with)});
}

}  // namespace

caf::behavior caf_speaker(caf::event_based_actor* self, caf_connection_ptr with, caf::actor other) {
  const auto state = begin(self, std::move(with));
  watch(self, state, other);
  return speaking(self, state);
}

caf::behavior caf_dialling_speaker(caf::event_based_actor* self, caf_connection_ptr with,
                                   std::shared_ptr<caf_dial_outcome> dialled) {
  return greeting(self, begin(self, std::move(with)), dialled);
}

}  // namespace ordermoe::actors
