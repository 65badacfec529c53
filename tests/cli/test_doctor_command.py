"""`forebay doctor` on real hosts: this one, and some that lack something."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from forebay.cli.checks import CHECKS
from forebay.daemon import LocalDaemon
from forebay.shm import this_peer

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")

_SMALL = {"FOREBAY_SLOTS": "1", "FOREBAY_SLOT_INITIAL_BYTES": "65536", "FOREBAY_SLOT_MAX_BYTES": "1048576"}


@pytest.fixture
def settings(shm_dir: Path, tmp_path: Path) -> dict[str, str]:
    """Variables of a daemon that has a host to itself: a pool and sockets of its own, and a pool that fits."""
    return {"XDG_RUNTIME_DIR": str(tmp_path), "FOREBAY_POOL": str(shm_dir / "pool"), **_SMALL}


def run(
    arguments: Sequence[str], settings: Mapping[str, str], before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs it, with commands before that in a mount namespace of their own."""
    python = [sys.executable, "-m", "forebay.cli", "doctor", *arguments]
    shell = " && ".join(["mount --make-rprivate /", *before, 'exec "$@"'])
    command = ["unshare", "--mount", "sh", "-c", shell, "sh", *python] if before else python
    mine = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    environment = mine | {"COLUMNS": "80"} | dict(settings)
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)


def checks(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    """Returns the lines of a run with --json, by check."""
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    return {line["check"]: line for line in json.loads(done.stdout)["checks"]}


def test_on_this_host_nothing_fails_and_one_micro_batch_comes_through(
    settings: dict[str, str], shm_dir: Path, tmp_path: Path
) -> None:
    done = run(["--json"], settings)
    found = checks(done)
    assert done.returncode == 0, found
    assert list(found) == ["settings", *(check.name for check in CHECKS)]
    for line in found.values():
        assert set(line) == {"check", "verdict", "found", "remedy"}
        assert line["verdict"] in ("ok", "warn")
        assert bool(line["remedy"]) is (line["verdict"] == "warn")
    assert "bit for bit the same in the slot's file" in found["self-test"]["found"]
    assert list(shm_dir.iterdir()) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_self_test_that_is_interrupted_leaves_nothing_behind(
    settings: dict[str, str], shm_dir: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "forebay.cli", "doctor"]
    doctor = subprocess.Popen(command, env=os.environ | settings, stdout=subprocess.PIPE, text=True)
    assert doctor.stdout is not None
    with doctor, doctor.stdout:
        last = f"{CHECKS[-2].name} "
        assert any(last in line for line in doctor.stdout), "the line before the self-test's"
        doctor.send_signal(number)
        assert doctor.wait(60) in (130, -number), "it ends at once where it has not begun yet"
        assert list(shm_dir.iterdir()) == []


def test_what_is_shown_fits_in_80_columns_and_has_no_colours_outside_of_a_terminal(
    settings: dict[str, str],
) -> None:
    done = run(["--no-self-test"], settings)
    assert done.returncode == 0, done.stdout
    assert done.stdout.isprintable() or all(line.isprintable() for line in done.stdout.splitlines())
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "self-test" not in done.stdout
    words = [line.split(maxsplit=1)[0] for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert len(words) == len(CHECKS)  # the settings, and all but the self-test
    assert set(words) <= {"ok", "warn"}


def test_strict_counts_warnings(settings: dict[str, str]) -> None:
    settings |= {"FOREBAY_SLOT_MAX_BYTES": str(1 << 40)}
    found = checks(run(["--no-self-test", "--json"], settings))
    assert found["pool room"]["verdict"] == "warn"
    assert run(["--no-self-test"], settings).returncode == 0
    assert run(["--no-self-test", "--strict"], settings).returncode == 1


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"FOREBAY_SLOTS": "0"}, "setting slots; got 0; limit 1 to 1024"),
        ({"FOREBAY_CONFIG": "/nowhere.toml"}, "the settings file /nowhere.toml cannot be read"),
        ({"FOREBAY_CONTROL_ENDPOINT": f"ipc:///{'x' * 107}"}, "a path of 108 bytes"),
    ],
)
def test_a_wrong_setting_is_the_one_line_in_its_own_words(
    settings: dict[str, str], variables: dict[str, str], words: str
) -> None:
    done = run(["--json"], settings | variables)
    [line] = checks(done).values()
    assert (done.returncode, line["check"], line["verdict"]) == (1, "settings", "fail")
    assert words in line["found"]
    before = run(["--before-start"], settings | variables)
    assert (before.returncode, before.stdout.count("\n")) == (1, 1)
    assert before.stdout.startswith(f"fail settings: {line['found']}; ")


