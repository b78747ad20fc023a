"""Checks of ``riverrun pipeline run`` before Spark starts."""

from pathlib import Path

import pytest
import typer

from riverrun.cli.support.options import NOT_FOUND, UNREACHABLE
from riverrun.pipeline import command
from riverrun.pipeline.declaration.model import Pipeline
from riverrun.pipeline.declaration.parser import read_pipeline
from riverrun.pipeline.run import preflight
from riverrun.pipeline.run.status import write_status
from riverrun.pipeline.topics import create_topic
from tests.clusters import Cluster
from tests.spark.test_pipeline_command import status_with

FILE = '[sources.a]\ntopic = "{topic}"\n[sinks.b]\ninput = "a"\n'
CHAIN = '[sources.a]\ntopic = "evnets"\n[sources.c]\ntopic = "middle"\n[sinks.b]\ninput = "a"\n' + (
    'topic = "middle"\n[sinks.d]\ninput = "c"\n'
)
ONLY_FILES = '[sources.a]\nfiles = "in"\nformat = "csv"\nschema = "a INT"\n[sinks.b]\ninput = "a"\n'


def declared(folder: Path, text: str, bootstrap: str) -> Pipeline:
    file = folder / "p.toml"
    file.write_text(text)
    return read_pipeline(file, bootstrap=bootstrap)


@pytest.mark.parametrize("is_once", [True, False])
def test_first_start_reports_an_unreachable_cluster(
    tmp_path: Path, nowhere: str, is_once: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = declared(tmp_path, FILE.format(topic="a"), nowhere)
    assert pipeline.file is not None
    with pytest.raises(typer.Exit) as caught:
        command.run(pipeline.file, is_once=is_once, bootstrap=nowhere)
    assert caught.value.exit_code == UNREACHABLE
    shown = capsys.readouterr().err
    assert "cannot reach a cluster" in shown
    assert "--bootstrap HOST:PORT" in shown


def test_later_start_waits_for_the_cluster_unless_once(tmp_path: Path, nowhere: str) -> None:
    pipeline = declared(tmp_path, FILE.format(topic="a"), nowhere)
    write_status(pipeline.state, status_with(has_ended=True))
    preflight.check_before_start(pipeline, is_once=False)
    with pytest.raises(typer.Exit):
        preflight.check_before_start(pipeline, is_once=True)


def test_files_and_tables_need_no_cluster(tmp_path: Path, nowhere: str) -> None:
    preflight.check_before_start(declared(tmp_path, ONLY_FILES, nowhere), is_once=True)


def test_topics_that_the_pipeline_creates_are_not_missing(tmp_path: Path, nowhere: str) -> None:
    pipeline = declared(tmp_path, CHAIN, nowhere)
    (sentence,) = preflight.missing_topics(pipeline, ["events", "others"])
    assert sentence.startswith("sources.a: topic evnets does not exist; did you mean events?\n")
    assert f"or correct it in {pipeline.file}" in sentence
    assert preflight.missing_topics(pipeline, ["evnets"]) == []


def test_once_fails_if_a_topic_is_missing(
    tmp_path: Path, spark_cluster: Cluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = declared(tmp_path, FILE.format(topic=topic), spark_cluster.bootstrap)
    preflight.check_before_start(pipeline, is_once=False)
    with pytest.raises(typer.Exit) as caught:
        preflight.check_before_start(pipeline, is_once=True)
    assert caught.value.exit_code == NOT_FOUND
    shown = capsys.readouterr().err
    assert f"sources.a: topic {topic} does not exist" in shown
    assert f"Create it with `riverrun topics create {topic}`" in shown
    create_topic(spark_cluster.bootstrap, topic)
    preflight.check_before_start(pipeline, is_once=True)
