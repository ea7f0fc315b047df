// The Teach column: cards of classes, and the Learn button.
import { Card } from "./card.js";
import { byId, count, el, hide, keepFocus, listed, sentence, setOff, setText, wait } from "./dom.js";
import { groupByFolder, onDrop } from "./files.js";
import { outcome, progressView, run } from "./jobs.js";
import { on, state } from "./live.js";

const EXAMPLES = ["for example: cup", "for example: keys", "for example: glasses", "for example: my cat"];
const FEW = 5;

let cards = [];
let active = null;  // the card that was used last: pasted pictures go there
let examples = 0;
const progress = progressView("cancel");

const panel = {
  changed() {
    if (!busy && byId("result").dataset.kind === "problem") note("", "");  // it was about other pictures
    say();
  },
  takeFolders: take,
  remove(card) {
    const next = cards[cards.indexOf(card) + 1] ?? cards[cards.indexOf(card) - 1];
    keepFocus(() => drop([card]), next?.input ?? byId("add-card"));
  },
};

function newCard() {
  const card = new Card(panel, EXAMPLES[examples++ % EXAMPLES.length]);
  card.node.addEventListener("focusin", () => { active = card; });
  cards.push(card);
  byId("cards").append(card.node);
  say();
  return card;
}

function drop(gone, options) {
  cards = cards.filter((card) => !gone.includes(card));
  gone.forEach((card) => card.discard(options));
  if (gone.includes(active)) active = null;
  fillUp();
}

/** There is always room for the next class; the first model needs two. */
function fillUp() {
  if (busy) return say();  // a new card would push the progress away
  const wanted = state.model?.version ? 1 : 2;
  while (cards.filter((card) => !card.locked).length < wanted) newCard();
  return say();
}

const open = () => cards.filter((card) => !card.locked);
const used = () => open().filter((card) => !card.isEmpty);
const emptyCard = () => open().find((card) => card.isEmpty) ?? newCard();

/** Put files into `card`, and files of folders into one card per folder. */
function take(found, target = null) {
  const groups = groupByFolder(found);
  if (!groups.size) return note("No pictures were found in this folder.", "problem");
  const card = target ?? emptyCard();
  for (const [folder, files] of groups) {
    const here = folder === null || (groups.size === 1 && (card.name || !card.pictures.length)) ? card : cardFor(folder, card);
    if (folder && !here.name) here.name = folder;
    here.add(files);
  }
  return undefined;
}

function cardFor(name, preferred) {
  const same = open().find((card) => card.name === name);
  return same ?? (preferred.isEmpty ? preferred : emptyCard());
}

/** Add pictures to the card of a class, as the demo and the clipboard do. */
export function addPictures(files, name = null) {
  const card = name === null ? (active && !active.locked ? active : emptyCard()) : cardFor(name, emptyCard());
  if (name) card.name = name;
  card.add(files);
  card.node.scrollIntoView({ block: "nearest" });
}

/** What is still needed before learning: {text, focus()}, or null. */
function missing() {
  for (const card of used()) {
    const text = missingIn(card);
    if (!text) continue;
    const needed = card.name ? card.node.querySelector(".drop button") : card.input;
    return { text, focus: () => card.unsent.length || needed.focus() };  // nothing can be done while it is sent
  }
  const names = new Set(used().map((card) => card.name));
  if (!state.model?.version && names.size < 2) {
    const text = names.size ? "Add one more class: the model needs at least two." : "Name two classes and add pictures of each.";
    return { text, focus: focusEmptyCard };
  }
  return names.size ? null : { text: "Name a class and add pictures of it.", focus: focusEmptyCard };
}

const focusEmptyCard = () => emptyCard().input.focus();

function missingIn(card) {
  if (!card.pictures.length) return `Add pictures of ${card.name}.`;
  if (card.unsent.length) return `Sending pictures: ${count(card.unsent.length, "picture")} to go.`;
  if (!card.name) return `Name the class with ${count(card.pictures.length, "picture")}.`;
  if (!card.ready.length) return `None of these pictures can be used. Add other pictures of ${card.name}.`;
  const known = state.model?.classes.some((one) => one.name === card.name);
  return known && !state.model.can_extend ? `${card.name} is already known. Choose another name.` : null;
}

