"""An orchestrator or a trainer as a process of its own, driven by words on its standard input.

Run as a script. It prints one JSON object a line for everything that happens to it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any

import numpy as np
import xxhash


def micro_batch(key: str, nbytes: int) -> dict[str, Any]:
    """Makes a micro-batch whose bytes depend on its key."""
    seed = xxhash.xxh3_64_intdigest(key.encode())
    rng = np.random.default_rng(seed)
    return {
        "ids": rng.integers(-1, 512, (nbytes // 2,), np.int16),
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

    async with StagingClient(options.endpoint, retry_s=0.2) as client:
        say(event="connected")
        for index in range(options.first, options.first + options.count):
            key = f"{options.prefix}{index}"
            tree = micro_batch(key, options.nbytes)
            result = await client.stage(tree, key=key, wait_s=options.wait_s, timeout_s=60)
            if isinstance(result, Staged):
                say(event="staged", key=key, digest=digest(tree))
            else:
                say(event="refused", key=key, code=result.code)
        if options.until:
            for index in range(options.first, options.first + options.count):
                key = f"{options.prefix}{index}"
                say(event="reached", key=key, state=await client.wait(key, until=options.until, timeout_s=60))
    say(event="done")


def train(options: argparse.Namespace) -> None:
    import forebay

    def place(path: str, _view: object) -> None:
        """Holds the transfer of a marked leaf until told to go on: the slot stays lent meanwhile."""
        if options.hold_transfer and path == "['ids']":
            say(event="transferring")
            sys.stdin.readline()

    with forebay.attach(endpoint=options.endpoint, shardings=place, timeout_s=20) as queue:
        say(event="attached")
        for _ in range(options.count):
            with queue.take(timeout_s=60) as batch:
                say(event="took", key=batch.key, digest=digest(batch.tree))
                if options.hold_batch:
                    sys.stdin.readline()
                    say(event="still", key=batch.key, digest=digest(batch.tree))
            say(event="consumed", key=batch.key)
        if options.linger:
            sys.stdin.readline()
    say(event="done")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("orchestrator", "trainer"))
    parser.add_argument("endpoint")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--prefix", default="k")
    parser.add_argument("--nbytes", type=int, default=3_000_000)
    parser.add_argument("--wait-s", type=float, default=30)
    parser.add_argument("--until", default="")
    parser.add_argument("--hold-batch", action="store_true")
    parser.add_argument("--hold-transfer", action="store_true")
    parser.add_argument("--linger", action="store_true")
    options = parser.parse_args()
    if options.role == "orchestrator":
        asyncio.run(stage(options))
    else:
        train(options)


if __name__ == "__main__":
    main()
