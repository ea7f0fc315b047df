// Jobs that no other part of the page shows, such as those of another window: a small box at the bottom.
import { button, byId, el, keepFocus } from "./dom.js";
import { isShownElsewhere, outcome, progressView } from "./jobs.js";
import { isFinished, on } from "./live.js";

const SECONDS = 8;
let timer = null;

const progress = progressView();

function show(job) {
  if (isShownElsewhere(job)) return;
  clearTimeout(timer);
  if (!isFinished(job)) {
    progress.update(job);
    if (progress.node.parentNode !== byId("notice")) byId("notice").replaceChildren(progress.node);
    return;
  }
  notify(outcome(job), job.state);
}

/** Show a sentence whose own place has just disappeared. */
export function notify(sentence, kind = "done") {
  clearTimeout(timer);
  const close = button("×", clear, { class: "icon", "aria-label": "Close" });
  keepFocus(() => byId("notice").replaceChildren(el("p", { "data-kind": kind }, sentence), close), close);
  timer = setTimeout(() => close === document.activeElement || clear(), SECONDS * 1000);
}

const clear = () => keepFocus(() => byId("notice").replaceChildren(), byId("main"));

export function startNotice() {
  on("job", show);
}
