// Requests to the gateway that this page is from. A key is kept for as long as the tab lives.
let wanted = () => {};

export function onKeyWanted(tell) {
  wanted = tell;
}

export function useKey(key) {
  sessionStorage.setItem("key", key);
}

export async function api(path, options = {}) {
  const key = sessionStorage.getItem("key");
  const headers = { ...options.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  if (options.body) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { cache: "no-store", ...options, headers });
  if (answer.status === 401) wanted();
  return answer;
}

/// The data of server-sent events, one after the other.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
  }
}
