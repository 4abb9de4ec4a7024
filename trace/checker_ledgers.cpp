#include <algorithm>

#include "trace/checker.hpp"

namespace ordermoe::trace {

bool verifier::read_batch(std::string_view text, batch_record& b) {
  line_fields fields(text);
  b.server = fields.integer<std::uint32_t>("server", 0, n() - 1);
  b.work = fields.word("work");
  b.layer = fields.integer<std::uint32_t>("layer", 0, n_layers() - 1);
  b.expert = fields.integer<std::uint32_t>("expert", 0, n_experts() - 1);
  b.rows = fields.integer<std::int64_t>("rows", 1, most_tokens);
  b.flops = fields.amount("flops");
  b.bytes = fields.amount("bytes");
  b.start_ns = fields.amount("start_ns");
  b.end_ns = fields.amount("end_ns");
  return fields.end() || malformed(fields);
}

bool verifier::on_batch(std::string_view text) {
  batch_record b;
  if (!read_batch(text, b)) return false;
  auto& server = servers_[b.server];
  if (b.start_ns < server.batch_end_ns)
    return refuse("start_ns: found {}, expected at least {}, when server {} was free", b.start_ns,
                  server.batch_end_ns, b.server);
  if (b.end_ns < b.start_ns)
    return refuse("end_ns: found {}, expected at least {}", b.end_ns, b.start_ns);
  const auto busy = b.end_ns - b.start_ns;
  const bool offloaded = b.work == "expert" && !offloaded_.empty() &&
                         offloaded_[b.server][b.layer * n_experts() + b.expert] != 0;
  if (emulated() && !same("end_ns - start_ns", busy,
                          (offloaded ? offloaded_ns : compute_ns)(header_.servers.servers[b.server],
                                                                  b.flops, b.bytes)))
    return false;
  if (!in_order(b.end_ns, server.batch_end_ns) || !count_work(b)) return false;
  auto& ledger = server.ledger;
  ++ledger.batches;
  ledger.rows += b.rows;
  ledger.flops += b.flops;
  ledger.bytes_read += b.bytes;
  ledger.busy_ns += busy;
  ++summary.batches;
  summary.compute_busy_ns += busy;
  return true;
}

bool verifier::count_work(const batch_record& b) {
  if (b.work == "attend") return count_attention(b);
  if (b.work == "expert") return count_expert(b);
  if (b.work == "head") return count_head(b);
  return refuse("work: found {}, expected attend, expert or head", b.work);
}

bool verifier::count_attention(const batch_record& b) {
  if (!same("expert", b.expert, 0u) || (emulated() && !close_batch(b.server))) return false;
  auto& server = servers_[b.server];
  auto& total = server.attend_found[b.layer];
  total.rows += b.rows;
  total.flops += b.flops;
  total.bytes += b.bytes;
  ++total.batches;
  const auto of_rows = b.bytes - header_.costs.attention_bytes;
  server.attention = {number_, b.layer, b.end_ns, {b.rows, b.flops, of_rows, 0}, 0};
  return true;
}

bool verifier::count_expert(const batch_record& b) {
  auto& server = servers_[b.server];
  const auto& costs = header_.costs;
  if (!same("flops", b.flops, product_of(b.rows, costs.expert_flops)) ||
      !same("bytes", b.bytes, expert_bytes(header_.servers.servers[b.server], costs)))
    return false;
  const auto index = b.layer * n_experts() + b.expert;
  server.expert_found[index] += b.rows;
  if (strict_ && server.expert_found[index] > server.expert_expected[index])
    return refuse(
        "rows: found {} run so far by expert {} of layer {} on server {}, expected at "
        "most the {} decided",
        server.expert_found[index], b.expert, b.layer, b.server, server.expert_expected[index]);
  return true;
}

bool verifier::count_head(const batch_record& b) {
  const auto& costs = header_.costs;
  if (!same("layer", b.layer, 0u) || !same("expert", b.expert, 0u) ||
      !same("flops", b.flops, product_of(b.rows, costs.head_flops)) ||
      !same("bytes", b.bytes, costs.head_bytes))
    return false;
  servers_[b.server].head_found += b.rows;
  servers_[b.server].head_end_ns = b.end_ns;
  return true;
}

bool verifier::on_kv(std::string_view text) {
  line_fields fields(text);
  const auto id = fields.integer<std::uint32_t>("server", 0, n() - 1);
  const auto number = fields.integer<std::uint64_t>("request");
  const auto change = fields.integer<std::int64_t>("change_bytes");
  const auto reserved = fields.amount("reserved_bytes");
  const auto time = fields.amount("time_ns");
  if (!fields.end()) return malformed(fields);
  auto& server = servers_[id];
  if (!in_order(time, server.kv_ns) || !has_cause(id, time) || !change_memory(number, id, change))
    return false;
  server.kv_reserved += change;
  if (!same("reserved_bytes", reserved, server.kv_reserved)) return false;
  const auto limit = header_.servers.servers[id].kv_bytes;
  if (reserved > limit)
    return refuse("reserved_bytes: found {}, expected at most {}, what server {} keeps for KV rows",
                  reserved, limit, id);
  server.ledger.kv_peak_bytes = std::max(server.ledger.kv_peak_bytes, reserved);
  ++summary.kv_changes;
  return true;
}

bool verifier::change_memory(std::uint64_t number, std::uint32_t id, std::int64_t change) {
  const auto held = held_.find({number, id});
  if (change <= 0) {
    if (held == held_.end())
      return refuse("found memory of request {} given back, expected it reserved first", number);
    if (!same("change_bytes", change, -held->second)) return false;
    held_.erase(held);
    return true;
  }
  if (held != held_.end())
    return refuse("found memory for request {} a second time, expected it given back first",
                  number);
  // Its last messages may still be on their way.
  if (given_up_.contains(number)) {
    held_[{number, id}] = change;
    return true;
  }
  const auto* request = find_request(number);
  if (request == nullptr) return false;
  if (!same("change_bytes", change, request->kv_need[id])) return false;
  held_[{number, id}] = change;
  if (request->terms.access != id) ++grants_[request->terms.access * n() + id];
  return true;
}

bool verifier::read_kind(std::string_view name, frame_kind& kind) {
  std::size_t found = 0;
  while (found < n_frame_kinds && name != to_string(static_cast<frame_kind>(found))) ++found;
  kind = static_cast<frame_kind>(found);
  return found < n_frame_kinds ||
         refuse(
             "frame: found {}, expected token, call, output, kv, progress, reservation, "
             "load, failure or links",
             name);
}

bool verifier::read_transfer(std::string_view text, transfer_record& t) {
  line_fields fields(text);
  t.from = fields.integer<std::uint32_t>("from", 0, n() - 1);
  t.to = fields.integer<std::uint32_t>("to", 0, n() - 1);
  const auto name = fields.word("frame");
  t.hidden = fields.amount("hidden_bytes");
  t.kv = fields.amount("kv_bytes");
  t.other = fields.amount("other_bytes");
  if (fields.has("uncharged_bytes")) t.uncharged = fields.amount("uncharged_bytes");
  t.serialised = fields.amount("serialised_bytes");
  t.sent_ns = fields.amount("sent_ns");
  t.start_ns = fields.amount("start_ns");
  t.end_ns = fields.amount("end_ns");
  t.arrival_ns = fields.amount("arrival_ns");
  if (!fields.end()) return malformed(fields);
  if (t.from == t.to) return refuse("to: found {}, expected another server", t.to);
  return read_kind(name, t.kind);
}

/// Nothing that is written causes a server to measure its links.
bool verifier::has_reason(const transfer_record& t, const link_state& path) {
  if (t.kind == frame_kind::links) return true;
  return is_in_parts(t) ? may_send_part(t, path) : has_cause(t.from, t.sent_ns);
}

/// With what caused its frame, or when it is due.
bool verifier::may_send_part(const transfer_record& t, const link_state& path) {
  if (t.sent_ns < path.next_part_ns)
    return refuse("sent_ns: found {} of a part, expected at least {}, when it was due", t.sent_ns,
                  path.next_part_ns);
  return t.sent_ns == path.next_part_ns || has_cause(t.from, t.sent_ns);
}

/// When what enters a link begins there; takes the uplinks on its way.
std::int64_t verifier::start_of(const transfer_record& t, const link_state& path,
                                std::int64_t bytes) {
  const auto free = std::max(t.sent_ns, path.free_ns);
  return uplinks_ ? uplinks_->take(server_id{t.from}, server_id{t.to}, bytes, free, t.sent_ns)
                  : free;
}

bool verifier::is_in_parts(const transfer_record& t) const {
  return emulated() && goes_in_parts(header_.servers.link(server_id{t.from}, server_id{t.to}),
                                     t.kind, t.hidden + t.kv + t.other);
}

/// Of a frame whose own line comes with its last part.
bool verifier::on_part(std::string_view text) {
  line_fields fields(text);
  transfer_record t;
  t.from = fields.integer<std::uint32_t>("from", 0, n() - 1);
  t.to = fields.integer<std::uint32_t>("to", 0, n() - 1);
  const auto bytes = fields.amount("bytes");
  t.sent_ns = fields.amount("sent_ns");
  t.start_ns = fields.amount("start_ns");
  t.end_ns = fields.amount("end_ns");
  if (!fields.end()) return malformed(fields);
  if (!emulated() || t.from == t.to)
    return refuse("found a part of a frame from server {} to {}, expected none", t.from, t.to);
  auto& path = link(t.from, t.to);
  const auto& spec = header_.servers.link(server_id{t.from}, server_id{t.to});
  if (!may_send_part(t, path) || !in_order(t.sent_ns, path.sent_ns) ||
      !same("bytes", bytes, part_rule{}.part_bytes) ||
      !same("start_ns", t.start_ns, start_of(t, path, bytes)) ||
      !same("end_ns", t.end_ns, t.start_ns + part_ns(spec, bytes)))
    return false;
  path.free_ns = t.end_ns;
  path.part_bytes += bytes;
  path.next_part_ns = next_part_ns(spec, bytes, t.sent_ns, t.end_ns);
  path.ledger.total.busy_ns += t.end_ns - t.start_ns;
  return true;
}

bool verifier::on_transfer(std::string_view text) {
  transfer_record t;
  if (!read_transfer(text, t)) return false;
  auto& path = link(t.from, t.to);
  if (!has_reason(t, path) || !in_order(t.sent_ns, path.sent_ns) || !check_times(t, path) ||
      !check_sizes(t))
    return false;
  path.free_ns = t.end_ns;
  auto& found = path.found[index_of(t.kind)];
  ++found.frames;
  found.rows += t.hidden / header_.costs.hidden_bytes + t.kv / header_.costs.kv_row_bytes;
  found.other_bytes += t.other;
  found.uncharged_bytes += t.uncharged;
  path.ledger.total += {1, t.hidden, t.kv, t.other, t.serialised, t.end_ns - t.start_ns};
  if (!emulated()) {
    if (t.kind == frame_kind::load) note_late(path, t.sent_ns);
    return true;
  }
  auto& receiver = servers_[t.to];
  receiver.arrivals.insert(t.arrival_ns);
  if (t.kind == frame_kind::load) receiver.load_arrivals.insert(t.arrival_ns);
  if (t.kind == frame_kind::progress) {
    auto [place, added] =
        progress_.try_emplace({t.from, t.to, t.sent_ns}, t.arrival_ns, t.arrival_ns);
    if (!added) place->second.second = t.arrival_ns;
  }
  return true;
}

void verifier::note_late(link_state& path, std::int64_t sent_ns) {
  path.late.push_back(sent_ns);
  while (path.late.front() < sent_ns - longest_silence_ns) path.late.pop_front();
}

bool verifier::on_lost(std::string_view text) {
  line_fields fields(text);
  const auto from = fields.integer<std::uint32_t>("from", 0, n() - 1);
  const auto to = fields.integer<std::uint32_t>("to", 0, n() - 1);
  const auto name = fields.word("frame");
  const auto time = fields.amount("time_ns");
  if (!fields.end()) return malformed(fields);
  auto kind = frame_kind::token;
  if (!read_kind(name, kind)) return false;
  if (emulated()) return refuse("found a frame that was lost, expected none where links lose none");
  auto& path = link(from, to);
  if (!in_order(time, path.sent_ns)) return false;
  if (kind != frame_kind::load) return true;
  // The end of the session may be written before what it took.
  if (path.late.empty() && path.may_be_lost > 0) {
    --path.may_be_lost;
    ++path.lost;
    return true;
  }
  if (path.late.empty() || path.found[index_of(kind)].frames == path.lost)
    return refuse("found a load frame from server {} to {} lost, expected its transfer before",
                  from, to);
  ++path.lost;
  path.late.pop_back();
  return true;
}

/// What was sent before the silence after which a session is over came, or never will.
bool verifier::on_parted(std::string_view text) {
  line_fields fields(text);
  const auto server = fields.integer<std::uint32_t>("server", 0, n() - 1);
  const auto peer = fields.integer<std::uint32_t>("peer", 0, n() - 1);
  const auto time = fields.amount("time_ns");
  if (!fields.end()) return malformed(fields);
  if (emulated() || server == peer)
    return refuse("found the end of a session of server {} with {}, expected none", server, peer);
  for (auto* path : {&link(server, peer), &link(peer, server)}) {
    path->may_be_lost += std::ranges::count_if(
        path->late, [&](std::int64_t sent) { return sent >= time - longest_silence_ns; });
    path->late.clear();
  }
  return true;
}

bool verifier::check_times(const transfer_record& t, link_state& path) {
  if (!emulated())
    return same("start_ns", t.start_ns, t.sent_ns) && same("end_ns", t.end_ns, t.sent_ns) &&
           same("arrival_ns", t.arrival_ns, t.sent_ns);
  const auto& spec = header_.servers.link(server_id{t.from}, server_id{t.to});
  auto bytes = t.hidden + t.kv + t.other;
  if (is_in_parts(t)) {
    const auto whole = bytes, most = std::int64_t{part_rule{}.part_bytes};
    bytes -= std::exchange(path.part_bytes, 0);
    if (bytes <= 0 || bytes > most)
      return refuse("found {} bytes of a frame of {} in parts before, expected {}", whole - bytes,
                    whole, (whole - 1) / most * most);
    path.next_part_ns = next_part_ns(spec, bytes, t.sent_ns, t.end_ns);
  }
  return same("start_ns", t.start_ns, start_of(t, path, bytes)) &&
         same("end_ns", t.end_ns, t.start_ns + transfer_ns(spec, bytes)) &&
         same("arrival_ns", t.arrival_ns, t.end_ns + spec.latency_ns);
}

bool verifier::check_sizes(const transfer_record& t) {
  const auto& costs = header_.costs;
  const auto kind = t.kind;
  const auto hidden = t.hidden, kv = t.kv, other = t.other, serialised = t.serialised;
  const bool carries_kv = kind == frame_kind::kv;
  const bool carries_hidden =
      kind == frame_kind::token || kind == frame_kind::call || kind == frame_kind::output;
  if (hidden % costs.hidden_bytes != 0 || (hidden > 0 && !carries_hidden) ||
      (hidden == 0 && (kind == frame_kind::call || kind == frame_kind::output)))
    return refuse("hidden_bytes: found {} in a {} frame, expected {}", hidden, to_string(kind),
                  carries_hidden ? fmt::format("a multiple of {}", costs.hidden_bytes) : "0");
  if (kv % costs.kv_row_bytes != 0 || (kv > 0) != carries_kv)
    return refuse("kv_bytes: found {} in a {} frame, expected {}", kv, to_string(kind),
                  carries_kv ? fmt::format("a multiple of {}", costs.kv_row_bytes) : "0");
  const auto rows = carries_kv ? kv / costs.kv_row_bytes : hidden / costs.hidden_bytes;
  auto& width = carries_kv ? kv_width_ : hidden_width_;
  if (t.uncharged > 0 && !(header_.tells_choices && kind == frame_kind::token && rows == 1))
    return refuse("uncharged_bytes: found {} in a {} frame of {} rows, expected none", t.uncharged,
                  to_string(kind), rows);
  const auto values = serialised - other - t.uncharged;
  if (width == 0 && rows > 0 && values > 0 && values % rows == 0) width = values / rows;
  const bool keeps_hidden = kind == frame_kind::progress && values % sizeof(float) == 0;
  if (!keeps_hidden &&
      !same("serialised_bytes - other_bytes - uncharged_bytes", values, rows * width))
    return false;
  if (rows > 0 && values <= 0)
    return refuse("serialised_bytes: found no bytes of {} rows, expected some", rows);
  if (kind == frame_kind::reservation) return same("other_bytes", other, reservation_bytes_);
  if (kind == frame_kind::load) return same("other_bytes", other, load_bytes_);
  if (kind == frame_kind::links) return same("other_bytes", other, links_bytes_);
  return true;
}

bool verifier::on_answered(std::string_view text) {
  line_fields fields(text);
  const auto requests = fields.integer<std::uint64_t>("requests");
  if (!fields.end()) return malformed(fields);
  if (closing_) return refuse("found the number of requests a second time, expected it once");
  // Requests that were refused when they arrived have no lines.
  if (requests < summary.requests)
    return refuse("requests: found {}, expected {} at least", requests, summary.requests);
  if (!settle()) return false;
  closing_ = true;
  return true;
}

bool verifier::on_link_ledger(std::string_view text) {
  line_fields fields(text);
  const auto from = fields.integer<std::uint32_t>("from", 0, n() - 1);
  const auto to = fields.integer<std::uint32_t>("to", 0, n() - 1);
  traffic t;
  t.messages = fields.amount("messages");
  t.hidden_bytes = fields.amount("hidden_bytes");
  t.kv_bytes = fields.amount("kv_bytes");
  t.other_bytes = fields.amount("other_bytes");
  t.serialised_bytes = fields.amount("serialised_bytes");
  t.busy_ns = fields.amount("busy_ns");
  if (!fields.end()) return malformed(fields);
  if (!closing_) return refuse("found a ledger, expected the number of requests first");
  if (ledgers_ >= n() * (n() - 1)) return refuse("found a link's ledger, expected a server's");
  const auto expected_from = ledgers_ / (n() - 1);
  const auto skip = ledgers_ % (n() - 1);
  if (!same("from", from, expected_from) || !same("to", to, skip + (skip >= from ? 1 : 0)))
    return false;
  ++ledgers_;
  const auto& total = link(from, to).ledger.total;
  summary.charged += total;
  return same("messages", t.messages, total.messages) &&
         same("hidden_bytes", t.hidden_bytes, total.hidden_bytes) &&
         same("kv_bytes", t.kv_bytes, total.kv_bytes) &&
         same("other_bytes", t.other_bytes, total.other_bytes) &&
         same("serialised_bytes", t.serialised_bytes, total.serialised_bytes) &&
         same("busy_ns", t.busy_ns, total.busy_ns);
}

bool verifier::on_server_ledger(std::string_view text) {
  line_fields fields(text);
  const auto id = fields.integer<std::uint32_t>("server", 0, n() - 1);
  server_ledger found;
  found.batches = fields.amount("batches");
  found.rows = fields.amount("rows");
  found.flops = fields.amount("flops");
  found.bytes_read = fields.amount("bytes");
  found.busy_ns = fields.amount("busy_ns");
  found.kv_peak_bytes = fields.amount("kv_peak_bytes");
  if (!fields.end()) return malformed(fields);
  if (!closing_) return refuse("found a ledger, expected the number of requests first");
  if (ledgers_ < n() * (n() - 1))
    return refuse("found a server's ledger, expected the {} of links first", n() * (n() - 1));
  if (!same("server", id, ledgers_ - n() * (n() - 1))) return false;
  ++ledgers_;
  const auto& total = servers_[id].ledger;
  return same("batches", found.batches, total.batches) && same("rows", found.rows, total.rows) &&
         same("flops", found.flops, total.flops) &&
         same("bytes", found.bytes_read, total.bytes_read) &&
         same("busy_ns", found.busy_ns, total.busy_ns) &&
         same("kv_peak_bytes", found.kv_peak_bytes, total.kv_peak_bytes);
}

bool verifier::settle() {
  if (!requests_.empty())
    return refuse("found the ledgers, expected request {} to be done first",
                  requests_.begin()->first);
  if (!held_.empty())
    return refuse("found the ledgers, expected server {} to have the memory of request {} back",
                  held_.begin()->first.second, held_.begin()->first.first);
  if (!strict_) return true;
  for (std::uint32_t id = 0; id < n(); ++id)
    if (!settle_server(id)) return false;
  for (std::uint32_t from = 0; from < n(); ++from)
    for (std::uint32_t to = 0; to < n(); ++to)
      if (from != to && !settle_link(from, to)) return false;
  return settle_reservations() && settle_load();
}

bool verifier::settle_server(std::uint32_t id) {
  auto& server = servers_[id];
  if (emulated() && !close_batch(id)) return false;
  if (server.snapshot == 0) return refuse("found no snapshot of server {}, expected one", id);
  const auto& costs = header_.costs;
  for (std::uint32_t layer = 0; layer < n_layers(); ++layer) {
    const auto where = fmt::format("attention of layer {} on server {}", layer, id);
    const auto& found = server.attend_found[layer];
    const auto& decided = server.attend_expected[layer];
    if (!same(where + ", rows of batches against those decided", found.rows, decided.rows) ||
        !same(where + ", FLOPs", found.flops, decided.flops) ||
        !same(where + ", bytes", found.bytes,
              decided.bytes + found.batches * costs.attention_bytes))
      return false;
    for (std::uint32_t expert = 0; expert < n_experts(); ++expert) {
      const auto index = layer * n_experts() + expert;
      if (!same(fmt::format("expert {} of layer {} on server {}, rows of batches against those "
                            "decided",
                            expert, layer, id),
                server.expert_found[index], server.expert_expected[index]))
        return false;
    }
  }
  return same(fmt::format("head of server {}, rows of batches against those needed", id),
              server.head_found, server.head_expected);
}

bool verifier::settle_link(std::uint32_t from, std::uint32_t to) {
  auto& path = link(from, to);
  for (const auto kind : {frame_kind::token, frame_kind::call, frame_kind::output, frame_kind::kv,
                          frame_kind::progress}) {
    const auto& found = path.found[index_of(kind)];
    auto implied = path.expected[index_of(kind)];
    if (kind == frame_kind::kv) {
      // On the wall clock a decision does not tell which batch attended its rows.
      if (!emulated()) implied.frames = found.frames;
      implied.other_bytes = implied.frames * kv_frame_bytes_ + path.kv_blocks * kv_block_bytes_;
    }
    const auto where = fmt::format("{} frames from server {} to {}", to_string(kind), from, to);
    if (!same(where + ", against those that the decisions imply", found.frames, implied.frames) ||
        !same(where + ", rows", found.rows, implied.rows) ||
        !same(where + ", other bytes", found.other_bytes, implied.other_bytes) ||
        !same(where + ", uncharged bytes", found.uncharged_bytes, implied.uncharged_bytes))
      return false;
  }
  return true;
}

bool verifier::settle_reservations() {
  const auto count = [&](std::uint32_t from, std::uint32_t to) {
    return link(from, to).found[index_of(frame_kind::reservation)].frames;
  };
  for (std::uint32_t a = 0; a < n(); ++a)
    for (std::uint32_t b = a + 1; b < n(); ++b) {
      const auto there = grants_[a * n() + b], back = grants_[b * n() + a];
      if (!same(fmt::format("reservation frames from server {} to {} less those back", a, b),
                count(a, b) - count(b, a), there - back))
        return false;
      const auto least = members_[a * n() + b] + members_[b * n() + a] + back;
      if (count(b, a) < least)
        return refuse("found {} reservation frames from server {} to {}, expected at least {}",
                      count(b, a), b, a, least);
    }
  return true;
}

bool verifier::settle_load() {
  if (n() == 1) return true;
  const auto count = [&](std::uint32_t from, std::uint32_t to) {
    return link(from, to).found[index_of(frame_kind::load)].frames;
  };
  for (std::uint32_t to = 0; to < n(); ++to) {
    if (!servers_[to].load_arrivals.empty())
      return refuse(
          "found no snapshot of server {} at {} ns, expected one that takes in the load "
          "report that arrived then",
          to, *servers_[to].load_arrivals.begin());
    const auto& taken = servers_[to].reports;
    if (!same(fmt::format("snapshots of server {} by its own load reports", to), taken[to],
              count(to, to == 0 ? 1 : 0)))
      return false;
    for (std::uint32_t from = 0; from < n(); ++from)
      if (from != to && !settle_reports(from, to, taken[from])) return false;
  }
  return true;
}

bool verifier::settle_reports(std::uint32_t from, std::uint32_t to, std::int64_t taken) {
  const auto count = [&](std::uint32_t other) {
    return link(from, other).found[index_of(frame_kind::load)].frames;
  };
  if (!same(fmt::format("load frames from server {} to {}", from, to), count(to),
            count(from == 0 ? 1 : 0)))
    return false;
  const auto& path = link(from, to);
  const auto most = count(to) - path.lost;
  if (taken <= most && taken >= most - path.may_be_lost) return true;
  return refuse("snapshots of server {} by load reports of server {}: found {}, expected {}{}", to,
                from, taken, most,
                path.may_be_lost == 0 ? "" : fmt::format(" or up to {} fewer", path.may_be_lost));
}

}  // namespace ordermoe::trace
