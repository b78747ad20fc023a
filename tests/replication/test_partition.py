"""Appends, commits, and the requests that wait for them."""

from __future__ import annotations

import pytest

from riverrun.metadata.image import DIRECTORY_UNASSIGNED, NO_LEADER, PartitionImage
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.replication.partition import Partition
from riverrun.replication.readable_bytes import UNKNOWN_BYTES, NewlyReadable
from riverrun.replication.reading import read_partition
from riverrun.storage.producers import SEQUENCE_MAX
from riverrun.storage.settings import LogSettings
from tests.storage.machines import NOW_MS, TOPIC_ID, Machine, batch, flush

ME, OTHER = NodeId(1), NodeId(2)


def state(
    leader: NodeId = ME,
    epoch: int = 0,
    partition_epoch: int = 0,
    isr: tuple[NodeId, ...] = (ME,),
    replicas: tuple[NodeId, ...] | None = None,
) -> PartitionImage:
    replicas = isr if replicas is None else replicas
    return PartitionImage(
        replicas=replicas,
        isr=isr,
        leader=leader,
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=partition_epoch,
        directories=(DIRECTORY_UNASSIGNED,) * len(replicas),
    )


class Node:
    """A partition on a simulated disk. Counts the requested flushes."""

    def __init__(self, **settings: object) -> None:
        self.machine = Machine()
        log = self.machine.load(LogSettings(**settings))[1]  # type: ignore[arg-type]
        self.flushes = 0
        self.partition = Partition(log, TOPIC_ID, ME, self._flush)
        self.partition.apply(state())

    def _flush(self, _: Partition) -> None:
        self.flushes += 1

    def append(self, *values: bytes, acks: int = -1) -> Offset:
        appended = self.partition.append(bytearray(batch(*values)), acks=acks, now_ms=NOW_MS)
        return Offset(appended.last_offset + 1)


class Fetch:
    def __init__(self) -> None:
        self.seen: list[int] = []
        self.interruptions = 0

    def progressed(self, partition: Partition, readable: NewlyReadable) -> None:
        self.seen.append(readable.visible)

    def interrupted(self) -> None:
        self.interruptions += 1


def test_single_replica_commits_each_append() -> None:
    node = Node()
    assert node.append(b"a", b"b") == 2
    assert node.partition.log.high_watermark == 2


def test_with_flush_before_ack_only_flushed_records_are_committed() -> None:
    node = Node(flush_before_ack=True)
    codes: list[ErrorCode] = []
    end = node.append(b"a")
    node.partition.when_committed(end, codes.append)
    assert (node.partition.log.high_watermark, node.flushes, codes) == (0, 1, [])
    flush(node.partition.log)
    node.partition.advance()
    assert (node.partition.log.high_watermark, codes) == (1, [ErrorCode.NONE])


def test_flush_that_ends_under_another_leader_commits_nothing() -> None:
    """The new leader may lack the record. A consumer must not have read it (simulation seed 11)."""
    node = Node(flush_before_ack=True)
    node.append(b"a")
    node.partition.apply(state(OTHER, epoch=1, partition_epoch=1, isr=(OTHER, ME)))
    flush(node.partition.log)
    node.partition.advance()
    assert node.partition.log.high_watermark == 0


def test_produces_complete_in_order_and_a_duplicate_waits_like_its_original() -> None:
    node = Node(flush_before_ack=True)
    called: list[str] = []
    first, second = node.append(b"a"), node.append(b"b")
    node.partition.when_committed(second, lambda _: called.append("second"))
    node.partition.when_committed(first, lambda _: called.append("duplicate of the first"))
    flush(node.partition.log)
    node.partition.advance()
    assert called == ["duplicate of the first", "second"]
    assert node.partition.waiting_produces == 0


def test_waiting_fetch_counts_the_bytes_that_become_readable() -> None:
    node, fetch = Node(), Fetch()
    node.partition.watch(fetch)
    node.append(b"a")
    node.append(b"b", b"c")
    assert fetch.seen == [len(batch(b"a")), len(batch(b"b", b"c"))]
    node.partition.unwatch(fetch)
    node.append(b"d")
    assert len(fetch.seen) == 2


def test_fetch_waits_for_bytes_that_are_committed() -> None:
    node, fetch = Node(flush_before_ack=True), Fetch()
    node.partition.watch(fetch)
    node.append(b"a")
    node.append(b"b", b"c")
    assert fetch.seen == []
    flush(node.partition.log)
    node.partition.advance()
    assert fetch.seen == [len(batch(b"a")) + len(batch(b"b", b"c"))]


