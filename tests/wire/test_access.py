"""What a client may do, what a file of clients may say, and which addresses are open to others."""

from __future__ import annotations

import pytest

from forebay.wire import (
    STRANGER,
    TRUSTED,
    Client,
    Right,
    SettingError,
    check_data_reach,
    check_exposure,
    check_key_settings,
    is_exposed,
    is_public_key,
    read_clients,
)

KEY = "yU7HNjqKr=KDR!kqT[B/y2RHN:(-Ee+@sm.%1f70"
OTHER = "tdbZxpM/6O%5ak*KIN&gOr&CrbLfcYXbMTP3W(A6"


def client(*rights: Right, queues: frozenset[str] | None = None) -> Client:
    return Client("alice", frozenset(rights), queues)


# --- the file ---


def test_a_file_gives_each_key_a_name_its_rights_and_its_queues() -> None:
    text = f'[alice]\nkey = "{KEY}"\nrights = ["stage", "train"]\nqueues = ["a", "b"]\n'
    text += f'[bob]\nkey = "{OTHER}"\nrights = ["inspect"]\n'
    assert read_clients(text, "file") == {
        KEY: Client("alice", frozenset({Right.STAGE, Right.TRAIN}), frozenset({"a", "b"})),
        OTHER: Client("bob", frozenset({Right.INSPECT}), None),
    }