def test_the_file_of_settings_is_judged(settings: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "daemon.toml"
    file.write_text(f'slots = 3\ntrainer_endpoint = "ipc:///{"x" * 107}"\n')
    done = run(["--config", str(file), "--no-self-test", "--json"], settings)
    found = checks(done)
    assert str(file) in found["settings"]["found"]
    assert found["trainer endpoint"]["verdict"] == "fail"
    assert "limit 107 bytes for a Unix socket" in found["trainer endpoint"]["found"]
    assert done.returncode == 1


def test_a_secret_key_that_others_may_read_fails_with_the_chmod_that_helps(
    settings: dict[str, str], tmp_path: Path
) -> None:
    keygen = [sys.executable, "-m", "forebay.cli", "keygen", "server", "--folder", str(tmp_path)]
    subprocess.run(keygen, check=True, capture_output=True, timeout=100)
    secret, clients = tmp_path / "server.key_secret", tmp_path / "authorised.toml"
    clients.write_text("")
    settings |= {"FOREBAY_KEY_FILE": str(secret), "FOREBAY_AUTHORISED_FILE": str(clients)}
    assert checks(run(["--no-self-test", "--json"], settings))["keys"]["verdict"] == "ok"
    secret.chmod(0o644)
    line = checks(run(["--no-self-test", "--json"], settings))["keys"]
    assert (line["verdict"], line["remedy"]) == ("fail", f"chmod 600 {secret}")
    assert run(["--before-start"], settings).returncode == 1


def test_before_a_start_all_well_is_one_line(settings: dict[str, str], shm_dir: Path, tmp_path: Path) -> None:
    done = run(["--before-start"], settings)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok: ")
    assert done.stdout.count("\n") == 1
    assert list(shm_dir.iterdir()) == []
    assert list(tmp_path.iterdir()) == []
    told = checks(run(["--before-start", "--json"], settings))
    assert list(told) == ["settings", *(check.name for check in CHECKS if check.is_of_start)]
    assert "RemoveIPC" not in told
    assert "self-test" not in told


def test_before_a_start_a_warning_is_named_and_lets_it_go_on(settings: dict[str, str]) -> None:
    settings |= {"FOREBAY_SLOT_MAX_BYTES": str(1 << 40)}
    done = run(["--before-start"], settings)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert done.stdout.endswith("; warnings, which forebay doctor explains: pool room\n")
    strict = run(["--before-start", "--strict"], settings)
    assert strict.returncode == 1
    assert strict.stdout.startswith("warn pool room: ")


@needs_root
def test_a_small_tmpfs_fails_with_what_enlarges_it_and_has_no_self_test(settings: dict[str, str]) -> None:
    settings |= {"FOREBAY_POOL": "/dev/shm/pool", "FOREBAY_SLOT_INITIAL_BYTES": str(16 << 20)}
    settings |= {"FOREBAY_SLOT_MAX_BYTES": str(16 << 20)}
    before = ["mount -t tmpfs -o size=16m other /dev/shm"]
    done = run(["--json"], settings, before)
    found = checks(done)
    assert done.returncode == 1
    assert found["pool room"]["verdict"] == "fail"
    assert "16 MiB of 16 MiB are free on /dev/shm; the start takes" in found["pool room"]["found"]
    for words in ("mount -o remount,size=... /dev/shm", "size of its /dev/shm", "lower slots, slot_initial_bytes"):
        assert words in found["pool room"]["remedy"]
    assert found["self-test"]["verdict"] == "warn"
    assert found["self-test"]["found"].startswith(
        "skipped: it needs 128 MiB of shared memory, and 16 MiB are free"
    )
    assert run(["--before-start"], settings, before).stdout.startswith("fail pool room: ")


def test_a_pool_on_a_disk_fails_with_where_it_should_lie(settings: dict[str, str]) -> None:
    done = run(["--before-start"], settings | {"FOREBAY_POOL": "/var/forebay-pool"})
    if "fail" not in done.stdout:
        pytest.skip("/var is in memory here")
    assert "fail pool mount: the pool folder /var/forebay-pool is not in shared memory" in done.stdout
    assert "choose a folder in /dev/shm, or mount a tmpfs for it" in done.stdout


# --- a daemon that runs already ---


@contextlib.contextmanager
def running(settings: dict[str, str], tmp_path: Path) -> Iterator[LocalDaemon]:
    folder = tmp_path / "forebay"
    folder.mkdir(mode=0o700)
    endpoints: dict[str, Any] = {
        f"{name}_endpoint": f"ipc://{folder}/{name}.sock" for name in ("control", "data", "trainer")
    }
    pool = settings["FOREBAY_POOL"]
    sizes: dict[str, Any] = {"slots": 1, "slot_initial_bytes": 65536, "slot_max_bytes": 1 << 20}
    with LocalDaemon(pool=pool, http_endpoint="127.0.0.1:0", **sizes, **endpoints) as daemon:
        yield daemon


def test_a_running_daemon_is_told_and_only_in_the_way_of_another(settings: dict[str, str], tmp_path: Path) -> None:
    with running(settings, tmp_path) as daemon:
        done = run(["--no-self-test", "--json"], settings)
        found = checks(done)
        who = f"forebay daemon pid {daemon.pid} on {this_peer('x').host}"
        assert done.returncode == 0
        assert found["daemon"]["found"].startswith(f"{who} is serving, up ")
        assert found["trainer endpoint"]["found"].endswith("is the running daemon's")
        assert found["versions"]["found"].endswith("the daemon that runs is the same")
        before = run(["--before-start"], settings)
        assert before.returncode == 1
        assert before.stdout.startswith(
            f"fail daemon: {who} has the pool {daemon.pool}, and serves; stop it first"
        )
        assert before.stdout.count("\n") == 1


def test_a_daemon_that_does_not_answer_fails_but_may_be_gone_before_a_start(
    settings: dict[str, str], tmp_path: Path
) -> None:
    with running(settings, tmp_path) as daemon:
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            line = checks(run(["--no-self-test", "--json"], settings))["daemon"]
            assert line["verdict"] == "fail"
            assert line["remedy"].startswith("give the control_endpoint that it was started with;")
            assert f"pid {daemon.pid}" in line["found"]
            before = run(["--before-start"], settings)
            assert before.returncode == 0
            assert before.stdout.endswith("explains: daemon\n")
        finally:
            daemon.process.send_signal(signal.SIGCONT)


def test_the_http_address_is_its_daemons_and_in_the_way_of_another_pools(
    settings: dict[str, str], tmp_path: Path, shm_dir: Path
) -> None:
    with running(settings, tmp_path) as daemon:
        settings |= {"FOREBAY_HTTP_ENDPOINT": daemon.ready.http_endpoint}
        line = checks(run(["--no-self-test", "--json"], settings))["http endpoint"]
        assert (line["verdict"], line["found"]) == (
            "ok",
            f"{daemon.ready.http_endpoint} is the running daemon's",
        )
        own = {f"FOREBAY_{name}_ENDPOINT": f"ipc://{shm_dir}/{name}" for name in ("CONTROL", "DATA", "TRAINER")}
        done = run(["--before-start"], settings | own | {"FOREBAY_POOL": str(shm_dir / "other")})
        assert done.returncode == 1
        assert done.stdout.startswith(
            f"fail http endpoint: {daemon.ready.http_endpoint} is held by forebay daemon"
        )
        assert f"pid {daemon.pid} on " in done.stdout
        assert f"which has the pool {daemon.pool}; stop it first, or set http_endpoint" in done.stdout
        assert done.stdout.count("\n") == 1


def test_endpoints_of_another_pools_daemon_fail(settings: dict[str, str], tmp_path: Path, shm_dir: Path) -> None:
    with running(settings, tmp_path) as daemon:
        other = settings | {"FOREBAY_POOL": str(shm_dir / "other")}
        found = checks(run(["--no-self-test", "--json"], other))
        assert found["daemon"]["verdict"] == "ok"
        for name in ("control", "data", "trainer"):
            line = found[f"{name} endpoint"]
            assert line["verdict"] == "fail"
            assert f"pid {daemon.pid}" in line["found"]


def test_a_wrong_use_exits_with_2(settings: dict[str, str]) -> None:
    assert run(["--no-such-option"], settings).returncode == 2
