"""The fields of Kubernetes objects that the manifests use, with their kinds: any other is taken for a mistake.

No server is there to refuse a misspelt field, and one would only drop it.
"""

from __future__ import annotations

from typing import Any

_LABELS = {"*": str}
_META = {"name": str, "labels": _LABELS}
_SELECTOR = {"matchLabels": _LABELS}
_GET = {"httpGet": {"path": str, "port": str}}
_PROBE = _GET | dict.fromkeys(("periodSeconds", "timeoutSeconds", "failureThreshold"), int)
_AMOUNTS = {"cpu": str, "memory": str}
_CONTAINER: dict[str, Any] = {
    "name": str,
    "image": str,
    "restartPolicy": str,
    "command": [str],
    "env": [{"name": str, "value": str}],
    "ports": [{"name": str, "containerPort": int}],
    "startupProbe": _PROBE,
    "readinessProbe": _PROBE,
    "livenessProbe": _PROBE,
    "securityContext": {
        "allowPrivilegeEscalation": bool,
        "readOnlyRootFilesystem": bool,
        "capabilities": {"drop": [str]},
    },
    "resources": {"requests": _AMOUNTS, "limits": _AMOUNTS},
    "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool}],
}
_TERM = {"topologyKey": str, "labelSelector": _SELECTOR}
_POD: dict[str, Any] = {
    "hostname": str,
    "subdomain": str,
    "restartPolicy": str,
    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_TERM]}},
    "securityContext": {
        "runAsNonRoot": bool,
        "runAsUser": int,
        "runAsGroup": int,
        "fsGroup": int,
        "seccompProfile": {"type": str},
    },
    "automountServiceAccountToken": bool,
    "enableServiceLinks": bool,
    "terminationGracePeriodSeconds": int,
    "initContainers": [_CONTAINER],
    "containers": [_CONTAINER],
    "volumes": [
        {
            "name": str,
            "emptyDir": {"medium": str, "sizeLimit": str},
            "secret": {"secretName": str, "defaultMode": int},
        }
    ],
}
_JOB = {
    "parallelism": int,
    "completions": int,
    "completionMode": str,
    "backoffLimit": int,
    "template": {"metadata": {"labels": _LABELS}, "spec": _POD},
}
_PEER = {"podSelector": _SELECTOR, "namespaceSelector": _SELECTOR}
_RULE = {"from": [_PEER], "ports": [{"protocol": str, "port": int}]}
_SPECS: dict[tuple[str, str], Any] = {
    ("v1", "Pod"): _POD,
    ("batch/v1", "Job"): _JOB,
    ("v1", "Service"): {
        "clusterIP": str,
        "selector": _LABELS,
        "ports": [{"name": str, "port": int, "targetPort": str}],
    },
    ("networking.k8s.io/v1", "NetworkPolicy"): {
        "podSelector": _SELECTOR,
        "policyTypes": [str],
        "ingress": [_RULE],
    },
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): {
        "network": {"enableDNSHostnames": bool, "subdomain": str},
        "successPolicy": {"operator": str, "targetReplicatedJobs": [str]},
        "failurePolicy": {"maxRestarts": int},
        "replicatedJobs": [{"name": str, "replicas": int, "template": {"spec": _JOB}}],
    },
}


def faults(document: dict[str, Any]) -> list[str]:
    """Returns what of a document is no known field, or is of another kind, by its path."""
    kind = (document["apiVersion"], document["kind"])
    whole = {"apiVersion": str, "kind": str, "metadata": _META, "spec": _SPECS[kind]}
    return _faults(document, whole, document["kind"])


def _faults(value: Any, known: Any, path: str) -> list[str]:
    if isinstance(known, list):
        if not isinstance(value, list):
            return [f"{path} is no list"]
        return [fault for index, item in enumerate(value) for fault in _faults(item, known[0], f"{path}[{index}]")]
    if isinstance(known, dict):
        return _faults_of_fields(value, known, path)
    return [] if type(value) is known else [f"{path} is {value!r}, which is no {known.__name__}"]


def _faults_of_fields(value: Any, known: dict[str, Any], path: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{path} has no fields"]
    found = []
    for name, item in value.items():
        kind = known.get(name, known.get("*"))
        found += [f"{path}.{name} is not known"] if kind is None else _faults(item, kind, f"{path}.{name}")
    return found