def test_an_empty_file_lets_nobody_in() -> None:
    assert read_clients("", "file") == {}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[alice", "cannot be read"),
        ("alice = " + "[" * 100_000, "cannot be read"),
        ("[alice]\nkey" + ".a" * 10_000 + " = 1", "client 'alice', key"),
        (f'[""]\nkey = "{KEY}"\nrights = ["stage"]', "client '', name; got an empty text; limit a text"),
        (f'["alice:1"]\nkey = "{KEY}"\nrights = ["stage"]', "client 'alice:1', name; got alice:1; limit a text"),
        ('alice = "key"', "client 'alice'"),
        ('[alice]\nrights = ["stage"]', "client 'alice', key"),
        ('[alice]\nkey = "short"\nrights = ["stage"]', "client 'alice', key; got short"),
        (
            f'[alice]\nkey = "{KEY + "x" * 160}"\nrights = ["stage"]',
            f"client 'alice', key; got 200 characters, {KEY[:20]}...; limit the 40",
        ),
        (f'[alice]\nkey = "{KEY}"', "client 'alice', rights"),
        (f'[alice]\nkey = "{KEY}"\nrights = []', "client 'alice', rights; got []; limit one or more of stage"),
        (f'[alice]\nkey = "{KEY}"\nrights = ["root"]', "client 'alice', rights; got ['root']"),
        (f'[alice]\nkey = "{KEY}"\nrights = "stage"', "client 'alice', rights; got stage; limit a list"),
        (f'[alice]\nkey = "{KEY}"\nrights = ["stage"]\nqueues = [1]', "client 'alice', queues"),
        (
            f'[alice]\nkey = "{KEY}"\nrights = ["stage"]\nqueues = []',
            "client 'alice', queues; got []; limit one or more names of queues; without the field, all",
        ),
        (f'[alice]\nkey = "{KEY}"\nrights = ["stage"]\nqueue = ["a"]', "unknown fields; got ['queue']"),
        (
            f'[a]\nkey = "{KEY}"\nrights = ["stage"]\n[b]\nkey = "{KEY}"\nrights = ["stage"]',
            "and 'b' the same",
        ),
    ],
)
def test_a_file_that_means_nothing_is_one_line_that_names_the_client(text: str, named: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_clients(text, "clients.toml")
    assert "authorised_file clients.toml" in str(caught.value)
    assert named in str(caught.value)


def test_a_public_key_has_forty_characters_of_its_alphabet() -> None:
    assert is_public_key(KEY)
    assert not is_public_key(KEY[1:])
    assert not is_public_key(KEY[1:] + '"')


# --- rights ---


def test_who_has_no_keys_to_show_may_do_everything_and_a_stranger_nothing() -> None:
    for right in Right:
        assert TRUSTED.lacks(right, "any queue") == ""
        assert "not authorised" in STRANGER.lacks(right, "any queue")
    assert TRUSTED.may_see("any queue")
    assert not STRANGER.may_see("any queue")


@pytest.mark.parametrize("right", list(Right))
def test_each_right_allows_itself_and_nothing_else(right: Right) -> None:
    for wanted in Right:
        words = client(right).lacks(wanted)
        assert (words == "") == (wanted is right)
        assert words == "" or f"client 'alice' lacks the right '{wanted.value}'" in words


def test_a_right_in_some_queues_is_none_in_others() -> None:
    some = client(Right.STAGE, queues=frozenset({"mine"}))
    assert some.lacks(Right.STAGE, "mine") == ""
    assert some.lacks(Right.STAGE, "theirs") == "client 'alice' lacks the right 'stage' in queue 'theirs'"
    assert (some.may_see("mine"), some.may_see("theirs")) == (True, False)


def test_only_who_stages_or_inspects_sees_what_a_queue_holds() -> None:
    assert client(Right.INSPECT, queues=frozenset()).may_see("theirs")
    assert client(Right.STAGE).may_see("theirs")
    assert not client(Right.TRAIN).may_see("theirs")


# --- addresses ---


@pytest.mark.parametrize(
    "address",
    ["ipc:///run/x", "tcp://127.0.0.1:1", "tcp://127.9.9.9:*", "tcp://localhost:1", "tcp://[::1]:1"],
)
def test_what_only_this_host_reaches_needs_no_keys(address: str) -> None:
    assert not is_exposed(address)
    check_exposure({"control_endpoint": address}, key_file="", authorised_file="", insecure=False)


@pytest.mark.parametrize(
    "address",
    ["tcp://0.0.0.0:1", "tcp://*:1", "tcp://10.0.0.1:*", "tcp://eth0:1", "tcp://[::]:1", "tcp://127.evil.org:1"],
)
def test_what_others_reach_needs_keys_or_a_word_that_everybody_may_come(address: str) -> None:
    assert is_exposed(address)
    with pytest.raises(SettingError) as caught:
        check_exposure({"control_endpoint": address}, key_file="", authorised_file="", insecure=False)
    for word in ("control_endpoint", address, "forebay keygen", "key_file", "authorised_file", "FOREBAY_INSECURE"):
        assert word in str(caught.value)
    check_exposure({"control_endpoint": address}, key_file="some", authorised_file="other", insecure=False)
    check_exposure({"control_endpoint": address}, key_file="", authorised_file="", insecure=True)


@pytest.mark.parametrize(("key_file", "authorised_file"), [("some", ""), ("", "some")])
def test_of_the_two_files_that_keys_need_the_missing_one_is_named(key_file: str, authorised_file: str) -> None:
    missing = "authorised_file" if key_file else "key_file"
    words = f"setting {missing}; got an empty text; limit a file: key_file and authorised_file go together"
    with pytest.raises(SettingError) as caught:
        check_key_settings(key_file=key_file, authorised_file=authorised_file)
    assert str(caught.value) == words
    if not key_file:
        with pytest.raises(SettingError) as caught:
            check_exposure({"a": "tcp://0.0.0.0:1"}, key_file="", authorised_file="some", insecure=False)
        assert str(caught.value) == words


@pytest.mark.parametrize(
    ("asked", "data"),
    [
        ("ipc:///run/c", "ipc:///run/d"),
        ("ipc:///run/c", "tcp://127.0.0.1:1"),
        ("ipc:///run/c", "tcp://0.0.0.0:1"),
        ("tcp://127.0.0.1:1", "tcp://localhost:2"),
        ("tcp://127.0.0.1:1", "tcp://0.0.0.0:2"),
        ("tcp://0.0.0.0:1", "tcp://10.0.0.1:2"),
    ],
)
def test_whoever_reaches_a_server_may_send_it_data(asked: str, data: str) -> None:
    check_data_reach({"control_endpoint": asked, "data_endpoint": data})


@pytest.mark.parametrize(
    ("asked", "data", "limit"),
    [
        ("tcp://127.0.0.1:1", "ipc:///run/d", "a tcp address, as worker_endpoint is one"),
        ("tcp://0.0.0.0:1", "ipc:///run/d", "a tcp address, as worker_endpoint is one"),
        (
            "tcp://0.0.0.0:1",
            "tcp://127.0.0.1:2",
            "an address that other hosts reach, as they reach worker_endpoint at tcp://0.0.0.0:1",
        ),
        ("tcp://10.0.0.1:1", "tcp://localhost:2", "an address that other hosts reach"),
    ],
)
def test_a_data_endpoint_that_others_cannot_reach_is_no_such_setting(asked: str, data: str, limit: str) -> None:
    with pytest.raises(SettingError) as caught:
        check_data_reach({"worker_endpoint": asked, "worker_data_endpoint": data})
    assert str(caught.value).startswith(f"setting worker_data_endpoint; got {data}; limit {limit}")
