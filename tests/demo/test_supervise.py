"""A child's events are read to the last, and its end is never missed: good, bad or not at all."""

import os
import queue
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.demo.endpoints import Endpoints
from forebay.demo.events import AnyEvent, PulledBatch, ReplayedBatch, emit
from forebay.demo.settings import DemoSettings
from forebay.demo.supervise import Child, ChildError, Inbox, events_of
from forebay.wire import WaitTimeoutError

EMIT = "from forebay.demo.events import PulledBatch, ReplayedBatch, emit\n"
PULLED = PulledBatch(key="a", payload_bytes=1)
MakeChild = Callable[[str], Child]


@pytest.fixture
def inbox() -> Inbox:
    return queue.SimpleQueue()


@pytest.fixture
def endpoints(tmp_path: Path) -> Endpoints:
    """Those of a worker whose pool's folder was left with nothing but its files."""
    pool = tmp_path / "pool"
    pool.mkdir()
    for name in ("worker.sock", "worker.sock.lock", "worker_data.sock", "worker_data.sock.lock"):
        (pool / name).touch()
    return Endpoints.in_pool(pool, control="ipc:///c", trainer="ipc:///t")


@pytest.fixture
def make_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inbox: Inbox, endpoints: Endpoints) -> MakeChild:
    # In front of what may be there: the tests' forebay is the children's.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def make(program: str) -> Child:
        name = f"program_{len(list(tmp_path.glob('*.py')))}"
        (tmp_path / f"{name}.py").write_text(program)
        return Child(name, [name, DemoSettings().encode(), endpoints.encode()], inbox)

    return make


def events(*children: Child, inbox: Inbox, timeout_s: float = 60.0) -> list[AnyEvent]:
    return list(events_of(children, inbox, timeout_s=timeout_s, check_others=lambda: None))


def test_all_events_of_all_children_come(make_child: MakeChild, inbox: Inbox) -> None:
    one_event = EMIT + "emit(PulledBatch('a', 1))"
    two_events = EMIT + "emit(ReplayedBatch(key='b')); emit(ReplayedBatch(key='c'))"
    with make_child(one_event) as one, make_child(two_events) as two:
        found = events(one, two, inbox=inbox)
    assert set(found) == {PULLED, ReplayedBatch(key="b"), ReplayedBatch(key="c")}


def test_failed_child_is_named_with_its_exit_code_and_last_words(make_child: MakeChild, inbox: Inbox) -> None:
    program = "import sys; print('not an event'); sys.stderr.write('first\\nlast\\n'); sys.exit(7)"
    with make_child(program) as child, pytest.raises(ChildError) as caught:
        events(child, inbox=inbox)
    words = str(caught.value)
    assert words.startswith(f"the program_0 (pid {child.process.pid}) ended with exit code 7; its last words: ")
    assert "first | last" in words
    assert "\n" not in words


def test_killed_child_is_named_with_its_signal(make_child: MakeChild, inbox: Inbox) -> None:
    with make_child(EMIT + "emit(PulledBatch('a', 1))\nimport time; time.sleep(1000)") as child:
        found = events_of([child], inbox, timeout_s=60, check_others=lambda: None)
        assert next(found) == PULLED
        child.process.kill()
        with pytest.raises(ChildError, match="was killed by signal 9; its last words: none"):
            next(found)


def test_silent_child_is_named_after_the_timeout(make_child: MakeChild, inbox: Inbox) -> None:
    words = r"the program_0 \(pid \d+\) reported nothing for 0 s"
    with make_child("import time; time.sleep(1000)") as child, pytest.raises(WaitTimeoutError, match=words):
        events(child, inbox=inbox, timeout_s=0.1)
    assert child.process.returncode == -9


def test_what_went_wrong_elsewhere_comes_before_a_childs_own_failure(make_child: MakeChild, inbox: Inbox) -> None:
    def check() -> None:
        if child.process.poll() is not None:
            raise RuntimeError("the daemon did it")

    with make_child("import sys; sys.exit(1)") as child, pytest.raises(RuntimeError, match="the daemon did it"):
        list(events_of([child], inbox, timeout_s=60, check_others=check))


def test_child_that_is_left_is_killed(make_child: MakeChild) -> None:
    with make_child("import time; time.sleep(1000)") as child:
        assert child.process.poll() is None
    assert child.process.returncode == -9


def test_child_ends_when_its_parent_lets_go_and_leaves_no_socket(
    make_child: MakeChild, endpoints: Endpoints
) -> None:
    program = """
import threading
from forebay.demo.child import run_child
run_child(lambda settings, endpoints: threading.Event().wait())
"""
    pool = Path(endpoints.worker.removeprefix("ipc://")).parent
    with make_child(program) as child:
        assert child.process.stdin is not None
        assert len(list(pool.iterdir())) == 4
        child.process.stdin.close()
        assert child.process.wait(60) == 1
    assert not pool.exists()


def test_folder_in_which_a_daemon_lives_stays(endpoints: Endpoints) -> None:
    pool = Path(endpoints.worker.removeprefix("ipc://")).parent
    (pool / "control.sock").touch()
    endpoints.remove_worker_files()
    endpoints.remove_worker_files()
    assert [path.name for path in pool.iterdir()] == ["control.sock"]


def test_forebay_error_in_a_child_is_one_line(make_child: MakeChild, inbox: Inbox) -> None:
    program = """
from forebay.demo.child import run_child
from forebay.wire import BrokenError
def work(settings, endpoints):
    raise BrokenError(f"{endpoints.control} went away", got=settings.steps)
run_child(work)
"""
    with make_child(program) as child, pytest.raises(ChildError) as caught:
        events(child, inbox=inbox)
    assert str(caught.value).endswith("exit code 1; its last words: BrokenError: ipc:///c went away; got 3")


def test_events_are_one_line_each(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    emit(ReplayedBatch(key="a\nb"))
    sys.stdout.flush()
    assert capfdbinary.readouterr().out == b'{"event":"replayedbatch","key":"a\\nb"}\n'
