// Requests to the server. Every failure becomes an ApiError whose message can be shown as it is.
import { sentence } from "./dom.js";

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

let onUnauthorized = () => {};
/** Call `handler` when the server asks for a token. */
export function whenUnauthorized(handler) {
  onUnauthorized = handler;
}

async function call(method, path, body) {
  const options = { method };
  if (body instanceof FormData) options.body = body;
  else if (body) Object.assign(options, { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
  let response;
  try {
    response = await fetch(`/api/${path}`, options);
  } catch {
    throw new ApiError("The server cannot be reached. Check that equipoise serve is still running.", 0);
  }
  if (response.ok && response.status === 204) return null;
  if (response.ok) return isPicture(response) ? response.blob() : response.json();
  if (response.status === 401) onUnauthorized();
  throw new ApiError(await detail(response), response.status);
}

const isPicture = (response) => response.headers.get("content-type")?.startsWith("image/");

async function detail(response) {
  try {
    const { detail: text } = await response.json();
    if (typeof text === "string") return sentence(text);
  } catch {
    // not JSON: a proxy may have answered
  }
  return `The server answered with an error (${response.status}).`;
}

function form(files) {
  const data = new FormData();
  for (const file of files) data.append("files", file, file.name || "camera.jpg");
  return data;
}

const part = encodeURIComponent;

export const startSession = (token) => call("POST", "session", { token });
export const getModel = () => call("GET", "model");
export const getClassImages = (number, offset, limit) => call("GET", `classes/${number}/images?offset=${offset}&limit=${limit}`);
// partial: what is wrong with a file is said in the answer, also if there is no other file
export const sendPictures = (files) => call("POST", "pictures?partial=true", form(files));
export const deletePicture = (id) => call("DELETE", `pictures/${part(id)}`);
export const predict = (files, keep) => call("POST", `predict?top=5&keep=${keep}&partial=true`, form(files));
export const predictKept = (ids) => call("POST", "pictures/predict", { pictures: ids });
export const getTray = () => call("GET", "tray");
export const postJob = (body) => call("POST", "jobs", body);
export const cancelJob = (id) => call("DELETE", `jobs/${part(id)}`);
export const getDemo = () => call("GET", "demo");
export const getDemoPicture = (kind, n) => call("GET", `demo/${part(kind)}/${n}`);

export const thumbnailUrl = (number, id) => `/api/classes/${number}/images/${part(id)}`;
export const pictureUrl = (id) => `/api/pictures/${part(id)}`;
export const fileUrl = (jobId) => `/api/jobs/${part(jobId)}/file`;
export const demoUrl = (kind, n) => `/api/demo/${part(kind)}/${n}`;

/** Split files into requests that respect the server's limits; small ones, so that progress shows early. */
export function batches(items, limits, atMost = 8) {
  const result = [];
  let bytes = Infinity;
  const most = Math.min(atMost, limits.files_per_request);
  for (const item of items) {
    // a multipart request is a little longer than its files
    const size = item.file.size + 1024;
    if (bytes + size > limits.request_bytes || result.at(-1).length >= most) {
      result.push([]);
      bytes = 0;
    }
    result.at(-1).push(item);
    bytes += size;
  }
  return result;
}

/** What is wrong with a file before it is sent, or null. */
export function problemBeforeSending(file, limits) {
  if (file.size === 0) return `${file.name} is empty.`;
  const megabytes = Math.floor(limits.file_bytes / 2 ** 20);
  return file.size > limits.file_bytes ? `${file.name} is larger than ${megabytes} MB. Use a smaller picture.` : null;
}
