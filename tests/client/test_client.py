"""The client agrees on versions, finds leaders and coordinators, and retries within limits."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from riverrun.client.connection import Connection, UnsupportedApi
from riverrun.client.partitions import fetch, produce
from riverrun.client.pool import ClusterUnreachable, ConnectionPool, parse_bootstrap
from riverrun.client.retry import RetryPolicy
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.apis import APIS, ApiKey
from riverrun.wire.codec import encode_request
from riverrun.wire.fetch import FetchResult, encode_fetch_response, parse_fetch
from riverrun.wire.messages.heartbeat_request import HeartbeatRequest
from riverrun.wire.messages.heartbeat_response import HeartbeatResponse
from riverrun.wire.messages.metadata_request import MetadataRequest

from .fakes import TOPIC_ID, FakeCluster, header_only_batch

QUICK = RetryPolicy(tries_max=4, total_s_max=15.0, backoff_s=0.001, backoff_s_max=0.002)
HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


def _error_of(response: HeartbeatResponse) -> ErrorCode:
    return response.error_code


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_newest_common_version_is_used() -> None:
    async def scenario() -> None:
        async with FakeCluster() as cluster:
            node = cluster.nodes[1]
            node.versions[ApiKey.METADATA] = replace(APIS[ApiKey.METADATA], max_version=7)
            node.versions[ApiKey.FETCH] = replace(APIS[ApiKey.FETCH], max_version=99)
            node.versions[ApiKey.HEARTBEAT] = replace(
                APIS[ApiKey.HEARTBEAT], min_version=50, max_version=60
            )
            del node.versions[ApiKey.JOIN_GROUP]
            connection = await Connection.connect("127.0.0.1", node.port)
            assert connection.version_of(ApiKey.METADATA) == 7
            assert connection.version_of(ApiKey.FETCH) == 18
            assert connection.version_of(ApiKey.FETCH, at_most=12) == 12
            for key in (ApiKey.HEARTBEAT, ApiKey.JOIN_GROUP):
                with pytest.raises(UnsupportedApi):
                    connection.version_of(key)
            response = await connection.request(ApiKey.METADATA, MetadataRequest(topics=None))
            assert response.cluster_id == "c"
            connection.close()
            await connection.wait_closed()

    run(scenario)


def test_api_versions_falls_back_to_the_brokers_version() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for wanted in (4, 2):
            size = int.from_bytes(await reader.readexactly(4), "big")
            request = await reader.readexactly(size)
            key, version, correlation_id = struct.unpack_from(">hhi", request)
            assert (key, version) == (18, wanted)
            body = struct.pack(">hi", 35, 1) + struct.pack(">hhh", 18, 0, 2)
            if version == 2:
                body = struct.pack(">hi", 0, 1) + struct.pack(">hhh", 3, 0, 5) + bytes(4)
            writer.write(struct.pack(">ii", len(body) + 4, correlation_id) + body)
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connection = await Connection.connect("127.0.0.1", port)
        assert connection.version_of(ApiKey.METADATA) == 5
        connection.close()
        server.close()

    run(scenario)


def test_pipelined_requests_get_their_own_responses() -> None:
    async def scenario() -> None:
        async def handle(_: Any, __: Any, request: HeartbeatRequest) -> HeartbeatResponse:
            return HeartbeatResponse(error_code=ErrorCode(request.generation_id))

        modules = {ApiKey.HEARTBEAT: SimpleNamespace(handle=handle)}
        async with FakeCluster(modules=modules) as cluster:
            connection = await Connection.connect("127.0.0.1", cluster.nodes[1].port)
            requests = [
                connection.request(ApiKey.HEARTBEAT, replace(HEARTBEAT, generation_id=i))
                for i in range(100)
            ]
            responses = await asyncio.gather(*requests)
            assert [int(response.error_code) for response in responses] == list(range(100))
            connection.close()

    run(scenario)


def test_request_timeout_closes_the_connection() -> None:
    async def scenario() -> None:
        async def never(*_: Any) -> None:
            await asyncio.Event().wait()

        modules = {ApiKey.HEARTBEAT: SimpleNamespace(handle=never)}
        async with FakeCluster(modules=modules) as cluster:
            connection = await Connection.connect("127.0.0.1", cluster.nodes[1].port)
            with pytest.raises(TimeoutError, match=r"did not answer Heartbeat within 0\.01 s"):
                await connection.request(ApiKey.HEARTBEAT, HEARTBEAT, timeout_s=0.01)
            assert connection.is_closed
            with pytest.raises(ConnectionResetError):
                await connection.request(ApiKey.HEARTBEAT, HEARTBEAT)

    run(scenario)


def test_request_in_parts_is_one_request_with_the_same_timeout() -> None:
    async def scenario() -> None:
        responses = [HeartbeatResponse(error_code=ErrorCode.NONE)]

        async def once(*_: Any) -> HeartbeatResponse:
            if not responses:
                await asyncio.Event().wait()
            return responses.pop()

        modules = {ApiKey.HEARTBEAT: SimpleNamespace(handle=once)}
        async with FakeCluster(modules=modules) as cluster:
            connection = await Connection.connect("127.0.0.1", cluster.nodes[1].port, timeout_s=0.5)
            version = connection.version_of(ApiKey.HEARTBEAT)
            whole = encode_request(ApiKey.HEARTBEAT, version, HEARTBEAT)
            parts = (whole[:3], memoryview(whole)[3:], b"")
            response = await connection.request_parts(ApiKey.HEARTBEAT, version, parts)
            assert response.error_code is ErrorCode.NONE
            with pytest.raises(TimeoutError, match=r"did not answer Heartbeat within 0\.5 s"):
                await connection.request_parts(ApiKey.HEARTBEAT, version, parts)
            assert connection.is_closed
            with pytest.raises(ConnectionResetError):
                await connection.request_parts(ApiKey.HEARTBEAT, version, parts)

    run(scenario)


def test_peer_that_stops_reading_is_aborted_and_gets_no_late_requests() -> None:
    """A paused node, for example: other requests on the connection wait for buffer space."""
    part = bytes(32 * 1024 * 1024)

    async def scenario() -> None:
        may_read, ended = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            size = int.from_bytes(await reader.readexactly(4), "big")
            request = await reader.readexactly(size)
            body = struct.pack(">hBhhhBiB", 0, 2, 0, 0, 9, 0, 0, 0)  # Produce 0 to 9
            writer.write(struct.pack(">i", len(body) + 4) + request[4:8] + body)
            await may_read.wait()
            received = 0
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(1024 * 1024):
                    received += len(data)
            writer.close()
            ended.set_result(received)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connection = await Connection.connect("127.0.0.1", port, timeout_s=0.2)
        requests = [connection.request_parts(ApiKey.PRODUCE, 9, (part, part)) for _ in range(3)]
        sent = connection.send_parts(ApiKey.PRODUCE, 9, (part, part))
        outcomes = await asyncio.gather(*requests, sent, return_exceptions=True)
        assert all(isinstance(outcome, OSError) for outcome in outcomes), outcomes
        await connection.wait_closed()
        may_read.set()
        assert await ended < len(part), "unsent bytes are not sent later"
        server.close()

    run(scenario)


@pytest.mark.parametrize("reply", [b"\xff\xff\xff\xff", b"\0\0\0\2xx", b"\x7f\xff\xff\xff", b""])
def test_malformed_response_raises_oserror(reply: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(reply)
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
            await Connection.connect("127.0.0.1", port, connect_timeout_s=5)
        server.close()

    run(scenario)


def test_bootstrap_addresses_are_parsed_or_rejected() -> None:
    assert parse_bootstrap("a:1, [::1]:9092") == [("a", 1), ("::1", 9092)]
    for text in ("", "a", "a:", ":9", "a:x", "a:0", "a:70000", "a:1,,b:2"):
        with pytest.raises(ValueError, match="is not an address"):
            parse_bootstrap(text)


def test_dead_bootstrap_node_is_skipped() -> None:
    async def scenario() -> None:
        async with FakeCluster(3) as cluster:
            await cluster.nodes[1].listener.stop()
            for _ in range(5):
                async with ConnectionPool(cluster.bootstrap()[:2], retry=QUICK) as pool:
                    assert (await pool.metadata(["t"])).cluster_id == "c"
                    assert sorted(pool.cluster.nodes) == [1, 2, 3]

    run(scenario)


def test_unreachable_cluster_is_reported_with_its_addresses() -> None:
    async def scenario() -> None:
        cluster = FakeCluster(2)
        async with cluster:
            bootstrap = cluster.bootstrap()
        async with ConnectionPool(bootstrap, retry=QUICK) as pool:
            with pytest.raises(ClusterUnreachable, match="connection refused") as error:
                await pool.request(ApiKey.METADATA, MetadataRequest(topics=None))
            assert all(f"127.0.0.1:{port}" in str(error.value) for _, port in bootstrap)

    run(scenario)


def test_request_that_is_not_repeatable_is_sent_once() -> None:
    async def scenario() -> None:
        seen = []

        def broken(*_: Any) -> None:
            seen.append("request")
            raise AssertionError("the test breaks this connection")

        modules = {ApiKey.HEARTBEAT: SimpleNamespace(handle=broken)}
        async with (
            FakeCluster(modules=modules) as cluster,
            ConnectionPool(cluster.bootstrap(), retry=QUICK) as pool,
        ):
            with pytest.raises(ConnectionResetError):
                await pool.request(ApiKey.HEARTBEAT, HEARTBEAT, is_repeatable=False)
            assert len(seen) == 1
            with pytest.raises(ConnectionResetError):
                await pool.request(ApiKey.HEARTBEAT, HEARTBEAT)
            assert len(seen) == 1 + QUICK.tries_max

    run(scenario)


def test_produce_goes_to_the_leader_and_to_its_successor() -> None:
    async def scenario() -> None:
        async with (
            FakeCluster(3) as cluster,
            ConnectionPool(cluster.bootstrap(), retry=QUICK) as pool,
        ):
            batch = header_only_batch(5)
            assert (await produce(pool, "t", 0, batch)).base_offset == 0
            assert pool.cluster.topic_id("t") == TOPIC_ID
            cluster.leader = 3
            assert (await produce(pool, "t", 0, batch)).base_offset == 0
            assert cluster.nodes[3].batches == [batch]
            assert cluster.nodes[1].batches == [batch]
            assert ApiKey.PRODUCE not in cluster.nodes[2].received

    run(scenario)


def test_only_retriable_errors_are_retried() -> None:
    async def scenario() -> None:
        async with (
            FakeCluster() as cluster,
            ConnectionPool(cluster.bootstrap(), retry=QUICK) as pool,
        ):
            node, batch = cluster.nodes[1], header_only_batch(5)
            node.produce_codes = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT]
            assert (await produce(pool, "t", 0, batch)).base_offset == 0
            node.produce_codes = [ErrorCode.MESSAGE_TOO_LARGE]
            with pytest.raises(KafkaError) as error:
                await produce(pool, "t", 0, batch)
            assert error.value.code is ErrorCode.MESSAGE_TOO_LARGE
            node.produce_codes = [ErrorCode.NOT_ENOUGH_REPLICAS] * 9
            with pytest.raises(KafkaError) as error:
                await produce(pool, "t", 0, batch)
            assert error.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
            assert len(node.produce_codes) == 9 - QUICK.tries_max

    run(scenario)


def test_batch_without_a_producer_id_is_not_sent_twice_after_a_lost_response() -> None:
    async def scenario() -> None:
        async with (
            FakeCluster() as cluster,
            ConnectionPool(cluster.bootstrap(), retry=QUICK) as pool,
        ):
            node = cluster.nodes[1]
            for code in (ErrorCode.REQUEST_TIMED_OUT, None):
                node.received.clear()
                node.produce_codes = [code]
                with pytest.raises(KafkaError):
                    await produce(pool, "t", 0, header_only_batch(-1))
                assert node.received.count(ApiKey.PRODUCE) == 1
            node.produce_codes = [None]
            assert (await produce(pool, "t", 0, header_only_batch(5))).base_offset == 0

    run(scenario)


def test_acks_zero_has_no_response() -> None:
    async def scenario() -> None:
        async with (
            FakeCluster() as cluster,
            ConnectionPool(cluster.bootstrap(), retry=QUICK) as pool,
        ):
            await produce(pool, "t", 0, header_only_batch(-1), acks=0)
            assert (await produce(pool, "t", 0, header_only_batch(-1))).base_offset == 1

    run(scenario)


def test_unknown_topic_has_fewer_attempts() -> None:
    async def scenario() -> None:
        policy = replace(QUICK, tries_max=1000)
        async with (
            FakeCluster() as cluster,
            ConnectionPool(cluster.bootstrap(), retry=policy) as pool,
        ):
            with pytest.raises(KafkaError, match="topic x") as error:
                await produce(pool, "x", 0, header_only_batch(5))
            assert error.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert cluster.nodes[1].received.count(ApiKey.METADATA) == 3
            with pytest.raises(KafkaError, match="no partition 9"):
                await produce(pool, "t", 9, header_only_batch(5))

    run(scenario)


def test_group_requests_go_to_the_coordinator_and_to_its_successor() -> None:
    async def scenario() -> None:
        cluster = FakeCluster(2)
        seen = []

        for number, node in cluster.nodes.items():

            def handle(_: Any, __: Any, ___: Any, number: int = number) -> HeartbeatResponse:
                seen.append(number)
                is_here = number == cluster.coordinator
                code = ErrorCode.NONE if is_here else ErrorCode.NOT_COORDINATOR
                return HeartbeatResponse(error_code=code)

            node.modules[ApiKey.HEARTBEAT] = SimpleNamespace(handle=handle)
        async with cluster, ConnectionPool(cluster.bootstrap(), retry=QUICK) as pool:
            for coordinator in (1, 2, 2):
                cluster.coordinator = coordinator
                response = await pool.group_request("g", ApiKey.HEARTBEAT, HEARTBEAT, _error_of)
                assert response.error_code is ErrorCode.NONE
            assert seen == [1, 1, 2, 2]

    run(scenario)


def test_fetch_goes_to_the_leader() -> None:
    def handle_frame(_: Any, context: Any, buffer: memoryview, at: int) -> Any:
        (wanted,) = parse_fetch(buffer, at, context.api_version).partitions
        if wanted.offset > 100:
            result = FetchResult(wanted.topic, 0, ErrorCode.OFFSET_OUT_OF_RANGE)
        else:
            result = FetchResult(wanted.topic, 0, 0, 9, 8, 7, [(1, 2)], b"records")
        return encode_fetch_response(context.api_version, [result])

    async def scenario() -> None:
        modules = {
            ApiKey.FETCH: SimpleNamespace(handle_frame=handle_frame),
        }
        async with (
            FakeCluster(modules=modules) as cluster,
            ConnectionPool(cluster.bootstrap(), retry=QUICK) as pool,
        ):
            fetched = await fetch(pool, "t", 0, 5)
            assert (fetched.records, fetched.high_watermark) == (b"records", 9)
            assert (fetched.last_stable_offset, fetched.log_start_offset) == (8, 7)
            assert fetched.aborted == ((1, 2),)
            with pytest.raises(KafkaError) as error:
                await fetch(pool, "t", 0, 500)
            assert error.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

    run(scenario)


def test_leader_that_left_the_cluster_is_looked_up_again() -> None:
    """Metadata of a topic may be older than that of the nodes."""

    async def scenario() -> None:
        async with (
            FakeCluster(2) as cluster,
            ConnectionPool(cluster.bootstrap()[:1], retry=QUICK) as pool,
        ):
            cluster.leader = 2
            assert await pool.leader("t", 0) == 2
            del pool.cluster.nodes[2]
            gone, cluster.leader = cluster.nodes.pop(2), 1
            assert (await produce(pool, "t", 0, header_only_batch(5))).base_offset == 0
            await gone.listener.stop()

    run(scenario)


def test_coordinator_that_left_the_cluster_is_looked_up_again() -> None:
    async def scenario() -> None:
        def handle(*_: Any) -> HeartbeatResponse:
            return HeartbeatResponse(error_code=ErrorCode.NONE)

        modules = {ApiKey.HEARTBEAT: SimpleNamespace(handle=handle)}
        async with (
            FakeCluster(2, modules) as cluster,
            ConnectionPool(cluster.bootstrap()[:1], retry=QUICK) as pool,
        ):
            cluster.coordinator = 2
            assert await pool.coordinator("g") == 2
            gone, cluster.coordinator = cluster.nodes.pop(2), 1
            await pool.metadata(())
            await pool.group_request("g", ApiKey.HEARTBEAT, HEARTBEAT, _error_of)
            assert await pool.coordinator("g") == 1
            await gone.listener.stop()

    run(scenario)


def test_switch_node_uses_another_reachable_node() -> None:
    async def scenario() -> None:
        async with (
            FakeCluster(3) as cluster,
            ConnectionPool(cluster.bootstrap()[:1], retry=QUICK) as pool,
        ):
            await cluster.nodes[2].listener.stop()
            for node in (1, 3, 1):
                before = len(cluster.nodes[node].received)
                await pool.metadata(["t"])
                assert ApiKey.METADATA in cluster.nodes[node].received[before:]
                await pool.switch_node()

    run(scenario)


def test_back_off_grows_to_its_limit() -> None:
    backoff = RetryPolicy(backoff_s=0.1, backoff_s_max=1.0).backoff
    delays = [backoff.exact(tries) for tries in range(1, 7)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
