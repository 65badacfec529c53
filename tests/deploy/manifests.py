"""Reads the Kubernetes manifests, and what their pods are made of."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from .containerfile import ROOT
from .containers import Mount

KUBERNETES = ROOT / "deploy/kubernetes"
_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


class _StrictLoader(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses a key that is there twice, of which others take the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"keys twice: {sorted(twice)}", node.start_mark)
        return dict(super().construct_mapping(node, deep))


def read_documents(name: str) -> list[dict[str, Any]]:
    """Reads a file's documents, strictly."""
    return read_text((KUBERNETES / name).read_text())


def read_text(text: str) -> list[dict[str, Any]]:
    """Reads documents, strictly."""
    return list(yaml.load_all(text, Loader=_StrictLoader))


@dataclasses.dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod of a manifest.

    Attributes:
        where: The file and the object, for messages.
        labels: Of the pod.
        spec: As it is there.
    """

    where: str
    labels: Mapping[str, str]
    spec: dict[str, Any]

    @property
    def containers(self) -> list[dict[str, Any]]:
        """All containers, those that come first included."""
        return [*self.spec["initContainers"], *self.spec["containers"]]

    def container(self, name: str) -> dict[str, Any]:
        """Returns the container of a name."""
        return _named(self.containers, name)

    def volume(self, name: str) -> dict[str, Any]:
        """Returns the volume of a name."""
        return _named(self.spec["volumes"], name)

    def has(self, name: str) -> bool:
        """Whether there is a container of that name."""
        return any(container["name"] == name for container in self.containers)


def _named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    [found] = [item for item in items if item["name"] == name]
    return found


def read_pods(*names: str) -> Iterator[PodSpec]:
    """Yields the pods of manifests; of all, where none is named."""
    for name in names or sorted(path.name for path in KUBERNETES.glob("*.yaml")):
        for document in read_documents(name):
            for label, pod in _templates(document):
                yield PodSpec(f"{name}: {label}", pod["metadata"]["labels"], pod["spec"])


def _templates(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    name = document["metadata"]["name"]
    if document["kind"] == "Pod":
        yield name, document
    elif document["kind"] == "Job":
        yield name, document["spec"]["template"]
    elif document["kind"] == "JobSet":
        for job in document["spec"]["replicatedJobs"]:
            yield f"{name}, {job['name']}", job["template"]["spec"]["template"]


def variables_of(container: Mapping[str, Any]) -> dict[str, str]:
    """Returns a container's variables."""
    return {variable["name"]: variable["value"] for variable in container.get("env", ())}


def ports_of(container: Mapping[str, Any]) -> dict[str, int]:
    """Returns name -> number of a container's ports."""
    return {port["name"]: port["containerPort"] for port in container.get("ports", ())}


def mounts_of(container: Mapping[str, Any], volumes: Mapping[str, Path]) -> tuple[Mount, ...]:
    """Returns those mounts of a container that are of some volumes, which are folders here."""
    return tuple(
        Mount(volumes[mount["name"]], mount["mountPath"], not mount.get("readOnly", False))
        for mount in container["volumeMounts"]
        if mount["name"] in volumes
    )


def bytes_of(quantity: str) -> int:
    """Reads a quantity of memory."""
    found = re.fullmatch(r"(\d+)([KMG]i)?", quantity)
    assert found is not None, quantity
    return int(found[1]) * _UNITS[found[2] or ""]
