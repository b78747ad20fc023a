"""Administrative requests as audit events: what was asked, without secrets, and what came of it.

The request is summarized when it is answered, in a limited number of steps. An encoded response is
decoded later, when the event is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from functools import partial
from itertools import islice
from typing import Any, Final
from uuid import UUID

from msgspec import Struct
from msgspec.structs import fields

from riverrun.metadata.image import ConfigType
from riverrun.model.errors import ErrorCode
from riverrun.security.acls import AclOperation, AclPermission, PatternType, ResourceType
from riverrun.security.audit import ChangeEvent, ChangeOutcome, Origin, cut
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.security.access import FAILURES, REQUIRED
from riverrun.wire.apis import ALL_APIS, ApiKey
from riverrun.wire.codec import decode_response
from riverrun.wire.primitives import MalformedRequest

RESOURCES_MAX: Final = 100
VALUES_MAX: Final = 500
TEXT_CHARACTERS_TOTAL: Final = 16 * 1024
"""A summary has about this many values and characters; larger requests are cut."""
VALUE_BYTES: Final = 200
"""An estimate of the memory of a value in a summary, without its text."""
CHARACTER_BYTES_MAX: Final = 4
RESULTS_MAX: Final = 1000
RESPONSE_BYTES_MAX: Final = 64 * 1024
"""Larger responses are not kept, and their events have no result."""

_CHANGING: Final = (
    AclOperation.ALTER,
    AclOperation.ALTER_CONFIGS,
    AclOperation.CREATE,
    AclOperation.DELETE,
)
AUDITED: Final = frozenset(
    {key for key, right in REQUIRED.items() if right.operation in _CHANGING}
    | {
        # Their handlers check the rights on each item.
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DELETE_RECORDS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.DELETE_GROUPS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        # Only if no member of the group commits: an administrator sets the offsets.
        ApiKey.OFFSET_COMMIT,
        # Only on listeners for clients: an administrator aborts a hanging transaction (KIP-664).
        ApiKey.WRITE_TXN_MARKERS,
    }
)
"""APIs whose requests are recorded."""
_DENIED: Final = frozenset(FAILURES.values())


class Items(Struct, frozen=True):
    """Where a request names its resources."""

    kind: str
    items: str
    name: str = ""
    """The field of an item; empty if the items are names themselves."""


_RESOURCES: Final[Mapping[ApiKey, Items]] = {
    ApiKey.CREATE_TOPICS: Items("topic", "topics", "name"),
    ApiKey.CREATE_PARTITIONS: Items("topic", "topics", "name"),
    ApiKey.DELETE_RECORDS: Items("topic", "topics", "name"),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Items("topic", "topics", "name"),
    ApiKey.ELECT_LEADERS: Items("topic", "topic_partitions", "topic"),
    ApiKey.DELETE_GROUPS: Items("group", "groups_names"),
    ApiKey.UPDATE_FEATURES: Items("feature", "feature_updates", "feature"),
}
_SINGLE: Final[Mapping[ApiKey, tuple[str, str]]] = {
    ApiKey.OFFSET_DELETE: ("group", "group_id"),
    ApiKey.OFFSET_COMMIT: ("group", "group_id"),
    ApiKey.UNREGISTER_BROKER: ("broker", "broker_id"),
    ApiKey.ADD_RAFT_VOTER: ("voter", "voter_id"),
    ApiKey.REMOVE_RAFT_VOTER: ("voter", "voter_id"),
}


_ACL_NAMES: Final[Mapping[str, type[IntEnum]]] = {
    "resource_type": ResourceType,
    "resource_type_filter": ResourceType,
    "resource_pattern_type": PatternType,
    "pattern_type_filter": PatternType,
    "operation": AclOperation,
    "permission_type": AclPermission,
}


def is_recorded(key: ApiKey, request: Any, *, is_between_nodes: bool) -> bool:
    """Whether a request of an audited API is an administrative one. ``is_between_nodes``: it came
    to the listener that nodes use."""
    if key is ApiKey.WRITE_TXN_MARKERS:
        return not is_between_nodes
    if key is ApiKey.OFFSET_COMMIT and request is not None:
        return request.generation_id_or_member_epoch < 0 and not request.member_id
    return True


def change_event(
    key: ApiKey, context: RequestContext, request: Any, response: Any
) -> ChangeEvent | None:
    """The event of an answered request; None if a denial is recorded instead."""
    outcome: ChangeOutcome | None = None
    if type(response) is not bytes:
        outcome = outcome_of(response)
        if key in REQUIRED and outcome.error and ErrorCode(outcome.code) in _DENIED:
            return None
    api = ALL_APIS[key]
    size = len(response) if type(response) is bytes else 0
    is_kept = size <= RESPONSE_BYTES_MAX
    asked = RequestSummary(request)
    return ChangeEvent(
        origin=origin_of(context),
        api=api.title,
        api_version=context.api_version,
        client_id=cut(context.client_id or ""),
        correlation_id=context.correlation_id,
        resources=tuple(
            (kind, cut(name)) for kind, name in islice(resources(key, request), RESOURCES_MAX)
        ),
        request=asked.fields,
        read_outcome=_reader(outcome, key, context.api_version, response if is_kept else None),
        held_bytes=asked.held_bytes + (size if is_kept else 0),
    )


def origin_of(context: RequestContext) -> Origin:
    return Origin(
        principal=cut(str(context.principal)),
        client_host=context.client_host,
        listener=context.listener,
    )


def _reader(
    outcome: ChangeOutcome | None, key: ApiKey, version: int, response: bytes | None
) -> Callable[[], ChangeOutcome]:
    if outcome is not None:
        known = outcome
        return lambda: known
    return partial(_decoded_outcome, key, version, response)


def _decoded_outcome(key: ApiKey, version: int, response: bytes | None) -> ChangeOutcome:
    if response is None:
        return ChangeOutcome(is_known=False)
    try:
        return outcome_of(decode_response(key, version, response))
    except MalformedRequest:
        return ChangeOutcome(is_known=False)


# Resources


def resources(key: ApiKey, request: Any) -> Iterator[tuple[str, str]]:
    """The types and names of what a request is about."""
    if (single := _SINGLE.get(key)) is not None:
        yield single[0], str(getattr(request, single[1]))
    elif (where := _RESOURCES.get(key)) is not None:
        for item in getattr(request, where.items) or ():
            yield where.kind, getattr(item, where.name) if where.name else item
    elif key is ApiKey.DELETE_TOPICS:
        for name in request.topic_names:
            yield "topic", name
        for topic in request.topics:
            yield "topic", topic.name or str(topic.topic_id)
    elif key in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
        for one in request.resources:
            yield _config_kind(one.resource_type), one.resource_name
    elif key is ApiKey.CREATE_ACLS:
        for acl in request.creations:
            yield _enum_name(ResourceType, acl.resource_type), acl.resource_name
    elif key is ApiKey.DELETE_ACLS:
        for one in request.filters:
            name = one.resource_name_filter
            yield _enum_name(ResourceType, one.resource_type_filter), name or "*"
    elif key is ApiKey.ALTER_CLIENT_QUOTAS:
        for entry in request.entries:
            for entity in entry.entity:
                yield entity.entity_type, entity.entity_name or "(default)"
    elif key is ApiKey.WRITE_TXN_MARKERS:
        for marker in request.markers:
            for topic in marker.topics:
                yield "topic", topic.name
    elif key is ApiKey.ALTER_USER_SCRAM_CREDENTIALS:
        for one in (*request.upsertions, *request.deletions):
            yield "user", one.name


def _config_kind(number: int) -> str:
    try:
        return ConfigType(number).name.lower()
    except ValueError:
        return f"type {number}"


def _enum_name(kind: type[IntEnum], number: int) -> str:
    try:
        return kind(number).name.lower()
    except ValueError:
        return str(number)


# Requests


class RequestSummary:
    """The fields of a request. Bytes are left out, because they are keys and passwords; so are
    values of settings, except those of topics and groups, which are never secret."""

    def __init__(self, request: Any) -> None:
        self._values = self._characters = 0
        self.fields: dict[str, Any] = {}
        if request is not None:
            self.fields = self._struct(request, shows_values=True)

    @property
    def held_bytes(self) -> int:
        """An estimate of its memory."""
        return VALUE_BYTES * self._values + CHARACTER_BYTES_MAX * self._characters

    def _struct(self, value: Any, *, shows_values: bool) -> dict[str, Any]:
        kind = getattr(value, "resource_type", None)
        if hasattr(value, "configs") and kind is not None:
            shows_values = kind in (ConfigType.TOPIC, ConfigType.GROUP)
        is_acl = hasattr(value, "permission_type")
        found: dict[str, Any] = {}
        for field in fields(value):
            inner = getattr(value, field.name)
            if isinstance(inner, bytes) or inner is None:
                continue
            if field.name == "value" and isinstance(inner, str) and not shows_values:
                continue
            if is_acl and field.name in _ACL_NAMES:
                inner = _enum_name(_ACL_NAMES[field.name], inner)
            found[field.name] = self._value(inner, shows_values=shows_values)
        return found

    def _value(self, value: Any, *, shows_values: bool) -> Any:
        self._values += 1
        if isinstance(value, Struct):
            return self._struct(value, shows_values=shows_values)
        if isinstance(value, tuple):
            items = list(map(partial(self._value, shows_values=shows_values), self._within(value)))
            return [*items, "…"] if len(items) < len(value) else items
        if isinstance(value, UUID):
            return str(value)
        if not isinstance(value, str):
            return value
        text = cut(value)
        self._characters += len(text)
        return text

    def _within(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            if self._values >= VALUES_MAX or self._characters >= TEXT_CHARACTERS_TOTAL:
                return
            yield value


# Responses


def outcome_of(response: Any) -> ChangeOutcome:
    """Count the error codes of a response."""
    succeeded = failed = code = 0
    error = message = ""
    for item in islice(_results(response), RESULTS_MAX):
        found = ErrorCode(item.error_code)
        if found is ErrorCode.NONE:
            succeeded += 1
            continue
        failed += 1
        if not error:
            code, error = int(found), found.name
            message = cut(getattr(item, "error_message", None) or "")
    return ChangeOutcome(
        succeeded=succeeded, failed=failed, code=code, error=error, message=message
    )


def _results(value: Any) -> Iterator[Any]:
    """The structures with an error code in a response, without those that only contain others."""
    has_results = False
    for field in fields(value):
        items = getattr(value, field.name)
        if isinstance(items, tuple) and items and isinstance(items[0], Struct):
            for item in items:
                for found in _results(item):
                    has_results = True
                    yield found
    if hasattr(value, "error_code") and (value.error_code or not has_results):
        yield value
