"""The data directories of all nodes: size, free space and partitions."""

from __future__ import annotations

from dataclasses import dataclass

from riverrun.admin.requests import NotFound, ask_each
from riverrun.admin.tables import Bad, ByteCount, Cell, Good, Table
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_log_dirs_request import DescribeLogDirsRequest
from riverrun.wire.messages.describe_log_dirs_response import DescribeLogDirsResult

ANSWER_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryRow:
    """A data directory of a node; None where unknown."""

    node: int
    path: str | None
    """None if the node does not respond."""
    sizes: dict[TopicPartition, int]
    free_bytes: int | None
    total_bytes: int | None
    error: str | None = None
    is_cordoned: bool = False

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes.values())

    @property
    def state(self) -> str:
        if self.path is None:
            return "unreachable"
        return self.error or ("cordoned" if self.is_cordoned else "online")

    def described(self) -> dict[str, object]:
        return {
            "node": self.node, "directory": self.path, "state": self.state,
            "size_bytes": self.size_bytes, "free_bytes": self.free_bytes,
            "total_bytes": self.total_bytes,
            "partitions": [
                {"topic": at.topic, "partition": at.partition, "size_bytes": size}
                for at, size in sorted(self.sizes.items())
            ],
        }  # fmt: skip


async def ask_directories(
    pool: ConnectionPool,
    node: int | None = None,
    *,
    with_sizes: bool = True,
    limit_s: float = ANSWER_SECONDS_MAX,
) -> list[DirectoryRow]:
    """The directories of one node or of all; a node that does not respond is one row. Without
    sizes the response does not grow with the number of partitions."""
    await pool.metadata(())
    nodes = sorted(pool.cluster.nodes)
    if node is not None:
        if node not in nodes:
            raise NotFound(f"broker {node} is not up; `riverrun cluster nodes` lists the brokers")
        nodes = [node]
    message = DescribeLogDirsRequest(topics=None if with_sizes else ())
    messages = dict.fromkeys(nodes, message)
    answers, silent = await ask_each(pool, messages, ApiKey.DESCRIBE_LOG_DIRS, limit_s=limit_s)
    rows = [_directory(at, result) for at, answer in answers.items() for result in answer.results]
    rows += [
        DirectoryRow(node=at, path=None, sizes={}, free_bytes=None, total_bytes=None)
        for at in silent
    ]
    return sorted(rows, key=lambda row: (row.node, row.path or ""))


def _directory(node: int, result: DescribeLogDirsResult) -> DirectoryRow:
    return DirectoryRow(
        node=node,
        path=result.log_dir,
        sizes={
            TopicPartition(TopicName(topic.name), PartitionIndex(row.partition_index)): (
                row.partition_size
            )
            for topic in result.topics
            for row in topic.partitions
            if not row.is_future_key
        },
        free_bytes=None if result.usable_bytes < 0 else result.usable_bytes,
        total_bytes=None if result.total_bytes < 0 else result.total_bytes,
        error=None if result.error_code is ErrorCode.NONE else result.error_code.name,
        is_cordoned=result.is_cordoned,
    )


def directories_table(rows: list[DirectoryRow]) -> Table:
    def cells(row: DirectoryRow) -> tuple[Cell, ...]:
        is_known = row.path is not None
        return (
            str(row.node), row.path,
            Good(row.state) if row.state == "online" else Bad(row.state),
            len(row.sizes) if is_known else None, ByteCount(row.size_bytes) if is_known else None,
            None if row.free_bytes is None else ByteCount(row.free_bytes),
            None if row.total_bytes is None else ByteCount(row.total_bytes),
        )  # fmt: skip

    columns = ("node", "directory", "state", "partitions", "size", "free", "total")
    return Table(columns=columns, rows=[cells(row) for row in rows])
