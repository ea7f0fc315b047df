// Short explanations behind small "?" buttons.
import { button, byId, el } from "./dom.js";

// term: [question, title, explanation]
const TEXTS = {
  accuracy: ["What is accuracy?", "Accuracy",
    "The share of pictures that get the right name. 97 % means that 97 of 100 pictures are recognised correctly. Every class counts the same, however many pictures it has."],
  "leave-one-out": ["What does leave-one-out mean?", "Leave-one-out",
    "Each picture is tested as if it had not been used for learning. So every picture helps with learning, and the test is still fair."],
  unknown: ["What does unknown mean?", "Unknown",
    "The picture is unlike everything the model has learned so far. If it shows something new, give it a name to teach it."],
  probability: ["What do the percentages mean?", "Percentages",
    "How likely each class is for this picture, according to the model. A high value can still be wrong."],
  balance: ["What do old and new mean?", "Old and new classes",
    "Many programs forget old classes while they learn new ones. These bars show how well the newest classes "
    + "and all the earlier ones are recognised. They should be about equal."],
  step: ["What is a step?", "Step",
    "Everything that you teach at once is one step. The last step can be undone in the history."],
  thumbnails: ["What are these pictures?", "Pictures of a class",
    "Small copies of the pictures that were used for learning. They are stored with the model, on the computer that runs equipoise."],
  onnx: ["What is ONNX?", "ONNX",
    "A common file format for trained models. Many apps and programming languages can use such a file without equipoise."],
  class: ["What is a class?", "Class",
    "One kind of thing that the model can recognise, such as “rose” or “my blue cup”."],
};

/** A button that explains `term`. */
export function help(term) {
  const [question] = TEXTS[term];
  const opener = button("?", () => open(term, opener), {
    class: "help", "aria-label": question, "aria-haspopup": "dialog", "data-help": term,
  });
  return opener;
}

/** A sentence and its "?" button, which stays on the line of the last word. */
export function withHelp(text, term) {
  const cut = text.lastIndexOf(" ") + 1;
  return [text.slice(0, cut), el("span", { class: "together" }, text.slice(cut), help(term))];
}

function open(term, anchor) {
  const box = byId("help");
  // a modal dialog makes the rest of the page inert, so the box must be inside it
  (anchor.closest("dialog") ?? document.body).append(box);
  const [, title, text] = TEXTS[term];
  box.setAttribute("role", "dialog");
  box.setAttribute("aria-label", title);
  box.replaceChildren(el("strong", {}, title), el("p", {}, text));
  box.showPopover();
  place(box, anchor);
  box.focus();
}

function place(box, anchor) {
  const margin = 12;
  const from = anchor.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = box;
  const left = Math.min(Math.max(margin, from.left - width / 2), innerWidth - width - margin);
  const below = from.bottom + 8;
  box.style.left = `${left}px`;
  box.style.top = `${below + height > innerHeight - margin ? Math.max(margin, from.top - height - 8) : below}px`;
}
