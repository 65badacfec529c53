"""Builds the image's /opt/forebay with the Containerfile's own commands, and without a registry or an index."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import sys
import sysconfig
from pathlib import Path

from packaging.requirements import Requirement

from .containerfile import CONTAINERFILE, ROOT, Stage, context_files, read_stages
from .containers import Container, Mount, Pod, python_mounts

IGNORE = ROOT / "deploy/container/Containerfile.dockerignore"


def build(folder: Path, pod: Pod) -> Path:
    """Builds it; returns the folder that is /opt/forebay in the image.

    Args:
        folder: An empty one.
        pod: Builds in one of its containers.
    """
    source, opt, dist = (folder / name for name in ("src", "opt", "dist"))
    for path in (source, opt, dist):
        path.mkdir()
    _copy_context(source)
    places = (Mount(source, "/src", True), Mount(opt, "/opt/forebay", True), Mount(dist, "/dist", True))
    builder = Container((*python_mounts(), *places, *pod.shared), has_tmp=True, uid=0)
    (first, _) = read_stages(CONTAINERFILE.read_text())
    for run in first.runs:
        _run(pod, builder, run, opt)
    return opt


def _run(pod: Pod, builder: Container, run: str, opt: Path) -> None:
    """Runs one RUN; what its pip would fetch by its hash is copied from this environment, which has it too."""
    variables = {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin"}
    for command in re.split(r"\s+&&\s+", run):
        if "--require-hashes" not in command:
            done = pod.run(builder, "sh", "-euc", f"cd /src; {command}", environment=variables)
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        elif "/opt/forebay" in command:
            _copy_locked(opt, command.split()[-1])


def _copy_context(source: Path) -> None:
    for name in context_files(IGNORE.read_text()):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, target, symlinks=True, ignore=ignored)
        else:
            shutil.copyfile(ROOT / name, target)


def _copy_locked(opt: Path, lock: str) -> None:
    purelib = Path(sysconfig.get_path("purelib", vars={"base": str(opt), "platbase": str(opt)}))
    for name, version in locked(lock).items():
        distribution = importlib.metadata.distribution(name)
        assert distribution.version == version, f"{name} is not the locked one: run ./dev check to update .venv"
        for file in distribution.files or ():
            if ".." in file.parts or "__pycache__" in file.parts:
                continue  # programs, and what is compiled for another folder
            target = purelib / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(distribution.locate_file(file)), target)


def locked(lock: str) -> dict[str, str]:
    """Returns name -> version of a lock's packages for this Python."""
    lines = [line.removesuffix(" \\") for line in (ROOT / lock).read_text().splitlines() if "==" in line]
    pins = [Requirement(line) for line in lines if line[0].isalnum()]
    return {pin.name: str(pin.specifier)[2:] for pin in pins if pin.marker is None or pin.marker.evaluate()}


def final_stage() -> Stage:
    """Returns the stage whose settings the image has."""
    return read_stages(CONTAINERFILE.read_text())[-1]


def image(pod: Pod, opt: Path) -> Container:
    """Returns the image as a container of a pod: Python, /opt/forebay, and what it shares with the trainer."""
    return Container((*python_mounts(only_python=True), Mount(opt, "/opt/forebay"), *pod.shared))
