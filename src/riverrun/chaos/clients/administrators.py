"""An administrator that creates and deletes topics and changes settings."""

from __future__ import annotations

import threading

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from riverrun.chaos.clients.addresses import confluent_address
from riverrun.chaos.history import Action, History, OperationKind

RESPONSE_SECONDS_MAX = 3.0
PAUSE_SECONDS = 0.05
KEPT_TOPICS = 5
SETTING = "retention.ms"
NUMBER_BASE = 1_000_000_000
"""Numbers are added to this retention, which is long enough to delete nothing."""


class Administrator:
    """Repeatedly creates a topic, stores the next number in a setting, deletes an old topic."""

    def __init__(
        self,
        history: History,
        bootstrap: str,
        prefix: str,
        *,
        replicas: int,
        stop: threading.Event,
    ) -> None:
        self._history, self._prefix, self._stop = history, prefix, stop
        self._bootstrap, self._replicas = bootstrap, replicas
        self._client = self._connect()
        self._made: list[str] = []

    def _connect(self) -> AdminClient:
        return AdminClient(
            {
                **confluent_address(self._bootstrap),
                "log_level": 0,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "socket.timeout.ms": 4000,
            }
        )

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
            future.result(RESPONSE_SECONDS_MAX + 2)  # type: ignore[attr-defined]
        except (confluent_kafka.KafkaException, TimeoutError) as error:
            self._history.add(
                "admin", action, OperationKind.INFO, value=name, text=str(error), **more
            )
            # librdkafka keeps using a controller that never responds as long as it has any other
            # connection, because it then sees no reason to refresh the controller id.
            self._client = self._connect()
            return False
        self._history.add("admin", action, OperationKind.OK, value=name, **more)
        return True

    def look(self) -> bool:
        """Record all topics and their numbers; return whether the cluster responded."""
        try:
            names = [
                name
                for name in self._client.list_topics(timeout=RESPONSE_SECONDS_MAX).topics
                if name.startswith(self._prefix)
            ]
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(names)]
            found = self._client.describe_configs(resources, request_timeout=3.0)
            numbers = {
                resource.name: int(future.result(RESPONSE_SECONDS_MAX + 2)[SETTING].value)
                for resource, future in found.items()
            }
        except (confluent_kafka.KafkaException, TimeoutError):
            self._client = self._connect()
            return False
        for name, value in numbers.items():
            number = value - NUMBER_BASE if value >= NUMBER_BASE else -1
            self._history.add("admin", Action.FOUND, value=name, offset=number)
        return True
