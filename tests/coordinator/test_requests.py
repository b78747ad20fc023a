"""Group requests through their handlers: versions, topic ids, errors, FindCoordinator."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from riverrun.metadata.image import BrokerImage, Endpoint, Image, PartitionImage, TopicImage
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId, PartitionIndex, TopicId, TopicName
from riverrun.server.dispatch.context import RequestContext
from riverrun.wire.apis import ApiKey
from riverrun.wire.codec import decode_request, decode_response, encode_request, encode_response
from riverrun.wire.messages.delete_groups_request import DeleteGroupsRequest
from riverrun.wire.messages.describe_groups_request import DescribeGroupsRequest
from riverrun.wire.messages.find_coordinator_request import FindCoordinatorRequest
from riverrun.wire.messages.heartbeat_request import HeartbeatRequest
from riverrun.wire.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from riverrun.wire.messages.leave_group_request import LeaveGroupRequest, MemberIdentity
from riverrun.wire.messages.list_groups_request import ListGroupsRequest
from riverrun.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from riverrun.wire.messages.offset_delete_request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from riverrun.wire.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from riverrun.wire.messages.sync_group_request import SyncGroupRequest
from tests.cluster.fakes import make_configs
from tests.coordinator.fakes import Node, run
from tests.server.access import OPEN_ACCESS, no_quotas

ORDERS = UUID(int=0xABCDEF)
STRANGE = UUID(int=0x123456)
NONE = ErrorCode.NONE


def topic(name: str, topic_id: UUID, partitions: int) -> TopicImage:
    one = PartitionImage(
        replicas=(NodeId(1),),
        isr=(NodeId(1),),
        leader=NodeId(1),
        leader_epoch=LeaderEpoch(0),
        partition_epoch=0,
        directories=(UUID(int=1000),),
    )
    return TopicImage(name=TopicName(name), id=TopicId(topic_id), partitions=(one,) * partitions)


def image_of(*topics: TopicImage, is_fenced: bool = False) -> Image:
    broker = BrokerImage(
        id=NodeId(1),
        epoch=1,
        incarnation=UUID(int=5),
        endpoints={"PLAINTEXT": Endpoint(host="node1", port=9092)},
        is_fenced=is_fenced,
    )
    return Image(
        brokers={broker.id: broker},
        topics_by_name={one.name: one for one in topics},
        topics_by_id={one.id: one for one in topics},
    )


class Server:
    """Handlers of a coordinator with one partition; messages are encoded and decoded."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.metadata = SimpleNamespace(current=image_of(topic("orders", ORDERS, 2)))
        self.created: list[str] = []
        self.services: Any = SimpleNamespace(
            access=OPEN_ACCESS,
            quotas=no_quotas(),
            audit=None,
            groups=node.groups,
            metadata=self.metadata,
            forwarder=self,
            configs=make_configs(None),
        )

    async def create_topics(self, request: Any) -> None:
        await asyncio.sleep(0)
        self.created += [one.name for one in request.topics]
        known = self.metadata.current.topics_by_name.values()
        made = [topic(one.name, UUID(int=77), one.num_partitions) for one in request.topics]
        self.metadata.current = image_of(*known, *made)

    async def ask(self, key: ApiKey, version: int, request: Any) -> Any:
        module = import_module(f"riverrun.server.requests.{key.name.lower()}")
        context = RequestContext(version, 1, "client", "127.0.0.1", "PLAINTEXT", 1)
        received = decode_request(key, version, memoryview(encode_request(key, version, request)))
        try:
            response = module.handle(self.services, context, received)
            if inspect.isawaitable(response):
                response = await response
        except KafkaError as error:
            response = module.failed(received, error.code, error.message)
        return decode_response(key, version, encode_response(key, version, response))


def serve(driver: Callable[[Server], Awaitable[None]], **texts: str) -> None:
    async def main() -> None:
        async with Node(None, None, **texts) as node:
            await driver(Server(node))

    run(main())


def join_request(member_id: str = "", group: str = "g", **fields: Any) -> JoinGroupRequest:
    values: dict[str, Any] = {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": (JoinGroupRequestProtocol(name="range", metadata=b""),),
        **fields,
    }
    return JoinGroupRequest(**values)


def commit_request(*topics: OffsetCommitRequestTopic, group: str = "g") -> OffsetCommitRequest:
    return OffsetCommitRequest(group_id=group, member_id="", topics=topics)


