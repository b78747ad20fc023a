"""What ends ``riverrun pipeline run`` before Spark is started."""

import socket
from pathlib import Path

import pytest
import typer

from riverrun.cli.support.options import NOT_FOUND, UNREACHABLE
from riverrun.pipeline import command
from riverrun.pipeline.declaration.model import Pipeline
from riverrun.pipeline.declaration.parser import read_pipeline
from riverrun.pipeline.run import preflight as first_look
from riverrun.pipeline.run.status import write_status
from riverrun.pipeline.topics import make_topic
from tests.clusters import Cluster
from tests.spark.test_pipeline_command import told

FILE = '[sources.a]\ntopic = "{topic}"\n[sinks.b]\ninput = "a"\n'
CHAIN = '[sources.a]\ntopic = "evnets"\n[sources.c]\ntopic = "middle"\n[sinks.b]\ninput = "a"\n' + (
    'topic = "middle"\n[sinks.d]\ninput = "c"\n'
)
ONLY_FILES = '[sources.a]\nfiles = "in"\nformat = "csv"\nschema = "a INT"\n[sinks.b]\ninput = "a"\n'


def declared(folder: Path, text: str, bootstrap: str) -> Pipeline:
    file = folder / "p.toml"
    file.write_text(text)
    return read_pipeline(file, bootstrap=bootstrap)


@pytest.fixture
def nowhere() -> str:
    """An address where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize("is_once", [True, False])
def test_a_first_start_says_that_nobody_answers(
    tmp_path: Path, nowhere: str, is_once: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = declared(tmp_path, FILE.format(topic="a"), nowhere)
    assert pipeline.file is not None
    with pytest.raises(typer.Exit) as caught:
        command.run(pipeline.file, is_once=is_once, bootstrap=nowhere)
    assert caught.value.exit_code == UNREACHABLE
    shown = capsys.readouterr().err
    assert "cannot reach a cluster" in shown
    assert "say where it is with --bootstrap" in shown


def test_a_pipeline_that_has_run_waits_for_its_cluster_unless_it_runs_once(
    tmp_path: Path, nowhere: str
) -> None:
    pipeline = declared(tmp_path, FILE.format(topic="a"), nowhere)
    write_status(pipeline.state, told(has_ended=True))
    first_look.look(pipeline, is_once=False)
    with pytest.raises(typer.Exit):
        first_look.look(pipeline, is_once=True)


def test_files_and_tables_need_no_cluster(tmp_path: Path, nowhere: str) -> None:
    first_look.look(declared(tmp_path, ONLY_FILES, nowhere), is_once=True)


def test_topics_that_a_pipeline_makes_itself_are_not_missing(tmp_path: Path, nowhere: str) -> None:
    pipeline = declared(tmp_path, CHAIN, nowhere)
    (sentence,) = first_look.missing_topics(pipeline, ["events", "others"])
    assert sentence.startswith("sources.a: there is no topic evnets; did you mean events?\n")
    assert f"or correct it in {pipeline.file}" in sentence
    assert first_look.missing_topics(pipeline, ["evnets"]) == []


def test_once_ends_where_a_topic_is_missing(
    tmp_path: Path, spark_cluster: Cluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = declared(tmp_path, FILE.format(topic=topic), spark_cluster.bootstrap)
    first_look.look(pipeline, is_once=False)
    with pytest.raises(typer.Exit) as caught:
        first_look.look(pipeline, is_once=True)
    assert caught.value.exit_code == NOT_FOUND
    shown = capsys.readouterr().err
    assert f"sources.a: there is no topic {topic}" in shown
    assert f"Create it with `riverrun topics create {topic}`" in shown
    make_topic(spark_cluster.bootstrap, topic)
    first_look.look(pipeline, is_once=True)
