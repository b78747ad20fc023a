"""A metadata log in memory, seeded randomness, and images to decide against."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from riverrun.cluster.brokers.registration import SUPPORTED_FEATURES
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.decision import Decision
from riverrun.metadata.delta import Delta
from riverrun.metadata.image import Image
from riverrun.metadata.records import (
    BrokerEndpoint,
    BrokerFeature,
    FeatureLevelRecord,
    Record,
    RegisterBrokerRecord,
)
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.model.settings import Setting, SettingKind, Settings, setting
from riverrun.storage.settings import DirectorySettings, LogSettings


class SeededRandomness:
    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)

    def uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128) | 1 << 127)

    def below(self, limit: int) -> int:
        return self._random.randrange(limit)

    def between(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLevel(Settings):
    """Settings of other packages that the controller reads, and one of each special type."""

    node_id: int = setting(1, name="node.id", doc="id")
    partitions: int = setting(1, name="num.partitions", at_least=1, doc="partitions")
    replicas: int = setting(1, name="default.replication.factor", at_least=1, doc="replicas")
    delete_enable: bool = setting(True, name="delete.topic.enable", doc="delete")
    connections: int = setting(7, name="max.connections", at_least=0, live=True, doc="many")
    secret: str = setting(
        "", name="secret.word", kind=SettingKind.PASSWORD, live=True, doc="hidden"
    )
    offsets_partitions: int = setting(50, name="offsets.topic.num.partitions", doc="fifty")
    offsets_replicas: int = setting(3, name="offsets.topic.replication.factor", doc="three")
    offsets_segment: int = setting(
        104857600, name="offsets.topic.segment.bytes", kind=SettingKind.INT, doc="small"
    )
    state_partitions: int = setting(50, name="transaction.state.log.num.partitions", doc="fifty")
    state_replicas: int = setting(3, name="transaction.state.log.replication.factor", doc="three")
    state_min_isr: int = setting(2, name="transaction.state.log.min.isr", doc="two")
    state_segment: int = setting(
        104857600, name="transaction.state.log.segment.bytes", kind=SettingKind.INT, doc="small"
    )


def declared() -> tuple[Setting, ...]:
    return (*LogSettings.declared(), *DirectorySettings.declared(), *NodeLevel.declared())


def make_configs(given: Mapping[str, str] | None = None, node: int = 1) -> Configs:
    texts = dict(given or {})
    return Configs(declared(), given=texts, node_id=NodeId(node), log=LogSettings.from_texts(texts))


def replayed(image: Image, records: Iterable[Record]) -> Image:
    """The image after some records, as the log would publish it."""
    known = list(records)
    delta = Delta(image)
    for record in known:
        delta.replay(record)
    return delta.publish(
        offset=Offset(image.offset + len(known)), epoch=LeaderEpoch(1), timestamp=image.timestamp
    )


def registration(
    image: Image, node: int, rack: str | None = None, incarnation: int = 1
) -> RegisterBrokerRecord:
    """A broker that is registered unfenced, for short tests. A controller never does that."""
    return RegisterBrokerRecord(
        broker_id=node,
        incarnation_id=UUID(int=1000 * node + incarnation),
        broker_epoch=image.offset + 1,
        end_points=(
            BrokerEndpoint(name="PLAINTEXT", host=f"host{node}", port=9092, security_protocol=0),
        ),
        features=tuple(
            BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in SUPPORTED_FEATURES.items()
        ),
        rack=rack,
        fenced=False,
        log_dirs=(UUID(int=5_000_000 + node),),
    )


def cluster_of(*nodes: int, racks: Mapping[int, str] | None = None) -> Image:
    """Registered, unfenced brokers and the features of a new cluster."""
    features: list[Record] = [
        FeatureLevelRecord(name="metadata.version", feature_level=30),
        FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1),
    ]
    image = replayed(Image(), features)
    for node in nodes or (1,):
        image = replayed(image, [registration(image, node, (racks or {}).get(node))])
    return image


class MemoryLog:
    """A metadata log without a disk; ``gate`` holds commits back, ``error`` makes appends fail."""

    def __init__(self, image: Image | None = None) -> None:
        self.current = image if image is not None else cluster_of(1)
        self.newest = self.current
        self.node_id = NodeId(1)
        self.leader: NodeId | None = NodeId(1)
        self.is_active = True
        self.appended: list[tuple[Record, ...]] = []
        self.gate: asyncio.Event | None = None
        self.error: OSError | None = None
        self.heard: dict[NodeId, float] = {}

    def append(self, records: Sequence[Record]) -> Awaitable[Image]:
        assert self.is_active, "an append to a log that we do not lead"
        image = replayed(self.newest, records)
        if self.error is not None:
            raise self.error
        self.newest = image
        self.appended.append(tuple(records))
        return asyncio.ensure_future(self._commit(image))

    async def _commit(self, image: Image) -> Image:
        if self.gate is not None:
            await self.gate.wait()
        if not self.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        if image.offset > self.current.offset:
            self.current = image
        return image

    async def settled(self) -> None:
        await self._commit(self.newest)

    def leader_endpoint(self) -> tuple[NodeId, str, int] | None:
        return None

    def heard_from(self, node: NodeId) -> float | None:
        return self.heard.get(node)

    def apply(self, decision: Decision[object]) -> None:
        if decision.records:
            self.current = self.newest = replayed(self.newest, decision.records)


class FakeClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now
