"""Who may append, what is committed, and who is woken."""

from __future__ import annotations

import pytest

from riverrun.metadata.image import DIRECTORY_UNASSIGNED, PartitionImage
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.replication.partition import UNKNOWN_BYTES, Partition
from riverrun.replication.reading import read_partition
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
    """A partition on a simulated disk, and what it asked for."""

    def __init__(self, **settings: object) -> None:
        log = Machine().load(LogSettings(**settings))[1]  # type: ignore[arg-type]
        self.syncs = 0
        self.partition = Partition(log, TOPIC_ID, ME, self._sync)
        self.partition.apply(state())

    def _sync(self, _: Partition) -> None:
        self.syncs += 1

    def append(self, *values: bytes, acks: int = -1) -> Offset:
        appended = self.partition.append(bytearray(batch(*values)), acks=acks, now_ms=NOW_MS)
        return Offset(appended.last_offset + 1)


class Fetch:
    def __init__(self) -> None:
        self.seen: list[int] = []
        self.interruptions = 0

    def progressed(self, partition: Partition, visible_bytes: int) -> None:
        self.seen.append(visible_bytes)

    def interrupted(self) -> None:
        self.interruptions += 1


def test_alone_in_the_isr_what_is_appended_is_committed() -> None:
    node = Node()
    assert node.append(b"a", b"b") == 2
    assert node.partition.log.high_watermark == 2


def test_with_flush_before_ack_only_what_is_synced_is_committed() -> None:
    node = Node(flush_before_ack=True)
    codes: list[ErrorCode] = []
    end = node.append(b"a")
    node.partition.when_committed(end, codes.append)
    assert (node.partition.log.high_watermark, node.syncs, codes) == (0, 1, [])
    flush(node.partition.log)
    node.partition.advance()
    assert (node.partition.log.high_watermark, codes) == (1, [ErrorCode.NONE])


def test_a_sync_that_ends_when_another_leads_commits_nothing() -> None:
    """The new leader may lack it: who read it here would have read what never was (seed 11)."""
    node = Node(flush_before_ack=True)
    node.append(b"a")
    node.partition.apply(state(OTHER, epoch=1, partition_epoch=1, isr=(OTHER, ME)))
    flush(node.partition.log)
    node.partition.advance()
    assert node.partition.log.high_watermark == 0


def test_waiting_producers_are_told_in_order_and_a_duplicate_waits_like_its_original() -> None:
    node = Node(flush_before_ack=True)
    told: list[str] = []
    first, second = node.append(b"a"), node.append(b"b")
    node.partition.when_committed(second, lambda _: told.append("second"))
    node.partition.when_committed(first, lambda _: told.append("duplicate of the first"))
    flush(node.partition.log)
    node.partition.advance()
    assert told == ["duplicate of the first", "second"]
    assert node.partition.waiting_produces == 0


def test_a_fetch_hears_how_many_bytes_became_readable() -> None:
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


def test_who_waits_is_told_when_leadership_is_lost() -> None:
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


def test_an_older_state_of_the_metadata_changes_nothing() -> None:
    node = Node()
    node.partition.apply(state(epoch=2, partition_epoch=5))
    node.partition.apply(state(leader=OTHER, epoch=1, partition_epoch=4))
    assert (node.partition.is_leader, node.partition.leader_epoch) == (True, 2)


def numbered(sequence: int, producer: int = 7) -> bytearray:
    return bytearray(batch(b"value", producer=producer, sequence=sequence))


def refusal(node: Node, data: bytearray) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        node.partition.append(data, acks=-1, now_ms=NOW_MS)
    return caught.value.code


def taken(node: Node, data: bytearray) -> int:
    return node.partition.append(data, acks=-1, now_ms=NOW_MS).last_offset


def test_what_follows_a_refused_batch_is_refused_for_the_same_reason() -> None:
    """It was sent before its producer knew: out of order, librdkafka would begin a new epoch and
    repeat what a leader that died had appended (a chaos run found the duplicates)."""
    node = Node(min_insync_replicas=2)
    node.partition.apply(state(partition_epoch=1, isr=(ME, OTHER)))
    assert taken(node, numbered(0)) == 0
    node.partition.apply(state(partition_epoch=2, isr=(ME,), replicas=(ME, OTHER)))
    assert refusal(node, numbered(1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    node.partition.apply(state(partition_epoch=3, isr=(ME, OTHER)))
    assert refusal(node, numbered(2)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert taken(node, numbered(0, producer=8)) == 1, "others are not concerned"
    assert refusal(node, numbered(3)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert taken(node, numbered(1)) == 2
    assert taken(node, numbered(2)) == 3
    assert refusal(node, numbered(9)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert taken(node, numbered(2)) == 3, "a duplicate is known as before"


def test_who_asked_too_early_is_told_so_until_it_has_begun_anew() -> None:
    node = Node()
    assert taken(node, numbered(0)) == 0
    node.partition.apply(state(leader=OTHER, epoch=1, partition_epoch=1))
    assert refusal(node, numbered(1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    node.partition.apply(state(epoch=2, partition_epoch=2))
    assert refusal(node, numbered(2)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert taken(node, numbered(1)) == 1
    assert taken(node, numbered(2)) == 2


def test_acks_all_is_refused_below_the_minimum_of_in_sync_replicas() -> None:
    node = Node(min_insync_replicas=2)
    assert node.append(b"one replica is the most there is") == 1
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
def test_clients_of_another_epoch_are_fenced(epoch: int, code: ErrorCode | None) -> None:
    node = Node()
    node.partition.apply(state(epoch=3, partition_epoch=1))
    if code is None:
        node.partition.check_leader(epoch)
        return
    with pytest.raises(KafkaError) as caught:
        node.partition.check_leader(epoch)
    assert caught.value.code is code


def read(node: Node, offset: int, **other: int) -> tuple[int, bytes]:
    values = {"leader_epoch": -1, "last_fetched_epoch": -1, "max_bytes": 1 << 20} | other
    found = read_partition(
        node.partition, offset=offset, at_least_one=True, is_committed_only=False, **values
    )
    return found.error_code, bytes(found.data)


def test_nothing_above_the_high_watermark_is_read_and_it_is_not_out_of_range() -> None:
    node = Node(flush_before_ack=True)
    node.append(b"a")
    flush(node.partition.log)
    node.partition.advance()
    node.append(b"b")
    assert len(read(node, 0)[1]) == len(batch(b"a"))
    assert read(node, 1) == (ErrorCode.NONE, b"")
    assert read(node, 2) == (ErrorCode.NONE, b"")
    assert read(node, 3) == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")


def test_a_reader_with_another_history_is_told_where_it_diverged() -> None:
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
