"""All connections to one cluster: finds nodes, leaders and coordinators, and retries within limits.

``ConnectionPool.try_again`` runs every operation. After an OSError, a timeout or a retriable error
code it discards cached metadata and coordinators and repeats the operation with back-off, until a
limit of the ``RetryPolicy`` is reached. Then it raises the last error: a ``KafkaError`` from the
cluster or an ``OSError`` (including ``TimeoutError``) from the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

from msgspec import Struct, field

from riverrun.client.connection import Connection
from riverrun.client.retry import RETRIABLE, STALE_COORDINATOR, STALE_LEADER, RetryPolicy
from riverrun.client.security import AuthenticationFailed, ClientSecurity
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.ports.randomness import Randomness, SystemRandomness
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.find_coordinator_request import FindCoordinatorRequest
from riverrun.wire.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from riverrun.wire.messages.metadata_response import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

Result = TypeVar("Result")
GROUP_COORDINATOR = 0
TRANSACTION_COORDINATOR = 1
Address = tuple[str, int]


class ClusterUnreachable(ConnectionError):
    """No node of the cluster could be reached; ``failures`` has the error of each."""

    def __init__(self, text: str, failures: Iterable[OSError] = ()) -> None:
        super().__init__(text)
        self.failures = tuple(failures)


class ClusterMetadata(Struct):
    """The cluster according to the last Metadata responses."""

    cluster_id: str | None = None
    controller_id: int = -1
    nodes: dict[int, Address] = field(default_factory=dict)
    topics: dict[str, MetadataResponseTopic] = field(default_factory=dict)

    def partition(self, topic: str, index: int) -> MetadataResponsePartition:
        """Raises KafkaError if the partition does not exist."""
        found = self.topics.get(topic)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic}")
        if found.error_code is not ErrorCode.NONE:
            raise KafkaError(found.error_code, f"topic {topic}: {found.error_code.name}")
        for partition in found.partitions:
            if partition.partition_index == index:
                return partition
        text = f"topic {topic} has no partition {index}"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)

    def leader(self, topic: str, index: int) -> int:
        leader = self.partition(topic, index).leader_id
        if leader < 0:
            text = f"partition {topic}-{index} has no leader"
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text)
        return leader

    def topic_id(self, topic: str) -> UUID | None:
        found = self.topics.get(topic)
        return None if found is None else found.topic_id


def parse_bootstrap(text: str) -> list[Address]:
    """Parse ``host:port,host:port``. Raises ValueError with a message for people."""
    addresses = []
    for part in text.split(","):
        scheme, found, _ = part.strip().partition("://")
        if found:
            raise ValueError(f"{part.strip()!r} must be HOST:PORT, without {scheme}://")
        host, colon, port = part.strip().rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{part.strip()!r} is not an address like 127.0.0.1:9092")
        addresses.append((host.strip("[]"), int(port)))
    return addresses


class ConnectionPool:
    """A client of one cluster. ``async with ConnectionPool([...]) as pool`` closes it."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        client_id: str = "riverrun",
        request_timeout_s: float = 30.0,
        connect_timeout_s: float = 5.0,
        retry: RetryPolicy | None = None,
        randomness: Randomness | None = None,
        security: ClientSecurity | None = None,
    ) -> None:
        assert bootstrap, "a cluster has at least one address"
        self._bootstrap = list(bootstrap)
        self._client_id = client_id
        self.request_timeout_s = request_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self.retry = retry or RetryPolicy()
        self._randomness = randomness or SystemRandomness()
        self._security = security
        self._connections: dict[Address, Connection] = {}
        self._locks: dict[Address, asyncio.Lock] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        """The node of each coordinator, by key type and key."""
        self.cluster = ClusterMetadata()
        self.on_retry: Callable[[KafkaError | OSError], None] = lambda _failure: None
        """Called with each failure that is retried."""

    async def __aenter__(self) -> ConnectionPool:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.wait_closed()

    # Requests

    async def request(
        self,
        key: ApiKey,
        message: Struct,
        *,
        is_repeatable: bool = True,
        timeout_s: float | None = None,
    ) -> Any:
        """Send a request to any node. The caller handles error codes in the response.

        A repeatable request is retried when the network fails. Another request is retried only
        while it is unsent: it may have been executed although its response is lost.
        """

        async def once() -> Any:
            connection = await self.any_connection()
            return await connection.request(key, message, timeout_s=timeout_s)

        if is_repeatable:
            return await self.try_again(once)
        connection = await self.try_again(self.any_connection)
        return await connection.request(key, message, timeout_s=timeout_s)

    async def request_node(
        self,
        node_id: int,
        key: ApiKey,
        message: Struct,
        *,
        version: int | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Send a request to one node, without retries. ``version``: of an API that nodes do not
        advertise."""
        connection = await self.node_connection(node_id)
        return await connection.request(key, message, version=version, timeout_s=timeout_s)

    async def group_request(
        self, group: str, key: ApiKey, message: Struct, error_of: Callable[[Result], ErrorCode]
    ) -> Result:
        """Send a request to the coordinator of a group. ``error_of`` returns the error code of a
        response. Retriable codes are retried; the caller handles the others.
        """

        async def once() -> Result:
            response: Result = await self.request_node(await self.coordinator(group), key, message)
            code = error_of(response)
            if code in RETRIABLE:
                raise KafkaError(code, f"group {group}: {code.name}")
            return response

        return await self.try_again(once, group=group)

    async def try_again(
        self,
        operation: Callable[[], Awaitable[Result]],
        *,
        group: str | None = None,
        transactional_id: str | None = None,
        final: frozenset[ErrorCode] = frozenset(),
    ) -> Result:
        """Run an operation until it succeeds or the limits of ``retry`` are reached.

        ``group`` or ``transactional_id`` names the coordinator that the operation uses. Codes in
        ``final`` are not retried, because a repeated operation could do harm.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self.retry.total_s_max
        tries = 0
        while True:
            tries += 1
            try:
                return await operation()
            except KafkaError as error:
                if error.code not in RETRIABLE or error.code in final:
                    raise
                failure: KafkaError | OSError = error
                if error.code in STALE_LEADER:
                    self.cluster.topics.clear()
                if error.code in STALE_COORDINATOR | STALE_LEADER:
                    self._forget_coordinator(group, transactional_id)
            except AuthenticationFailed:
                raise
            except OSError as error:
                failure = error
                self.cluster.topics.clear()
                self._forget_coordinator(group, transactional_id)
            wait_s = self.retry.backoff.jittered(tries, self._randomness)
            tries_max = self.retry.tries_max_after(failure)
            if tries >= tries_max or loop.time() + wait_s > give_up_at:
                raise failure
            self.on_retry(failure)
            await asyncio.sleep(wait_s)

    # Connections

    async def any_connection(self) -> Connection:
        """An open connection, or a new one to the first node that can be reached."""
        for connection in self._connections.values():
            if not connection.is_closed:
                return connection
        failures: dict[Address, OSError] = {}
        for address in self._shuffled([*self.cluster.nodes.values(), *self._bootstrap]):
            if address not in failures:
                try:
                    return await self._connection(address)
                except AuthenticationFailed:
                    raise  # all nodes have the same users
                except OSError as error:
                    failures[address] = error
        tried = ", ".join(
            f"{host}:{port} ({_describe(error)})" for (host, port), error in failures.items()
        )
        raise ClusterUnreachable(f"no node answers: {tried}", failures.values())

    async def switch_node(self) -> None:
        """Use another node for requests that any node serves, if one can be reached. The metadata
        of the current node may be stale.
        """
        current = next((at for at, one in self._connections.items() if not one.is_closed), None)
        addresses = [at for _, at in sorted(self.cluster.nodes.items())]
        place = addresses.index(current) + 1 if current in addresses else 0
        for address in [*addresses[place:], *addresses[:place]]:
            if address == current:
                continue
            try:
                await self._connection(address)
            except OSError:
                continue
            self._connections = {address: self._connections[address], **self._connections}
            return

    async def node_connection(self, node_id: int) -> Connection:
        if node_id not in self.cluster.nodes:
            await self.metadata(())
        if node_id not in self.cluster.nodes:
            # The caller has a stale leader or coordinator: a retriable error makes it ask again.
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"node {node_id} does not exist")
        address = self.cluster.nodes[node_id]
        try:
            return await self._connection(address)
        except AuthenticationFailed:
            raise
        except OSError as error:
            place = f"node {node_id} at {address[0]}:{address[1]}"
            raise ConnectionError(f"{place} does not answer: {_describe(error)}") from error

    async def _connection(self, address: Address) -> Connection:
        known = self._connections.get(address)
        if known is not None and not known.is_closed:
            return known
        async with self._locks.setdefault(address, asyncio.Lock()):
            known = self._connections.get(address)
            if known is not None and not known.is_closed:
                return known
            made = await self.connect(address)
            self._connections[address] = made
            return made

    async def connect(self, address: Address) -> Connection:
        """A new connection, which the caller closes, to any address with the pool's login."""
        host, port = address
        return await Connection.connect(
            host,
            port,
            client_id=self._client_id,
            timeout_s=self.request_timeout_s,
            connect_timeout_s=self._connect_timeout_s,
            security=self._security,
        )

    def peer_certificates(self) -> dict[Address, Mapping[str, Any]]:
        """The certificates of the brokers that this pool is connected to with TLS."""
        found = {at: one.peer_certificate for at, one in self._connections.items()}
        return {at: certificate for at, certificate in found.items() if certificate}

    def _shuffled(self, addresses: list[Address]) -> list[Address]:
        """Spread the first requests of many clients over all nodes."""
        left, drawn = list(addresses), []
        while left:
            drawn.append(left.pop(self._randomness.below(len(left))))
        return drawn

    # Metadata

    async def metadata(
        self, topics: Sequence[str] | None, *, may_create: bool = False
    ) -> MetadataResponse:
        """Request the metadata of topics (None: all topics) and update ``cluster``."""
        wanted = None
        if topics is not None:
            wanted = tuple(MetadataRequestTopic(name=name) for name in topics)
        message = MetadataRequest(topics=wanted, allow_auto_topic_creation=may_create)
        connection = await self.any_connection()
        response: MetadataResponse = await connection.request(ApiKey.METADATA, message)
        self._update(response)
        return response

    def _update(self, response: MetadataResponse) -> None:
        if response.brokers:
            self.cluster.nodes = {node.node_id: (node.host, node.port) for node in response.brokers}
        self.cluster.cluster_id = response.cluster_id
        self.cluster.controller_id = response.controller_id
        for topic in response.topics:
            if topic.name is not None:
                self.cluster.topics[topic.name] = topic

    async def leader(self, topic: str, partition: int, *, may_create: bool = False) -> int:
        """The leader of a partition, from the cache or by a Metadata request."""
        if topic not in self.cluster.topics:
            await self.metadata([topic], may_create=may_create)
        return self.cluster.leader(topic, partition)

    async def coordinator(self, key: str, key_type: int = GROUP_COORDINATOR) -> int:
        """The coordinator of a group, or of a transactional id with ``TRANSACTION_COORDINATOR``,
        from the cache or by a FindCoordinator request.
        """
        known = self._coordinators.get((key_type, key))
        if known is not None:
            return known
        message = FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=(key,))
        response = await (await self.any_connection()).request(ApiKey.FIND_COORDINATOR, message)
        # From version 4 the response is a list (KIP-699); before, it is a single node.
        found = response.coordinators[0] if response.coordinators else response
        if found.error_code is not ErrorCode.NONE:
            raise KafkaError(found.error_code, f"coordinator of {key}: {found.error_code.name}")
        node_id: int = found.node_id
        self.cluster.nodes[node_id] = (found.host, found.port)
        self._coordinators[key_type, key] = node_id
        return node_id

    def _forget_coordinator(self, group: str | None, transactional_id: str | None) -> None:
        if group is not None:
            self._coordinators.pop((GROUP_COORDINATOR, group), None)
        if transactional_id is not None:
            self._coordinators.pop((TRANSACTION_COORDINATOR, transactional_id), None)


def _describe(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return error.strerror or str(error) or type(error).__name__
