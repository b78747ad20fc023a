"""How an audit reads copies of partitions from their nodes."""

import errno
from dataclasses import replace

import pytest
import typer

from riverrun.cli.support.options import NOT_FOUND
from riverrun.pipeline.audit import replica_reader
from riverrun.pipeline.audit.command import replicas
from riverrun.pipeline.audit.replica_reader import (
    ABSENT,
    BATCH,
    COPY,
    FETCH_BYTES,
    ReplicaCopy,
    error_summary,
    read_replica,
)
from riverrun.pipeline.audit.replicas import AuditResult, CopyDifference, find_replicas
from riverrun.pipeline.run import short_job
from riverrun.pipeline.topics import create_topic, run_request
from tests.clusters import Cluster
from tests.spark.pipelines import write

TIMES = 3
RECORDS = 6


def test_reader_returns_a_long_copy_in_slices(
    spark_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task holds one slice at a time, and each batch is returned once."""
    text = "x" * (FETCH_BYTES // 8)
    for _ in range(TIMES):
        write(spark_cluster.bootstrap, topic, [text] * RECORDS)
    found = run_request(spark_cluster.bootstrap, lambda pool: find_replicas(pool, [topic]))
    monkeypatch.setattr(replica_reader, "SLICE_ROWS", 1)
    seen = {}
    for copy in found:
        slices = [*read_replica(copy, {})]
        rows = [row for each in slices for row in each]
        assert [row["kind"] for row in rows] == [BATCH] * (len(rows) - 1) + [COPY]
        assert rows[-1]["text"] == ""
        bounds = [(row["base"], row["last"]) for row in rows[:-1]]
        assert [base for base, _ in bounds] == [0, *(int(str(last)) + 1 for _, last in bounds[:-1])]
        assert bounds[-1][1] == copy.end - 1
        seen[copy.partition, copy.node] = len(slices)
    assert len(seen) == len(found)
    assert max(seen.values()) > 1


def test_audit_names_a_missing_topic_before_spark_starts(
    spark_cluster: Cluster,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    create_topic(spark_cluster.bootstrap, topic)
    monkeypatch.setattr(short_job, "run_job", lambda *_, **__: pytest.fail("Spark starts"))
    with pytest.raises(typer.Exit) as caught:
        replicas([topic, f"{topic}x"], bootstrap=spark_cluster.bootstrap)
    assert caught.value.exit_code == NOT_FOUND
    error_output = capsys.readouterr().err
    assert f"there is no topic {topic}x; did you mean {topic}" in error_output


def test_unreachable_node_is_described() -> None:
    copy = ReplicaCopy(
        topic="t",
        topic_id="",
        partition=0,
        node=3,
        host="127.0.0.1",
        port=1,
        end=9,
        is_compacted=False,
    )
    ((row,),) = read_replica(copy, {})
    assert (row["kind"], row["text"]) == (ABSENT, "cannot be reached (connection refused)")
    ((row,),) = read_replica(replace(copy, host=""), {})
    assert (row["kind"], row["text"]) == (ABSENT, "cannot be reached (the node is down)")
    assert error_summary(TimeoutError()) == "no response in time"
    raw = ConnectionResetError(errno.ECONNRESET, "Read failed ('127.0.0.1', 9092)")
    assert error_summary(raw) == "connection reset by peer"


@pytest.mark.parametrize(
    ("unread", "kinds", "words"),
    [
        (0, [], "3 copies of 1 partitions are equal"),
        (1, [True], "1 of 3 copies could not be read, the others are equal"),
        (0, [False], "3 copies of 1 partitions differ"),
        (1, [False, True], "3 copies of 1 partitions differ, and 1 of 3 copies could not be read"),
    ],
)
def test_unread_copies_are_not_differences(unread: int, kinds: list[bool], words: str) -> None:
    found = [
        CopyDifference(topic="t", partition=0, offset=5, text="", is_unread=kind) for kind in kinds
    ]
    outcome = AuditResult(copies=3, partitions=1, compared=7, unread=unread, differences=found)
    assert outcome.summary() == f"{words} (7 batches and keys read)"
