// The page: asks the gateway how things are each second, and chats with it.
import { Picture } from "./picture.js";
import { Chat } from "./chat.js";
import { api, onKeyWanted, useKey } from "./api.js";
import { differences } from "./figures.js";
import { Operate } from "./operate.js";
import { cell, make, percent, put } from "./words.js";

const at = (id) => document.getElementById(id);
const operate = new Operate();
const picture = new Picture(at("picture"));
let before = null;

function say(text) {
  put(at("notice"), { textContent: text, hidden: !text });
}

function stateOf(server) {
  if (server.error) return "down";
  if (server.drained) return "drained";
  return server.admitting ? "serves" : "holds requests";
}

const columns = ["Requests", "Queue", "KV memory", "Here", "Elsewhere", "Similar", "Frames/s"];

function row(server, change) {
  const texts = server.error
    ? columns.map(() => "–")
    : [
        server.requests.length,
        `${(server.wait_ns / 1e6).toFixed(1)} ms`,
        `${(server.reserved_bytes / 1e6).toFixed(1)} MB`,
        percent(change.here),
        percent(change.elsewhere),
        percent(change.similar),
        Math.round(change.frames),
      ];
  const line = document.createElement("tr");
  line.setAttribute("role", "row");
  const state = cell("td", "", "State");
  state.append(make("span", stateOf(server), `state ${stateOf(server).split(" ")[0]}`));
  line.append(cell("th", server.name), state, ...texts.map((each, i) => cell("td", String(each), columns[i])));
  return line;
}

/// Since when each server that is down is; and in words how all of them are.
const downSince = new Map();

function tellServers(servers) {
  const clock = () => new Date().toLocaleTimeString("en-GB");
  for (const each of servers)
    if (!each.error) downSince.delete(each.name);
    else if (!downSince.has(each.name)) downSince.set(each.name, clock());
  const down = servers.filter((each) => each.error).map((each) => `${each.name} is down since ${downSince.get(each.name)} (${each.error.replace(`${each.name} `, "")})`);
  const drained = servers.filter((each) => !each.error && each.drained).map((each) => `${each.name} is drained`);
  const serving = servers.length - down.length - drained.length;
  const all = servers.length === 1 ? "The server serves" : `All ${servers.length} servers serve`;
  const text = serving === servers.length ? `${all}.` : `${serving} of ${servers.length} servers serve. ${[...down, ...drained].join(". ")}.`;
  // Written where it changes alone, so that it is read out once.
  put(at("servers-said"), { textContent: text, className: down.length ? "said alarm" : "said" });
}

function budgetText(status) {
  if (status.quality_budget_percent < 0) return "without limit";
  if (!status.quality_budget_percent) return "none: every expert is exact";
  const share = status.budget_nats > 0 ? `, ${Math.round((100 * status.spent_nats) / status.budget_nats)} % of it spent` : "";
  return `${status.quality_budget_percent} % perplexity${share}`;
}

function show(status) {
  const now = { time: performance.now() / 1000, status };
  const change = differences(before, now);
  before = now;
  const epochs = [...new Set(status.servers.filter((each) => !each.error).map((each) => each.epoch))].sort((a, b) => a - b);
  at("fact-model").textContent = status.model;
  at("fact-state").textContent = status.ready ? "ready" : "not ready";
  at("fact-state").className = status.ready ? "" : "bad";
  at("fact-plan").textContent = epochs.length ? `epoch ${epochs.join(" and ")}` : "–";
  at("fact-budget").textContent = budgetText(status);
  at("fact-requests").textContent = `${status.running} running, ${status.waiting} waiting`;
  at("fact-rate").textContent = change.tokens.toFixed(0);
  at("servers").tBodies[0].replaceChildren(...status.servers.map((server, i) => row(server, change.servers[i])));
  picture.show(status.servers, change);
  tellServers(status.servers);
  operate.show(status);
}

async function look() {
  try {
    const answer = await api("/ordermoe/status");
    if (answer.ok) {
      show(await answer.json());
      say("");
    } else if (answer.status !== 401) {
      say((await answer.json()).error.message);
    }
  } catch {
    say("The gateway does not answer. This page goes on asking.");
  }
  setTimeout(look, document.hidden ? 5000 : 1000);
}

onKeyWanted(() => {
  if (!at("key-form").hidden) return;
  at("key-form").hidden = false;
  at("key").focus();
});
at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(at("key").value);
  at("key").value = "";
  at("key-form").hidden = true;
});

new Chat(at("talk"), {
  form: at("chat"), prompt: at("prompt"), temperature: at("temperature"), tokens: at("tokens"),
  stop: at("stop"), clear: at("clear"), send: at("send"),
});
look();
