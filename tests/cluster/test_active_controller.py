"""ActiveController: decides against the newest image and responds on commit."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from riverrun.cluster.active_controller import ActiveController
from riverrun.cluster.decision import Decision
from riverrun.cluster.producer_ids import allocate_producer_ids
from riverrun.cluster.topics.create_topics import create_topics
from riverrun.metadata.image import Image
from riverrun.metadata.records import ProducerIdsRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, TopicName
from riverrun.wire.messages.allocate_producer_ids_request import AllocateProducerIdsRequest
from riverrun.wire.messages.allocate_producer_ids_response import AllocateProducerIdsResponse
from riverrun.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from riverrun.wire.messages.create_topics_response import CreateTopicsResponse
from tests.cluster.fakes import MemoryLog, SeededRandomness, make_configs
from tests.cluster.messages import heartbeat_request

NODE = NodeId(1)


def request(name: str) -> CreateTopicsRequest:
    one = CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=(), configs=()
    )
    return CreateTopicsRequest(topics=(one,))


def create(controller: ActiveController, name: str) -> Coroutine[Any, Any, CreateTopicsResponse]:
    configs, randomness = make_configs(), SeededRandomness()
    return controller.submit(lambda image: create_topics(configs, image, request(name), randomness))


def allocate(
    controller: ActiveController, request: AllocateProducerIdsRequest
) -> Coroutine[Any, Any, AllocateProducerIdsResponse]:
    return controller.submit(lambda image: allocate_producer_ids(image, request))


def make_controller(log: MemoryLog) -> ActiveController:
    return ActiveController(log, make_configs())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_response_waits_until_its_records_are_committed() -> None:
    async def scene() -> None:
        log = MemoryLog()
        log.gate = asyncio.Event()
        pending = asyncio.ensure_future(create(make_controller(log), "t"))
        await settle()
        assert not pending.done()
        log.gate.set()
        response = await pending
        assert response.topics[0].error_code is ErrorCode.NONE
        assert TopicName("t") in log.current.topics_by_name

    asyncio.run(scene())


def test_second_of_two_requests_for_one_topic_name_is_refused() -> None:
    async def scene() -> None:
        log = MemoryLog()
        log.gate = asyncio.Event()
        controller = make_controller(log)
        both = [asyncio.ensure_future(create(controller, "t")) for _ in range(2)]
        await settle()
        log.gate.set()
        codes = [(await one).topics[0].error_code for one in both]
        assert codes == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]

    asyncio.run(scene())


def test_cancelled_request_does_not_release_later_responses_early() -> None:
    async def scene() -> None:
        log = MemoryLog()
        log.gate = asyncio.Event()
        controller = make_controller(log)
        first = asyncio.ensure_future(create(controller, "t"))
        second = asyncio.ensure_future(create(controller, "t"))
        await settle()
        first.cancel()
        await settle()
        assert not second.done()
        log.gate.set()
        assert (await second).topics[0].error_code is ErrorCode.TOPIC_ALREADY_EXISTS
        with pytest.raises(asyncio.CancelledError):
            await first
        assert len(log.appended) == 1

    asyncio.run(scene())


def test_full_disk_is_a_storage_error_and_changes_nothing() -> None:
    async def scene() -> None:
        log = MemoryLog()
        log.error = OSError(28, "No space left on device")
        controller = make_controller(log)
        with pytest.raises(KafkaError) as refused:
            await create(controller, "t")
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        log.error = None
        response = await create(controller, "t")
        assert response.topics[0].error_code is ErrorCode.NONE

    asyncio.run(scene())


def test_failed_decision_does_not_block_later_requests() -> None:
    async def scene() -> None:
        log = MemoryLog()
        controller = make_controller(log)

        def broken(image: Image) -> Decision[None]:
            raise AssertionError("a bug")

        with pytest.raises(AssertionError):
            await controller.submit(broken)
        assert (await create(controller, "t")).topics[0].error_code is ErrorCode.NONE
        assert controller.pending == 0

    asyncio.run(scene())


def test_number_of_pending_requests_is_limited() -> None:
    async def scene() -> None:
        log = MemoryLog()
        log.gate = asyncio.Event()
        controller = ActiveController(log, make_configs(), pending_max=1)
        first = asyncio.ensure_future(create(controller, "t"))
        await settle()
        with pytest.raises(KafkaError) as refused:
            await create(controller, "u")
        assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        log.gate.set()
        await first

    asyncio.run(scene())


def ids_wanted(log: MemoryLog) -> AllocateProducerIdsRequest:
    return AllocateProducerIdsRequest(broker_id=1, broker_epoch=log.newest.brokers[NODE].epoch)


def test_no_block_of_producer_ids_is_allocated_twice() -> None:
    async def scene() -> None:
        log = MemoryLog()
        given = []
        for count in (1, 3, 2):
            controller = make_controller(log)  # a new controller has no memory of the previous one
            pending = [allocate(controller, ids_wanted(log)) for _ in range(count)]
            given += [one.producer_id_start for one in await asyncio.gather(*pending)]
        assert given == [0, 1000, 2000, 3000, 4000, 5000]

    asyncio.run(scene())


def test_block_of_producer_ids_is_committed_before_the_response() -> None:
    async def scene() -> None:
        log = MemoryLog()
        log.gate = asyncio.Event()
        pending = asyncio.ensure_future(allocate(make_controller(log), ids_wanted(log)))
        await settle()
        assert not pending.done()
        log.gate.set()
        given = await pending
        ((record,),) = log.appended
        assert isinstance(record, ProducerIdsRecord)
        assert (record.broker_id, record.next_producer_id) == (1, given.producer_id_start + 1000)
        assert record.broker_epoch == log.current.brokers[NODE].epoch

    asyncio.run(scene())


def test_block_of_producer_ids_that_cannot_be_stored_is_not_allocated() -> None:
    async def scene() -> None:
        log = MemoryLog()
        controller = make_controller(log)
        log.error = OSError(28, "No space left on device")
        with pytest.raises(KafkaError) as refused:
            await allocate(controller, ids_wanted(log))
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        log.error = None
        response = await allocate(controller, ids_wanted(log))
        assert (response.producer_id_start, response.producer_id_len) == (0, 1000)

    asyncio.run(scene())


def test_only_registered_brokers_get_producer_ids() -> None:
    async def scene() -> None:
        log = MemoryLog()
        request = AllocateProducerIdsRequest(broker_id=1, broker_epoch=1)
        with pytest.raises(KafkaError) as refused:
            await allocate(make_controller(log), request)
        assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH

    asyncio.run(scene())


def test_requests_of_nodes_are_served_when_clients_exceed_the_limit() -> None:
    async def scene() -> None:
        log = MemoryLog()
        log.gate = asyncio.Event()
        controller = ActiveController(log, make_configs(), pending_max=1)
        first = asyncio.ensure_future(create(controller, "t"))
        await settle()
        beat = asyncio.ensure_future(controller.heartbeat(heartbeat_request(log.newest, 1)))
        await settle()
        log.gate.set()
        assert (await beat).error_code is ErrorCode.NONE
        await first

    asyncio.run(scene())
