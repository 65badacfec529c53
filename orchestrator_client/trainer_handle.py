"""A trainer as an orchestrator sees it: its worker, which is called, and its host's daemon, which stages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

import msgspec

from forebay.shm import default_endpoint
from forebay.sockets import tell
from forebay.wire import Event, ProtocolError, RefusalCode, StepTimes, TreeRegistry, WorkerStatus, default_registry

from .client import StagingClient
from .key_choice import worker_keys
from .pace import Pace
from .results import Refusal
from .sending import Wire
from .server_kind import DAEMON
from .server_link import ServerLink
from .trained import Trained
from .worker_calls import WORKER, OnSent, WorkerCalls

log = logging.getLogger("forebay.client")


class TrainerHandle:
    """Calls the worker of one trainer, and stages with the daemon of its host; an async context manager.

    Every call may be repeated on its way and runs once. It is meant for the run of the worker that this handle
    knows: if the worker was restarted, the call raises BrokenError, since what had been done before is gone; the
    next call goes to the new one.

    Args:
        endpoint: The worker's endpoint; default the one of this user's worker on this host.
        control_endpoint: The daemon's control endpoint; default the one of this user's daemon on this host.
        queue: The queue that the trainer is attached to.
        name: Of this client, for people.
        registry: Classes that may occur in trees.
        timeout_s: Seconds for the hello and for the short requests.
        retry_s: Seconds without an answer after which a request is repeated.
        silence_s: Seconds without any word, though something was asked, after which the other side is taken to be
            gone; and without a byte that arrives, though something is sent.
        lend_timeout_s: Seconds that a step may wait in the worker until its staged micro-batch is on the device.
        send_chunks: Chunks that are buffered on their way out on each connection, a bound on memory.
        connections: For bulk data, to each of the two; default the setting FOREBAY_CONNECTIONS.
        codec: How arrays travel, `auto` or one of `forebay.wire.CODECS`; default the setting FOREBAY_CODEC.
        least_data_protection: The least that must guard bulk data at tcp, `none`, `authenticated` or `encrypted`;
            nothing is sent where it is less. All but `none` needs keys for a tcp endpoint. Default the setting
            FOREBAY_LEAST_DATA_PROTECTION.
        pace: Limits what is sent to a rate, inline payloads included.
        client_key_file: This client's own secret key file, for tcp; default the setting FOREBAY_CLIENT_KEY_FILE.
        server_key_file: The daemon's public key file, for tcp; default the setting FOREBAY_SERVER_KEY_FILE.
        worker_key_file: The worker's, if it is another; default the setting FOREBAY_WORKER_KEY_FILE.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        control_endpoint: str | None = None,
        queue: str = "train",
        name: str = "orchestrator",
        registry: TreeRegistry = default_registry,
        timeout_s: float = 10.0,
        retry_s: float = 2.0,
        silence_s: float = 30.0,
        lend_timeout_s: float = 30.0,
        send_chunks: int = 4,
        connections: int | None = None,
        codec: str | None = None,
        least_data_protection: str | None = None,
        pace: Pace | None = None,
        client_key_file: str | None = None,
        server_key_file: str | None = None,
        worker_key_file: str | None = None,
    ) -> None:
        self.queue = queue
        self._timeout_s = timeout_s
        self._lend_timeout_s = lend_timeout_s
        self._is_staging = False
        # First: a wrong setting shall leave nothing open.
        endpoint = WORKER.checked(endpoint or default_endpoint("worker"))
        control_endpoint = DAEMON.checked(control_endpoint or default_endpoint("control"))
        keys = worker_keys(client_key_file, server_key_file, worker_key_file)
        self._wire = Wire(
            WORKER,
            endpoint,
            send_chunks=send_chunks,
            connections=connections,
            codec=codec,
            least_data_protection=least_data_protection,
            pace=pace,
            keys=keys,
        )
        # Before the link: it reads the daemon's keys, and the worker's may be whole without them.
        self._staging = StagingClient(
            control_endpoint,
            name=name,
            registry=registry,
            timeout_s=timeout_s,
            retry_s=retry_s,
            silence_s=silence_s,
            send_chunks=send_chunks,
            connections=connections,
            codec=codec,
            least_data_protection=least_data_protection,
            pace=pace,
            client_key_file=client_key_file,
            server_key_file=server_key_file,
        )
        self._link = ServerLink(
            WORKER,
            endpoint,
            name=name,
            retry_s=retry_s,
            silence_s=silence_s,
            keys=keys,
        )
        self._calls = WorkerCalls(self._link, self._wire, registry)

    def __repr__(self) -> str:
        return f"TrainerHandle({self._link.endpoint!r}, {self._staging!r})"

    async def __aenter__(self) -> Self:
        try:
            await self._link.connect(self._timeout_s)
            self._wire.admit(self._calls.data_target())
            self._is_staging = not self._why_it_stages_nothing()
            if self._is_staging:
                await self._staging.__aenter__()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends what is under way, and closes the connections; a second call does nothing."""
        # Else the wire would not be free before all was sent.
        self._link.hang_up()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._link.close)
            stack.push_async_callback(self._wire.close)
            stack.push_async_callback(self._staging.close)

    @property
    def stages(self) -> bool:
        """Whether the trainer takes what is staged; False where TUNIX_STAGE_BATCH is off or no daemon feeds it."""
        return self._is_staging

    def _why_it_stages_nothing(self) -> str:
        welcome = self._calls.welcome
        if welcome.mode == "off":
            return "TUNIX_STAGE_BATCH is off in the trainer"
        return "" if welcome.is_fed else "the trainer is not attached to a daemon"

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the worker's methods."""
        return self._calls.welcome.methods

    # Staging.

    async def stage(
        self,
        payload: Any,
        *,
        key: str = "",
        wait_s: float = 60.0,
        timeout_s: float = 600.0,
        policy_version: int | None = None,
        expires_s: float | None = None,
    ) -> str | Refusal:
        """Stages a micro-batch with the daemon of the trainer's host.

        Args:
            payload: A pytree of numpy arrays and static values.
            key: Its key; default one of its own.
            wait_s: Seconds to wait for a free slot.
            timeout_s: Seconds for all of it.
            policy_version: Of the policy that it was made with; see `StagingClient.stage`.
            expires_s: Seconds from now after which it is stale; see `StagingClient.stage`.

        Returns:
            The key, for `train_step(stage_key=...)`; or a `Refusal`.

        Raises:
            As `StagingClient.stage`. Its bytes may be there all the same: pass the payload with its key then.
        """
        key = key or f"{self._calls.client_id[:12]}/{self._calls.next_number()}"
        if not self._is_staging:
            return Refusal(key, RefusalCode.STAGING_OFF, self._why_it_stages_nothing())
        outcome = await self._staging.stage(
            payload,
            key=key,
            queue=self.queue,
            wait_s=wait_s,
            timeout_s=timeout_s,
            policy_version=policy_version,
            expires_s=expires_s,
        )
        return outcome if isinstance(outcome, Refusal) else outcome.key

    async def advance(self, policy_version: int) -> None:
        """Tells the queue that the trainer was updated; see `StagingClient.advance`. Nothing without a daemon.

        Raises:
            As `StagingClient.advance`.
        """
        if self._is_staging:
            await self._staging.advance(policy_version, queue=self.queue)

    async def reset_staged(self) -> None:
        """Drops all that is staged for the trainer: in its queue at the daemon, and in the trainer itself.

        Raises:
            ForebayError: One of the two did not answer, or refused; the other was asked all the same.
        """
        resets: list[Coroutine[Any, Any, Any]] = [self.call("reset_staged", timeout_s=self._timeout_s)]
        if self._is_staging:
            resets.append(self._staging.reset(queue=self.queue))
        for outcome in await asyncio.gather(*resets, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        # The trainer may have been lent something between the two.
        await self.call("reset_staged", timeout_s=self._timeout_s)

    # Calls.

    async def train_step(
        self,
        payload: Any = None,
        stage_key: str | None = None,
        *,
        timeout_s: float = 3600.0,
        on_sent: OnSent | None = None,
        **options: Any,
    ) -> Trained:
        """Has the trainer run its `fwd_bwd`, and returns when the device is done with it.

        Args:
            payload: The micro-batch, to be sent inline.
            stage_key: The key of a staged one. With a payload as well, what is staged is used if it is there.
            timeout_s: Seconds for all of it; a first step may compile for long.
            on_sent: Called when all of the payload has arrived, and its arrays may be let go or changed.
            **options: For the engine's `fwd_bwd`; static values and small arrays.

        Raises:
            NotBegunError: Nothing was handed to the device; the micro-batch may be passed again.
            RemoteCallError: The step failed; the message and `traceback` say how.
            RefusedError: The worker refused the call.
            WaitTimeoutError: No answer in time; the step may run all the same.
            BrokenError: The worker was stopped or restarted, or says nothing; or nothing arrives at its data
                endpoint.
        """
        if stage_key is not None:
            options = {"stage_key": stage_key, "stage_timeout_s": self._lend_timeout_s} | options
        prepared = await self._calls.prepare("fwd_bwd", payload, options)
        del payload
        returned = await self._calls.run(prepared, timeout_s=timeout_s, on_sent=on_sent)
        if returned.times is None:
            raise ProtocolError("the answer to a step has no times")
        value, omitted = self._calls.value_of(returned)
        return Trained(value=value, omitted=omitted, **_fields(returned.times))

    async def call(self, method: str, payload: Any = None, *, timeout_s: float = 600.0, **options: Any) -> Any:
        """Calls any method of the worker.

        Args:
            method: Its name.
            payload: A micro-batch for it, sent inline.
            timeout_s: Seconds for all of it.
            **options: Its keyword arguments.

        Returns:
            What it returned, as numpy arrays and static values; None, with a warning in the log, if that cannot
            travel.

        Raises:
            As `train_step`.
        """
        prepared = await self._calls.prepare(method, payload, options)
        del payload
        value, omitted = self._calls.value_of(await self._calls.run(prepared, timeout_s=timeout_s))
        if omitted:
            tell(log, logging.WARNING, Event.ANSWER_OMITTED, method=method, reason=omitted)
        return value

    async def stage_batch(self, payload: Any, *, key: str, timeout_s: float = 600.0) -> dict[str, Any]:
        """Stages a payload in the trainer's own process, without a daemon.

        Returns:
            `staged`, a bool; and `reason` if it is False.
        """
        answer: dict[str, Any] = await self.call("stage_batch", payload, timeout_s=timeout_s, key=key)
        return answer

    async def update(self, *, timeout_s: float = 3600.0, **options: Any) -> Any:
        """Has the trainer run its `update`; returns what that returned when the device is done."""
        return await self.call("update", timeout_s=timeout_s, **options)

    async def apply_deferred_update(self, *, timeout_s: float = 3600.0, **options: Any) -> Any:
        """Has the trainer run its `apply_deferred_update`, where its engine has one."""
        return await self.call("apply_deferred_update", timeout_s=timeout_s, **options)

    async def metrics(self) -> dict[str, Any]:
        """Returns the worker's and its queue's numbers.

        Raises:
            As `train_step`.
        """
        answer: dict[str, Any] = await self.call("metrics", timeout_s=self._timeout_s)
        return answer

    async def status(self) -> WorkerStatus:
        """Returns what the worker does now, whatever that is.

        Raises:
            RefusedError: This client may not see it.
            WaitTimeoutError: No answer within `timeout_s`.
            BrokenError: The worker was stopped, or says nothing.
        """
        return await self._calls.status(self._timeout_s)


def _fields(times: StepTimes) -> dict[str, Any]:
    fields = msgspec.structs.asdict(times)
    fields["source"] = "staged" if fields.pop("is_staged") else "inline"
    return fields
