"""The main job, and its failures, with daemon, trainer and orchestrator in containers of their own.

Each has its own pids, mounts and root file system, which is read-only, and is not root. Daemon and trainer share
one tmpfs as /dev/shm and a folder for sockets; the orchestrator comes over tcp. The daemon is the image's: built
by the Containerfile's own commands, and started by its entry point.
"""

from __future__ import annotations

import asyncio
import dataclasses
import http.server
import importlib.util
import json
import os
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from forebay import Staged, StagingClient

from ..end_to_end.party import digest, micro_batch
from ..end_to_end.processes import EVENT_S, StartParty, all_free, see, slot_in
from ..end_to_end.test_kills import (
    test_a_slot_lent_across_a_daemon_restart_is_known_since_when_and_released_once,
)
from ..end_to_end.test_main_job import (
    test_a_micro_batch_larger_than_its_slot_makes_the_slot_grow,
    test_a_pool_that_is_full_makes_the_sender_wait_until_the_trainer_has_room,
    test_a_trainer_that_comes_late_misses_nothing,
    test_every_micro_batch_arrives_once_in_order_and_whole,
)
from ..sockets.key_files import KeyFiles
from .conftest import StartContained, free_port, image_environment
from .containers import UID, Pod
from .images import final_stage, image
from .manifests import mounts_of, read_pods, variables_of

pytestmark = pytest.mark.slow


__all__ = [
    "test_a_micro_batch_larger_than_its_slot_makes_the_slot_grow",
    "test_a_pool_that_is_full_makes_the_sender_wait_until_the_trainer_has_room",
    "test_a_slot_lent_across_a_daemon_restart_is_known_since_when_and_released_once",
    "test_a_trainer_that_comes_late_misses_nothing",
    "test_every_micro_batch_arrives_once_in_order_and_whole",
]


def test_a_killed_trainer_container_gives_its_slots_back_and_what_was_on_its_device_is_lost_by_name(
    start: StartParty, start_daemon: StartContained
) -> None:
    daemon = start_daemon()
    sender = start("orchestrator", daemon.control_endpoint, count=2, until="consumed")
    first = start("trainer", daemon.trainer_endpoint, hold_batch=True)
    first.until("took", key="k0")
    see(daemon, lambda status: any("k0" in queue.on_device for queue in status.queues))
    first.kill()
    assert "its trainer, trainer pid 1 on " in sender.until("gone", key="k0", state="lost")["words"]
    second = start("trainer", daemon.trainer_endpoint, hold_transfer=True)
    second.until("transferring")
    [holder] = [slot.holder for slot in see(daemon, slot_in("LENT")).slots if slot.holder is not None]
    assert holder.pid == 1, "a pid is of its own container: for people to read, and for nothing else"
    second.kill()
    see(daemon, slot_in("READY"))
    third = start("trainer", daemon.trainer_endpoint)
    assert third.until("took")["digest"] == digest(micro_batch("k1", 3_000_000))
    third.finish()
    sender.finish()
    see(daemon, all_free)


def test_a_stopped_container_leaves_its_pool_to_the_next_and_nothing_else(
    start: StartParty, start_daemon: StartContained, pod: Pod
) -> None:
    first = start_daemon()
    start("orchestrator", first.control_endpoint).finish()
    first.process.terminate()
    assert first.process.wait(EVENT_S) == 0, "SIGTERM reaches the daemon: it is the container's first process"
    assert list(pod.sockets.iterdir()) == []
    assert [path.name for path in pod.shm.iterdir()] == ["forebay"]
    second = start_daemon()
    [ready] = see(second, lambda _: True).queues
    assert ready.ready == ("k0",)


def test_the_daemon_is_no_root_can_write_nowhere_else_and_has_no_jax(start_daemon: StartContained) -> None:
    daemon = start_daemon()
    assert daemon.in_it("id", "-u").stdout == "10001\n"
    assert daemon.in_it("cat", "/proc/1/comm").stdout == "forebay\n"
    for folder in ("/", "/tmp", "/run", "/opt/forebay", "/etc"):
        tried = daemon.in_it("touch", f"{folder}/x")
        assert tried.returncode == 1, folder
        assert "Read-only file system" in tried.stderr
    python = ("/opt/forebay/bin/python", "-I", "-c")
    assert "No module named 'jax'" in daemon.in_it(*python, "import jax").stderr
    status = daemon.in_it("forebay", "status", "--json")
    assert json.loads(status.stdout)["peer"]["pid"] == 1, status.stderr


