"""AlterClientQuotas and DescribeClientQuotas (KIP-546)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

from riverrun.cluster.decision import Decision, check_size
from riverrun.metadata.entries import CLIENT_QUOTA, quota_key
from riverrun.metadata.image import Image
from riverrun.metadata.schema.client_quota_record import ClientQuotaRecord, EntityData
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.security.quotas import (
    ENTITY_TYPES,
    IP,
    ClientQuota,
    Entity,
    QuotaKind,
    entity_refusal,
    key_refusal,
)
from riverrun.wire.messages import (
    alter_client_quotas_response,
    describe_client_quotas_response,
)
from riverrun.wire.messages.alter_client_quotas_response import AlterClientQuotasResponse
from riverrun.wire.messages.describe_client_quotas_response import DescribeClientQuotasResponse

if TYPE_CHECKING:
    from riverrun.wire.messages.alter_client_quotas_request import (
        AlterClientQuotasRequest,
        EntryData,
        OpData,
    )
    from riverrun.wire.messages.describe_client_quotas_request import (
        ComponentData,
        DescribeClientQuotasRequest,
    )

EXACT: Final = 0
DEFAULT: Final = 1
ANY: Final = 2
_HOST_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")


def quotas_of(image: Image) -> Iterator[ClientQuota]:
    """All quotas in the metadata. Keys that this version does not know limit nothing."""
    for entity, key, value in _stored(image):
        if key in QuotaKind.__members__.values():
            yield ClientQuota(entity, QuotaKind(key), value)


def _stored(image: Image) -> Iterator[tuple[Entity, str, float]]:
    for record in image.entries_of(CLIENT_QUOTA).values():
        quota = cast(ClientQuotaRecord, record)
        entity = {part.entity_type: part.entity_name for part in quota.entity}
        yield entity, quota.key, quota.value


def alter_client_quotas(
    image: Image, request: AlterClientQuotasRequest
) -> Decision[AlterClientQuotasResponse]:
    """Change entities one by one. If one change of an entity is refused, none of them is made."""
    check_size(sum(len(entry.ops) for entry in request.entries))
    records: list[ClientQuotaRecord] = []
    results: dict[tuple[tuple[str, str | None], ...], str | None] = {}
    for entry in request.entries:
        # If a type is repeated, the last name holds, as in Kafka.
        entity = {part.entity_type: part.entity_name for part in entry.entity}
        refusal = _refusal(entity, entry)
        if refusal is None:
            records += _records(image, entity, entry.ops)
        results[tuple(entity.items())] = refusal
    return Decision(
        records=() if request.validate_only else tuple(records),
        response=AlterClientQuotasResponse(
            throttle_time_ms=0,
            entries=tuple(
                alter_client_quotas_response.EntryData(
                    error_code=ErrorCode.NONE if refusal is None else ErrorCode.INVALID_REQUEST,
                    error_message=refusal,
                    entity=tuple(
                        alter_client_quotas_response.EntityData(entity_type=kind, entity_name=name)
                        for kind, name in entity
                    ),
                )
                for entity, refusal in results.items()
            ),
        ),
    )


def _refusal(entity: Entity, entry: EntryData) -> str | None:
    refusal = entity_refusal(entity)
    if refusal is not None:
        return refusal
    address = entity.get(IP)
    if address is not None and not _is_host(address):
        return f"{address} is not a valid IP or resolvable host."
    seen: dict[str, None] = {}
    for change in entry.ops:
        if change.key in seen:
            return f"Duplicate quota key {change.key}"
        seen[change.key] = None
        refusal = None if change.remove else key_refusal(entity, change.key, change.value)
        if refusal is not None:
            return refusal
    return None


def _is_host(text: str) -> bool:
    """An address or the form of a host name. Names are not looked up: that would block."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _HOST_NAME.fullmatch(text) is not None
    return True


def _records(
    image: Image, entity: Entity, changes: tuple[OpData, ...]
) -> Iterator[ClientQuotaRecord]:
    """Records of changes that change something."""
    parts = tuple(
        EntityData(entity_type=kind, entity_name=name) for kind, name in sorted(entity.items())
    )
    for change in changes:
        record = ClientQuotaRecord(
            entity=parts,
            key=change.key,
            value=0.0 if change.remove else change.value,
            remove=change.remove,
        )
        before = image.entries_of(CLIENT_QUOTA).get(quota_key(record))
        if before != (None if change.remove else record):
            yield record


def describe_client_quotas(
    image: Image, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """The quotas of the entities that match every component. Raises ``KafkaError``."""
    _check_components(request.components)
    found: dict[tuple[tuple[str, str | None], ...], list[tuple[str, float]]] = {}
    for entity, key, value in _stored(image):
        is_exact = not request.strict or len(entity) == len(request.components)
        if is_exact and all(_matches(entity, one) for one in request.components):
            found.setdefault(tuple(entity.items()), []).append((key, value))
    return DescribeClientQuotasResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        error_message="",
        entries=tuple(
            describe_client_quotas_response.EntryData(
                entity=tuple(
                    describe_client_quotas_response.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity
                ),
                values=tuple(
                    describe_client_quotas_response.ValueData(key=key, value=value)
                    for key, value in values
                ),
            )
            for entity, values in found.items()
        ),
    )


def _check_components(components: tuple[ComponentData, ...]) -> None:
    kinds = [component.entity_type for component in components]
    for component in components:
        kind, match, name = component.entity_type, component.match_type, component.match
        if not kind:
            raise _invalid("Unexpected empty filter component entity type")
        if kinds.count(kind) > 1:
            raise _invalid(f"Duplicate filter component entity type: {kind}")
        if match not in (EXACT, DEFAULT, ANY):
            raise _invalid(f"Unexpected match type: {match}")
        if (match == EXACT) != (name is not None):
            raise _invalid(f"Unexpected match {name!r} for match type {match}")
        if kind not in ENTITY_TYPES:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"Unsupported filter component entity type: {kind}"
            )
    if IP in kinds and len(kinds) > 1:
        raise _invalid("Invalid entity filter component combination, IP with user or client-id")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _matches(entity: Entity, component: ComponentData) -> bool:
    if component.entity_type not in entity:
        return False
    name = entity[component.entity_type]
    if component.match_type == ANY:
        return True
    return name == component.match  # a default entity has no name
