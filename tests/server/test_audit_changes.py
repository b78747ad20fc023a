"""Administrative requests as audit events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.metadata.image import ConfigType
from riverrun.model.errors import ErrorCode
from riverrun.ports.clock import SystemClock
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import SystemRandomness
from riverrun.security.audit import QUEUED_BYTES_MAX, ChangeEvent, Entry
from riverrun.security.ocsf import ReportingNode, documents
from riverrun.security.principal import NODE, USER, Principal
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.security.audit.audit_log import AuditLog
from riverrun.server.security.audit.changes import (
    AUDITED,
    RESOURCES_MAX,
    RESPONSE_BYTES_MAX,
    TEXT_CHARACTERS_TOTAL,
    VALUES_MAX,
    change_event,
    resources,
)
from riverrun.server.security.audit.settings import AuditSettings
from riverrun.server.security.audit.topic_writer import AuditTopicWriter
from riverrun.wire.apis import FORWARDED, ApiKey
from riverrun.wire.codec import encode_response
from riverrun.wire.messages.alter_user_scram_credentials_request import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from riverrun.wire.messages.create_acls_request import AclCreation, CreateAclsRequest
from riverrun.wire.messages.create_acls_response import AclCreationResult, CreateAclsResponse
from riverrun.wire.messages.delete_groups_request import DeleteGroupsRequest
from riverrun.wire.messages.delete_groups_response import (
    DeletableGroupResult,
    DeleteGroupsResponse,
)
from riverrun.wire.messages.incremental_alter_configs_request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from riverrun.wire.messages.offset_commit_request import OffsetCommitRequest
from riverrun.wire.messages.offset_commit_response import OffsetCommitResponse
from riverrun.wire.messages.write_txn_markers_request import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from riverrun.wire.messages.write_txn_markers_response import WriteTxnMarkersResponse

ALICE = Principal(USER, "alice")


def context(version: int = 2, principal: Principal = ALICE) -> RequestContext:
    return RequestContext(version, 5, "tester", "10.0.0.9", "SASL_SSL", 1, principal)


def recorded(key: ApiKey, request: Any, response: Any, version: int = 2) -> ChangeEvent:
    event = change_event(key, context(version), request, response)
    assert event is not None
    return event


def deleted(*codes: ErrorCode) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        throttle_time_ms=0,
        results=tuple(
            DeletableGroupResult(group_id=f"g{place}", error_code=code)
            for place, code in enumerate(codes)
        ),
    )


def test_every_request_that_the_controller_decides_for_a_client_is_recorded() -> None:
    reading = {key for key in FORWARDED if key.name.startswith(("DESCRIBE_", "LIST_"))}
    assert FORWARDED - reading <= AUDITED


@pytest.mark.parametrize("is_encoded", [False, True])
def test_the_result_counts_the_items_of_the_response(is_encoded: bool) -> None:
    response: Any = deleted(ErrorCode.NONE, ErrorCode.NON_EMPTY_GROUP, ErrorCode.NONE)
    if is_encoded:
        response = encode_response(ApiKey.DELETE_GROUPS, 2, response)
    event = recorded(ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=("a", "b")), response)
    outcome = event.read_outcome()
    assert (outcome.succeeded, outcome.failed, outcome.error) == (2, 1, "NON_EMPTY_GROUP")
    assert event.resources == (("group", "a"), ("group", "b"))
    assert (event.origin.principal, event.origin.client_host) == ("User:alice", "10.0.0.9")


def test_passwords_and_keys_are_left_out() -> None:
    request = AlterUserScramCredentialsRequest(
        deletions=(),
        upsertions=(
            ScramCredentialUpsertion(
                name="bob",
                mechanism=2,
                iterations=4096,
                salt=b"the-salt",
                salted_password=b"the-secret",
            ),
        ),
    )
    event = recorded(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request, deleted(ErrorCode.NONE))
    assert event.request["upsertions"] == [{"name": "bob", "mechanism": 2, "iterations": 4096}]


@pytest.mark.parametrize("kind", list(ConfigType))
def test_values_of_settings_are_shown_for_topics_and_groups_alone(kind: ConfigType) -> None:
    change = AlterableConfig(name="a.setting", config_operation=0, value="hunter2")
    resource = AlterConfigsResource(resource_type=kind, resource_name="x", configs=(change,))
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    event = recorded(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, deleted(ErrorCode.NONE))
    text = json.dumps(event.request)
    assert "a.setting" in text
    assert ("hunter2" in text) == (kind in (ConfigType.TOPIC, ConfigType.GROUP))


def test_rules_are_written_with_their_names() -> None:
    rule = AclCreation(
        resource_type=2,
        resource_name="orders",
        principal="User:bob",
        host="*",
        operation=4,
        permission_type=3,
    )
    response = CreateAclsResponse(
        throttle_time_ms=0,
        results=(AclCreationResult(error_code=ErrorCode.NONE, error_message=None),),
    )
    event = recorded(ApiKey.CREATE_ACLS, CreateAclsRequest(creations=(rule,)), response)
    (found,) = event.request["creations"]
    assert (found["operation"], found["permission_type"]) == ("write", "allow")
    assert (found["resource_type"], found["resource_pattern_type"]) == ("topic", "literal")
    assert event.resources == (("topic", "orders"),)


def test_a_large_request_is_cut() -> None:
    names = tuple(f"group-{index}" for index in range(10_000))
    event = recorded(ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=names), deleted())
    assert len(event.resources) == RESOURCES_MAX
    assert len(event.request["groups_names"]) <= VALUES_MAX
    assert event.request["groups_names"][-1] == "…"


def test_the_texts_of_a_request_are_limited_together() -> None:
    names = tuple(f"{index:04}" * 100 for index in range(VALUES_MAX))
    event = recorded(ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=names), deleted())
    size = len(json.dumps(event.request))
    assert TEXT_CHARACTERS_TOTAL <= size < 2 * TEXT_CHARACTERS_TOTAL
    assert event.held_bytes >= size


def test_changes_of_many_users_are_recorded_up_to_the_limit() -> None:
    names = [f"user-{index}" for index in range(VALUES_MAX)]
    request = AlterUserScramCredentialsRequest(
        deletions=tuple(ScramCredentialDeletion(name=name, mechanism=2) for name in names),
        upsertions=(),
    )
    event = recorded(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request, deleted(ErrorCode.NONE))
    entry = Entry(event=event, first_ms=1, last_ms=1)
    *users, rest = documents(entry, ReportingNode(node_id=1, version="1"))
    assert [one["user"]["name"] for one in users] == names[: len(users)]
    assert len(users) >= RESOURCES_MAX
    assert rest["api"]["request"]["data"]["deletions"][-1] == "…"


class FullSink:
    """A writer of the topic with limited room."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.kept: list[dict[str, Any]] = []

    def add(self, events: Sequence[bytes]) -> int:
        fitting = events[: self.room]
        self.kept += map(json.loads, fitting)
        self.room -= len(fitting)
        return len(fitting)

    async def close(self) -> None: ...


