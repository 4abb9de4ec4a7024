// The operator's part: who is signed in, nodes that are drained, and plans that are proposed, compared and applied. What a token may
// do the nodes decide; what it surely may not is not offered.
import { give, isSignedIn, Refused, signIn, signOut } from "./orders.js";
import { cell, make, percentMore, put, readable, sizeOf } from "./words.js";

const ranks = { viewer: 0, operator: 1, admin: 2 };
const at = (id) => document.getElementById(id);

/// What a change of plan does at the node that leads it.
const phases = {
  none: "begins", preparing: "servers load what they lack", prepared: "all servers have loaded what they lack",
  holding: "requests are held until those in flight have ended", held: "requests are held", installing: "servers take the plan in",
  installed: "all servers have the plan", inquiring: "servers find out what was decided", committing: "requests begin under the plan",
  ending: "requests under the plan before are ending", retiring: "servers let the plan before go",
};

export class Operate {
  constructor() {
    this.bearer = null;
    this.servers = [];
    this.nodes = new Map();
    this.proposal = null;
    this.strategies = "";
    this.isBusy = false;
    at("sign-in").addEventListener("submit", (event) => this.enter(event));
    at("sign-out").addEventListener("click", () => this.leave());
    at("propose").addEventListener("submit", (event) => this.propose(event));
    at("apply-button").addEventListener("click", () => this.confirm());
    at("dismiss-button").addEventListener("click", () => this.dismiss());
    at("abort-button").addEventListener("click", () => this.abort());
    at("confirm-cancel").addEventListener("click", () => at("confirm").close("cancel"));
    at("confirm").addEventListener("close", () => at("confirm").returnValue === "apply" ? this.apply() : at("apply-button").focus());
  }

  // ------------------------------------------------------------------------------------- each second

  show(status) {
    put(at("nothing"), { hidden: status.takes_orders });
    put(at("sign-in"), { hidden: !status.takes_orders || this.bearer !== null });
    this.servers = status.servers;
    this.offer(status.strategies ?? []);
    if (this.bearer) this.showNodes();
  }

  offer(strategies) {
    const known = strategies.join(" ");
    if (known === this.strategies) return;
    this.strategies = known;
    const same = make("option", "as now");
    same.value = "";
    at("strategy").replaceChildren(same, ...strategies.map((each) => make("option", each)));
  }

  may(role) {
    return this.bearer !== null && ranks[this.bearer.role] >= ranks[role];
  }

  /// Lines are changed in place, so that a button keeps the focus.
  showNodes() {
    const names = this.servers.map((each) => each.name);
    if ([...this.nodes.keys()].join(" ") !== names.join(" ")) this.layNodes(names);
    for (const server of this.servers) {
      const line = this.nodes.get(server.name);
      const state = server.error ? "down" : server.drained ? "drained" : "serves";
      put(line.state, { textContent: state, className: `state ${state}` });
      const has = server.requests?.length ?? 0;
      put(line.requests, { textContent: server.error ? server.error : `${has} request${has === 1 ? "" : "s"}` });
      put(line.button, { textContent: server.drained ? "Resume" : "Drain" });
      line.button.setAttribute("aria-label", `${line.button.textContent} ${server.name}`);
      this.permit(line.button, !server.error && !line.isBusy, "operator");
    }
  }

  layNodes(names) {
    this.nodes.clear();
    at("nodes").replaceChildren(...names.map((name) => {
      const line = { name: make("b", name), state: make("span"), requests: make("span", "", "said"), button: make("button"), isBusy: false };
      line.button.type = "button";
      line.button.addEventListener("click", () => this.drain(name));
      this.nodes.set(name, line);
      const item = make("li");
      item.append(line.name, line.state, line.requests, line.button);
      return item;
    }));
    const chosen = new Set([...at("without").querySelectorAll("input:checked")].map((each) => each.value));
    const boxes = names.map((name) => {
      const label = make("label", "", "check");
      const box = make("input");
      Object.assign(box, { type: "checkbox", value: name, checked: chosen.has(name) });
      label.append(box, ` ${name}`);
      return label;
    });
    at("without").replaceChildren(at("without").firstElementChild, ...boxes);
  }

  /// aria-disabled: a button that is disabled in earnest loses the focus to nobody.
  permit(button, isPossible, role) {
    const may = this.may(role);
    put(button, { title: may ? "" : `takes a token of role ${role}` });
    const wanted = isPossible && may ? null : "true";
    if (button.getAttribute("aria-disabled") === wanted) return;
    if (wanted) button.setAttribute("aria-disabled", "true");
    else button.removeAttribute("aria-disabled");
  }

