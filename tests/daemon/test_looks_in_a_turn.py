"""Many inspectors at once: each turn of the loop answers some of them, and goes on with what is staged."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import zmq

from forebay.daemon import LocalDaemon, local_daemon
from forebay.wire import (
    Advance,
    Advanced,
    GetStatus,
    Message,
    Status,
    Welcome,
    decode_control_reply,
    encode_message,
)

from .test_memory_bounds import connected, said_hello

INSPECTORS = 15
"""One message each, and one of who stages: what a socket is asked for in a turn."""

TRIES = 20
"""Where the questions trickle in, one turn after another answers them all."""


Dealer = zmq.Socket[bytes]


def told(dealer: Dealer, question: Message) -> object:
    """Asks a daemon, and returns what it says next."""
    dealer.send(encode_message(question))
    return decode_control_reply(dealer.recv())


def answered_at_once(daemon: LocalDaemon, inspectors: Sequence[Dealer], orchestrator: Dealer) -> list[Dealer]:
    """Has a daemon that wakes find questions of all inspectors, and of who stages; returns who was answered."""
    os.kill(daemon.pid, signal.SIGSTOP)
    for inspector in inspectors:
        inspector.send(encode_message(GetStatus(id=1)))
    orchestrator.send(encode_message(Advance(id=2, queue="q", policy_version=1)))
    os.kill(daemon.pid, signal.SIGCONT)
    assert isinstance(decode_control_reply(orchestrator.recv()), Advanced)
    # What that turn answered has left by the time at which the next question is answered.
    assert isinstance(told(orchestrator, Advance(id=3, queue="q", policy_version=2)), Advanced)
    return [inspector for inspector in inspectors if inspector.poll(200)]


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
        for _ in range(TRIES):
            answered = answered_at_once(daemon, inspectors, orchestrator)
            for inspector in answered:
                assert isinstance(decode_control_reply(inspector.recv()), Status)
            assert answered
            if len(answered) < INSPECTORS:
                break
        else:
            pytest.fail(f"all {INSPECTORS} were answered at once, {TRIES} times")
        for inspector in set(inspectors) - set(answered):
            status = told(inspector, GetStatus(id=4))
            assert isinstance(status, Status)
            if status.id == 1:  # that answer was late
                status = decode_control_reply(inspector.recv())
                assert isinstance(status, Status)
            assert status.id == 4