def commit_topic(*partitions: int, **fields: Any) -> OffsetCommitRequestTopic:
    return OffsetCommitRequestTopic(
        partitions=tuple(
            OffsetCommitRequestPartition(
                partition_index=index, committed_offset=10 + index, committed_metadata="m"
            )
            for index in partitions
        ),
        **fields,
    )


def codes(response: Any) -> list[Any]:
    return [
        (one.name or one.topic_id, [(p.partition_index, p.error_code) for p in one.partitions])
        for one in response.topics
    ]


def test_first_find_coordinator_creates_the_offsets_topic() -> None:
    async def driver(server: Server) -> None:
        key = ApiKey.FIND_COORDINATOR
        many = FindCoordinatorRequest(key_type=0, coordinator_keys=("a", ""))
        found = await server.ask(key, 4, many)
        assert server.created == ["__consumer_offsets"]
        assert [(one.key, one.host, one.port, one.error_code) for one in found.coordinators] == [
            ("a", "node1", 9092, NONE),
            ("", "node1", 9092, NONE),
        ]
        one = await server.ask(key, 3, FindCoordinatorRequest(key="a"))
        assert (one.node_id, one.host, one.error_message) == (1, "node1", "NONE")
        assert (await server.ask(key, 0, FindCoordinatorRequest(key="a"))).port == 9092
        assert server.created == ["__consumer_offsets"]

    serve(driver)


def test_fenced_coordinator_is_not_available() -> None:
    async def driver(server: Server) -> None:
        offsets = topic("__consumer_offsets", UUID(int=9), 50)
        server.metadata.current = image_of(offsets, is_fenced=True)
        found = await server.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="a"))
        assert found.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (found.node_id, found.host, found.port) == (-1, "", -1)

    serve(driver)


def test_other_coordinator_types_are_refused() -> None:
    async def driver(server: Server) -> None:
        key = ApiKey.FIND_COORDINATOR
        for kind, code in (
            (2, ErrorCode.INVALID_REQUEST),
            (7, ErrorCode.INVALID_REQUEST),
        ):
            one = await server.ask(key, 3, FindCoordinatorRequest(key="a", key_type=kind))
            assert one.error_code is code
            many = FindCoordinatorRequest(key_type=kind, coordinator_keys=("a",))
            assert (await server.ask(key, 6, many)).coordinators[0].error_code is code
        share = "group:AAAAAAAAAAAAAAAAAAAAAA:0"
        for version, code in (
            (5, ErrorCode.INVALID_REQUEST),
            (6, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ):
            many = FindCoordinatorRequest(key_type=2, coordinator_keys=(share,))
            assert (await server.ask(key, version, many)).coordinators[0].error_code is code
        assert server.created == []

    serve(driver)


def test_refused_join_encodes_the_missing_protocol_by_version() -> None:
    async def driver(server: Server) -> None:
        for version, name in ((0, ""), (6, ""), (7, None), (9, None)):
            response = await server.ask(ApiKey.JOIN_GROUP, version, join_request("stranger"))
            assert response.error_code is ErrorCode.UNKNOWN_MEMBER_ID
            assert (response.protocol_name, response.member_id) == (name, "stranger")

    serve(driver)


def test_version_0_uses_the_session_timeout_for_rebalances() -> None:
    async def driver(server: Server) -> None:
        joined = await server.ask(ApiKey.JOIN_GROUP, 0, join_request(session_timeout_ms=7000))
        assert joined.generation_id == 1
        members = server.node.groups.runner_of("g").shard.groups["g"].members
        assert members[joined.member_id].rebalance_timeout_ms == 7000

    serve(driver)


def test_sync_must_name_its_protocol_from_version_5_on() -> None:
    async def driver(server: Server) -> None:
        request = SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=())
        newer = await server.ask(ApiKey.SYNC_GROUP, 5, request)
        assert newer.error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        older = await server.ask(ApiKey.SYNC_GROUP, 4, request)
        assert older.error_code is ErrorCode.UNKNOWN_MEMBER_ID

    serve(driver)


def test_heartbeats_succeed_while_the_group_is_loading() -> None:
    async def driver(server: Server) -> None:
        server.node.groups.resign(PartitionIndex(0))
        server.node.groups.elect(PartitionIndex(0), server.node.log)
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        assert (await server.ask(ApiKey.HEARTBEAT, 4, beat)).error_code is NONE
        request = SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=())
        synced = await server.ask(ApiKey.SYNC_GROUP, 4, request)
        assert synced.error_code is ErrorCode.REBALANCE_IN_PROGRESS
        joined = await server.ask(ApiKey.JOIN_GROUP, 9, join_request())
        assert joined.error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    serve(driver)


