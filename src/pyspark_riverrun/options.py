"""The options of reads and writes, parsed and validated before anything is read.

Names are those of Spark's Kafka connector, in any case. ``kafka.*`` are settings of Kafka clients.
Every error is one sentence that names the option. A client setting without a meaning here is
ignored, so that a job written for the connector starts. A setting that the source cannot honour
is refused.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

from pyspark_riverrun.offsets import (
    Assignment,
    Offsets,
    Position,
    Timestamps,
    read_assignment,
    read_offsets,
    read_times,
)
from riverrun.client.pool import Address, parse_bootstrap
from riverrun.client.security import NAMES as SECURITY_NAMES
from riverrun.records.compression import Compression

Parsed = TypeVar("Parsed")

PREFIX: Final = "kafka."
STRATEGIES: Final = ("subscribe", "subscribepattern", "assign")
READ_OPTIONS: Final = (
    "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets",
    "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "startingTimestamp",
    "endingTimestamp", "startingOffsetsByTimestampStrategy", "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition",
    "includeHeaders", "failOnDataLoss", "groupIdPrefix", "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
)  # fmt: skip
WRITE_OPTIONS: Final = (
    "topic", "includeHeaders", "checkpointLocation", "path", "queryName", "txnAppId", "txnVersion",
)  # fmt: skip
FIXED_SETTINGS: Final = {
    "auto.offset.reset": "use startingOffsets",
    "enable.auto.commit": "progress is stored in the checkpoint; kafka.group.id publishes it",
    "key.deserializer": "keys are binary; cast them in SQL",
    "value.deserializer": "values are binary; cast them in SQL",
    "key.serializer": "keys must be strings or binary",
    "value.serializer": "values must be strings or binary",
    "interceptor.classes": "the source does not use the Java client",
}
USED_SETTINGS: Final = (
    "bootstrap.servers", "group.id", "client.id", "client.rack", "isolation.level",
    "fetch.max.bytes", "max.partition.fetch.bytes", "fetch.max.wait.ms", "request.timeout.ms",
    "default.api.timeout.ms", "acks", "compression.type", "batch.size", "max.request.size",
    "delivery.timeout.ms", "enable.idempotence", "security.protocol",
    "max.in.flight.requests.per.connection", "socket.connection.setup.timeout.ms", "delivery",
    "transaction.timeout.ms",
)  # fmt: skip
IGNORED_SETTINGS: Final = (
    "allow.auto.create.topics", "auto.commit.interval.ms", "auto.include.jmx.reporter",
    "buffer.memory", "check.crcs", "client.dns.lookup", "connections.max.idle.ms",
    "enable.metrics.push", "exclude.internal.topics", "fetch.min.bytes", "group.instance.id",
    "group.protocol", "heartbeat.interval.ms", "linger.ms", "max.block.ms",
    "max.poll.interval.ms", "max.poll.records", "metadata.max.age.ms", "metadata.max.idle.ms",
    "metadata.recovery.strategy", "metric.reporters", "metrics.num.samples",
    "metrics.recording.level", "metrics.sample.window.ms", "partition.assignment.strategy",
    "partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms",
    "receive.buffer.bytes", "reconnect.backoff.max.ms", "reconnect.backoff.ms", "retries",
    "retry.backoff.max.ms", "retry.backoff.ms", "send.buffer.bytes", "session.timeout.ms",
    "socket.connection.setup.timeout.max.ms",
)  # fmt: skip
REFUSED_SETTINGS: Final = {
    "transactional.id": "each task has its own; set kafka.delivery=exactly-once, and txnAppId to "
    "name the writer",
    "partitioner.class": "keys are partitioned like Kafka's default partitioner does; to choose "
    "partitions, add a column `partition`",
    "partitioner.ignore.keys": "add a column `partition`",
}
DELIVERIES: Final = ("at-least-once", "exactly-once")
TRANSACTION_TIMEOUT_MS: Final = 900_000
"""The most that brokers allow by default (transaction.max.timeout.ms)."""
KAFKA_OFFSETS_MAX: Final = 2**63 - 1
COMPRESSIONS: Final = {codec.name.lower(): codec for codec in Compression}
_DELAY: Final = re.compile(r"\s*(\d+)\s*([a-z]*)\s*", re.IGNORECASE)
_DELAY_UNITS: Final = {
    "": 0.001,
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}


class BadOption(ValueError):
    """An option is invalid. The text names it and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """How to reach a cluster. Equal options share connections."""

    bootstrap: tuple[Address, ...]
    client_id: str
    client_rack: str
    request_timeout_s: float
    api_timeout_s: float
    connect_timeout_s: float
    security: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Settings of TLS and logins, by the names of Kafka's clients. They may hold a password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Which partitions to read. Exactly one field is set."""

    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assignment: Assignment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read."""

    cluster: ClusterOptions
    subscription: Subscription
    starting: Position | Offsets | Timestamps
    ending: Position | Offsets | Timestamps
    when_no_match: Literal["error", "latest"]
    """Reaction to a start timestamp that is later than the last record."""
    max_offsets: int | None
    min_offsets: int | None
    max_delay_s: float
    min_partitions: int | None
    max_records: int | None
    include_headers: bool
    fail_on_data_loss: bool
    group_id: str | None
    is_committed_only: bool
    fetch_bytes: int
    fetch_wait_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write."""

    cluster: ClusterOptions
    topic: str | None
    compression: Compression
    batch_bytes: int
    acks: int
    delivery_timeout_s: float
    in_flight_max: int
    is_exactly_once: bool
    transaction_timeout_ms: int
    application: str | None
    """Names the writer to the brokers. By default it is the id of the streaming query."""
    version: int | None
    """Which delivery of the writer this is. By default it is the id of the micro-batch."""


