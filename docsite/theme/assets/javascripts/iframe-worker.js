// The theme's search runs in a worker. Two things are changed about it, both with the class that it makes workers of.
(() => {
  // Browsers refuse a worker to a page opened from the file system. Here it runs in a frame.
  class Frame extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.window = frame.contentWindow
      this.window.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = frame.contentDocument.createElement("script")
      this.loaded = new Promise(resolve => script.addEventListener("load", resolve))
      script.src = new URL(url, location)
      frame.contentDocument.body.append(script)
    }
    postMessage(data) {
      this.loaded.then(() => this.window.dispatchEvent(new MessageEvent("message", { data })))
    }
  }

  // In a query, `word:` names a field of the index, a dash excludes a word, and `a` stands for all words that begin so.
  // In a line of an error they do not.
  const plain = query => {
    const words = query.replace(/[:;,^~*'()<>]|(^|\s)[-+]+/g, " ").split(/\s+/)
    return words.filter(word => word.length > 3 || words.length < 6).join(" ")
  }
  window.Worker = class extends (location.protocol === "file:" ? Frame : Worker) {
    postMessage(message) {
      super.postMessage(message.type === 2 ? { ...message, data: plain(message.data) } : message)
    }
  }
})()
