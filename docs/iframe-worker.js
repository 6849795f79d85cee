// The search of a site that was opened from a folder: browsers start no worker there, so its script runs in an iframe.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...urls) => Promise.all(urls.map((one) => load(inside, one)));
      this.ready = load(inside, url).then(() => inside);
    }

    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }
  };

  const load = (inside, url) => new Promise((done, failed) => {
    const script = inside.document.createElement("script");
    [script.src, script.onload, script.onerror] = [url, done, failed];
    inside.document.body.append(script);
  });
}