class _OptionReader:
    """Reads typed values, and raises BadOption with the name of the option."""

    def __init__(self, options: Mapping[str, str], names: tuple[str, ...]) -> None:
        self.values = {name.lower(): value for name, value in options.items()}
        self.settings = {
            name[len(PREFIX) :]: value
            for name, value in self.values.items()
            if name.startswith(PREFIX)
        }
        _check_settings(self.settings)
        known = {name.lower(): name for name in (*READ_OPTIONS, *WRITE_OPTIONS)}
        allowed = {name.lower() for name in names}
        for name in self.values:
            if name.startswith(PREFIX) or name in known:
                continue
            # Spark and users pass other options too. Only a name close to one of ours is an error.
            close = difflib.get_close_matches(name, sorted(allowed), n=1, cutoff=0.85)
            if close:
                raise BadOption(f"there is no option {name}; did you mean {known[close[0]]}?")

    def text(self, name: str) -> str | None:
        return self.values.get(name.lower())

    def number(self, name: str, *, at_least: int, at_most: int = KAFKA_OFFSETS_MAX) -> int | None:
        return _number(name, self.text(name), at_least, at_most)

    def flag(self, name: str, *, default: bool) -> bool:
        return _flag(name, self.text(name), default)

    def setting(self, name: str, default: str = "") -> str:
        return self.settings.get(name, default).strip()

    def setting_number(self, name: str, default: int, *, at_least: int = 0) -> int:
        found = _number(PREFIX + name, self.settings.get(name), at_least, 2**31 - 1)
        return default if found is None else found

    def cluster(self) -> ClusterOptions:
        servers = self.setting("bootstrap.servers")
        if not servers:
            raise BadOption("kafka.bootstrap.servers is missing; set it to host:port,host:port")
        try:
            bootstrap = tuple(parse_bootstrap(servers))
        except ValueError as error:
            raise BadOption(f"kafka.bootstrap.servers: {error}") from None
        return ClusterOptions(
            bootstrap=bootstrap,
            client_id=self.setting("client.id", "spark"),
            client_rack=self.setting("client.rack"),
            request_timeout_s=self.setting_number("request.timeout.ms", 30_000, at_least=1) / 1000,
            api_timeout_s=self.setting_number("default.api.timeout.ms", 120_000, at_least=1) / 1000,
            connect_timeout_s=self.setting_number(
                "socket.connection.setup.timeout.ms", 10_000, at_least=1
            )
            / 1000,
            security=tuple(
                (name, value) for name, value in self.settings.items() if name in SECURITY_NAMES
            ),
        )


