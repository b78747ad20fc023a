"""The controller at work: in turn, durable first, and no id twice."""

import asyncio

import pytest

from riverrun.cluster.outcome import Outcome
from riverrun.cluster.runner import ControllerRunner
from riverrun.metadata.image import Image
from riverrun.metadata.records import PartitionChangeRecord, ProducerIdsRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, TopicName
from riverrun.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from tests.cluster.fakes import MemoryLog, make_controller, registration
from tests.cluster.test_partitions import image_of

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


def test_no_producer_id_is_given_twice_even_after_a_crash() -> None:
    async def scene() -> None:
        log = MemoryLog()
        given: list[int] = []
        for count in (1, 1500, 7):
            runner = make_runner(log)  # whatever the one before had in memory is lost
            given += await asyncio.gather(*(runner.next_producer_id(NODE) for _ in range(count)))
        assert len(set(given)) == len(given)
        assert given[:3] == [0, 1000, 1001]

    asyncio.run(scene())


def test_a_block_is_stored_before_its_first_id_is_given() -> None:
    async def scene() -> None:
        log = MemoryLog()
        log.gate = asyncio.Event()
        asked = asyncio.ensure_future(make_runner(log).next_producer_id(NODE))
        await settle()
        assert not asked.done()
        log.gate.set()
        given = await asked
        ((record,),) = log.appended
        assert isinstance(record, ProducerIdsRecord)
        assert (record.broker_id, record.next_producer_id) == (1, given + 1000)
        assert record.broker_epoch == log.current.brokers[NODE].epoch

    asyncio.run(scene())


def test_a_failed_block_gives_no_id() -> None:
    async def scene() -> None:
        log = MemoryLog()
        runner = make_runner(log)
        log.error = OSError(28, "No space left on device")
        with pytest.raises(KafkaError):
            await runner.next_producer_id(NODE)
        log.error = None
        assert await runner.next_producer_id(NODE) == 0

    asyncio.run(scene())


def test_a_node_registers_before_it_serves() -> None:
    async def scene() -> None:
        log = MemoryLog(image_of("t"))
        runner = make_runner(log)
        await runner.activate()
        epoch = await runner.register_broker(registration(1, incarnation=2))
        assert log.current.brokers[NODE].epoch == epoch
        changes = [r for r in log.appended[-1] if isinstance(r, PartitionChangeRecord)]
        assert len(changes) == 2

    asyncio.run(scene())
