"""AlterConfigs and IncrementalAlterConfigs. Each resource changes as a whole or not at all.

The order of the checks is Kafka's, because it decides which of several errors a client gets.
Topics, groups and subscriptions are validated as by Kafka's controller, brokers as by its broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from riverrun.cluster.balancing.rollbacks import rollback_records
from riverrun.cluster.balancing.submission import cancel_plan, cancel_waiting, submit_plan
from riverrun.cluster.brokers.modes import BROKER_MODE
from riverrun.cluster.configs.group_configs import check_group, check_metrics
from riverrun.cluster.configs.node_configs import (
    CLUSTER,
    MIN_INSYNC_REPLICAS,
    Configs,
)
from riverrun.cluster.decision import Decision, check_size
from riverrun.cluster.partitions.election_rules import is_elr_enabled
from riverrun.cluster.partitions.elr import with_eligibility
from riverrun.cluster.topics.names import check_topic_name
from riverrun.metadata.image import ConfigType, Image
from riverrun.metadata.records import ConfigRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, TopicName
from riverrun.model.settings import Setting, SettingKind, is_count
from riverrun.placement.planner.stored_plan import HEADER, ROLLBACKS, WAITING
from riverrun.security.protocols import LISTENER_LIMITS, LISTENER_PREFIX
from riverrun.security.tls import DYNAMIC_NAMES
from riverrun.wire.messages import alter_configs_request as replacing_request
from riverrun.wire.messages import alter_configs_response as replacing_response
from riverrun.wire.messages import incremental_alter_configs_request as incremental_request
from riverrun.wire.messages import incremental_alter_configs_response as incremental_response

if TYPE_CHECKING:
    from riverrun.metadata.records import Record

LOG_LEVELS: Final = ("DEBUG", "ERROR", "FATAL", "INFO", "TRACE", "WARN")


class ConfigOperation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class _Resource(Protocol):
    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...


R = TypeVar("R", bound=_Resource)
Result = tuple[ErrorCode, str | None]
Texts = Mapping[str, str]
DONE: Final[Result] = (ErrorCode.NONE, None)


def alter_configs(
    configs: Configs, image: Image, request: replacing_request.AlterConfigsRequest
) -> Decision[replacing_response.AlterConfigsResponse]:
    """Replace all settings of each resource; settings not given return to their defaults."""

    def change(resource: replacing_request.AlterConfigsResource) -> list[ConfigRecord]:
        _check_names([one.name for one in resource.configs])
        nulls = [one.name for one in resource.configs if one.value is None]
        _check_nulls(nulls)
        kind = _kind(resource)
        if kind in (ConfigType.BROKER_LOGGER, ConfigType.PLAN):
            raise _unknown_type(resource)
        texts = {one.name: one.value for one in resource.configs if one.value is not None}
        if kind is ConfigType.BROKER:
            _check_broker_name(configs, image, resource.resource_name)
            configs.check_broker(texts)
        return _records(configs, image, kind, resource.resource_name, texts, keep=())

    changes, results = _decide_each(request.resources, change)
    records = with_eligibility(configs, image, changes)
    check_size(len(records))
    return Decision(
        records=() if request.validate_only else tuple(records),
        response=replacing_response.AlterConfigsResponse(
            throttle_time_ms=0,
            responses=tuple(
                replacing_response.AlterConfigsResourceResponse(
                    error_code=code,
                    error_message=message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource, (code, message) in zip(request.resources, results, strict=True)
            ),
        ),
    )


def incremental_alter_configs(
    configs: Configs, image: Image, request: incremental_request.IncrementalAlterConfigsRequest
) -> Decision[incremental_response.IncrementalAlterConfigsResponse]:
    """Set, delete, append to or subtract from single settings (KIP-339)."""

    def change(resource: incremental_request.AlterConfigsResource) -> list[ConfigRecord]:
        if resource.resource_type == ConfigType.PLAN:
            plan_changes.extend(_change_plan(configs, image, resource, request.resources))
            return []
        return _change_incrementally(configs, image, resource)

    plan_changes: list[Record] = []
    changes, results = _decide_each(request.resources, change)
    records: list[Record] = [*with_eligibility(configs, image, changes), *plan_changes]
    check_size(len(records))
    return Decision(
        records=() if request.validate_only else tuple(records),
        response=incremental_response.IncrementalAlterConfigsResponse(
            throttle_time_ms=0,
            responses=tuple(
                incremental_response.AlterConfigsResourceResponse(
                    error_code=code,
                    error_message=message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource, (code, message) in zip(request.resources, results, strict=True)
            ),
        ),
    )


def _decide_each(
    resources: Sequence[R], change: Callable[[R], list[ConfigRecord]]
) -> tuple[list[ConfigRecord], list[Result]]:
    seen: dict[tuple[int, str], int] = {}
    for resource in resources:
        key = (resource.resource_type, resource.resource_name)
        seen[key] = seen.get(key, 0) + 1
    records: list[ConfigRecord] = []
    results: list[Result] = []
    for resource in resources:
        try:
            if seen[(resource.resource_type, resource.resource_name)] > 1:
                raise _invalid("Each resource must appear at most once.")
            records += change(resource)
            results.append(DONE)
        except KafkaError as error:
            results.append((error.code, error.message))
    return records, results


def _change_plan(
    configs: Configs,
    image: Image,
    resource: incremental_request.AlterConfigsResource,
    resources: Sequence[incremental_request.AlterConfigsResource],
) -> list[Record]:
    """Submit a plan, cancel it or some of its moves, or store why moves were rolled back.

    One request changes one plan: two could meet unseen.
    """
    if sum(one.resource_type == ConfigType.PLAN for one in resources) > 1:
        raise _invalid("A request changes at most one plan.")
    operations = list(dict.fromkeys(one.config_operation for one in resource.configs))
    if resource.resource_name == ROLLBACKS:
        if any(one not in (ConfigOperation.SET, ConfigOperation.DELETE) for one in operations):
            raise _invalid("The reasons of rollbacks are set and deleted.")
        return rollback_records(
            image,
            {
                one.name: one.value if one.config_operation == ConfigOperation.SET else None
                for one in resource.configs
            },
        )
    names = [one.name for one in resource.configs]
    if operations == [ConfigOperation.DELETE] and names == [HEADER]:
        return cancel_plan(configs, image, resource.resource_name)
    if operations == [ConfigOperation.DELETE] and all(one.startswith(WAITING) for one in names):
        return cancel_waiting(image, resource.resource_name, names)
    if operations != [ConfigOperation.SET]:
        raise _invalid(f"A plan is submitted with SET, and cancelled with DELETE of {HEADER}.")
    texts = {one.name: one.value or "" for one in resource.configs}
    return submit_plan(image, resource.resource_name, texts)


def _change_incrementally(
    configs: Configs, image: Image, resource: incremental_request.AlterConfigsResource
) -> list[ConfigRecord]:
    _check_names([one.name for one in resource.configs])
    operations = [one.config_operation for one in resource.configs]
    if any(one not in ConfigOperation.__members__.values() for one in operations):
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    _check_nulls(
        [
            one.name
            for one in resource.configs
            if one.value is None and one.config_operation != ConfigOperation.DELETE
        ]
    )
    kind = _kind(resource)
    name = resource.resource_name
    if kind is ConfigType.BROKER_LOGGER:
        raise _refused_level(configs, resource)
    current = image.config(kind, name)
    if kind is ConfigType.BROKER:
        _check_broker_name(configs, image, name)
        configs.check_broker(_applied(configs, resource.configs, current, _list_of_broker))
    applied = _applied(configs, resource.configs, current, _list_of(kind))
    named = [one.name for one in resource.configs]
    untouched = [one for one in current if one not in named]
    return _records(configs, image, kind, name, applied, keep=untouched)


ListOf = Callable[[Configs, str, ConfigOperation], Setting]


def _applied(
    configs: Configs,
    changes: Iterable[incremental_request.AlterableConfig],
    current: Texts,
    list_of: ListOf,
) -> dict[str, str]:
    """The texts of a resource after some changes; ``list_of`` finds settings of type LIST."""
    texts = dict(current)
    for change in changes:
        operation = ConfigOperation(change.config_operation)
        given = change.value or ""
        if operation is ConfigOperation.SET:
            texts[change.name] = given
        elif operation is ConfigOperation.DELETE:
            texts.pop(change.name, None)
        else:
            setting = list_of(configs, change.name, operation)
            text = texts.get(change.name)
            if text is None:
                text = setting.render(setting.default)
            items = [item for item in text.split(",") if item]
            changed = given.split(",")
            if operation is ConfigOperation.APPEND:
                items += [item for item in dict.fromkeys(changed) if item not in items]
            else:
                items = [item for item in items if item not in changed]
            texts[change.name] = ",".join(items)
    return texts


def _list_of(kind: ConfigType) -> ListOf:
    def find(configs: Configs, name: str, operation: ConfigOperation) -> Setting:
        known = configs.topic if kind is ConfigType.TOPIC else configs.node
        setting = known.get(name)
        if setting is None or setting.kind is not SettingKind.LIST:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Can't {operation.name} to key {name} because its type is not LIST.",
            )
        return setting

    return find


def _list_of_broker(configs: Configs, name: str, operation: ConfigOperation) -> Setting:
    setting = configs.node.get(name)
    if setting is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown config name: {name}")
    if setting.kind is not SettingKind.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Config value {operation.name.lower()} is not allowed for config key: {name}",
        )
    return setting


def _records(
    configs: Configs,
    image: Image,
    kind: ConfigType,
    name: str,
    texts: Texts,
    *,
    keep: Iterable[str],
) -> list[ConfigRecord]:
    """Validate the resulting settings and return the changes, without names in ``keep``."""
    _check_resource_name(kind, name)
    _check_texts(configs, image, kind, name, texts)
    if kind is ConfigType.TOPIC and TopicName(name) not in image.topics_by_name:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
        )
    current = image.config(kind, name)
    kept = list(keep)
    records = [
        _record(kind, name, one, text)
        for one, text in texts.items()
        # A broker's setting is written even if it is unchanged: operators use that to make brokers
        # reload a key store (KAFKA-14136).
        if one not in kept and (current.get(one) != text or kind is ConfigType.BROKER)
    ]
    records += [_record(kind, name, one, None) for one in current if one not in texts]
    return records


def _record(kind: ConfigType, resource: str, name: str, text: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=text)


def _check_resource_name(kind: ConfigType, name: str) -> None:
    if kind is ConfigType.TOPIC:
        if not name:
            raise _invalid("Default topic resources are not allowed.")
        check_topic_name(name)
    elif kind is ConfigType.GROUP and not name:
        raise _invalid("Default group resources are not allowed.")
    elif kind is ConfigType.CLIENT_METRICS and not name:
        raise _invalid("Subscription name can't be empty")


def _check_texts(configs: Configs, image: Image, kind: ConfigType, name: str, texts: Texts) -> None:
    match kind:
        case ConfigType.TOPIC:
            configs.check_topic(texts)
        case ConfigType.GROUP:
            check_group(configs, texts, image.config(kind, name))
        case ConfigType.CLIENT_METRICS:
            check_metrics(texts, image.config(kind, name))
        case _:
            _check_security(name, image.config(kind, name), texts)
            if name == CLUSTER and BROKER_MODE in texts:
                raise _invalid(f"{BROKER_MODE} is a setting of one broker, not of the cluster.")
            if is_elr_enabled(image):
                _check_min_insync_replicas(image, name, texts)


def _check_security(resource: str, current: Texts, texts: Texts) -> None:
    """Only certificates and limits of one listener of one broker may change at run time."""
    for name in texts:
        if current.get(name) == texts[name]:
            continue
        if name in DYNAMIC_NAMES:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                "These security configs can be dynamically updated only per-listener using the "
                f"listener prefix: {name}",
            )
        if not name.startswith(LISTENER_PREFIX):
            continue
        _, _, setting = name.removeprefix(LISTENER_PREFIX).partition(".")
        is_limit = setting in LISTENER_LIMITS and is_count((texts[name] or "").strip())
        if resource == CLUSTER or (setting not in DYNAMIC_NAMES and not is_limit):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"Cannot update these configs dynamically: {name}"
            )


def _check_min_insync_replicas(image: Image, name: str, texts: Texts) -> None:
    """With ELR only the cluster-level value may change: all nodes must use it (KIP-966)."""
    current = image.config(ConfigType.BROKER, name)
    if name != CLUSTER and texts.get(MIN_INSYNC_REPLICAS) != current.get(MIN_INSYNC_REPLICAS):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
        )
    if name == CLUSTER and MIN_INSYNC_REPLICAS in current and MIN_INSYNC_REPLICAS not in texts:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.",
        )


def _check_names(names: Sequence[str]) -> None:
    if len(dict.fromkeys(names)) < len(names):
        raise _invalid("Error due to duplicate config keys")


def _check_nulls(names: Sequence[str]) -> None:
    if names:
        raise _invalid(f"Null value not supported for : {', '.join(names)}")


def _check_broker_name(configs: Configs, image: Image, name: str) -> None:
    if name == CLUSTER:
        return
    if _node_id(name) != configs.node_id and NodeId(int(name)) not in image.brokers:
        raise _invalid(f"Unexpected broker id, expected {configs.node_id}, but received {name}")


def _node_id(name: str) -> int:
    try:
        return int(name)
    except ValueError:
        raise _invalid(f"Node id must be an integer, but it is: {name}") from None


def _refused_level(
    configs: Configs, resource: incremental_request.AlterConfigsResource
) -> KafkaError:
    """The error for a change of log levels. They are validated as by Kafka and then refused,
    because they are fixed at the start."""
    if _node_id(resource.resource_name) != configs.node_id:
        return _invalid(
            f"Unexpected node id. Expected {configs.node_id}, but received {resource.resource_name}"
        )
    for change in resource.configs:
        operation = ConfigOperation(change.config_operation)
        if operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            return _invalid(
                f"{operation.name} operation is not allowed for the BROKER_LOGGER resource"
            )
        if change.name != "root":
            return KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {change.name} does not exist!")
        if operation is ConfigOperation.DELETE:
            return _invalid("Removing the log level of the root logger is not allowed")
        if change.value not in LOG_LEVELS:
            return KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Cannot set the log level of root to {change.value} as it is not a supported log "
                f"level. Valid log levels are {', '.join(LOG_LEVELS)}",
            )
    return _invalid("The log level is set by log.level when the node starts.")


def _kind(resource: _Resource) -> ConfigType:
    try:
        return ConfigType(resource.resource_type)
    except ValueError:
        raise _unknown_type(resource) from None


def _unknown_type(resource: _Resource) -> KafkaError:
    return _invalid(f"Unknown resource type {resource.resource_type}")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
