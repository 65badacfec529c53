"""The units for systemd: what they name exists, systemd knows it, and a daemon runs under what they forbid."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay.daemon import Settings, load_settings
from forebay.daemon.executor import _WRITE_S
from forebay.daemon.notify import _CLOSE_S
from forebay.orchestrator_client import Staged
from forebay.wire import ExitCode

from ..daemon.managed import CLI, Daemon, Manager, reload, stop
from .unit_file import FOLDER, UNITS, assignments, environment, values

CONFINED = Path(__file__).with_name("confined.py")
CONFIG = FOLDER / "forebay.toml"
DOCTOR = FOLDER.parents[1] / "docs" / "doctor.md"
NAMES = {field.name for field in dataclasses.fields(Settings)}
MAX_EXPOSURE = 2.5
"""Of 10, as systemd-analyze counts it: that of a service which is open to the network can hardly be lower."""

LATER_KEYS = {"RestartSteps", "RestartMaxDelaySec"}
"""Those that systemd knows from 254 on."""

for_each_unit = pytest.mark.parametrize("unit", UNITS, ids=[unit.name for unit in UNITS])


def seconds(span: str) -> int:
    match = re.fullmatch(r"(\d+)(s|min)", span)
    assert match is not None, span
    return int(match[1]) * {"s": 1, "min": 60}[match[2]]


# --- what they name ---


@for_each_unit
def test_every_setting_that_a_unit_names_exists(unit: Path) -> None:
    variables = [name for name in environment(unit) if name.startswith("FOREBAY_")]
    assert {name.removeprefix("FOREBAY_").lower() for name in variables} <= NAMES | {"config"}
    assert "FOREBAY_CONFIG" in variables


def test_the_file_of_settings_is_right_and_keeps_what_is_staged() -> None:
    settings = load_settings(environment={}, file=CONFIG)
    assert settings.keep_pool
    assert settings == Settings(keep_pool=True, group="forebay")


def test_what_the_file_only_shows_are_the_defaults() -> None:
    shown = "\n".join(line[2:] for line in CONFIG.read_text().splitlines() if re.match(r"# \w+ = ", line))
    values = tomllib.loads(shown)
    assert values
    defaults = {field.name: field.default for field in dataclasses.fields(Settings)}
    assert values == {name: defaults[name] for name in values}


@for_each_unit
def test_no_setting_that_the_file_may_hold_is_overruled_by_the_unit(unit: Path) -> None:
    """But for the pool of an instance, which carries its name."""
    own = {"FOREBAY_POOL"} if "@" in unit.name else set()
    assert {name for name in environment(unit) if name.startswith("FOREBAY_")} == {"FOREBAY_CONFIG"} | own


@for_each_unit
def test_the_sockets_lie_in_the_folder_that_systemd_makes(unit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONTROL", "DATA", "TRAINER"):
        monkeypatch.delenv(f"FOREBAY_{name}_ENDPOINT", raising=False)
    for name, value in environment(unit).items():
        monkeypatch.setenv(name, value.replace("%i", "one"))
    (folder,) = values(unit, "RuntimeDirectory")
    where = f"ipc:///run/{folder.replace('%i', 'one')}/"
    settings = load_settings(environment={})
    for endpoint in (settings.control_endpoint, settings.data_endpoint, settings.trainer_endpoint):
        assert endpoint.startswith(where)


def test_instances_differ_from_the_single_one_in_names_alone() -> None:
    single, many = ([*assignments(unit)] for unit in UNITS)
    differing = {name for name, _ in set(single) ^ set(many)}
    assert differing == {"Description", "Environment", "RuntimeDirectory"}
    for names in ("FOREBAY_CONFIG", "FOREBAY_POOL", "XDG_RUNTIME_DIR"):
        assert "%i" in environment(UNITS[1])[names]


# --- what holds between the units and the daemon ---


@for_each_unit
def test_times_of_the_unit_are_above_those_of_the_daemon(unit: Path) -> None:
    (stop_span,), (watchdog,) = values(unit, "TimeoutStopSec"), values(unit, "WatchdogSec")
    assert seconds(stop_span) > Settings().drain_s + _CLOSE_S
    assert seconds(watchdog) > _WRITE_S


@for_each_unit
def test_a_wrong_setting_is_not_tried_again(unit: Path) -> None:
    assert values(unit, "RestartPreventExitStatus") == [str(ExitCode.USAGE.value)]


@for_each_unit
def test_the_doctor_of_the_unit_only_tells_and_the_docs_have_its_line(unit: Path) -> None:
    (line,) = values(unit, "ExecStartPre")
    assert line.startswith("-/"), "else its own exit status would count, and hide the daemon's"
    docs = [*re.findall(r"^ExecStartPre=(.*)$", DOCTOR.read_text(), re.MULTILINE)]
    assert docs == [line]


@for_each_unit
def test_of_a_wrong_setting_the_exit_status_that_counts_is_the_daemons(unit: Path, shm_dir: Path) -> None:
    wrong = {"FOREBAY_POOL": str(shm_dir / "pool"), "FOREBAY_SLOTS": "0"}
    assert exit_statuses(unit, wrong) == [ExitCode.FAILED, ExitCode.USAGE]


@for_each_unit
def test_beside_another_daemon_the_exit_status_that_counts_is_the_daemons(
    unit: Path, shm_dir: Path, manager: Manager
) -> None:
    other = Daemon(shm_dir, environment={"NOTIFY_SOCKET": manager.name})
    try:
        manager.until("READY")
        assert exit_statuses(unit, {"FOREBAY_CONFIG": str(other.config)}) == [ExitCode.FAILED, ExitCode.HELD]
        stop(other)
    finally:
        other.process.kill()
        other.process.wait()


def exit_statuses(unit: Path, variables: dict[str, str]) -> list[int]:
    """Of the doctor and the daemon: systemd goes on to the second as the first one's line has a dash."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    return [run_command(values(unit, name), inherited | variables) for name in ("ExecStartPre", "ExecStart")]


