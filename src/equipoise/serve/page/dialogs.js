// Modal dialogs.
import { button, el, newId } from "./dom.js";

/** Open a dialog with a heading and a close button; it is removed when it closes. Returns the <dialog>. */
export function openDialog({ id = null, title, body, wide = false, onClose = () => {} }) {
  const titleId = newId("dialog");
  const close = button("×", () => dialog.close(), { class: "icon", "aria-label": "Close" });
  const dialog = el("dialog", { id, class: wide ? "wide-dialog" : null, "aria-labelledby": titleId },
    el("div", { class: "dialog-head" }, el("h2", { id: titleId, tabindex: "-1", dir: "auto" }, title), close),
    el("div", { class: "dialog-body" }, body));
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());  // the backdrop
  dialog.addEventListener("close", () => {
    rescueHelp(dialog);
    dialog.remove();
    onClose();
  });
  document.body.append(dialog);
  dialog.showModal();
  dialog.querySelector("h2").focus();  // so that the title is read first, and no phone keyboard opens
  return dialog;
}

// the help box may have been moved into the dialog
function rescueHelp(dialog) {
  const box = dialog.querySelector("#help");
  if (box) document.body.append(box);
}

/** Ask before something that cannot be taken back; resolves to true or false. */
export function confirm({ title, text, action }) {
  return new Promise((resolve) => {
    let yes = false;
    const no = button("Keep it as it is", () => dialog.close(), { "data-no": true });
    const go = button(action, () => { yes = true; dialog.close(); }, { class: "danger", "data-yes": true });
    const dialog = openDialog({
      id: "confirm", title, body: [el("p", {}, text), el("div", { class: "row end" }, no, go)], onClose: () => resolve(yes),
    });
    no.focus();
  });
}
