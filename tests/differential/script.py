"""A script of requests against one server, and the recorded responses.

A script is a function that takes a `Script` and sends requests. It runs once per era: with all APIs
in their oldest version, in their first flexible version, and in their newest version. The requests
are equal for all servers, except for ids that the server assigned.
"""

import contextlib
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kio.index import load_request_schema
from kio.schema.index import schema_name_map

from tests.differential.secured import (
    USERS,
    controller_address,
    log_in,
    log_in_by_token,
    login_address,
    parse_by_own_codec,
)
from tests.plain_client import API_KEYS, ConnectionClosed, PlainClient, parse_response
from tests.processes import until

ERAS = ("oldest", "flexible", "newest")
# kio has versions that are unstable in Kafka, and lacks versions that Kafka rejects.
NEWEST = {"init_producer_id": 5}
RESPONSE_SECONDS_MAX = 15
SETTLE_SECONDS_MAX = 15


@functools.cache
def versions(api: str) -> range:
    known = sorted(schema_name_map[api])
    return range(known[0], NEWEST.get(api, known[-1]) + 1)


def is_flexible(api: str, version: int) -> bool:
    return bool(load_request_schema(API_KEYS[api], version).__flexible__)


@functools.cache
def version_of(api: str, era: str) -> int:
    served = versions(api)
    if era == "oldest":
        return served[0]
    if era == "newest":
        return served[-1]
    return next((version for version in served if is_flexible(api, version)), served[-1])


@dataclass(slots=True)
class Exchange:
    ask: str
    response: Any


