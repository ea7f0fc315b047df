// The webcam: one stream for the whole page, and square pictures from it.

/** Browsers offer the camera only on https and localhost. */
export const hasCamera = Boolean(navigator.mediaDevices?.getUserMedia);

const videos = new Set();  // the elements that show the camera now
let opening = null;        // promise of the stream
let facing = "environment";

function openStream() {
  const wanted = { width: { ideal: 960 }, height: { ideal: 720 }, facingMode: { ideal: facing } };
  return navigator.mediaDevices.getUserMedia({ video: wanted, audio: false });
}

/** Show the camera in `video`; call `release` when it is no longer needed. */
export async function acquire(video) {
  videos.add(video);
  try {
    opening ??= openStream();
    await show(video, await opening);
  } catch (error) {
    release(video);
    throw new Error(explain(error));
  }
}

async function show(video, stream) {
  if (!videos.has(video)) return;  // closed while the camera was starting
  const { facingMode } = stream.getVideoTracks()[0].getSettings();
  // people expect a mirror when the camera faces them; the picture itself is not mirrored
  video.classList.toggle("mirrored", facingMode !== "environment");
  video.srcObject = stream;
  await video.play();
}

export function release(video) {
  video.srcObject = null;
  videos.delete(video);
  if (!videos.size) close();
}

function close() {
  opening?.then((stream) => stream.getTracks().forEach((track) => track.stop()), () => {});
  opening = null;
}

export async function cameraCount() {
  const devices = await navigator.mediaDevices.enumerateDevices();
  return devices.filter((device) => device.kind === "videoinput").length;
}

/** Switch between the camera that faces the user and the other one. */
export async function switchCamera() {
  facing = facing === "environment" ? "user" : "environment";
  close();  // phones cannot open two cameras at once
  try {
    opening = openStream();
    const stream = await opening;
    await Promise.all([...videos].map((video) => show(video, stream)));
  } catch (error) {
    throw new Error(explain(error));
  }
}

function explain(error) {
  if (error.name === "NotAllowedError") return "The browser is not allowed to use the camera. Allow it for this page in the browser's settings.";
  if (error.name === "NotFoundError") return "No camera was found. Connect one, or choose pictures instead.";
  if (error.name === "NotReadableError") return "The camera is in use by another program. Close that program and try again.";
  return "The camera could not be started. Choose pictures instead.";
}

/** Take the centred square of the current frame as a JPEG file; null before the first frame. */
export function takePicture(video, size = 320) {
  const side = Math.min(video.videoWidth, video.videoHeight);
  if (!side) return Promise.resolve(null);
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = Math.min(size, side);
  const left = (video.videoWidth - side) / 2;
  const top = (video.videoHeight - side) / 2;
  canvas.getContext("2d").drawImage(video, left, top, side, side, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => {
    canvas.toBlob((blob) => resolve(blob && new File([blob], "camera.jpg", { type: "image/jpeg" })), "image/jpeg", 0.92);
  });
}
