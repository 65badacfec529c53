"""A command finds the daemon of this host by itself."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.cli.find_daemon import others_here, where_to_ask
from forebay.shm import default_endpoint
from forebay.wire import SettingError


@pytest.fixture
def root() -> Iterator[Path]:
    # Not tmp_path: a Unix socket's path is short.
    with tempfile.TemporaryDirectory(prefix="fb") as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_CONTROL_ENDPOINT", raising=False)


def config(root: Path, text: str) -> dict[str, str]:
    file = root / "forebay.toml"
    file.write_text(text)
    return {"FOREBAY_CONFIG": str(file)}


def test_what_is_given_wins_over_the_environment_that_over_the_file_and_that_over_the_default(root: Path) -> None:
    environment = config(root, 'control_endpoint = "ipc:///c"') | {"FOREBAY_CONTROL_ENDPOINT": "ipc:///b"}
    assert where_to_ask("ipc:///a", environment).endpoint == "ipc:///a"
    assert where_to_ask(None, environment).endpoint == "ipc:///b"
    del environment["FOREBAY_CONTROL_ENDPOINT"]
    found = where_to_ask(None, environment)
    assert (found.endpoint, found.is_default) == ("ipc:///c", False)
    found = where_to_ask(None, config(root, "slots = 3"))
    assert (found.endpoint, found.is_default) == (default_endpoint("control"), True)
    assert where_to_ask(None, {}) == found


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "[::]"])
def test_a_daemon_that_listens_everywhere_is_asked_at_its_own_host(root: Path, host: str) -> None:
    environment = config(root, f'control_endpoint = "tcp://{host}:5555"')
    assert where_to_ask(None, environment).endpoint == "tcp://127.0.0.1:5555"


@pytest.mark.parametrize("text", ["slots = ", "no_setting = 1"])
def test_a_settings_file_that_cannot_be_used_is_named(root: Path, text: str) -> None:
    with pytest.raises(SettingError, match=r"the settings file .*/forebay\.toml"):
        where_to_ask(None, config(root, text))


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(SettingError, match="setting control_endpoint"):
        where_to_ask("here", {})


def test_those_who_listen_in_the_usual_places_are_found_and_nobody_else(root: Path) -> None:
    living = [root / "run/forebay/control.sock", root / "tmp/forebay-7/control.sock"]
    gone = root / "run/user/3/forebay/control.sock"
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
        for listener, path in zip((one, two), living, strict=True):
            path.parent.mkdir(parents=True)
            listener.bind(str(path))
            listener.listen()
        gone.parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(gone))
        (root / "tmp/forebay-8").mkdir()
        (root / "tmp/forebay-8/control.sock").write_text("no socket")
        first, second = (f"ipc://{path}" for path in living)
        assert others_here("ipc:///else", root) == [first, second]
        assert others_here(first, root) == [second]
