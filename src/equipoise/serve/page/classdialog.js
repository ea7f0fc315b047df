// The dialog of one class: its pictures, and what can be changed.
import * as api from "./api.js";
import { confirm, openDialog } from "./dialogs.js";
import { button, count, el, joined, setText } from "./dom.js";
import { nameForm, recognised, runJob } from "./forms.js";
import { help } from "./help.js";
import { on, state } from "./live.js";
import { notify } from "./notice.js";

const PAGE = 60;

let current = null;

export function openClass(name) {
  current = new ClassDialog(name);
}

on("model", () => current?.follow());

class ClassDialog {
  constructor(name) {
    Object.assign(this, { name, newName: null, chosen: new Set(), total: 0, version: state.model.version });
    this.facts = el("p", { class: "note" });
    this.grid = el("ul", { class: "thumbs pick", "aria-label": "Pictures of this class" });
    this.empty = el("p", { class: "note", hidden: true });
    this.more = button("Show more", () => this.load(), { class: "small quiet", hidden: true });
    this.move = nameForm({ label: "", action: "Move", submit: (to, onChange) => this.moveChosen(to, onChange) });
    this.moved = el("p", { class: "form-status", role: "status", "data-kind": "done" });
    this.hint = el("p", { class: "note", hidden: true }, "Select pictures to move them to another class.");
    this.moving = el("div", { class: "moving", hidden: true }, this.move.node);
    this.dialog = openDialog({
      id: "class-dialog", title: name, wide: true, onClose: () => { current = null; },
      body: [el("div", { class: "facts" }, this.facts, help("thumbnails")),
        this.hint, this.grid, this.empty, this.more, this.moving, this.moved, this.changes()],
    });
    this.showFacts();
    this.load();
  }

  /** What is known about the class, which has one of two names while it is renamed. */
  get entry() {
    const called = (name) => state.model.classes.find((one) => one.name === name);
    return called(this.name) ?? called(this.newName);
  }

  changes() {
    const rename = nameForm({
      label: "New name", action: "Rename", list: false, value: this.name, submit: (to, onChange) => this.rename(to, onChange),
    });
    const merge = state.model.can_extend && nameForm({
      label: "Merge into another class", action: "Merge",
      submit: (to, onChange) => this.merge(to, onChange),
    });
    this.forgetting = el("p", { class: "form-status", role: "status" });
    const forget = el("div", {}, el("p", { class: "label" }, "Forget this class"),
      button("Forget …", () => this.forget(), { class: "danger", "data-forget": true }), this.forgetting);
    const note = !state.model.can_extend && el("p", { class: "note" }, "This model cannot merge classes or move pictures between them.");
    return el("div", { class: "changes" }, rename.node, merge && merge.node, forget, note);
  }

  showFacts() {
    const one = this.entry;
    const facts = [count(one.images, "picture"), recognised(one), `step ${one.step}`, one.advice];
    setText(this.facts, joined(facts));
    setText(this.dialog.querySelector("h2"), one.name);
  }

  async load() {
    const offset = this.grid.children.length;
    const turn = this.turn = (this.turn ?? 0) + 1;
    this.more.hidden = true;
    try {
      const { total, images, pictures } = await api.getClassImages(this.entry.number, offset, PAGE);
      if (turn !== this.turn) return;  // the model has changed meanwhile, and a newer request is on its way
      this.grid.append(...(pictures ? images.map((id, i) => this.thumb(id, offset + i + 1)) : []));
      this.say(pictures ? (total ? "" : "There are no pictures.") : "This model keeps no pictures, so there is nothing to show.");
      this.total = total;
      this.hint.hidden = !pictures || !total || !state.model.can_extend;
      this.more.hidden = !pictures || this.grid.children.length >= total;
      this.more.textContent = `Show more (${total - this.grid.children.length})`;
    } catch (error) {
      this.say(error.message);
    }
  }

  say(text) {
    this.empty.textContent = text;
    this.empty.hidden = !text;
  }

  thumb(id, position) {
    const img = el("img", { src: api.thumbnailUrl(this.entry.number, id), alt: `picture ${position}`, loading: "lazy" });
    if (!state.model.can_extend) return el("li", {}, el("span", { class: "thumb" }, img));
    const toggle = button("", () => {
      if (!this.chosen.delete(id)) this.chosen.add(id);
      toggle.setAttribute("aria-pressed", String(this.chosen.has(id)));
      this.showMoving();
    }, { class: "thumb", "aria-pressed": "false", "data-image": id });
    toggle.append(img);
    return el("li", {}, toggle);
  }

  showMoving() {
    this.moving.hidden = !this.chosen.size;
    this.move.setLabel(`Move ${count(this.chosen.size, "picture")} to …`);
  }

  async moveChosen(to, onChange) {
    setText(this.moved, "");
    if (to === this.name) throw new Error("Choose a different class.");
    const sentence = await this.moveOrMerge(to, onChange);
    if (!sentence) return "";
    this.move.input.value = "";
    setText(this.moved, sentence);
    this.dialog.querySelector("h2").focus();  // the form is hidden now
    return "";
  }

  /** A class cannot be left without pictures: with its last one, it becomes the other class. */
  moveOrMerge(to, onChange) {
    if (this.chosen.size < this.total) return runJob({ kind: "move", images: [...this.chosen], to }, onChange);
    const known = state.model.classes.some((one) => one.name === to);
    return known ? this.merge(to, onChange) : this.rename(to, onChange);
  }

  async rename(to, onChange) {
    if (to === this.name) throw new Error("The class already has this name.");
    this.newName = to;  // set first: the model may arrive before the result of the job
    try {
      const sentence = await runJob({ kind: "rename", name: this.name, to }, onChange);
      this.name = to;
      return sentence;
    } finally {
      this.newName = null;
    }
  }

  async merge(to, onChange) {
    if (to === this.name) throw new Error("Choose a different class.");
    const known = state.model.classes.some((one) => one.name === to);
    if (!known) throw new Error(`There is no class “${to}”. Choose a known one.`);
    const text = `All pictures of “${this.name}” are moved to “${to}”, and the class “${this.name}” is removed.`;
    if (!await confirm({ title: `Merge into “${to}”?`, text, action: "Merge" })) return "";
    notify(await runJob({ kind: "merge", names: [this.name], to }, onChange));
    return "";
  }

  async forget() {
    const name = this.newName ?? this.name;  // it is forgotten after it was renamed
    const text = `“${name}” and its ${count(this.entry.images, "picture")} are deleted for good. After that, no earlier step can be undone either.`;
    if (!await confirm({ title: `Forget “${name}”?`, text, action: "Forget" })) return;
    this.forgetting.dataset.kind = "";
    setText(this.forgetting, "Forgetting …");
    try {
      notify(await runJob({ kind: "forget", names: [name] }));
    } catch (error) {
      this.forgetting.dataset.kind = "problem";
      setText(this.forgetting, error.message);
    }
  }

  reload() {
    this.chosen.clear();
    this.showMoving();
    this.grid.replaceChildren();
    this.load();
  }

  /** Follow changes of the model; the dialog closes when its class is gone. */
  follow() {
    if (!this.entry) return void this.dialog.close();
    this.showFacts();
    if (this.version === state.model.version) return;
    this.version = state.model.version;
    this.reload();
  }
}
