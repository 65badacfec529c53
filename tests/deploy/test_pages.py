"""The pages say what the files of `deploy` say: ports, probes, scrapes, and how an operator gets in."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from .containerfile import ROOT
from .fields import faults
from .images import final_stage
from .manifests import PodSpec, ports_of, read_documents, read_pods, read_text

TRAINERS = [pod for pod in read_pods() if pod.has("trainer")]
every_trainer = pytest.mark.parametrize("pod", TRAINERS, ids=lambda pod: pod.where)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def yaml_with(name: str, word: str) -> Any:
    """Returns the one YAML example of a page that has a word."""
    [text] = [text for text in re.findall(r"```yaml\n(.*?)```", page(name), re.DOTALL) if word in text]
    [found] = read_text(text)
    return found


# --- the port, and who asks there ---


@every_trainer
def test_http_has_the_same_port_in_pages_image_and_manifests(pod: PodSpec) -> None:
    port = ports_of(pod.container("forebay"))["http"]
    assert final_stage().environment["FOREBAY_HTTP_ENDPOINT"] == f"127.0.0.1:{port}"
    for name in ("metrics.md", "http.md", "containers.md"):
        told = set(re.findall(r"(?:127\.0\.0\.1|localhost|example):(\d+)", page(name)))
        assert str(port) in told, name
    assert f"`127.0.0.1:{port}`; the health check" in page("containers.md")
    assert set(re.findall(r":\s*\"?[\w.-]*:?(\d{4})\b", page("metrics.md"))) == {str(port)}


@every_trainer
@pytest.mark.parametrize("kind", ["livenessProbe", "readinessProbe"])
def test_probes_of_the_page_are_those_of_the_manifests(pod: PodSpec, kind: str) -> None:
    container = pod.container("forebay")
    told = copy.deepcopy(yaml_with("metrics.md", "livenessProbe")[kind])
    assert told["httpGet"]["port"] == ports_of(container)[container[kind]["httpGet"]["port"]]
    told["httpGet"]["port"] = container[kind]["httpGet"]["port"]
    assert told == container[kind]


def test_a_loop_that_waits_for_a_chunk_is_not_taken_for_dead() -> None:
    from forebay.daemon.executor import _WRITE_S

    for pod in TRAINERS:
        probe = pod.container("forebay")["livenessProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] > _WRITE_S


def test_the_scrape_of_a_cluster_keeps_the_pods_that_the_policy_opens_and_is_named_as_the_alerts_expect() -> None:
    [scrape] = yaml_with("metrics.md", "kubernetes_sd_configs")["scrape_configs"]
    assert scrape["job_name"] == "forebay"
    kept = [rule for rule in scrape["relabel_configs"] if rule.get("action") == "keep"]
    chosen, port = (rule["regex"] for rule in kept)
    [policy] = [it for it in read_documents("network.yaml") if it["kind"] == "NetworkPolicy"]
    labels = policy["spec"]["podSelector"]["matchLabels"]
    assert [rule["source_labels"] for rule in kept] == [
        [f"__meta_kubernetes_pod_label_{re.sub(r'[^a-zA-Z0-9]', '_', name)}" for name in labels],
        ["__meta_kubernetes_pod_container_port_name"],
    ]
    assert chosen == ";".join(labels.values())
    assert all(port in ports_of(pod.container("forebay")) for pod in TRAINERS)
    namespaces = [
        source["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        for rule in policy["spec"]["ingress"]
        for source in rule["from"]
        if "namespaceSelector" in source
    ]
    assert [f"`{name}`" in page("metrics.md") for name in namespaces] == [True]


# --- an operator ---


def with_operator(pod: PodSpec) -> PodSpec:
    """Returns a pod with what the page adds to it."""
    spec = copy.deepcopy(pod.spec)
    added = yaml_with("containers.md", "operator-keys")["spec"]
    keys, daemon = added["initContainers"]
    spec["initContainers"].insert(1, keys)
    [own] = [container for container in spec["initContainers"] if container["name"] == daemon["name"]]
    own["volumeMounts"] += daemon["volumeMounts"]
    spec["volumes"] += added["volumes"]
    return PodSpec(pod.where, pod.labels, spec)


def test_the_operators_key_reaches_the_daemons_container_alone_and_the_command_names_its_files() -> None:
    [document] = read_documents("trainer.yaml")
    [pod] = read_pods("trainer.yaml")
    found = with_operator(pod)
    assert faults(document | {"spec": found.spec}) == []
    volumes = {volume["name"] for volume in found.spec["volumes"]}
    assert len(volumes) == len(found.spec["volumes"])
    assert {mount["name"] for it in found.containers for mount in it["volumeMounts"]} == volumes
    mounts = {
        name: {mount["mountPath"] for mount in found.container(name)["volumeMounts"]}
        for name in ("forebay", "trainer", "operator-keys")
    }
    install, mode, source, target = found.container("operator-keys")["command"]
    [client, server] = re.findall(r"--(?:client|server)-key-file (/\S+)", page("containers.md"))
    assert (install, mode, target) == ("install", "--mode=0400", client)
    for path in (source, client, server):
        folder = path.rpartition("/")[0]
        assert folder in mounts["forebay"] & mounts["operator-keys"]
        assert folder not in mounts["trainer"]


@pytest.mark.parametrize("name", ["containers.md", "systemd.md"])
def test_the_operators_key_has_the_rights_that_all_orders_need(name: str) -> None:
    assert "keygen operator --right inspect --right operate --right stage >> authorised.toml" in page(name)
