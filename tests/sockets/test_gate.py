"""Who gets in at a guarded socket; with real ones."""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from zmq.utils.monitor import parse_monitor_message

from forebay.sockets import AuthorisedFile, Endpoint, Gate, load_client_keys, load_key_pair, load_server_keys
from forebay.wire import STRANGER, DataProtection, Faults, HeldError, Limits, Peer, Right, Welcome, encode_message

from .key_files import KeyFiles

PATIENCE_MS = 20_000
MOMENT_MS = 300
PEER = Peer(name="test", pid=os.getpid(), host="here")
MAX_FRAME_BYTES = 1000
HANDSHAKES = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class Site:
    """A server with keys, and clients of it.

    Args:
        folder: For the files.
    """

    def __init__(self, folder: Path) -> None:
        self.files = KeyFiles(folder, "alice", "bob")
        self.files.authorise(self.files.entry("alice", "stage"), self.files.entry("bob", "inspect"))
        keys = load_server_keys(**self.files.server())
        assert keys is not None
        self.keys = keys
        self._inside: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._outside: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._endpoints: list[Endpoint] = []
        self._handshakes: dict[zmq.Socket[bytes], zmq.Socket[bytes]] = {}
        self.gate: Gate | None = None

    def bind(self, address: str = "tcp://127.0.0.1:*", *, gate: bool = True, has_keys: bool = True) -> Endpoint:
        if gate:
            self.gate = Gate(self._inside, self.keys, Faults())
        endpoint = Endpoint(
            self._inside,
            zmq.ROUTER,
            address,
            setting="s",
            peer=PEER,
            max_frame_bytes=MAX_FRAME_BYTES,
            keys=self.keys if has_keys else None,
        )
        self._endpoints.append(endpoint)
        return endpoint

    def connect(
        self,
        endpoint: Endpoint,
        name: str = "",
        *,
        server: str = "server",
        routing: bytes = b"",
        within_ms: int = 0,
    ) -> zmq.Socket[bytes]:
        socket = self._outside.socket(zmq.DEALER)
        socket.linger = 0
        if within_ms:
            socket.handshake_ivl = within_ms
        self._handshakes[socket] = socket.get_monitor_socket(HANDSHAKES)
        if routing:
            socket.routing_id = routing
        if name:
            client = load_client_keys(**self.files.client(name, server=server), server_setting="server_key_file")
            assert client is not None
            client.use(socket, endpoint.address)
        socket.connect(endpoint.address)
        return socket

    def lets_in(self, socket: zmq.Socket[bytes]) -> bool:
        """Waits for the end of a client's handshake; returns whether it got in. What it said is there by then."""
        told = self._handshakes[socket]
        assert told.poll(PATIENCE_MS), "nobody ends the handshake"
        event = int(parse_monitor_message(told.recv_multipart())["event"])
        return event == zmq.EVENT_HANDSHAKE_SUCCEEDED

    def close(self) -> None:
        for socket, handshakes in self._handshakes.items():
            if not socket.closed:
                socket.disable_monitor()
            handshakes.close()
            socket.close()
        for endpoint in self._endpoints:
            endpoint.close(linger_ms=0)
        if self.gate is not None:
            self.gate.close()
        self._inside.term()
        self._outside.term()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


@pytest.fixture
def files(tmp_path: Path) -> KeyFiles:
    return KeyFiles(tmp_path, "alice", "bob")


def heard(endpoint: Endpoint, patience_ms: int = PATIENCE_MS) -> list[tuple[bytes, str, list[bytes]]]:
    return [said[:3] for said in endpoint.received()] if endpoint.socket.poll(patience_ms) else []


def test_a_message_says_whose_key_it_came_with(site: Site) -> None:
    endpoint = site.bind()
    for name in ("alice", "bob"):
        socket = site.connect(endpoint, name)
        socket.send_multipart([b"one", b"x" * MAX_FRAME_BYTES])
        [(sender, user, frames)] = heard(endpoint)
        assert frames == [b"one", b"x" * MAX_FRAME_BYTES], "a frame of the largest size passes also encrypted"
        assert user == site.files.public(name)
        assert site.keys.authorised.client_of(user).name == name
        endpoint.socket.send_multipart([sender, b"answer"])
        assert socket.poll(PATIENCE_MS)
        assert socket.recv() == b"answer"


