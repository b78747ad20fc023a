"""Settings of groups and of client metrics subscriptions, which exist only in the metadata.

The group coordinator reads those of the consumer protocol (KIP-848). Share and streams groups and
client telemetry are not implemented, so nothing acts on their settings. They are described with
Kafka's defaults. A change of them is validated as by Kafka and then refused: a setting must not be
stored without effect. Stored ones can be deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.configs.values import BadValue, check_texts, parse
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.settings import Setting, SettingKind, Value


class ResourceSetting(Struct, frozen=True, kw_only=True):
    """A setting of a group; ``node`` is the name of the broker's default for it."""

    setting: Setting
    node: str | None
    least: tuple[str, int] | None = None
    most: tuple[str, int] | None = None


def _declare(
    name: str,
    default: Value,
    doc: str,
    *,
    kind: SettingKind = SettingKind.INT,
    at_least: int | None = None,
    choices: tuple[str, ...] | None = None,
) -> Setting:
    return Setting(
        field="",
        name=name,
        topic=None,
        kind=kind,
        default=default,
        at_least=at_least,
        at_most=None,
        choices=choices,
        live=True,
        doc=doc,
    )


def _bounded(
    name: str, default: int, least: int | None, most: int | None, doc: str
) -> ResourceSetting:
    kind, _, rest = name.partition(".")
    return ResourceSetting(
        setting=_declare(name, default, doc, at_least=0),
        node=f"group.{name}",
        least=None if least is None else (f"group.{kind}.min.{rest}", least),
        most=None if most is None else (f"group.{kind}.max.{rest}", most),
    )


def _timeouts(kind: str) -> tuple[ResourceSetting, ...]:
    return (
        _bounded(f"{kind}.session.timeout.ms", 45000, 45000, 60000, "Session timeout of members."),
        _bounded(f"{kind}.heartbeat.interval.ms", 5000, 5000, 15000, "Time between heartbeats."),
        _bounded(f"{kind}.assignment.interval.ms", 1000, 0, 15000, "Time between assignments."),
    )


_GROUP: Final = (
    *_timeouts("consumer"),
    *_timeouts("share"),
    *_timeouts("streams"),
    _bounded("share.record.lock.duration.ms", 30000, 15000, 60000, "How long a record is locked."),
    _bounded("share.delivery.count.limit", 5, 2, 10, "Maximum deliveries of a record."),
    _bounded("share.partition.max.record.locks", 2000, None, None, "Maximum of locked records."),
    _bounded("streams.num.standby.replicas", 0, None, 2, "Standby tasks of each stateful task."),
    _bounded(
        "streams.initial.rebalance.delay.ms", 3000, None, None, "Delay of the first rebalance."
    ),
    ResourceSetting(
        setting=_declare(
            "share.isolation.level",
            "read_uncommitted",
            "Whether records of open transactions are delivered.",
            kind=SettingKind.STRING,
            choices=("read_committed", "read_uncommitted"),
        ),
        node=None,
    ),
    ResourceSetting(
        setting=_declare(
            "share.auto.offset.reset",
            "latest",
            "First offset of a new group.",
            kind=SettingKind.STRING,
        ),
        node=None,
    ),
    ResourceSetting(
        setting=_declare(
            "share.renew.acknowledge.enable",
            True,
            "Whether a lock may be renewed.",
            kind=SettingKind.BOOLEAN,
        ),
        node=None,
    ),
)

GROUP_SETTINGS: Final[Mapping[str, ResourceSetting]] = {one.setting.name: one for one in _GROUP}

METRICS_SETTINGS: Final[Mapping[str, Setting]] = {
    one.name: one
    for one in (
        _declare("interval.ms", 300000, "Time between two pushes of metrics."),
        _declare("match", (), "Clients that the subscription matches.", kind=SettingKind.LIST),
        _declare("metrics", (), "Prefixes of the metrics to push.", kind=SettingKind.LIST),
    )
}
METRICS_INTERVAL_MS: Final = (100, 3_600_000)


SUPPORTED_PREFIX: Final = "consumer."


def check_group(configs: Configs, texts: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Validate the settings of a group, and refuse changes without effect.

    Raises INVALID_CONFIG.
    """
    for name in texts:
        if name not in GROUP_SETTINGS:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}")
    try:
        values = check_texts({name: GROUP_SETTINGS[name].setting for name in texts}, texts)
    except BadValue as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    for name, value in values.items():
        _check_bounds(configs, GROUP_SETTINGS[name], value)
    others = {name: text for name, text in texts.items() if not name.startswith(SUPPORTED_PREFIX)}
    _refuse_changes(others, current, "the group protocols that use it (KIP-932, KIP-1071)")


def _check_bounds(configs: Configs, declared: ResourceSetting, value: Value) -> None:
    if not isinstance(value, int):
        return
    name = declared.setting.name
    if declared.least is not None and value < _bound(configs, *declared.least):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{name} must be greater than or equal to {declared.least[0]}",
        )
    if declared.most is not None and value > _bound(configs, *declared.most):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"{name} must be less than or equal to {declared.most[0]}"
        )


def _bound(configs: Configs, name: str, default: int) -> int:
    """The node's setting, or Kafka's default if this version does not have the setting."""
    return configs.static_int(name) if name in configs.node else default


def _refuse_changes(texts: Mapping[str, str], current: Mapping[str, str], feature: str) -> None:
    for name, text in texts.items():
        if current.get(name) != text:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{name} would have no effect: {feature} are not supported yet.",
            )


def check_metrics(texts: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Validate and refuse changed settings of a subscription.

    Raises INVALID_REQUEST or INVALID_CONFIG.
    """
    for name, text in texts.items():
        if name not in METRICS_SETTINGS:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}"
            )
        if name != "interval.ms":
            continue
        low, high = METRICS_INTERVAL_MS
        try:
            value = parse(METRICS_SETTINGS[name], name, text)
        except BadValue as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
        if isinstance(value, int) and not low <= value <= high:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Invalid value {value} for {name}, interval must be between {low} and "
                f"{high} (1 hour)",
            )
    _refuse_changes(texts, current, "client metrics (KIP-714)")
