"""One stage call's conversation with the daemon, from its offer to its end."""

from __future__ import annotations

import time

import msgspec

from forebay.wire import Abandon, Granted, Offer, Reached, Refused, Staged

from .exchange import Exchange
from .remote_errors import unexpected
from .sending import Sending
from .server_link import ServerLink


class Offering:
    """Offers a micro-batch and sends what is granted.

    Args:
        link: To the daemon.
        offer: What is said first, and again while nothing is heard; with its age each time, and without its body
            to a daemon that has that.
        sending: Of its bytes.
        started: Monotonic second from which on the offer ages.
    """

    def __init__(self, link: ServerLink, offer: Offer, sending: Sending, started: float) -> None:
        self._link = link
        self._offer = offer
        self._sending = sending
        self._started = started
        self._body_is_in = ""

    async def run(self, deadline: float) -> Staged | Refused:
        """Has it staged, or refused; ends it at the daemon if it ends otherwise.

        Args:
            deadline: Monotonic second at which to give up.

        Raises:
            As `Exchange.next`, and what its sending failed with.
        """
        with self._link.talk():
            try:
                with self._link.exchange(self._offer, renewed=self._renewed) as exchange:
                    self._link.send(self._renewed())
                    reply = await self._fill(exchange, deadline)
            except BaseException:
                self._abandon()
                raise
            if isinstance(reply, Refused) and exchange.repeats:
                # A repeat that is on its way may find room, and would hold a slot that nobody fills.
                self._abandon()
            return reply

    def _renewed(self) -> Offer:
        body = b"" if self._body_is_in == self._epoch else self._offer.body
        return msgspec.structs.replace(self._offer, body=body, age_s=time.monotonic() - self._started)

    @property
    def _epoch(self) -> str:
        """The run of the daemon that the link talks to."""
        assert self._link.welcome is not None
        return self._link.welcome.epoch

    def _abandon(self) -> None:
        offer = self._offer
        abandon = Abandon(id=self._link.new_id(), queue=offer.queue, key=offer.key, attempt=offer.attempt)
        self._link.send_last(abandon)

    async def _fill(self, exchange: Exchange, deadline: float) -> Staged | Refused:
        """Sends what each grant says is missing until the daemon has it all, or refuses.

        A repeated offer is answered by a grant too: with another slot or token if the first one is void, else
        with the bytes that arrived so far. Only if those no longer grow is anything sent again.
        """
        grant: Granted | None = None
        async with self._sending as sending:
            while True:
                reply = await exchange.next(deadline, self._awaited(grant))
                match reply:
                    case Staged() | Refused():
                        return reply
                    case Reached():
                        # It waits for a slot, with its body; should the daemon have lost it after all, it asks for
                        # the chunks.
                        self._body_is_in = self._epoch
                    case Granted():
                        await sending.follow(reply)
                        grant = reply
                    case _:
                        raise unexpected("stage", reply)

    def _awaited(self, grant: Granted | None) -> str:
        key = self._offer.key
        if grant is None:
            return f"a slot for {key!r}"
        return (
            f"{key!r} to be complete in slot {grant.slot}"
            f" (at the last answer {grant.received_bytes} of {self._sending.payload_bytes} bytes had arrived)"
        )
