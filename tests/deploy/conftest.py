"""A daemon, trainers and orchestrators, each in a container of its own."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..end_to_end.processes import Party, StartParty, words_of
from .containers import ContainedDaemon, Container, ContainerProcess, Pod, python_mounts, skip_unless_allowed
from .images import build, final_stage, image


@pytest.fixture(scope="session")
def opt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's /opt/forebay."""
    skip_unless_allowed()
    pod = Pod(tmp_path_factory.mktemp("builder"))
    try:
        return build(tmp_path_factory.mktemp("image"), pod)
    finally:
        pod.close()


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    skip_unless_allowed()
    (tmp_path / "pod").mkdir()
    pod = Pod(tmp_path / "pod")
    yield pod
    pod.close()


@pytest.fixture
def start(pod: Pod) -> Iterator[StartParty]:
    """Starts trainers in the daemon's pod, and orchestrators elsewhere."""
    parties: list[Party] = []
    trainer = Container((*python_mounts(), *pod.shared), has_tmp=True)
    orchestrator = Container(python_mounts(), has_tmp=True)

    def start_one(role: str, endpoint: str, *, container: dict[str, Any] | None = None, **options: Any) -> Party:
        usual = trainer if role == "trainer" else orchestrator
        wrapper = pod.wrapper(dataclasses.replace(usual, **(container or {})))
        parties.append(Party(*words_of(role, endpoint, **options), wrapper=wrapper, kind=ContainerProcess))
        return parties[-1]

    yield start_one
    for party in parties:
        party.close()


def free_port() -> int:
    """Returns a port of loopback that is free; containers of a pod share their network."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def image_environment(**settings: Any) -> dict[str, str]:
    """Returns the variables that the image sets, and settings in the place of some of them."""
    environment = final_stage().environment
    environment["PATH"] = environment["PATH"].replace("$PATH", "/usr/local/bin:/usr/bin:/bin")
    environment["FOREBAY_HTTP_ENDPOINT"] = f"127.0.0.1:{free_port()}"  # the image's own may be taken on this host
    return environment | {f"FOREBAY_{name.upper()}": str(value) for name, value in settings.items()}


StartContained = Callable[..., ContainedDaemon]


@pytest.fixture
def start_daemon(pod: Pod, opt: Path, tmp_path: Path) -> Iterator[StartContained]:
    """Starts daemons by the image's entry point, one after another in the same pod; the arguments are settings."""
    daemons: list[ContainedDaemon] = []
    control, data = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    usual = {"control_endpoint": control, "data_endpoint": data, "slot_initial_bytes": 1 << 20, "drain_s": 1.0}

    def start_one(*, container: Container | None = None, **settings: Any) -> ContainedDaemon:
        environment = image_environment(**usual | settings)
        words = final_stage().command("ENTRYPOINT")
        daemon = ContainedDaemon(pod, container or image(pod, opt), words, environment, tmp_path / "log")
        daemons.append(daemon)
        daemon.until_ready()
        return daemon

    yield start_one
    for daemon in daemons:
        daemon.close()