def read_options(options: Mapping[str, str], *, is_streaming: bool) -> ReadOptions:
    """Raises BadOption."""
    reader = _OptionReader(options, READ_OPTIONS)
    default = Position.LATEST if is_streaming else Position.EARLIEST
    starting = _bound(reader, "starting", default)
    ending = _bound(reader, "ending", Position.LATEST)
    if is_streaming and any(name.startswith("ending") for name in reader.values):
        raise BadOption(
            "a stream has no end; endingOffsets and similar options are for batch reads"
        )
    if not is_streaming:
        if starting is Position.LATEST:
            raise BadOption("startingOffsets of a batch read cannot be latest")
        if ending is Position.EARLIEST:
            raise BadOption("endingOffsets cannot be earliest")
    strategy = (reader.text("startingOffsetsByTimestampStrategy") or "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise BadOption("startingOffsetsByTimestampStrategy must be error or latest")
    max_offsets = reader.number("maxOffsetsPerTrigger", at_least=1)
    min_offsets = reader.number("minOffsetsPerTrigger", at_least=1)
    if max_offsets is not None and min_offsets is not None and min_offsets > max_offsets:
        raise BadOption("minOffsetsPerTrigger is larger than maxOffsetsPerTrigger")
    partition_bytes = reader.setting_number("max.partition.fetch.bytes", 8 * 1024 * 1024)
    return ReadOptions(
        cluster=reader.cluster(),
        subscription=_subscription(reader),
        starting=starting,
        ending=ending,
        when_no_match="latest" if strategy == "latest" else "error",
        max_offsets=max_offsets,
        min_offsets=min_offsets,
        max_delay_s=_delay(reader.text("maxTriggerDelay") or "15m"),
        min_partitions=reader.number("minPartitions", at_least=1, at_most=2**31 - 1),
        max_records=reader.number("maxRecordsPerPartition", at_least=1),
        include_headers=reader.flag("includeHeaders", default=False),
        fail_on_data_loss=reader.flag("failOnDataLoss", default=True),
        group_id=reader.setting("group.id") or None,
        is_committed_only=_isolation(reader),
        fetch_bytes=max(
            1, min(partition_bytes, reader.setting_number("fetch.max.bytes", 50 * 1024 * 1024))
        ),
        fetch_wait_ms=reader.setting_number("fetch.max.wait.ms", 500),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Raises BadOption."""
    reader = _OptionReader(options, WRITE_OPTIONS)
    topic = reader.text("topic")
    if topic is not None and not topic.strip():
        raise BadOption("the option topic is empty")
    codec = reader.setting("compression.type", "none").lower()
    if codec not in COMPRESSIONS:
        raise BadOption(
            f"kafka.compression.type must be one of {', '.join(COMPRESSIONS)}, not {codec}"
        )
    acks = reader.setting("acks", "all").lower()
    if acks not in ("all", "-1", "1", "0"):
        raise BadOption(f"kafka.acks must be all, 1 or 0, not {acks}")
    if acks in ("0", "1") and _flag(
        "kafka.enable.idempotence", reader.settings.get("enable.idempotence"), default=False
    ):
        raise BadOption("kafka.enable.idempotence needs kafka.acks=all")
    is_exactly_once = _is_exactly_once(reader, acks)
    batch_bytes = reader.setting_number("batch.size", 512 * 1024)
    request_bytes = reader.setting_number("max.request.size", 1024 * 1024, at_least=1)
    return WriteOptions(
        cluster=reader.cluster(),
        topic=topic,
        compression=COMPRESSIONS[codec],
        batch_bytes=max(1, min(batch_bytes, request_bytes)),
        acks={"all": -1, "-1": -1, "1": 1, "0": 0}[acks],
        delivery_timeout_s=reader.setting_number("delivery.timeout.ms", 120_000, at_least=1) / 1000,
        in_flight_max=min(
            5, reader.setting_number("max.in.flight.requests.per.connection", 5, at_least=1)
        ),
        is_exactly_once=is_exactly_once,
        transaction_timeout_ms=reader.setting_number(
            "transaction.timeout.ms", TRANSACTION_TIMEOUT_MS, at_least=1
        ),
        application=reader.text("txnAppId"),
        version=reader.number("txnVersion", at_least=0),
    )


def _is_exactly_once(reader: _OptionReader, acks: str) -> bool:
    delivery = reader.setting("delivery", DELIVERIES[0]).lower()
    if delivery not in DELIVERIES:
        raise BadOption(f"kafka.delivery must be {' or '.join(DELIVERIES)}, not {delivery}")
    is_exactly_once = delivery == "exactly-once"
    if is_exactly_once and acks in ("0", "1"):
        raise BadOption("kafka.delivery=exactly-once needs kafka.acks=all")
    for name in ("txnAppId", "txnVersion"):
        if reader.text(name) is not None and not is_exactly_once:
            raise BadOption(f"{name} needs kafka.delivery=exactly-once")
    if reader.text("txnVersion") is not None and not (reader.text("txnAppId") or "").strip():
        raise BadOption("txnVersion needs txnAppId, the name of the writer")
    if reader.text("txnAppId") is not None and not (reader.text("txnAppId") or "").strip():
        raise BadOption("the option txnAppId is empty")
    return is_exactly_once


def _subscription(reader: _OptionReader) -> Subscription:
    given = [name for name in STRATEGIES if name in reader.values]
    if len(given) != 1:
        found = " and ".join(given) if given else "none"
        raise BadOption(
            f"set exactly one of subscribe, subscribePattern and assign; found: {found}"
        )
    text = reader.values[given[0]].strip()
    if not text:
        raise BadOption(f"the option {given[0]} is empty")
    if given[0] == "assign":
        return Subscription(assignment=_parsed("assign", read_assignment, text))
    if given[0] == "subscribe":
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not names:
            raise BadOption("the option subscribe names no topic")
        return Subscription(topics=names)
    try:
        re.compile(text)
    except re.error as error:
        raise BadOption(f"subscribePattern {text!r} is not a regular expression: {error}") from None
    return Subscription(pattern=text)


def _bound(reader: _OptionReader, side: str, default: Position) -> Position | Offsets | Timestamps:
    """Where to start or to end. The more specific option wins, as in the connector."""
    moment = reader.number(f"{side}Timestamp", at_least=0)
    if moment is not None:
        return Timestamps(everywhere=moment, exact={})
    by_time = reader.text(f"{side}OffsetsByTimestamp")
    if by_time is not None:
        return _parsed(f"{side}OffsetsByTimestamp", read_times, by_time)
    text = (reader.text(f"{side}Offsets") or "").strip()
    if not text:
        return default
    if text.lower() in ("earliest", "latest"):
        return Position[text.upper()]
    exact = _parsed(f"{side}Offsets", read_offsets, text)
    for at, offset in exact.items():
        if side == "ending" and offset == Position.EARLIEST:
            raise BadOption(f"endingOffsets of {at} cannot be earliest (-2)")
    return exact


def _parsed(name: str, parse: Callable[[str], Parsed], text: str) -> Parsed:
    try:
        return parse(text)
    except ValueError as error:
        raise BadOption(f"{name}: {error}") from None


def _isolation(reader: _OptionReader) -> bool:
    level = reader.setting("isolation.level", "read_committed").lower()
    if level not in ("read_committed", "read_uncommitted"):
        raise BadOption(
            f"kafka.isolation.level must be read_committed or read_uncommitted, not {level}"
        )
    return level == "read_committed"


def _check_settings(settings: Mapping[str, str]) -> None:
    for name in settings:
        if name in FIXED_SETTINGS:
            raise BadOption(f"kafka.{name} cannot be set: {FIXED_SETTINGS[name]}")
        if name in REFUSED_SETTINGS:
            raise BadOption(f"kafka.{name} is not supported: {REFUSED_SETTINGS[name]}")
        known = (*USED_SETTINGS, *IGNORED_SETTINGS, *sorted(SECURITY_NAMES))
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean kafka.{close[0]}?" if close else ""
            raise BadOption(f"Kafka clients have no setting kafka.{name}{hint}")


def _number(name: str, text: str | None, at_least: int, at_most: int) -> int | None:
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        raise BadOption(f"{name} must be an integer, not {text!r}") from None
    if not at_least <= number <= at_most:
        raise BadOption(f"{name} must be between {at_least} and {at_most}, not {number}")
    return number


def _flag(name: str, text: str | None, default: bool) -> bool:
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise BadOption(f"{name} must be true or false, not {text!r}")
    return text.strip().lower() == "true"


def _delay(text: str) -> float:
    """A duration in Spark's form: 15m, 30s, 500ms."""
    found = _DELAY.fullmatch(text)
    unit = found.group(2).lower() if found else None
    if found is None or unit not in _DELAY_UNITS:
        raise BadOption(f"maxTriggerDelay must be a duration like 15m or 30s, not {text!r}")
    return int(found.group(1)) * _DELAY_UNITS[unit]
