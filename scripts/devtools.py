"""A browser that is driven by Chromium's DevTools protocol, over a pipe: nothing but Python's own library is needed."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe"]
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowDown": 40, "ArrowUp": 38}


class Failed(Exception):
    pass


class Browser:
    """One process with an empty profile of its own, which is removed with it."""

    def __init__(self, program="chromium"):
        self.profile = tempfile.mkdtemp(prefix="ordermoe-browser-")
        to_read, to_write = os.pipe(), os.pipe()
        ours, theirs = (to_write[0], to_read[1]), (to_read[0], to_write[1])

        def take_pipes():
            # The protocol's own numbers, which may be those of the other end.
            first, second = os.dup(theirs[0]), os.dup(theirs[1])
            os.dup2(first, 3)
            os.dup2(second, 4)

        self.process = subprocess.Popen([program, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"], preexec_fn=take_pipes,
                                        close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        start_new_session=True)
        for end in theirs:
            os.close(end)
        self.input, self.output = ours
        self.rest, self.number, self.answers, self.pages = b"", 0, {}, {}

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for end in (self.input, self.output):
            os.close(end)
        shutil.rmtree(self.profile, ignore_errors=True)

    def hear(self, seconds):
        """Takes in what the browser says within this time; returns once it said anything."""
        if not select.select([self.input], [], [], seconds)[0]:
            return
        part = os.read(self.input, 1 << 20)
        if not part:
            raise Failed("the browser is gone")
        *texts, self.rest = (self.rest + part).split(b"\0")
        for text in texts:
            said = json.loads(text)
            if "id" in said:
                self.answers[said["id"]] = said
            elif said.get("sessionId") in self.pages:
                self.pages[said["sessionId"]].take(said["method"], said["params"])

    def ask(self, method, session=None, seconds=30, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.output, json.dumps(message).encode() + b"\0")
        until, number = time.monotonic() + seconds, self.number
        while number not in self.answers:
            if time.monotonic() > until:
                raise Failed(f"{method}: no answer in {seconds} s")
            self.hear(0.1)
        answer = self.answers.pop(number)
        if "error" in answer:
            raise Failed(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def page(self, width, height, scheme):
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.pages[session] = Page(self, target, session)
        self.pages[session].begin(width, height, scheme)
        return self.pages[session]


class Page:
    def __init__(self, browser, target, session):
        self.browser, self.target, self.session, self.width, self.complaints = browser, target, session, 0, []

    def ask(self, method, **parameters):
        return self.browser.ask(method, self.session, **parameters)

    def begin(self, width, height, scheme):
        self.width = width
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("Emulation.setFocusEmulationEnabled", enabled=True)

    def close(self):
        self.browser.ask("Target.closeTarget", targetId=self.target)
        self.browser.pages.pop(self.session, None)

    def take(self, event, told):
        """Keeps whatever the console shows as an error or a warning."""
        if event == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(each.get("value", each.get("description"))) for each in told["args"]))
        elif event == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            entry = told["entry"]
            self.complaints.append(f"{entry['text']} {entry.get('url', '')}".strip())

    def go(self, url):
        self.ask("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'", f"{url} is loaded")

    def run(self, expression):
        told = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise Failed(f"{expression}: {told['exceptionDetails'].get('exception', {}).get('description')}")
        return told["result"].get("value")

    def wait(self, expression, what, seconds=30):
        """Until this is true; gives how many seconds it took."""
        begun = time.monotonic()
        while not self.run(expression):
            if time.monotonic() - begun > seconds:
                raise Failed(f"waited {seconds} s in vain until {what}: {expression}")
            self.browser.hear(0.05)
        return time.monotonic() - begun

    def press(self, key, shift=False):
        code = KEYS.get(key, ord(key[0].upper()))
        text = {"Enter": "\r", "Tab": "", "Escape": "", "ArrowDown": "", "ArrowUp": ""}.get(key, key)
        same = {"key": key, "code": key if len(key) > 1 else "", "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.ask("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **same)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **same)

    def type(self, text):
        for letter in text:
            self.press(letter)

    def tab_to(self, selector, most=120):
        """By the Tab key alone; what has the focus has to be seen to have it."""
        for _ in range(most):
            if self.run(f"document.activeElement?.matches({json.dumps(selector)}) ?? false"):
                seen = self.run("(() => { const s = getComputedStyle(document.activeElement);"
                                " return s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0; })()")
                if not seen:
                    raise Failed(f"{selector} has the focus, and nobody sees it")
                return
            self.press("Tab")
        raise Failed(f"{most} times Tab do not lead to {selector}")

    def picture(self, path):
        """The whole page, as PNG."""
        told = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(told["data"]))
