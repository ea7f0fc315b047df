// Pictures from drops, file choosers and the clipboard, with the folder that each one came from.
import { button, el } from "./dom.js";

const PICTURE = /\.(jpe?g|png|gif|webp|bmp|tiff?|heic|heif|avif|ppm|pgm)$/i;
const isHidden = (name) => name.startsWith(".");
const looksLikePicture = (file) => (file.type.startsWith("image/") || PICTURE.test(file.name)) && !isHidden(file.name);

/** Read dropped files and, recursively, folders: [{file, path}] with the names of the folders in `path`. */
async function fromDrop(transfer) {
  // entries must be taken before the first await: afterwards the browser empties the list
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return [...transfer.files].map((file) => ({ file, path: [] }));
  return (await Promise.all(entries.map((entry) => walk(entry, [])))).flat();
}

async function walk(entry, path) {
  if (entry.isFile) {
    const file = await new Promise((resolve) => entry.file(resolve, () => resolve(null)));
    return file ? [{ file, path }] : [];
  }
  const children = await readFolder(entry.createReader());
  return (await Promise.all(children.map((child) => walk(child, [...path, entry.name])))).flat();
}

async function readFolder(reader) {
  const all = [];
  for (;;) {
    // a reader returns at most 100 entries per call, and none at the end
    const some = await new Promise((resolve) => reader.readEntries(resolve, () => resolve([])));
    if (!some.length) return all;
    all.push(...some);
  }
}

function fromInput(input) {
  return [...input.files].map((file) => ({ file, path: (file.webkitRelativePath || "").split("/").slice(0, -1) }));
}

/**
 * Sort files into classes: one per folder, with all folders in it, where the folders part.
 * So "photos/rose/2024" and "photos/tulip" are pictures of "rose" and "tulip", as for `equipoise learn photos`.
 * Returns a Map from the name of the class (null: no folder) to its files; in folders, other files are skipped.
 */
export function groupByFolder(found) {
  const used = found.filter(({ file, path }) => !path.length || (looksLikePicture(file) && !path.some(isHidden)));
  const paths = used.map(({ path }) => path).filter((path) => path.length);
  let shared = 0;
  while (paths.length && paths.every((path) => path[shared] && path[shared] === paths[0][shared])) shared += 1;
  const groups = new Map();
  for (const { file, path } of used) {
    const name = path[shared] ?? path.at(-1) ?? null;
    groups.set(name, [...(groups.get(name) ?? []), file]);
  }
  return groups;
}

const depths = new Map();  // how many elements of a target something hovers above
function mark(node, change) {
  depths.set(node, Math.max(0, (depths.get(node) ?? 0) + change));
  node.toggleAttribute("data-over", depths.get(node) > 0);
}

// a drop ends hovering above all targets, also those around the one that takes it
addEventListener("drop", () => {
  for (const node of depths.keys()) node.removeAttribute("data-over");
  depths.clear();
}, true);

/** Call `take` with what is dropped on `node`; the node is marked while something hovers above it. */
export function onDrop(node, take) {
  const hasFiles = (event) => event.dataTransfer.types.includes("Files");
  node.addEventListener("dragenter", (event) => hasFiles(event) && mark(node, 1));
  node.addEventListener("dragleave", (event) => hasFiles(event) && mark(node, -1));
  node.addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  node.addEventListener("drop", async (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    event.stopPropagation();
    take(await fromDrop(event.dataTransfer));
  });
}

/** A button that opens a file chooser; `attributes` go to the input (multiple, webkitdirectory, capture). */
export function chooser(text, attributes, take, props = {}) {
  const input = el("input", { type: "file", tabindex: "-1", hidden: true, "aria-label": text, ...attributes });
  input.addEventListener("change", () => {
    take(fromInput(input));
    input.value = "";  // so that the same file can be chosen again
  });
  return el("span", { class: "chooser" }, button(text, () => input.click(), props), input);
}

const isPhone = matchMedia("(pointer: coarse)").matches;

/** Whether folders can be chosen: phones offer the attribute but no folders. */
export const canChooseFolders = "webkitdirectory" in HTMLInputElement.prototype && !isPhone;

export const DROP_HINT = isPhone ? "Choose pictures or take some" : "Drop or paste pictures here";

/** A file that is dropped beside every target would otherwise replace the page. */
export function ignoreStrayDrops() {
  for (const event of ["dragover", "drop"]) addEventListener(event, (happened) => happened.preventDefault());
}
