"""Many inspectors at once: each turn of the loop answers some of them, and goes on with what is staged."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from forebay.daemon import local_daemon
from forebay.wire import (
    Advance,
    Advanced,
    GetStatus,
    Status,
    Welcome,
    decode_control_reply,
    encode_message,
)

from .test_memory_bounds import connected, said_hello

INSPECTORS = 15
"""One message each, and one of who stages: what a socket is asked for in a turn."""


def test_questions_that_take_long_leave_time_for_who_stages_and_are_answered_when_they_are_asked_again(
    tmp_path: Path,
) -> None:
    with (
        local_daemon(slots=1024, slot_initial_bytes=4096, log_file=tmp_path / "log") as daemon,
        contextlib.ExitStack() as stack,
    ):
        dealers = [stack.enter_context(connected(daemon.control_endpoint)) for _ in range(INSPECTORS + 1)]
        for dealer in dealers:
            said_hello(dealer)
            assert isinstance(decode_control_reply(dealer.recv()), Welcome)
        *inspectors, orchestrator = dealers
        os.kill(daemon.pid, signal.SIGSTOP)
        for inspector in inspectors:
            inspector.send(encode_message(GetStatus(id=1)))
        orchestrator.send(encode_message(Advance(id=2, queue="q", policy_version=1)))
        os.kill(daemon.pid, signal.SIGCONT)
        assert isinstance(decode_control_reply(orchestrator.recv()), Advanced)
        # What that turn answered has left by the time at which the next question is answered.
        orchestrator.send(encode_message(Advance(id=3, queue="q", policy_version=2)))
        assert isinstance(decode_control_reply(orchestrator.recv()), Advanced)
        answered = [inspector for inspector in inspectors if inspector.poll(200)]
        assert 0 < len(answered) < INSPECTORS
        for inspector in set(inspectors) - set(answered):
            inspector.send(encode_message(GetStatus(id=4)))
            assert isinstance(decode_control_reply(inspector.recv()), Status)
