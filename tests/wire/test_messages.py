from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forebay.wire
from forebay.wire import (
    MAX_ENTRIES,
    Attach,
    CallReply,
    CallRequest,
    ControlReply,
    ControlRequest,
    Message,
    MicroBatchState,
    Offer,
    Peer,
    ProtocolError,
    RefusalCode,
    Refused,
    TrainerReply,
    TrainerRequest,
    Want,
    decode_call_reply,
    decode_call_request,
    decode_control_reply,
    decode_control_request,
    decode_trainer_reply,
    decode_trainer_request,
    encode_message,
)

PEER = Peer(name="p", pid=1, host="here")
Decode = Callable[[bytes], Message]
DECODERS: dict[Decode, tuple[type[Message], ...]] = {
    decode_control_request: typing.get_args(ControlRequest),
    decode_control_reply: typing.get_args(ControlReply),
    decode_trainer_request: typing.get_args(TrainerRequest),
    decode_trainer_reply: typing.get_args(TrainerReply),
    decode_call_request: typing.get_args(CallRequest),
    decode_call_reply: typing.get_args(CallReply),
}
CASES = [(decode, cls) for decode, classes in DECODERS.items() for cls in classes]

_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(1 << 63), (1 << 64) - 1),
    str: st.text(max_size=10),
    bytes: st.binary(max_size=10),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    types.NoneType: st.none(),
}


def instances(hint: Any) -> st.SearchStrategy[Any]:
    """Returns a strategy for any type that occurs in a message."""
    if hint in _SCALARS:
        return _SCALARS[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return within(*args)
    if origin is tuple and args[-1] is ...:
        return st.lists(instances(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(instances, args))
    if origin is dict:
        return st.dictionaries(instances(args[0]), instances(args[1]), max_size=3)
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*map(instances, args))
    if issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    assert issubclass(hint, msgspec.Struct)
    fields = msgspec.structs.fields(hint)
    return st.builds(hint, **{field.name: instances(field.type) for field in fields})


def within(hint: Any, bounds: msgspec.Meta) -> st.SearchStrategy[Any]:
    """Returns a strategy for a number, a text or a list that has bounds."""
    if typing.get_origin(hint) is tuple:
        return instances(hint)  # those are short
    if hint is int:
        most = (1 << 64) - 1 if bounds.le is None else int(bounds.le)
        return st.integers(None if bounds.ge is None else int(bounds.ge), most)
    if hint is float:
        return st.floats(bounds.ge, bounds.le)
    assert hint is str
    return st.text(min_size=bounds.min_length or 0, max_size=bounds.max_length)


def test_every_message_class_belongs_to_a_conversation() -> None:
    classes = {
        value
        for value in (getattr(forebay.wire, name) for name in forebay.wire.__all__)
        if isinstance(value, type) and issubclass(value, Message) and value is not Message
    }
    assert classes == {cls for _, cls in CASES}


def ids(value: Any) -> str:
    return str(value.__name__)


@pytest.mark.parametrize(("decode", "cls"), CASES, ids=ids)
@settings(max_examples=40)
@given(data=st.data())
def test_every_message_survives_the_wire(decode: Decode, cls: type[Message], data: st.DataObject) -> None:
    message = data.draw(instances(cls))
    got = decode(encode_message(message))
    assert type(got) is cls
    assert got == message


@pytest.mark.parametrize(("decode", "cls"), CASES, ids=ids)
@settings(max_examples=40)
@given(data=st.data())
def test_damaged_messages_are_decoded_or_refused(decode: Decode, cls: type[Message], data: st.DataObject) -> None:
    frame = bytearray(encode_message(data.draw(instances(cls))))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(frame)))
        length = data.draw(st.integers(0, 3))
        frame[start : start + length] = data.draw(st.binary(max_size=3))
    try:
        message = decode(bytes(frame))
    except ProtocolError:
        return
    assert isinstance(message, DECODERS[decode])
    assert decode(encode_message(message)) is not None


@pytest.mark.parametrize("decode", DECODERS, ids=ids)
@given(frame=st.binary(max_size=100))
def test_garbage_is_a_protocol_error(decode: Decode, frame: bytes) -> None:
    with pytest.raises(ProtocolError, match="a control message cannot be read"):
        decode(frame)