def test_records_older_than_the_role_wake_every_fetch() -> None:
    node, fetch = Node(flush_before_ack=True), Fetch()
    node.append(b"a")
    node.partition.apply(state(OTHER, epoch=1, partition_epoch=1, isr=(OTHER, ME)))
    node.partition.watch(fetch)
    node.partition.follower_appended(0, high_watermark=1)
    assert fetch.seen == [UNKNOWN_BYTES]


def append_as_follower(node: Node, offset: int, value: bytes, *, high_watermark: int) -> int:
    data = batch(value)
    data[:8] = offset.to_bytes(8, "big")
    node.partition.log.append_as_follower(data)
    node.partition.follower_appended(len(data), high_watermark)
    return len(data)


def test_follower_counts_readable_bytes_by_the_leaders_high_watermark() -> None:
    node, fetch = Node(), Fetch()
    node.partition.apply(state(OTHER, epoch=1, partition_epoch=1, isr=(OTHER, ME)))
    node.partition.watch(fetch)
    sizes = [append_as_follower(node, offset, b"a", high_watermark=0) for offset in range(3)]
    assert fetch.seen == []
    node.partition.follower_appended(0, high_watermark=2)
    assert fetch.seen == [sizes[0] + sizes[1]]
    node.partition.log.truncate_to(Offset(2))
    size = append_as_follower(node, 2, b"another value", high_watermark=3)
    assert fetch.seen == [sizes[0] + sizes[1], size]


def test_waiters_fail_when_leadership_is_lost() -> None:
    node, fetch = Node(flush_before_ack=True), Fetch()
    codes: list[ErrorCode] = []
    node.partition.when_committed(node.append(b"a"), codes.append)
    node.partition.watch(fetch)
    node.partition.apply(state(leader=OTHER, epoch=1, partition_epoch=1, isr=(ME, OTHER)))
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert fetch.interruptions == 1
    with pytest.raises(KafkaError) as caught:
        node.append(b"b")
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_acknowledgements_survive_a_new_epoch_of_the_same_leader() -> None:
    """A reassignment that ends raises the epoch, and no producer must see an error."""
    node, fetch = Node(flush_before_ack=True), Fetch()
    codes: list[ErrorCode] = []
    node.partition.when_committed(node.append(b"a"), codes.append)
    node.partition.watch(fetch)
    node.partition.apply(state(leader=ME, epoch=1, partition_epoch=1, isr=(ME,)))
    assert (codes, fetch.interruptions) == ([], 1)
    flush(node.partition.log)
    node.partition.advance()
    assert codes == [ErrorCode.NONE]


def test_acknowledgements_fail_if_another_node_may_have_led_in_between() -> None:
    node = Node(flush_before_ack=True)
    codes: list[ErrorCode] = []
    node.partition.when_committed(node.append(b"a"), codes.append)
    node.partition.apply(state(leader=ME, epoch=2, partition_epoch=2, isr=(ME,)))
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_older_image_is_ignored() -> None:
    node = Node()
    node.partition.apply(state(epoch=2, partition_epoch=5))
    node.partition.apply(state(leader=OTHER, epoch=1, partition_epoch=4))
    assert (node.partition.is_leader, node.partition.leader_epoch) == (True, 2)


def numbered(sequence: int, producer: int = 7, epoch: int = 0) -> bytearray:
    return bytearray(batch(b"value", producer=producer, epoch=epoch, sequence=sequence))


def rejected(node: Node, data: bytearray) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        node.partition.append(data, acks=-1, now_ms=NOW_MS)
    return caught.value.code


def appended(node: Node, data: bytearray) -> int:
    return node.partition.append(data, acks=-1, now_ms=NOW_MS).last_offset


