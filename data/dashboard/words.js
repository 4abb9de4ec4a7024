// Small things that several parts need.

/// An element with a text.
export function make(name, text = "", className = "") {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  if (className) made.className = className;
  return made;
}

/// Sets what differs: what is the same is not written anew, so that readers of the page are not told twice.
export function put(element, properties) {
  for (const [name, value] of Object.entries(properties)) if (element[name] !== value) element[name] = value;
}

/// A cell of a table that becomes a stack of lines where the page is narrow.
export function cell(kind, text, label = "") {
  const made = make(kind, text);
  made.setAttribute("role", kind === "th" ? "rowheader" : "cell");
  if (kind === "th") made.scope = "row";
  if (label) made.dataset.label = label;
  return made;
}

export const percent = (share) => (share === null ? "–" : `${Math.round(100 * share)} %`);

export function percentMore(before, after) {
  if (!(before > 0)) return "–";
  const more = 100 * (after / before - 1);
  // With a space at which no line breaks.
  return `${more > 0 ? "+" : more < 0 ? "−" : ""}${Math.abs(more).toFixed(1)}\u00a0%`;
}

/// A sentence of the planner's, which names bytes to the last.
export const readable = (text) => text.replace(/\b(\d{6,})( bytes)?\b/g, (_, bytes) => sizeOf(Number(bytes)));

export function sizeOf(bytes) {
  if (!bytes) return "nothing";
  if (bytes >= 1e9) return `${(bytes / 1e9).toFixed(2)} GB`;
  return bytes >= 1e6 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e3).toFixed(1)} kB`;
}
