"""What only a riverrun node knows about itself: DescribeNode, an API of our own.

Apache Kafka closes the connection of a client that sends it. ``is_riverrun`` tells from the
settings of a node whether it may be asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from riverrun.admin.broker_settings import MODE
from riverrun.admin.requests import ask_each
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode
from riverrun.placement.traffic import BrokerTraffic
from riverrun.wire.apis import ApiKey
from riverrun.wire.private.describe_node_request import DescribeNodeRequest

ANSWER_SECONDS_MAX: Final = 3.0

Kind = TypeVar("Kind")


class NodeProcess(Struct, kw_only=True):
    """The answer to the subject ``node``."""

    version: str
    started_ms: int
    memory_bytes: int | None = None
    connections: int = 0


class NodeSeries(Struct, kw_only=True):
    """The answer to the subject ``history``."""

    series: dict[str, list[float | None]]

    def newest(self, name: str) -> float | None:
        known = [value for value in self.series.get(name, ()) if value is not None]
        return known[-1] if known else None


def is_riverrun(settings: Mapping[str, object]) -> bool:
    """Whether the settings of a broker are those of riverrun."""
    return MODE in settings


async def ask_facts(
    pool: ConnectionPool, nodes: Iterable[int], subject: str, query: object, kind: type[Kind]
) -> dict[int, Kind]:
    """What riverrun nodes say of a subject. Nodes that do not respond, or refuse, are left out."""
    message = DescribeNodeRequest(subject=subject, query=msgspec.json.encode(query).decode())
    answers, _ = await ask_each(
        pool,
        dict.fromkeys(nodes, message),
        ApiKey.DESCRIBE_NODE,
        version=0,
        limit_s=ANSWER_SECONDS_MAX,
    )
    return {
        node: msgspec.json.decode(answer.content, type=kind)
        for node, answer in answers.items()
        if answer.error_code is ErrorCode.NONE
    }


async def ask_traffic(
    pool: ConnectionPool, nodes: Iterable[int], *, has_topics: bool
) -> dict[int, BrokerTraffic]:
    """The measured traffic of riverrun nodes. Older versions, and nodes that have just started, are
    left out."""
    query = {"topics": has_topics}
    found = await ask_facts(pool, nodes, "traffic", query, BrokerTraffic)
    return {node: one for node, one in found.items() if one.is_measured}