function say() {
  if (!state.model) return;
  const first = !state.model.version;
  setText(byId("teach-lead"), first ? "Name your first two classes and add some pictures of each. Five to twenty are a good start."
    : "Add a new class, or more pictures of a known one.");
  const gap = busy ? null : missing();
  setOff(byId("learn"), Boolean(gap) || busy);
  const text = busy ? "" : gap?.text ?? readyText();
  setText(byId("missing"), text === byId("result").textContent ? "" : text);
}

function readyText() {
  const pictures = used().reduce((sum, card) => sum + card.ready.length, 0);
  const few = used().filter((card) => card.ready.length < FEW && !state.model.classes.some((one) => one.name === card.name));
  const ready = `Ready: ${count(used().length, "class", "classes")} with ${count(pictures, "picture")}.`;
  return few.length ? `${ready} More pictures of ${listed(few.map((card) => card.name))} would help.` : ready;
}

let notedFor = null;  // version of the model that the note is about
function note(text, kind) {
  notedFor = state.model.version;
  byId("result").dataset.kind = kind;
  setText(byId("result"), text);
}

function clearNote() {
  note("", "");
  byId("left-out").hidden = true;
}

let busy = false;
async function learn() {
  if (busy) return;
  const gap = missing();
  if (gap) {
    gap.focus();
    note(gap.text, "problem");
    say();
    return;
  }
  const taught = used();
  setBusy(taught, true);
  try {
    finish(await teach(taught), taught);
  } catch (error) {
    note(error.message, "problem");
  }
  setBusy(taught, false);
}

async function teach(taught) {
  const start = () => run({ kind: "learn", classes: toTeach(taught), extend: true }, progress.update);
  try {
    return await start();
  } catch (error) {
    if (error.status !== 404) throw error;
  }
  // the server keeps pictures only as long as it runs: after a restart they are sent once more
  taught.forEach((card) => card.restore());
  while (taught.some((card) => card.unsent.length)) await wait(100);
  return start();
}

/** Cards with the same name are one class. */
function toTeach(taught) {
  const pictures = new Map();
  for (const card of taught) pictures.set(card.name, [...(pictures.get(card.name) ?? []), ...card.ready.map((one) => one.id)]);
  return Object.fromEntries(pictures);
}

function setBusy(taught, now) {
  busy = now;
  taught.forEach((card) => card.lock(now));
  if (now) {
    clearNote();
    byId("learn-progress").hidden = false;
    byId("learn-progress").scrollIntoView({ block: "nearest" });
  } else {
    hide(byId("learn-progress"), byId("learn"));
  }
  fillUp();
}

function finish(job, taught) {
  note(outcome(job), job.state === "done" ? "done" : job.state === "failed" ? "problem" : "");
  showLeftOut(job, taught);
  if (job.state === "done") drop(taught, { learned: true });
}

function leftOut(file, reason) {
  const url = URL.createObjectURL(file);
  const image = el("img", { src: url, alt: file.name });
  for (const event of ["load", "error"]) image.addEventListener(event, () => URL.revokeObjectURL(url));
  return el("li", {}, image, el("span", {}, `Skipped: ${reason}`));
}

/** Show skipped pictures, each with its reason; after a failure, the reason is on the picture itself. */
function showLeftOut(job, taught) {
  const pictures = taught.flatMap((card) => card.pictures);
  const items = [];
  for (const { picture: id, reason } of job.problems) {
    const picture = pictures.find((one) => one.id === id);
    if (!picture) continue;
    if (job.state !== "done") picture.set("failed", { problem: sentence(reason) });
    else items.push(leftOut(picture.file, reason));
  }
  byId("left-out").replaceChildren(...items);
  byId("left-out").hidden = !items.length;
}

export function startTeach() {
  byId("learn-progress").append(progress.node);
  byId("learn").addEventListener("click", learn);
  byId("add-card").addEventListener("click", () => newCard().input.focus());
  onDrop(byId("teach"), (found) => take(found));
  on("model", (model) => {
    if (byId("result").dataset.kind === "done" && notedFor !== model.version) clearNote();
    fillUp();
    cards.forEach((card) => card.update());
  });
}
