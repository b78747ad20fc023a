"""The Dockerfile, compose.yaml and the Kubernetes manifest, as far as they run without containers.

The nodes of both are started as processes with exactly their arguments and variables. Only host
names and data directories are replaced: each node has a loopback address of its own, so all use the
same ports.
"""

import json
import os
import random
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from riverrun.cli.generate.alerts import JOB
from riverrun.cluster.settings import ControllerSettings
from riverrun.server.settings import unknown_variables
from tests.processes import executable, until

ROOT = Path(__file__).parent.parent
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
MANIFEST = list(yaml.safe_load_all((ROOT / "examples" / "kubernetes.yaml").read_text()))
MONITORING = list(
    yaml.safe_load_all((ROOT / "examples" / "kubernetes-monitoring.yaml").read_text())
)
READY_SECONDS_MAX = 60
STOP_SECONDS_MAX = 30
NODES = 3


@dataclass(frozen=True)
class Container:
    """The arguments and variables of one container, and the names in them."""

    arguments: list[str]
    environment: dict[str, str]
    names: Mapping[str, str]
    """Text to be replaced; {1}, {2}, {3} stand for the addresses of the nodes."""


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile's last stage."""
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    found = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    last = max(place for place, words in enumerate(found) if words[0] == "FROM")
    return [(name, text) for name, text in found[last:]]


def instruction(name: str) -> str:
    [text] = [text for found, text in instructions() if found == name]
    return text


def image_environment() -> dict[str, str]:
    pairs = shlex.split(instruction("ENV"))
    found = dict(pair.split("=", 1) for pair in pairs)
    return {name: value for name, value in found.items() if name != "PATH"}


def health_command() -> list[str]:
    command: list[str] = json.loads(instruction("HEALTHCHECK").partition("CMD ")[2])
    return command


def single_node() -> list[Container]:
    names = {"0.0.0.0": "{1}", "127.0.0.1": "{1}", "localhost": "{1}"}
    return [Container(json.loads(instruction("CMD")), {}, names)]


def compose_nodes() -> list[Container]:
    found = []
    for number, service in enumerate(COMPOSE["services"].values(), start=1):
        _, outside, inside = service["ports"][0].split(":")
        names = {"0.0.0.0": f"{{{number}}}", f"localhost:{outside}": f"{{{number}}}:{inside}"}
        names |= {name: f"{{{place}}}" for place, name in enumerate(COMPOSE["services"], start=1)}
        found.append(Container(service["command"], service["environment"], names))
    return found


