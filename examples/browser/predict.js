// Predict photos with model.onnx, made by: equipoise export MODEL model.onnx
import * as ort from "./node_modules/onnxruntime-web/dist/ort.wasm.min.mjs";

const TOP = 5; // classes to show
const SHORT_SIDE = 2048; // larger photos are reduced first, because phones limit the size of a canvas

const element = (selector) => document.querySelector(selector);
const [form, input, answer, preview, table] = ["form", "#photo", "#answer", "#preview", "table"].map(element);
const percent = (value) => `${(100 * value).toFixed(1)}%`;

/** Return a photo as upright RGB on white, height × width × 3. */
async function read(file) {
  // Pillow does not convert colours, so neither does this
  const photo = await createImageBitmap(file, { imageOrientation: "from-image", colorSpaceConversion: "none" });
  const factor = Math.max(1, Math.ceil(Math.min(photo.width, photo.height) / SHORT_SIDE));
  const [width, height] = [photo.width, photo.height].map((side) => Math.round(side / factor));
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.drawImage(photo, 0, 0, width, height);
  photo.close();
  const rgba = context.getImageData(0, 0, width, height).data;
  const rgb = new Uint8Array(width * height * 3);
  for (let from = 0, to = 0; from < rgba.length; from += 4) {
    rgb[to++] = rgba[from];
    rgb[to++] = rgba[from + 1];
    rgb[to++] = rgba[from + 2];
  }
  return new ort.Tensor("uint8", rgb, [height, width, 3]);
}

/** Return the classes with their probabilities, the most probable first, and whether the photo is unknown. */
async function predict(session, file) {
  const { probabilities, unknown, classes } = await session.run({ image: await read(file) });
  const ranked = Array.from(probabilities.data, (probability, index) => ({ name: classes.data[index], probability }));
  ranked.sort((a, b) => b.probability - a.probability);
  return { ranked, unknown: Boolean(unknown.data[0]) };
}

function show({ ranked, unknown }) {
  const best = `${ranked[0].name} ${percent(ranked[0].probability)}`;
  answer.textContent = unknown ? `unknown (nearest: ${best})` : best;
  const rows = ranked.slice(0, TOP).map(({ name, probability }) => {
    const row = document.createElement("tr");
    const head = Object.assign(document.createElement("th"), { scope: "row", textContent: name });
    const value = Object.assign(document.createElement("td"), { textContent: percent(probability) });
    const cell = document.createElement("td");
    const bar = Object.assign(document.createElement("span"), { className: "bar", ariaHidden: "true" });
    bar.style.width = `${100 * probability}%`;
    cell.append(bar);
    row.append(head, value, cell);
    return row;
  });
  table.tBodies[0].replaceChildren(...rows);
  table.hidden = false;
}

let session;
let running = Promise.resolve();

/** Predict one photo after the other, in the order in which they were chosen. */
function open(file) {
  if (!file || !session) return;
  running = running.then(async () => {
    answer.textContent = "Predicting…";
    table.hidden = true;
    URL.revokeObjectURL(preview.src);
    preview.src = URL.createObjectURL(file);
    preview.hidden = false;
    try {
      show(await predict(session, file));
    } catch (error) {
      preview.hidden = true;
      answer.textContent = `Cannot predict ${file.name}: ${error.message}`;
    }
  });
}

input.addEventListener("change", () => open(input.files[0]));
document.addEventListener("paste", (event) => open(event.clipboardData.files[0]));
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  form.classList.add("over");
});
document.addEventListener("dragleave", () => form.classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  form.classList.remove("over");
  open(event.dataTransfer.files[0]);
});

try {
  session = await ort.InferenceSession.create("model.onnx");
  answer.textContent = "Ready";
  input.disabled = false;
} catch (error) {
  answer.textContent = `Cannot load model.onnx: ${error.message}`;
}
