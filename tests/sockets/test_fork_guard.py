"""A child forked while another thread writes a log line ends by itself, and a fork waits for no line for ever."""

from __future__ import annotations

import os
import subprocess
import sys

WAIT_S = 60.0
PREFACE = f"""
import io, logging, os, signal, sys, threading
from forebay.sockets import tell
from forebay.wire import Event

WAIT_S = {WAIT_S:.0f}
log = logging.getLogger("forebay")
writing, let_go = threading.Event(), threading.Event()

class SlowTerminal(io.RawIOBase):
    def writable(self):
        return True

    def write(self, line):
        writing.set()
        assert let_go.wait(WAIT_S)
        return len(line)

def begin_a_line():
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(SlowTerminal()), line_buffering=True)
    line = threading.Thread(target=tell, args=(log, logging.WARNING, Event.SERVING))
    line.start()
    assert writing.wait(WAIT_S)
    return line

def end_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
SLOW_LINE = """
line = begin_a_line()
threading.Timer(0.2, let_go.set).start()
child = os.fork()
if not child:
    signal.alarm(WAIT_S)
    sys.exit(7)
print(end_of(child), end="")
line.join()
"""
STUCK_LINE = """
line = begin_a_line()
child = os.fork()
if not child:
    signal.alarm(WAIT_S)
    sys.stderr = open(os.devnull, "w")
    tell(log, logging.WARNING, Event.SERVING)  # it may write, and fork, whatever became of the other thread
    grandchild = os.fork()
    os._exit(end_of(grandchild) if grandchild else 7)
print(end_of(child), line.is_alive(), end="")
let_go.set()
line.join()
"""


def run(script: str) -> tuple[int, str]:
    # Unbuffered, there is no buffer whose lock could stay behind.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-W", "ignore", "-c", PREFACE + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * WAIT_S, check=False, env=variables)
    sys.stderr.write(done.stderr)
    return done.returncode, done.stdout


def test_a_child_forked_while_another_thread_writes_a_line_ends_by_itself() -> None:
    assert run(SLOW_LINE) == (0, "7")


def test_a_line_that_never_ends_holds_up_a_fork_for_a_while_only() -> None:
    assert run(STUCK_LINE) == (0, "7 True")
