/* The search runs in a Worker, which browsers refuse to pages that are opened as files. Then this one, in a hidden frame, stands in for it. */
if (location.protocol === "file:") {
    window.Worker = class extends EventTarget {
        constructor(url) {
            super();
            this.frame = document.createElement("iframe");
            this.frame.hidden = true;
            this.ready = new Promise(done => { this.frame.onload = done; });
            document.body.append(this.frame);
            const inside = this.frame.contentWindow;
            inside.document.open();
            inside.importScripts = (...urls) => urls.reduce((before, next) => before.then(() => this.load(next)), Promise.resolve());
            inside.postMessage = data => this.tell(data);
            inside.document.write("<!doctype html><body></body>");
            inside.document.close();
            this.ready = this.load(url);
        }

        load(url) {
            return new Promise((done, failed) => {
                const script = this.frame.contentDocument.createElement("script");
                script.src = url;
                script.onload = done;
                script.onerror = failed;
                this.frame.contentDocument.body.append(script);
            });
        }

        tell(data) {
            const event = new MessageEvent("message", {data});
            this.dispatchEvent(event);
            this.onmessage?.(event);
        }

        postMessage(data) {
            this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data})));
        }

        terminate() {
            this.frame.remove();
        }
    };
}