def test_an_unknown_client_one_without_keys_and_one_that_means_another_server_say_nothing(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.files.authorise(site.files.entry("alice", "stage"))
    endpoint = site.bind()
    for name, server in (("bob", "server"), ("alice", "bob"), ("", "server")):
        stranger = site.connect(endpoint, name, server=server)
        stranger.send(b"let me in")
        assert not site.lets_in(stranger)
    assert f"stranger_turned_away key={site.files.public('bob')}" in caplog.text
    alice = site.connect(endpoint, "alice")
    alice.send(b"hello")
    assert site.lets_in(alice)
    [(_, _, frames)] = heard(endpoint)
    assert frames == [b"hello"], "who is known gets in all the while, and nobody else was heard"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("none", "a server with keys, perhaps a Forebay daemon or worker; ss -ltnp tells"),
        ("others", "a server with keys, perhaps a Forebay daemon or worker; ss -ltnp tells"),
        ("the same", "a daemon or worker that has the same key_file as this one"),
    ],
)
def test_whoever_finds_a_guarded_port_taken_is_told_of_keys_and_whether_they_are_its_own(
    site: Site, keys: str, words: str
) -> None:
    taken = site.bind()
    if keys == "others":
        site.keys = dataclasses.replace(
            site.keys, own=load_key_pair(str(site.files.folder / "bob.key_secret"), "s")
        )
    with pytest.raises(HeldError) as caught:
        site.bind(taken.address, gate=False, has_keys=keys != "none")
    assert f"s {taken.address} is held by {words}" in str(caught.value)


def test_whoever_finds_a_port_taken_by_one_with_its_own_keys_that_may_say_hello_hears_the_name(
    site: Site,
) -> None:
    site.files.authorise(site.files.entry("server", "inspect"))
    taken = site.bind()
    welcome = Welcome(
        version=4,
        software="0",
        epoch="e",
        peer=PEER,
        data_endpoint="",
        limits=Limits(),
        data_protection=DataProtection.NONE,
    )

    def answer() -> None:
        [(sender, _, _)] = heard(taken)
        taken.socket.send_multipart([sender, encode_message(welcome)])

    holder = threading.Thread(target=answer)
    holder.start()
    with pytest.raises(HeldError, match=f"is held by test pid {os.getpid()} on here"):
        site.bind(taken.address, gate=False)
    holder.join()


def test_without_a_gate_nobody_gets_in(site: Site) -> None:
    endpoint = site.bind(gate=False)
    # ZeroMQ may leave the handshake open instead of hanging up.
    alice = site.connect(endpoint, "alice", within_ms=MOMENT_MS)
    alice.send(b"let me in")
    assert not site.lets_in(alice)
    assert heard(endpoint, 0) == []


