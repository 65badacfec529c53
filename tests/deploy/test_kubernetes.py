"""The manifests hold together: fields, variables, volumes, ports, memory and times."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml

from forebay.daemon import Settings, load_settings
from forebay.orchestrator_client import OrchestratorSettings, load_orchestrator_settings
from forebay.shm import BODY_OFFSET
from forebay.trainer import TrainerSettings, load_trainer_settings

from .fields import faults
from .images import final_stage
from .manifests import (
    KUBERNETES,
    PodSpec,
    bytes_of,
    ports_of,
    read_documents,
    read_pods,
    read_text,
    variables_of,
)
from .settings_known import BY_CONTAINER

FILES = sorted(path.name for path in KUBERNETES.glob("*.yaml"))
PODS = list(read_pods())
TRAINERS = [pod for pod in PODS if pod.has("trainer")]
ORCHESTRATORS = [pod for pod in PODS if pod.has("orchestrator")]
RECORD_BYTES = 3 << 10
"""Of one remembered key."""

every_pod = pytest.mark.parametrize("pod", PODS, ids=lambda pod: pod.where)
every_trainer = pytest.mark.parametrize("pod", TRAINERS, ids=lambda pod: pod.where)
every_orchestrator = pytest.mark.parametrize("pod", ORCHESTRATORS, ids=lambda pod: pod.where)


def daemon_of(pod: PodSpec) -> Settings:
    return load_settings(environment=final_stage().environment | variables_of(pod.container("forebay")))


def trainer_of(pod: PodSpec) -> TrainerSettings:
    return load_trainer_settings(environment=variables_of(pod.container("trainer")))


def orchestrator_of(pod: PodSpec) -> OrchestratorSettings:
    return load_orchestrator_settings(environment=variables_of(pod.container("orchestrator")))


def port_of(endpoint: str) -> int:
    assert endpoint.startswith("tcp://0.0.0.0:"), "in a pod it must be reached from outside"
    return int(endpoint.rpartition(":")[2])


def only(kind: str, name: str = "network.yaml") -> dict[str, Any]:
    [found] = [document for document in read_documents(name) if document["kind"] == kind]
    return found


# --- form ---


def test_there_are_the_manifests_that_are_spoken_of() -> None:
    assert FILES == ["jobset.yaml", "network.yaml", "orchestrator.yaml", "trainer.yaml"]
    assert len(TRAINERS) == len(ORCHESTRATORS) == 2


@pytest.mark.parametrize("name", FILES)
def test_every_field_is_known_and_of_its_kind(name: str) -> None:
    for document in read_documents(name):
        assert faults(document) == []


def test_a_misspelt_field_a_wrong_kind_and_a_key_that_is_there_twice_are_found() -> None:
    [pod] = read_documents("trainer.yaml")
    wrong = copy.deepcopy(pod)
    wrong["spec"]["containers"][0]["volumemounts"] = []
    wrong["spec"]["initContainers"][1]["env"][0]["value"] = 5555
    assert faults(wrong) == [
        "Pod.spec.initContainers[1].env[0].value is 5555, which is no str",
        "Pod.spec.containers[0].volumemounts is not known",
    ]
    with pytest.raises(yaml.YAMLError, match="keys twice"):
        read_text("a: 1\nb: {c: 1, c: 2}\n")


# --- variables ---


@every_pod
def test_every_variable_is_one_that_its_own_container_reads(pod: PodSpec) -> None:
    for container in pod.containers:
        names = [variable["name"] for variable in container.get("env", ())]
        assert len(set(names)) == len(names)
        ours = {name for name in names if name.startswith(("FOREBAY_", "TUNIX_"))}
        assert ours <= BY_CONTAINER[container["name"]], f"{pod.where}, {container['name']}"


@every_trainer
def test_the_launchers_variables_of_a_trainer_reach_it(pod: PodSpec) -> None:
    assert variables_of(pod.container("trainer")).keys() >= {"TUNIX_STAGE_BATCH", "TUNIX_STAGE_MAX_DEVICE_BATCHES"}
    assert trainer_of(pod).stage_batch == "stage"


@every_orchestrator
def test_the_launchers_variable_of_an_orchestrator_reaches_it_and_fits_the_slots(pod: PodSpec) -> None:
    assert "TUNIX_MAX_STAGED_BATCHES" in variables_of(pod.container("orchestrator"))
    staged = orchestrator_of(pod).max_staged_batches
    assert all(daemon_of(trainer).slots >= staged + 2 for trainer in TRAINERS), "one is lent, one is filling"


# --- memory ---


@every_trainer
def test_the_pool_fits_the_volume_and_pool_and_private_memory_fit_request_and_limit(pod: PodSpec) -> None:
    settings = daemon_of(pod)
    slot = settings.slot_max_bytes + BODY_OFFSET + settings.max_manifest_bytes
    pool = settings.slots * slot + settings.remembered_keys * RECORD_BYTES
    volume = pod.volume("shm")["emptyDir"]
    assert volume["medium"] == "Memory"
    assert pool <= bytes_of(volume["sizeLimit"])
    assert settings.max_private_bytes
    resources = pod.container("forebay")["resources"]
    for kind in ("requests", "limits"):
        assert pool + settings.max_private_bytes <= bytes_of(resources[kind]["memory"])
        assert bytes_of(volume["sizeLimit"]) <= bytes_of(resources[kind]["memory"])


def test_the_arithmetic_in_the_comments_is_that_of_the_settings() -> None:
    settings = daemon_of(TRAINERS[-1])
    text = (KUBERNETES / "trainer.yaml").read_text()
    gib = 1 << 30
    assert f"{settings.slots} slots x {settings.slot_max_bytes // gib} GiB " in text
    parts = [
        settings.slots * settings.slot_max_bytes / gib,
        round(settings.remembered_keys * RECORD_BYTES / gib, 2),
        settings.max_private_bytes / gib,
    ]
    told = [float(found) for found in re.findall(r"^ +#.*  ([\d.]+) +GiB", text, re.MULTILINE)]
    assert told == pytest.approx([*parts, sum(parts)])


@every_trainer
def test_inline_payloads_fit_the_trainers_own_memory(pod: PodSpec) -> None:
    limit = bytes_of(pod.container("trainer")["resources"]["limits"]["memory"])
    assert trainer_of(pod).inline_total_bytes < limit


# --- volumes ---


@every_pod
def test_every_mount_is_of_a_volume_and_every_volume_is_mounted(pod: PodSpec) -> None:
    mounts = [(mount["name"], mount["mountPath"]) for it in pod.containers for mount in it["volumeMounts"]]
    assert {name for name, _ in mounts} == {volume["name"] for volume in pod.spec["volumes"]}
    for container in pod.containers:
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert len(set(paths)) == len(paths)


@every_trainer
def test_daemon_and_trainer_share_the_pools_mount_and_the_sockets_under_the_same_paths(pod: PodSpec) -> None:
    settings = daemon_of(pod)
    for name in ("forebay", "trainer"):
        mounts = {mount["mountPath"]: mount for mount in pod.container(name)["volumeMounts"]}
        assert mounts["/dev/shm"] == {"name": "shm", "mountPath": "/dev/shm"}, "to be written, by both"
        assert mounts["/run/forebay"] == {"name": "sockets", "mountPath": "/run/forebay"}
        assert variables_of(pod.container(name))["FOREBAY_TRAINER_ENDPOINT"] == settings.trainer_endpoint
    assert settings.pool.startswith("/dev/shm/")
    assert settings.trainer_endpoint.startswith("ipc:///run/forebay/")
    assert settings.keep_pool


@every_pod
def test_secret_keys_are_copied_to_a_mode_that_the_key_files_check_lets_pass(pod: PodSpec) -> None:
    install, mode, source, target = pod.container("keys")["command"]
    assert (install, mode) == ("install", "--mode=0400")
    folders = {mount["mountPath"]: mount["name"] for mount in pod.container("keys")["volumeMounts"]}
    secret, copied = (folders[path.rpartition("/")[0]] for path in (source, target))
    assert pod.volume(secret)["secret"]["defaultMode"] == 0o400
    assert pod.volume(copied)["emptyDir"]["medium"] == "Memory"
    for container in pod.containers[1:]:
        variables = variables_of(container)
        own = variables.get("FOREBAY_KEY_FILE") or variables["FOREBAY_CLIENT_KEY_FILE"]
        assert own == target
        named = [variables[name] for name in variables if name.endswith("_FILE")]
        paths = [mount["mountPath"] for mount in container["volumeMounts"] if mount.get("readOnly")]
        assert all(file.rpartition("/")[0] in paths for file in named)


# --- ports ---


@every_trainer
def test_ports_are_those_of_the_endpoints_of_the_service_and_of_the_policy(pod: PodSpec) -> None:
    daemon, trainer = daemon_of(pod), trainer_of(pod)
    http = variables_of(pod.container("forebay"))["FOREBAY_HTTP_ENDPOINT"]
    wanted = {
        "control": port_of(daemon.control_endpoint),
        "data": port_of(daemon.data_endpoint),
        "http": port_of(f"tcp://{http}"),
        "worker": port_of(trainer.worker_endpoint),
        "worker-data": port_of(trainer.worker_data_endpoint),
    }
    assert ports_of(pod.container("forebay")) | ports_of(pod.container("trainer")) == wanted
    ports = only("Service")["spec"]["ports"]
    assert {port["targetPort"]: port["port"] for port in ports} == wanted
    rules = only("NetworkPolicy")["spec"]["ingress"]
    open_to = [{port["port"] for port in rule["ports"]} for rule in rules if "ports" in rule]
    assert open_to == [set(wanted.values()) - {wanted["http"]}, {wanted["http"]}]


def test_service_and_policy_choose_the_trainers_and_let_the_orchestrators_in() -> None:
    chosen = only("Service")["spec"]["selector"]
    policy = only("NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == chosen
    assert all(chosen.items() <= pod.labels.items() for pod in TRAINERS)
    sender = policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    assert all(sender.items() <= pod.labels.items() for pod in ORCHESTRATORS)
    assert not any(chosen.items() <= pod.labels.items() for pod in ORCHESTRATORS)


def test_the_orchestrator_asks_the_pod_by_the_name_that_the_service_gives_it() -> None:
    [pod] = read_pods("trainer.yaml")
    [orchestrator] = read_pods("orchestrator.yaml")
    assert pod.spec["subdomain"] == only("Service")["metadata"]["name"]
    host = f"{pod.spec['hostname']}.{pod.spec['subdomain']}"
    variables = variables_of(orchestrator.container("orchestrator"))
    ports = ports_of(pod.container("forebay")) | ports_of(pod.container("trainer"))
    assert variables["FOREBAY_CONTROL_ENDPOINT"] == f"tcp://{host}:{ports['control']}"
    assert variables["FOREBAY_WORKER_ENDPOINT"] == f"tcp://{host}:{ports['worker']}"


def test_the_jobset_names_every_host_that_it_starts() -> None:
    jobset = only("JobSet", "jobset.yaml")
    jobs = {job["name"]: job for job in jobset["spec"]["replicatedJobs"]}
    spec = jobs["trainer"]["template"]["spec"]
    assert spec["parallelism"] == spec["completions"]
    hosts = [
        f"rl-trainer-0-{index}.{jobset['spec']['network']['subdomain']}" for index in range(spec["completions"])
    ]
    orchestrator = PodSpec("", {}, jobs["orchestrator"]["template"]["spec"]["template"]["spec"])
    assert variables_of(orchestrator.container("orchestrator"))["TRAINER_HOSTS"].split() == hosts
    assert jobset["spec"]["successPolicy"]["targetReplicatedJobs"] == ["orchestrator"]


# --- life, and rights ---


@every_trainer
def test_the_daemon_is_a_sidecar_that_is_ready_before_its_trainer_and_has_time_to_stop_after_it(
    pod: PodSpec,
) -> None:
    sidecar = pod.spec["initContainers"][-1]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("forebay", "Always")
    probes = {kind: sidecar[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert probes == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/healthz"}
    wanted_s = trainer_of(pod).worker_drain_s + daemon_of(pod).drain_s
    assert pod.spec["terminationGracePeriodSeconds"] > wanted_s


@every_pod
def test_nobody_is_root_may_become_it_or_may_write_to_its_image(pod: PodSpec) -> None:
    whole = pod.spec["securityContext"]
    uid, _, gid = final_stage().rest["USER"].partition(":")
    assert (whole["runAsNonRoot"], whole["runAsUser"], whole["runAsGroup"]) == (True, int(uid), int(gid))
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod.containers:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert pod.spec["automountServiceAccountToken"] is False
    assert pod.spec["enableServiceLinks"] is False, "a service named forebay would make FOREBAY_ variables"


def test_the_jobsets_containers_are_those_of_the_other_files() -> None:
    [trainer], [orchestrator] = read_pods("trainer.yaml"), read_pods("orchestrator.yaml")
    for single, many in ((trainer, TRAINERS[0]), (orchestrator, ORCHESTRATORS[0])):
        for part in ("initContainers", "volumes", "securityContext"):
            assert single.spec[part] == many.spec[part]
    assert trainer.spec["containers"] == TRAINERS[0].spec["containers"]
