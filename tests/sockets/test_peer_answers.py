"""What waits for peers that do not read is bounded in bytes; whoever reads gets every answer in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from forebay.sockets import Endpoint, PeerAnswers
from forebay.sockets.peer_answers import MESSAGE_BYTES
from forebay.wire import MIB, Peer

PEER = Peer(name="server", pid=4711, host="there")
WAIT_MS = 60_000
REFUSAL = b"r" * 500
OWN = 2
"""Messages that a peer's own ZeroMQ may take, whether they are read or not."""


class Party:
    """An endpoint, what is said by it, and peers that have said a word."""

    def __init__(self, folder: Path) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        address = f"ipc://{folder}/control"
        self.endpoint = Endpoint(self.context, zmq.ROUTER, address, setting="s", peer=PEER, max_frame_bytes=MIB)
        self.thrown_away = 0
        self.answers = PeerAnswers(self.endpoint, undeliverable=self._count)
        self.peers: list[zmq.Socket[bytes]] = []

    def _count(self, count: int) -> None:
        self.thrown_away += count

    def meet(self) -> tuple[zmq.Socket[bytes], bytes]:
        """Returns a peer that buffers nothing that it does not read, and its routing id."""
        peer = self.context.socket(zmq.DEALER)
        self.peers.append(peer)
        peer.rcvhwm = 1
        peer.rcvtimeo = WAIT_MS
        peer.connect(self.endpoint.address)
        peer.send(b"hello")
        assert self.endpoint.socket.poll(WAIT_MS)
        routing, _ = self.endpoint.socket.recv_multipart()
        return peer, routing

    def say(self, routing: bytes, answer: bytes, count: int) -> int:
        """Answers so often, in as many turns; returns how many of the answers ZeroMQ took."""
        before = self.thrown_away
        for _ in range(count):
            self.answers.add(routing, "", answer)
            self.answers.flush()
        return count - (self.thrown_away - before)

    def close(self) -> None:
        for peer in self.peers:
            peer.close(linger=0)
        # Without a linger libzmq may abort, where a connection with a half-read message is lost meanwhile.
        self.endpoint.close(linger_ms=WAIT_MS)
        self.context.term()


@pytest.fixture
def party(shm_dir: Path) -> Iterator[Party]:
    party = Party(shm_dir)
    yield party
    party.close()


def test_a_turns_answers_to_a_peer_are_one_message_and_come_in_order(party: Party) -> None:
    peer, routing = party.meet()
    said = [b"%d" % number for number in range(50)]
    for word in said:
        party.answers.add(routing, "", word)
    assert not peer.poll(100)
    party.answers.flush()
    assert peer.recv_multipart() == said


def test_no_more_of_one_turn_is_collected_for_a_peer_than_a_message_may_have(party: Party) -> None:
    peer, routing = party.meet()
    said = [b"%04d" % number + REFUSAL for number in range(1000)]
    got: list[bytes] = []
    for word in said:
        party.answers.add(routing, "", word)
        while peer.poll(0):
            got += peer.recv_multipart()
    assert got, "some left before the turn was over"
    party.answers.flush()
    while len(got) < len(said):
        message = peer.recv_multipart()
        assert sum(map(len, message)) <= MESSAGE_BYTES
        got += message
    assert got == said
    assert not party.thrown_away


def test_a_peer_that_reads_nothing_holds_few_small_answers_however_many_turns_there_are(party: Party) -> None:
    _, deaf = party.meet()
    for _ in range(1000):
        for _ in range(1000):
            party.answers.add(deaf, "", REFUSAL)
        party.answers.flush()
    kept_bytes = (1_000_000 - party.thrown_away) * len(REFUSAL)
    assert kept_bytes < 4 * MIB


def test_a_peer_that_reads_nothing_holds_few_large_answers_and_others_get_theirs(party: Party) -> None:
    _, deaf = party.meet()
    assert party.say(deaf, bytes(100_000), 400) <= 128 + OWN
    reader, good = party.meet()
    for number in range(40):
        assert party.say(good, bytes(MIB + number), 1) == 1
        assert len(reader.recv()) == MIB + number


def test_a_peer_that_was_answered_much_is_known_until_the_turn_is_over(party: Party) -> None:
    _, one = party.meet()
    _, other = party.meet()
    party.answers.add(one, "", REFUSAL)
    assert not party.answers.has_much(one, "")
    party.answers.add(one, "", bytes(MIB))
    assert party.answers.has_much(one, "")
    party.answers.add(one, "", REFUSAL)
    assert party.answers.has_much(one, "")
    assert not party.answers.has_much(other, "")
    party.answers.flush()
    assert not party.answers.has_much(one, "")
