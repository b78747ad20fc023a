"""``KafkaContainer``: the interface of testcontainers' class, without a container.

Replace ``from testcontainers.kafka import KafkaContainer`` with
``from riverrun.testing.containers import KafkaContainer``. Methods that configure Docker and have
no meaning here are accepted. Methods whose effect a test would miss, such as ``with_network``, do
not exist.
"""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import Self

from riverrun.server.settings import is_setting
from riverrun.testing.cluster import Cluster

SETTING_PREFIX = "KAFKA_"
IGNORED_PREFIXES = (
    "advertised.",
    "broker.id",
    "confluent.",
    "controller.",
    "heap.opts",
    "inter.broker.",
    "jmx.",
    "jvm.",
    "listener",
    "log.dirs",
    "log4j.",
    "node.id",
    "opts",
    "process.roles",
    "transaction.state.log.",
    "zookeeper.",
)
"""Variables that describe the container's own listeners, roles and JVM."""


class KafkaContainer:
    """One node with the methods of testcontainers' ``KafkaContainer``."""

    def __init__(
        self, image: str = "", port: int = 9093, nodes: int = 1, **_docker: object
    ) -> None:
        """``image`` and options of Docker are ignored; ``port`` is only a name, as in Docker."""
        self.image = image
        self.port = port
        self._nodes = nodes
        self._settings: dict[str, str] = {}
        self._cluster: Cluster | None = None

    def with_env(self, key: str, value: object) -> Self:
        """Give a broker setting, written as the images of Confluent and Apache expect it.

        An unknown setting has no effect and is reported with a warning, as by Kafka.
        """
        if not key.startswith(SETTING_PREFIX):
            return self
        name, text = setting_of(key), str(value)
        if name.startswith(IGNORED_PREFIXES):
            return self
        if is_setting(name):
            self._settings[name] = text
        else:
            about = f"{key} has no effect: riverrun has no setting {name}"
            warnings.warn(about, stacklevel=2)
        return self

    def with_envs(self, **variables: object) -> Self:
        for key, value in variables.items():
            self.with_env(key, value)
        return self

    def with_kraft(self) -> Self:
        return self

    def with_cluster_id(self, _cluster_id: str) -> Self:
        return self

    def with_exposed_ports(self, *_ports: int | str) -> Self:
        return self

    def with_name(self, _name: str) -> Self:
        return self

    def with_kwargs(self, **_docker: object) -> Self:
        return self

    def waiting_for(self, _strategy: object) -> Self:
        return self

    def start(self, timeout: float = 30) -> Self:
        self._cluster = Cluster(self._nodes, settings=self._settings, start_timeout_s=timeout)
        self._cluster.open()
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        """The arguments are accepted; the data is always deleted."""
        if self._cluster is not None:
            self._cluster.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.stop()

    def get_bootstrap_server(self) -> str:
        return self.cluster.bootstrap

    def get_container_host_ip(self) -> str:
        return self.cluster.bootstrap.partition(":")[0]

    def get_exposed_port(self, port: int) -> int:
        if port != self.port:
            raise ValueError(f"port {port} is not exposed; the port for clients is {self.port}")
        return int(self.cluster.address(1).rpartition(":")[2])

    def get_logs(self) -> tuple[bytes, bytes]:
        """Standard output, which is empty, and standard error."""
        return b"", self.cluster.logs().encode()

    @property
    def cluster(self) -> Cluster:
        """The cluster behind it, with topics, records and faults."""
        assert self._cluster is not None, "call start() first"
        return self._cluster


def setting_of(variable: str) -> str:
    """``KAFKA_NUM_PARTITIONS`` is ``num.partitions``; ``__`` is ``_`` and ``___`` is ``-``."""
    name = variable.removeprefix(SETTING_PREFIX).lower()
    parts = name.replace("___", "-").split("__")
    return "_".join(part.replace("_", ".") for part in parts)