def run_command(lines: list[str], environment: dict[str, str]) -> int:
    """Runs a unit's command, with this Python's Forebay in the place of the installed one."""
    [line] = lines
    before, name, words = line.partition("/usr/bin/env forebay ")
    assert name
    assert before in ("", "-")
    command = [sys.executable, "-m", "forebay", *words.split()]
    return subprocess.run(command, env=environment, check=False, timeout=60).returncode


@for_each_unit
def test_nothing_takes_the_pool_from_the_trainers(unit: Path) -> None:
    assert values(unit, "RemoveIPC") == ["no"]
    assert "/dev/shm" in values(unit, "ReadWritePaths")
    names = {name for name, _ in assignments(unit)}
    assert not names & {
        "RestrictSUIDSGID",
        "PrivateUsers",
        "DynamicUser",
        "TemporaryFileSystem",
        "InaccessiblePaths",
    }


# --- what systemd says ---


def systemd_analyze(*words: str) -> subprocess.CompletedProcess[str]:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed")
    return subprocess.run([tool, *words], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("name", ["forebay.service", "forebay@one.service"])
def test_systemd_understands_all_of_it(name: str, tmp_path: Path) -> None:
    for unit in UNITS:
        shutil.copy(unit, tmp_path)
    done = systemd_analyze("verify", "--man=no", str(tmp_path / name))
    assert done.returncode == 0, done.stderr
    later = "|".join(LATER_KEYS)
    others = [line for line in done.stderr.splitlines() if not re.search(f"Unknown key.* '({later})'", line)]
    assert others == []


@for_each_unit
def test_the_daemon_is_exposed_little(unit: Path) -> None:
    done = systemd_analyze("security", "--offline=yes", f"--threshold={MAX_EXPOSURE * 10:.0f}", str(unit))
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd-analyze security --offline needs systemd 250")
    assert done.returncode == 0, done.stdout


# --- a daemon under it ---


def why_not_confined() -> str:
    """Says what is missing here for a process to lay upon itself what a unit forbids; empty if nothing is."""
    kernel = tuple(map(int, platform.release().split(".")[:2]))
    if kernel < (6, 3):
        return "a kernel older than 6.3 cannot forbid memory that is writable and executable"
    if shutil.which("systemd-analyze") is None:
        return "systemd-analyze is not installed, and knows which system calls there are"
    try:
        ctypes.CDLL("libseccomp.so.2")
    except OSError:
        return "libseccomp is not installed"
    return ""


confined = pytest.mark.skipif(bool(why_not_confined()), reason=why_not_confined())


@pytest.fixture
def manager(shm_dir: Path) -> Iterator[Manager]:
    manager = Manager(str(shm_dir / "notify"))
    yield manager
    manager.close()


def run_confined(unit: Path, code: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(CONFINED), str(unit), sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


@confined
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import mmap; mmap.mmap(-1, 4096, prot=7)", "PermissionError"),
        ("import os; os.setuid(os.getuid())", "PermissionError"),
        ("import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", "PermissionError"),
        ("import resource as r; r.setrlimit(r.RLIMIT_NOFILE, r.getrlimit(r.RLIMIT_NOFILE))", ""),
        ("import os; os.chmod(os.open('/dev/shm', os.O_TMPFILE | os.O_RDWR), 0o2660)", ""),
    ],
    ids=["writable and executable memory", "privileged call", "packet socket", "descriptors", "set-group-id"],
)
def test_what_is_forbidden_fails_and_what_the_daemon_needs_does_not(code: str, words: str) -> None:
    done = run_confined(UNITS[0], code)
    assert (done.returncode != 0) is bool(words), done.stderr
    assert words in done.stderr


@confined
@pytest.mark.parametrize("network", ["ipc", "tcp"])
def test_a_daemon_serves_under_all_that_the_unit_forbids(shm_dir: Path, manager: Manager, network: str) -> None:
    words = [str(CONFINED), str(UNITS[0]), sys.executable, *CLI]
    if network == "tcp":
        words += ["--control-endpoint", "tcp://127.0.0.1:*", "--data-endpoint", "tcp://127.0.0.1:*"]
    daemon = Daemon(shm_dir, words, environment={"NOTIFY_SOCKET": manager.name, "FOREBAY_GROUP": str(os.getgid())})
    try:
        assert manager.until("READY")["STATUS"] == "serving with 2 slots"
        staged: Any = daemon.ask(
            lambda client: client.stage({"x": np.zeros(5_000_000, np.int16)}, key="k", queue="q"),
            codec="bitshuffle-lz4",
        )
        assert isinstance(staged, Staged)
        daemon.configure(keep_pool=True)
        assert reload(daemon, manager).endswith("1 changed")
        stop(daemon)
    finally:
        daemon.process.kill()
        daemon.process.wait()
    assert "ERROR" not in daemon.log()
