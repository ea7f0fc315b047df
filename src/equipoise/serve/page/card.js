// One class in the Teach column: its name, its pictures, and the ways to add more.
import { hasCamera } from "./camera.js";
import { button, count, el, keepFocus, newId, setText } from "./dom.js";
import { canChooseFolders, chooser, DROP_HINT, onDrop } from "./files.js";
import { aboutName } from "./forms.js";
import * as api from "./api.js";
import { state } from "./live.js";
import { Picture, upload } from "./pictures.js";
import { holdButton, viewfinder } from "./viewfinder.js";

const SHOWN = 24;  // previews per card before "Show more": full-size photos need much memory

export class Card {
  /** `panel` hears about changes and receives folders: {changed(), takeFolders(found, card), remove(card)}. */
  constructor(panel, example) {
    Object.assign(this, { panel, pictures: [], shown: SHOWN, locked: false });
    const id = newId("class");
    this.input = el("input", {
      id, type: "text", class: "card-name", list: "class-names", autocomplete: "off", maxlength: 200, dir: "auto",
      placeholder: example, "aria-describedby": `${id}-hint`, oninput: () => this.update(),
    });
    this.hint = el("p", { id: `${id}-hint`, class: "note" });
    this.count = el("p", { class: "note count", role: "status" });
    this.grid = el("ul", { class: "previews", "aria-label": "Pictures" });
    this.more = button("Show more", () => { this.shown += 96; this.draw(); }, { class: "small quiet", hidden: true });
    this.retry = button("Try again", () => this.uploadAgain(), { class: "small", hidden: true });
    this.close = button("×", () => panel.remove(this), { class: "icon", "aria-label": "Remove this class" });
    this.node = el("li", { class: "card" },
      el("div", { class: "card-head" }, el("label", { for: id }, "Name of the class"), this.close),
      this.input, this.hint, this.sources(), this.grid, this.more, this.retry, this.count);
    onDrop(this.node, (found) => panel.takeFolders(found, this));
    this.update();
  }

  /** The drop zone and the camera; above the previews, which would push them away while they grow. */
  sources() {
    const take = (found) => this.panel.takeFolders(found, this);
    const choose = chooser("Pictures", { accept: "image/*", multiple: true }, take, { class: "small" });
    const folder = canChooseFolders && chooser("Folder", { webkitdirectory: true }, take, { class: "small" });
    const row = el("div", { class: "row" }, choose, folder);
    if (!hasCamera) {
      row.append(chooser("Take a picture", { accept: "image/*", capture: "environment" }, take, { class: "small" }));
      return el("div", { class: "drop" }, el("p", {}, DROP_HINT), row);
    }
    this.finder = viewfinder({ label: "Camera picture", onClose: () => { open.hidden = false; open.focus(); } });
    this.finder.node.querySelector(".view").after(holdButton(this.finder.video, (picture) => this.add([picture])));
    const open = button("Camera", () => { open.hidden = true; this.finder.open(); }, { class: "small", "data-camera": true });
    row.append(open);
    return el("div", {}, el("div", { class: "drop" }, el("p", {}, DROP_HINT), row), this.finder.node);
  }

  get name() { return this.input.value.trim(); }
  set name(name) { this.input.value = name; }
  get ready() { return this.pictures.filter((picture) => picture.state === "ready"); }
  get unsent() { return this.pictures.filter((picture) => picture.state === "waiting" || picture.state === "sending"); }
  get isEmpty() { return !this.name && !this.pictures.length; }

  add(files) {
    const pictures = files.map((file) => new Picture(file, () => this.draw()));
    this.pictures.push(...pictures);
    this.draw();
    upload(pictures);
  }

  uploadAgain() {
    const failed = this.pictures.filter((picture) => picture.again);
    failed.forEach((picture) => picture.set("waiting", { problem: null, again: false }));
    upload(failed);
  }

  /** Upload everything again, because the server lost its copies. */
  restore() {
    this.pictures.filter((picture) => picture.id).forEach((picture) => picture.set("waiting", { id: null }));
    upload(this.pictures.filter((picture) => picture.state === "waiting"));
  }

  removePicture(picture) {
    picture.remove();
    this.pictures = this.pictures.filter((other) => other !== picture);
    this.draw();
  }

  /** Lock the card while it is being learned, so that what is shown is what is learned. */
  lock(locked) {
    this.locked = locked;
    this.node.toggleAttribute("data-locked", locked);
    this.node.inert = locked;
    if (locked) this.finder?.close();
  }

  discard(options) {
    this.finder?.close();
    this.pictures.forEach((picture) => picture.remove(options));
    this.node.remove();
  }

  update() {
    this.hint.replaceChildren(...this.hintParts());
    this.node.dataset.teach = this.name;
    this.panel.changed();
  }

  hintParts() {
    const { known, similar } = aboutName(this.name);
    if (similar) return [`There is already a class “${similar.name}”. Use exactly this name to add pictures to it.`];
    if (!known) return [];
    if (!state.model.can_extend) return ["This class is already known, and this model cannot add pictures to it. Choose another name."];
    return [`adds to ${known.name} (${count(known.images, "picture")})`];
  }

  draw() {
    const shown = this.pictures.slice(0, this.shown);
    const nodes = shown.map((picture) => this.preview(picture));
    keepFocus(() => {
      [...this.grid.children].forEach((child) => nodes.includes(child) || child.remove());
      nodes.forEach((node, i) => this.grid.children[i] === node || this.grid.insertBefore(node, this.grid.children[i] ?? null));
    }, this.input);
    this.more.hidden = this.pictures.length <= this.shown;
    this.more.textContent = `Show more (${this.pictures.length - shown.length})`;
    this.retry.hidden = !this.pictures.some((picture) => picture.again);
    this.count.setAttribute("aria-busy", String(this.unsent.length > 0));  // read out when all pictures have arrived
    setText(this.count, this.countText());
    this.update();
  }

  countText() {
    if (!this.pictures.length) return "";
    const unsent = this.unsent.length;
    const failed = this.pictures.filter((picture) => picture.state === "failed").length;
    const parts = [count(this.ready.length, "picture")];
    if (unsent) parts.push(`${unsent} on the way`);
    if (failed) parts.push(`${failed} cannot be used`);
    return parts.join(", ");
  }

  /** The preview of a picture, created once and changed afterwards, so that it keeps the focus. */
  preview(picture) {
    picture.node ??= this.newPreview(picture);
    picture.node.dataset.state = picture.state;
    picture.node.querySelector(".problem").textContent = picture.problem ?? "";
    if (picture.unreadable && picture.id) picture.showCopy();
    return picture.node;
  }

  newPreview(picture) {
    const img = el("img", { src: picture.url, alt: picture.file.name, decoding: "async" });
    // some formats can be read by the server but not by the browser: its copy is shown instead
    img.addEventListener("error", () => {
      img.hidden = picture.unreadable = true;
      if (picture.id) picture.showCopy();
    }, { once: true });
    picture.showCopy = () => {
      picture.unreadable = img.hidden = false;
      img.src = api.pictureUrl(picture.id);
    };
    const remove = button("×", () => this.removePicture(picture), { class: "icon", "aria-label": `Remove ${picture.file.name}` });
    return el("li", { class: "preview" }, el("span", { class: "frame" }, img, remove), el("p", { class: "problem" }));
  }
}
