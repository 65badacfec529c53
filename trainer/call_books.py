"""Decisions about calls: which runs when, what a repeat gets, and what is remembered. No socket, thread or clock.

A call has an id. Its repeat joins it while it runs, and afterwards gets the recorded answer; so a lost answer, a
lost connection and an impatient caller all end with one execution.
"""

from __future__ import annotations

import secrets
from collections import Counter, deque
from collections.abc import Iterable

import msgspec

from forebay.wire import (
    Arrivals,
    Call,
    CallId,
    CallState,
    CancelCall,
    Incoming,
    InProgress,
    Message,
    Raised,
    RefusalCode,
    Refused,
    Returned,
    TreeError,
    decode_manifest,
    printable,
)

from .call_limits import CallLimits
from .call_memory import CallMemory
from .call_record import Address, Answer, CallAction, CallRecord, GiveUp, LetGo, Receive, Run
from .call_states import CallEvent

_LEFT_TO_OTHERS = 4
"""One client leaves the others a quarter of the calls that may wait."""


class CallBooks:
    """All that a worker knows of its calls.

    Args:
        epoch: This run of the worker.
        limits: See `CallLimits`.

    Attributes:
        incoming: Which chunks are wanted; the threads that receive them look there.
    """

    def __init__(self, epoch: str, limits: CallLimits) -> None:
        self.counters: Counter[str] = Counter()
        self.incoming = Incoming()
        self.draining = False
        self._epoch = epoch
        self._limits = limits
        self._unfinished: dict[CallId, CallRecord] = {}
        self._over = CallMemory(limits.remembered_calls)
        self._receiving: dict[int, CallRecord] = {}
        self._waiting: dict[str, deque[CallRecord]] = {}
        self._running: dict[str, CallRecord] = {}
        self._payloads = 0
        self._actions: list[CallAction] = []

    def take_actions(self) -> list[CallAction]:
        """Returns what was decided since the last call."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def unfinished(self) -> Iterable[CallRecord]:
        """The calls that are not over."""
        return self._unfinished.values()

    @property
    def is_running(self) -> bool:
        """Whether any call runs."""
        return bool(self._running)

    # What peers say.

    def call(self, sender: Address, request: Call, lane: str | None, now: float) -> None:
        """Takes a call in, or answers its repeat.

        Args:
            sender: Who asks.
            request: The call.
            lane: Its method's; None if there is no such method.
            now: Monotonic second.
        """
        known = self._known(request.call)
        if request.epoch != self._epoch:
            words = "the worker was restarted since; what it had done before is not known here"
            self._refuse(sender, request.id, RefusalCode.OTHER_RUN, words)
        elif known is not None:
            known.sender, known.message_id = sender, request.id
            self._repeat(known, now)
        elif self._over.is_forgotten(request.call):
            words = "this call is over, and what became of it is not known any more"
            self._refuse(sender, request.id, RefusalCode.FORGOTTEN, words)
        else:
            self._admit(sender, request, lane, now)

    def _known(self, call: CallId) -> CallRecord | None:
        return self._unfinished.get(call) or self._over.get(call)

    def _repeat(self, call: CallRecord, now: float) -> None:
        self.counters["repeats"] += 1
        if call.answer is not None:
            self._answer(call, call.answer)
        elif call.state is CallState.RECEIVING:
            call.deadline = now + self._limits.receive_lease_s
            self._grant(call)
        else:
            self._answer(call, InProgress(state=call.state))

    def _admit(self, sender: Address, request: Call, lane: str | None, now: float) -> None:
        refusal = self._reason_against(sender, request, lane)
        call = CallRecord(
            id=request.call,
            method=request.method,
            lane=lane or "",
            sender=sender,
            message_id=request.id,
            since=now,
            state=CallState.RECEIVING if request.payload else CallState.QUEUED,
            options=request.options,
        )
        if refusal is None and request.payload:
            refusal = self._take_manifest(call, request.payload, now)
        if refusal is not None:
            self._refuse(sender, request.id, *refusal)
            return
        self._unfinished[call.id] = call
        if call.manifest is None:
            self._enqueue(call, now)
        else:
            self._actions.append(Receive(call))

    def _reason_against(self, sender: Address, request: Call, lane: str | None) -> tuple[RefusalCode, str] | None:
        if self.draining:
            return RefusalCode.DRAINING, "the worker is shutting down"
        if lane is None:
            return RefusalCode.UNKNOWN_METHOD, (
                f"the worker has no method {printable(request.method)!r}; TrainerHandle.methods names those it has"
            )
        if len(self._unfinished) >= self._limits.waiting_calls:
            return RefusalCode.TOO_MANY_CALLS, (
                f"{self._limits.waiting_calls} calls wait or run already; call again when some are over"
            )
        share = self._limits.waiting_calls - self._limits.waiting_calls // _LEFT_TO_OTHERS
        if sum(other.is_of(sender, request.call) for other in self.unfinished) >= share:
            return RefusalCode.TOO_MANY_CALLS, (
                f"{share} calls of this client wait or run already, and the others are kept for other clients;"
                " call again when some are over"
            )
        return None

    def _take_manifest(self, call: CallRecord, encoded: bytes, now: float) -> tuple[RefusalCode, str] | None:
        limits = self._limits.limits
        try:
            call.manifest = decode_manifest(encoded, limits)
        except TreeError as error:
            return RefusalCode.BAD_MANIFEST, str(error)
        layout = call.manifest.layout(limits.chunk_bytes)
        call.body_bytes = layout.body_bytes
        taken = sum(other.body_bytes for other in self.unfinished)
        if taken + call.body_bytes > self._limits.inline_bytes:
            words = (
                f"{call.body_bytes} bytes beside {taken} of other calls are over {self._limits.inline_bytes}"
                " (inline_total_bytes); call again when some are over, or stage it"
            )
            return RefusalCode.INLINE_FULL, words
        self._payloads += 1
        call.payload_number = self._payloads % (1 << 32)
        call.deadline = now + self._limits.receive_lease_s
        call.arrivals = Arrivals(call.payload_number, 0, secrets.randbits(64), layout.spans)
        return None

    def cancel(self, sender: Address, request: CancelCall, now: float) -> None:
        """Has a call not run that nobody waits for; one that runs goes on, unless it still waits itself."""
        if request.epoch != self._epoch:
            return
        call = self._known(request.call)
        if call is None and self._over.is_forgotten(request.call):
            return
        if call is None:
            # It overtook its call, or that was lost: a repeat that is under way must not run either.
            call = CallRecord(request.call, "", "", sender, request.id, now)
        if call.state is CallState.RUNNING:
            self._actions.append(GiveUp(call))
        elif call.state in (CallState.RECEIVING, CallState.QUEUED):
            words = "its caller gave it up before it ran"
            self._end(call, CallEvent.CANCEL, Refused(code=RefusalCode.CANCELLED, words=words), now)

    # Payloads.

    def receives(self, call: CallRecord, now: float) -> None:
        """Hears that there is memory for a call's payload."""
        assert call.arrivals is not None
        self._receiving[call.payload_number] = call
        self.incoming.open(call.arrivals)
        if call.arrivals.is_complete:
            self._received(call, now)
        else:
            self._grant(call)

    def cannot_receive(self, call: CallRecord, words: str, now: float) -> None:
        """Hears that there is no memory for a call's payload."""
        self._end(call, CallEvent.REFUSE, Refused(code=RefusalCode.INLINE_FULL, words=words), now)

    def filled(self, arrivals: Arrivals, now: float) -> None:
        """Hears that all of a payload lies in its place; its call may be over by then."""
        call = self._receiving.get(arrivals.slot)
        if call is not None and call.arrivals is arrivals:
            self._received(call, now)

    def _received(self, call: CallRecord, now: float) -> None:
        self._stop_receiving(call)
        call.arrivals = None
        call.move(CallEvent.COMPLETE, now)
        self._enqueue(call, now)
        # Its sender may let go of the payload now.
        self._answer(call, InProgress(state=call.state))

    def _stop_receiving(self, call: CallRecord) -> None:
        # A chunk may still be written there: no payload's memory is ever used for another.
        if self._receiving.pop(call.payload_number, None) is not None and call.arrivals is not None:
            self.incoming.close(call.arrivals)

    def _silent_at(self, call: CallRecord) -> float:
        last_at = call.arrivals.last_at if call.arrivals is not None else 0.0
        return max(call.deadline, last_at + self._limits.receive_lease_s)

    def _grant(self, call: CallRecord) -> None:
        if call.arrivals is None or call.payload_number not in self._receiving:
            return
        attempt, chunk_bytes = f"{call.id.client} {call.id.number}", self._limits.limits.chunk_bytes
        granted = call.arrivals.granted(request_id=call.message_id, attempt=attempt, chunk_bytes=chunk_bytes)
        self._answer(call, granted)

    # Running.

    def _enqueue(self, call: CallRecord, now: float) -> None:
        call.complete_at = now
        self._waiting.setdefault(call.lane, deque()).append(call)
        self._start_next(call.lane, now)

    def _start_next(self, lane: str, now: float) -> None:
        waiting = self._waiting.get(lane)
        if not waiting or lane in self._running:
            return
        call = self._running[lane] = waiting.popleft()
        call.move(CallEvent.START, now)
        self._actions.append(Run(call))

    def ended(self, call: CallRecord, answer: Returned | Raised, now: float) -> None:
        """Hears what became of a call that ran."""
        del self._running[call.lane]
        outcome = "raised" if isinstance(answer, Raised) else "returned"
        self.counters[f"{call.method}_{outcome}"] += 1
        self._end(call, CallEvent.END, answer, now)
        self._start_next(call.lane, now)

    def _end(self, call: CallRecord, event: CallEvent, answer: Returned | Raised | Refused, now: float) -> None:
        if call.payload_number >= 0:
            self._stop_receiving(call)
            self._actions.append(LetGo(call.payload_number))
        if call.state is CallState.QUEUED and call in (waiting := self._waiting.get(call.lane, deque())):
            waiting.remove(call)
        call.end(event, answer, now)
        self._unfinished.pop(call.id, None)
        self._over.add(call)
        self._answer(call, answer)

    # Time.

    def expire(self, now: float) -> None:
        """Gives up payloads whose sender fell silent; a repeat of their calls begins anew."""
        for call in [call for call in self._receiving.values() if self._silent_at(call) <= now]:
            self.counters["receive_expired"] += 1
            self._stop_receiving(call)
            del self._unfinished[call.id]
            self._actions.append(LetGo(call.payload_number))

    def next_deadline(self) -> float | None:
        """Returns the monotonic second at which something expires, if anything may."""
        return min(map(self._silent_at, self._receiving.values()), default=None)

    def drain(self, now: float) -> None:
        """Takes no more calls; those that do not run yet are refused."""
        self.draining = True
        for call in [call for call in self.unfinished if call.state is not CallState.RUNNING]:
            refused = Refused(code=RefusalCode.DRAINING, words="the worker is shutting down")
            self._end(call, CallEvent.REFUSE, refused, now)

    # Answers.

    def _answer(self, call: CallRecord, message: Message) -> None:
        self._actions.append(Answer(call.sender, msgspec.structs.replace(message, id=call.message_id)))

    def _refuse(self, sender: Address, message_id: int, code: RefusalCode, words: str) -> None:
        self.counters[f"refused_{code}"] += 1
        self._actions.append(Answer(sender, Refused(id=message_id, code=code, words=words)))
