// The Try column: pictures in, answers out.
import * as api from "./api.js";
import { Answer, inWords } from "./answer.js";
import { hasCamera } from "./camera.js";
import { byId, count, el, keepFocus, setText } from "./dom.js";
import { chooser, DROP_HINT, onDrop } from "./files.js";
import { help } from "./help.js";
import { liveView } from "./livetry.js";
import { on, state } from "./live.js";
import { clearTrayResult, refreshTray } from "./tray.js";

const MOST_ANSWERS = 24;
const SHOWN_ANSWERS = 5;  // before "Show older", so that the tray below stays in reach

let answers = [];
let live = null;

/** Try pictures: one card each, newest first. */
export async function tryFiles(files) {
  if (!state.model?.version || !files.length) return;
  const actions = { onRemove: remove, onRetry: retry, askAgain };
  const added = files.slice(0, MOST_ANSWERS).map((file) => new Answer(file, actions));
  answers = [...added, ...answers];
  byId("answers").prepend(...added.map((answer) => answer.node));
  answers.slice(MOST_ANSWERS).forEach((answer) => answer.discard());
  answers = answers.slice(0, MOST_ANSWERS);
  const tooMany = `Only the first ${MOST_ANSWERS} of ${count(files.length, "picture")} are tried at once.`;
  setText(byId("try-note"), files.length > MOST_ANSWERS ? tooMany : "");
  clearTrayResult();
  showSome(false);
  const sendable = added.filter((answer) => {
    const problem = api.problemBeforeSending(answer.file, state.model.limits);
    if (problem) answer.set("unusable", problem);
    return !problem;
  });
  await ask(sendable);
  announce(added);
  await askAgain();  // the model may have changed meanwhile
}

let all = false;
/** Show the newest answers, or all of them. */
function showSome(everything) {
  all = everything;
  answers.forEach((answer, i) => { answer.node.hidden = !all && i >= SHOWN_ANSWERS; });
  const hidden = all ? 0 : answers.length - SHOWN_ANSWERS;
  byId("more-answers").hidden = hidden <= 0;
  setText(byId("more-answers"), `Show ${count(hidden, "more answer")}`);
}

/** Ask about pictures. Those that the server has kept are sent again only if it has lost them. */
async function ask(batch) {
  const { version, limits } = state.model;
  batch.forEach((answer) => answer.wait(version));
  const kept = batch.filter((answer) => answer.isKept);
  if (kept.length) await receive(kept, api.predictKept(kept.map((answer) => answer.picture)));
  const unsent = batch.filter((answer) => answer.state === "waiting" && !answer.removed);
  for (const part of api.batches(unsent, limits)) await receive(part, api.predict(part.map((answer) => answer.file), true));
  if (batch.some((answer) => answer.prediction?.unknown)) refreshTray();
}

async function receive(part, request) {
  try {
    const { version, predictions } = await request;
    part.forEach((answer, i) => answer.show(predictions[i], version));
  } catch (error) {
    part.forEach((answer) => answer.set("failed", error.message));
  }
}

let asking = null;
/** A changed model may answer differently: ask until no answer is of an older version. */
function askAgain() {
  asking ??= askOld().finally(() => { asking = null; });
  return asking;
}

async function askOld() {
  const old = () => answers.filter((answer) => answer.isOld(state.model.version));
  while (state.model.version && old().length) await ask(old());
}

async function retry(...failed) {
  failed.forEach((answer) => { answer.askedFor = null; });
  await askAgain();
  announce(failed);
}

function announce(some) {
  const said = some.filter((answer) => answer.inWords).map((answer) => `${answer.file.name}: ${answer.inWords}`);
  const failed = some.filter((answer) => answer.state !== "answered").length;
  const short = [count(said.length - failed, "answer"), failed && `${count(failed, "picture")} without an answer`];
  setText(byId("try-status"), said.length > 3 ? short.filter(Boolean).join(", ") : said.join(". "));
}

function remove(answer) {
  const next = answers[answers.indexOf(answer) + 1] ?? answers[answers.indexOf(answer) - 1];
  answers = answers.filter((other) => other !== answer);
  keepFocus(() => {
    answer.discard();
    showSome(all);
  }, next?.node.querySelector(".icon") ?? byId("try").querySelector("button"));
}

function showState() {
  const ready = Boolean(state.model.version);
  byId("main").toggleAttribute("data-empty", !ready);
  byId("try-body").hidden = !ready;
  setText(byId("try-lead"), ready ? "Show the model a picture to see what it recognises."
    : "You can try the model here as soon as it has learned two classes.");
  if (ready) return;
  live?.close();
  answers.forEach((answer) => answer.discard());
  answers = [];
  showSome(false);
}

function input() {
  const take = (found) => tryFiles(found.map(({ file }) => file));
  const row = el("div", { class: "row" }, chooser("Pictures", { accept: "image/*", multiple: true }, take, { class: "small" }));
  if (hasCamera) {
    live = liveView(tryFiles);
    row.append(live.opener);
    byId("live").append(live.node);
  } else {
    row.append(chooser("Take a picture", { accept: "image/*", capture: "environment" }, take, { class: "small" }));
  }
  onDrop(byId("try"), take);
  return el("div", { class: "drop" }, el("p", {}, DROP_HINT), row);
}

export function startTry() {
  byId("try-title").after(help("probability"));
  byId("try-input").append(input());
  byId("more-answers").addEventListener("click", () => {
    showSome(true);
    answers[SHOWN_ANSWERS].node.querySelector("button").focus();
  });
  on("model", () => {
    showState();
    askAgain();
  });
  on("connection", (connected) => {
    const failed = answers.filter((answer) => answer.state === "failed");
    if (connected && failed.length) retry(...failed);
  });
}
