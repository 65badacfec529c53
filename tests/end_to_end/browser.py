"""A headless Chromium, driven by its DevTools protocol over a pipe: no library, no port."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Final, Self

import pytest

_PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.05
_PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
# It reads commands from descriptor 3 and writes answers to descriptor 4.
_WITH_PIPES: Final = 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null'


def chromium() -> str:
    """Returns the program; skips the test where there is none."""
    found = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(_PROGRAMS)} is installed: apt-get install chromium")
    return found


class Browser:
    """One browser with one page.

    Args:
        profile: An empty folder of its own.

    Attributes:
        requested: Addresses that the page has asked for.
        complaints: What the console has as an error or a warning, uncaught errors and violated policies.
    """

    def __init__(self, profile: Path) -> None:
        words = ["/bin/sh", "-c", _WITH_PIPES, "sh", chromium(), *_FLAGS, f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(profile)},
            start_new_session=True,
        )
        self._ids = itertools.count(1)
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.requested: list[str] = []
        self.complaints: list[str] = []
        self._session = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        try:
            target = self._call("Target.createTarget", url="about:blank")["targetId"]
            attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self._call(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # The whole group, which is its own: helpers must not outlive it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    # The protocol.

    def _read(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        while more := os.read(self._process.stdout.fileno(), 1 << 16):
            *whole, rest = (rest + more).split(b"\0")
            for message in map(json.loads, whole):
                if "id" in message:
                    self._answers.put(message)
                else:
                    self._note(message["method"], message.get("params", {}))
        self._answers.put(None)

    def _note(self, method: str, said: dict[str, Any]) -> None:
        match method:
            case "Network.requestWillBeSent":
                self.requested.append(said["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(said["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if said["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(said["args"]))
            case "Log.entryAdded" if said["entry"]["level"] in ("error", "warning"):
                self.complaints.append(f"{said['entry']['source']}: {said['entry']['text']}")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        number = next(self._ids)
        command: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        self._process.stdin.write(json.dumps(command).encode() + b"\0")
        self._process.stdin.flush()
        while True:
            try:
                answer = self._answers.get(timeout=_PATIENCE_S)
            except queue.Empty:
                pytest.fail(f"the browser did not answer {method} within {_PATIENCE_S} s")
            if answer is None:
                pytest.fail(f"the browser ended before it answered {method}")
            if answer["id"] == number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result

    # What a person does.

    def open(self, url: str) -> None:
        """Goes to a page."""
        self._call("Page.navigate", url=url)

    def find(self, expression: str) -> Any:
        """Returns what an expression is in the page."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """Looks until an expression is true in the page."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            if found := self.find(expression):
                return found
            time.sleep(_LOOK_S)
        pytest.fail(f"never true within {_PATIENCE_S} s: {expression}; the page says {self.text()}")

    def text(self) -> str:
        """Returns what a person can read."""
        return str(self.find("document.body.innerText"))

    def look_like(self, *, width: int, height: int, scheme: str) -> None:
        """Makes the page so wide, and light or dark."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def press(self, key: str) -> None:
        """Presses a key."""
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def picture(self) -> str:
        """Returns the whole page as PNG, in base64."""
        return str(self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"])
