"""Copies of partitions as an audit reads them from their nodes."""

import pytest
import typer

import pyspark_riverrun
from riverrun.cli.options import NOT_FOUND
from riverrun.pipeline.audit import copies
from riverrun.pipeline.audit.copies import BATCH, COPY, FETCH_BYTES, read_copy
from riverrun.pipeline.audit.job import find_copies
from riverrun.pipeline.audit_command import replicas
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