def test_older_versions_leave_with_one_member() -> None:
    async def driver(server: Server) -> None:
        joined = await server.ask(ApiKey.JOIN_GROUP, 3, join_request())
        stranger = LeaveGroupRequest(group_id="g", member_id="stranger")
        left = await server.ask(ApiKey.LEAVE_GROUP, 2, stranger)
        assert left.error_code is ErrorCode.UNKNOWN_MEMBER_ID
        both = LeaveGroupRequest(
            group_id="g",
            members=(MemberIdentity(member_id="x"), MemberIdentity(member_id=joined.member_id)),
        )
        left = await server.ask(ApiKey.LEAVE_GROUP, 5, both)
        assert left.error_code is NONE
        assert [one.error_code for one in left.members] == [ErrorCode.UNKNOWN_MEMBER_ID, NONE]

    serve(driver)


def test_unknown_partitions_are_refused_one_by_one_and_first() -> None:
    async def driver(server: Server) -> None:
        request = commit_request(
            commit_topic(0, name="strange"), commit_topic(0, 9, 1, name="orders")
        )
        response = await server.ask(ApiKey.OFFSET_COMMIT, 8, request)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes(response) == [
            ("strange", [(0, unknown)]),
            ("orders", [(9, unknown), (0, NONE), (1, NONE)]),
        ]

    serve(driver)


def test_offsets_are_committed_and_fetched_by_topic_id() -> None:
    async def driver(server: Server) -> None:
        request = commit_request(
            commit_topic(1, topic_id=ORDERS), commit_topic(0, topic_id=STRANGE)
        )
        response = await server.ask(ApiKey.OFFSET_COMMIT, 10, request)
        assert codes(response) == [
            (STRANGE, [(0, ErrorCode.UNKNOWN_TOPIC_ID)]),
            (ORDERS, [(1, NONE)]),
        ]
        wanted = (
            OffsetFetchRequestTopics(topic_id=STRANGE, partition_indexes=(0,)),
            OffsetFetchRequestTopics(topic_id=ORDERS, partition_indexes=(0, 1)),
        )
        groups = (
            OffsetFetchRequestGroup(group_id="g", topics=wanted),
            OffsetFetchRequestGroup(group_id="g", topics=None),
        )
        for is_stable in (False, True):
            fetch = OffsetFetchRequest(groups=groups, require_stable=is_stable)
            some, everything = (await server.ask(ApiKey.OFFSET_FETCH, 10, fetch)).groups
            assert codes(some) == [
                (ORDERS, [(0, NONE), (1, NONE)]),
                (STRANGE, [(0, ErrorCode.UNKNOWN_TOPIC_ID)]),
            ]
            assert [p.committed_offset for p in some.topics[0].partitions] == [-1, 11]
            assert [one.topic_id for one in everything.topics] == [ORDERS]
        server.metadata.current = image_of(topic("orders", STRANGE, 2))
        by_name = OffsetFetchRequest(
            group_id="g",
            topics=(OffsetFetchRequestTopic(name="orders", partition_indexes=(1,)),),
        )
        renewed = await server.ask(ApiKey.OFFSET_FETCH, 7, by_name)
        assert renewed.topics[0].partitions[0].committed_offset == -1

    serve(driver)


def test_unknown_group_has_no_committed_offsets() -> None:
    async def driver(server: Server) -> None:
        some = (OffsetFetchRequestTopic(name="orders", partition_indexes=(0,)),)
        for version in (1, 2, 7):
            fetch = OffsetFetchRequest(group_id="unknown", topics=some)
            response = await server.ask(ApiKey.OFFSET_FETCH, version, fetch)
            part = response.topics[0].partitions[0]
            assert (part.committed_offset, part.metadata, part.error_code) == (-1, "", NONE)
        everything = OffsetFetchRequest(group_id="unknown", topics=None)
        assert (await server.ask(ApiKey.OFFSET_FETCH, 2, everything)).topics == ()

    serve(driver)


