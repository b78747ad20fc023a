"""Exactly-once delivery without Spark: tasks and drivers die at each step, on a real node.

Tasks, commits and aborts run here as in Spark, in one process. A driver that dies is one whose next
request is never sent.
"""

from collections import Counter
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pyspark_riverrun.cluster.link import BrokerLink, link_to
from pyspark_riverrun.delivery import driver as driver_module
from pyspark_riverrun.delivery.driver import DeliveryDriver, abort_strays
from pyspark_riverrun.delivery.log import DeliveryLog
from pyspark_riverrun.delivery.record import (
    Delivery,
    DeliveryFenced,
    DeliveryLost,
    DeliveryState,
    OpenTransaction,
    task_id,
)
from pyspark_riverrun.delivery.requests import (
    end_transaction,
    ongoing_transactions,
    open_transaction,
)
from pyspark_riverrun.options import WriteOptions, write_options
from pyspark_riverrun.writing.task import TaskCommit, TaskSlot, write_in_transaction
from pyspark_riverrun.writing.writer import BatchWriter, StreamWriter
from riverrun.client.pool import ConnectionPool
from riverrun.client.transactions import TRANSACTION_VERSION, TransactionalProducer
from riverrun.model.errors import ErrorCode
from riverrun.pipeline.topics import run_request
from riverrun.records.record import NewRecord
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.update_features_request import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
)
from tests.processes import serve, until
from tests.spark.read_committed import committed

pytestmark = pytest.mark.timeout(120)

TIMEOUT_MS = 60_000
PARTITIONS = 2
UPGRADE, SAFE_DOWNGRADE = 1, 2


class Died(Exception):
    """Stands for the end of a driver's process."""


@pytest.fixture(scope="module", params=[2, 1], ids=["version 2", "version 1"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A node with this transaction.version."""
    # Aborts of timed out transactions must not take ten seconds.
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    with serve(tmp_path_factory.mktemp("node"), settings) as server:
        use_transaction_version(server.bootstrap, request.param)
        yield server


def use_transaction_version(bootstrap: str, version: int) -> None:
    async def current(pool: ConnectionPool) -> int:
        return (await pool.any_connection()).features.get(TRANSACTION_VERSION, 0)

    before = run_request(bootstrap, current)
    if before == version:
        return
    update = FeatureUpdateKey(
        feature=TRANSACTION_VERSION,
        max_version_level=version,
        upgrade_type=UPGRADE if version > before else SAFE_DOWNGRADE,
    )
    message = UpdateFeaturesRequest(timeout_ms=TIMEOUT_MS, feature_updates=(update,))

    async def change(pool: ConnectionPool) -> None:
        response = await pool.request(ApiKey.UPDATE_FEATURES, message)
        assert response.error_code is ErrorCode.NONE, response.error_message

    run_request(bootstrap, change)
    until(lambda: run_request(bootstrap, current) == version, seconds=20, what="the new version")


class World:
    """An application that writes to one topic of two partitions."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.application = f"app-{uuid4()}"
        self.topic = f"out-{uuid4()}"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for made in admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)]).values():
            made.result(20)

    def options(self, **more: str) -> WriteOptions:
        return write_options(
            {
                "kafka.bootstrap.servers": self.bootstrap,
                "topic": self.topic,
                "kafka.delivery": "exactly-once",
                "kafka.transaction.timeout.ms": str(TIMEOUT_MS),
                **more,
            }
        )

    @property
    def link(self) -> BrokerLink:
        return link_to(self.options().cluster)

    def task(
        self,
        values: Sequence[str],
        *,
        version: int,
        partition: int = 0,
        attempt: int = 0,
        timeout_ms: int = TIMEOUT_MS,
    ) -> TaskCommit:
        slot = TaskSlot(
            application=self.application,
            job="rows",
            partition=partition,
            attempt=attempt,
            version=version,
        )
        options = replace(self.options(), transaction_timeout_ms=timeout_ms)
        return write_in_transaction(options, iter([rows(values)]), slot)

    def batch(self, version: int) -> list[TaskCommit]:
        """Two tasks of one batch, each with its own values."""
        return [
            self.task([f"{version}-{task}-{n}" for n in range(5)], version=version, partition=task)
            for task in range(2)
        ]

    def values(self, version: int) -> list[str]:
        return [f"{version}-{task}-{n}" for task in range(2) for n in range(5)]

    def commit(self, messages: Sequence[TaskCommit | None], version: int) -> None:
        StreamWriter(self.options()).commit(list(messages), version)

    def abort(self, messages: Sequence[TaskCommit | None], version: int) -> None:
        StreamWriter(self.options()).abort(list(messages), version)

    def open_driver(self) -> DeliveryDriver:
        log = DeliveryLog(self.link.pool, self.application)
        return self.link.run(DeliveryDriver.open(self.link.pool, log, timeout_ms=TIMEOUT_MS))

    def last(self) -> Delivery | None:
        return self.link.run(DeliveryLog(self.link.pool, self.application).read())

    def fence(self, name: str) -> None:
        self.link.run(open_transaction(self.link.pool, name, TIMEOUT_MS))

    def seen(self) -> list[str]:
        """The values that a read_committed consumer sees, sorted."""
        return sorted(value.decode() for value in committed(self.bootstrap, self.topic))


