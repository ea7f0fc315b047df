// Live answers from the webcam.
import * as api from "./api.js";
import { answerBars, inWords } from "./answer.js";
import { takePicture } from "./camera.js";
import { button, byId, el, sentence, setText, wait } from "./dom.js";
import { nameForm, runJob } from "./forms.js";
import { state } from "./live.js";
import { sendOne } from "./pictures.js";
import { viewfinder } from "./viewfinder.js";

const SMOOTHING = 0.5;        // share of the newest frame in what is shown
const PAUSE = 80;             // milliseconds between an answer and the next frame: leaves the processor some time
const ANNOUNCE_EVERY = 3000;  // milliseconds between answers that are read out

/** Average of recent predictions, so that the bars do not flicker. */
class Smoothed {
  constructor() {
    this.values = new Map();
    this.unknown = 0;
  }

  add({ unknown, predictions }) {
    const fresh = new Map(predictions.map((one) => [one.class, one.probability]));
    for (const name of new Set([...this.values.keys(), ...fresh.keys()])) {
      const value = (1 - SMOOTHING) * (this.values.get(name) ?? fresh.get(name)) + SMOOTHING * (fresh.get(name) ?? 0);
      if (value < 0.001) this.values.delete(name);
      else this.values.set(name, value);
    }
    this.unknown = (1 - SMOOTHING) * this.unknown + SMOOTHING * Number(unknown);
    const sorted = [...this.values].sort(([, a], [, b]) => b - a);
    return { unknown: this.unknown > 0.5, predictions: sorted.map(([name, value]) => ({ class: name, probability: value })) };
  }
}

/** {node, opener, close}: the live view, and the button that opens it. `keep` receives pictures to keep. */
export function liveView(keep) {
  const bars = answerBars();
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const form = nameForm({ label: "It is …", action: "Teach it", compact: true, submit: teach });
  const keepIt = button("Keep this picture", async () => {
    const picture = await takePicture(finder.video);
    if (picture) keep([picture]);
  }, { class: "small" });
  const finder = viewfinder({
    label: "Camera picture", extra: [bars.node, problem, form.node], buttons: [keepIt], onOpen: run,
    onClose: () => { opener.hidden = false; opener.focus(); },
  });
  finder.node.classList.add("live");
  bars.node.hidden = true;
  const opener = button("Camera", () => { opener.hidden = true; finder.open(); }, { class: "small", "data-camera": true });

  let runs = 0;
  async function run() {
    const mine = ++runs;  // the camera may be closed and opened again while a frame is on its way
    const smoothed = new Smoothed();
    let announced = 0;
    while (finder.isOpen() && mine === runs) {
      const frame = !document.hidden && state.model.version ? await takePicture(finder.video, 256) : null;
      if (!frame) {
        await wait(250);
        continue;
      }
      await answer(frame, smoothed);
      if (performance.now() - announced > ANNOUNCE_EVERY) {
        announced = performance.now();
        if (smoothed.last) setText(byId("try-status"), inWords(smoothed.last));
      }
      await wait(PAUSE);
    }
  }

  async function answer(frame, smoothed) {
    try {
      const { predictions: [prediction] } = await api.predict([frame], false);
      if (prediction.error) throw new Error(sentence(prediction.error));
      smoothed.last = smoothed.add(prediction);
      bars.show(smoothed.last);
      bars.node.hidden = false;
      problem.hidden = true;
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
      await wait(1500);
    }
  }

  async function teach(name, onChange) {
    const frame = await takePicture(finder.video);
    if (!frame) throw new Error("The camera shows no picture yet. Try again in a moment.");
    await runJob({ kind: "correct", picture: await sendOne(frame), to: name }, onChange);
    return `Learned as ${name}.`;
  }

  return { node: finder.node, opener, close: finder.close };
}
