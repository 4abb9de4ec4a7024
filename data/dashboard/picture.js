// Servers in a ring; lines between those that send, thicker where more frames go, with a dot on its way.
const svg = "http://www.w3.org/2000/svg";
const radius = 22;
const around = 2 * Math.PI * radius;

function element(name, attributes, ...children) {
  const made = document.createElementNS(svg, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/// Drawn once for a set of servers and a width; what changes each second is changed in place, so that dots go on moving.
export class Picture {
  constructor(place) {
    this.place = place;
    this.last = null;
    this.drawn = "";
    new ResizeObserver(() => this.last && this.show(this.last.servers, this.last.change)).observe(place);
  }

  show(servers, change) {
    this.last = { servers, change };
    const width = Math.max(300, this.place.clientWidth);
    const shape = `${width} ${servers.map((each) => each.name).join(" ")}`;
    if (shape !== this.drawn) this.lay(servers, width);
    this.drawn = shape;
    servers.forEach((server, i) => this.tell(this.servers[i], server, change.servers[i]));
    const busy = new Set();
    for (const link of change.links) {
      const key = `${link.from}-${link.to}`;
      busy.add(key);
      if (this.places.has(link.from) && this.places.has(link.to)) this.flow(key, link);
    }
    for (const [key, line] of this.lines) line.group.setAttribute("class", busy.has(key) ? "" : "idle");
  }

  lay(servers, width) {
    const height = this.place.clientHeight || 300;
    this.places = new Map();
    this.lines = new Map();
    this.links = element("g", {});
    const reach = servers.length > 1 ? 1 : 0;
    this.servers = servers.map((server, i) => {
      const turn = (2 * Math.PI * i) / servers.length - Math.PI / 2;
      const x = width / 2 + reach * (width / 2 - radius - 34) * Math.cos(turn);
      const y = height / 2 - 8 + reach * (height / 2 - radius - 24) * Math.sin(turn);
      this.places.set(server.server ?? i, { x, y });
      return this.disc(server.name, x, y);
    });
    this.place.replaceChildren(
      element("svg", { viewBox: `0 0 ${width} ${height}` }, this.links, ...this.servers.map((each) => each.group)));
  }

  disc(name, x, y) {
    const ring = ["here", "elsewhere", "similar"].map((kind) =>
      element("circle", { cx: x, cy: y, r: radius, fill: "none", stroke: `var(--${kind})`, "stroke-width": 7 }));
    const count = element("text", { x, y: y + 5 });
    const label = element("text", { class: "small", x, y: y + radius + 17 });
    label.textContent = name;
    const title = element("title", {});
    const d = radius * 0.45;
    const cross = element("path", { class: "cross", d: `M${x - d} ${y - d}L${x + d} ${y + d}M${x + d} ${y - d}L${x - d} ${y + d}` });
    const group = element("g", {}, element("circle", { class: "disc", cx: x, cy: y, r: radius + 4 }), ...ring, count, cross, label, title);
    return { group, ring, count, label, title, x, y };
  }

  tell(disc, server, change) {
    const state = server.error ? "down" : server.drained ? "drained" : "";
    disc.group.setAttribute("class", state);
    disc.count.textContent = server.error ? "" : String(server.requests.length);
    const label = state ? `${server.name} · ${state}` : server.name;
    if (disc.label.textContent !== label) disc.label.textContent = label;
    disc.title.textContent = server.error ?? `${server.name}: requests of its users; around it, how experts were run`;
    let from = 0;
    ["here", "elsewhere", "similar"].forEach((kind, i) => {
      const share = change[kind] ?? 0;
      disc.ring[i].setAttribute("stroke-dasharray", `${share * around} ${around}`);
      disc.ring[i].setAttribute("transform", `rotate(${360 * from - 90} ${disc.x} ${disc.y})`);
      disc.ring[i].setAttribute("visibility", share > 0 ? "visible" : "hidden");
      from += share;
    });
  }

  /// Bent to one side, so that both directions are seen.
  line(link) {
    const from = this.places.get(link.from);
    const to = this.places.get(link.to);
    const bend = { x: (from.x + to.x) / 2 + (to.y - from.y) * 0.08, y: (from.y + to.y) / 2 - (to.x - from.x) * 0.08 };
    const path = `M${from.x} ${from.y}Q${bend.x} ${bend.y} ${to.x} ${to.y}`;
    const title = element("title", {});
    const drawn = element("path", { class: "link", d: path, fill: "none" }, title);
    const motion = element("animateMotion", { repeatCount: "indefinite", path, dur: "1.5s" });
    const dot = element("circle", { class: "dot" }, motion);
    const group = element("g", {}, drawn, dot);
    this.links.append(group);
    return { group, drawn, dot, motion, title, pace: 0 };
  }

  flow(key, link) {
    if (!this.lines.has(key)) this.lines.set(key, this.line(link));
    const line = this.lines.get(key);
    const strength = Math.log10(1 + link.frames);
    line.drawn.setAttribute("stroke-width", (0.5 + 0.8 * strength).toFixed(2));
    line.dot.setAttribute("r", (2 + strength * 0.6).toFixed(2));
    line.title.textContent = `${Math.round(link.frames)} frames, ${(link.bytes / 1e3).toFixed(1)} kB a second`;
    // Another duration begins the way anew, so it changes only where the traffic really does.
    const pace = Math.round(strength);
    if (pace === line.pace) return;
    line.pace = pace;
    line.motion.setAttribute("dur", `${Math.max(0.5, 1.6 - 0.35 * pace).toFixed(2)}s`);
  }
}
