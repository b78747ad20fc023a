"""Settings of brokers: effective values with their source, and changes at run time.

Every node reports its own values, because its file may differ. Equal values are merged into one
row. A change is stored in the metadata, for the whole cluster or for one node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import IntEnum

from riverrun.admin.broker_settings import BROKER_RESOURCE
from riverrun.admin.cluster.report import ask_brokers
from riverrun.admin.requests import REMEDY, NotFound, alike, ask_each, check
from riverrun.admin.tables import Table
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from riverrun.wire.messages.describe_configs_response import DescribeConfigsResponse
from riverrun.wire.messages.incremental_alter_configs_request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from riverrun.wire.messages.incremental_alter_configs_response import (
    IncrementalAlterConfigsResponse,
)

WHOLE_CLUSTER = ""
MIN_ISR = "min.insync.replicas"
LISTENER_PREFIX = re.compile(
    r"^listener\.name\.[^.]+\.(?:(?:plain|scram-sha-256|scram-sha-512|oauthbearer)\.)?"
)
SET = 0
DELETE = 1
HIDDEN = "(hidden)"
TYPES = (
    "unknown", "boolean", "string", "int", "short", "long", "double", "list", "class", "password",
)  # fmt: skip

LIMITS = {"short": 2**15, "int": 2**31, "long": 2**63}
"""By type: a value is in [-limit, limit)."""


class Source(IntEnum):
    """Where a value comes from, with the numbers of DescribeConfigs."""

    TOPIC = 1
    NODE = 2
    CLUSTER = 3
    FILE = 4
    DEFAULT = 5


SOURCES = {
    Source.TOPIC: "topic",
    Source.NODE: "node, at run time",
    Source.CLUSTER: "cluster, at run time",
    Source.FILE: "node, from its file",
    Source.DEFAULT: "default",
}


def source_in_words(source: int) -> str:
    return SOURCES[Source(source)] if source in SOURCES else str(source)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSetting:
    """The effective value of a setting on some nodes."""

    name: str
    value: str | None
    """None if there is none, or if it is secret."""
    source: int
    default: str | None
    is_read_only: bool
    is_sensitive: bool
    type: str
    documentation: str | None
    sources: frozenset[int]
    """All places where it is set, including the ones that do not win."""
    nodes: tuple[int, ...]
    is_everywhere: bool = False
    """All nodes of the cluster have this value."""

    @property
    def is_changed_at_run_time(self) -> bool:
        return Source.CLUSTER in self.sources or Source.NODE in self.sources

    def described(self) -> dict[str, object]:
        return {
            "name": self.name, "value": self.value, "source": source_in_words(self.source),
            "default": self.default, "read_only": self.is_read_only,
            "sensitive": self.is_sensitive, "type": self.type, "nodes": list(self.nodes),
            "documentation": self.documentation,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsReport:
    rows: tuple[BrokerSetting, ...]
    silent: tuple[int, ...] = ()
    """Nodes that do not respond."""


async def ask_settings(
    pool: ConnectionPool, node: int | None, names: Sequence[str], *, with_defaults: bool
) -> SettingsReport:
    """The named settings of one node or of all nodes. Without names, those that were changed at
    run time, or those of one node that differ from the default."""
    nodes = await _nodes(pool, node)
    everything = await _ask(pool, nodes)
    known = {row.name for row in everything.rows}
    for name in names:
        if name not in known:
            raise NotFound(
                f"there is no setting {name}{alike(name, sorted(known))}\n"
                "  `riverrun cluster config get --all` lists all."
            )

    def is_wanted(row: BrokerSetting) -> bool:
        if names or with_defaults:
            return not names or row.name in names
        return row.source != Source.DEFAULT if node is not None else row.is_changed_at_run_time

    # A setting that one node overrides is shown for the other nodes too.
    shown = {row.name for row in everything.rows if is_wanted(row)}
    rows = merged(row for row in everything.rows if row.name in shown)
    if node is None:
        rows = tuple(replace(row, is_everywhere=len(row.nodes) == len(nodes)) for row in rows)
    return SettingsReport(rows=rows, silent=everything.silent)


async def _nodes(pool: ConnectionPool, node: int | None) -> list[int]:
    brokers = [broker.broker_id for broker in (await ask_brokers(pool)).brokers]
    await pool.metadata(())
    if node is None:
        return sorted(one for one in brokers if one in pool.cluster.nodes)
    if node not in brokers:
        raise NotFound(f"broker {node} does not exist; `riverrun cluster nodes` lists the brokers")
    if node not in pool.cluster.nodes:
        raise ConnectionError(f"node {node} is down")
    return [node]


async def _ask(pool: ConnectionPool, nodes: Sequence[int]) -> SettingsReport:
    """All settings, as reported by each node about itself."""
    messages = {
        node: DescribeConfigsRequest(
            resources=(
                DescribeConfigsResource(
                    resource_type=BROKER_RESOURCE,
                    resource_name=str(node),
                    configuration_keys=None,
                ),
            ),
            include_synonyms=True,
            include_documentation=True,
        )
        for node in nodes
    }
    answers, silent = await ask_each(pool, messages, ApiKey.DESCRIBE_CONFIGS)
    if not answers:
        raise ConnectionError(f"node {', '.join(map(str, silent))} does not respond")
    rows = [
        row
        for node, answer in answers.items()
        for row in read_settings(answer, f"node {node}", node)
    ]
    return SettingsReport(rows=tuple(rows), silent=tuple(silent))


def read_settings(answer: DescribeConfigsResponse, place: str, *nodes: int) -> list[BrokerSetting]:
    """``place`` is named in errors; ``nodes`` have these settings."""
    rows = []
    for result in answer.results:
        check(result.error_code, result.error_message, place)
        for row in result.configs:
            # The default may belong to a name with another unit, such as log.retention.hours.
            defaults = [
                one.value if one.name == row.name else f"{one.name}={one.value}"
                for one in row.synonyms
                if one.source == Source.DEFAULT
            ]
            rows.append(
                BrokerSetting(
                    name=row.name,
                    value=row.value,
                    source=row.config_source,
                    default=defaults[0] if defaults else None,
                    is_read_only=row.read_only,
                    is_sensitive=row.is_sensitive,
                    type=TYPES[row.config_type] if row.config_type < len(TYPES) else TYPES[0],
                    documentation=row.documentation,
                    sources=frozenset([row.config_source, *(one.source for one in row.synonyms)]),
                    nodes=nodes,
                )
            )
    return rows


def merged(rows: Iterable[BrokerSetting]) -> tuple[BrokerSetting, ...]:
    """Equal values of several nodes in one row, also if sources that do not win differ."""
    found: dict[BrokerSetting, list[BrokerSetting]] = {}
    for row in rows:
        found.setdefault(replace(row, nodes=(), sources=frozenset()), []).append(row)
    together = [
        replace(
            row,
            nodes=tuple(sorted(node for one in equal for node in one.nodes)),
            sources=frozenset(source for one in equal for source in one.sources),
        )
        for row, equal in found.items()
    ]
    return tuple(sorted(together, key=lambda row: (row.name, row.nodes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChange:
    """Values to set; None removes one, so that the next source applies."""

    node: int | None
    """None for the whole cluster."""
    values: Mapping[str, str | None]

    @property
    def place(self) -> str:
        return "the cluster" if self.node is None else f"node {self.node}"


async def change_settings(
    pool: ConnectionPool, change: SettingsChange, *, validate_only: bool, may_be_unknown: bool
) -> list[str]:
    """Apply a change, and return the names that were not set there before.

    A cluster accepts unknown names, because they may belong to a plugin. Most of them are misspelt.
    """
    nodes = await _nodes(pool, change.node)
    current = await _ask(pool, nodes)
    known = {row.name for row in current.rows}
    for name, value in change.values.items():
        if value is not None and not _is_known(name, known) and not may_be_unknown:
            raise NotFound(
                f"there is no setting {name}{alike(name, sorted(known))}\n"
                "  Use --force to set a name that the nodes do not know."
            )
    _check_range(change, current.rows)
    await _alter(pool, change, current.rows, validate_only=validate_only)
    level = Source.CLUSTER if change.node is None else Source.NODE
    there = {row.name for row in current.rows if level in row.sources}
    return [name for name in change.values if name not in there]


async def warnings_of(pool: ConnectionPool, change: SettingsChange) -> list[str]:
    """Values that the cluster accepts and that are most likely mistakes."""
    value = change.values.get(MIN_ISR)
    if value is None:
        return []
    count = len((await ask_brokers(pool)).brokers)
    warning = min_isr_warning(value, count, f"the number of brokers ({count})")
    return [] if warning is None else [warning]


def min_isr_warning(value: str, limit: int, limit_in_words: str) -> str | None:
    """A partition with fewer replicas than min.insync.replicas needs all of them in sync."""
    if not value.isdecimal() or int(value) <= limit:
        return None
    return (
        f"{MIN_ISR}={value} is more than {limit_in_words}: partitions then need all their replicas "
        "in sync, and writes with acks=all stop while one of them is down"
    )


def _is_known(name: str, known: Set[str]) -> bool:
    """Nodes list a setting of one listener, or of a mechanism on it, only when it is set."""
    return name in known or LISTENER_PREFIX.sub("", name) in known


async def _alter(
    pool: ConnectionPool,
    change: SettingsChange,
    current: Sequence[BrokerSetting],
    *,
    validate_only: bool,
) -> None:
    resource = AlterConfigsResource(
        resource_type=BROKER_RESOURCE,
        resource_name=WHOLE_CLUSTER if change.node is None else str(change.node),
        configs=tuple(
            AlterableConfig(
                name=name, config_operation=DELETE if value is None else SET, value=value
            )
            for name, value in change.values.items()
        ),
    )
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    answer: IncrementalAlterConfigsResponse = (
        await pool.request(key, request)
        if change.node is None
        # Apache Kafka validates the settings of a node on that node.
        else await pool.request_node(change.node, key, request)
    )
    (row,) = answer.responses
    if row.error_code is not ErrorCode.NONE:
        message = row.error_message or row.error_code.name
        remedy = _remedy(change, message, current)
        text = f"{change.place}: {message} ({row.error_code.name})"
        raise KafkaError(row.error_code, f"{text}{REMEDY}{remedy}." if remedy else text)


def _remedy(change: SettingsChange, message: str, current: Sequence[BrokerSetting]) -> str | None:
    if MIN_ISR in change.values and "while ELR is enabled" in message:
        if change.node is not None:
            return "change it for the whole cluster, without --node"
        default = next((row.default for row in current if row.name == MIN_ISR and row.default), 1)
        return f"set a value instead: `riverrun cluster config set {MIN_ISR}={default}`"
    fixed = sorted({one.name for one in current if one.is_read_only} & set(change.values))
    if not fixed:
        return None
    return f"set {', '.join(fixed)} in the file of each node and restart the node"


def _check_range(change: SettingsChange, current: Sequence[BrokerSetting]) -> None:
    """Refuse numbers that no node can have. A cluster reports only that a read-only setting cannot
    change at run time, and the value would be as wrong in a file."""
    types = {row.name: row.type for row in current}
    for name, value in change.values.items():
        limit = LIMITS.get(types.get(name, ""))
        if value is None or limit is None:
            continue
        try:
            is_in_range = -limit <= int(value) < limit
        except ValueError:
            continue  # the cluster names the expected type
        if not is_in_range:
            text = f"{name}={value} is out of range: it is at most {limit - 1}"
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{change.place}: {text}")


def settings_table(report: SettingsReport) -> Table:
    return Table(
        columns=(
            "setting", "value", "source", "node", "default", "read only", "type", "documentation",
        ),
        wide=("type", "documentation"),
        rows=[
            (
                row.name, HIDDEN if row.is_sensitive else row.value, source_in_words(row.source),
                "all" if row.is_everywhere else ",".join(map(str, row.nodes)),
                row.default, "yes" if row.is_read_only else "no", row.type, row.documentation,
            )
            for row in report.rows
        ],
        empty="No setting was changed at run time. Use --all to show all settings, or --node to "
        "show those of a node.",
    )  # fmt: skip
