"""An orchestrator, a trainer or a worker's caller as a process of its own, driven by words on its standard input.

Run as a script. It prints one JSON object a line for everything that happens to it. SIGTERM ends it in order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import select
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xxhash

_MOST_IDS = 5_000_011
"""Made at random; a prime, so that no two chunks of a micro-batch are the same."""


def micro_batch(key: str, nbytes: int) -> dict[str, Any]:
    """Makes a micro-batch whose bytes depend on its key; those of a large one come again and again."""
    seed = xxhash.xxh3_64_intdigest(key.encode())
    rng = np.random.default_rng(seed)
    ids = rng.integers(-1, 512, (min(nbytes // 2, _MOST_IDS),), np.int16)
    return {
        "ids": np.resize(ids, nbytes // 2),
        "mask": rng.random((7,), np.float32),
        "empty": np.zeros((4, 0), np.int32),
        "meta": {"name": key, "version": 3},
    }


def digest(tree: dict[str, Any]) -> str:
    """Digests what arrived, arrays and static values."""
    state = xxhash.xxh3_64()
    for name in ("ids", "mask", "empty"):
        array = np.asarray(tree[name])
        state.update(f"{name} {array.dtype} {array.shape}".encode())
        state.update(array.tobytes())
    state.update(json.dumps(tree["meta"]).encode())
    return state.hexdigest()


def say(**event: Any) -> None:
    """Prints an event."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


async def stage(options: argparse.Namespace) -> None:
    from forebay import Staged, StagingClient

    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    pace = held_pace(options.hold_chunk) if options.hold_chunk else None
    if options.heartbeat_ms:
        hurry_heartbeats(options.heartbeat_ms)
    sent = count_spans()
    async with StagingClient(options.endpoint, retry_s=0.2, timeout_s=30, pace=pace) as client:
        say(event="connected")
        if options.hold_offer:
            await asyncio.to_thread(sys.stdin.readline)
        for index in range(options.first, options.first + options.count):
            key = f"{options.prefix}{index}"
            tree = micro_batch(key, options.nbytes)
            result = await client.stage(tree, key=key, wait_s=options.wait_s, timeout_s=60)
            if isinstance(result, Staged):
                say(event="staged", key=key, digest=digest(tree), state=result.state, sent=dict(sent))
            else:
                say(event="refused", key=key, code=result.code, words=result.words)
        if options.until:
            for index in range(options.first, options.first + options.count):
                await reach(client, f"{options.prefix}{index}", options.until)
    say(event="done")


async def reach(client: Any, key: str, until: str) -> None:
    from forebay.wire import BrokenError, MicroBatchGoneError

    try:
        say(event="reached", key=key, state=await client.wait(key, until=until, timeout_s=60))
    except MicroBatchGoneError as gone:
        say(event="gone", key=key, state=gone.state, words=str(gone))
    except BrokenError as error:
        say(event="broken", key=key, words=str(error))


async def call(options: argparse.Namespace) -> None:
    """Has a worker train one inline payload."""
    from forebay import TrainerHandle

    payload = {"x": np.full(options.nbytes // 4, 1, np.float32), "name": "batch 1"}
    pace = held_pace(options.hold_chunk)
    async with TrainerHandle(options.endpoint, retry_s=0.2, timeout_s=60, pace=pace) as handle:
        trained = await handle.train_step(payload)
        say(event="trained", number=trained.value["number"])
    say(event="done")


def held_pace(chunk: int) -> Any:
    """Makes a pace at which the sender stands still, once, in front of a chunk, until told to go on."""
    from forebay.orchestrator_client.pace import Pace

    class Held(Pace):
        def __init__(self) -> None:
            super().__init__()
            self._left = chunk

        def _carry_s(self, _nbytes: int) -> float:
            self._left -= 1
            if self._left == 0:
                say(event="filling")
                sys.stdin.readline()
            return 0.0

    return Held()


def count_spans() -> Counter[int]:
    """Counts how often the span at each offset leaves, from now on."""
    from forebay.orchestrator_client.payload import WireBytes

    counts: Counter[int] = Counter()
    sent = WireBytes.sent

    def counted(self: WireBytes, span: Any, nbytes: int) -> None:
        counts[span.offset] += 1
        sent(self, span, nbytes)

    WireBytes.sent = counted  # type: ignore[method-assign]
    return counts


def hurry_heartbeats(timeout_ms: int) -> None:
    """Has this process give a silent connection up sooner than after half a minute."""
    from forebay.orchestrator_client import chunk_sender, server_link
    from forebay.sockets import liveness

    ping = liveness.ping
    liveness.HEARTBEAT_MS = timeout_ms // 2  # type: ignore[attr-defined]

    def hurried(socket: Any, **_: Any) -> None:
        ping(socket, timeout_ms=timeout_ms)

    for module in (chunk_sender, server_link):
        module.ping = hurried  # type: ignore[attr-defined]


def hold_that_a_signal_ends() -> Callable[[], object]:
    """Makes a wait for a byte on standard input; a signal just before a read alone would leave it to wait."""
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)

    def hold() -> None:
        if threading.current_thread() is threading.main_thread():
            select.select([sys.stdin, woken], [], [])
        os.read(sys.stdin.fileno(), 1)

    return hold


def train(
    options: argparse.Namespace,
    hold: Callable[[], object],
    say: Callable[..., object] = say,
) -> None:
    """Trains; `say` hears what happens, and `hold` returns when it may go on."""
    import forebay

    def place(path: str, _view: object) -> None:
        """Holds the transfer of a marked leaf until told to go on: the slot stays lent meanwhile."""
        if options.hold_transfer and path == "['ids']":
            say(event="transferring")
            hold()

    with forebay.attach(endpoint=options.endpoint, shardings=place, timeout_s=20) as queue:
        say(event="attached")
        for index in range(options.count):
            if index in options.hold_take:
                say(event="between")
                hold()
            with queue.take(timeout_s=60) as batch:
                say(event="took", key=batch.key, digest=digest(batch.tree))
                if options.hold_batch:
                    hold()
                    say(event="still", key=batch.key, digest=digest(batch.tree))
            say(event="consumed", key=batch.key)
        if options.linger:
            hold()
    say(event="done")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Reads the command line, of a process or of a thread that does the same."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("orchestrator", "trainer", "caller"))
    parser.add_argument("endpoint")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--prefix", default="k")
    parser.add_argument("--nbytes", type=int, default=3_000_000)
    parser.add_argument("--wait-s", type=float, default=30)
    parser.add_argument("--until", default="")
    parser.add_argument("--hold-offer", action="store_true")
    parser.add_argument("--hold-chunk", type=int, default=0, help="stand still in front of the how-manieth chunk")
    parser.add_argument("--heartbeat-ms", type=int, default=0, help="after which a silent connection is given up")
    parser.add_argument("--hold-take", type=int, nargs="*", default=(), help="stand still before these takes")
    parser.add_argument("--hold-batch", action="store_true")
    parser.add_argument("--hold-transfer", action="store_true")
    parser.add_argument("--linger", action="store_true")
    return parser.parse_args(words)


def main() -> None:
    options = parse(sys.argv[1:])
    if options.role == "orchestrator":
        try:
            asyncio.run(stage(options))
        except asyncio.CancelledError:
            say(event="cancelled")
    elif options.role == "caller":
        asyncio.run(call(options))
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        train(options, hold_that_a_signal_ends())


if __name__ == "__main__":
    main()
