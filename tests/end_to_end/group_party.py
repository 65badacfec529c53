"""What another user of the host tries with a daemon's sockets and pool; says in JSON what came of it.

Called with a role, a user's number, the numbers of more groups with commas, and the role's own words.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import mmap
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zmq

import forebay
import forebay.daemon.main
from forebay.wire import PROTOCOL_VERSION, Attach, Peer, decode_trainer_reply, encode_message


def tell(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def outcome(attempt: Callable[[], object]) -> str:
    """Returns "done", or the name of the error."""
    try:
        attempt()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def map_slot(path: Path, flags: int, prot: int) -> None:
    fd = os.open(path, flags)
    try:
        mmap.mmap(fd, 0, prot=prot).close()
    finally:
        os.close(fd)


def look(folder: str) -> None:
    """Tries everything that is not for everybody."""
    place, pool = Path(folder), Path(folder) / "pool"
    slot = pool / "slot-0000"
    attempts: dict[str, Callable[[], object]] = {
        f"connect {name}": functools.partial(connect, place / name) for name in ("control", "data", "trainer")
    }
    attempts |= {
        "read slot": functools.partial(map_slot, slot, os.O_RDONLY, mmap.PROT_READ),
        "write slot": functools.partial(map_slot, slot, os.O_RDWR, mmap.PROT_READ | mmap.PROT_WRITE),
        "list pool": functools.partial(os.listdir, pool),
        "read header": (pool / "pool.json").read_bytes,
        "lock daemon": functools.partial(os.open, pool / "lock", os.O_RDONLY),
        "make holder": (pool / "holders" / f"by{os.getuid()}").touch,
        "make in pool": (pool / "mine").touch,
        "remove slot": slot.unlink,
    }
    tell(**{name: outcome(attempt) for name, attempt in attempts.items()})


def train(folder: str, *keys: str) -> None:
    """Attaches and trains; holds the last one until it is killed or told to go on."""
    settings = forebay.TrainerSettings(stage_batch="stage")
    with forebay.attach(endpoint=f"ipc://{folder}/trainer", settings=settings, timeout_s=60.0) as queue:
        for key in keys:
            with queue.take(key=key, timeout_s=60.0) as batch:
                tell(key=batch.key, total=int(batch.tree["x"].sum()))
                if key == keys[-1]:
                    sys.stdin.readline()
    tell(done=True)


def ask(folder: str) -> None:
    """Tries to attach; says what it is told."""
    try:
        forebay.attach(endpoint=f"ipc://{folder}/trainer", timeout_s=1.0)
    except forebay.ForebayError as error:
        tell(error=type(error).__name__, words=str(error))


def pose(folder: str, *kinds: str) -> None:
    """Attaches with locks that are none, and with one that is replaced by a folder when it is let go."""
    holders = Path(folder) / "pool" / "holders"
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.rcvtimeo = 60_000
        dealer.connect(f"ipc://{folder}/trainer")
        for kind in kinds:
            path = holders / kind
            make_lock(path, kind)
            with path.open() if kind == "replaced" else contextlib.nullcontext() as lock:
                if lock is not None:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                me = Peer(name="poser", pid=1, host="here")
                attach = Attach(id=1, version=PROTOCOL_VERSION, peer=me, queue=kind, holder=kind)
                dealer.send(encode_message(attach))
                answer = decode_trainer_reply(dealer.recv())
                tell(kind=type(answer).__name__, words=getattr(answer, "words", ""))
                if kind == "replaced":
                    path.unlink()
                    path.mkdir()


def make_lock(path: Path, kind: str) -> None:
    """Makes something in place of a holder's lock."""
    match kind:
        case "folder":
            path.mkdir()
            path.chmod(0o750)
        case "private":
            path.mkdir(0o700)
        case "socket":
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))
        case "closed":
            path.touch(0o000)
        case "replaced":
            path.touch()
            path.chmod(0o640)


def serve(ready_fd: str, parent_fd: str) -> None:
    """Runs a daemon."""
    sys.argv = ["daemon", ready_fd, parent_fd]
    sys.exit(forebay.daemon.main.main())


def load_trainer() -> None:
    """Loads all that a trainer needs."""
    import jax

    assert forebay.attach is not None
    jax.block_until_ready(jax.device_put(np.zeros(3)) + 1)


def become(user: int, groups: list[int]) -> None:
    """Becomes somebody who may do nothing special.

    Not before all is loaded: the interpreter may lie where only root may read.
    """
    os.setgroups(groups)
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    os.umask(0o077)


ROLES: dict[str, Callable[..., None]] = {"look": look, "train": train, "ask": ask, "pose": pose, "serve": serve}

if __name__ == "__main__":
    name, user, groups, *words = sys.argv[1:]
    if name in ("train", "ask"):
        load_trainer()
    become(int(user), [int(group) for group in groups.split(",") if group])
    ROLES[name](*words)
