// The token that protects the server: from the printed link, or asked for once.
import * as api from "./api.js";
import { openDialog } from "./dialogs.js";
import { el } from "./dom.js";

const PREFIX = "#token=";

// a link that was put together by hand may not be encoded
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Hand in the token of the address, and remove it there, so that it is not shared by accident. */
export async function useTokenOfAddress() {
  const { hash, pathname } = location;
  if (!hash.startsWith(PREFIX)) return;
  history.replaceState(null, "", pathname);
  const token = decoded(hash.slice(PREFIX.length));
  await api.startSession(token).catch(() => {});  // a wrong one is asked for again
}

let asking = false;
/** Ask for the token; `then` is called when it was right. */
export function askForToken(then) {
  if (asking) return;
  asking = true;
  let done = false;
  const input = el("input", { id: "token", type: "password", autocomplete: "off", required: true });
  const problem = el("p", { class: "form-status", role: "alert", "data-kind": "problem" });
  const go = el("button", { type: "submit", class: "primary" }, "Open");
  const form = el("form", { class: "name-form" },
    el("label", { for: "token" }, "Token"), el("div", { class: "join" }, input, go), problem);
  const dialog = openDialog({
    id: "token-dialog", title: "This page is protected", onClose() {
      asking = false;
      if (!done) askForToken(then);  // without it, the page can show nothing
    },
    body: [el("p", {}, "Open the link that equipoise serve printed, or type the token at its end."), form],
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await api.startSession(input.value.trim());
      done = true;
      dialog.close();
      then();
    } catch (error) {
      problem.textContent = error.message;
    }
  });
}
