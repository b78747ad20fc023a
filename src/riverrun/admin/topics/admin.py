"""Changes to topics, as requests to the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from riverrun.admin.cluster.configs import (
    MIN_ISR,
    BrokerSetting,
    min_isr_warning,
    read_settings,
)
from riverrun.admin.requests import REMEDY, alike, check, find_topic, in_words
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.create_partitions_request import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from riverrun.wire.messages.create_partitions_response import CreatePartitionsResponse
from riverrun.wire.messages.create_topics_request import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from riverrun.wire.messages.create_topics_response import CreateTopicsResponse
from riverrun.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from riverrun.wire.messages.delete_topics_response import DeleteTopicsResponse
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

TIMEOUT_MS = 30_000
TOPIC_RESOURCE = 2
SET = 0
DELETE = 1

FEWER_PARTITIONS = (
    "choose fewer --partitions. Each has a log and a leader of its own; tens are enough for most "
    "topics, and `riverrun topics alter` adds more later."
)
SettingNames = Callable[[], Sequence[str]]
"""The settings that topics can have, for suggestions when the cluster rejects a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    name: str
    partitions: int
    replication_factor: int
    is_new: bool

    def described(self) -> dict[str, object]:
        return {
            "name": self.name,
            "partitions": self.partitions,
            "replication_factor": self.replication_factor,
            "created": self.is_new,
        }


@dataclass(slots=True)
class Creation:
    """The result of creating topics, per topic."""

    created: list[CreatedTopic] = field(default_factory=list)
    errors: list[KafkaError] = field(default_factory=list)

    @property
    def failures(self) -> list[str]:
        """The errors in words."""
        return [in_words(error) for error in self.errors]


def creation_request(
    names: Sequence[str],
    partitions: int,
    replication_factor: int,
    settings: Mapping[str, str],
    *,
    validate_only: bool = False,
) -> CreateTopicsRequest:
    """CreateTopics for equal topics; a name that is given twice counts once."""
    configs = tuple(CreatableTopicConfig(name=key, value=value) for key, value in settings.items())
    return CreateTopicsRequest(
        topics=tuple(
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=replication_factor,
                assignments=(),
                configs=configs,
            )
            for name in dict.fromkeys(names)
        ),
        timeout_ms=TIMEOUT_MS,
        validate_only=validate_only,
    )


async def create_topics(
    pool: ConnectionPool,
    names: Sequence[str],
    *,
    partitions: int,
    replication_factor: int,
    settings: Mapping[str, str],
    may_exist: bool,
    setting_names: SettingNames = tuple,
) -> Creation:
    message = creation_request(names, partitions, replication_factor, settings)
    # Not retried: after a lost response the second attempt would report an existing topic.
    answer: CreateTopicsResponse = await pool.request(
        ApiKey.CREATE_TOPICS, message, is_repeatable=False
    )
    creation = Creation()
    for row in answer.topics:
        already_exists = row.error_code is ErrorCode.TOPIC_ALREADY_EXISTS and may_exist
        if row.error_code is ErrorCode.NONE or already_exists:
            creation.created.append(
                CreatedTopic(
                    name=row.name,
                    partitions=row.num_partitions,
                    replication_factor=row.replication_factor,
                    is_new=not already_exists,
                )
            )
        else:
            hint = ""
            if row.error_code is ErrorCode.INVALID_CONFIG:
                hint = _misspelt(settings, setting_names())
            reason = (row.error_message or row.error_code.name) + hint
            if _is_too_many(row.error_code, reason):
                reason += f" ({row.error_code.name}){REMEDY}{FEWER_PARTITIONS}"
            creation.errors.append(_failure(row.error_code, reason, row.name))
    return creation


async def delete_topics(pool: ConnectionPool, names: Sequence[str]) -> dict[str, KafkaError]:
    """The topics that were not deleted, with the reason."""
    for name in names:
        await find_topic(pool, name, may_be_created=False)
    unique = tuple(dict.fromkeys(names))
    message = DeleteTopicsRequest(
        topic_names=unique,
        topics=tuple(DeleteTopicState(name=name, topic_id=None) for name in unique),
        timeout_ms=TIMEOUT_MS,
    )
    answer: DeleteTopicsResponse = await pool.request(
        ApiKey.DELETE_TOPICS, message, is_repeatable=False
    )
    return {
        row.name or "": _failure(row.error_code, row.error_message, row.name or "")
        for row in answer.responses
        if row.error_code is not ErrorCode.NONE
    }