@pytest.fixture
def world(node: Any) -> World:
    return World(node.bootstrap)


def rows(values: Sequence[str]) -> pa.RecordBatch:
    data = pa.array([value.encode() for value in values], pa.binary())
    return pa.RecordBatch.from_arrays([data, data], names=["key", "value"])


def test_a_batch_is_visible_after_the_decision_only(world: World) -> None:
    messages = world.batch(0)
    assert world.seen() == []
    world.commit(messages, 0)
    assert world.seen() == world.values(0)
    last = world.last()
    assert last is not None
    assert (last.version, last.state, last.transactions) == (0, DeliveryState.FINISHED, ())


def test_a_failed_batch_is_aborted_and_its_repetition_is_seen_once(world: World) -> None:
    first, second = world.batch(0)
    world.abort([first, None], 0)  # the message of the second task was lost
    assert world.link.run(ongoing_transactions(world.link.pool)) == []
    world.commit(world.batch(0), 0)
    assert world.seen() == world.values(0)
    assert second.transaction is not None


def test_a_driver_that_dies_before_the_decision_leaves_nothing(world: World) -> None:
    world.batch(0)
    world.commit(world.batch(0), 0)
    assert world.seen() == world.values(0)


def test_a_driver_that_dies_while_it_decides_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = world.batch(0)
    driver = world.open_driver()

    async def die() -> None:
        raise Died

    monkeypatch.setattr(driver._producer, "commit", die)
    transactions = [one.transaction for one in messages if one.transaction is not None]
    with pytest.raises(Died):
        world.link.run(driver.decide(0, transactions))
    assert world.last() is None
    world.commit(world.batch(0), 0)
    assert world.seen() == world.values(0)


@pytest.mark.parametrize("ended", [0, 1, 2])
def test_a_replay_of_a_decided_batch_only_finishes_it(
    world: World, monkeypatch: pytest.MonkeyPatch, ended: int
) -> None:
    """The driver dies after the decision, and after it has ended some of the transactions."""
    die_after_ends(world, monkeypatch, world.batch(0), ended)
    replayed = world.batch(0)
    assert [one.is_decided for one in replayed] == [True, True]
    assert [one.records for one in replayed] == [0, 0]
    world.commit(replayed, 0)
    assert world.seen() == world.values(0)


@pytest.mark.parametrize("ended", [0, 1])
def test_decided_transactions_that_timed_out_are_written_again(
    world: World, monkeypatch: pytest.MonkeyPatch, ended: int
) -> None:
    messages = [
        world.task([f"0-{task}-{n}" for n in range(5)], version=0, partition=task, timeout_ms=300)
        for task in range(2)
    ]
    die_after_ends(world, monkeypatch, messages, ended)
    until(
        lambda: not world.link.run(ongoing_transactions(world.link.pool)),
        seconds=20,
        what="the end of the transactions",
    )
    world.commit(world.batch(0), 0)
    assert world.seen() == world.values(0)
    # The finished delivery is not repeated once more.
    world.commit(world.batch(0), 0)
    assert world.seen() == world.values(0)


