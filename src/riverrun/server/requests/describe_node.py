"""DescribeNode: our own API, by which others learn what only this node knows.

Version 0, not advertised. It needs the right to describe the cluster. Subjects:

* ``node``: version, start, memory and disk.
* ``history``: series of the last 24 hours, of the node, of a topic or of a group.
* ``traffic``: means of the last minutes, of the node and of the partitions that it leads, by topic:
  for plans and placement. Topics that the principal may not describe are left out.
* ``connections``: the clients that are connected; or the members of the groups coordinated here
  that the principal may describe.
* ``timeline``: events of the metadata log; ``diff``: the metadata at two offsets compared. Both
  leave out what the principal may not describe (``facts/visibility``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.placement.traffic import BrokerTraffic
from riverrun.ports.aio import Yielder
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.facts.connections import (
    CONNECTIONS_MAX,
    ConnectionList,
    described_members,
)
from riverrun.server.facts.history import (
    GROUP_SERIES,
    MINUTES_MAX,
    NODE_SERIES,
    TOPIC_SERIES,
    HistoryWindow,
)
from riverrun.server.facts.metadata_diff import DiffQuery, MetadataComparer
from riverrun.server.facts.series import STEP_MS
from riverrun.server.facts.timeline import TimelineQuery, naming_for, read_timeline
from riverrun.server.facts.visibility import MetadataVisibility
from riverrun.server.services import BrokerServices
from riverrun.wire.private.describe_node_request import DescribeNodeRequest
from riverrun.wire.private.describe_node_response import DescribeNodeResponse

Query = TypeVar("Query", bound=Struct)
ReadSeries = Callable[[str, HistoryWindow], list[float | None]]

CONTENT_BYTES_MAX: Final = 4 * 1024 * 1024
QUERY_BYTES_MAX: Final = 64 * 1024
STEP_SECONDS_MAX: Final = 3600


class HistoryQuery(Struct, frozen=True, kw_only=True):
    series: tuple[str, ...] = ()
    """Empty: all of them."""
    minutes: int = 60
    step_seconds: int | None = None
    topic: str | None = None
    group: str | None = None


class HistoryPoints(Struct, frozen=True, kw_only=True):
    """Values at equal distances. None where nothing is known; no list without any."""

    step_ms: int
    first_ms: int
    series: dict[str, list[float | None]]


class TrafficQuery(Struct, frozen=True, kw_only=True):
    topics: bool = True


class ConnectionQuery(Struct, frozen=True, kw_only=True):
    q: str = ""
    limit: int = CONNECTIONS_MAX
    members: bool = False
    """Only the members of groups that this node coordinates."""


async def handle(
    services: BrokerServices, context: RequestContext, request: DescribeNodeRequest
) -> DescribeNodeResponse:
    content = msgspec.json.encode(await _describe(services, context, request))
    if len(content) > CONTENT_BYTES_MAX:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"The answer has {len(content):,} bytes; {CONTENT_BYTES_MAX:,} are allowed. Ask for "
            "less.",
        )
    return DescribeNodeResponse(content=content)


async def _describe(
    services: BrokerServices, context: RequestContext, request: DescribeNodeRequest
) -> Any:
    if request.subject == "history":
        return await _history(services, context, _query(request, HistoryQuery))
    services.access.require_cluster(context, AclOperation.DESCRIBE)
    match request.subject:
        case "node":
            return await services.facts.described(services)
        case "traffic":
            return await _traffic(services, context, _query(request, TrafficQuery))
        case "connections":
            return _connections(services, context, _query(request, ConnectionQuery))
        case "timeline":
            return await read_timeline(services, context, _query(request, TimelineQuery))
        case "diff":
            query = _query(request, DiffQuery)
            comparer = MetadataComparer(services, services.facts.comparison_turn)
            return await comparer.compare(query, naming_for(services, context))
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no subject {request.subject[:100]}.")


def _query(request: DescribeNodeRequest, kind: type[Query]) -> Query:
    if len(request.query) > QUERY_BYTES_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The query is too long.")
    try:
        return msgspec.json.decode(request.query or "{}", type=kind)
    except (msgspec.DecodeError, RecursionError) as error:  # includes ValidationError
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The query is invalid: {error}.") from None


async def _history(
    services: BrokerServices, context: RequestContext, query: HistoryQuery
) -> HistoryPoints:
    """The history of a topic or group needs the right to describe it, that of the node the right to
    describe the cluster."""
    history, access = services.facts.history, services.access
    if query.topic is not None:
        access.require(context, AclOperation.DESCRIBE, ResourceType.TOPIC, query.topic)
    elif query.group is not None:
        access.require(context, AclOperation.DESCRIBE, ResourceType.GROUP, query.group)
    else:
        access.require_cluster(context, AclOperation.DESCRIBE)
    if history is None:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "This node keeps no history: metrics.history.enable is false.",
        )
    if query.topic is not None:
        known: tuple[str, ...] = TOPIC_SERIES
        read: ReadSeries = partial(history.topic_values, query.topic)
    elif query.group is not None:
        known, read = GROUP_SERIES, partial(history.group_values, query.group)
    else:
        known, read = tuple(NODE_SERIES), history.node_values
    _check(query, known)
    is_of_node = query.topic is None and query.group is None
    window = history.window(query.minutes, query.step_seconds, is_of_node=is_of_node)
    found: dict[str, list[float | None]] = {}
    for name in dict.fromkeys(query.series or known):
        if values := read(name, window):
            found[name] = values
        await asyncio.sleep(0)  # a day of one series takes some milliseconds
    return HistoryPoints(
        step_ms=window.stride * STEP_MS, first_ms=window.start * STEP_MS, series=found
    )


def _check(query: HistoryQuery, known: Sequence[str]) -> None:
    unknown = [name for name in query.series if name not in known]
    if unknown:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"There is no series {unknown[0][:100]} here; there are {', '.join(known)}.",
        )
    if not 1 <= query.minutes <= MINUTES_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"minutes must be from 1 to {MINUTES_MAX}.")
    # A step takes memory for all of its values, so it must not be longer than the history.
    if query.step_seconds is not None and not 1 <= query.step_seconds <= STEP_SECONDS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"step_seconds must be from 1 to {STEP_SECONDS_MAX}."
        )


async def _traffic(
    services: BrokerServices, context: RequestContext, query: TrafficQuery
) -> BrokerTraffic:
    """Nothing is measured without a history (``metrics.history.enable``)."""
    means = services.facts.traffic
    topics: dict[str, tuple[float, float]] = {}
    unsettled: list[str] = []
    if query.topics:
        visible, yielder = MetadataVisibility(services, context), Yielder(services.clock)
        for topic, rates in means.topics():
            if visible.sees_topic(topic):
                topics[topic] = rates
            await yielder.step()
        for topic, held in list(services.replicas.by_name.items()):
            is_new = not means.is_settled(topic) and any(one.is_leader for one in held.values())
            if is_new and visible.sees_topic(topic):
                unsettled.append(topic)
            await yielder.step()
    return replace(means.totals(), topics=topics, unsettled=unsettled)


def _connections(
    services: BrokerServices, context: RequestContext, query: ConnectionQuery
) -> ConnectionList:
    if query.members:
        visible = _visible_groups(services, context)
        found = (one for one in services.groups.loaded_clients() if visible(one.group_id))
        return ConnectionList(items=(), total=0, members=described_members(found))
    limit = max(0, min(query.limit, CONNECTIONS_MAX))
    return services.facts.connections.described(query.q, limit)


def _visible_groups(services: BrokerServices, context: RequestContext) -> Callable[[str], bool]:
    """Whether the principal may describe a group. Each group is looked up once."""
    known: dict[str, bool] = {}

    def is_visible(group: str) -> bool:
        if group not in known:
            known[group] = services.access.allows(
                context, AclOperation.DESCRIBE, ResourceType.GROUP, group
            )
        return known[group]

    return is_visible