async def alter_topic(
    pool: ConnectionPool,
    name: str,
    *,
    partitions: int | None,
    settings: Mapping[str, str | None],
    validate_only: bool = False,
    setting_names: SettingNames = tuple,
) -> None:
    """Change settings (None restores the default) and the number of partitions.

    Both changes are validated before the first is applied. The two requests are not atomic: if the
    second fails, the settings are already changed.
    """
    topic = await find_topic(pool, name, may_be_created=False)
    for is_validation in (True,) if validate_only else (True, False):
        if settings:
            await _alter_settings(pool, name, settings, setting_names, validate_only=is_validation)
        if partitions is not None:
            present = len(topic.partitions)
            await _add_partitions(pool, name, partitions, present, validate_only=is_validation)


async def replication_factor_of(pool: ConnectionPool, name: str) -> int:
    """The smallest number of replicas of a partition."""
    topic = await find_topic(pool, name, may_be_created=False)
    return min(len(row.replica_nodes) for row in topic.partitions)


def factor_warning(name: str, factor: int, settings: Mapping[str, str | None]) -> str | None:
    """Why min.insync.replicas is most likely a mistake for a replication factor."""
    value = settings.get(MIN_ISR)
    if value is None or factor < 1:  # a user without DescribeConfigs gets -1
        return None
    return min_isr_warning(value, factor, f"the replication factor of {name} ({factor})")


async def ask_topic_settings(pool: ConnectionPool, name: str) -> list[BrokerSetting]:
    """All settings of a topic with their documentation."""
    resource = DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None
    )
    message = DescribeConfigsRequest(
        resources=(resource,), include_synonyms=True, include_documentation=True
    )
    answer: DescribeConfigsResponse = await pool.request(ApiKey.DESCRIBE_CONFIGS, message)
    return read_settings(answer, f"topic {name}")


async def _alter_settings(
    pool: ConnectionPool,
    name: str,
    settings: Mapping[str, str | None],
    setting_names: SettingNames,
    *,
    validate_only: bool,
) -> None:
    configs = tuple(
        AlterableConfig(name=key, config_operation=DELETE if value is None else SET, value=value)
        for key, value in settings.items()
    )
    resource = AlterConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=name, configs=configs
    )
    message = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)
    answer: IncrementalAlterConfigsResponse = await pool.request(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, message
    )
    for row in answer.responses:
        hint = ""
        if row.error_code is ErrorCode.INVALID_CONFIG:
            hint = _misspelt(settings, setting_names())
        check(row.error_code, (row.error_message or row.error_code.name) + hint, f"topic {name}")


async def _add_partitions(
    pool: ConnectionPool, name: str, count: int, present: int, *, validate_only: bool
) -> None:
    message = CreatePartitionsRequest(
        topics=(CreatePartitionsTopic(name=name, count=count, assignments=None),),
        timeout_ms=TIMEOUT_MS,
        validate_only=validate_only,
    )
    answer: CreatePartitionsResponse = await pool.request(
        ApiKey.CREATE_PARTITIONS, message, is_repeatable=validate_only
    )
    for row in answer.results:
        reason = row.error_message or row.error_code.name
        if remedy := _partitions_remedy(row.error_code, reason, count, present):
            reason += f" ({row.error_code.name}){REMEDY}{remedy}"
        check(row.error_code, reason, f"topic {name}")


def _partitions_remedy(code: ErrorCode, reason: str, count: int, present: int) -> str | None:
    if _is_too_many(code, reason):
        return FEWER_PARTITIONS
    if code is not ErrorCode.INVALID_PARTITIONS or count > present:
        return None
    if count == present:
        return f"there is nothing to change; choose more than {present} to add partitions."
    return (
        "partitions cannot be removed, because that would delete their records. Create a new topic "
        f"with `riverrun topics create NAME --partitions {count}`, and let the applications use it."
    )


def _is_too_many(code: ErrorCode, reason: str) -> bool:
    """POLICY_VIOLATION has other reasons too, with other remedies."""
    return code is ErrorCode.POLICY_VIOLATION and "number of partitions per request" in reason


def _failure(code: ErrorCode, message: str | None, name: str) -> KafkaError:
    return KafkaError(code, f"topic {name}: {message or code.name}")


def _misspelt(settings: Iterable[str], known: Sequence[str]) -> str:
    """A suggestion for an unknown topic setting; the cluster only reports that it is unknown."""
    return next((alike(name, known) for name in settings if name not in known), "")


async def ask_setting(pool: ConnectionPool, names: Sequence[str], setting: str) -> dict[str, str]:
    """The value of one setting by topic, for the topics that the user may see."""
    if not names:
        return {}
    message = DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=(setting,)
            )
            for name in names
        )
    )
    answer: DescribeConfigsResponse = await pool.request(ApiKey.DESCRIBE_CONFIGS, message)
    return {
        result.resource_name: row.value
        for result in answer.results
        for row in result.configs
        if row.name == setting and row.value is not None
    }
