// Start the parts of the page and follow the server.
import { ApiError, whenUnauthorized } from "./api.js";
import { startClasses } from "./classes.js";
import { startDemo } from "./demo.js";
import { byId, setText, wait } from "./dom.js";
import { ignoreStrayDrops } from "./files.js";
import { startHeader } from "./header.js";
import { startHistory } from "./history.js";
import { connect, followVisibility, refresh, state } from "./live.js";
import { startNotice } from "./notice.js";
import { askForToken, useTokenOfAddress } from "./session.js";
import { addPictures, startTeach } from "./teach.js";
import { startTray } from "./tray.js";
import { startTry, tryFiles } from "./try.js";

/** Pasted pictures go to the column that was used last; without a model there is only Teach. */
function pasteIntoLastColumn() {
  let column = null;
  for (const name of ["focusin", "pointerdown"]) {
    document.addEventListener(name, ({ target }) => { column = target.closest?.("#teach, #try") ?? column; });
  }
  document.addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files].filter((file) => file.type.startsWith("image/"));
    if (!files.length || !state.model || byId("main").hidden) return;
    event.preventDefault();
    if (column?.id === "teach" || !state.model.version) addPictures(files);
    else tryFiles(files);
  });
}

async function follow() {
  for (;;) {
    try {
      await refresh();
      byId("offline").hidden = true;
      return connect();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 401) return undefined;  // goes on when the token was given
      byId("offline").hidden = false;
      setText(byId("offline"), error.message);
      await wait(2000);
    }
  }
}

ignoreStrayDrops();
followVisibility();
pasteIntoLastColumn();
for (const start of [startHeader, startTeach, startTray, startTry, startClasses, startHistory, startNotice, startDemo]) start();
whenUnauthorized(() => askForToken(follow));
await useTokenOfAddress();
await follow();
