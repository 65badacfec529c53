"""A trainer that ends without closing its queue. Run as a script: the daemon's endpoint, how many, how it ends.

It trains all but one of as many micro-batches as it was told; the last one waits on the device when it ends.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp

import forebay
from forebay.trainer.daemon_feed import DaemonFeed

WAIT_S = 60.0

mean = jax.jit(jnp.mean)


class Engine:
    def fwd_bwd(self, batch: Any) -> Any:
        return mean(batch["x"])

    def update(self) -> None:
        pass


def hold_reports(queue: forebay.StagingQueue) -> None:
    """Has nothing more told to the daemon before the queue is ended, as on a machine that is busy enough."""
    feed = queue._parts.feed
    assert isinstance(feed, DaemonFeed)
    link, is_ending = feed._link, threading.Event()
    take_outbox, close = link._take_outbox, link.close

    def wait_and_take() -> None:
        is_ending.wait()
        take_outbox()

    def end() -> Any:
        is_ending.set()
        return close()

    link._take_outbox, link.close = wait_and_take, end  # type: ignore[method-assign]


def train(endpoint: str, count: int) -> forebay.StagedEngine:
    settings = forebay.TrainerSettings(stage_batch="stage", max_device_batches=0)
    queue = forebay.attach(endpoint=endpoint, settings=settings, timeout_s=WAIT_S)
    engine = forebay.StagedEngine(Engine(), queue)
    engine.fwd_bwd(stage_timeout_s=WAIT_S)
    changed = queue._parts.changed
    with changed:
        assert changed.wait_for(lambda: queue.statistics.on_device == count - 1, WAIT_S), queue
    hold_reports(queue)
    for _ in range(count - 2):
        engine.fwd_bwd(stage_timeout_s=WAIT_S)
    return engine


def main(endpoint: str, count: int, end: str) -> None:
    engine = train(endpoint, count)
    if end == "exits":
        sys.exit(0)
    if end == "raises":
        raise ZeroDivisionError(repr(engine))


if __name__ == "__main__":
    endpoint, count, end = sys.argv[1:]
    if end == "falls off its end":
        kept = train(endpoint, int(count))
    else:
        main(endpoint, int(count), end)
