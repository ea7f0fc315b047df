// The Classes column: what the model knows, grouped by the step that taught it.
import * as api from "./api.js";
import { openClass } from "./classdialog.js";
import { byId, count, el, keepFocus, sentence, setText, when } from "./dom.js";
import { recognised } from "./forms.js";
import { help, withHelp } from "./help.js";
import { on, state } from "./live.js";

const FILTER_FROM = 12;
const MANY = 60;  // classes; from here on, rows outside the window are not laid out
const WEAK = 70;  // percent; below, the bar changes its colour

const rows = new Map();   // name of a class → {node, seen}
const steps = new Map();  // number of a step → {node, list}

/** The row of a class, created once and filled again only when something changed. */
function row(one) {
  let entry = rows.get(one.name);
  if (!entry) {
    const open = el("button", { type: "button", class: "class-row", onclick: () => openClass(one.name) });
    entry = { node: el("li", { "data-class": one.name }, open), seen: "" };
    rows.set(one.name, entry);
  }
  const seen = JSON.stringify(one);
  if (entry.seen !== seen) entry.node.firstChild.replaceChildren(...rowParts(one));
  entry.seen = seen;
  return entry.node;
}

/** The first letter of a name, in the place of pictures. */
const initial = (name) => el("span", { class: "initial" }, (name.match(/[\p{L}\p{N}]/u)?.[0] ?? "·").toLocaleUpperCase());

function rowParts(one) {
  const image = (id) => el("img", { src: api.thumbnailUrl(one.number, id), alt: "", loading: "lazy", decoding: "async" });
  const images = one.thumbnails.map(image);
  const fill = el("span", { class: "fill", hidden: one.accuracy === null });
  fill.style.width = `${one.accuracy}%`;
  return [
    el("span", { class: "mosaic", "data-count": images.length, "aria-hidden": "true" }, images.length ? images : initial(one.name)),
    el("span", { class: "class-text" },
      el("span", { class: "class-top" },
        el("bdi", { class: "class-name" }, one.name), el("span", { class: "note" }, count(one.images, "picture"))),
      el("span", { class: "class-known" },
        el("span", { class: "bar", "aria-hidden": "true", "data-weak": one.accuracy !== null && one.accuracy < WEAK }, fill),
        el("span", { class: "note" }, recognised(one))),
      one.advice && el("span", { class: "advice" }, sentence(one.advice))),
  ];
}

function stepSection(step) {
  if (!steps.has(step)) {
    const list = el("ul", { class: "class-rows" });
    const title = el("h3", { class: "step-title" });
    steps.set(step, { list, title, node: el("section", { class: "step", "data-step": step }, title, list) });
  }
  return steps.get(step);
}

/** Put `nodes` into `parent` in this order, moving as few as possible. */
function arrange(parent, nodes) {
  const wanted = new Set(nodes);
  [...parent.children].forEach((child) => wanted.has(child) || child.remove());
  nodes.forEach((node, i) => parent.children[i] === node || parent.insertBefore(node, parent.children[i] ?? null));
}

function show(model) {
  const bySteps = new Map();
  for (const one of model.classes) bySteps.set(one.step, [...(bySteps.get(one.step) ?? []), one]);
  const newestFirst = [...bySteps.keys()].sort((a, b) => b - a);
  keepFocus(() => {
    arrange(byId("class-list"), newestFirst.map((step) => stepSection(step).node));
    newestFirst.forEach((step) => arrange(stepSection(step).list, bySteps.get(step).map(row)));
  }, byId("classes"));
  newestFirst.forEach((step) => nameStep(step, model.history));
  forget(rows, new Set(model.classes.map((one) => one.name)));
  forget(steps, bySteps);
  showLead(model);
  byId("class-list").toggleAttribute("data-many", model.classes.length > MANY);
  byId("filter-row").hidden = model.classes.length <= FILTER_FROM;
  byId("class-names").replaceChildren(...model.classes.map((one) => el("option", { value: one.name })));
  filter();
}

function forget(map, kept) {
  for (const key of map.keys()) if (!kept.has(key)) map.delete(key);
}

function nameStep(step, history) {
  const finished = history.find((entry) => entry.step === step)?.finished;
  const parts = [`Step ${step}`, finished && el("span", { class: "note" }, when(finished))];
  stepSection(step).title.replaceChildren(...parts.filter(Boolean));
}

function showLead(model) {
  const lead = byId("classes-lead");
  const text = model.classes.length ? "What the model has learned, newest step first. Open a class to change it."
    : "Nothing yet. Classes that you teach appear here.";
  if (lead.dataset.text === text) return;  // rebuilding would take the focus from its button
  lead.dataset.text = text;
  lead.replaceChildren(...(model.classes.length ? withHelp(text, "step") : [text]));
}

function filter() {
  const hidden = byId("filter-row").hidden;
  const wanted = hidden ? "" : byId("filter").value.trim().toLowerCase();
  let shown = 0;
  for (const one of state.model.classes) {
    const match = one.name.toLowerCase().includes(wanted);
    rows.get(one.name).node.hidden = !match;
    shown += match;
  }
  for (const { node, list } of steps.values()) node.hidden = ![...list.children].some((child) => !child.hidden);
  const text = shown ? `${shown} of ${count(state.model.classes.length, "class", "classes")}` : "No class with this name.";
  setText(byId("filter-count"), wanted ? text : "");
}

export function startClasses() {
  byId("classes-title").after(help("class"));
  byId("filter").addEventListener("input", filter);
  on("model", show);
}
