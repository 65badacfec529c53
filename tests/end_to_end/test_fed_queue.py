"""The trainer's staging queue, fed by a real daemon beside what is staged in process; real JAX on the CPU."""

from __future__ import annotations

import asyncio
import os
import threading
import zlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import forebay
from forebay.trainer import JaxTransfer, PromotionError, StagedEngine, StagingQueue, TrainerSettings
from forebay.trainer.daemon_feed import DaemonFeed
from forebay.trainer.host_tree import PlacedTree
from forebay.trainer.transfer import OnDevice
from forebay.wire import MicroBatchGoneError, Status

from .processes import EVENT_S, StartDaemon, all_free, kill, see

T = TypeVar("T")
ROWS, FEATURES = 61, 17
COUNT = 6
FENCE = "fence"
"""A key that is trained before anything else; see `fence`."""


# --- the orchestrator ---


def batch(key: str, name: str = "", *, rows: int = ROWS) -> dict[str, Any]:
    """Makes the micro-batch of a key, or what another name's would hold; more rows make it another kind."""
    name = name or key
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return {
        "x": rng.normal(size=(rows, FEATURES)).astype(np.float32),
        "y": rng.normal(size=(rows,)).astype(np.float32),
        "name": np.frombuffer(name.encode(), np.uint8),
    }


def name_in(tree: dict[str, Any]) -> str:
    """Returns by whose bytes a step was given its micro-batch."""
    return np.asarray(tree["name"]).tobytes().decode()


def with_client(daemon: forebay.LocalDaemon, ask: Callable[[forebay.StagingClient], Awaitable[T]]) -> T:
    async def with_it() -> T:
        async with forebay.StagingClient(daemon.control_endpoint, retry_s=0.2) as client:
            return await ask(client)

    return asyncio.run(with_it())


def offer(daemon: forebay.LocalDaemon, key: str, *, wait_s: float = EVENT_S) -> forebay.Staged | forebay.Refusal:
    return with_client(daemon, lambda client: client.stage(batch(key), key=key, wait_s=wait_s))


def stage(daemon: forebay.LocalDaemon, *keys: str) -> None:
    async def one_by_one(client: forebay.StagingClient) -> None:
        for key in keys:
            result = await client.stage(batch(key), key=key, wait_s=EVENT_S)
            assert isinstance(result, forebay.Staged), result

    with_client(daemon, one_by_one)


def wait(daemon: forebay.LocalDaemon, key: str, until: Any = "consumed") -> str:
    return with_client(daemon, lambda client: client.wait(key, until=until, timeout_s=EVENT_S))


def status(daemon: forebay.LocalDaemon) -> Status:
    return with_client(daemon, lambda client: client.status())


def slots(daemon: forebay.LocalDaemon) -> dict[str, str]:
    """Returns what is in the slots that are not free, as the daemon sees it now: key -> state."""
    return {slot.key: slot.state for slot in status(daemon).slots if slot.state != "FREE"}


def keys(count: int, first: int = 0) -> list[str]:
    return [f"k{index}" for index in range(first, first + count)]


# --- the trainer ---


