"""A transfer without a device: each step of it is held up until a test lets it go on."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np

from forebay.trainer.host_tree import HostTree, PlacedTree, host_tree_of
from forebay.trainer.transfer import OnDevice
from forebay.wire import default_registry, unflatten

from .waiting import WAIT_S


class FakeWork:
    """Dispatched work that is done when a test says so.

    Args:
        is_done: Whether it is done from the start.
    """

    def __init__(self, *, is_done: bool = False) -> None:
        self._done = threading.Event()
        self.waited_for = threading.Event()
        self.lost = False
        if is_done:
            self._done.set()

    def finish(self) -> None:
        self._done.set()

    def is_done(self) -> bool:
        return self._done.is_set()

    def is_lost(self) -> bool:
        return self.lost

    def wait(self) -> None:
        self.waited_for.set()
        assert self._done.wait(WAIT_S)


class FakeArrays:
    """Device arrays of one micro-batch; they are live until nobody refers to them."""

    def __init__(self, name: str, placed: PlacedTree) -> None:
        self.name = name
        self.placed = placed


class FakeTransfer:
    """Keeps books of what a real device would do.

    A transfer, to the device or back, goes through at once, unless `hold` was called: then it stands still until
    `let_go`. What a step puts out is a `FakeWork`, or None. Payloads are made by `payload`.

    Attributes:
        log: What happened, in order: `issue a`, `complete a`, `fetch a`.
        issued_on: Name -> the thread on which its last transfer to the device was started.
        live: Names whose arrays are on the device and were not let go.
        most_at_once: The most transfers that ever ran at the same time.
        fail_with: Name -> what its next transfer to the device raises.
        fail_fetch_with: Name -> what its next transfer back raises.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.issued_on: dict[str, threading.Thread] = {}
        self.fail_with: dict[str, BaseException] = {}
        self.fail_fetch_with: dict[str, BaseException] = {}
        self.most_at_once = 0
        self.begun = threading.Semaphore(0)
        self._at_once = 0
        self._lock = threading.Lock()
        self._may_go_on = threading.Semaphore(0)
        self._holding = False
        self._live: list[str] = []
        # Told by finalizers, which may run at any moment on any thread.
        self._freed = threading.Condition(threading.RLock())

    @property
    def live(self) -> list[str]:
        with self._freed:
            return sorted(self._live)

    def wait_until_live(self, *names: str) -> None:
        """Waits until the arrays of these are on the device, and no others."""
        with self._freed:
            expected = sorted(names)
            assert self._freed.wait_for(lambda: sorted(self._live) == expected, WAIT_S), self._live

    def hold(self) -> None:
        """From now on each transfer stands still until `let_go`."""
        self._holding = True

    def wait_until_begun(self) -> None:
        """Waits until one more transfer has begun."""
        assert self.begun.acquire(timeout=WAIT_S)

    def let_go(self, *, all_after: bool = False) -> None:
        """Lets one held transfer go on; with `all_after` also those to come."""
        if all_after:
            self._holding = False
        self._may_go_on.release()

    def take_apart(self, payload: Any) -> HostTree:
        return host_tree_of(payload, default_registry)

    def place(self, tree: HostTree) -> PlacedTree:
        return PlacedTree(tree, tuple(None for _ in tree.leaves))

    def issue(self, placed: PlacedTree) -> FakeArrays:
        name = name_of(placed.tree)
        self.issued_on[name] = threading.current_thread()
        self._begin(f"issue {name}")
        issued = FakeArrays(name, placed)
        with self._freed:
            self._live.append(name)
            self._freed.notify_all()
        weakref.finalize(issued, self._free, name)
        return issued

    def complete(self, placed: PlacedTree, issued: FakeArrays) -> OnDevice:
        self._end(issued.name, self.fail_with)
        self.log.append(f"complete {issued.name}")
        tree = placed.tree
        leaves = [(issued, index) for index in range(len(tree.leaves))]
        return OnDevice(
            tree=unflatten(tree.structure, leaves, registry=default_registry),
            arrays=(issued,),
            structure=tree.structure,
            paths=tree.paths,
            targets=placed.targets,
            host_bytes=tree.host_bytes,
            signature=tree.signature,
        )

    def fetch(self, on_device: OnDevice) -> PlacedTree:
        (arrays,) = on_device.arrays
        self._begin(f"fetch {arrays.name}")
        self._end(arrays.name, self.fail_fetch_with)
        placed: PlacedTree = arrays.placed
        return placed

    def watch(self, outputs: Any) -> FakeWork | None:
        return outputs if isinstance(outputs, FakeWork) else None

    def _begin(self, what: str) -> None:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            self.log.append(what)
        self.begun.release()

    def _end(self, name: str, fail_with: dict[str, BaseException]) -> None:
        try:
            if self._holding:
                assert self._may_go_on.acquire(timeout=WAIT_S)
            if name in fail_with:
                raise fail_with.pop(name)
        finally:
            with self._lock:
                self._at_once -= 1

    def _free(self, name: str) -> None:
        with self._freed:
            self._live.remove(name)
            self._freed.notify_all()


def payload(name: str, **more: Any) -> dict[str, Any]:
    """Makes a payload; more leaves or static values make it another kind of micro-batch."""
    return {"name": name, "leaf": np.zeros(4, np.float32)} | more


def name_of(tree: HostTree) -> str:
    """Returns the name that a payload was made with."""
    return str(unflatten(tree.structure, list(tree.leaves), registry=default_registry)["name"])
