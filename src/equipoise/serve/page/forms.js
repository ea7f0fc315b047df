// A name field with one button, and the result of what it started.
import { el, isOff, newId, percent, setOff } from "./dom.js";
import { outcome, progressView, run } from "./jobs.js";
import { state } from "./live.js";

/** Which class a typed name means: {known}, or {similar} if only capital letters differ. */
export function aboutName(name) {
  const classes = state.model?.classes ?? [];
  const known = classes.find((one) => one.name === name);
  if (known) return { known, similar: null };
  const lower = name.toLowerCase();
  return { known: null, similar: name ? classes.find((one) => one.name.toLowerCase() === lower) ?? null : null };
}

/**
 * A form that asks for the name of a class: {node, input, go, say(text, kind), setLabel(text)}.
 * A compact one shows its label in the field.
 * `submit(name)` may return a sentence; errors are shown below the field.
 */
export function nameForm({ label, action, submit, list = true, primary = false, compact = false, value = "" }) {
  const id = newId("name");
  const status = el("p", { class: "form-status", role: "status" });
  const progress = progressView();
  const input = el("input", {
    id, type: "text", autocomplete: "off", list: list ? "class-names" : null, value, dir: "auto", maxlength: 200,
  });
  const go = el("button", { type: "submit", class: primary ? "primary" : null }, action);
  const labelNode = el("label", { for: id, class: compact ? "unseen" : null });
  const node = el("form", { class: "name-form", novalidate: true },
    labelNode, el("div", { class: "join" }, input, go), progress.node, status);
  setLabel(label);

  function setLabel(text) {
    labelNode.textContent = text;
    if (compact) input.placeholder = text;
  }

  function say(text, kind = "") {
    status.textContent = text ?? "";
    status.dataset.kind = kind;
  }

  node.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (isOff(go)) return undefined;
    const name = input.value.trim();
    if (!name) {
      say("Type a name first.", "problem");
      return input.focus();
    }
    say("");
    setOff(go, true);
    try {
      say(await submit(name, progress.update), "done");
    } catch (error) {
      say(error.message, "problem");
    }
    setOff(go, false);
    progress.hide(go);
    return undefined;
  });
  return { node, input, go, say, setLabel };
}

/** Run a job and return its result sentence; a failed job throws, so that forms show it as a problem. */
export async function runJob(body, onChange) {
  const job = await run(body, onChange);
  if (job.state !== "done") throw new Error(outcome(job));
  return outcome(job);
}

/** "39 of 40 correct", or what to say instead. */
export function recognised({ correct, total, accuracy }) {
  if (total) return `${correct} of ${total} correct`;
  return accuracy === null || accuracy === undefined ? "not tested yet" : `${percent(accuracy)} correct`;
}
