"""A snapshot restores exactly its image, or is recognised as invalid."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.metadata.delta import Delta
from riverrun.metadata.image import Image
from riverrun.metadata.images import Images
from riverrun.metadata.loading import Loading
from riverrun.metadata.quorum import Voter
from riverrun.metadata.records import Record, encode
from riverrun.metadata.snapshot import (
    InvalidSnapshot,
    Snapshot,
    SnapshotId,
    records_of,
    snapshot_batches,
)
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.records.record import NewRecord, build_batch
from tests.metadata.histories import after, histories

VOTERS = (Voter(id=NodeId(1), directory_id=None, endpoints={"CONTROLLER": ("h", 9093)}),)


def written(image: Image) -> bytes:
    return b"".join(snapshot_batches(image, VOTERS, now_ms=5))


def loaded(image: Image, data: bytes) -> Image:
    snapshot = SnapshotId(Offset(image.offset + 1), image.epoch)
    loading = Loading(snapshot, Snapshot(data))
    for _ in loading.steps():
        pass
    return loading.image()


def replayed(history: list[list[Record]]) -> Image:
    image = Image(epoch=LeaderEpoch(1))
    for step in history:
        image = after(image, step)
    return image


def orders(image: Image) -> list[object]:
    return [
        list(image.features),
        list(image.brokers),
        list(image.controllers),
        list(image.topics_by_name),
        list(image.topics_by_id),
        [(key, list(values)) for key, values in image.configs.items()],
        [(kind, list(entries)) for kind, entries in image.entries.items()],
    ]


@settings(deadline=None, max_examples=60)
@given(histories())
def test_a_snapshot_contains_the_image(history: list[list[Record]]) -> None:
    image = replayed(history)
    found = loaded(image, written(image))
    assert found == image
    assert orders(found) == orders(image)
    assert Snapshot(written(image)).voters == VOTERS


@settings(deadline=None, max_examples=40)
@given(histories(), st.data())
def test_log_and_snapshot_with_the_rest_of_the_log_give_equal_images(
    history: list[list[Record]], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(history)))
    at_cut = replayed(history[:cut])
    images = Images(loaded(at_cut, written(at_cut)))
    offset = 0
    log = b""
    for step in history:
        stamp = offset + len(step) - 1
        new = [NewRecord(encode(record), timestamp=stamp) for record in step]
        log += build_batch(new, base_offset=offset, leader_epoch=1)
        offset += len(step)
    for _ in images.replay(log):
        pass
    if (publication := images.replayed()) is not None:
        images.published(publication)
    image = replayed(history)
    assert images.current == image
    assert orders(images.current) == orders(image)


@settings(deadline=None, max_examples=25)
@given(histories())
def test_writing_an_image_is_deterministic(history: list[list[Record]]) -> None:
    image = replayed(history)
    delta = Delta(Image())
    said = list(records_of(image))
    for record in said:
        delta.replay(record)
    again = delta.publish(offset=image.offset, epoch=image.epoch, timestamp=image.timestamp)
    assert list(records_of(again)) == said


@settings(deadline=None, max_examples=50)
@given(histories(max_steps=4), st.data())
def test_a_damaged_snapshot_is_rejected(history: list[list[Record]], data: st.DataObject) -> None:
    content = bytearray(written(replayed(history)))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(InvalidSnapshot):
        Snapshot(bytes(content))


@settings(deadline=None, max_examples=20)
@given(histories(max_steps=4), st.data())
def test_a_truncated_snapshot_is_rejected(history: list[list[Record]], data: st.DataObject) -> None:
    content = written(replayed(history))
    with pytest.raises(InvalidSnapshot):
        Snapshot(content[: data.draw(st.integers(0, len(content) - 1))])


def test_file_names_are_kafkas() -> None:
    snapshot = SnapshotId(Offset(1234), LeaderEpoch(7))
    assert snapshot.name == "00000000000000001234-0000000007.checkpoint"
    assert SnapshotId.parse(snapshot.name) == snapshot
    for other in ("x", snapshot.name + ".part", "1234-7.checkpoint", "bootstrap.checkpoint"):
        assert SnapshotId.parse(other) is None
