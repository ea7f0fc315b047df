// The history with Undo, and the downloads.
import { fileUrl } from "./api.js";
import { confirm, openDialog } from "./dialogs.js";
import { button, byId, count, el, joined, percent, setOff, when } from "./dom.js";
import { help, withHelp } from "./help.js";
import { outcome, progressView, run } from "./jobs.js";
import { on, state } from "./live.js";
import { notify } from "./notice.js";

let refreshHistory = null;

function entries() {
  return [...state.model.history].reverse().map(({ step, text, finished, accuracy, images }) => {
    const facts = [when(finished), images && count(images, "picture"), accuracy === null ? null : `accuracy ${percent(accuracy)}`];
    return el("li", { "data-step": step, class: "entry" }, el("span", { class: "entry-step" }, `Step ${step}`),
      el("span", {}, el("bdi", {}, text), el("span", { class: "note" }, joined(facts))));
  });
}

/** A place that shows a running job and its result: {node, run(body, starter) → the job, if it succeeded}. */
function jobArea() {
  const progress = progressView();
  const status = el("p", { class: "form-status", role: "status" });
  async function start(body, starter) {
    status.textContent = "";
    try {
      const job = await run(body, progress.update);
      status.dataset.kind = job.state === "done" ? "done" : "problem";
      status.textContent = outcome(job);
      return job.state === "done" ? job : null;
    } catch (error) {
      status.dataset.kind = "problem";
      status.textContent = error.message;
      return null;
    } finally {
      progress.hide(starter);
    }
  }
  return { node: el("div", {}, progress.node, status), run: start };
}

function openHistory() {
  const list = el("ol", { class: "entries" });
  const area = jobArea();
  const undo = button("Undo the last step", async () => {
    const { version, history } = state.model;
    const last = history.at(-1);
    const text = `This reverts “${last.text}” and restores the previous version.`;
    if (await confirm({ title: "Undo the last step?", text, action: "Undo" })) await change({ kind: "undo", version }, undo);
  }, { id: "undo", "aria-describedby": "no-undo" });
  const again = button("Start again …", async () => {
    const { classes } = state.model;
    const pictures = classes.reduce((sum, one) => sum + one.images, 0);
    const text = `This permanently deletes ${count(classes.length, "class", "classes")} with ${count(pictures, "picture")}, and the history.`;
    if (!await confirm({ title: "Delete everything and start again?", text, action: "Start again" })) return;
    const job = await change({ kind: "start_again" }, again);
    if (job) notify(outcome(job));  // the dialog has closed
  }, { id: "start-again", class: "danger" });
  const why = el("p", { id: "no-undo", class: "note" }, "There is no earlier version to go back to.");
  let changing = false;

  async function change(body, starter) {
    changing = true;
    show();
    const job = await area.run(body, starter);
    changing = false;
    refreshHistory?.();
    return job;
  }

  function show() {
    setOff(undo, changing || !state.model.can_undo);
    setOff(again, changing);
    why.hidden = state.model.can_undo;
  }

  refreshHistory = () => {
    if (!state.model.version) {  // somebody started again
      dialog.close();
      return byId("teach").focus();
    }
    list.replaceChildren(...entries());
    return show();
  };
  const dialog = openDialog({
    id: "history", title: "History", onClose: () => { refreshHistory = null; },
    body: [el("p", { class: "facts note" }, withHelp("Everything that was taught or changed, newest first.", "step")),
      undo, why, area.node, list,
      el("div", { class: "start-again" }, el("p", { class: "note" }, "Or delete everything and start from scratch."), again)],
  });
  refreshHistory();
}

const FORMATS = [
  ["onnx", "ONNX file", "For apps and programs that run models without equipoise.", "onnx"],
  ["directory", "Whole model (ZIP)", "To continue with equipoise on another computer, or to keep as a backup.", null],
];

function openDownload() {
  const areas = FORMATS.map(([format, title, text, term]) => {
    const area = jobArea();
    const go = button("Download", async () => {
      setOff(go, true);
      const job = await area.run({ kind: "export", format }, go);
      if (job) el("a", { href: fileUrl(job.id), download: "" }).click();
      setOff(go, false);
    }, { "data-export": format, "aria-label": `Download ${title}` });
    const about = el("div", { class: "grow" }, el("h3", {}, title), term && help(term), el("p", { class: "note" }, text), area.node);
    return el("section", { class: "format" }, about, go);
  });
  openDialog({ id: "download", title: "Download", body: areas });
}

export function startHistory() {
  byId("history-open").addEventListener("click", openHistory);
  byId("download-open").addEventListener("click", openDownload);
  on("model", () => refreshHistory?.());
}
