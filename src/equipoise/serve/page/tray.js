// The tray: unknown pictures in groups of similar ones, waiting for a name.
import * as api from "./api.js";
import { button, byId, count, el, hide, keepFocus, setOff, setText } from "./dom.js";
import { nameForm, runJob } from "./forms.js";
import { help } from "./help.js";
import { on, state } from "./live.js";

let groups = [];
let resultOf = null;  // version of the model that the result is about
let learning = 0;     // groups; their result is about to be shown here

/** One group of pictures; all are selected at first. */
class Group {
  constructor() {
    this.out = new Set();  // ids of pictures that were left out
    this.list = el("ul", { class: "thumbs pick", "aria-label": "Pictures of this group" });
    this.form = nameForm({
      label: "What is this?", action: "Learn", compact: true, primary: true, submit: (name, onChange) => this.learn(name, onChange),
    });
    this.dismiss = button("Dismiss", () => this.dismissChosen(), { class: "small quiet" });
    this.node = el("li", { class: "tray-group" }, this.list, this.form.node, this.dismiss);
    this.nodes = new Map();
  }

  has(id) { return this.nodes.has(id); }
  get chosen() { return [...this.nodes.keys()].filter((id) => !this.out.has(id)); }

  show(pictures) {
    const ids = new Set(pictures.map((picture) => picture.id));
    for (const [id, node] of this.nodes) {
      if (ids.has(id)) continue;
      node.remove();
      this.nodes.delete(id);
    }
    for (const picture of pictures) {
      if (this.nodes.has(picture.id)) continue;
      const node = this.thumb(picture);
      this.nodes.set(picture.id, node);
      this.list.append(node);
    }
    this.update();
  }

  thumb({ id, nearest }) {
    const toggle = button("", () => {
      if (!this.out.delete(id)) this.out.add(id);
      toggle.setAttribute("aria-pressed", String(!this.out.has(id)));
      this.update();
    }, { class: "thumb", "aria-pressed": "true", title: "Include or leave out", "data-picture": id });
    toggle.append(el("img", { src: api.pictureUrl(id), alt: `unknown picture, nearest: ${nearest}`, loading: "lazy" }));
    return el("li", {}, toggle);
  }

  update() {
    const chosen = this.chosen.length;
    this.form.go.textContent = chosen > 1 ? `Learn ${chosen}` : "Learn";
    const all = chosen > 1 && chosen === this.nodes.size;
    this.dismiss.textContent = all ? `Dismiss all ${chosen}` : `Dismiss ${count(chosen, "picture")}`;
    setOff(this.dismiss, !chosen);
  }

  async learn(name, onChange) {
    const { chosen } = this;
    if (!chosen.length) throw new Error("Choose at least one picture.");
    learning += 1;
    try {
      const task = { kind: "learn", classes: Object.fromEntries([[name, chosen]]), extend: true };
      setText(byId("tray-result"), await runJob(task, onChange));
    } finally {
      learning -= 1;
    }
    resultOf = state.model.version;
    this.form.input.value = "";
    await refreshTray();
    return "";
  }

  async dismissChosen() {
    try {
      await Promise.all(this.chosen.map(api.deletePicture));
      this.form.say("");
    } catch (error) {
      this.form.say(error.message, "problem");
    }
    await refreshTray();
  }
}

/** Whether a picture waits in the tray: of several that look the same, only one does. */
export async function isInTray(id) {
  const tray = await api.getTray();
  return tray.groups.some(({ pictures }) => pictures.some((picture) => picture.id === id));
}

let wanted = 0;
/** Fetch the tray and change only what differs, so that typed names stay. */
export async function refreshTray() {
  if (!state.model.version) return show([]);
  const turn = ++wanted;
  try {
    const tray = await api.getTray();
    if (turn === wanted) show(tray.groups);
  } catch {
    // the connection is lost: the banner says so, and the tray is fetched again afterwards
  }
  return undefined;
}

const isEmpty = () => !groups.length && !learning && !byId("tray-result").textContent;

/** Remove what was said about the last group that was named. */
export function clearTrayResult() {
  setText(byId("tray-result"), "");
  if (isEmpty()) hide(byId("tray"), byId("try"));
}

function show(found) {
  const before = [...groups];
  // regrouped pictures stay with the group that shares one of them
  const now = found.map(({ pictures }) => {
    const i = before.findIndex((group) => pictures.some(({ id }) => group.has(id)));
    const group = i < 0 ? new Group() : before.splice(i, 1)[0];
    group.show(pictures);
    return group;
  });
  groups = now;
  const total = found.reduce((sum, group) => sum + group.pictures.length, 0);
  const empty = isEmpty();
  keepFocus(() => {
    before.forEach((group) => group.node.remove());
    now.forEach((group, i) => {
      const place = byId("tray-groups").children[i];
      if (place !== group.node) byId("tray-groups").insertBefore(group.node, place ?? null);
    });
  }, byId(empty ? "try" : "tray-title"));
  const text = "Name a group to teach it as a class. Deselect pictures to leave them out.";
  setText(byId("tray-count"), total ? `${count(total, "picture")}${total > 1 ? ", grouped by similarity" : ""}. ${text}` : "");
  byId("tray").hidden = empty;
}

export function startTray() {
  byId("tray").append(
    el("div", {}, el("h3", { id: "tray-title", tabindex: "-1" }, "Unknown pictures"), help("unknown")),
    el("p", { id: "tray-count", class: "note" }),
    el("ul", { id: "tray-groups", class: "tray-groups" }),
    el("p", { id: "tray-result", class: "result", role: "status", "data-kind": "done" }));
  on("model", ({ version }) => {
    if (version !== resultOf) setText(byId("tray-result"), "");
    refreshTray();
  });
}