@dataclass(slots=True)
class Script:
    address: tuple[str, int]
    name: str
    era: str
    exchanges: list[Exchange] = field(default_factory=list)
    connections: dict[str, PlainClient] = field(default_factory=dict)
    ids: list[tuple[str, str]] = field(default_factory=list)

    def note_id(self, kind: str, value: str) -> None:
        """Number an id by its first appearance in the script."""
        if value and (kind, value) not in self.ids:
            self.ids.append((kind, value))

    def topic(self, name: str) -> str:
        """A name with script and era, so that runs do not share topics or groups."""
        return f"{self.name}-{self.era}-{name}"

    def version(self, api: str) -> int:
        return version_of(api, self.era)

    def at_least(self, api: str, version: int) -> bool:
        return self.version(api) >= version

    def request(
        self,
        label: str,
        api: str,
        fields: dict[str, Any],
        *,
        version: int | None = None,
        on: str = "main",
        only: Callable[[Any], Any] | None = None,
        settled: Callable[[Any], bool] | None = None,
    ) -> Any:
        """Send a request, record and return the response.

        `only` selects the part that matters for this script. `settled` repeats the request until
        an earlier change is visible.
        """
        chosen = self.version(api) if version is None else version
        if settled is None:
            response = self._exchange(api, chosen, fields, on)
        else:
            response = self._settled(api, chosen, fields, on, settled)
        self._record(label, api, chosen, response, only)
        return response

    def begin(
        self,
        label: str,
        api: str,
        fields: dict[str, Any],
        *,
        version: int | None = None,
        on: str = "main",
    ) -> Callable[[], Any]:
        """Send a request; the returned function waits for the response and records it."""
        chosen = self.version(api) if version is None else version
        client = self._client(on)
        client.send(api, chosen, fields)

        def finish() -> Any:
            response = self._receive(client, api, chosen, on)
            self._record(label, api, chosen, response, None)
            return response

        return finish

    def quietly(self, api: str, fields: dict[str, Any], *, version: int | None = None) -> Any:
        """Send a request without recording it, to prepare a case."""
        chosen = self.version(api) if version is None else version
        return self._exchange(api, chosen, fields, "quiet")

    def quietly_on(self, on: str, api: str, fields: dict[str, Any]) -> Any:
        """The same on another connection."""
        return self._exchange(api, self.version(api), fields, on)

    def log_in_by_token(self, on: str, token_id: str, hmac: bytes) -> Any:
        """Open a connection that logs in with a delegation token; returns the last response."""
        address = login_address(self.address)
        client = PlainClient(address, timeout_seconds=RESPONSE_SECONDS_MAX)
        self.connections[on] = client
        return log_in_by_token(client, token_id, hmac)

    def send_raw(
        self, label: str, frames: bytes, responses: list[tuple[str, int]], *, on: str = "raw"
    ) -> list[Any]:
        """Send raw bytes and record the responses, or that the connection was closed."""
        client = self._client(on)
        got = []
        with contextlib.suppress(ConnectionClosed):
            client.send_raw(frames)
        for api, version in responses:
            response = self._receive(client, api, version, on)
            self._record(label, api, version, response, None)
            got.append(response)
        return got

    def expect_closed(self, label: str, frames: bytes, *, on: str = "raw") -> None:
        client = self._client(on)
        try:
            client.send_raw(frames)
            frame = client.receive_frame()
            response = f"{len(frame)} bytes"
        except ConnectionClosed:
            response = "closed"
        except TimeoutError:
            response = "silence"
        self.exchanges.append(Exchange(label, response))
        self.hang_up(on)

    def hang_up(self, on: str) -> None:
        self.connections.pop(on).close()

    def close(self) -> None:
        for client in self.connections.values():
            client.close()
        self.connections.clear()

    # Preparation of topics and groups, which is not recorded

    def make_topic(self, name: str, *, partitions: int = 1, configs: Any = ()) -> str:
        """Create a topic, wait until the broker leads its partitions, and return its id."""
        rows = [{"name": key, "value": value} for key, value in dict(configs).items()]
        fields = {"name": name, "num_partitions": partitions, "replication_factor": 1}
        made = self.quietly(
            "create_topics", {"topics": [{**fields, "configs": rows}], "timeout": 10000}, version=7
        )
        assert made["topics"][0]["error_code"] == "NONE", made
        return self.wait_for_topic(name, partitions)

    def wait_for_topic(self, name: str, partitions: int = 1) -> str:
        def look() -> str | None:
            topic = self.look_up(name)
            leaders = [row["leader_id"] for row in topic["partitions"]]
            is_there = topic["error_code"] == "NONE" and leaders.count(1) == partitions
            return str(topic["topic_id"]) if is_there and self._leads(name, partitions) else None

        topic_id = str(until(look, seconds=SETTLE_SECONDS_MAX, what=f"topic {name}"))
        self.note_id("topic-id", topic_id)
        return topic_id

    def _leads(self, name: str, partitions: int) -> bool:
        """Wait for leaders; Kafka's metadata has a leader shortly before it serves requests."""
        rows = [{"partition_index": index, "timestamp": -1} for index in range(partitions)]
        fields = {"replica_id": -1, "topics": [{"name": name, "partitions": rows}]}
        response = self.quietly("list_offsets", fields, version=7)
        return all(row["error_code"] == "NONE" for row in response["topics"][0]["partitions"])

    def wait_without_topic(self, name: str) -> None:
        until(
            lambda: self.look_up(name)["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION",
            seconds=SETTLE_SECONDS_MAX,
            what=f"topic {name} is gone",
        )

    def look_up(self, name: str) -> Any:
        fields = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        return self.quietly("metadata", fields, version=12)["topics"][0]

    def wait_for_coordinator(self) -> None:
        def look() -> bool:
            fields = {"key_type": 0, "coordinator_keys": [self.topic("any")]}
            response = self.quietly("find_coordinator", fields, version=4)
            if response["coordinators"][0]["error_code"] != "NONE":
                return False
            groups = {"groups": [{"group_id": self.topic("any"), "topics": None}]}
            return bool(
                self.quietly("offset_fetch", groups, version=8)["groups"][0]["error_code"] == "NONE"
            )

        until(look, seconds=SETTLE_SECONDS_MAX, what="group coordinator")

    def _settled(
        self,
        api: str,
        version: int,
        fields: dict[str, Any],
        on: str,
        settled: Callable[[Any], bool],
    ) -> Any:
        end = time.monotonic() + SETTLE_SECONDS_MAX

        def look() -> list[Any] | None:
            response = self._exchange(api, version, fields, on)
            return [response] if settled(response) or time.monotonic() > end else None

        return until(look, seconds=SETTLE_SECONDS_MAX + 5, what=api)[0]

    def _client(self, on: str) -> PlainClient:
        """The connection of this name. Users of secured servers log in on their own one, or on
        the controller listener as `user@controller`."""
        if on not in self.connections:
            user, _, place = on.partition("@")
            address = self.address
            if user in USERS:
                address = controller_address(address) if place else login_address(address)
            client = PlainClient(address, timeout_seconds=RESPONSE_SECONDS_MAX)
            self.connections[on] = client
            if user in USERS:
                log_in(client, user)
        return self.connections[on]

    def _exchange(self, api: str, version: int, fields: dict[str, Any], on: str) -> Any:
        client = self._client(on)
        try:
            client.send(api, version, fields)
        except ConnectionClosed:
            self.hang_up(on)
            return "closed"
        return self._receive(client, api, version, on)

    def _receive(self, client: PlainClient, api: str, version: int, on: str) -> Any:
        try:
            frame = client.receive_frame()
        except ConnectionClosed:
            self.hang_up(on)
            return "closed"
        except TimeoutError:
            self.hang_up(on)
            return "silence"
        if api.endswith("_delegation_token") or api == "envelope":
            return parse_by_own_codec(api, version, frame)
        return parse_response(api, version, frame)[1]

    def _record(
        self, label: str, api: str, version: int, response: Any, only: Callable[[Any], Any] | None
    ) -> None:
        kept = only(response) if only is not None and isinstance(response, dict) else response
        self.exchanges.append(Exchange(f"{api} v{version}: {label}", kept))
