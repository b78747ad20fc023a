"""The controller at work: each judgement by the newest image, each answer once it is durable."""

import asyncio

import pytest

from riverrun.cluster.active_controller import ControllerRunner
from riverrun.cluster.outcome import Outcome
from riverrun.metadata.image import Image
from riverrun.metadata.records import ProducerIdsRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, TopicName
from riverrun.wire.messages.allocate_producer_ids_request import AllocateProducerIdsRequest
from riverrun.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from tests.cluster.fakes import MemoryLog, make_controller
from tests.cluster.messages import heartbeat_request

NODE = NodeId(1)


def request(name: str) -> CreateTopicsRequest:
    one = CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=(), configs=()
    )
    return CreateTopicsRequest(topics=(one,))


def make_runner(log: MemoryLog) -> ControllerRunner:
    return ControllerRunner(log, make_controller())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_the_answer_waits_until_the_records_are_stored() -> None:
    async def scene() -> None:
        log = MemoryLog()
        log.gate = asyncio.Event()
        asked = asyncio.ensure_future(make_runner(log).create_topics(request("t")))
        await settle()
        assert not asked.done()
        log.gate.set()
        answer = await asked
        assert answer.topics[0].error_code is ErrorCode.NONE
        assert TopicName("t") in log.current.topics_by_name

    asyncio.run(scene())


def test_of_two_requests_for_one_name_the_second_is_refused() -> None:
    async def scene() -> None:
        log = MemoryLog()
        log.gate = asyncio.Event()
        runner = make_runner(log)
        both = [asyncio.ensure_future(runner.create_topics(request("t"))) for _ in range(2)]
        await settle()
        log.gate.set()
        codes = [(await one).topics[0].error_code for one in both]
        assert codes == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]

    asyncio.run(scene())


def test_a_client_that_goes_away_does_not_let_the_next_overtake() -> None:
    async def scene() -> None:
        log = MemoryLog()
        log.gate = asyncio.Event()
        runner = make_runner(log)
        first = asyncio.ensure_future(runner.create_topics(request("t")))
        second = asyncio.ensure_future(runner.create_topics(request("t")))
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


def test_a_full_disk_is_an_error_and_changes_nothing() -> None:
    async def scene() -> None:
        log = MemoryLog()
        log.error = OSError(28, "No space left on device")
        runner = make_runner(log)
        with pytest.raises(KafkaError) as refused:
            await runner.create_topics(request("t"))
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        log.error = None
        answer = await runner.create_topics(request("t"))
        assert answer.topics[0].error_code is ErrorCode.NONE

    asyncio.run(scene())


def test_a_judgement_that_fails_leaves_the_turn_to_the_next() -> None:
    async def scene() -> None:
        log = MemoryLog()
        runner = make_runner(log)

        def broken(image: Image) -> Outcome[None]:
            raise AssertionError("a bug")

        with pytest.raises(AssertionError):
            await runner.submit(broken)
        assert (await runner.create_topics(request("t"))).topics[0].error_code is ErrorCode.NONE
        assert runner.waiting == 0

    asyncio.run(scene())


def test_only_so_many_requests_may_wait() -> None:
    async def scene() -> None:
        log = MemoryLog()
        log.gate = asyncio.Event()
        runner = ControllerRunner(log, make_controller(), waiting_max=1)
        first = asyncio.ensure_future(runner.create_topics(request("t")))
        await settle()
        with pytest.raises(KafkaError) as refused:
            await runner.create_topics(request("u"))
        assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        log.gate.set()
        await first

    asyncio.run(scene())


def ids_wanted(log: MemoryLog) -> AllocateProducerIdsRequest:
    return AllocateProducerIdsRequest(broker_id=1, broker_epoch=log.newest.brokers[NODE].epoch)


def test_no_block_of_producer_ids_is_given_twice() -> None:
    async def scene() -> None:
        log = MemoryLog()
        given = []
        for count in (1, 3, 2):
            runner = make_runner(log)  # whatever the one before had in memory is lost
            asked = [runner.allocate_producer_ids(ids_wanted(log)) for _ in range(count)]
            given += [one.producer_id_start for one in await asyncio.gather(*asked)]
        assert given == [0, 1000, 2000, 3000, 4000, 5000]

    asyncio.run(scene())


def test_a_block_is_stored_before_it_is_given() -> None:
    async def scene() -> None:
        log = MemoryLog()
        log.gate = asyncio.Event()
        asked = asyncio.ensure_future(make_runner(log).allocate_producer_ids(ids_wanted(log)))
        await settle()
        assert not asked.done()
        log.gate.set()
        given = await asked
        ((record,),) = log.appended
        assert isinstance(record, ProducerIdsRecord)
        assert (record.broker_id, record.next_producer_id) == (1, given.producer_id_start + 1000)
        assert record.broker_epoch == log.current.brokers[NODE].epoch

    asyncio.run(scene())


def test_a_block_that_cannot_be_stored_is_not_given() -> None:
    async def scene() -> None:
        log = MemoryLog()
        runner = make_runner(log)
        log.error = OSError(28, "No space left on device")
        with pytest.raises(KafkaError) as refused:
            await runner.allocate_producer_ids(ids_wanted(log))
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        log.error = None
        answer = await runner.allocate_producer_ids(ids_wanted(log))
        assert (answer.producer_id_start, answer.producer_id_len) == (0, 1000)

    asyncio.run(scene())


def test_only_registered_brokers_get_producer_ids() -> None:
    async def scene() -> None:
        log = MemoryLog()
        request = AllocateProducerIdsRequest(broker_id=1, broker_epoch=1)
        with pytest.raises(KafkaError) as refused:
            await make_runner(log).allocate_producer_ids(request)
        assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH

    asyncio.run(scene())


def test_nodes_are_heard_when_clients_ask_too_much() -> None:
    async def scene() -> None:
        log = MemoryLog()
        log.gate = asyncio.Event()
        runner = ControllerRunner(log, make_controller(), waiting_max=1)
        first = asyncio.ensure_future(runner.create_topics(request("t")))
        await settle()
        beat = asyncio.ensure_future(runner.heartbeat(heartbeat_request(log.newest, 1)))
        await settle()
        log.gate.set()
        assert (await beat).error_code is ErrorCode.NONE
        await first

    asyncio.run(scene())