def manifest_of(kind: str, name: str) -> Any:
    [found] = [one for one in MANIFEST if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found["spec"]


def pod_container() -> Any:
    [container] = manifest_of("StatefulSet", "riverrun")["template"]["spec"]["containers"]
    return container


def kubernetes_nodes() -> list[Container]:
    found = []
    for index in range(manifest_of("StatefulSet", "riverrun")["replicas"]):
        fields = {
            "metadata.labels['apps.kubernetes.io/pod-index']": str(index),
            "metadata.name": f"riverrun-{index}",
            "metadata.namespace": "space",
        }
        variables = {
            one["name"]: fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
            for one in pod_container()["env"]
        }
        arguments = list(pod_container()["args"])
        for name, value in variables.items():
            arguments = [text.replace(f"$({name})", value) for text in arguments]
        names = {
            f"riverrun-{index}.riverrun.space.svc": f"{{{index + 1}}}",
            "riverrun:9092": "{1}:9092,{2}:9092,{3}:9092",
        }
        found.append(Container(arguments, variables, names))
    return found


@contextmanager
def running(
    containers: list[Container], folder: Path
) -> Iterator[list[tuple[str, subprocess.Popen[bytes]]]]:
    """The addresses and processes of nodes that are healthy."""
    network = f"127.{random.randrange(2, 255)}.{random.randrange(256)}"
    addresses = {str(number): f"{network}.{number}" for number in range(1, NODES + 1)}
    with ExitStack() as stack:
        nodes = []
        for number, container in enumerate(containers, start=1):

            def replaced(text: str, container: Container = container) -> str:
                for name, pattern in container.names.items():
                    text = text.replace(name, pattern)
                for place, address in addresses.items():
                    text = text.replace(f"{{{place}}}", address)
                return text

            own = {name: replaced(text) for name, text in container.environment.items()}
            environment = {
                **{k: v for k, v in os.environ.items() if not k.startswith("RIVERRUN_")},
                **image_environment(),
                **own,
                "RIVERRUN_LOG_DIRS": str(folder / f"node-{number}"),
            }
            log = stack.enter_context(open(folder / f"node-{number}.log", "wb"))
            process = subprocess.Popen(
                [executable(), *map(replaced, container.arguments)],
                env=environment,
                stdout=log,
                stderr=log,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            nodes.append((addresses[str(number)], process))
        for address, process in nodes:
            until(
                lambda at=address, it=process: is_healthy(at, it),  # type: ignore[misc]
                seconds=READY_SECONDS_MAX,
                what=f"the node at {address} is healthy",
            )
        yield nodes


def is_healthy(address: str, process: subprocess.Popen[bytes]) -> bool:
    """Run the health check of the image."""
    assert process.poll() is None, f"the node ended with {process.returncode}"
    python, *rest = health_command()
    assert python == "python"
    command = [sys.executable, *(text.replace("127.0.0.1", address) for text in rest)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def riverrun(*arguments: str, text: str = "") -> str:
    done = subprocess.run(
        [executable(), *arguments], input=text, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("containers", "port"),
    [(single_node(), 9092), (compose_nodes(), 19092), (kubernetes_nodes(), 9092)],
    ids=["image", "compose", "kubernetes"],
)
def test_the_nodes_form_a_cluster_and_stop_cleanly(
    containers: list[Container], port: int, tmp_path: Path
) -> None:
    with running(containers, tmp_path) as nodes:
        bootstrap = f"{nodes[0][0]}:{port}"
        riverrun("topics", "create", "t", "-b", bootstrap)
        riverrun("produce", "t", "-b", bootstrap, text="hello\n")
        read = ("consume", "t", "-b", bootstrap, "--from-beginning", "--until-end")
        assert riverrun(*read) == "hello\n"
        status = json.loads(riverrun("cluster", "nodes", "-b", bootstrap, "--json"))
        assert len(status) == len(containers)
        [topic] = json.loads(riverrun("topics", "describe", "t", "-b", bootstrap, "--json"))
        assert len(topic["partitions"][0]["replicas"]) == len(containers)
        for _, process in nodes:
            process.terminate()
        assert [process.wait(STOP_SECONDS_MAX) for _, process in nodes] == [0] * len(nodes)


def test_all_variables_are_settings() -> None:
    for container in [*compose_nodes(), *kubernetes_nodes()]:
        assert unknown_variables({**image_environment(), **container.environment}) == []


def test_the_image_runs_as_a_user_with_a_volume_for_the_data() -> None:
    user = instruction("USER")
    assert user.isdigit() and user != "0"
    volume = instruction("VOLUME")
    assert image_environment()["RIVERRUN_LOG_DIRS"].startswith(f"{volume}/")
    assert instruction("STOPSIGNAL") == "SIGTERM"
    for service in COMPOSE["services"].values():
        assert service["volumes"][0].split(":")[1] == volume
    assert pod_container()["volumeMounts"][0]["mountPath"] == volume
    pod = manifest_of("StatefulSet", "riverrun")["template"]["spec"]
    assert pod["securityContext"]["runAsUser"] == int(user)
    assert pod["securityContext"]["runAsNonRoot"] is True


def test_the_container_has_no_privileges() -> None:
    rights = pod_container()["securityContext"]
    assert rights["allowPrivilegeEscalation"] is False
    assert rights["readOnlyRootFilesystem"] is True
    assert rights["capabilities"] == {"drop": ["ALL"]}
    pod = manifest_of("StatefulSet", "riverrun")["template"]["spec"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    mounted = {one["name"]: one["mountPath"] for one in pod_container()["volumeMounts"]}
    declared = {one["name"] for one in pod["volumes"]}
    declared |= {
        one["metadata"]["name"]
        for one in manifest_of("StatefulSet", "riverrun")["volumeClaimTemplates"]
    }
    assert set(mounted) == declared
    assert mounted["tmp"] == "/tmp"


def test_one_failure_takes_one_node() -> None:
    labels = manifest_of("StatefulSet", "riverrun")["selector"]["matchLabels"]
    assert manifest_of("PodDisruptionBudget", "riverrun") == {
        "maxUnavailable": 1,
        "selector": {"matchLabels": labels},
    }
    pod = manifest_of("StatefulSet", "riverrun")["template"]["spec"]
    [apart] = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [spread] = pod["topologySpreadConstraints"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert spread["topologyKey"] == "topology.kubernetes.io/zone"
    assert apart["labelSelector"] == spread["labelSelector"] == {"matchLabels": labels}


def test_a_stop_has_time_for_the_controlled_shutdown() -> None:
    limit_s = ControllerSettings().controlled_shutdown_timeout_ms / 1000
    pod = manifest_of("StatefulSet", "riverrun")["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= 2 * limit_s
    for service in COMPOSE["services"].values():
        assert int(service["stop_grace_period"].removesuffix("s")) >= 2 * limit_s


def test_the_service_monitor_finds_the_nodes() -> None:
    [service, monitor] = MONITORING
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    for other in MANIFEST:  # each node is scraped once
        if other["kind"] == "Service":
            assert not wanted.items() <= other["metadata"]["labels"].items()
    pods = manifest_of("StatefulSet", "riverrun")["selector"]["matchLabels"]
    assert service["spec"]["selector"] == pods
    [endpoint] = monitor["spec"]["endpoints"]
    [port] = service["spec"]["ports"]
    ports = {one["name"]: one["containerPort"] for one in pod_container()["ports"]}
    assert endpoint["port"] == port["name"]
    assert ports[port["name"]] == port["port"]
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == JOB


def test_ports_and_probes_agree() -> None:
    exposed = {int(port) for port in instruction("EXPOSE").split()}
    ports = {one["name"]: one["containerPort"] for one in pod_container()["ports"]}
    services = {one["name"]: one["port"] for one in manifest_of("Service", "riverrun")["ports"]}
    assert set(ports.values()) == exposed
    assert services == ports
    probes = {name: pod_container()[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness")}
    assert {probe["path"] for probe in probes.values()} == {"/health/live"}
    assert pod_container()["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    assert "/health/ready" in health_command()[-1]


def test_blank_nodes_of_a_stateful_set_find_each_other() -> None:
    stateful = manifest_of("StatefulSet", "riverrun")
    service = manifest_of("Service", stateful["serviceName"])
    assert service["publishNotReadyAddresses"] is True
    assert service["clusterIP"] == "None"
    assert stateful["podManagementPolicy"] == "Parallel"
    arguments = pod_container()["args"]
    assert arguments[arguments.index("--bootstrap-expect") + 1] == str(stateful["replicas"])


def test_the_build_gets_all_files_of_the_wheel() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if "!" in line]
    assert {"src", "docs", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"} <= set(kept)
    assert all((ROOT / name).exists() for name in kept)
