// What the server last said about the model and its jobs, kept up to date by its event stream.
import * as api from "./api.js";
import { wait } from "./dom.js";

export const state = { model: null, jobs: new Map(), connected: true };

const listeners = { model: [], job: [], connection: [] };
export const on = (event, listener) => listeners[event].push(listener);
const emit = (event, value) => listeners[event].forEach((listener) => listener(value));

const FINISHED = ["done", "failed", "cancelled"];
export const isFinished = (job) => FINISHED.includes(job.state);
const RETRY_SECONDS = 2;

/** Remember a job, unless an answer that was on its way for longer would set it back. */
export function updateJob(job) {
  const known = state.jobs.get(job.id);
  if (known && (isFinished(known) || (known.state === "running" && job.state === "queued"))) return;
  state.jobs.set(job.id, job);
  emit("job", job);
}

export const openJobs = () => [...state.jobs.values()].filter((job) => !isFinished(job));

let loading = null;
let next = null;
/** Fetch the model; calls during a fetch share one more after it, so that the result is never older than the call. */
export function refresh() {
  if (!loading) return (loading = load().finally(() => { loading = null; }));
  next ??= loading.catch(() => {}).then(() => {
    next = null;
    return refresh();
  });
  return next;
}

async function load() {
  const waitedFor = openJobs();
  const model = await api.getModel();
  for (const job of model.jobs) {
    const known = state.jobs.get(job.id);
    if (!isFinished(job) || (known && !isFinished(known))) updateJob(job);
    else state.jobs.set(job.id, job);  // finished before this page knew it: no news
  }
  // after a restart the server does not know its former jobs: whoever waits for one must hear that
  const ids = new Set(model.jobs.map((job) => job.id));
  for (const job of waitedFor) {
    if (!ids.has(job.id)) updateJob({ ...job, state: "failed", error: "The server was restarted. Please try again." });
  }
  state.model = model;
  emit("model", model);
}

function setConnected(connected) {
  if (state.connected === connected) return;
  state.connected = connected;
  emit("connection", connected);
}

let lost = false;
let source = null;
let following = false;  // not before the token was given
/** Follow the server; after a lost connection everything is fetched again. */
export function connect() {
  following = true;
  if (document.hidden) return;  // it would take one of the six connections that all tabs share
  source?.close();
  const stream = source = new EventSource("/api/events");
  stream.addEventListener("model", (event) => {
    const news = lost || JSON.parse(event.data).version !== state.model?.version;
    if (lost) forgetFinishedJobs();
    lost = false;
    setConnected(true);
    if (news || opened) refresh().catch(() => {});
    opened = true;
  });
  let opened = false;  // the first event only repeats what the page has just fetched
  stream.addEventListener("job", (event) => updateJob(JSON.parse(event.data)));
  stream.addEventListener("error", () => {
    lost = true;
    if (stream.readyState !== EventSource.CLOSED) return setConnected(false);  // the browser tries again by itself
    source = null;  // the server answered, but with an error: it wants another token, or has no room for a stream
    return ask();
  });
}

/** Ask the server in the usual way, now and then, until it can be followed. */
async function ask() {
  if (document.hidden || source) return;
  try {
    await refresh();
    setConnected(true);
  } catch (error) {
    const refused = error.status === 401;
    following = !refused;  // goes on when the token was given
    setConnected(refused);
  }
  await wait(RETRY_SECONDS * 1000);
  if (!following || source) return;
  if (state.connected) connect();
  else ask();
}

/** Follow the server only while the page can be seen. */
export function followVisibility() {
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && following && !source) connect();
    if (!document.hidden || !source) return;
    source.close();
    source = null;
    lost = true;
  });
}

// a restarted server numbers its jobs from the beginning
function forgetFinishedJobs() {
  for (const job of state.jobs.values()) if (isFinished(job)) state.jobs.delete(job.id);
}