def test_events_that_the_topic_cannot_take_are_reported_when_it_can() -> None:
    log = audit_log()
    sink = FullSink(1)
    log.write_to(sink)
    for _ in range(3):
        request = DeleteGroupsRequest(groups_names=("a",))
        log.changed(ApiKey.DELETE_GROUPS, context(), request, deleted(ErrorCode.NONE))
        log._record()
    sink.room = 10
    log._record()
    assert [one["class_uid"] for one in sink.kept] == [6003, 6008]
    assert sink.kept[-1]["count"] == 2


def test_events_that_wait_for_the_topic_are_limited_by_their_bytes() -> None:
    services: Any = SimpleNamespace(settings=SimpleNamespace(node_id=1))
    writer = AuditTopicWriter(services, AuditSettings())
    event = bytes(QUEUED_BYTES_MAX // 4)
    assert (writer.add([event] * 3), writer.add([event] * 3), writer.add([event])) == (3, 1, 0)


def test_a_large_response_is_not_kept() -> None:
    event = recorded(ApiKey.DELETE_GROUPS, DeleteGroupsRequest(), bytes(1_000_000))
    assert event.held_bytes < RESPONSE_BYTES_MAX
    assert not event.read_outcome().is_known


def test_a_request_that_was_denied_as_a_whole_is_a_denial_and_no_change() -> None:
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    response = CreateAclsResponse(
        throttle_time_ms=0, results=(AclCreationResult(error_code=code, error_message=None),)
    )
    request = CreateAclsRequest(creations=())
    assert change_event(ApiKey.CREATE_ACLS, context(), request, response) is None


def audit_log() -> AuditLog:
    return AuditLog(
        100,
        node_id=1,
        clock=SystemClock(),
        randomness=SystemRandomness(),
        metrics=Metrics(),
        writes_topic=False,
        inter_broker_listener="INTERNAL",
    )


@pytest.mark.parametrize(
    ("generation", "member", "events"), [(-1, "", 1), (4, "member-1", 0), (-1, "member-1", 0)]
)
def test_offsets_are_altered_by_commits_without_a_member(
    generation: int, member: str, events: int
) -> None:
    audit = audit_log()
    request = OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=generation, member_id=member, topics=()
    )
    audit.changed(ApiKey.OFFSET_COMMIT, context(), request, OffsetCommitResponse(topics=()))
    assert len(audit._queue) == events


@pytest.mark.parametrize(("listener", "events"), [("SASL_SSL", 1), ("INTERNAL", 0)])
def test_aborts_by_an_administrator_are_recorded_but_markers_of_coordinators_are_not(
    listener: str, events: int
) -> None:
    audit = audit_log()
    topic = WritableTxnMarkerTopic(name="orders", partition_indexes=(0,))
    marker = WritableTxnMarker(
        producer_id=7,
        producer_epoch=0,
        transaction_result=False,
        topics=(topic,),
        coordinator_epoch=1,
    )
    request = WriteTxnMarkersRequest(markers=(marker,))
    where = RequestContext(1, 5, "tester", "10.0.0.9", listener, 1, ALICE)
    audit.changed(ApiKey.WRITE_TXN_MARKERS, where, request, WriteTxnMarkersResponse(markers=()))
    assert len(audit._queue) == events
    assert ApiKey.WRITE_TXN_MARKERS in audit.audited
    assert list(resources(ApiKey.WRITE_TXN_MARKERS, request)) == [("topic", "orders")]


def test_requests_of_the_node_itself_are_not_recorded() -> None:
    audit = audit_log()
    request, response = DeleteGroupsRequest(), deleted(ErrorCode.NONE)
    audit.changed(ApiKey.DELETE_GROUPS, context(principal=NODE), request, response)
    assert len(audit._queue) == 0


def test_repeated_failures_are_one_event_but_every_success_is_one() -> None:
    audit = audit_log()
    request = DeleteGroupsRequest(groups_names=("g0",))
    for _ in range(10):
        audit.changed(
            ApiKey.DELETE_GROUPS, context(), request, deleted(ErrorCode.GROUP_ID_NOT_FOUND)
        )
        audit.changed(ApiKey.DELETE_GROUPS, context(), request, deleted(ErrorCode.NONE))
    assert len(audit._queue) == 1 + 10
