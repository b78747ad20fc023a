"""An administrator who creates topics, changes settings and deletes, and records every fate."""

from __future__ import annotations

import threading

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from riverrun.chaos.history import Action, History, OperationKind

ANSWER_SECONDS_MAX = 3.0
PAUSE_SECONDS = 0.05
KEPT_TOPICS = 5
SETTING = "retention.ms"
NUMBER_BASE = 1_000_000_000
"""Numbers are stored as a retention that deletes nothing meanwhile."""


class Administrator:
    """Each turn: a new topic, the next number in its setting; older topics are deleted."""

    def __init__(
        self, history: History, bootstrap: str, prefix: str, *,
        replicas: int, stop: threading.Event,
    ) -> None:  # fmt: skip
        self._history, self._prefix, self._stop = history, prefix, stop
        self._bootstrap, self._replicas = bootstrap, replicas
        self._client = self._connect()
        self._made: list[str] = []

    def _connect(self) -> AdminClient:
        return AdminClient(
            {
                "bootstrap.servers": self._bootstrap, "log_level": 0, "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200, "socket.timeout.ms": 4000,
            }
        )  # fmt: skip

    def run(self) -> None:
        turn = 0
        while not self._stop.wait(PAUSE_SECONDS):
            name = f"{self._prefix}-{turn}"
            if self._create(name):
                self._made.append(name)
            for kept in self._made[-2:]:
                self._set(kept, turn)
            if len(self._made) > KEPT_TOPICS:
                self._delete(self._made.pop(0))
            turn += 1

    def _create(self, name: str) -> bool:
        topic = NewTopic(name, 1, self._replicas)
        futures = self._client.create_topics([topic], operation_timeout=2.0, request_timeout=3.0)
        return self._done(Action.CREATE, name, futures[name])

    def _delete(self, name: str) -> None:
        futures = self._client.delete_topics([name], operation_timeout=2.0, request_timeout=3.0)
        self._done(Action.DELETE, name, futures[name])

    def _set(self, name: str, number: int) -> None:
        entry = ConfigEntry(
            SETTING, str(NUMBER_BASE + number), incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        futures = self._client.incremental_alter_configs([resource], request_timeout=3.0)
        self._done(Action.SET, name, next(iter(futures.values())), offset=number)

    def _done(self, action: Action, name: str, future: object, **more: int) -> bool:
        self._history.add("admin", action, OperationKind.INVOKE, value=name, **more)
        try:
            future.result(ANSWER_SECONDS_MAX + 2)  # type: ignore[attr-defined]
        except (confluent_kafka.KafkaException, TimeoutError) as error:
            self._history.add(
                "admin", action, OperationKind.INFO, value=name, text=str(error), **more
            )
            # librdkafka goes on asking a controller that never answers for as long as it has any
            # other connection, which gives it no reason to ask anew who the controller is.
            self._client = self._connect()
            return False
        self._history.add("admin", action, OperationKind.OK, value=name, **more)
        return True

    def look(self) -> bool:
        """Record which topics there are, and their numbers; whether the cluster said so."""
        try:
            names = [
                name
                for name in self._client.list_topics(timeout=ANSWER_SECONDS_MAX).topics
                if name.startswith(self._prefix)
            ]
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(names)]
            found = self._client.describe_configs(resources, request_timeout=3.0)
            numbers = {
                resource.name: int(future.result(ANSWER_SECONDS_MAX + 2)[SETTING].value)
                for resource, future in found.items()
            }
        except (confluent_kafka.KafkaException, TimeoutError):
            self._client = self._connect()
            return False
        for name, value in numbers.items():
            number = value - NUMBER_BASE if value >= NUMBER_BASE else -1
            self._history.add("admin", Action.FOUND, value=name, offset=number)
        return True
