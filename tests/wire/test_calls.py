"""Messages between an orchestrator and a trainer's worker; what holds for all messages is in test_messages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from forebay.wire import (
    Call,
    CallId,
    CancelCall,
    GetWorkerStatus,
    Goodbye,
    Granted,
    Hello,
    InProgress,
    Limits,
    PackedTree,
    Peer,
    ProtocolError,
    RefusalCode,
    Refused,
    Returned,
    Welcome,
    WorkerWelcome,
    decode_call_reply,
    decode_call_request,
    decode_control_reply,
    decode_control_request,
    encode_message,
)

CALL: dict[str, Any] = {
    "type": "call",
    "id": 1,
    "epoch": "e",
    "call": ["client", 7],
    "method": "m",
    "options": [b"", b""],
}
PEER = Peer(name="n", pid=1, host="h")


def welcome(kind: type[Welcome], **more: Any) -> Welcome:
    common: dict[str, Any] = {
        "version": 1,
        "software": "0",
        "epoch": "e",
        "peer": PEER,
        "data_endpoint": "ipc://d",
    }
    return kind(**common, limits=Limits(), **more)


WORKERS = welcome(WorkerWelcome, mode="stage", is_fed=True, methods=("fwd_bwd",))


def test_a_call_without_a_payload_is_this() -> None:
    assert decode_call_request(msgspec.msgpack.encode(CALL)) == Call(
        id=1, epoch="e", call=CallId("client", 7), method="m", options=PackedTree(b"", b""), payload=b""
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"call": ["client", 0]},
        {"call": ["client", -1]},
        {"call": ["client", 1.5]},
        {"call": ["client", "1"]},
        {"call": ["", 1]},
        {"call": ["x" * 65, 1]},
        {"call": ["client"]},
        {"call": "client 1"},
        {"call": None},
        {"epoch": None},
        {"method": 7},
        {"method": b"m"},
        {"options": [b""]},
        {"options": {}},
        {"options": ["", ""]},
        {"payload": None},
        {"payload": "text"},
        {"id": "1"},
    ],
    ids=str,
)
def test_a_call_with_a_wrong_field_is_a_protocol_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        decode_call_request(msgspec.msgpack.encode(CALL | wrong))
    if "call" in wrong:
        cancel = {"type": "cancelcall", "epoch": "e", "call": wrong["call"]}
        with pytest.raises(ProtocolError, match="cannot be read"):
            decode_call_request(msgspec.msgpack.encode(cancel))


@pytest.mark.parametrize("name", ["epoch", "call", "method", "options"])
def test_a_call_without_one_of_its_fields_is_a_protocol_error(name: str) -> None:
    short = {key: value for key, value in CALL.items() if key != name}
    with pytest.raises(ProtocolError, match=name):
        decode_call_request(msgspec.msgpack.encode(short))


@pytest.mark.parametrize("call", [CallId("x" * 64, 1), CallId("\u20ac" * 64, (1 << 63) - 1)])
def test_the_longest_client_and_the_largest_number_are_read(call: CallId) -> None:
    for message in (
        Call(epoch="", call=call, method="", options=PackedTree(b"", b"")),
        CancelCall(epoch="", call=call),
    ):
        assert decode_call_request(encode_message(message)) == message


def test_a_workers_welcome_is_a_welcome_and_no_daemons() -> None:
    assert isinstance(WORKERS, Welcome)
    assert decode_call_reply(encode_message(WORKERS)) == WORKERS
    with pytest.raises(ProtocolError):
        decode_control_reply(encode_message(WORKERS))
    with pytest.raises(ProtocolError):
        decode_call_reply(encode_message(welcome(Welcome)))


def test_hello_refusal_grant_and_goodbye_are_those_of_the_daemon() -> None:
    hello = Hello(id=3, version=9, peer=PEER)
    assert decode_call_request(encode_message(hello)) == decode_control_request(encode_message(hello)) == hello
    granted = Granted(
        attempt="a", slot=1, generation=2, token=3, missing=((0, 1),), received_bytes=4, chunk_bytes=5
    )
    refused = Refused(id=3, code=RefusalCode.VERSION, words="no", version=8)
    for message in (granted, refused, Goodbye(kept=False)):
        assert decode_call_reply(encode_message(message)) == message
        assert decode_control_reply(encode_message(message)) == message


@pytest.mark.parametrize("message", [GetWorkerStatus(), CancelCall(epoch="", call=CallId("c", 1))])
def test_a_request_is_no_answer(message: GetWorkerStatus | CancelCall) -> None:
    with pytest.raises(ProtocolError):
        decode_call_reply(encode_message(message))


@pytest.mark.parametrize("message", [Returned(value=None), WORKERS])
def test_an_answer_is_no_request(message: Returned | Welcome) -> None:
    with pytest.raises(ProtocolError):
        decode_call_request(encode_message(message))


def test_an_unknown_state_of_a_call_is_a_protocol_error() -> None:
    assert isinstance(
        decode_call_reply(msgspec.msgpack.encode({"type": "inprogress", "state": "queued"})), InProgress
    )
    with pytest.raises(ProtocolError):
        decode_call_reply(msgspec.msgpack.encode({"type": "inprogress", "state": "lost"}))


def test_a_body_is_not_allocated_for_the_length_that_a_frame_declares() -> None:
    frame = msgspec.msgpack.encode(CALL)
    longer = frame.replace(b"\x92\xc4\x00\xc4\x00", b"\x92\xc4\x00\xc6\xff\xff\xff\xff")
    assert longer != frame
    with pytest.raises(ProtocolError, match="truncated"):
        decode_call_request(longer)
