// Pictures of a Teach card: previews at once, uploads in the background.
import * as api from "./api.js";
import { sentence } from "./dom.js";
import { state } from "./live.js";

/** A picture on its way to the server. state: waiting, sending, ready or failed. */
export class Picture {
  constructor(file, changed) {
    Object.assign(this, { file, changed, id: null, problem: null, state: "waiting", removed: false });
    this.url = URL.createObjectURL(file);
  }

  set(newState, values = {}) {
    Object.assign(this, { state: newState, ...values });
    if (!this.removed) this.changed(this);
  }

  /** Release the preview, and the copy on the server unless it was learned. */
  remove({ learned = false } = {}) {
    this.removed = true;
    URL.revokeObjectURL(this.url);
    if (this.id && !learned) api.deletePicture(this.id).catch(() => {});
  }
}

const learned = new Set();
/** Remember pictures that were learned: the server has removed them. */
export const markLearned = (ids) => ids.forEach((id) => learned.add(id));
export const isLearned = (id) => learned.has(id);

/** Upload one picture and return its id. */
export async function sendOne(file) {
  const { pictures: [{ id, problem }] } = await api.sendPictures([file]);
  if (!id) throw new Error(sentence(problem));
  return id;
}

let queue = [];
let sending = false;

/** Upload pictures one small request after the other; each picture hears about its own result. */
export function upload(pictures) {
  for (const picture of pictures) {
    const problem = api.problemBeforeSending(picture.file, state.model.limits);
    if (problem) picture.set("failed", { problem });
    else queue.push(picture);
  }
  if (!sending) sendAll();
}

async function sendAll() {
  sending = true;
  while ((queue = queue.filter((picture) => !picture.removed)).length) {
    const [batch] = api.batches(queue, state.model.limits);
    queue = queue.slice(batch.length);
    await send(batch);
  }
  sending = false;
}

async function send(batch) {
  batch.forEach((picture) => picture.set("sending"));
  try {
    const { pictures } = await api.sendPictures(batch.map((picture) => picture.file));
    batch.forEach((picture, i) => received(picture, pictures[i]));
  } catch (error) {
    batch.forEach((picture) => picture.set("failed", { problem: error.message, again: true }));
  }
}

function received(picture, { id, problem }) {
  if (picture.removed && id) api.deletePicture(id).catch(() => {});
  picture.set(id ? "ready" : "failed", { id, problem: problem && sentence(problem) });
}
