// Search runs in a worker, and browsers start none from a file. There, this one runs it in a hidden frame instead.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      this.ready = new Promise(resolve => {
        inner.document.open();
        inner.document.write("<!doctype html><body></body>");
        inner.document.close();
        const load = source => new Promise((done, failed) => {
          const script = inner.document.createElement("script");
          script.src = source;
          script.onload = done;
          script.onerror = failed;
          inner.document.body.append(script);
        });
        inner.importScripts = (...sources) => sources.reduce((before, source) => before.then(() => load(new URL(source, url))), Promise.resolve());
        inner.postMessage = data => {
          const message = new MessageEvent("message", { data });
          this.dispatchEvent(message);
          if (this.onmessage) this.onmessage(message);
        };
        load(url).then(resolve);
      });
      this.inner = inner;
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data })));
    }
    terminate() {}
  };
}
