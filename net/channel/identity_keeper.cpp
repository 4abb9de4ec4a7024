#include "net/channel/identity_keeper.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <system_error>
#include <utility>

#include "config/files.hpp"

namespace ordermoe::net {

namespace fs = std::filesystem;

result<void> check_can_honour(const revocation_list& list, revocation_use use,
                              std::string_view place) {
  if (use == revocation_use::honoured || list.revoked.empty()) return {};
  return error{
      errc::unsupported,
      fmt::format(
          "{}: revokes {} certificates (list {}), and with channel = \"caf\" nobody is told "
          "whose certificate a peer has, so that their holders would be let in all the "
          "same; set channel = \"asio\" in all node files, or make another authority and "
          "certificates with `ordermoe cert init` and `cert issue` and remove the list",
          place, list.revoked.size(), list.number)};
}

identity_keeper::identity_keeper(identity_ptr first, revocation_use use)
    : use_(use), now_(std::move(first)) {}

identity_keeper::identity_ptr identity_keeper::now() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

identity_keeper::stamps identity_keeper::stamps_now() const {
  const auto files = now()->files();
  stamps all;
  std::size_t i = 0;
  for (const auto* each : {&files.authority, &files.certificate, &files.key, &files.revocations}) {
    struct stat found {};
    auto& made = all[i++];
    if (each->empty() || ::stat(each->c_str(), &found) != 0) continue;
    made = {
        static_cast<std::int64_t>(found.st_ino), static_cast<std::int64_t>(found.st_size),
        static_cast<std::int64_t>(found.st_mtim.tv_sec) * 1'000'000'000 + found.st_mtim.tv_nsec};
  }
  return all;
}

result<std::optional<identity_keeper::change>> identity_keeper::look() {
  const std::lock_guard lock(changing_);
  const auto found = stamps_now();
  const bool same = found == seen_;
  if (unkept_) keep();
  if (same && (!failed_ || told_)) return std::optional<change>();
  seen_ = found;
  auto made = read(false);
  failed_ = !made;
  if (made) {
    told_ = false;
    return made;
  }
  // They may be about to be replaced one by one.
  told_ = same;
  if (!told_) return std::optional<change>();
  return made;
}

result<std::optional<identity_keeper::change>> identity_keeper::reload(bool try_only) {
  const std::lock_guard lock(changing_);
  if (!try_only) seen_ = stamps_now();
  auto made = read(try_only);
  if (!try_only) failed_ = told_ = !made;
  return made;
}

result<std::optional<identity_keeper::change>> identity_keeper::read(bool try_only) {
  change made{now(), nullptr};
  auto loaded = tls_identity::load(made.before->files(), made.before.get());
  if (!loaded) return loaded.error();
  made.next = std::move(*loaded);
  if (made.next->name() != made.before->name())
    return error{errc::mismatch, made.next->files().certificate.string() + ": is of " +
                                     uri_of(made.next->name()) + ", expected one of " +
                                     uri_of(made.before->name())};
  made.certificate = made.next->facts().fingerprint != made.before->facts().fingerprint;
  made.revocations = made.next->revocations().number != made.before->revocations().number;
  if (!made.certificate && !made.revocations) return std::optional<change>();
  if (made.revocations)
    if (auto can = check_can_honour(made.next->revocations(), use_,
                                    made.next->files().revocations.string());
        !can)
      return can.error();
  if (try_only) return std::optional(std::move(made));
  adopt(made);
  if (made.revocations) made.unkept = keep();
  return std::optional(std::move(made));
}

result<std::optional<identity_keeper::change>> identity_keeper::take_revocations(
    const std::string& pem, bool try_only) {
  const std::lock_guard lock(changing_);
  change made{now(), nullptr, false, true};
  const auto& files = made.before->files();
  auto list = parse_revocations(pem, files.authority, "the list of what is revoked");
  if (!list) return list.error();
  if (list->number <= made.before->revocations().number) return std::optional<change>();
  if (auto can = check_can_honour(*list, use_, "the list of what is revoked"); !can)
    return can.error();
  made.next = made.before->with(std::move(*list));
  if (try_only) return std::optional(std::move(made));
  adopt(made);
  made.unkept = keep();
  return std::optional(std::move(made));
}

std::optional<error> identity_keeper::keep() {
  const auto identity = now();
  const auto& place = identity->files().kept_revocations;
  if (place.empty()) return std::nullopt;
  std::error_code failed;
  if (place.has_parent_path()) fs::create_directories(place.parent_path(), failed);
  const auto written = write_file(place, identity->revocations().pem);
  unkept_ = !written;
  if (written) return std::nullopt;
  return written.error();
}

void identity_keeper::adopt(const change& made) {
  {
    const std::lock_guard lock(mutex_);
    now_ = made.next;
  }
  if (user_) user_(made.next);
}

}  // namespace ordermoe::net
