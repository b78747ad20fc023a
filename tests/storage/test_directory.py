"""The data directory: its identity, its checkpoints, and deleted partitions."""

import errno
import json
from collections.abc import Callable

import pytest

from riverrun.model.ids import NodeId, Offset, PartitionIndex, TopicName, TopicPartition
from riverrun.ports.files import OsFiles, read_whole
from riverrun.storage.checkpoints import (
    CorruptCheckpoint,
    encode_offsets,
    encode_partition_metadata,
    encode_uuid,
    parse_offsets,
    parse_partition_metadata,
    parse_uuid,
)
from riverrun.storage.directory import UNKNOWN_TOPIC_ID, LogDirectory
from riverrun.storage.identity import DirectoryError
from riverrun.storage.settings import LogSettings

from .machines import (
    DATA,
    PARTITION,
    TOPIC_ID,
    FixedClock,
    Machine,
    SeededRandomness,
    append,
    batch,
    read_all,
    stop_cleanly,
)

META = f"{DATA}/meta.properties"


def write(machine: Machine, path: str, content: bytes) -> None:
    file = machine.files.open(path, create=True)
    file.truncate(0)
    file.write_at(0, content)


def refusal(start: Callable[[], object]) -> str:
    with pytest.raises(DirectoryError) as refused:
        start()
    return str(refused.value)


def test_empty_directory_gets_an_identity() -> None:
    machine = Machine()
    directory = machine.start()
    assert directory.cluster_id is None
    directory.adopt_cluster("MkU3OEVBNTcwNTJENDM2Qk")
    identity = directory.directory_id
    machine.lose_power()
    again = machine.start()
    assert again.cluster_id == "MkU3OEVBNTcwNTJENDM2Qk"
    assert again.directory_id == identity
    text = read_whole(machine.files, META).decode()
    assert "version=1\n" in text
    assert "node.id=1\n" in text
    assert f"directory.id={encode_uuid(identity)}\n" in text


def test_directory_in_use_is_rejected() -> None:
    machine = Machine()
    machine.start()
    assert "in use by another process" in refusal(machine.start)


def test_close_and_kill_release_the_lock() -> None:
    machine = Machine()
    machine.start().close()
    machine.start()
    machine.kill()
    machine.start()


def test_directory_of_another_node_is_rejected() -> None:
    machine = Machine()
    machine.start().close()

    def start_as_node_2() -> LogDirectory:
        return LogDirectory.open(
            machine.files,
            DATA,
            node_id=NodeId(2),
            clock=machine.clock,
            randomness=machine.randomness,
        )

    message = refusal(start_as_node_2)
    assert "belongs to node 1, not to node 2" in message
    assert "node.id=1" in message
    machine.start()  # the failed open released the lock


def test_directory_of_another_cluster_is_rejected() -> None:
    machine = Machine()
    directory = machine.start()
    directory.adopt_cluster("one")
    directory.adopt_cluster("one")
    assert "belongs to cluster one, not to two" in refusal(lambda: directory.adopt_cluster("two"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"version=2\nnode.id=1\n", "version 2"),
        (b"version=0\nbroker.id=1\n", "ZooKeeper"),
        (b"version=1\nnode.id=one\n", "damaged"),
        (b"version=1\nnode.id=1\ndirectory.id=???\n", "damaged"),
        (b"version=1\n", "damaged"),
        (b"\xff\xfe\x00", "damaged"),
    ],
)
def test_invalid_meta_properties_are_rejected(content: bytes, expected: str) -> None:
    machine = Machine()
    machine.start().close()
    write(machine, META, content)
    assert expected in refusal(machine.start)


def test_partitions_without_meta_properties_are_rejected() -> None:
    machine = Machine()
    machine.files.make_directory(f"{DATA}/topic-0")
    assert "no meta.properties" in refusal(machine.start)


def test_unusable_directory_is_rejected(tmp_path: object) -> None:
    path = f"{tmp_path}/file"
    OsFiles().open(path, create=True).close()

    def start(path: str) -> LogDirectory:
        return LogDirectory.open(
            OsFiles(),
            path,
            node_id=NodeId(1),
            clock=FixedClock(),
            randomness=SeededRandomness(1),
        )

    assert "cannot be used" in refusal(lambda: start(path))
    assert "cannot be used" in refusal(lambda: start(f"{path}/below"))
    good = start(f"{tmp_path}/data")
    assert "in use" in refusal(lambda: start(f"{tmp_path}/data"))
    good.close()
    start(f"{tmp_path}/data").close()


def test_topic_id_survives_a_restart() -> None:
    machine = Machine()
    directory, _ = machine.load(LogSettings())
    stop_cleanly(directory)
    _, log = machine.load(LogSettings())
    assert log.topic_id == TOPIC_ID


def test_log_without_topic_id_is_opened() -> None:
    machine = Machine()
    _, log = machine.load(LogSettings())
    append(log, batch(b"a"))
    machine.kill()
    machine.files.unlink(f"{DATA}/{PARTITION}/partition.metadata")
    _, log = machine.load(LogSettings())
    assert log.topic_id == UNKNOWN_TOPIC_ID
    log.advance_high_watermark(1)
    assert read_all(log) == [(0, b"a")]


def test_deleted_partition_leaves_its_files_to_a_removal() -> None:
    machine = Machine()
    directory, log = machine.load(LogSettings())
    append(log, batch(b"a"))
    directory.delete(PARTITION)
    assert PARTITION not in directory.logs
    (removal,) = directory.removals
    assert removal.path.startswith(f"{DATA}/topic-0.")
    assert removal.path.endswith("-delete")
    again = directory.create(PARTITION, TOPIC_ID, LogSettings())
    assert again.end_offset == 0
    removal.run()
    assert not machine.files.exists(removal.path)
    removal.run()  # a second run does nothing


