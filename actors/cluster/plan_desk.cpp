#include "actors/cluster/plan_desk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "config/files.hpp"

namespace ordermoe::actors {

std::string kept_papers::put(paper which, std::string text, std::optional<std::uint64_t> epoch) {
  auto digest = sha256_hex(text);
  const std::lock_guard lock(mutex_);
  kept_[static_cast<std::size_t>(which)] = {digest,
                                            std::make_shared<const std::string>(std::move(text))};
  if (epoch) epoch_ = *epoch;
  return digest;
}

std::string kept_papers::put_plan(std::string text, std::uint64_t epoch) {
  return put(paper::plan, std::move(text), std::max<std::uint64_t>(1, epoch));
}

plan_notice kept_papers::notice() const {
  plan_notice told;
  told.model = model_;
  told.cluster_file = cluster_file_;
  const std::lock_guard lock(mutex_);
  told.epoch = epoch_;
  for (std::size_t i = 0; i < n_papers; ++i)
    if (kept_[i].text) told.papers[i] = paper_facts{kept_[i].text->size(), kept_[i].sha256};
  return told;
}

std::shared_ptr<const std::string> kept_papers::find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < n_papers; ++i)
    if (kept_[i].text && paper_name(static_cast<paper>(i), kept_[i].sha256) == name)
      return kept_[i].text;
  return nullptr;
}

/// What one host asks for: while it goes on asking it gets the same text, whatever is in force meanwhile.
class plan_desk::offered final : public net::bulk_shelf {
 public:
  explicit offered(std::shared_ptr<const kept_papers> papers) : papers_(std::move(papers)) {}

  result<std::uint64_t> find(const std::string& name) override {
    if (name == name_) return text_->size();
    auto found = papers_->find(name);
    if (!found)
      return error{errc::not_found, "this node goes by another plan by now; ask which it is"};
    text_ = std::move(found);
    name_ = name;
    return text_->size();
  }
  result<std::string> read(const std::string& name, std::uint64_t offset,
                           std::size_t bytes) override {
    if (auto found = find(name); !found) return found.error();
    return text_->substr(offset, bytes);
  }

 private:
  std::shared_ptr<const kept_papers> papers_;
  std::string name_;
  std::shared_ptr<const std::string> text_;
};

struct plan_desk::host {
  explicit host(std::shared_ptr<const kept_papers> papers)
      : shelf(std::move(papers)), sender(shelf) {}
  offered shelf;
  net::bulk_sender sender;
};

plan_desk::plan_desk(std::shared_ptr<const kept_papers> papers, way send)
    : papers_(std::move(papers)), send_(std::move(send)) {}

plan_desk::~plan_desk() = default;

void plan_desk::came(net::peer_id host) {
  hosts_[host] = std::make_unique<plan_desk::host>(papers_);
}

void plan_desk::left(net::peer_id host) {
  hosts_.erase(host);
}

result<void> plan_desk::take(net::peer_id from, net::frame_header header,
                             std::string_view payload) {
  const auto kind = static_cast<control_kind>(header.kind);
  if (!papers_) return error{errc::unsupported, "this node cannot tell its plan"};
  if (kind == control_kind::plan_asked) {
    send_(from, control_kind::plan_told, 0, 0, notice_text(papers_->notice()));
    return {};
  }
  if (kind != control_kind::paper_asked)
    return error{errc::malformed,
                 fmt::format("a message of kind {}, expected plan_asked or paper_asked of a node "
                             "that joins",
                             static_cast<int>(header.kind))};
  auto& sender = hosts_.at(from)->sender;
  header.kind = static_cast<std::uint8_t>(net::bulk_kind::ask);
  if (auto taken = sender.take(header, payload); !taken) return taken;
  for (std::size_t i = 0; i < papers_window; ++i) {
    auto next = sender.next();
    if (!next) break;
    const bool is_part = next->kind == net::bulk_kind::part;
    send_(from, is_part ? control_kind::paper_part : control_kind::paper_refused, next->request,
          next->attempt, std::move(next->payload));
  }
  sender.forget();
  return {};
}

}  // namespace ordermoe::actors
