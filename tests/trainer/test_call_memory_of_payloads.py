"""The memory that payloads arrive in: aligned, private, refused where there is none, let go."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest

from forebay.trainer.call_books import CallBooks
from forebay.trainer.call_limits import CallLimits
from forebay.trainer.call_record import Address, Answer, CallRecord, LetGo, Receive, Run
from forebay.trainer.inline_payloads import InlinePayloads
from forebay.wire import (
    Arrivals,
    Call,
    CallId,
    ChunkHeader,
    Granted,
    Message,
    RefusalCode,
    Refused,
    TreeError,
    TreeRegistry,
    default_registry,
    describe,
    flatten,
)

from .call_desk import LIMITS, NO_OPTIONS, manifest_of, refused


class Desk:
    """Books and memory, as the worker has them."""

    def __init__(self) -> None:
        self.books = CallBooks("run", CallLimits(LIMITS))
        self.payloads = InlinePayloads(self.books)
        self.heard: list[Message] = []
        self.runs: list[CallRecord] = []

    def act(self) -> None:
        while actions := self.books.take_actions():
            for action in actions:
                match action:
                    case Answer(message=message):
                        self.heard.append(message)
                    case Receive(call=call):
                        self.payloads.make_room(call)
                    case LetGo(payload_number=number):
                        self.payloads.let_go(number)
                    case Run(call=call):
                        self.runs.append(call)

    def call(self, payload: Any, number: int = 1) -> list[Message]:
        return self.call_with(manifest_of(payload), number)

    def call_with(self, manifest: bytes, number: int = 1) -> list[Message]:
        request = Call(epoch="run", call=CallId("c", number), method="m", options=NO_OPTIONS, payload=manifest)
        self.heard.clear()
        self.books.call(Address(b""), request, str(number), 0.0)
        self.act()
        return list(self.heard)

    def send(self, granted: Granted, body: bytes) -> None:
        """Brings all chunks of a payload with one leaf."""
        for span in range(-(-len(body) // 256)):
            part = body[256 * span : 256 * span + 256]
            header = ChunkHeader(granted.slot, span, len(part), 0, granted.token, 256 * span, 0)
            arrivals = self.books.incoming.claim(header)
            assert isinstance(arrivals, Arrivals)
            target = self.payloads.target(header)
            assert target is not None
            target[:] = part
            if self.books.incoming.settle(arrivals, header, None, 0.0):
                self.books.filled(arrivals, 0.0)
                self.act()

    def taken(self, registry: TreeRegistry = default_registry) -> Any:
        return self.payloads.take(self.runs.pop(0), registry)


def granted(messages: list[Message]) -> Granted:
    [message] = messages
    assert isinstance(message, Granted)
    return message


def test_a_payload_is_what_was_sent_and_its_leaves_are_aligned() -> None:
    desk, sent = Desk(), np.arange(500, dtype=np.int16)
    desk.send(granted(desk.call({"x": sent})), sent.tobytes())
    tree = desk.taken()
    np.testing.assert_array_equal(tree["x"], sent)
    assert tree["x"].ctypes.data % 64 == 0
    assert desk.payloads._memory == {}


def test_no_two_payloads_share_memory_at_any_time() -> None:
    desk, sent = Desk(), [np.full(400, number, np.int16) for number in range(4)]
    trees = []
    for number, array in enumerate(sent, 1):
        desk.send(granted(desk.call({"x": array}, number)), array.tobytes())
        trees.append(desk.taken())
    for tree, array in zip(trees, sent, strict=True):
        np.testing.assert_array_equal(tree["x"], array)


def test_a_payload_without_bytes_is_taken_like_any_other() -> None:
    desk = Desk()
    desk.call({"x": np.zeros((0, 3), np.float32), "n": 3})
    tree = desk.taken()
    assert (tree["x"].shape, tree["x"].dtype, tree["n"]) == ((0, 3), np.float32, 3)


def test_memory_is_let_go_when_the_call_is_over_whether_it_was_taken_or_not() -> None:
    desk = Desk()
    grants = [granted(desk.call({"x": np.zeros(300, np.uint8)}, number)) for number in (1, 2)]
    assert len(desk.payloads._memory) == 2
    desk.books.drain(0.0)
    desk.act()
    assert desk.payloads._memory == {}
    assert len(grants) == 2
    desk.payloads.let_go(grants[0].slot)


def test_a_host_without_memory_refuses_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise MemoryError("Unable to allocate")

    desk = Desk()
    monkeypatch.setattr("forebay.trainer.host_memory.np.empty", refuse)
    answers = desk.call({"x": np.zeros(300, np.uint8)})
    assert refused(answers) is RefusalCode.INLINE_FULL
    assert isinstance(answers[0], Refused)
    assert "no memory: Unable to allocate" in answers[0].words
    assert desk.payloads._memory == {}


def test_what_a_declared_size_needs_is_not_taken_before_it_is_checked() -> None:
    desk = Desk()
    encoded = manifest_of({"x": np.zeros(300, np.uint8)})
    manifest = msgspec.msgpack.decode(encoded)
    manifest[1][0][1], manifest[1][0][3] = [1 << 40], 1 << 40
    assert refused(desk.call_with(msgspec.msgpack.encode(manifest))) is RefusalCode.BAD_MANIFEST
    assert desk.payloads._memory == {}


@dataclasses.dataclass
class TheirClass:
    x: Any


def test_a_class_that_is_not_registered_here_is_an_error_and_the_memory_is_let_go() -> None:
    theirs = TreeRegistry()
    theirs.register(TheirClass)
    desk = Desk()
    desk.call_with(describe(flatten(TheirClass(3), registry=theirs, limits=LIMITS), LIMITS).encode(LIMITS))
    with pytest.raises(TreeError, match="not registered here"):
        desk.taken(TreeRegistry())
    assert desk.payloads._memory == {}


def test_a_chunk_whose_payload_was_let_go_has_no_place() -> None:
    desk = Desk()
    answer = granted(desk.call({"x": np.zeros(256, np.uint8)}))
    header = ChunkHeader(answer.slot, 0, 256, 0, answer.token, 0, 0)
    assert desk.payloads.target(header) is not None
    desk.payloads.let_go(answer.slot)
    assert desk.payloads.target(header) is None
