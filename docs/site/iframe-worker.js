// A browser starts no worker for a page that was opened from a folder. There, the search runs in a hidden frame.
// mkdocs-material would load such a script from another host.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(script) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.document.open();
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise((resolve) => {
        this.inside.ready = resolve;
      });
      const address = new URL(script, location).href;
      this.inside.document.write(`<!doctype html><body><script src="${address}" onload="ready()"></script>`);
      this.inside.document.close();
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
