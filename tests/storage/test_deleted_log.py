"""A topic is deleted and recreated while jobs still run on its old log."""

from uuid import UUID

import pytest

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.records.batch import CorruptBatch
from riverrun.storage.cleaning.compaction import CompactionAborted
from riverrun.storage.segment.reader import ColdRead

from .machines import Machine
from .test_cleaner import COMPACT, PARTITION, Node, filled


def node_on(machine: Machine) -> Node:
    return Node(machine.files)


def recreate(node: Node) -> None:
    node.directory.delete(PARTITION)
    node.log = node.directory.create(PARTITION, UUID(int=501), COMPACT)
    for number in range(3):
        node.put(f"new-{number}", "of the new topic")
    node.roll()
    node.put("new-3", "of the new topic")


@pytest.mark.parametrize("steps_before", range(5))
def test_compaction_never_changes_a_new_log_of_the_same_name(steps_before: int) -> None:
    machine = Machine()
    node = node_on(machine)
    filled(node)
    steps = node.cleaner.clean_once(node.directory.logs)
    try:
        step = next(steps)
        for _ in range(steps_before):
            step = steps.send(step())
        recreate(node)
        while True:
            try:
                result = step()
            except (OSError, CorruptBatch, CompactionAborted) as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration:
        pass
    expected = {b"new-%d" % number: b"of the new topic" for number in range(4)}
    assert node.latest() == expected
    assert not node.cleaner.uncleanable
    left = node.files.list_directory("/data/t-0")
    assert not [name for name in left if name.endswith((".cleaned", ".swap"))]
    machine.kill()
    assert node_on(machine).latest() == expected, "also after a restart"


def test_read_of_a_deleted_log_never_returns_a_new_log_of_the_same_name() -> None:
    node = node_on(Machine())
    filled(node)
    old = node.log
    segment = old.segments[1]
    segment.evict()
    segment.is_warm = False
    cold = old.read(7, max_bytes=1000, end=old.high_watermark)
    assert isinstance(cold, ColdRead)
    recreate(node)
    assert not cold.is_current
    for search in (cold.again, lambda: old.offset_for_timestamp(0), old.offset_of_max_timestamp):
        with pytest.raises(KafkaError) as refused:
            search()
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_flush_of_a_deleted_log_writes_no_side_files() -> None:
    node = node_on(Machine())
    filled(node)
    job = node.log.begin_flush(whole=True)
    assert job is not None
    recreate(node)
    before = node.files.list_directory("/data/t-0")
    job.run()
    assert node.files.list_directory("/data/t-0") == before
