"""CreateAcls, DeleteAcls and DescribeAcls (KIP-140, KIP-290)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast
from uuid import UUID

from msgspec.structs import replace

from riverrun.cluster.decision import Decision, check_size
from riverrun.metadata.entries import ACCESS_CONTROL_ENTRY
from riverrun.metadata.image import Image
from riverrun.metadata.schema.access_control_entry_record import AccessControlEntryRecord
from riverrun.metadata.schema.remove_access_control_entry_record import (
    RemoveAccessControlEntryRecord,
)
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.ports.randomness import Randomness
from riverrun.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from riverrun.security.principal import Principal
from riverrun.wire.messages.create_acls_response import AclCreationResult, CreateAclsResponse
from riverrun.wire.messages.delete_acls_response import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsResponse,
)
from riverrun.wire.messages.describe_acls_response import (
    AclDescription,
    DescribeAclsResource,
    DescribeAclsResponse,
)

if TYPE_CHECKING:
    from riverrun.wire.messages.create_acls_request import AclCreation, CreateAclsRequest
    from riverrun.wire.messages.delete_acls_request import DeleteAclsFilter, DeleteAclsRequest
    from riverrun.wire.messages.describe_acls_request import DescribeAclsRequest


NO_ID: Final = UUID(int=0)


def acls_of(image: Image) -> Iterator[Acl]:
    """All rules in the metadata."""
    for record in image.entries_of(ACCESS_CONTROL_ENTRY).values():
        yield _acl(cast(AccessControlEntryRecord, record))


def _acl(record: AccessControlEntryRecord) -> Acl:
    assert record.id is not None, "a rule without an id"
    return Acl(
        id=record.id,
        resource_type=ResourceType(record.resource_type),
        pattern_type=PatternType(record.pattern_type),
        name=record.resource_name,
        principal=record.principal,
        host=record.host,
        operation=AclOperation(record.operation),
        permission=AclPermission(record.permission_type),
    )


def create_acls(
    image: Image, request: CreateAclsRequest, randomness: Randomness
) -> Decision[CreateAclsResponse]:
    """Add rules. A rule that exists already is not added again, and succeeds."""
    check_size(len(request.creations))
    known = {_content(acl): None for acl in acls_of(image)}
    records: list[AccessControlEntryRecord] = []
    results: list[AclCreationResult] = []
    for creation in request.creations:
        reason = _refusal(creation)
        if reason is not None:
            code = ErrorCode.INVALID_REQUEST
            results.append(AclCreationResult(error_code=code, error_message=reason))
            continue
        record = AccessControlEntryRecord(
            id=randomness.uuid(),
            resource_type=creation.resource_type,
            resource_name=creation.resource_name,
            pattern_type=creation.resource_pattern_type,
            principal=creation.principal,
            host=creation.host,
            operation=creation.operation,
            permission_type=creation.permission_type,
        )
        content = _content(_acl(record))
        if content not in known:
            known[content] = None
            records.append(record)
        results.append(AclCreationResult(error_code=ErrorCode.NONE, error_message=""))
    return Decision(
        records=tuple(records),
        response=CreateAclsResponse(throttle_time_ms=0, results=tuple(results)),
    )


def _content(acl: Acl) -> Acl:
    """The rule without its id."""
    return replace(acl, id=NO_ID)


def _refusal(creation: AclCreation) -> str | None:
    kinds = [kind for kind in ResourceType if kind > ResourceType.ANY]
    operations = [operation for operation in AclOperation if operation > AclOperation.ANY]
    if creation.resource_type not in kinds:
        return "Invalid resource type"
    if creation.operation not in operations:
        return "Invalid operation"
    if creation.permission_type not in (AclPermission.ALLOW, AclPermission.DENY):
        return "Invalid permissionType"
    if creation.resource_pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return "Invalid patternType"
    if not creation.resource_name:
        return "Resource name should not be empty"
    if creation.resource_type == ResourceType.CLUSTER and creation.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    try:
        Principal.parse(creation.principal)
    except ValueError:
        return "Could not parse principal from `" + creation.principal + "`"
    return None


def delete_acls(image: Image, request: DeleteAclsRequest) -> Decision[DeleteAclsResponse]:
    """Remove the rules that match each filter."""
    removed: dict[Acl, None] = {}
    results: list[DeleteAclsFilterResult] = []
    acls = list(acls_of(image))
    for one in request.filters:
        try:
            wanted = parse_filter(one)
        except KafkaError as error:
            results.append(
                DeleteAclsFilterResult(
                    error_code=error.code, error_message=error.message, matching_acls=()
                )
            )
            continue
        matching = [acl for acl in acls if wanted.matches(acl)]
        removed |= dict.fromkeys(matching)
        results.append(
            DeleteAclsFilterResult(
                error_code=ErrorCode.NONE,
                error_message=None,
                matching_acls=tuple(_removed(acl) for acl in matching),
            )
        )
    check_size(len(removed))
    return Decision(
        records=tuple(RemoveAccessControlEntryRecord(id=acl.id) for acl in removed),
        response=DeleteAclsResponse(throttle_time_ms=0, filter_results=tuple(results)),
    )


def _removed(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_code=ErrorCode.NONE,
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def describe_acls(image: Image, request: DescribeAclsRequest) -> DescribeAclsResponse:
    wanted = parse_filter(request)
    resources: dict[tuple[ResourceType, str, PatternType], list[AclDescription]] = {}
    for acl in acls_of(image):
        if wanted.matches(acl):
            key = (acl.resource_type, acl.name, acl.pattern_type)
            resources.setdefault(key, []).append(
                AclDescription(
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission,
                )
            )
    return DescribeAclsResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        error_message="",
        resources=tuple(
            DescribeAclsResource(
                resource_type=kind, resource_name=name, pattern_type=pattern, acls=tuple(found)
            )
            for (kind, name, pattern), found in resources.items()
        ),
    )


def parse_filter(fields: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """Raises ``KafkaError`` INVALID_REQUEST for values that mean nothing."""
    try:
        found = AclFilter(
            resource_type=ResourceType(fields.resource_type_filter),
            name=fields.resource_name_filter,
            pattern_type=PatternType(fields.pattern_type_filter),
            principal=fields.principal_filter,
            host=fields.host_filter,
            operation=AclOperation(fields.operation),
            permission=AclPermission(fields.permission_type),
        )
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
    unknown = (found.resource_type, found.pattern_type, found.operation, found.permission)
    if 0 in unknown:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "DescribeAclsRequest contains UNKNOWN elements")
    return found
