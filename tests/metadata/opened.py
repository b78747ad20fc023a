"""A metadata log on given files, opened as a node does."""

from uuid import UUID

from riverrun.metadata.metadata_log import MetadataLog
from riverrun.metadata.records import PartitionRecord, Record, TopicRecord
from riverrun.metadata.settings import MetadataSettings
from riverrun.model.ids import NodeId, PartitionIndex, TopicName, TopicPartition
from riverrun.ports.clock import Clock
from riverrun.ports.files import Files
from riverrun.storage.log import Log
from riverrun.storage.recovery.log_recovery import RecoverySituation, recover
from riverrun.storage.segment.open_files import OpenFiles
from riverrun.storage.settings import LogSettings

PARTITION = TopicPartition(TopicName("__cluster_metadata"), PartitionIndex(0))
DIRECTORY_ID = UUID(int=77)


class FixedClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return 1.0


def open_log(files: Files, path: str, settings: MetadataSettings, clock: Clock) -> Log:
    """Like ``LogDirectory.open_metadata``, without the directory."""
    files.make_directory(path)
    open_files = OpenFiles(files, 100)
    log_settings = LogSettings(
        segment_bytes=settings.segment_bytes,
        segment_ms=settings.segment_ms,
        cleanup_policy=(),
        retention_ms=-1,
    )
    situation = RecoverySituation(
        path=path,
        settings=log_settings,
        start_offset=0,
        recovery_point=0,
        was_clean=False,
        now_ms=clock.now_ms(),
    )
    recovered = recover(files, open_files, situation)
    return Log(
        files,
        open_files,
        recovered,
        partition=PARTITION,
        topic_id=UUID(int=1),
        path=path,
        settings=situation.settings,
        high_watermark=0,
        jitter=0.0,
    )


async def open_metadata(
    files: Files,
    path: str,
    *,
    settings: MetadataSettings | None = None,
    clock: Clock | None = None,
    node_id: int = 1,
    directory_id: UUID = DIRECTORY_ID,
    port: int = 9093,
) -> MetadataLog:
    settings = settings or MetadataSettings()
    clock = clock or FixedClock()
    return await MetadataLog.open(
        open_log(files, path, settings, clock),
        files=files,
        node_id=NodeId(node_id),
        directory_id=directory_id,
        controller_endpoints={"CONTROLLER": ("127.0.0.1", port)},
        clock=clock,
        settings=settings,
    )


def topic_records(name: str, number: int, partitions: int = 1) -> list[Record]:
    topic: list[Record] = [TopicRecord(name=name, topic_id=UUID(int=number))]
    return topic + [
        PartitionRecord(
            partition_id=index,
            topic_id=UUID(int=number),
            replicas=(1,),
            isr=(1,),
            removing_replicas=(),
            adding_replicas=(),
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
            directories=(DIRECTORY_ID,),
        )
        for index in range(partitions)
    ]
