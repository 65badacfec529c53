"""The client that stages micro-batches, for orchestrators that run on asyncio."""

from __future__ import annotations

import time
import uuid
from types import TracebackType
from typing import Any, Literal, Self, get_args

from forebay.shm import default_endpoint
from forebay.wire import (
    Advance,
    Advanced,
    Await,
    ClosedError,
    GetStatus,
    Gone,
    Limits,
    MicroBatchGoneError,
    MicroBatchState,
    Offer,
    Reached,
    Refused,
    Reset,
    StaleError,
    Status,
    TreeRegistry,
    UsageError,
    WasReset,
    Welcome,
    check_name,
    chunk_checksum,
    default_registry,
)

from .data_endpoint import Target, data_target
from .freshness import check_freshness
from .key_choice import daemon_keys
from .offering import Offering
from .pace import Pace
from .payload import Payload
from .remote_errors import unexpected
from .results import Refusal, Staged
from .sending import Sending, Wire
from .server_kind import DAEMON
from .server_link import ServerLink

Until = Literal["ready", "on_device", "consumed"]


class StagingClient:
    """Stages micro-batches with one daemon; an async context manager.

    Any number of calls may run at once on one event loop; bulk data leaves in the order of the grants.

    Args:
        endpoint: The daemon's control endpoint; default the one of this user's daemon on this host.
        name: Of this client, for people who look at the daemon.
        registry: Classes that may occur in trees.
        timeout_s: Seconds for the hello and for the short requests.
        retry_s: Seconds without an answer after which a request is repeated.
        silence_s: Seconds without any word, though something was asked, after which the daemon is taken to be
            gone; and without a byte that arrives, though something is sent.
        send_chunks: Chunks that are buffered on their way out on each connection, a bound on memory.
        connections: For bulk data; default the setting FOREBAY_CONNECTIONS.
        codec: How arrays travel, `auto` or one of `forebay.wire.CODECS`; default the setting FOREBAY_CODEC.
        least_data_protection: The least that must guard bulk data at tcp, `none`, `authenticated` or `encrypted`;
            nothing is sent where it is less. All but `none` needs keys for a tcp endpoint. Default the setting
            FOREBAY_LEAST_DATA_PROTECTION.
        pace: Limits what this client sends to a rate, to leave room on a shared link. Clients that share one
            keep to it together.
        client_key_file: This client's own secret key file, for tcp; default the setting FOREBAY_CLIENT_KEY_FILE.
        server_key_file: The daemon's public key file, for tcp; default the setting FOREBAY_SERVER_KEY_FILE.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        name: str = "orchestrator",
        registry: TreeRegistry = default_registry,
        timeout_s: float = 10.0,
        retry_s: float = 2.0,
        silence_s: float = 30.0,
        send_chunks: int = 4,
        connections: int | None = None,
        codec: str | None = None,
        least_data_protection: str | None = None,
        pace: Pace | None = None,
        client_key_file: str | None = None,
        server_key_file: str | None = None,
    ) -> None:
        # First: a wrong setting shall leave nothing open.
        endpoint = DAEMON.checked(endpoint or default_endpoint("control"))
        keys = daemon_keys(client_key_file, server_key_file)
        self._wire = Wire(
            DAEMON,
            endpoint,
            send_chunks=send_chunks,
            connections=connections,
            codec=codec,
            least_data_protection=least_data_protection,
            pace=pace,
            keys=keys,
        )
        self._link = ServerLink(
            DAEMON,
            endpoint,
            name=name,
            retry_s=retry_s,
            silence_s=silence_s,
            keys=keys,
        )
        self._registry = registry
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"StagingClient({self._link.endpoint!r})"

    async def __aenter__(self) -> Self:
        try:
            await self._link.connect(self._timeout_s)
            self._wire.admit(self._data_target())
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
        await self._wire.close()
        await self._link.close()

    async def stage(
        self,
        tree: Any,
        *,
        key: str,
        queue: str = "train",
        wait_s: float = 60.0,
        timeout_s: float = 600.0,
        policy_version: int | None = None,
        expires_s: float | None = None,
    ) -> Staged | Refusal:
        """Puts a micro-batch into a slot of the daemon's pool.

        The arrays are sent from where they are; strided and byte-swapped ones are copied first. They may be
        changed as soon as this returns. A second call with the same key takes the first one's entry out at
        once and gets its place, unless the trainer has it already. Micro-batches are queued in the order in
        which they become complete: await one call before the next where the order matters.

        Args:
            tree: A pytree of numpy arrays and static values.
            key: Names the micro-batch in its queue; a key that was trained is never trained again.
            queue: The queue's name.
            wait_s: Seconds to wait for a free slot before the daemon refuses.
            timeout_s: Seconds for all of it.
            policy_version: Of the policy that it was made with, from 0. The greatest that a queue was told, by
                this or by `advance`, is what others are behind.
            expires_s: Seconds from now after which it is stale: unless it is on the device by then, it is dropped.

        Returns:
            `Staged` once every byte lies checked in shared memory, or `Refusal`, with nothing held; with the code
            `stale` if it was too old or too many versions behind before it could be staged.

        Raises:
            TreeError: The tree cannot travel; nothing was sent.
            UsageError: The key or queue is empty, too long, or no text; or the version or expiry is none.
            WaitTimeoutError: Not staged in time; the attempt is abandoned.
            BrokenError: The daemon stopped, or says nothing; or nothing arrives at its data endpoint.
        """
        started = time.monotonic()
        limits = self._welcome.limits
        self._check_names(queue, key)
        check_freshness(policy_version, expires_s)
        payload = await self._wire.payload(tree, registry=self._registry, limits=limits)
        body = self._eager_body(payload, limits)
        offer = Offer(
            id=self._link.new_id(),
            queue=queue,
            key=key,
            attempt=uuid.uuid4().hex,
            manifest=payload.manifest.encode(limits),
            wait_s=wait_s,
            body=body,
            checksum=chunk_checksum(body, 0),
            policy_version=policy_version,
            expires_s=expires_s,
        )
        sending = Sending(self._wire, payload, self._data_target, self._link.standstill())
        reply = await Offering(self._link, offer, sending, started).run(started + timeout_s)
        if isinstance(reply, Refused):
            return Refusal(key, reply.code, reply.words)
        seconds = time.monotonic() - started
        return Staged(key, payload.manifest.payload_bytes, seconds, reply.state, sending.wire_bytes)

    def _eager_body(self, payload: Payload, limits: Limits) -> bytes:
        """Returns what may travel with the offer: the whole body of a small micro-batch, or nothing."""
        is_small = payload.manifest.payload_bytes <= limits.max_eager_bytes
        if not is_small or self._wire.is_paced:
            return b""
        body = payload.body()
        return body if len(body) <= limits.max_eager_bytes else b""

    async def wait(
        self, key: str, *, queue: str = "train", until: Until = "consumed", timeout_s: float = 600.0
    ) -> MicroBatchState:
        """Waits until a micro-batch has come so far.

        Args:
            key: Its key.
            queue: Its queue.
            until: The state to wait for; a later one serves as well.
            timeout_s: Seconds to wait.

        Returns:
            The state it is in.

        Raises:
            StaleError: It was dropped because it was stale.
            MicroBatchGoneError: It was dropped or lost and will never get there; the message says why.
            RefusedError: The daemon does not know the key, or this client may not.
            UsageError: The key or queue is empty, too long, or no text; or there is no such state to wait for.
            WaitTimeoutError: It did not get there in time.
            BrokenError: The daemon stopped, or says nothing.
        """
        if until not in get_args(Until):
            raise UsageError("nothing can be awaited by that name", got=until, limit=", ".join(get_args(Until)))
        self._check_names(queue, key)
        request = Await(id=self._link.new_id(), queue=queue, key=key, until=MicroBatchState(until))
        what = f"{key!r} to be {until}"
        reply = await self._link.ask(request, timeout_s=timeout_s, what=what, repeats_are_answered=False)
        match reply:
            case Reached(state=state):
                return state
            case Gone(state=state, reason=reason, stale=stale):
                raise (StaleError if stale else MicroBatchGoneError)(key, state, reason)
            case _:
                raise unexpected("wait", reply)

    async def reset(self, *, queue: str = "train") -> int:
        """Drops everything in a queue that its trainer does not hold, and what is on its way there.

        What the trainer holds is dropped if it comes back, since the trainer died. The queue forgets its policy
        version: what comes next may be of an older one.

        Args:
            queue: The queue's name.

        Returns:
            How many micro-batches were dropped.

        Raises:
            UsageError: The queue's name is none.
            RefusedError: This client may not.
            WaitTimeoutError: No answer within `timeout_s`; it may be reset all the same.
            BrokenError: The daemon stopped, or says nothing; as before.
        """
        self._check_names(queue)
        request = Reset(id=self._link.new_id(), queue=queue)
        reply = await self._link.ask(request, timeout_s=self._timeout_s, what=f"the reset of queue {queue!r}")
        if isinstance(reply, WasReset):
            return reply.dropped
        raise unexpected("reset", reply)

    async def advance(self, policy_version: int, *, queue: str = "train") -> int:
        """Tells a queue the trainer's policy version: that it was updated.

        Whatever is too many versions behind from then on (the daemon's `max_versions_behind`) is dropped, unless
        it is on the device already.

        Args:
            policy_version: The version; one that is smaller than the queue's is no news.
            queue: The queue's name.

        Returns:
            The greatest version that the queue was told.

        Raises:
            UsageError: The queue's name or the version is none.
            RefusedError: This client may not, or there are too many queues.
            WaitTimeoutError: No answer within `timeout_s`; the queue may have been told all the same.
            BrokenError: The daemon stopped, or says nothing; as before.
        """
        self._check_names(queue)
        check_freshness(policy_version)
        request = Advance(id=self._link.new_id(), queue=queue, policy_version=policy_version)
        reply = await self._link.ask(
            request, timeout_s=self._timeout_s, what=f"queue {queue!r} to hear of a version"
        )
        if isinstance(reply, Advanced):
            return reply.policy_version
        raise unexpected("advance", reply)

    async def status(self) -> Status:
        """Returns what the daemon holds now.

        Raises:
            RefusedError: This client may not see it.
            WaitTimeoutError: No answer within `timeout_s`.
            BrokenError: The daemon stopped, or says nothing.
        """
        request = GetStatus(id=self._link.new_id())
        reply = await self._link.ask(request, timeout_s=self._timeout_s, what="the daemon's status")
        if isinstance(reply, Status):
            return reply
        raise unexpected("status", reply)

    # The daemon.

    def _check_names(self, queue: str, *keys: str) -> None:
        max_bytes = self._welcome.limits.max_key_bytes
        check_name("name of a queue", queue, max_bytes)
        for key in keys:
            check_name("key of a micro-batch", key, max_bytes)

    @property
    def _welcome(self) -> Welcome:
        if self._link.welcome is None:
            raise ClosedError("the staging client is not open", remedy="use it inside its async with block")
        return self._link.welcome

    def _data_target(self) -> Target:
        return data_target(self._link.endpoint, self._welcome)