def test_group_level_errors_are_encoded_by_version() -> None:
    async def driver(server: Server) -> None:
        server.node.groups.resign(PartitionIndex(0))
        wrong = ErrorCode.NOT_COORDINATOR
        some = (OffsetFetchRequestTopic(name="orders", partition_indexes=(0, 1)),)
        fetch = OffsetFetchRequest(group_id="g", topics=some)
        for version in (1, 3, 7):
            older = await server.ask(ApiKey.OFFSET_FETCH, version, fetch)
            rows = [(p.committed_offset, p.error_code) for p in older.topics[0].partitions]
            assert rows == [(-1, wrong), (-1, wrong)], "aiokafka looks only at the partitions"
            assert older.error_code is (NONE if version == 1 else wrong)
        all_topics = OffsetFetchRequest(group_id="g", topics=None)
        everything = await server.ask(ApiKey.OFFSET_FETCH, 7, all_topics)
        assert (everything.error_code, everything.topics) == (wrong, ())
        groups = (OffsetFetchRequestGroup(group_id="g", topics=None),)
        newer = await server.ask(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=groups))
        assert newer.groups[0].error_code is wrong
        request = commit_request(commit_topic(0, 5, name="orders"))
        refused = await server.ask(ApiKey.OFFSET_COMMIT, 8, request)
        assert codes(refused) == [
            ("orders", [(5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (0, wrong)])
        ]
        deleted = await server.ask(
            ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=("g",))
        )
        assert deleted.results[0].error_code is wrong

    serve(driver)


def test_groups_are_listed_described_and_deleted() -> None:
    async def driver(server: Server) -> None:
        await server.ask(
            ApiKey.OFFSET_COMMIT, 8, commit_request(commit_topic(0, name="orders"), group="simple")
        )
        await server.ask(ApiKey.JOIN_GROUP, 3, join_request(group="active"))
        listed = await server.ask(ApiKey.LIST_GROUPS, 5, ListGroupsRequest())
        assert [(one.group_id, one.group_state) for one in listed.groups] == [
            ("simple", "Empty"),
            ("active", "CompletingRebalance"),
        ]
        empty = ListGroupsRequest(states_filter=("EMPTY",), types_filter=("Classic",))
        listed = await server.ask(ApiKey.LIST_GROUPS, 5, empty)
        assert [one.group_id for one in listed.groups] == ["simple"]
        describe = DescribeGroupsRequest(
            groups=("active", "unknown"), include_authorized_operations=True
        )
        active, unknown = (await server.ask(ApiKey.DESCRIBE_GROUPS, 6, describe)).groups
        assert (active.error_code, active.authorized_operations) == (NONE, 3400)
        assert active.members[0].client_host == "/127.0.0.1"
        assert unknown.error_code is ErrorCode.GROUP_ID_NOT_FOUND
        assert unknown.error_message == "Group unknown not found."
        assert unknown.authorized_operations == -(2**31)
        delete = DeleteGroupsRequest(groups_names=("simple", "active", "unknown", "simple"))
        deleted = await server.ask(ApiKey.DELETE_GROUPS, 2, delete)
        assert [(one.group_id, one.error_code) for one in deleted.results] == [
            ("simple", NONE),
            ("active", ErrorCode.NON_EMPTY_GROUP),
            ("unknown", ErrorCode.GROUP_ID_NOT_FOUND),
        ]

    serve(driver)


def test_offsets_are_deleted_where_the_partition_exists() -> None:
    async def driver(server: Server) -> None:
        await server.ask(ApiKey.OFFSET_COMMIT, 8, commit_request(commit_topic(0, 1, name="orders")))
        wanted = OffsetDeleteRequest(
            group_id="g",
            topics=(
                OffsetDeleteRequestTopic(
                    name="orders",
                    partitions=(
                        OffsetDeleteRequestPartition(partition_index=0),
                        OffsetDeleteRequestPartition(partition_index=5),
                    ),
                ),
            ),
        )
        response = await server.ask(ApiKey.OFFSET_DELETE, 0, wanted)
        assert [(p.partition_index, p.error_code) for p in response.topics[0].partitions] == [
            (5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (0, NONE),
        ]
        left = server.node.groups.fetch_offsets("g", None).topics[0].partitions
        assert [one.partition_index for one in left] == [1]
        unknown = OffsetDeleteRequest(group_id="unknown", topics=())
        refused = await server.ask(ApiKey.OFFSET_DELETE, 0, unknown)
        assert refused.error_code is ErrorCode.GROUP_ID_NOT_FOUND

    serve(driver)