def test_all_of_the_image_is_compiled_and_stays_valid_whatever_becomes_of_times(opt: Path) -> None:
    sources = [path for path in opt.glob("lib/*/site-packages/**/*.py") if "tests" not in path.parts]
    assert len(sources) > 100
    for source in sources:
        flags = Path(importlib.util.cache_from_source(source)).read_bytes()[4:8]
        assert int.from_bytes(flags, "little") == 1, f"{source} is compiled for a time"


# --- the health check ---


class Healthz(http.server.BaseHTTPRequestHandler):
    """Answers as the daemon does."""

    code = 200

    def do_GET(self) -> None:
        self.send_response(self.code if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Says nothing."""


@pytest.mark.parametrize(("code", "status"), [(200, 0), (503, 1)])
def test_the_health_check_tells_what_healthz_says(pod: Pod, opt: Path, code: int, status: int) -> None:
    handler = type("Handler", (Healthz,), {"code": code})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        asked = check_health(pod, opt, f"0.0.0.0:{server.server_port}")
        thread.join()
    assert asked.returncode == status, asked.stderr


def test_the_health_check_fails_where_nobody_listens(pod: Pod, opt: Path) -> None:
    assert check_health(pod, opt, f"0.0.0.0:{free_port()}").returncode == 1


def check_health(pod: Pod, opt: Path, endpoint: str) -> subprocess.CompletedProcess[str]:
    variables = image_environment(http_endpoint=endpoint) | {"http_proxy": "http://127.0.0.1:1"}
    return pod.run(image(pod, opt), *final_stage().command("HEALTHCHECK"), environment=variables)


def test_a_daemon_that_serves_is_healthy(start_daemon: StartContained) -> None:
    asked = start_daemon().in_it(*final_stage().command("HEALTHCHECK"))
    assert asked.returncode == 0, asked.stderr


# --- users and keys ---


def test_a_trainer_of_another_user_attaches_by_their_common_group(
    start_daemon: StartContained, pod: Pod, opt: Path, start: StartParty
) -> None:
    common = 10002
    ours = dataclasses.replace(image(pod, opt), groups=(common,))
    daemon = start_daemon(container=ours, group=common)
    start("orchestrator", daemon.control_endpoint).finish()
    other = {"uid": 10003, "gid": 10003, "groups": (common,)}
    trainer = start("trainer", daemon.trainer_endpoint, container=other)
    assert trainer.until("took")["digest"] == digest(micro_batch("k0", 3_000_000))
    trainer.finish()


@pytest.fixture
def secret(tmp_path: Path) -> KeyFiles:
    """A Secret as the kubelet mounts it for fsGroup: root's, and whatever its mode was, the group may read it."""
    folder = tmp_path / "secret"
    folder.mkdir()
    files = KeyFiles(folder, "orchestrator")
    files.authorise(files.entry("orchestrator", "stage", "inspect"))
    for path in (folder, *folder.iterdir()):
        os.chown(path, 0, UID)
        path.chmod(0o2750 if path.is_dir() else 0o440)
    return files


def test_a_key_that_is_mounted_for_a_group_is_refused_and_its_copy_by_the_manifest_is_taken(
    start_daemon: StartContained, secret: KeyFiles, pod: Pod, opt: Path, tmp_path: Path
) -> None:
    spec = next(read_pods("trainer.yaml"))
    copied = tmp_path / "keys"
    copied.mkdir()
    copied.chmod(0o777)
    volumes = {"server-keys": secret.folder, "keys": copied}
    settings = {
        name.removeprefix("FOREBAY_").lower(): value
        for name, value in variables_of(spec.container("forebay")).items()
        if name in ("FOREBAY_KEY_FILE", "FOREBAY_AUTHORISED_FILE")
    }
    ours = image(pod, opt)
    with_keys = dataclasses.replace(ours, mounts=(*ours.mounts, *mounts_of(spec.container("forebay"), volumes)))

    mounted = settings | {"key_file": f"{Path(settings['authorised_file']).parent}/server.key_secret"}
    with pytest.raises(AssertionError, match=r"others may read \S+; got mode 0440; limit none of the bits 0077"):
        start_daemon(container=with_keys, **mounted)

    copier = dataclasses.replace(ours, mounts=mounts_of(spec.container("keys"), volumes))
    done = pod.run(copier, *spec.container("keys")["command"])
    assert done.returncode == 0, done.stderr
    status = (copied / "server.key_secret").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o400, UID)

    daemon = start_daemon(container=with_keys, **settings)
    for path in secret.folder.iterdir():
        path.chmod(0o600)  # here they are this user's own again

    async def stage() -> object:
        async with StagingClient(
            daemon.control_endpoint, **secret.client("orchestrator"), least_data_protection="encrypted"
        ) as client:
            return await client.stage(micro_batch("k0", 3_000_000), key="k0")

    assert isinstance(asyncio.run(stage()), Staged)
