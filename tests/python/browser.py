"""Opens a page in a real Chromium without a window, by its DevTools protocol through a pipe. Needs no port and no package.

    with Browser() as browser:
        browser.open(path)
        browser.move(x, y), browser.click(x, y), browser.key("p")
        browser.value("document.title"), browser.screenshot(path)
        browser.complaints()          what the page wrote on its console or threw
"""
import base64
import fcntl
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

from patience import patience

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
SECONDS = 30
KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "Enter": 13, "Escape": 27, "Tab": 9}


def find():
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    def __init__(self, width=1440, height=1000, dark=False):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        ours = [os.pipe(), os.pipe()]
        down, self.writes, self.reads, up = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for pipe in ours for end in pipe)  # not 3 and 4
        for end in ours[0] + ours[1]:
            os.close(end)
        # DevTools reads from 3 and writes to 4. The sandbox needs rights that containers do not have; the page is cenote's own.
        command = [find(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--no-first-run",
                   "--force-color-profile=srgb", f"--user-data-dir={self.folder.name}", "about:blank"]
        self.process = subprocess.Popen(["bash", "-c", f'exec "$@" 3<&{down} 4>&{up}', "bash", *command], pass_fds=(down, up),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(down)
        os.close(up)
        self.waiting, self.number, self.events, self.session = b"", 0, [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.reads)
        os.close(self.writes)
        self.folder.cleanup()

    def _message(self, until):
        while b"\0" not in self.waiting:
            if not select.select([self.reads], [], [], max(0, until - time.monotonic()))[0]:
                raise TimeoutError("Chromium does not answer")
            part = os.read(self.reads, 1 << 20)
            if not part:
                raise EOFError("Chromium has ended")
            self.waiting += part
        text, _, self.waiting = self.waiting.partition(b"\0")
        return json.loads(text)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters, **({"sessionId": self.session} if self.session else {})}
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.writes, data):]
        until = time.monotonic() + patience(SECONDS)
        while True:
            answer = self._message(until)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, path):
        self.call("Page.navigate", url=pathlib.Path(path).resolve().as_uri())
        until = time.monotonic() + patience(SECONDS)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message(until))
        self.settle()

    def settle(self):
        """Waits until the page is painted."""
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "exception"))
        return answer["result"].get("value")

    def text(self, selector):
        return self.value(f"document.querySelector({json.dumps(selector)}).innerText")

    def place(self, selector, right=0.5, down=0.5):
        """Scrolls to an element. Returns its place on the screen."""
        return self.value(f"(e => {{ e.scrollIntoView({{block: 'nearest'}}); const b = e.getBoundingClientRect();"
                          f" return [b.left + b.width * {right}, b.top + b.height * {down}]; }})(document.querySelector({json.dumps(selector)}))")

    def _mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def move(self, x, y):
        self._mouse("mouseMoved", x, y)
        self.settle()

    def click(self, x, y):
        self._mouse("mouseMoved", x, y)
        self._mouse("mousePressed", x, y, button="left", clickCount=1)
        self._mouse("mouseReleased", x, y, button="left", clickCount=1)
        self.settle()

    def drag(self, x, y, to_x, to_y):
        self._mouse("mousePressed", x, y, button="left", clickCount=1)
        for part in (1, 2, 3):
            self._mouse("mouseMoved", x + (to_x - x) * part / 3, y + (to_y - y) * part / 3, button="left", buttons=1)
        self._mouse("mouseReleased", to_x, to_y, button="left", clickCount=1)
        self.settle()

    def wheel(self, x, y, amount):
        self._mouse("mouseWheel", x, y, deltaX=0, deltaY=amount)
        self.settle()

    def key(self, key):
        text = {} if key in KEYS else {"text": key}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=KEYS.get(key, ord(key[0].upper())), **text)
        self.settle()

    def screenshot(self, path, whole=False):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"] if whole else None
        clip = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}, "captureBeyondViewport": True} if size else {}
        pathlib.Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **clip)["data"]))

    def complaints(self):
        """Exceptions, lines on the console, and requests of the page to the network."""
        self.settle()
        bad = [event for event in self.events if event.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")]
        asked = [event["params"]["request"]["url"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [json.dumps(event["params"])[:600] for event in bad] + [url[:200] for url in asked if not url.startswith("file:")]