def test_batches_after_a_refused_batch_get_the_same_error() -> None:
    """The producer sent them before it received the error. After OUT_OF_ORDER_SEQUENCE_NUMBER,
    librdkafka starts a new epoch and repeats batches that a dead leader had appended (found by a
    chaos run)."""
    node = Node(min_insync_replicas=2)
    node.partition.apply(state(partition_epoch=1, isr=(ME, OTHER)))
    assert appended(node, numbered(0)) == 0
    node.partition.apply(state(partition_epoch=2, isr=(ME,), replicas=(ME, OTHER)))
    assert rejected(node, numbered(1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    node.partition.apply(state(partition_epoch=3, isr=(ME, OTHER)))
    assert rejected(node, numbered(2)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert appended(node, numbered(0, producer=8)) == 1, "other producers are not affected"
    assert rejected(node, numbered(3)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert appended(node, numbered(1)) == 2
    assert appended(node, numbered(2)) == 3
    assert rejected(node, numbered(9)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert appended(node, numbered(2)) == 3, "duplicates are still recognised"


def test_producer_that_wrote_before_the_leader_was_ready_resumes_at_its_first_batch() -> None:
    node = Node()
    assert appended(node, numbered(0)) == 0
    node.partition.apply(state(leader=OTHER, epoch=1, partition_epoch=1))
    assert rejected(node, numbered(1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    node.partition.apply(state(epoch=2, partition_epoch=2))
    assert rejected(node, numbered(2)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert appended(node, numbered(1)) == 1
    assert appended(node, numbered(2)) == 2


def test_gap_after_a_refused_retry_is_explained_by_the_batches_refused_with_it() -> None:
    """The log has the retried batch from the leader before. The retry and its successor arrive
    before this node knows that it leads, the next batch after that. With
    OUT_OF_ORDER_SEQUENCE_NUMBER, librdkafka would repeat the batch that the log has in a new epoch
    (found by a chaos run)."""
    node = Node()
    assert [appended(node, numbered(sequence)) for sequence in (0, 1)] == [0, 1]
    node.partition.apply(state(leader=OTHER, epoch=1, partition_epoch=1))
    for sequence in (1, 2, 3):
        assert rejected(node, numbered(sequence)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    node.partition.apply(state(epoch=2, partition_epoch=2))
    assert rejected(node, numbered(4)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert rejected(node, numbered(5)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [appended(node, numbered(sequence)) for sequence in range(1, 6)] == [1, 2, 3, 4, 5]
    assert rejected(node, numbered(9)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("segment_bytes", [100, 10_000])
def test_batches_after_one_without_disk_space_get_a_storage_error(segment_bytes: int) -> None:
    node = Node(segment_bytes=segment_bytes)
    disk = node.machine.disk
    assert appended(node, numbered(0)) == 0
    disk.capacity_bytes = disk.used_bytes
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            appended(node, numbered(1))
    assert rejected(node, numbered(2)) is ErrorCode.KAFKA_STORAGE_ERROR
    disk.capacity_bytes += 10_000
    assert appended(node, numbered(0, producer=8)) == 1, "other producers are not affected"
    assert rejected(node, numbered(3)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert [appended(node, numbered(sequence)) for sequence in (1, 2, 3)] == [2, 3, 4]
    assert rejected(node, numbered(9)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_lost_batches_are_reported_though_their_successor_was_refused() -> None:
    """A power loss took acknowledged batches, so the producer never sends them again. Its next
    batch arrived before this node led again. With a retriable error the producer would repeat that
    batch without end (found by a simulation)."""
    node = Node()
    assert appended(node, numbered(0)) == 0
    node.partition.apply(state(leader=NO_LEADER, epoch=1, partition_epoch=1))
    assert rejected(node, numbered(5)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    node.partition.apply(state(epoch=2, partition_epoch=2))
    assert rejected(node, numbered(5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert rejected(node, numbered(6)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert appended(node, numbered(0, epoch=1)) == 1, "the producer starts a new epoch"


def without_replicas(*sequences: int, producer_epoch: int = 0) -> Node:
    """A leader that has batch 0 and refused these for lack of replicas. It now has enough."""
    node = Node(min_insync_replicas=2)
    node.partition.apply(state(partition_epoch=1, isr=(ME, OTHER)))
    assert appended(node, numbered(0)) == 0
    node.partition.apply(state(partition_epoch=2, isr=(ME,), replicas=(ME, OTHER)))
    for sequence in sequences:
        data = numbered(sequence, epoch=producer_epoch)
        assert rejected(node, data) is ErrorCode.NOT_ENOUGH_REPLICAS
    node.partition.apply(state(partition_epoch=3, isr=(ME, OTHER)))
    return node


def test_producer_that_skips_its_refused_batch_is_out_of_order() -> None:
    node = without_replicas(1, 2)
    assert rejected(node, numbered(3)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert rejected(node, numbered(2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert rejected(node, numbered(4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_batches_are_held_back_again_after_the_first_is_refused_again() -> None:
    node = without_replicas(1, 2)
    assert rejected(node, numbered(3)) is ErrorCode.NOT_ENOUGH_REPLICAS
    node.partition.apply(state(partition_epoch=4, isr=(ME,), replicas=(ME, OTHER)))
    assert rejected(node, numbered(1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    node.partition.apply(state(partition_epoch=5, isr=(ME, OTHER)))
    assert rejected(node, numbered(2)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert rejected(node, numbered(3)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert [appended(node, numbered(sequence)) for sequence in (1, 2, 3)] == [1, 2, 3]


def test_batches_after_the_refused_first_batch_of_a_producer_epoch_are_held_back() -> None:
    node = without_replicas(0, producer_epoch=1)
    assert rejected(node, numbered(1, epoch=1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert rejected(node, numbered(2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [appended(node, numbered(sequence, epoch=1)) for sequence in (0, 1)] == [1, 2]


def test_refused_batch_explains_a_gap_across_the_wrap_of_sequences() -> None:
    node = Node(min_insync_replicas=2)
    node.partition.apply(state(partition_epoch=1, isr=(ME, OTHER)))
    assert appended(node, numbered(SEQUENCE_MAX - 1)) == 0
    node.partition.apply(state(partition_epoch=2, isr=(ME,), replicas=(ME, OTHER)))
    assert rejected(node, numbered(SEQUENCE_MAX)) is ErrorCode.NOT_ENOUGH_REPLICAS
    node.partition.apply(state(partition_epoch=3, isr=(ME, OTHER)))
    assert rejected(node, numbered(0)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert [appended(node, numbered(sequence)) for sequence in (SEQUENCE_MAX, 0)] == [1, 2]


def test_refused_batches_are_dropped_when_another_node_leads() -> None:
    node = without_replicas(1)
    node.partition.apply(state(leader=OTHER, epoch=1, partition_epoch=4, isr=(ME, OTHER)))
    node.partition.apply(state(epoch=2, partition_epoch=5, isr=(ME, OTHER)))
    assert rejected(node, numbered(2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_acks_all_is_rejected_below_the_minimum_of_in_sync_replicas() -> None:
    node = Node(min_insync_replicas=2)
    assert node.append(b"the only replica") == 1
    node.partition.apply(state(partition_epoch=1, isr=(ME, OTHER)))
    node.partition.apply(state(partition_epoch=2, isr=(ME,), replicas=(ME, OTHER)))
    with pytest.raises(KafkaError) as caught:
        node.append(b"b")
    assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert node.append(b"c", acks=1) == 2


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (-1, None),
        (3, None),
        (2, ErrorCode.FENCED_LEADER_EPOCH),
        (4, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_requests_with_another_leader_epoch_are_rejected(
    epoch: int, code: ErrorCode | None
) -> None:
    node = Node()
    node.partition.apply(state(epoch=3, partition_epoch=1))
    if code is None:
        node.partition.check_leader(epoch)
        return
    with pytest.raises(KafkaError) as caught:
        node.partition.check_leader(epoch)
    assert caught.value.code is code


def read(node: Node, offset: int) -> tuple[int, bytes]:
    found = read_partition(
        node.partition,
        offset=offset,
        leader_epoch=-1,
        last_fetched_epoch=-1,
        max_bytes=1 << 20,
        at_least_one=True,
        is_committed_only=False,
    )
    return found.error_code, bytes(found.data)


def test_read_between_high_watermark_and_log_end_is_empty() -> None:
    node = Node(flush_before_ack=True)
    node.append(b"a")
    flush(node.partition.log)
    node.partition.advance()
    node.append(b"b")
    assert len(read(node, 0)[1]) == len(batch(b"a"))
    assert read(node, 1) == (ErrorCode.NONE, b"")
    assert read(node, 2) == (ErrorCode.NONE, b"")
    assert read(node, 3) == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")


def test_diverging_reader_gets_the_diverging_epoch() -> None:
    node = Node()
    node.append(b"a")
    node.partition.apply(state(epoch=4, partition_epoch=1))
    node.append(b"b")
    found = read_partition(
        node.partition,
        offset=2,
        leader_epoch=4,
        last_fetched_epoch=2,
        max_bytes=1,
        at_least_one=True,
        is_committed_only=False,
    )
    assert found.diverging == (0, 1)
