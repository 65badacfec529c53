"""What `forebay top` shows, and how keys change it: without a terminal or a daemon."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.cli.live.frame import Kind, Rates, Shown, frame, plain_frame, slot_rows
from forebay.cli.live.keys import Key, KeyReader
from forebay.cli.live.view import Sort, View
from forebay.cli.queues import queue_table
from forebay.wire import Peer, QueueStatus, SlotStatus, Status

HOSTILE = "a\x1b[31m\x9b2J\u202e\x7f\r\n\b[bold]:skull:\\[é\U0001f600"
TRAINER = Peer(name="trainer", pid=4711, host="gpu")


def slot(
    index: int, state: str = "READY", *, age_s: float = 1.0, payload_bytes: int = 1, key: str = ""
) -> SlotStatus:
    return SlotStatus(
        index=index,
        generation=1,
        state=state,
        slot_bytes=1 << 20,
        queue="train",
        key=key or f"key {index}",
        payload_bytes=payload_bytes,
        age_s=age_s,
        holder=TRAINER if state == "LENT" else None,
    )


def status(*slots: SlotStatus, queues: int = 1, **fields: object) -> Status:
    made = Status(
        software="1",
        epoch="one",
        peer=Peer(name="daemon", pid=7, host="here"),
        uptime_s=75.0,
        draining=False,
        pool="/pool",
        waiting_offers=2,
        slots=slots,
        queues=tuple(
            QueueStatus(name=f"queue {index}", ready=("a",), on_device=(), trainer=TRAINER, trainer_since_s=1.0)
            for index in range(queues)
        ),
        counters={},
    )
    return msgspec.structs.replace(made, **fields)


SIXTEEN = tuple(slot(index) for index in range(16))


def words(shown: Shown, view: View | None = None, *, columns: int = 80, lines: int = 24) -> list[str]:
    return [line.words for line in frame(shown, view or View(), columns=columns, lines=lines)]


def shown_slots(shown: Shown, view: View, *, lines: int = 24) -> list[int]:
    rows = (line.split() for line in words(shown, view, lines=lines) if " key " in line)
    return [int(row[0].partition(".")[0]) for row in rows if row[0][:1].isdigit()]


# The frame.


def test_sixteen_slots_and_a_queue_are_whole_at_80_by_24() -> None:
    lines = words(Shown(status(*SIXTEEN)))
    assert len(lines) == 24
    assert lines[0] == "daemon 7 on here, up 75 s, serving"
    assert [line.split()[0] for line in lines[4:20]] == [f"{index}.1" for index in range(16)]
    assert lines[20] == ""
    assert lines[21].split()[0] == "queue"
    assert lines[22].startswith("queue 0")
    assert lines[23].startswith("q quit")


@given(
    slots=st.integers(0, 40),
    queues=st.integers(0, 9),
    columns=st.integers(1, 200),
    lines=st.integers(1, 60),
    view=st.builds(View, sort=st.sampled_from(Sort), first=st.integers(0, 50), is_helping=st.booleans()),
)
def test_a_frame_is_never_larger_than_the_terminal(
    slots: int, queues: int, columns: int, lines: int, view: View
) -> None:
    found = status(*(slot(index, key=HOSTILE) for index in range(slots)), queues=queues)
    made = frame(Shown(found), view, columns=columns, lines=lines)
    assert len(made) == lines
    assert all(len(line.words) <= columns for line in made)
    assert all(line.words.isprintable() for line in made)


def test_what_peers_say_drives_nothing() -> None:
    hostile = Peer(name=HOSTILE, pid=1, host=HOSTILE)
    found = status(slot(0, HOSTILE, key=HOSTILE), peer=hostile, software=HOSTILE, epoch=HOSTILE)
    shown = Shown(found, away=HOSTILE)
    for line in (*words(shown, columns=500), *plain_frame(shown, columns=500).splitlines()):
        assert line.isprintable()


def test_slots_that_do_not_fit_are_counted_and_reached_by_scrolling() -> None:
    shown = Shown(status(*(slot(index) for index in range(40))))
    rows = slot_rows(shown.status, 24)
    assert rows == 16
    assert "slots 1 to 16 of 40" in words(shown)
    view = View().pressed(Key.PAGE_DOWN, slots=40, rows=rows)
    assert shown_slots(shown, view) == list(range(16, 32))
    view = view.pressed(Key.PAGE_DOWN, slots=40, rows=rows)
    assert shown_slots(shown, view) == list(range(24, 40))
    assert shown_slots(shown, view.pressed(Key.UP, slots=40, rows=rows)) == list(range(23, 39))
    # A daemon that is back with fewer slots is shown from its first.
    assert shown_slots(Shown(status(*SIXTEEN)), view) == list(range(16))


def test_the_plain_frame_shows_every_slot_and_queue() -> None:
    text = plain_frame(Shown(status(*(slot(index) for index in range(40)), queues=9)), columns=80)
    assert "key 39" in text
    assert "queue 8" in text
    assert "quit" not in text


@pytest.mark.parametrize(
    ("fields", "mood"),
    [
        ({}, "serving"),
        ({"draining": True}, "draining"),
        ({"draining": True, "stopping": True}, "stopping"),
        ({"paused": True}, "serving, all paused"),
        ({"private_bytes": 3 << 20}, "serving, 3 MiB private"),
        ({"private_bytes": 3 << 20, "max_private_bytes": 2 << 30}, "serving, 3 MiB of 2 GiB private"),
    ],
)
def test_the_first_line_tells_the_daemons_mood_and_memory(fields: dict[str, int], mood: str) -> None:
    first = frame(Shown(status(**fields)), View(), columns=80, lines=24)[0]
    assert first.words.endswith(f", {mood}")
    assert first.kind is Kind.TITLE


def test_a_daemon_that_is_away_is_an_alarm_and_what_it_held_last_stays() -> None:
    first, *rest = frame(Shown(status(*SIXTEEN), away="AWAY since 10:00:00, 5 s"), View(), columns=80, lines=24)
    assert first.kind is Kind.ALARM
    assert first.words.endswith("AWAY since 10:00:00, 5 s")
    assert any("key 3" in line.words for line in rest)


def test_a_view_that_stands_still_says_so() -> None:
    assert words(Shown(status()), View(is_frozen=True))[-1].startswith("FROZEN")


# Rates.


def test_rates_are_of_the_time_between_two_looks() -> None:
    before = status(uptime_s=10.0, counters={"published": 5, "finished_consumed": 1})
    now = status(uptime_s=12.0, counters={"published": 9, "finished_consumed": 2, "published_bytes": 4 << 20})
    assert str(Rates.between(before, now)) == "published 2.0/s, 2 MiB/s, consumed 0.5/s"


@pytest.mark.parametrize(
    "before",
    [None, status(epoch="another", uptime_s=1.0), status(uptime_s=75.0), status(uptime_s=80.0)],
    ids=["no look", "another run", "no time between", "the clock of another run"],
)
def test_rates_that_cannot_be_known_are_not_told(before: Status | None) -> None:
    assert Rates.between(before, status()) is None
    assert "rates not known yet" in words(Shown(status()))[1]


# Keys and the view.


PRESSED = {
    b"q": Key.QUIT,
    b" ": Key.FREEZE,
    b"f": Key.FREEZE,
    b"p": Key.FREEZE,
    b"s": Key.SORT,
    b"r": Key.REVERSE,
    b"h": Key.HELP,
    b"\x1b[A": Key.UP,
    b"\x1bOB": Key.DOWN,
    b"\x1b[5~": Key.PAGE_UP,
    b"\x1b[6~": Key.PAGE_DOWN,
}
NOTHING = (b"x", b"\x1b[15~", b"\x1b[1;5C", b"\x1bOP", b"\xc3\xa9", b"Q")


@given(st.lists(st.sampled_from([*PRESSED, *NOTHING])), st.data())
def test_keys_are_the_same_however_their_bytes_are_cut(pressed: list[bytes], data: st.DataObject) -> None:
    stream, reader, keys = b"".join(pressed), KeyReader(), []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        keys += reader.read(stream[:cut])
        stream = stream[cut:]
    assert keys == [PRESSED[one] for one in pressed if one in PRESSED]


@given(st.lists(st.binary(max_size=9)))
def test_any_bytes_are_read_and_little_is_kept(pieces: list[bytes]) -> None:
    reader = KeyReader()
    for piece in pieces:
        reader.read(piece)
    assert len(reader._begun) < 32


@pytest.mark.parametrize(
    ("view", "order"),
    [
        (View(), [0, 1, 2, 3]),
        (View(sort=Sort.AGE), [2, 0, 1, 3]),
        (View(sort=Sort.BYTES), [1, 0, 2, 3]),
        (View(sort=Sort.STATE), [3, 1, 0, 2]),
        (View(is_reversed=True), [3, 2, 1, 0]),
    ],
)
def test_slots_are_sorted_by_what_was_chosen(view: View, order: list[int]) -> None:
    slots = (
        slot(0, "FILLING", age_s=5.0, payload_bytes=20),
        slot(1, "READY", age_s=4.0, payload_bytes=30),
        slot(2, "FILLING", age_s=9.0, payload_bytes=10),
        slot(3, "LENT", age_s=3.0, payload_bytes=5),
    )
    assert [each.index for each in view.in_order(slots)] == order


def test_the_sorts_come_one_after_another_and_begin_again() -> None:
    view, seen = View(first=3), []
    for _ in range(4):
        view = view.pressed(Key.SORT, slots=40, rows=10)
        seen.append(view.sort)
        assert view.first == 0
    assert seen == [Sort.AGE, Sort.BYTES, Sort.STATE, Sort.SLOT]


@given(st.lists(st.sampled_from(Key)), st.integers(0, 40), st.integers(1, 30))
def test_no_keys_scroll_beyond_the_slots(keys: list[Key], slots: int, rows: int) -> None:
    view = View()
    for key in keys:
        view = view.pressed(key, slots=slots, rows=rows)
        assert 0 <= view.first <= max(0, slots - rows)


def test_a_trainer_of_the_daemon_before_is_told_to_be_not_back() -> None:
    queue = QueueStatus(
        name="train", ready=(), on_device=(), trainer=TRAINER, trainer_since_s=0.0, trainer_is_back=False
    )
    assert "not back: trainer pid" in queue_table([queue], columns=80)
