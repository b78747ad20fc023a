"""Copies of partitions as an audit reads them from their nodes."""

import errno
from dataclasses import replace

import pytest
import typer

import pyspark_riverrun
from riverrun.cli.support.options import NOT_FOUND
from riverrun.pipeline.audit import replica_reader as copies
from riverrun.pipeline.audit.command import replicas
from riverrun.pipeline.audit.replica_reader import (
    ABSENT,
    BATCH,
    COPY,
    FETCH_BYTES,
    Copy,
    in_words,
    read_copy,
)
from riverrun.pipeline.audit.replicas import Difference, Outcome, find_copies
from riverrun.pipeline.topics import ask, make_topic
from tests.clusters import Cluster
from tests.spark.pipelines import write

TIMES = 3
RECORDS = 6


def test_a_long_copy_is_read_in_slices(
    spark_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task holds as much as it is asked for at a time, and each batch comes once."""
    text = "x" * (FETCH_BYTES // 8)
    for _ in range(TIMES):
        write(spark_cluster.bootstrap, topic, [text] * RECORDS)
    found = ask(spark_cluster.bootstrap, lambda pool: find_copies(pool, [topic]))
    monkeypatch.setattr(copies, "SLICE_ROWS", 1)
    seen = {}
    for copy in found:
        slices = [*read_copy(copy)]
        rows = [row for each in slices for row in each]
        assert [row["kind"] for row in rows] == [BATCH] * (len(rows) - 1) + [COPY]
        assert rows[-1]["text"] == ""
        bounds = [(row["base"], row["last"]) for row in rows[:-1]]
        assert [base for base, _ in bounds] == [0, *(int(str(last)) + 1 for _, last in bounds[:-1])]
        assert bounds[-1][1] == copy.end - 1
        seen[copy.partition, copy.node] = len(slices)
    assert len(seen) == len(found)
    assert max(seen.values()) > 1


def test_a_topic_that_is_not_there_is_named_before_spark_starts(
    spark_cluster: Cluster,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_topic(spark_cluster.bootstrap, topic)
    monkeypatch.delattr(pyspark_riverrun, "session")
    with pytest.raises(typer.Exit) as caught:
        replicas([topic, f"{topic}x"], bootstrap=spark_cluster.bootstrap)
    assert caught.value.exit_code == NOT_FOUND
    told = capsys.readouterr().err
    assert f"there is no topic {topic}x; did you mean {topic}" in told


def test_a_node_that_is_down_is_told_in_words() -> None:
    copy = Copy(
        topic="t", topic_id="", partition=0, node=3, host="127.0.0.1", port=1, end=9,
        is_compacted=False,
    )  # fmt: skip
    ((row,),) = read_copy(copy)
    assert (row["kind"], row["text"]) == (ABSENT, "cannot be reached (connection refused)")
    ((row,),) = read_copy(replace(copy, host=""))
    assert (row["kind"], row["text"]) == (ABSENT, "cannot be reached (it is not up)")
    assert in_words(TimeoutError()) == "no answer in time"
    raw = ConnectionResetError(errno.ECONNRESET, "Read failed ('127.0.0.1', 9092)")
    assert in_words(raw) == "connection reset by peer"


@pytest.mark.parametrize(
    ("unread", "kinds", "words"),
    [
        (0, [], "3 copies of 1 partitions are equal"),
        (1, [True], "1 of 3 copies could not be read, those that were are equal"),
        (0, [False], "3 copies of 1 partitions differ"),
        (1, [False, True], "3 copies of 1 partitions differ, and 1 of 3 copies could not be read"),
    ],
)
def test_what_could_not_be_read_does_not_differ(unread: int, kinds: list[bool], words: str) -> None:
    found = [
        Difference(topic="t", partition=0, offset=5, text="", is_unread=kind) for kind in kinds
    ]
    outcome = Outcome(copies=3, partitions=1, compared=7, unread=unread, differences=found)
    assert outcome.in_words() == f"{words} (7 batches and keys read)"
