// What happened between two looks at the cluster. Counters only grow; one that is smaller belongs to a server that began anew.

const kinds = ["local_exact", "local_substitute", "remote_exact", "remote_substitute"];

/// Shares of expert slots by how they were run; null where none were.
export function shares(counts) {
  const total = kinds.reduce((sum, kind) => sum + (counts[kind] ?? 0), 0);
  if (!total) return { here: null, elsewhere: null, similar: null, total };
  return {
    here: (counts.local_exact ?? 0) / total,
    elsewhere: (counts.remote_exact ?? 0) / total,
    similar: ((counts.local_substitute ?? 0) + (counts.remote_substitute ?? 0)) / total,
    total,
  };
}

/// A server says its counts in the order of `kinds`, or by name.
function executionsOf(server) {
  const told = server.executions ?? [];
  return Array.isArray(told) ? Object.fromEntries(kinds.map((kind, i) => [kind, told[i] ?? 0])) : told;
}

const grown = (now, then) => (then === undefined || now < then ? now : now - then);

export function differences(before, now) {
  const seconds = before ? Math.max(now.time - before.time, 1e-3) : Infinity;
  const known = new Map((before?.status.servers ?? []).map((each) => [each.name, each]));
  const servers = [];
  const links = [];
  for (const server of now.status.servers) {
    const then = known.get(server.name);
    const counts = executionsOf(server);
    const earlier = then ? executionsOf(then) : {};
    const since = Object.fromEntries(kinds.map((kind) => [kind, then ? grown(counts[kind], earlier[kind]) : counts[kind]]));
    let frames = 0;
    for (const link of server.links ?? []) {
      const last = (then?.links ?? []).find((each) => each.to === link.to);
      const sent = grown(link.frames, last?.frames) / seconds;
      const bytes = grown(link.serialised_bytes, last?.serialised_bytes) / seconds;
      frames += sent;
      if (sent > 0) links.push({ from: server.server, to: link.to, frames: sent, bytes });
    }
    // Where nothing ran since, what ran so far.
    const recent = shares(since);
    servers.push({ ...(recent.total ? recent : shares(counts)), working: recent.total > 0, frames });
  }
  const tokens = before ? grown(now.status.generation_tokens, before.status.generation_tokens) / seconds : 0;
  return { servers, links, tokens };
}