def test_a_decided_transaction_whose_id_was_used_again_is_written_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of another driver starts late: one transaction is aborted, the other committed."""
    messages = world.batch(0)
    die_after_ends(world, monkeypatch, messages, 1)
    for one in messages:
        assert one.transaction is not None
        world.fence(one.transaction.transactional_id)
    world.commit(world.batch(0), 0)
    assert world.seen() == world.values(0)


def test_copies_of_aborted_records_keep_their_content(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = [[{"key": "h", "value": b"1"}], None]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.RecordBatch.from_arrays(
        [
            pa.array([b"k", None], pa.binary()),
            pa.array([b"v", None], pa.binary()),
            pa.array(headers, kind),
            pa.array([1, 1], pa.int32()),
        ],
        names=["key", "value", "headers", "partition"],
    )
    slot = TaskSlot(application=world.application, job="rows", version=0)
    written = write_in_transaction(world.options(), iter([table]), slot)
    die_after_ends(world, monkeypatch, [written], 0)
    world.fence(slot.transactional_id)
    world.open_driver()
    consumer = Consumer({"bootstrap.servers": world.bootstrap, "group.id": world.topic})
    consumer.assign([TopicPartition(world.topic, 1, 0)])
    found: list[Any] = []
    until(lambda: found if _poll_into(consumer, found) >= 2 else None, seconds=20, what="copies")
    consumer.close()
    assert [one.key() for one in found] == [b"k", None]
    assert [one.value() for one in found] == [b"v", None]
    assert [one.headers() for one in found] == [[("h", b"1")], None]


def _poll_into(consumer: Consumer, found: list[Any]) -> int:
    message = consumer.poll(0.2)
    if message is not None and message.error() is None:
        found.append(message)
    return len(found)


def test_aborted_records_that_are_gone_fail_loudly(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [world.task(["a", "b"], version=0)]
    open_ = messages[0].transaction
    assert open_ is not None
    die_after_ends(world, monkeypatch, messages, 0)
    world.fence(open_.transactional_id)
    admin = AdminClient({"bootstrap.servers": world.bootstrap})
    ends = [TopicPartition(world.topic, one.partition, one.end_offset) for one in open_.ranges]
    until(lambda: _is_stable(world, open_), seconds=20, what="the marker")
    for done in admin.delete_records(ends).values():
        done.result(20)
    with pytest.raises(DeliveryLost, match="txnAppId"):
        world.open_driver()


def _is_stable(world: World, open_: OpenTransaction) -> bool:
    consumer = Consumer(
        {"bootstrap.servers": world.bootstrap, "group.id": "x", "isolation.level": "read_committed"}
    )
    ends = [
        consumer.get_watermark_offsets(TopicPartition(one.topic, one.partition), timeout=10)
        for one in open_.ranges
    ]
    consumer.close()
    return all(
        end is not None and end[1] > one.end_offset
        for end, one in zip(ends, open_.ranges, strict=True)
    )


def test_a_speculative_attempt_harms_neither_the_winner_nor_readers(world: World) -> None:
    winner = world.task(["a"], version=0)
    loser = world.task(["a"], version=0, attempt=1)
    world.commit([winner], 0)
    assert world.seen() == ["a"]
    assert world.link.run(ongoing_transactions(world.link.pool)) == []
    assert loser.transaction is not None


def test_a_failed_task_aborts_its_transaction(world: World) -> None:
    def tables() -> Iterator[pa.RecordBatch]:
        yield rows(["a"])
        raise Died

    slot = TaskSlot(application=world.application, job="rows", version=0)
    with pytest.raises(Died):
        write_in_transaction(world.options(), tables(), slot)
    assert world.link.run(ongoing_transactions(world.link.pool)) == []


def test_an_older_driver_is_fenced_and_decides_nothing(world: World) -> None:
    old = world.open_driver()
    new = world.open_driver()
    first = world.task(["old"], version=0).transaction
    second = world.task(["new"], version=0, partition=1).transaction
    assert first is not None and second is not None
    with pytest.raises(DeliveryFenced, match="another driver"):
        world.link.run(old.decide(0, [first]))
    world.link.run(new.decide(0, [second]))
    world.link.run(abort_strays(world.link.pool, world.application, timeout_ms=TIMEOUT_MS))
    assert world.seen() == ["new"]


def test_the_second_of_two_drivers_with_one_batch_changes_nothing(world: World) -> None:
    first = [world.task(["a"], version=0, attempt=0)]
    second = [world.task(["a"], version=0, attempt=1)]
    world.commit(first, 0)
    world.commit(second, 0)
    assert world.seen() == ["a"]


def test_a_batch_without_rows_needs_no_decision(world: World) -> None:
    empty = world.task([], version=3)
    assert empty.transaction is None
    world.commit([empty], 3)
    assert world.last() is None


def test_an_open_transaction_of_another_application_delays_nobody(world: World) -> None:
    """Both share a partition of the log, and the other one never ends its transaction."""
    world.open_driver()  # creates the log
    log = DeliveryLog(world.link.pool, world.application)
    blocker = NewRecord(key=b"someone else", value=b"{}", timestamp=0)
    stuck = TransactionalProducer(world.link.pool, f"stuck-{uuid4()}")
    world.link.run(stuck.init())
    world.link.run(stuck.begin())
    world.link.run(stuck.send({log.at: [blocker]}))
    world.commit(world.batch(0), 0)
    assert world.seen() == world.values(0)
    replayed = world.batch(0)
    assert [one.is_decided for one in replayed] == [True, True]
    world.link.run(stuck.abort())


def test_a_reader_of_a_log_that_was_recreated_starts_again(world: World) -> None:
    world.commit(world.batch(0), 0)
    log = DeliveryLog(world.link.pool, world.application, position=10**9)
    last = world.link.run(log.read())
    assert last is not None and last.version == 0


def test_a_batch_write_without_a_name_leaves_no_delivery(world: World) -> None:
    writer = BatchWriter(world.options())
    message = writer.write(iter([rows(["a", "b"])]))
    assert world.seen() == []
    writer.commit([message])
    assert world.seen() == ["a", "b"]
    log = DeliveryLog(world.link.pool, writer._application)
    assert world.link.run(log.read()) is None


def test_a_batch_write_with_a_version_is_written_once(world: World) -> None:
    for _ in range(2):
        writer = BatchWriter(world.options(txnAppId=world.application, txnVersion="7"))
        writer.commit([writer.write(iter([rows(["a", "b"])]))])
    assert world.seen() == ["a", "b"]
    writer = BatchWriter(world.options(txnAppId=world.application))
    writer.commit([writer.write(iter([rows(["c"])]))])
    assert world.seen() == ["a", "b", "c"]
    last = world.last()
    assert last is not None and last.version == 8


@pytest.mark.parametrize("seed", range(3))
def test_random_crashes_deliver_each_record_once(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each batch is repeated until its commit returns, as Spark does."""
    random = Random(seed)
    for version in range(4):
        is_done = False
        while not is_done:
            messages = world.batch(version)
            if random.random() < 0.4:  # a task of another driver uses the same id
                world.fence(task_id(world.application, "rows", random.randrange(2), 0))
            match random.choice(("commit", "abort", "die", "die later", "other driver")):
                case "commit":
                    world.commit(messages, version)
                    is_done = True
                case "abort":
                    world.abort([random.choice((one, None)) for one in messages], version)
                case "die later" if not messages[0].is_decided:
                    die_after_ends(world, monkeypatch, messages, random.randrange(2), version)
                case "other driver":
                    world.open_driver()
                case _:
                    pass
    expected = Counter(value for version in range(4) for value in world.values(version))
    assert Counter(world.seen()) == expected


