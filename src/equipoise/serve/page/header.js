// The header: what the model is, how good it is, and what is going on.
import { byId, count, el, percent, sentence, setText } from "./dom.js";
import { help, withHelp } from "./help.js";
import { on, openJobs, state } from "./live.js";

const MOST_TILT = 12;  // degrees

function stat(id, value, name, note) {
  const top = el("p", {}, el("span", { class: "value" }, value), el("span", { class: "stat-name" }, name));
  return el("div", { class: "stat", id }, top, el("p", { class: "note" }, note));
}

function size(classes) {
  const images = classes.reduce((sum, one) => sum + one.images, 0);
  return stat("size", String(classes.length), classes.length === 1 ? "class" : "classes", count(images, "picture"));
}

function accuracy({ accuracy: value, evaluated_on: images }) {
  const name = ["accuracy", help("accuracy")];
  if (value === null) return stat("accuracy", "–", name, "not tested yet");
  const text = images ? `on ${images}` : "";
  return stat("accuracy", percent(value), name, text.includes("leave-one-out") ? withHelp(text, "leave-one-out") : text);
}

function balanceBar(name, value, classes) {
  const fill = el("span", { class: "fill" });
  fill.style.width = `${value}%`;
  return el("span", { class: "balance-row" }, el("span", { title: count(classes, "class", "classes") }, name),
    el("span", { class: "bar", "aria-hidden": "true" }, fill), el("span", { class: "number" }, percent(value)));
}

function balance({ balance: now }) {
  if (!now) return null;
  return el("div", { class: "balance", id: "balance" },
    el("p", { class: "balance-bars" }, balanceBar("Old", now.old, now.old_classes), balanceBar("New", now.new, now.new_classes)),
    el("p", { class: "note" }, withHelp(now.message, "balance")));
}

/** Tilt the scale of the logo towards the classes that are recognised better. */
function tilt({ balance: now }) {
  const degrees = now ? Math.max(-MOST_TILT, Math.min(MOST_TILT, now.new - now.old)) : 0;
  byId("beam").style.transform = `rotate(${degrees}deg)`;
}

let shown = "";
function show(model) {
  const { name, version, classes } = model;
  document.title = `${name} · equipoise`;
  setText(byId("name"), name);
  byId("summary").hidden = byId("download-open").hidden = !version;
  byId("history-open").hidden = !model.history.length;
  tilt(model);
  const broken = Boolean(model.problem) && !version;  // there is something that cannot be read: nothing can be taught
  byId("main").hidden = document.querySelector(".jump").hidden = broken;
  showState();
  showMessages(model);
  // rebuilding would take the focus from a "?" button, so only when something changed
  const facts = JSON.stringify([classes.length, model.accuracy, model.evaluated_on, model.balance]);
  if (facts === shown) return;
  shown = facts;
  byId("summary").replaceChildren(...[size(classes), accuracy(model), balance(model)].filter(Boolean));
}

function showMessages({ version, problem, warning, advice, classes }) {
  if (classes.some((one) => one.advice)) advice = null;  // it stands beside its class
  const cause = version ? "The newest version cannot be opened, so answers come from the previous one" : "The model cannot be opened";
  const sentences = [["problem", problem && `${cause}: ${problem}`], ["warning", warning], ["advice", advice]].filter(([, text]) => text);
  const seen = JSON.stringify(sentences);
  if (byId("messages").dataset.seen === seen) return;
  byId("messages").dataset.seen = seen;
  byId("messages").replaceChildren(...sentences.map(([kind, text]) => el("p", { class: "message", "data-kind": kind }, sentence(text))));
}

function showState() {
  const jobs = openJobs();
  const running = jobs.find((job) => job.state === "running") ?? jobs[0];
  const more = jobs.length > 1 ? `, ${jobs.length - 1} waiting` : "";
  const { version, problem } = state.model ?? {};
  const idle = version ? "Ready" : problem ? "Cannot be opened" : "Nothing learned yet";
  byId("state").dataset.busy = String(Boolean(running));
  byId("state").dataset.broken = String(Boolean(problem));
  byId("state").title = running?.title ?? "";
  setText(byId("state"), running ? `${running.title} …${more}` : idle);
}

export function startHeader() {
  on("model", show);
  on("job", showState);
  on("connection", (connected) => {
    byId("offline").hidden = connected;
    setText(byId("offline"), connected ? "" : "Connection lost, trying again …");
  });
}