class HeldTransfer(JaxTransfer):
    """A real transfer that stands still, or fails, where a test wants it.

    Attributes:
        issued: The names whose transfer to the device began, in order.
        begun: Set when the held transfer has handed all its leaves to JAX.
        failing: Names whose transfers fail after that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.issued: list[str] = []
        self.begun = threading.Event()
        self.failing: set[str] = set()
        self._held = ""
        self._may_go_on = threading.Event()

    def hold(self, name: str) -> None:
        self._held = name

    def let_go(self) -> None:
        self._held = ""
        self._may_go_on.set()

    def issue(self, placed: PlacedTree) -> list[jax.Array]:
        self.issued.append(self._name(placed))
        return super().issue(placed)

    def complete(self, placed: PlacedTree, issued: list[jax.Array]) -> OnDevice:
        name = self._name(placed)
        if name == self._held:
            self.begun.set()
            assert self._may_go_on.wait(EVENT_S), f"nobody let the transfer of {name} go on"
        if name in self.failing:
            raise RuntimeError("RESOURCE_EXHAUSTED: no room on the device")
        return super().complete(placed, issued)

    def _name(self, placed: PlacedTree) -> str:
        return placed.tree.leaves[placed.tree.paths.index("['name']")].tobytes().decode()


class HeldOutput:
    """What a step has handed to the device, and what the device finishes when a test says so."""

    def __init__(self) -> None:
        self.waited_for = threading.Event()
        self._done = threading.Event()

    def finish(self) -> None:
        self._done.set()

    def is_ready(self) -> bool:
        return self._done.is_set()

    def block_until_ready(self) -> HeldOutput:
        self.waited_for.set()
        assert self._done.wait(EVENT_S), "nobody finished the work that is waited for"
        return self


@jax.jit
def fwd_bwd(weights: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    def loss(weights: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ weights) - y) ** 2)

    return jax.value_and_grad(loss)(weights)


class Engine:
    """Trains a few weights.

    Args:
        inside: Called with each micro-batch's name inside of `fwd_bwd`.

    Attributes:
        trained: By whose bytes it was trained, in order.
        most_live: The most micro-batches that had device memory when a step began, this one included.
        bits: Every loss, every gradient and the weights after each update.
    """

    def __init__(self, inside: Callable[[str], Any] = lambda _: None) -> None:
        self.trained: list[str] = []
        self.most_live = 0
        self.bits: list[bytes] = []
        self._inside = inside
        self._weights = jnp.linspace(-1, 1, FEATURES, dtype=jnp.float32)
        self._grads = jnp.zeros_like(self._weights)

    def fwd_bwd(self, batch: Any) -> Any:
        live = {array.unsafe_buffer_pointer() for array in jax.live_arrays() if array.shape == (ROWS, FEATURES)}
        self.most_live = max(self.most_live, len(live))
        name = name_in(batch)
        self.trained.append(name)
        outputs = self._inside(name)
        if outputs is not None:
            return outputs
        loss, grads = fwd_bwd(self._weights, batch["x"], batch["y"])
        self._grads = self._grads + grads
        self._keep(loss, grads)
        return loss, grads

    def update(self) -> Any:
        self._weights = self._weights - 0.1 * self._grads
        self._grads = jnp.zeros_like(self._weights)
        self._keep(self._weights)
        return self._weights

    def _keep(self, *arrays: jax.Array) -> None:
        self.bits += [np.asarray(array).tobytes() for array in arrays]


class Attached(StagedEngine):
    """A staged engine on an attached queue, and the parts of it that tests look at.

    Args:
        daemon: To whose queue it attaches.
        cap: Of micro-batches on the device.
        mode: `stage` or `serialize`.
        first: A key that is staged in process before anything is asked for; empty for none.
        inside: Called with each micro-batch's name inside of the engine's `fwd_bwd`; what it returns, if anything,
            is what the engine returns.
    """

    def __init__(
        self,
        daemon: forebay.LocalDaemon,
        *,
        cap: int = 1,
        mode: str = "stage",
        first: str = "",
        inside: Callable[[str], Any] = lambda _: None,
    ) -> None:
        self.inner = Engine(inside)
        self.transfer = HeldTransfer()
        feed = DaemonFeed(daemon.trainer_endpoint, "train", timeout_s=EVENT_S)
        settings = TrainerSettings(stage_batch=mode, max_device_batches=cap)
        super().__init__(self.inner, StagingQueue(self.transfer, settings=settings, feed=feed))
        if first:
            self.stage_batch(batch(first), key=first)
        self.queue.put(batch(FENCE), key=FENCE, timeout_s=EVENT_S).close()

    @property
    def trained(self) -> list[str]:
        return self.inner.trained

    def fence(self) -> None:
        """Comes back when daemon and trainer have heard all that they had told each other before.

        To ask for a key that is trained takes one message each way, on the connection that carries the others.
        """
        with pytest.raises(MicroBatchGoneError, match="consumed"):
            self.queue.take(FENCE, timeout_s=EVENT_S)

    def close(self) -> None:
        # Also when a test failed while it held a transfer.
        self.transfer.let_go()
        super().close()

    def train(self, count: int) -> None:
        for _ in range(count):
            self.fwd_bwd(timeout_s=EVENT_S)


# --- slots (item 15) ---


def test_a_slot_is_released_when_its_transfer_is_complete_and_not_before(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(slots=1)
    with Attached(daemon) as engine:
        engine.transfer.hold("k0")
        engine.fence()
        stage(daemon, "k0")
        assert engine.transfer.begun.wait(EVENT_S)
        engine.fence()
        assert slots(daemon) == {"k0": "LENT"}
        refusal = offer(daemon, "k1", wait_s=0)
        assert isinstance(refusal, forebay.Refusal)
        assert refusal.code == "no_slot"
        engine.transfer.let_go()
        assert wait(daemon, "k0", "on_device") == "on_device"
        assert slots(daemon) == {}
        # The very bytes that k0 came from.
        stage(daemon, "k1")
        engine.train(2)
        assert engine.trained == ["k0", "k1"]
    see(daemon, all_free)


def test_a_transfer_that_failed_keeps_its_slot_and_is_tried_again(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with Attached(daemon) as engine:
        engine.transfer.failing.add("k0")
        stage(daemon, "k0", "k1")
        # However often it failed ahead of this.
        with pytest.raises(PromotionError, match="RESOURCE_EXHAUSTED"):
            engine.fwd_bwd(timeout_s=EVENT_S)
        engine.fence()
        assert slots(daemon)["k0"] == "LENT"
        assert engine.trained == []
        engine.transfer.failing.clear()
        engine.train(2)
        assert engine.trained == ["k0", "k1"]
        assert [wait(daemon, key) for key in keys(2)] == ["consumed", "consumed"]
    see(daemon, all_free)


def test_reset_staged_releases_the_slots_that_wait(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with Attached(daemon) as engine:
        stage(daemon, "k0", "k1")
        with engine.queue.take(timeout_s=EVENT_S) as in_step:
            engine.fence()
            assert slots(daemon) == {"k1": "LENT"}
            engine.reset_staged()
            engine.fence()
            assert slots(daemon) == {}
            assert in_step.key == "k0"
        assert wait(daemon, "k0") == "consumed"
        with pytest.raises(MicroBatchGoneError, match="'k1' is dropped: the trainer reset its queue"):
            wait(daemon, "k1")
        stage(daemon, "k2")
        engine.train(1)
        assert engine.trained == ["k2"]


def test_reset_staged_in_mid_transfer_releases_the_slot_when_that_is_over(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with Attached(daemon) as engine:
        engine.transfer.hold("k0")
        stage(daemon, "k0")
        assert engine.transfer.begun.wait(EVENT_S)
        engine.reset_staged()
        engine.fence()
        assert slots(daemon) == {"k0": "LENT"}
        engine.transfer.let_go()
        with pytest.raises(MicroBatchGoneError, match="'k0' is dropped: the trainer reset its queue"):
            wait(daemon, "k0")
        assert slots(daemon) == {}
        stage(daemon, "k1")
        engine.train(1)
        assert engine.trained == ["k1"]
        assert engine.transfer.issued == [FENCE, "k0", "k1"]


# --- one order (item 16) ---


@pytest.mark.parametrize("cap", [0, 5])
def test_entries_from_slots_and_in_process_keep_one_order(start_daemon: StartDaemon, cap: int) -> None:
    daemon = start_daemon()
    with Attached(daemon, cap=cap) as engine:
        engine.fence()
        for slot_fed, in_process in (("k0", "p0"), ("k1", "p1")):
            stage(daemon, slot_fed)
            engine.fence()
            engine.stage_batch(batch(in_process), key=in_process)
        stage(daemon, "k2")
        engine.fence()
        assert engine.queue.keys == ("k0", "p0", "k1", "p1", "k2")
        engine.train(5)
        assert engine.trained == ["k0", "p0", "k1", "p1", "k2"]
        assert [wait(daemon, key) for key in keys(3)] == ["consumed"] * 3


def test_with_a_cap_of_one_what_is_staged_in_process_goes_before_what_is_not_lent_yet(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon()
    with Attached(daemon, first="p0") as engine:
        stage(daemon, "k0", "k1")
        engine.fence()
        assert engine.queue.keys == ("p0",)
        assert slots(daemon) == {"k0": "READY", "k1": "READY"}
        engine.train(3)
        assert engine.trained == ["p0", "k0", "k1"]


def test_a_key_that_is_staged_in_process_and_then_lent_is_trained_once_by_the_slots_bytes(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon()
    with Attached(daemon, cap=0) as engine:
        engine.stage_batch(batch("k0", "p0"), key="k0")
        engine.stage_batch(batch("p1"), key="p1")
        engine.fence()
        stage(daemon, "k0")
        engine.fence()
        assert engine.queue.keys == ("k0", "p1")
        engine.train(2)
        assert engine.trained == ["k0", "p1"]
        assert wait(daemon, "k0") == "consumed"


def test_a_key_that_was_staged_in_process_and_trained_is_not_trained_again_from_a_slot(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon()
    with Attached(daemon, first="k0") as engine:
        stage(daemon, "k0")
        engine.train(1)
        stage(daemon, "k1")
        engine.train(1)
        assert engine.trained == ["k0", "k1"]
        assert wait(daemon, "k0") == "consumed"


# --- steps by key ---


@pytest.mark.parametrize("cap", [1, 2])
@pytest.mark.parametrize("order", ["0123", "3102", "2301"])
def test_steps_ask_the_daemon_for_their_keys_in_and_out_of_order(
    start_daemon: StartDaemon, order: str, cap: int
) -> None:
    daemon = start_daemon()
    wanted = [f"k{index}" for index in order]
    with Attached(daemon, cap=cap) as engine:
        stage(daemon, *keys(4))
        for key in wanted:
            engine.fwd_bwd(None, stage_key=key, timeout_s=EVENT_S)
        assert engine.trained == wanted
        assert engine.inner.most_live <= cap
        assert [wait(daemon, key) for key in wanted] == ["consumed"] * 4
        assert engine.queue.statistics.inline == {"missing": 1}, "the fence and nothing else"
    see(daemon, all_free)


def test_a_step_out_of_order_takes_the_room_of_the_next_and_leaves_the_others_in_order(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon()
    with Attached(daemon) as engine:
        stage(daemon, *keys(4))
        engine.fence()
        assert wait(daemon, "k0", "on_device") == "on_device"
        engine.stage_batch(batch("p0"), key="p0")
        engine.fwd_bwd(stage_key="k2", timeout_s=EVENT_S)
        engine.train(4)
        assert engine.trained == ["k2", "k0", "p0", "k1", "k3"]
        assert engine.inner.most_live == 1
        assert engine.queue.statistics.demotions == 1
        assert [wait(daemon, key) for key in keys(4)] == ["consumed"] * 4
        # The four, the fence, and what was staged in process.
        assert status(daemon).counters.get("finished_consumed") == 6
    see(daemon, all_free)


def test_a_step_waits_for_a_key_that_is_staged_only_later(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with Attached(daemon) as engine, ThreadPoolExecutor(1) as pool:
        stage(daemon, "k0")
        step = pool.submit(engine.fwd_bwd, None, "k1", timeout_s=EVENT_S)
        # Lent for itself, since a step waits, although k0 has the only place.
        stage(daemon, "k1")
        step.result(EVENT_S)
        engine.train(1)
        assert engine.trained == ["k1", "k0"]


def test_a_key_that_was_trained_is_not_waited_for(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with Attached(daemon) as engine:
        stage(daemon, "k0")
        engine.train(1)
        with pytest.raises(MicroBatchGoneError, match="'k0' is consumed"):
            engine.fwd_bwd(stage_key="k0", timeout_s=EVENT_S)
        assert engine.trained == ["k0"]


# --- steps by key with a payload (item 9) ---


def test_a_payload_that_is_the_same_is_not_transferred_and_the_slots_bytes_are_trained(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon()
    with Attached(daemon) as engine:
        engine.fence()
        stage(daemon, "k0")
        assert wait(daemon, "k0", "on_device") == "on_device"
        engine.fwd_bwd(batch("k0", "q0"), stage_key="k0", timeout_s=EVENT_S)
        assert engine.trained == ["k0"]
        assert engine.transfer.issued == [FENCE, "k0"]
        assert wait(daemon, "k0") == "consumed"


def test_a_payload_that_is_the_same_waits_for_the_transfer_of_the_slots_bytes(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with Attached(daemon) as engine, ThreadPoolExecutor(1) as pool:
        engine.transfer.hold("k0")
        engine.fence()
        stage(daemon, "k0")
        assert engine.transfer.begun.wait(EVENT_S)
        step = pool.submit(engine.fwd_bwd, batch("k0", "q0"), "k0", timeout_s=EVENT_S)
        engine.transfer.let_go()
        step.result(EVENT_S)
        assert engine.trained == ["k0"]
        assert engine.transfer.issued == [FENCE, "k0"]


@pytest.mark.parametrize("lies", ["on the device", "in its slot"])
def test_a_payload_that_is_not_the_same_drops_the_entry_and_is_trained_once(
    start_daemon: StartDaemon, lies: str
) -> None:
    daemon = start_daemon()
    other = batch("k1", "q1", rows=ROWS + 1)
    with Attached(daemon) as engine:
        stage(daemon, "k0", "k1", "k2")
        if lies == "on the device":
            engine.train(1)
            assert wait(daemon, "k1", "on_device") == "on_device"
            engine.fwd_bwd(other, stage_key="k1", timeout_s=EVENT_S)
        else:
            with engine.queue.take("k0", timeout_s=EVENT_S):
                engine.fence()
                assert slots(daemon)["k1"] == "LENT"
                engine.fwd_bwd(other, stage_key="k1", timeout_s=EVENT_S)
        engine.train(1)
        assert engine.trained[-2:] == ["q1", "k2"]
        assert "k1" not in engine.trained
        assert engine.queue.statistics.drops == {"mismatch": 1}
        assert wait(daemon, "k2") == "consumed"
        # Whoever stages the key once more has it not trained a second time.
        offer(daemon, "k1")
        stage(daemon, "k3")
        engine.train(1)
        assert engine.trained[-3:] == ["q1", "k2", "k3"]
        assert wait(daemon, "k1") == "consumed"
    see(daemon, all_free)


@pytest.mark.parametrize("key_is", ["unknown to the daemon", "ready and not lent"])
def test_a_key_that_is_not_there_is_trained_inline_and_then_consumed_for_the_orchestrator(
    start_daemon: StartDaemon, key_is: str
) -> None:
    daemon = start_daemon()
    # While p0 has the only place, nothing is asked for.
    with Attached(daemon, first="p0") as engine:
        if key_is == "ready and not lent":
            stage(daemon, "k0")
            engine.fence()
            assert slots(daemon) == {"k0": "READY"}
        engine.fwd_bwd(batch("k0", "q0"), stage_key="k0", timeout_s=EVENT_S)
        engine.fence()
        assert wait(daemon, "k0") == "consumed"
        assert slots(daemon) == {}
        refusal = offer(daemon, "k0")
        assert isinstance(refusal, forebay.Refusal)
        assert refusal.code == "consumed"
        stage(daemon, "k1")
        engine.train(2)
        assert engine.trained == ["q0", "p0", "k1"]


def test_a_key_that_is_lent_while_a_step_trains_it_inline_is_trained_once(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()

    def meanwhile(name: str) -> None:
        if name == "q0":
            stage(daemon, "k0")
            assert wait(daemon, "k0", "on_device") == "on_device"

    with Attached(daemon, inside=meanwhile) as engine:
        engine.fence()
        engine.fwd_bwd(batch("k0", "q0"), stage_key="k0", timeout_s=EVENT_S)
        assert engine.queue.keys == ()
        assert wait(daemon, "k0") == "consumed"
        stage(daemon, "k1")
        engine.train(1)
        assert engine.trained == ["q0", "k1"]
    see(daemon, all_free)


def test_an_inline_step_that_fails_leaves_what_the_daemon_has_for_its_key(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()

    def fail(name: str) -> None:
        if name == "q0":
            raise ZeroDivisionError

    with Attached(daemon, first="p0", inside=fail) as engine:
        stage(daemon, "k0")
        with pytest.raises(ZeroDivisionError):
            engine.fwd_bwd(batch("k0", "q0"), stage_key="k0", timeout_s=EVENT_S)
        engine.train(2)
        assert engine.trained == ["q0", "p0", "k0"]
        assert wait(daemon, "k0") == "consumed"


# --- the same bits (item 3) ---


def bits_of(engine: StagedEngine, inner: Engine, step: Callable[[str], Any]) -> list[bytes]:
    """Trains each key by a step, with an update after every second; returns every bit that was computed."""
    for index, key in enumerate(keys(COUNT)):
        step(key)
        if index % 2:
            engine.update()
    return inner.bits


@pytest.fixture(scope="module")
def expected_bits() -> list[bytes]:
    """What comes out without any staging."""
    inner = Engine()
    with StagedEngine(inner, StagingQueue(JaxTransfer(), settings=TrainerSettings())) as engine:
        bits = bits_of(engine, inner, lambda key: engine.fwd_bwd(batch(key)))
    assert len(set(bits)) == 2 * COUNT + COUNT // 2
    return bits


def test_what_is_staged_in_process_makes_the_same_bits_as_without_staging(expected_bits: list[bytes]) -> None:
    inner = Engine()
    settings = TrainerSettings(stage_batch="stage")
    with StagedEngine(inner, StagingQueue(JaxTransfer(), settings=settings)) as engine:
        for key in keys(COUNT):
            engine.stage_batch(batch(key), key=key)
        bits = bits_of(engine, inner, lambda key: engine.fwd_bwd(stage_key=key, timeout_s=EVENT_S))
    assert bits == expected_bits


@pytest.mark.parametrize("source", ["slots", "slots and process"])
@pytest.mark.parametrize(("mode", "cap"), [("stage", 1), ("stage", 0), ("serialize", 1), ("serialize", 2)])
def test_what_comes_from_slots_makes_the_same_bits_as_without_staging(
    start_daemon: StartDaemon, expected_bits: list[bytes], mode: str, cap: int, source: str
) -> None:
    daemon = start_daemon(slots=COUNT // 2)
    in_process = [] if source == "slots" else keys(COUNT)[1::2]
    with Attached(daemon, mode=mode, cap=cap) as engine, ThreadPoolExecutor(1) as pool:
        sender = pool.submit(stage, daemon, *(key for key in keys(COUNT) if key not in in_process))
        for key in in_process:
            engine.stage_batch(batch(key), key=key, timeout_s=EVENT_S)
        bits = bits_of(engine, engine.inner, lambda key: engine.fwd_bwd(stage_key=key, timeout_s=EVENT_S))
        sender.result(EVENT_S)
        assert engine.queue.statistics.taken == COUNT
        assert engine.queue.statistics.inline == {"missing": 1}, "the fence and nothing else"
    assert bits == expected_bits


# --- serialize (item 2) ---


def test_in_serialize_a_slot_is_transferred_only_when_the_device_has_finished_what_was_dispatched(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon()
    outputs = {key: HeldOutput() for key in keys(2)}
    with Attached(daemon, mode="serialize", inside=outputs.get) as engine:
        engine.fence()
        stage(daemon, *keys(3))
        for index in range(2):
            key, following = f"k{index}", f"k{index + 1}"
            engine.fwd_bwd(timeout_s=EVENT_S)
            assert outputs[key].waited_for.wait(EVENT_S)
            engine.fence()
            assert slots(daemon)[following] == "LENT"
            assert following not in engine.transfer.issued
            outputs[key].finish()
            assert wait(daemon, following, "on_device") == "on_device"
        engine.train(1)
        assert engine.trained == keys(3)
        assert engine.transfer.issued == [FENCE, *keys(3)]
        assert [wait(daemon, key) for key in keys(3)] == ["consumed"] * 3


def test_an_attached_queue_takes_mode_and_cap_from_the_launchers_variables(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNIX_STAGE_BATCH", "serialize")
    monkeypatch.setenv("TUNIX_STAGE_MAX_DEVICE_BATCHES", "2")
    daemon = start_daemon()
    inner = Engine()
    with StagedEngine(inner, forebay.attach(endpoint=daemon.trainer_endpoint)) as engine:
        assert repr(engine.queue).startswith("StagingQueue(serialize, [], 0 of 2 on the device")
        stage(daemon, *keys(3))
        for key in keys(3):
            engine.fwd_bwd(stage_key=key, timeout_s=EVENT_S)
        assert inner.trained == keys(3)
        assert [wait(daemon, key) for key in keys(3)] == ["consumed"] * 3


# --- more micro-batches than slots ---


@pytest.mark.parametrize("mode", ["stage", "serialize"])
@pytest.mark.parametrize("cap", [0, 1, 2])
def test_more_micro_batches_than_slots_are_all_trained_once_in_order(
    start_daemon: StartDaemon, cap: int, mode: str
) -> None:
    daemon = start_daemon(slots=2)
    count = 9
    with Attached(daemon, cap=cap, mode=mode) as engine, ThreadPoolExecutor(1) as pool:
        sender = pool.submit(stage, daemon, *keys(count))
        engine.train(count)
        sender.result(EVENT_S)
        assert engine.trained == keys(count)
        if cap:
            assert engine.inner.most_live <= cap
        assert [wait(daemon, key) for key in keys(count)] == ["consumed"] * count
    see(daemon, all_free)


def test_with_a_cap_of_two_two_are_on_the_device_and_the_next_wait_in_their_slots(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon(slots=2)
    with Attached(daemon, cap=2) as engine, ThreadPoolExecutor(1) as pool:
        sender = pool.submit(stage, daemon, *keys(5))
        with engine.queue.take(timeout_s=EVENT_S):
            # One more is lent: the place of the first was free when that was taken.
            expected = {"k2": "LENT", "k3": "READY"}
            see(daemon, lambda status: {slot.key: slot.state for slot in status.slots} == expected)
            engine.fence()
            counts = engine.queue.statistics
            assert (counts.in_step, counts.on_device, counts.promotions) == (1, 1, 2)
            assert slots(daemon) == expected
        engine.train(4)
        sender.result(EVENT_S)
        assert engine.trained == keys(4, first=1)
        assert engine.inner.most_live <= 2


def test_without_a_cap_all_come_to_the_device_through_the_few_slots_there_are(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(slots=2)
    with Attached(daemon, cap=0) as engine:
        stage(daemon, "k0")
        with engine.queue.take(timeout_s=EVENT_S):
            stage(daemon, *keys(6, first=1))
            for key in keys(6, first=1):
                assert wait(daemon, key, "on_device") == "on_device"
            assert slots(daemon) == {}
            counts = engine.queue.statistics
            assert (counts.in_step, counts.on_device, counts.queued) == (1, 6, 0)
        engine.train(6)
        assert engine.trained == keys(6, first=1)


# --- a daemon that is followed by another ---


def is_attached(status: Status) -> bool:
    """Tells whether this process has attached to the daemon, not only left slots lent in its pool."""
    return any(queue.trainer is not None and queue.trainer.pid == os.getpid() for queue in status.queues)


@pytest.mark.parametrize("moment", ["between two steps", "in mid-transfer", "out of order"])
def test_a_daemon_killed_and_followed_by_one_that_keeps_the_pool_has_all_trained_and_nothing_twice(
    start_daemon: StartDaemon, moment: str
) -> None:
    first = start_daemon()
    with Attached(first) as engine:
        if moment == "in mid-transfer":
            engine.transfer.hold("k1")
        stage(first, *keys(4))
        engine.train(1)
        if moment == "in mid-transfer":
            assert engine.transfer.begun.wait(EVENT_S)
        else:
            assert wait(first, "k1", "on_device") == "on_device"
        kill(first)
        second = start_daemon()
        see(second, is_attached)
        # What the orchestrator repeats now must not be trained beside what the trainer has.
        refusal = offer(second, "k1")
        assert isinstance(refusal, forebay.Refusal)
        assert refusal.code == "in_use"
        engine.transfer.let_go()
        if moment == "out of order":
            engine.fwd_bwd(stage_key="k3", timeout_s=EVENT_S)
            engine.train(2)
            assert engine.trained == ["k0", "k3", "k1", "k2"]
        else:
            engine.train(3)
            assert engine.trained == keys(4)
        assert [wait(second, key) for key in keys(3, first=1)] == ["consumed"] * 3
        stage(second, "k4")
        engine.train(1)
        assert engine.trained[4:] == ["k4"]
    see(second, all_free)


def test_what_was_trained_while_no_daemon_was_there_is_told_to_the_next(start_daemon: StartDaemon) -> None:
    first = start_daemon()
    with Attached(first) as engine:
        stage(first, *keys(3))
        engine.train(1)
        assert wait(first, "k1", "on_device") == "on_device"
        engine.fence()
        kill(first)
        engine.train(1)
        engine.fwd_bwd(batch("k2", "q2"), stage_key="k2", timeout_s=EVENT_S)
        second = start_daemon()
        see(second, lambda status: status.counters.get("finished_consumed") == 2)
        assert [wait(second, key) for key in keys(2, first=1)] == ["consumed"] * 2
        for key in keys(2, first=1):
            refusal = offer(second, key)
            assert isinstance(refusal, forebay.Refusal)
            assert refusal.code == "consumed"
        stage(second, "k3")
        engine.train(1)
        assert engine.trained == ["k0", "k1", "q2", "k3"]
    see(second, all_free)


def test_a_daemon_followed_by_one_with_another_pool_ends_what_was_only_lent(start_daemon: StartDaemon) -> None:
    first = start_daemon()
    with Attached(first) as engine:
        stage(first, "k0", "k1")
        with engine.queue.take(timeout_s=EVENT_S) as in_step:
            engine.fence()
            assert slots(first) == {"k1": "LENT"}
            first.close()
            second = start_daemon()
            see(second, is_attached)
            assert in_step.key == "k0"
        assert wait(second, "k0") == "consumed"
        stage(second, "k2", "k1")
        engine.train(2)
        assert engine.trained == ["k2", "k1"]
    see(second, all_free)
