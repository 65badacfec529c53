"""Runs a worker's methods on threads, and makes an answer of whatever becomes of them."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any

from forebay.sockets import tell
from forebay.wire import (
    Event,
    HostError,
    Limits,
    ProtocolError,
    Raised,
    Returned,
    TreeRegistry,
    UsageError,
    printable,
    unpack,
    words_of,
)

from .call_record import CallRecord
from .crew import Crew
from .events import StepDone
from .inline_payloads import InlinePayloads
from .step_clock import StepClock
from .trained_keys import AlreadyTrainedError
from .travel import packed
from .worker_methods import EngineMethods, Method, registered

log = logging.getLogger("forebay.trainer")

_MAX_TRACEBACK_CHARS = 16_000
_MIN_THREADS = 2


class CallRunner:
    """Has the methods, and threads for them: one for all that are not concurrent, and a crew for those that are.

    Args:
        engine: The engine's methods.
        payloads: Where payloads of calls are.
        registry: Classes that may occur in trees.
        limits: Upper bounds on a call's trees.
        max_answer_bytes: Bytes of what a method returns; more is left out.

    Attributes:
        methods: By name.
    """

    def __init__(
        self,
        engine: EngineMethods,
        payloads: InlinePayloads,
        *,
        registry: TreeRegistry,
        limits: Limits,
        max_answer_bytes: int,
    ) -> None:
        self.methods: dict[str, Method] = {}
        self._engine = engine
        self._payloads = payloads
        self._registry = registry
        self._limits = limits
        self._max_answer_bytes = max_answer_bytes
        self._crews: dict[bool, Crew] = {}
        self._clocks: dict[CallRecord, StepClock] = {}
        for method in engine.methods():
            self.methods[method.name] = method

    def register(self, name: str, function: Callable[..., Any], *, concurrent: bool) -> None:
        """Adds a method; see `TrainerWorker.register`."""
        self.methods[name] = registered(self.methods, name, function, concurrent)

    def run(self, call: CallRecord, ended: Callable[[Returned | Raised], None]) -> None:
        """Runs a call; `ended` is called on its thread, or on this one if there can be none."""
        method = self.methods[call.method]
        clock = self._clocks[call] = StepClock(call.complete_at)

        def run() -> None:
            answer = self._answer(method, call, clock)
            self._clocks.pop(call, None)
            ended(answer)

        try:
            self._crew(concurrent=method.is_concurrent).submit(run)
        except HostError as error:
            del self._clocks[call]
            ended(self._raised(method.name, error, began=False))

    def give_up(self, call: CallRecord) -> None:
        """Ends a call's wait for its micro-batch, if it is still in that."""
        if (clock := self._clocks.get(call)) is not None:
            clock.is_given_up = True
            self._engine.look_again()

    def _crew(self, *, concurrent: bool) -> Crew:
        if concurrent not in self._crews:
            count = sum(method.is_concurrent for method in self.methods.values())
            size = max(_MIN_THREADS, count) if concurrent else 1
            self._crews[concurrent] = Crew("worker" if concurrent else "worker-serial", size)
        return self._crews[concurrent]

    def _answer(self, method: Method, call: CallRecord, clock: StepClock) -> Returned | Raised:
        try:
            return self._outcome(method, call, clock)
        except BaseException as error:  # noqa: BLE001 - what it returned or raised cannot even be told
            kind, state = type(error).__name__, self._engine.state
            words = "what the method came to cannot be told"
            return Raised(kind=kind, words=words, traceback="", began=True, state=state)

    def _outcome(self, method: Method, call: CallRecord, clock: StepClock) -> Returned | Raised:
        began = False
        try:
            arguments, options = self._arguments(method, call, clock)
            began = not method.is_step
            outputs = method.function(*arguments, **options)
            times = self._engine.times(clock) if method.is_step else None
        except BaseException as error:  # noqa: BLE001 - even an exit: it belongs to whoever called
            # One that was trained before must not be taken for one that may be passed again.
            was_trained = isinstance(error, AlreadyTrainedError)
            return self._raised(method.name, error, began=began or was_trained or clock.began_at is not None)
        if times is not None:
            StepDone(times).emit()
        value, omitted = packed(outputs, self._registry, self._max_answer_bytes)
        return Returned(value=value, omitted=printable(omitted), times=times)

    def _arguments(
        self, method: Method, call: CallRecord, clock: StepClock
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        assert call.options is not None
        options = unpack(call.options, registry=self._registry, limits=self._limits)
        if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
            raise ProtocolError("a call's options", got=type(options).__name__, limit="a dict with text keys")
        if "stage_clock" in options:
            raise UsageError("a call's options", got="stage_clock", limit="none of that name")
        if method.is_step:
            options["stage_clock"] = clock
        if call.manifest is None:
            return (), options
        return (self._payloads.take(call, self._registry),), options

    def _raised(self, name: str, error: BaseException, *, began: bool) -> Raised:
        fields = {"method": name, "began": began, "error": words_of(error)}
        tell(log, logging.WARNING, Event.CALL_RAISED, **fields)
        return Raised(
            kind=type(error).__name__,
            words=words_of(error),
            traceback=_traceback_of(error),
            began=began,
            state=self._engine.state,
        )

    def close(self) -> None:
        """Ends the threads once what they run is over; does not wait for that."""
        for crew in self._crews.values():
            crew.close(0)


def _traceback_of(error: BaseException) -> str:
    try:
        told = "".join(traceback.format_exception(error))[-_MAX_TRACEBACK_CHARS:]
    except Exception:  # noqa: BLE001 - an exception may be anything, and its call must be answered
        return words_of(error)
    # What quotes a file's name may hold characters that no message can.
    return told.encode(errors="backslashreplace").decode()
