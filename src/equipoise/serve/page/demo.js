// Demo pictures for people who have no photos at hand.
import * as api from "./api.js";
import { button, byId, el, setOff, setText } from "./dom.js";
import { on, state } from "./live.js";
import { addPictures } from "./teach.js";
import { tryFiles } from "./try.js";

const TAUGHT = 8;  // pictures of a kind for teaching; the others are for trying
const TRIED = 3;

/** Fetch some pictures of a kind; null if that fails, and the hint says why. */
async function fetchFiles(kind, numbers) {
  const fetchOne = async (n) => new File([await api.getDemoPicture(kind, n)], `${kind} ${n + 1}.jpg`, { type: "image/jpeg" });
  try {
    return await Promise.all(numbers.map(fetchOne));
  } catch (error) {
    setText(byId("demo-hint"), error.message);
    return null;
  }
}

const range = (from, to) => Array.from({ length: Math.max(0, to - from) }, (_, i) => from + i);

function kindCard({ name, pictures }) {
  const teach = button("Teach these", async () => {
    setOff(teach, true);
    const files = await fetchFiles(name, range(0, Math.min(TAUGHT, pictures)));
    if (!files) return setOff(teach, false);
    addPictures(files, name);
    teach.textContent = "Added";
    return setTimeout(() => { setOff(teach, false); teach.textContent = "Teach these"; }, 2000);
  }, { class: "small wide", "aria-label": `Teach these: ${name}` });
  const first = Math.max(0, pictures - TRIED);
  const thumbs = range(first, pictures).map((n, i) => {
    const pick = button("", async () => tryPicture(name, n), { class: "thumb", "data-try": true });
    pick.append(el("img", { src: api.demoUrl(name, n), alt: `Try ${name}, picture ${i + 1}`, loading: "lazy" }));
    return el("li", {}, pick);
  });
  return el("li", { class: "kind", "data-kind": name },
    el("bdi", { class: "class-name" }, name), el("ul", { class: "thumbs" }, thumbs), teach);
}

async function tryPicture(kind, n) {
  if (!state.model.version) {
    setText(byId("demo-hint"), "Nothing has been learned yet: press “Teach these” for two kinds, then Learn.");
    return;
  }
  const files = await fetchFiles(kind, [n]);
  if (!files) return;
  tryFiles(files);
  if (matchMedia("(max-width: 719px)").matches) byId("try").scrollIntoView();
}

/** What to do next, in words. */
function hint({ version, classes }) {
  if (!version) return "1. Press “Teach these” for two kinds.  2. Press Learn.  3. Select a small picture to try it.";
  const text = "Select a small picture to try it.";
  return classes.length > 2 ? `${text} You can always teach one more kind.`
    : `${text} A picture of a kind that you have not taught should be unknown: name it to teach it.`;
}

let starting = null;
async function start() {
  const { kinds } = await api.getDemo();
  byId("demo").append(el("h2", { id: "demo-title" }, "Demo pictures"),
    el("p", { id: "demo-hint", class: "lead", role: "status" }, hint(state.model)),
    el("ul", { class: "kinds" }, kinds.map(kindCard)));
  byId("demo").hidden = false;
}

export function startDemo() {
  on("model", (model) => {
    if (byId("demo-hint")) setText(byId("demo-hint"), hint(model));
    else if (model.demo) starting ??= start().catch(() => {}).finally(() => { starting = null; });  // or with the next model
  });
}
