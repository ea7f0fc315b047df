// Answers: bars with names and percentages, and the card of one picture that was tried.
import * as api from "./api.js";
import { button, el, hide, named, probability, sentence } from "./dom.js";
import { nameForm, runJob } from "./forms.js";
import { help } from "./help.js";
import { state } from "./live.js";
import { isLearned, sendOne } from "./pictures.js";
import { isInTray } from "./tray.js";

const BARS = 3;
const SMALLEST = 0.005;

/** What a prediction says, in words. */
export function inWords({ unknown, predictions: [first] }) {
  return unknown ? `unknown, nearest: ${first.class}` : `${first.class}, ${probability(first.probability)}`;
}

/** Bars of a prediction: {node, show(prediction)}; they are changed in place, so that they can move smoothly. */
export function answerBars() {
  const nearest = el("bdi");
  const title = el("div", { class: "answer-title", hidden: true },
    el("h3", { class: "tag" }, "Unknown"), help("unknown"), el("span", { class: "nearest" }, "nearest: ", nearest));
  const rows = Array.from({ length: BARS }, () => {
    const name = el("bdi", { class: "bar-name" });
    const value = el("span", { class: "bar-value" });
    const fill = el("span", { class: "fill" });
    const bar = el("span", { class: "bar", "aria-hidden": "true" }, fill);
    return { name, value, fill, node: el("li", { class: "bar-row" }, name, value, bar) };
  });
  const list = el("ul", { class: "bars", "aria-label": "How likely each class is" }, rows.map((row) => row.node));
  const node = el("div", { class: "says" }, title, list);

  function show({ unknown, predictions }) {
    node.toggleAttribute("data-unknown", unknown);
    // percentages compare known classes only, so they say nothing about something unknown
    title.hidden = !unknown;
    list.hidden = unknown;
    nearest.textContent = predictions[0].class;
    rows.forEach((row, i) => {
      const one = predictions[i];
      row.node.hidden = !one || (i > 0 && one.probability < SMALLEST);
      if (!one) return;
      row.name.textContent = one.class;
      row.value.textContent = probability(one.probability);
      row.fill.style.width = `${one.probability * 100}%`;
    });
  }
  return { node, show };
}

/** The card of one tried picture. state: waiting, answered, failed (can be asked again) or unusable. */
export class Answer {
  /** `onRemove` and `onRetry` get this answer; `askAgain()` brings all answers up to date. */
  constructor(file, { onRemove, onRetry, askAgain }) {
    Object.assign(this, { file, askAgain, url: URL.createObjectURL(file), picture: null, prediction: null, removed: false });
    Object.assign(this, { state: "waiting", version: null, askedFor: null });
    this.bars = answerBars();
    this.changed = el("p", { class: "note before", hidden: true });
    this.problem = el("p", { class: "problem" });
    this.again = button("Try again", () => onRetry(this), { class: "small", hidden: true });
    this.form = nameForm({
      label: "Wrong? It is …", action: "Correct it", compact: true,
      submit: (name, onChange) => this.correct(name, onChange),
    });
    this.image = el("img", { src: this.url, alt: file.name });
    this.image.addEventListener("error", () => this.showCopy(), { once: true });
    const close = button("×", () => onRemove(this), { class: "icon", "aria-label": `Remove ${file.name}` });
    const text = el("div", { class: "grow" }, this.bars.node, this.changed, this.problem, this.again);
    this.node = el("li", { class: "answer", tabindex: "-1", "data-file": file.name, "data-waiting": true },
      el("div", { class: "answer-main" }, el("span", { class: "frame" }, this.image), text, close), this.form.node);
    this.form.node.hidden = true;
  }

  // the browser cannot show every format that the server can read
  showCopy() {
    this.image.parentNode.hidden = !this.picture;
    if (this.picture) this.image.src = api.pictureUrl(this.picture);
    this.unreadable = !this.picture;
  }

  /** Whether the server has a copy that it can be asked about. */
  get isKept() { return this.picture !== null && !isLearned(this.picture); }

  /** Whether this is not the answer of a version, and the server was not asked for that one either. */
  isOld(version) {
    return ["answered", "failed"].includes(this.state) && version !== this.version && version !== this.askedFor;
  }

  wait(version) {
    this.askedFor = version;
    this.set("waiting");
  }

  set(state, problem = "") {
    this.state = state;
    this.node.toggleAttribute("data-waiting", state === "waiting" && !this.prediction);
    this.problem.textContent = problem;
    this.bars.node.hidden = Boolean(problem) && !this.prediction;
    if (state === "failed") this.again.hidden = false;
    else hide(this.again, this.node);
    if (this.removed && state !== "waiting") this.deleteCopy();
  }

  /** Show what the server said about this picture. */
  show(prediction, version) {
    if (prediction.error && this.isKept) return void (this.picture = null);  // lost: the file is sent once more
    if (prediction.error) return this.set("unusable", sentence(prediction.error));
    if (this.version && this.version !== version) this.form.say("");  // it was about another version
    this.version = version;
    this.picture = prediction.picture ?? this.picture;
    if (this.unreadable) this.showCopy();
    this.sayChange(prediction);
    this.prediction = prediction;
    this.set("answered");
    this.bars.show(prediction);
    this.node.toggleAttribute("data-unknown", prediction.unknown);
    this.node.dataset.answer = prediction.unknown ? "" : prediction.predictions[0].class;
    this.form.node.hidden = !this.picture || !(state.model.can_extend || prediction.unknown);
    this.form.setLabel(prediction.unknown ? "What is it?" : "Wrong? It is …");
    this.form.go.textContent = prediction.unknown ? "Teach it" : "Correct it";
    return undefined;
  }

  sayChange(now) {
    const before = this.prediction;
    const label = (one) => (one.unknown ? "unknown" : one.predictions[0].class);
    if (!before || label(before) === label(now)) return;
    this.changed.replaceChildren("before: ", named(label(before)));
    this.changed.hidden = false;
  }

  /** What there is to say about the picture, or null. */
  get inWords() {
    return this.problem.textContent || (this.prediction && inWords(this.prediction));
  }

  async correct(name, onChange) {
    if (isLearned(this.picture)) this.picture = await sendOne(this.file);
    const teach = () => runJob({ kind: "correct", picture: this.picture, to: name }, onChange);
    await teach().catch(async (error) => {
      if (error.status !== 404) throw error;
      this.picture = await sendOne(this.file);  // the server was restarted and has lost its copy
      await teach();
    });
    await this.askAgain();
    this.form.input.value = "";
    if (this.version !== state.model.version) return `Learned as ${name}.`;  // it could not be asked
    const { unknown, predictions: [first] } = this.prediction;
    if (!unknown && first.class === name) return `Learned as ${name}.`;
    const still = unknown ? "unknown" : first.class;
    return `Learned as ${name}, but the answer is still ${still}. Add more pictures of ${name} in Teach.`;
  }

  discard() {
    this.removed = true;
    URL.revokeObjectURL(this.url);
    this.node.remove();
    if (this.state !== "waiting") this.deleteCopy();  // else as soon as the server has answered
  }

  /** Unknown pictures stay in the tray until they are named or dismissed there. */
  async deleteCopy() {
    if (!this.isKept) return;
    try {
      if (!this.prediction?.unknown || !await isInTray(this.picture)) await api.deletePicture(this.picture);
    } catch {
      // the server deletes it when it stops
    }
  }
}
