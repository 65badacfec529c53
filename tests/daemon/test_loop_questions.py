"""Questions to the loop, from threads that must not look for themselves."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator

import pytest

from forebay.daemon.loop_questions import LoopQuestions
from forebay.sockets import Mailbox
from forebay.wire import WaitTimeoutError

_PATIENCE_S = 60.0


class Loop:
    """A loop that does nothing but answer."""

    def __init__(self) -> None:
        self.mailbox = Mailbox()
        self.thread = threading.Thread(target=self._run)
        self._is_over = False
        self.thread.start()

    def _run(self) -> None:
        while not self._is_over:
            assert select.select([self.mailbox], [], [], _PATIENCE_S)[0]
            for event in self.mailbox.take():
                event()

    def close(self) -> None:
        self.mailbox.post(lambda: setattr(self, "_is_over", True))
        self.thread.join()
        self.mailbox.close()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def nobody() -> Iterator[Mailbox]:
    """A mailbox that nobody empties."""
    mailbox = Mailbox()
    yield mailbox
    mailbox.close()


def test_a_question_is_answered_on_the_loops_own_thread(loop: Loop) -> None:
    questions = LoopQuestions(loop.mailbox, answer_s=_PATIENCE_S)
    assert questions.ask(threading.current_thread) is loop.thread


def test_what_a_question_raises_reaches_who_asked_and_not_the_loop(loop: Loop) -> None:
    questions = LoopQuestions(loop.mailbox, answer_s=_PATIENCE_S)
    with pytest.raises(ZeroDivisionError):
        questions.ask(lambda: 1 // 0)
    assert questions.ask(lambda: 7) == 7


def test_a_loop_that_hangs_is_an_error_that_says_how_long_it_was_waited_for(nobody: Mailbox) -> None:
    with pytest.raises(WaitTimeoutError, match=r"loop did not answer within 0\.01 s"):
        LoopQuestions(nobody, answer_s=0.01).ask(lambda: None)


def test_a_loop_that_hangs_gathers_no_questions_without_end(nobody: Mailbox) -> None:
    questions, asked = LoopQuestions(nobody, answer_s=0.001), 40
    for _ in range(asked):
        with pytest.raises(WaitTimeoutError):
            questions.ask(lambda: None)
    assert len(list(nobody.take())) < asked


def test_a_question_that_was_given_up_is_not_looked_into_any_more(nobody: Mailbox) -> None:
    questions, answered = LoopQuestions(nobody, answer_s=0.001), list[int]()
    for number in range(40):
        with pytest.raises(WaitTimeoutError):
            questions.ask(_note(answered, number))
    for event in nobody.take():
        event()
    assert answered == []
    with pytest.raises(WaitTimeoutError):
        questions.ask(_note(answered, 41))
    assert len(list(nobody.take())) == 1, "there is room again"


def _note(answered: list[int], number: int) -> Callable[[], None]:
    return lambda: answered.append(number)