@pytest.mark.parametrize("decode", DECODERS, ids=ids)
@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc0",
        b"\x80",
        b"\x91" * 100_000,
        b"\x81\xa4type" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\x81\xa4type\xdb\xff\xff\xff\xff",
        b"\x81\xa4type\xa2\xff\xff",
        msgspec.msgpack.encode({"type": "offer\0"}),
        msgspec.msgpack.encode({"type": "exec"}),
        msgspec.msgpack.encode({"type": None}),
        msgspec.msgpack.encode({"type": 7}),
        msgspec.msgpack.encode({"id": 1}),
        msgspec.msgpack.encode(["offer", 1]),
        msgspec.msgpack.encode({"type": "message"}),
    ],
    ids=lambda frame: f"{frame[:12]!r}",
)
def test_unknown_types_and_shapes_are_protocol_errors(decode: Decode, frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(frame)


@pytest.mark.parametrize(("decode", "cls"), CASES, ids=ids)
def test_deep_nesting_in_a_field_that_nobody_reads_is_a_protocol_error(decode: Decode, cls: type[Message]) -> None:
    frame = b"\x82\xa4type" + msgspec.msgpack.encode(cls.__struct_config__.tag) + b"\xa1x" + b"\x91" * 100_000
    with pytest.raises(ProtocolError, match="recursion"):
        decode(frame + b"\x90")


@pytest.mark.parametrize("decode", DECODERS, ids=ids)
def test_a_message_of_another_conversation_is_a_protocol_error(decode: Decode) -> None:
    mine = DECODERS[decode]
    for _, cls in CASES:
        if cls not in mine:
            frame = msgspec.msgpack.encode({"type": cls.__struct_config__.tag})
            with pytest.raises(ProtocolError):
                decode(frame)


@pytest.mark.parametrize(
    "wrong",
    [{"wait_s": "soon"}, {"wait_s": None}, {"key": 7}, {"key": b"k"}, {"manifest": 7}, {"id": 1.5}, {"id": "1"}],
    ids=str,
)
def test_a_field_of_the_wrong_type_is_a_protocol_error(wrong: dict[str, Any]) -> None:
    offer = {"type": "offer", "id": 1, "queue": "q", "key": "k", "attempt": "a", "manifest": b"", "wait_s": 1.0}
    assert decode_control_request(msgspec.msgpack.encode(offer)) == Offer(
        id=1, queue="q", key="k", attempt="a", manifest=b"", wait_s=1.0
    )
    with pytest.raises(ProtocolError):
        decode_control_request(msgspec.msgpack.encode(offer | wrong))
    for name in ("queue", "key", "attempt", "manifest", "wait_s"):
        short = {key: value for key, value in offer.items() if key != name}
        with pytest.raises(ProtocolError, match=name):
            decode_control_request(msgspec.msgpack.encode(short))


def test_an_unknown_state_or_code_is_a_protocol_error() -> None:
    reached = {"type": "reached", "id": 1, "state": MicroBatchState.READY}
    assert decode_control_reply(msgspec.msgpack.encode(reached)).id == 1
    with pytest.raises(ProtocolError):
        decode_control_reply(msgspec.msgpack.encode(reached | {"state": "nowhere"}))
    refused = {"type": "refused", "id": 1, "code": RefusalCode.NO_SLOT, "words": ""}
    assert decode_control_reply(msgspec.msgpack.encode(refused)).id == 1
    with pytest.raises(ProtocolError):
        decode_control_reply(msgspec.msgpack.encode(refused | {"code": "because"}))


def test_a_refusal_tells_the_version_so_that_both_can_be_named() -> None:
    assert Refused(code=RefusalCode.VERSION, words="").version == forebay.wire.PROTOCOL_VERSION


def test_a_newer_peers_extra_fields_are_ignored() -> None:
    frame = msgspec.msgpack.encode({"type": "want", "holder": "h", "credit_total": 2, "colour": "red"})
    assert decode_trainer_request(frame) == Want(holder="h", credit_total=2)


@pytest.mark.parametrize(
    ("message", "field", "entry"),
    [
        (Want(holder="h", credit_total=1), "keys", "k"),
        (Attach(version=1, peer=PEER, queue="q", holder="h"), "on_device", ("k", "attempt")),
        (Attach(version=1, peer=PEER, queue="q", holder="h"), "held", (1, 2)),
    ],
)
def test_a_trainer_names_no_more_keys_and_slots_in_a_message_than_the_limit(
    message: Message, field: str, entry: Any
) -> None:
    most, more = (msgspec.structs.replace(message, **{field: (entry,) * (MAX_ENTRIES + i)}) for i in (0, 1))
    assert decode_trainer_request(encode_message(most)) == most
    with pytest.raises(ProtocolError, match=f"`array` of length <= {MAX_ENTRIES}"):
        decode_trainer_request(encode_message(more))


def test_messages_cannot_be_changed_once_made() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        Want(holder="h", credit_total=1).credit_total = 2  # type: ignore[misc]