def test_an_error_in_the_question_who_may_enter_turns_one_away_and_the_gate_goes_on(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = site.bind()
    with monkeypatch.context() as patch:
        patch.setattr(AuthorisedFile, "client_of", fails)
        alice = site.connect(endpoint, "alice")
        alice.send(b"let me in")
        assert not site.lets_in(alice)
    assert f"gate_failed key={site.files.public('alice')} reason=RuntimeError: on purpose" in caplog.text
    site.connect(endpoint, "alice").send(b"hello")
    assert [frames for _, _, frames in heard(endpoint)] == [[b"hello"]]


def fails(*_: object) -> None:
    raise RuntimeError("on purpose")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_gate_whose_thread_has_died_still_closes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = site.bind()
    assert site.gate is not None
    thread = site.gate._authenticator.thread
    monkeypatch.setattr(Gate, "callback", fails)
    site.connect(endpoint, "alice").send(b"let me in")
    thread.join(PATIENCE_MS / 1000)
    assert not thread.is_alive()
    closer = threading.Thread(target=site.gate.close, daemon=True)
    closer.start()
    closer.join(PATIENCE_MS / 1000)
    assert not closer.is_alive(), "the gate waits for a thread that is gone"


def test_strangers_without_end_do_not_fill_the_log(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.bind()
    assert site.gate is not None
    for _ in range(100):
        assert not site.gate.callback("forebay", b"k" * 40)
    assert caplog.text.count("stranger_turned_away") == 20


def test_a_gate_that_cannot_start_keeps_no_context_from_ending(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("zmq.auth.thread.AuthenticationThread.start", refuse)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with pytest.raises(RuntimeError, match="new thread"):
        Gate(context, site.keys, Faults())
    ending = threading.Thread(target=context.term, daemon=True)
    ending.start()
    ending.join(PATIENCE_MS / 1000)
    assert not ending.is_alive(), "a socket of the gate was left open"


def test_an_ipc_path_asks_for_no_keys(site: Site, shm_dir: Path) -> None:
    endpoint = site.bind(f"ipc://{shm_dir}/control")
    assert not endpoint.is_guarded
    site.connect(endpoint).send(b"hello")
    [(_, user, frames)] = heard(endpoint)
    assert (user, frames) == ("", [b"hello"])
    endpoint.close(linger_ms=0)


def test_a_routing_id_that_another_client_took_over_is_not_the_first_ones_any_more(site: Site) -> None:
    endpoint = site.bind()
    alice = site.connect(endpoint, "alice", routing=b"chosen")
    alice.send(b"hello")
    [(sender, user, _)] = heard(endpoint)
    assert endpoint.is_still(sender, user)
    alice.close()
    taken: list[tuple[bytes, str, list[bytes]]] = []
    while not taken:  # it is turned away for as long as the first connection is not known to be gone
        bob = site.connect(endpoint, "bob", routing=b"chosen")
        bob.send(b"hello")
        taken = heard(endpoint, MOMENT_MS)
    [(again, other, _)] = taken
    assert (again, other) == (sender, site.files.public("bob"))
    assert endpoint.is_still(sender, other)
    assert not endpoint.is_still(sender, user), "what was for alice is not sent to bob"


# --- the file ---


def test_a_change_of_the_file_counts_from_the_next_question_on(files: KeyFiles) -> None:
    file = AuthorisedFile(str(files.authorised))
    assert file.client_of(files.public("alice")) is STRANGER
    files.authorise(files.entry("alice", "stage"))
    assert file.client_of(files.public("alice")).rights == {Right.STAGE}
    files.authorise(files.entry("bob", "stage"))
    assert file.client_of(files.public("alice")) is STRANGER
    files.authorise()
    assert file.client_of(files.public("bob")) is STRANGER


@pytest.mark.parametrize("spoil", ["text", "mode", "gone", "pipe"])
def test_a_file_that_became_wrong_changes_nothing_and_is_told_once(
    files: KeyFiles, caplog: pytest.LogCaptureFixture, spoil: str
) -> None:
    files.authorise(files.entry("alice", "stage"))
    file = AuthorisedFile(str(files.authorised))
    match spoil:
        case "text":
            files.authorise("[half of")
        case "mode":
            files.authorise(files.entry("bob", "stage"))
            files.authorised.chmod(0o666)
        case "gone":
            files.authorised.unlink()
        case "pipe":
            files.authorised.unlink()
            os.mkfifo(files.authorised)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert file.client_of(files.public("alice")).name == "alice"
            assert file.client_of(files.public("bob")) is STRANGER
    assert caplog.text.count("authorised_file_wrong kept=1") == 1
    files.authorise(files.entry("bob", "stage"))
    assert file.client_of(files.public("bob")).name == "bob"


def test_a_file_that_could_not_be_read_for_a_moment_is_read_again_without_another_change(
    files: KeyFiles, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.authorise(files.entry("alice", "stage"))
    file = AuthorisedFile(str(files.authorised))
    files.authorise(files.entry("bob", "stage"))

    def refuse(_: Path) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refuse)
        for _ in range(3):
            assert file.client_of(files.public("alice")).name == "alice"
            assert file.client_of(files.public("bob")) is STRANGER
    assert caplog.text.count("authorised_file_wrong kept=1") == 1
    assert file.client_of(files.public("bob")).name == "bob"
    assert file.client_of(files.public("alice")) is STRANGER


def test_a_clients_name_begins_no_line_of_the_log(files: KeyFiles, caplog: pytest.LogCaptureFixture) -> None:
    files.authorise(files.entry("alice", "stage"))
    file = AuthorisedFile(str(files.authorised))
    files.authorise(files.entry("alice", "stage").replace("[alice]", '["a\\nERROR of nobody"]'))
    assert file.client_of(files.public("alice")).name == "a\nERROR of nobody"
    assert "a\\nERROR of nobody" in caplog.text
    assert "\nERROR of nobody" not in caplog.text
