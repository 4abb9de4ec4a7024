// A conversation. Each token says how its experts were run; each answer what it cost.
import { api, events } from "./api.js";
import { shares } from "./figures.js";
import { percent } from "./words.js";

function bar({ here, elsewhere }) {
  const first = 100 * here;
  const second = first + 100 * elsewhere;
  return `linear-gradient(to right, var(--here) 0 ${first}%, var(--elsewhere) ${first}% ${second}%, var(--similar) ${second}% 100%)`;
}

const words = (of) => `exact here ${percent(of.here)}, exact elsewhere ${percent(of.elsewhere)}, similar ${percent(of.similar)}`;

export class Chat {
  constructor(talk, parts) {
    Object.assign(this, parts, { talk, said: [], running: null });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.form.requestSubmit();
    });
    this.stop.addEventListener("click", () => this.running?.abort());
    this.clear.addEventListener("click", () => {
      this.running?.abort();
      this.said = [];
      this.talk.replaceChildren(...this.talk.querySelectorAll(".hint"));
      this.prompt.focus();
    });
  }

  turn(who) {
    const turn = document.createElement("div");
    turn.className = "turn";
    const parts = ["who", "text", "cost"].map((name) => {
      const part = document.createElement("div");
      part.className = name;
      turn.append(part);
      return part;
    });
    parts[0].textContent = who;
    this.talk.append(turn);
    this.talk.scrollTop = this.talk.scrollHeight;
    return { text: parts[1], cost: parts[2] };
  }

  async ask() {
    const content = this.prompt.value.trim();
    if (!content || this.running) return;
    this.turn("You").text.textContent = content;
    const asked = [...this.said, { role: "user", content }];
    const answer = this.turn("Answer");
    this.prompt.value = "";
    this.running = new AbortController();
    this.send.disabled = true;
    this.stop.disabled = false;
    let text = "";
    try {
      text = await this.stream(asked, answer);
    } catch (problem) {
      text = answer.text.textContent;
      answer.cost.textContent = problem.name === "AbortError" ? "stopped" : problem.message;
      if (problem.name !== "AbortError") answer.cost.classList.add("bad");
    }
    if (text) this.said = [...asked, { role: "assistant", content: text }];
    this.running = null;
    this.send.disabled = false;
    this.stop.disabled = true;
    this.prompt.focus();
  }

  async stream(messages, answer) {
    const started = performance.now();
    let first = null;
    const reply = await api("/v1/chat/completions", {
      method: "POST",
      signal: this.running.signal,
      body: JSON.stringify({
        messages, stream: true, stream_options: { include_usage: true }, ordermoe: { trace: true },
        temperature: Number(this.temperature.value), max_tokens: Number(this.tokens.value),
      }),
    });
    if (!reply.ok) throw new Error((await reply.json()).error.message);
    let text = "";
    for await (const data of events(reply)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      for (const choice of chunk.choices) {
        const said = choice.delta?.content ?? "";
        if (!said) continue;
        first ??= performance.now();
        text += said;
        this.add(answer.text, said, choice.ordermoe);
      }
      if (chunk.usage) answer.cost.textContent = this.cost(chunk.usage, started, first ?? started);
    }
    return text;
  }

  add(place, said, trace) {
    const token = document.createElement("span");
    token.className = "token";
    token.textContent = said;
    const of = trace?.executions ? shares(trace.executions) : null;
    if (of?.total) {
      token.style.backgroundImage = bar(of);
      token.title = words(of);
    }
    place.append(token);
    this.talk.scrollTop = this.talk.scrollHeight;
  }

  cost(usage, started, first) {
    const now = performance.now();
    const ours = usage.ordermoe ?? {};
    const parts = [
      `${usage.completion_tokens} tokens`,
      `first after ${(first - started).toFixed(0)} ms`,
      `${((now - first) / Math.max(1, usage.completion_tokens - 1)).toFixed(1)} ms each`,
    ];
    const of = ours.executions ? shares(ours.executions) : null;
    if (of?.total) parts.push(words(of));
    if (ours.budget_nats > 0) parts.push(`${percent(ours.spent_nats / ours.budget_nats)} of its quality budget spent`);
    else parts.push("no quality budget: as the whole model would answer");
    return parts.join(" · ");
  }
}