  permitPlans() {
    this.permit(at("propose-button"), !this.isBusy, "operator");
    this.permit(at("apply-button"), !this.isBusy && this.proposal !== null, "admin");
    this.permit(at("abort-button"), true, "admin");
  }

  // ------------------------------------------------------------------------------------- who is there

  async enter(event) {
    event.preventDefault();
    this.complain("sign-in-problem", "");
    signIn(at("token").value.trim());
    at("token").value = "";
    put(at("sign-in-button"), { disabled: true });
    try {
      const reply = await give({ verb: "members" });
      this.bearer = reply.bearer;
      this.welcome();
    } catch (problem) {
      signOut();
      this.complain("sign-in-problem", problem.message);
      at("token").focus();
    } finally {
      put(at("sign-in-button"), { disabled: false });
    }
  }

  welcome() {
    at("bearer").textContent = `Signed in as ${this.bearer.token}, role ${this.bearer.role}`;
    put(at("sign-in"), { hidden: true });
    put(at("sign-out"), { hidden: false });
    put(at("operator"), { hidden: false });
    this.showNodes();
    this.permitPlans();
    at("operate-title").focus();
  }

  leave(why = "") {
    signOut();
    this.bearer = null;
    this.dismiss();
    at("bearer").textContent = "";
    put(at("sign-out"), { hidden: true });
    put(at("operator"), { hidden: true });
    put(at("sign-in"), { hidden: false });
    this.complain("sign-in-problem", why);
    at("token").focus();
  }

  complain(where, text) {
    put(at(where), { textContent: text, hidden: !text });
  }

  // ------------------------------------------------------------------------------------- what is done

  /// Gives an order, and writes down what came of it. Null: it was refused.
  async order(what, order, progress) {
    try {
      const reply = await give(order, progress);
      if (reply.operation) this.note(what, reply);
      return reply;
    } catch (problem) {
      if (!(problem instanceof Refused)) throw problem;
      this.refusal = problem.message;
      this.note(what, null, problem.message);
      if (problem.status === 401 && isSignedIn()) this.leave(`${what}: ${problem.message}`);
      return null;
    }
  }

  note(what, reply, problem = "") {
    at("done").querySelector(".hint")?.remove();
    const line = make("li");
    const time = make("time", new Date().toLocaleTimeString("en-GB"));
    line.append(time, make("b", what));
    if (reply) {
      const moved = reply.epoch_before === reply.epoch_after ? `epoch ${reply.epoch_after}` : `epoch ${reply.epoch_before} → ${reply.epoch_after}`;
      line.append(make("span", `done, ${moved}`), make("span", `operation ${reply.operation}`, "said"));
    } else {
      line.append(make("span", `refused: ${problem}`, "bad"));
    }
    at("done").prepend(line);
    while (at("done").children.length > 50) at("done").lastElementChild.remove();
  }

  async drain(name) {
    const line = this.nodes.get(name);
    const server = this.servers.find((each) => each.name === name);
    if (line.button.hasAttribute("aria-disabled") || !server) return;
    line.isBusy = true;
    this.permit(line.button, false, "operator");
    const verb = server.drained ? "resume" : "drain";
    const reply = await this.order(`${verb === "drain" ? "Drain" : "Resume"} ${name}`, { verb, node: name });
    line.isBusy = false;
    if (reply) server.drained = verb === "drain";
    if (this.bearer) this.showNodes();
  }

  say(text) {
    put(at("progress"), { textContent: text, hidden: !text });
  }

  /// One thing at a time with the plan.
  async busy(work) {
    this.isBusy = true;
    this.complain("plan-problem", "");
    this.permitPlans();
    try {
      await work();
    } catch (problem) {
      if (!(problem instanceof Refused)) throw problem;
      this.complain("plan-problem", problem.message);
      if (problem.status === 401) this.leave(problem.message);
    } finally {
      this.isBusy = false;
      this.say("");
      this.permitPlans();
    }
  }

  propose(event) {
    event.preventDefault();
    if (at("propose-button").hasAttribute("aria-disabled")) return;
    const arguments_ = {};
    if (at("strategy").value) arguments_.strategy = at("strategy").value;
    if (at("steps").value) arguments_.steps = Number(at("steps").value);
    if (at("measured").checked) arguments_.measured = true;
    const without = [...at("without").querySelectorAll("input:checked")].map((each) => each.value);
    if (without.length) arguments_.without = without;
    this.dismiss();
    this.busy(async () => {
      this.say("A plan is being made…");
      const made = await give({ verb: "plan.propose", arguments: arguments_ },
        (told) => this.say(`${told.node} makes a plan, for ${Math.round(told.seconds)} s so far…`));
      this.note(`Propose ${made.result.strategy}`, made);
      const compared = await give({ verb: "plan.diff", node: made.node, arguments: { proposal: made.result.proposal } });
      this.showProposal(made.node, made.epoch_before, compared.result);
    });
  }

