"use strict"
// Browsers start no worker from a file on disk. A page that is opened from there searches in a hidden frame instead.
// The search of mkdocs-material recognizes such a frame by the name IFrameWorker.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class IFrameWorker extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      frame.contentDocument.open()
      frame.contentDocument.close()
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const load = source => new Promise((resolve, reject) => {
        const script = frame.contentDocument.createElement("script")
        script.src = source
        script.onload = resolve
        script.onerror = reject
        frame.contentDocument.body.appendChild(script)
      })
      this.inside.importScripts = (...sources) => sources.reduce((done, source) => done.then(() => load(source)), Promise.resolve())
      this.ready = load(new URL(url, location.href).href)
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })))
    }
    terminate() {}
  }
}
