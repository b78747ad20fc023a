"""The chain of images, and the difference of two images that are not connected by records."""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.metadata.difference import Difference
from riverrun.metadata.image import Image
from riverrun.metadata.images import Images
from riverrun.metadata.records import AbortTransactionRecord, ConfigRecord, Record, encode
from riverrun.metadata.schema.begin_transaction_record import BeginTransactionRecord
from riverrun.model.ids import LeaderEpoch, Offset
from riverrun.model.invariants import InvariantViolation
from riverrun.records.record import NewRecord, build_batch
from tests.metadata.histories import after, histories
from tests.metadata.members import setting, value_of


def walk(work: Iterator[None]) -> None:
    for _ in work:
        pass


def replayed(history: list[list[Record]]) -> Image:
    image = Image(epoch=LeaderEpoch(1))
    for step in history:
        image = after(image, step)
    return image


def batch(records: list[Record], offset: int, epoch: int = 1) -> bytes:
    new = [NewRecord(encode(record), timestamp=0) for record in records]
    return build_batch(new, base_offset=offset, leader_epoch=epoch)


def write(images: Images, records: list[Record]) -> None:
    start = Offset(images.newest.offset + 1)
    images.wrote(
        images.draft(records),
        start=start,
        end=Offset(start + len(records)),
        epoch=LeaderEpoch(1),
        timestamp=0,
        size=1,
    )


@settings(deadline=None, max_examples=60)
@given(histories(), histories())
def test_a_difference_names_exactly_the_changes(
    first: list[list[Record]], second: list[list[Record]]
) -> None:
    old, new = replayed(first), replayed(second)
    difference = Difference(old, new)
    walk(difference.steps())
    image, delta = difference.image, difference.delta
    assert image == new
    assert list(image.topics_by_id) == list(new.topics_by_id)
    for topic_id, topic in image.topics_by_id.items():
        is_other = old.topics_by_id.get(topic_id) != topic
        assert (topic_id in delta.changed_topics) is is_other
        known = old.topics_by_id.get(topic_id)
        if known is not None:
            for index, partition in enumerate(topic.partitions):
                if index < len(known.partitions) and known.partitions[index] == partition:
                    assert partition is known.partitions[index], "equal parts are shared"
    gone = [topic_id for topic_id in old.topics_by_id if topic_id not in new.topics_by_id]
    assert list(delta.deleted_topics) == gone
    for key in (*old.configs, *new.configs):
        is_other = old.configs.get(key) != new.configs.get(key)
        assert (key in delta.changed_configs) is is_other
    for node in (*old.brokers, *new.brokers):
        is_other = old.brokers.get(node) != new.brokers.get(node)
        assert (node in delta.changed_brokers) is is_other


@settings(deadline=None, max_examples=40)
@given(histories(), st.data())
def test_writer_and_reader_of_the_log_have_the_same_image(
    history: list[list[Record]], data: st.DataObject
) -> None:
    writer, reader = Images(Image(epoch=LeaderEpoch(1))), Images(Image(epoch=LeaderEpoch(1)))
    for step in history:
        offset = writer.newest.offset + 1
        write(writer, step)
        walk(reader.replay(batch(step, offset)))
        if data.draw(st.booleans()) and (publication := reader.replayed()) is not None:
            reader.published(publication)
    while (written := writer.first_written()) is not None:
        writer.published(written)
    if (publication := reader.replayed()) is not None:
        reader.published(publication)
    assert writer.current.topics_by_id == reader.current.topics_by_id
    assert writer.current.configs == reader.current.configs
    assert writer.current.offset == reader.current.offset


def test_uncommitted_images_are_dropped_and_committed_ones_stay() -> None:
    images = Images(Image())
    for value in range(4):
        write(images, setting(value))
    assert value_of(images.newest) == 3
    forgotten = images.forget_written(Offset(2))
    assert [publication.image.offset for publication in forgotten] == [2, 3]
    assert value_of(images.newest) == 1
    for _ in range(2):
        written = images.first_written()
        assert written is not None
        images.published(written)
    assert images.newest is images.current
    assert images.next_offset == 2


def test_a_transaction_is_published_at_its_end() -> None:
    images = Images(Image())
    begin: list[Record] = [BeginTransactionRecord(name="x"), *setting(1)]
    walk(images.replay(batch(begin, 0)))
    assert images.replayed() is None
    assert images.next_offset == 2
    walk(images.replay(batch([AbortTransactionRecord(reason="gone")], 2)))
    publication = images.replayed()
    assert publication is not None
    assert publication.image.offset == 2 and value_of(publication.image) == -1


def test_a_new_leader_ends_the_transaction_of_the_one_before() -> None:
    images = Images(Image())
    begin: list[Record] = [BeginTransactionRecord(name="x"), *setting(1)]
    walk(images.replay(batch(begin, 0)))
    delta = images.draft([AbortTransactionRecord(reason="gone")])
    images.wrote(delta, start=Offset(2), end=Offset(3), epoch=LeaderEpoch(2), timestamp=0, size=1)
    assert value_of(images.newest) == -1 and images.newest.offset == 2
    images.forget_written(Offset(0))
    assert images.next_offset == 0, "it is read again, with whatever followed in truth"
    walk(images.replay(batch(begin, 0)))
    assert images.is_in_transaction


def test_waiters_belong_to_their_images() -> None:
    async def main() -> None:
        images = Images(Image())
        waiter: asyncio.Future[Image] = asyncio.get_running_loop().create_future()
        record = ConfigRecord(resource_type=4, resource_name="", name="n", value="1")
        delta = images.draft([record])
        images.wrote(
            delta,
            start=Offset(0),
            end=Offset(1),
            epoch=LeaderEpoch(1),
            timestamp=0,
            size=1,
            waiter=waiter,
        )
        written = images.first_written()
        assert written is not None and written.waiter is waiter

    asyncio.run(main())


def test_replay_of_a_batch_behind_a_gap_violates_an_invariant() -> None:
    images = Images(Image(epoch=LeaderEpoch(1)))
    with pytest.raises(InvariantViolation, match="base_offset=7"):
        walk(images.replay(batch(setting(1), 7)))
