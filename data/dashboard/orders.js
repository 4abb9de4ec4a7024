// Operators' orders. The token is kept here, in this page's memory, and nowhere else: it can change the cluster, and what is in
// storage outlives the page.
let token = "";

export const signIn = (secret) => { token = secret; };
export const signOut = () => { token = ""; };
export const isSignedIn = () => token !== "";

/// What an order ended with that was not done. `status` as in HTTP; 0: the gateway does not answer.
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function ask(path, options) {
  const headers = { Authorization: `Bearer ${token}` };
  if (options.body) headers["Content-Type"] = "application/json";
  try {
    return await fetch(path, { cache: "no-store", ...options, headers });
  } catch {
    throw new Refused(0, "The gateway does not answer.");
  }
}

async function told(answer) {
  try {
    return await answer.json();
  } catch {
    throw new Refused(answer.status, `The gateway said what makes no sense (${answer.status}).`);
  }
}

/// An order that was taken goes on whether or not anybody looks: where the gateway is silent for a while, it is asked again.
async function look(where) {
  for (let silent = 0; ; ++silent) {
    try {
      return await ask(where, { method: "GET" });
    } catch (problem) {
      if (silent === 30) throw new Refused(0, "The gateway does not answer any more. The order may have been done: look at the plan's epoch.");
      await pause(1000);
    }
  }
}

/// Gives an order and waits for its end, however long. progress(what the gateway tells of it) while it goes on.
export async function give(order, progress = () => {}) {
  const body = JSON.stringify(order);
  let answer = await ask("/admin/orders", { method: "POST", body });
  // Nothing was begun.
  for (let again = 0; answer.status === 429 && again < 5; ++again) {
    await pause(1000 * Number(answer.headers.get("Retry-After") ?? 1));
    answer = await ask("/admin/orders", { method: "POST", body });
  }
  while (answer.status === 202) {
    progress(await told(answer));
    answer = await look(answer.headers.get("Location"));
  }
  const content = await told(answer);
  if (!answer.ok) throw new Refused(answer.status, content.error?.message ?? `status ${answer.status}`);
  return content;
}
