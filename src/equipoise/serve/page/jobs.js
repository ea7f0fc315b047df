// Start jobs, wait for them, and show how far they are.
import * as api from "./api.js";
import { button, el, hide, sentence, setOff, setText, timeLeft } from "./dom.js";
import { isFinished, on, refresh, state, updateJob } from "./live.js";
import { markLearned } from "./pictures.js";

const waiting = new Map();  // id → function that hears about each change of the job
const mine = new Set();     // jobs whose progress is shown where they were started
let starting = 0;

/** Whether the progress of a job is shown elsewhere; unsure while a request is on its way. */
export const isShownElsewhere = (job) => mine.has(job.id) || starting > 0;

/**
 * Start a job and wait for its end, and for the model that it made; `onChange` hears about its progress.
 * Throws an ApiError if the job is refused.
 */
export async function run(body, onChange = () => {}) {
  const job = await finished(await start(body), onChange);
  if (job.state === "done") markLearned(picturesOf(body));
  if (job.state === "done" && job.kind !== "export") await refresh().catch(() => {});  // a lost connection is shown elsewhere
  return job;
}

const picturesOf = ({ picture, classes = {} }) => (picture ? [picture] : Object.values(classes).flat());

async function start(body) {
  starting += 1;
  try {
    const job = await api.postJob(body);
    mine.add(job.id);
    updateJob(job);
    return job;
  } finally {
    starting -= 1;
  }
}

function finished(job, onChange) {
  return new Promise((resolve) => {
    const heard = (now) => {
      onChange(now);
      if (!isFinished(now)) return;
      waiting.delete(job.id);
      resolve(now);
    };
    waiting.set(job.id, heard);
    heard(state.jobs.get(job.id) ?? job);
  });
}

on("job", (job) => waiting.get(job.id)?.(job));

/** One sentence about a finished job. */
export function outcome(job) {
  if (job.state === "cancelled") return "Cancelled. Nothing was changed.";
  return sentence((job.state === "failed" ? job.error : job.message) ?? "Done");
}

function describe(job) {
  if (job.state === "queued") return `${job.title}: waiting for its turn`;
  const { text, done, total, seconds_left: seconds } = job.progress ?? {};
  const parts = [text, total ? `${done} of ${total}` : "", timeLeft(seconds)].filter(Boolean);
  return parts.length ? `${job.title}: ${parts.join(", ")}` : `${job.title} …`;
}

/** A progress bar with its sentence and a Cancel button, hidden at first: {node, update(job), hide(next)}. */
export function progressView(cancelId) {
  let current = null;
  const text = el("p", { class: "progress-text" });
  const bar = el("progress", { "aria-label": "Progress" });
  const cancel = button("Cancel", async () => {
    setOff(cancel, true);
    try {
      await api.cancelJob(current.id);
    } catch {
      setOff(cancel, false);  // it has just finished, or the connection is lost: both are shown elsewhere
    }
  }, { id: cancelId, class: "small", "data-cancel": true });
  const node = el("div", { class: "progress", hidden: true }, el("div", { class: "progress-row" }, text, cancel), bar);
  return {
    node,
    update(job) {
      if (current?.id !== job.id) setOff(cancel, false);
      current = job;
      node.hidden = false;
      setText(text, describe(job));
      if (job.progress?.total) {
        bar.max = job.progress.total;
        bar.value = job.progress.done;
      } else {
        bar.removeAttribute("value");
      }
    },
    hide: (next) => hide(node, next),
  };
}
