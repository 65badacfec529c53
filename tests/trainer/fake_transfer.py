"""A transfer without a device: each step of it is held up until a test lets it go on."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import numpy as np

from forebay.trainer import StagingQueue
from forebay.trainer.entry_states import EntryState
from forebay.trainer.host_tree import HostTree, PlacedTree, host_tree_of
from forebay.trainer.queue_books import Work
from forebay.trainer.transfer import OnDevice
from forebay.wire import default_registry, unflatten

T = TypeVar("T")
WAIT_S = 20.0


class FakeWork:
    """Dispatched work that is done when a test says so.

    Args:
        is_done: Whether it is done from the start.
    """

    def __init__(self, *, is_done: bool = False) -> None:
        self._done = threading.Event()
        self.waited_for = threading.Event()
        if is_done:
            self._done.set()

    def finish(self) -> None:
        self._done.set()

    def is_done(self) -> bool:
        return self._done.is_set()

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


class Watch:
    """Waits for what happens in a queue.

    Args:
        queue: Which one; before it is used.
    """

    def __init__(self, queue: StagingQueue) -> None:
        self._state = queue._state
        # Not the queue's own lock: to tell of a look by that would wake those whom the queue forgot to tell.
        self._looked = threading.Condition()
        self._found_nothing = 0
        self._next_work = self._state.books.next_work
        self._state.books.next_work = self._look  # type: ignore[method-assign]

    def _look(self) -> Work | None:
        work = self._next_work()
        if work is None:
            with self._looked:
                self._found_nothing += 1
                self._looked.notify_all()
        return work

    def settle(self) -> None:
        """Has the promoter look once more, and waits until it has found nothing to do."""
        with self._state.changed:
            before = self._found_nothing
            self._state.promoter.wake()
        with self._looked:
            assert self._looked.wait_for(lambda: self._found_nothing > before, WAIT_S), repr(self._state)

    def until(self, is_so: Callable[[], bool]) -> None:
        """Waits until something is so that the queue tells of."""
        with self._state.changed:
            assert self._state.changed.wait_for(is_so, WAIT_S), repr(self._state)

    def until_state(self, key: str, state: EntryState) -> None:
        """Waits until a queued entry is in a state."""
        books = self._state.books
        self.until(lambda: (entry := books.find(key)) is not None and entry.state is state)

    def until_wanted(self, key: str | None, by: int = 1) -> None:
        """Waits until some threads wait for an entry."""
        books = self._state.books
        self.until(lambda: (books._takers if key is None else books._wanted[key]) == by)


class Call(Generic[T]):
    """A call on a thread of its own."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._future: Future[T] = Future()
        self._function = function
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._future.set_result(self._function())
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asks for the result
            self._future.set_exception(error)

    @property
    def is_done(self) -> bool:
        return self._future.done()

    def result(self) -> T:
        return self._future.result(WAIT_S)

    def error(self) -> BaseException | None:
        return self._future.exception(WAIT_S)


def payload(name: str, **more: Any) -> dict[str, Any]:
    """Makes a payload; more leaves or static values make it another kind of micro-batch."""
    return {"name": name, "leaf": np.zeros(4, np.float32)} | more


def name_of(tree: HostTree) -> str:
    """Returns the name that a payload was made with."""
    return str(unflatten(tree.structure, list(tree.leaves), registry=default_registry)["name"])