def test_a_node_killed_in_each_step_loses_and_doubles_nothing(node: Any, world: World) -> None:
    seen: Counter[str] = Counter()
    for version in range(3):
        messages = world.batch(version)
        if version == 1:
            node.kill()
            node.restart()
        world.commit(messages, version)
    seen.update(world.seen())
    assert seen == Counter(value for version in range(3) for value in world.values(version))


def die_after_ends(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    messages: Sequence[TaskCommit],
    ended: int,
    version: int = 0,
) -> None:
    """Decide about the batch, but end only so many of its transactions."""
    left = iter(range(ended))

    async def end_some(pool: Any, open_: OpenTransaction, *, is_commit: bool) -> Any:
        if next(left, None) is None:
            raise Died
        return await end_transaction(pool, open_, is_commit=is_commit)

    async def in_turn(coroutines: Iterable[Awaitable[Any]]) -> list[Any]:
        return [await each for each in coroutines]

    with monkeypatch.context() as patch:
        patch.setattr(driver_module, "end_transaction", end_some)
        patch.setattr(driver_module, "run_together", in_turn)
        if ended == len(messages):
            driver = world.open_driver()
            transactions = [one.transaction for one in messages if one.transaction is not None]
            stored = driver._store

            async def store_once(delivery: Any, **more: Any) -> None:
                if delivery.state is DeliveryState.FINISHED:
                    raise Died
                await stored(delivery, **more)

            patch.setattr(driver, "_store", store_once)
            with pytest.raises(Died):
                world.link.run(driver.decide(version, transactions))
        else:
            with pytest.raises(Died):
                world.commit(messages, version)
    # The decision is visible once its marker is written.
    until(lambda: is_decided(world.last(), version), seconds=20, what=f"the decision of {version}")


def is_decided(last: Delivery | None, version: int) -> bool:
    return last is not None and last.version == version and last.state is DeliveryState.DECIDED