def test_files_of_a_deleted_partition_are_removed_after_a_restart() -> None:
    machine = Machine()
    directory, _ = machine.load(LogSettings())
    directory.delete(PARTITION)
    machine.kill()
    directory = machine.start()
    assert list(directory.load(lambda _: LogSettings())) == []
    (removal,) = directory.removals
    removal.run()
    assert machine.files.list_directory(DATA) == [".lock", "meta.properties"]


def test_partition_with_a_long_name_can_be_deleted() -> None:
    machine = Machine()
    directory = machine.start()
    partition = TopicPartition(TopicName("t" * 249), PartitionIndex(12345))
    directory.create(partition, TOPIC_ID, LogSettings())
    directory.delete(partition)
    assert len(directory.removals[0].path) - len(DATA) - 1 <= 255


def test_partition_is_deleted_although_the_full_disk_refuses_a_longer_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()
    directory, log = machine.load(LogSettings())
    append(log, batch(b"a"))
    rename = machine.files.rename

    def rename_if_space(old: str, new: str) -> None:
        if machine.files.list_directory(old):
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(old, new)

    monkeypatch.setattr(machine.files, "rename", rename_if_space)
    directory.delete(PARTITION)
    assert not machine.files.exists(f"{DATA}/{PARTITION}")
    assert directory.removals[0].run()
    assert machine.files.list_directory(DATA) == [".lock", "meta.properties"]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_deleted_log_keeps_its_topic_id_while_it_has_other_files(
    monkeypatch: pytest.MonkeyPatch, *, is_reversed: bool
) -> None:
    """Otherwise a new topic of the same name gets the files that a crash leaves."""
    machine = Machine()
    directory, log = machine.load(LogSettings())
    append(log, batch(b"a"))
    files = machine.files
    names = sorted(files.list_directory(log.path), reverse=is_reversed)
    left = [len(names) - 1]
    unlink = files.unlink

    def unlink_some(path: str) -> None:
        if not left[0]:
            raise OSError(errno.EIO, "the process ends here")
        left[0] -= 1
        unlink(path)

    def refuse(old: str, new: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "list_directory", lambda _: names)
    monkeypatch.setattr(files, "rename", refuse)
    monkeypatch.setattr(files, "unlink", unlink_some)
    with pytest.raises(OSError, match="ends here"):
        directory.delete(PARTITION)
    machine.kill()
    _, log = machine.load(LogSettings())
    assert log.topic_id == TOPIC_ID


def test_start_offset_survives_in_its_checkpoint() -> None:
    machine = Machine()
    directory, log = machine.load(LogSettings())
    for _ in range(5):
        append(log, batch(b"a"))
    log.delete_records_before(3)
    directory.checkpoint().write()
    machine.kill()
    _, log = machine.load(LogSettings())
    assert log.start_offset == 3


def test_checkpoints_keep_partitions_that_are_not_loaded() -> None:
    machine = Machine()
    directory, log = machine.load(LogSettings())
    append(log, batch(b"a"))
    stop_cleanly(directory)
    directory = machine.start()
    directory.find()
    directory.checkpoint().write()
    content = read_whole(machine.files, f"{DATA}/replication-offset-checkpoint")
    assert parse_offsets(content) == {PARTITION: 1}


def test_damaged_checkpoint_loses_no_records() -> None:
    machine = Machine()
    directory, log = machine.load(LogSettings())
    append(log, batch(b"a"))
    stop_cleanly(directory)
    write(machine, f"{DATA}/recovery-point-offset-checkpoint", b"0\nmany\n")
    directory, log = machine.load(LogSettings())
    assert not directory.was_clean
    log.advance_high_watermark(1)
    assert read_all(log) == [(0, b"a")]


def test_clean_shutdown_marker_contains_the_broker_epoch() -> None:
    machine = Machine()
    directory = machine.start()
    directory.mark_clean(broker_epoch=42)
    content = json.loads(read_whole(machine.files, f"{DATA}/.kafka_cleanshutdown"))
    assert content == {"version": 0, "brokerEpoch": 42}
    directory.close()
    directory = machine.start()
    assert directory.was_clean
    assert directory.previous_broker_epoch == 42
    assert not machine.files.exists(f"{DATA}/.kafka_cleanshutdown")


def test_offline_directory_rejects_appends() -> None:
    machine = Machine()
    directory, log = machine.load(LogSettings())
    directory.fail(f"a sync failed: {errno.EIO}")
    assert directory.is_offline
    with pytest.raises(Exception, match="offline"):
        append(log, batch(b"a"))


def test_metadata_log_is_not_among_the_partitions() -> None:
    machine = Machine()
    directory = machine.start()
    log = directory.open_metadata(LogSettings())
    append(log, batch(b"a"))
    machine.kill()
    directory = machine.start()
    assert directory.find() == []
    assert directory.open_metadata(LogSettings()).end_offset == 1
    assert encode_uuid(log.topic_id) == "AAAAAAAAAAAAAAAAAAAAAQ"


def test_small_files_have_the_format_of_kafka() -> None:
    assert encode_offsets({PARTITION: Offset(5)}) == b"0\n1\ntopic 0 5\n"
    assert parse_uuid(encode_uuid(TOPIC_ID)) == TOPIC_ID
    data = encode_partition_metadata(TOPIC_ID)
    assert data == f"version: 0\ntopic_id: {encode_uuid(TOPIC_ID)}".encode()
    assert parse_partition_metadata(data) == TOPIC_ID
    for invalid in (b"", b"version: 1\ntopic_id: x", b"\xff"):
        with pytest.raises(CorruptCheckpoint):
            parse_partition_metadata(invalid)
