// The camera picture with its buttons; used for recording in Teach and for live answers in Try.
import { acquire, cameraCount, release, switchCamera, takePicture } from "./camera.js";
import { button, el } from "./dom.js";

const FRAMES_PER_SECOND = 5;

/**
 * A square view of the camera: {node, video, open(), close(), isOpen()}.
 * `extra` nodes go below the picture, `buttons` beside Close.
 */
export function viewfinder({ label, extra = [], buttons = [], onOpen = () => {}, onClose = () => {} }) {
  const video = el("video", { playsinline: true, "aria-label": label });
  video.muted = true;
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const flip = button("Switch camera", () => switchCamera().catch((error) => fail(error.message)), { class: "small quiet" });
  flip.hidden = true;
  const shut = button("Close camera", () => close(), { class: "small quiet" });
  const view = el("div", { class: "view" }, video);
  const node = el("div", { class: "viewfinder", hidden: true }, view, problem, ...extra, el("div", { class: "row" }, buttons, flip, shut));
  let open = false;

  function fail(message) {
    problem.textContent = message;
    problem.hidden = false;
    view.hidden = true;
  }

  async function start() {
    open = true;
    node.hidden = view.hidden = false;
    problem.hidden = true;
    try {
      await acquire(video);
    } catch (error) {
      return fail(error.message);
    }
    if (!open) return undefined;
    onOpen();
    flip.hidden = (await cameraCount()) < 2;
    return undefined;
  }

  function close() {
    if (!open) return;
    open = false;
    release(video);
    node.hidden = true;
    onClose();
  }

  return { node, video, open: start, close, isOpen: () => open };
}

/** A button that takes pictures of `video` as long as it is held, by pointer, Space or Enter. */
export function holdButton(video, take) {
  let timer = null;
  const shoot = async () => {
    const picture = await takePicture(video);
    if (picture) take(picture);
  };
  const start = () => {
    if (timer) return;
    hold.dataset.recording = "";
    hold.textContent = "Recording …";
    shoot();
    timer = setInterval(shoot, 1000 / FRAMES_PER_SECOND);
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    delete hold.dataset.recording;
    hold.textContent = "Hold to record";
  };
  const isHoldKey = (event) => event.key === " " || event.key === "Enter";
  const hold = el("button", { type: "button", class: "primary hold", "data-hold": true }, "Hold to record");
  hold.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    hold.setPointerCapture(event.pointerId);  // the finger may slide off the button
    start();
  });
  for (const name of ["pointerup", "pointercancel", "blur"]) hold.addEventListener(name, stop);
  hold.addEventListener("contextmenu", (event) => event.preventDefault());  // a long touch opens one
  hold.addEventListener("keydown", (event) => {
    if (!isHoldKey(event)) return;
    event.preventDefault();
    if (!event.repeat) start();
  });
  hold.addEventListener("keyup", (event) => isHoldKey(event) && stop());
  // screen readers click without pointer or key: one picture per click
  hold.addEventListener("click", (event) => {
    if (event.detail === 0 && event.pointerType === "") shoot();
  });
  return hold;
}