  showProposal(node, epoch, of) {
    this.proposal = { node, number: of.proposal, admission: readable(of.admission) };
    at("proposal-title").textContent = `Proposal ${of.proposal} of ${node}: ${of.strategy}`;
    const loads = of.servers.reduce((sum, each) => sum + each.bytes_to_load, 0);
    const facts = {
      "Plan": `epoch ${epoch} → ${of.epoch}`,
      "A token takes, as expected": `${of.cost_before_ms.toFixed(2)} ms → ${of.cost_after_ms.toFixed(2)} ms (${percentMore(of.cost_before_ms, of.cost_after_ms)})`,
      "Servers load": sizeOf(loads),
      "Admission of requests": this.proposal.admission,
    };
    if (of.measured_rows !== undefined) facts["By what routers chose"] = `${Math.round(of.measured_rows)} rows of a layer at least`;
    at("proposal-facts").replaceChildren(...Object.entries(facts).map(([name, text]) => {
      const line = make("div", "", text.length > 30 ? "wide" : "");
      line.append(make("dt", name), make("dd", text));
      return line;
    }));
    at("proposal-table").tBodies[0].replaceChildren(...of.servers.map((server) => {
      const line = make("tr");
      line.setAttribute("role", "row");
      line.append(cell("th", server.name), cell("td", server.bytes_to_load ? sizeOf(server.bytes_to_load) : "nothing", "Loads"),
        this.experts(server.gains, "Gains"), this.experts(server.loses, "Loses"));
      return line;
    }));
    put(at("proposal"), { hidden: false });
    at("proposal-title").focus();
  }

  /// By layer: as many, and which on demand.
  experts(list, name) {
    const made = cell("td", "", name);
    if (!list.length) {
      made.append(make("span", "none", "said"));
      return made;
    }
    const layers = new Map();
    for (const [layer, expert] of list) layers.set(layer, [...(layers.get(layer) ?? []), expert]);
    const details = make("details");
    details.append(make("summary", `${list.length} expert${list.length === 1 ? "" : "s"}`),
      ...[...layers].map(([layer, experts]) => make("div", `layer ${layer}: ${experts.join(", ")}`)));
    made.append(details);
    return made;
  }

  dismiss() {
    this.proposal = null;
    put(at("proposal"), { hidden: true });
    this.permitPlans();
  }

  confirm() {
    if (at("apply-button").hasAttribute("aria-disabled")) return;
    at("confirm-text").textContent = `All servers go over to proposal ${this.proposal.number}, or none. Admission of requests: ${this.proposal.admission}.`;
    at("confirm").returnValue = "";
    at("confirm").showModal();
    at("drain-s").focus();
  }

  apply() {
    const of = this.proposal;
    at("proposal-title").focus();
    this.busy(async () => {
      const watch = this.watch(of);
      try {
        const done = await this.order(`Apply proposal ${of.number}`,
          { verb: "plan.apply", node: of.node, arguments: { proposal: of.number, drain_s: Number(at("drain-s").value) } });
        if (!done) return this.complain("plan-problem", this.refusal);
        this.dismiss();
        put(at("abort-button"), { hidden: true });
        at("operate-title").focus();
        await watch.settle();
      } finally {
        watch.stop();
      }
    });
  }

  /// Says each second how far a change is.
  watch(of) {
    const begun = performance.now();
    put(at("abort-button"), { hidden: false });
    let isOver = false;
    const look = async () => {
      const { result } = await give({ verb: "members", node: of.node });
      const seconds = Math.round((performance.now() - begun) / 1000);
      if (!isOver) this.say(`Proposal ${of.number}, ${seconds} s: ${phases[result.change] ?? result.change}. ${of.node} goes by epoch ${result.epoch}.`);
      return result.change;
    };
    const timer = setInterval(() => look().catch(() => {}), 1000);
    this.say(`Proposal ${of.number}: begins…`);
    return {
      // Requests begin under the new plan; those before may take a while yet.
      settle: async () => {
        while (await look() !== "none") await new Promise((again) => setTimeout(again, 500));
      },
      stop: () => {
        isOver = true;
        clearInterval(timer);
        put(at("abort-button"), { hidden: true });
      },
    };
  }

  async abort() {
    if (at("abort-button").hasAttribute("aria-disabled") || !this.proposal) return;
    await this.order("Abort the change", { verb: "plan.abort", node: this.proposal.node });
  }
}
