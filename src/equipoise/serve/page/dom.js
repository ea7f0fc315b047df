// Small helpers for building nodes and sentences. Class names are untrusted, so nothing here parses HTML.

export const byId = (id) => document.getElementById(id);

/** Create an element; `props` may hold attributes, `on<event>` functions, and the properties `value` and `checked`. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked") node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** A class name inside a sentence; <bdi> keeps right-to-left names from reordering it. */
export const named = (name) => el("bdi", { class: "name" }, name);

export function button(text, onclick, props = {}) {
  const node = el("button", { type: "button", onclick: (event) => isOff(node) || onclick(event), ...props }, text);
  return node;
}

/** Switch a button off or on. `disabled` would take the focus away from whoever has just pressed it. */
export const setOff = (node, off) => node.setAttribute("aria-disabled", String(off));
export const isOff = (node) => node.getAttribute("aria-disabled") === "true";

/** Set text only if it differs: a live region would otherwise be read out again. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

let lastId = 0;
export const newId = (prefix) => `${prefix}-${++lastId}`;

const number = new Intl.NumberFormat("en");
export const count = (n, one, many = `${one}s`) => `${number.format(n)} ${n === 1 ? one : many}`;

export const percent = (value) => `${value.toFixed(1).replace(/\.0$/, "")} %`;

export function probability(value) {
  if (value > 0 && value < 0.01) return "< 1 %";
  return value > 0.99 && value < 1 ? "> 99 %" : `${Math.round(value * 100)} %`;
}

export function timeLeft(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 90) return `about ${count(Math.max(1, Math.round(seconds)), "second")} left`;
  return `about ${count(Math.round(seconds / 60), "minute")} left`;
}

export function when(iso) {
  const date = new Date(iso);
  if (Number.isNaN(date.getTime())) return "";
  return date.toLocaleString("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" });
}

/** Join facts; a line does not begin with the dot. */
export const joined = (facts) => facts.filter(Boolean).join("\u00a0· ");

/** A message of the server as a sentence, with a capital letter and a full stop. */
export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

/** Join names as people do: "rose, tulip and lily". */
export function listed(names) {
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

export const wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Hide `node`; if it has the focus, `next` gets it. */
export function hide(node, next) {
  const hadFocus = node.contains(document.activeElement);
  node.hidden = true;
  if (hadFocus) next.focus();
}

/** Run `change` and restore the focus: to the same element if it only moved, else to `fallback`. */
export function keepFocus(change, fallback) {
  const before = document.activeElement;
  change();
  if (!before || before === document.body || document.activeElement === before) return;
  (before.isConnected ? before : fallback)?.focus();
}
