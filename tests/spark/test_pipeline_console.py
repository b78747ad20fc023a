"""The console sees a running pipeline through the cluster, stops it and starts it again."""

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from riverrun.pipeline.declaration.model import Pipeline
from riverrun.pipeline.run.driver import PipelineDriver
from riverrun.pipeline.run.status import starting_status, state_of_pipeline
from tests.clusters import Cluster
from tests.processes import until
from tests.spark.drivers import drive
from tests.spark.pipelines import write
from tests.spark.test_pipeline_command import (
    FakeSession,
    FakeSupervisor,
    fake,
    pipeline,
    session,
)

__all__ = ["fake", "pipeline", "session"]

WAIT_SECONDS = 30
STATE_SECONDS_MAX = 120


def driver_of(pipeline: Pipeline, session: FakeSession, *, is_once: bool = False) -> PipelineDriver:
    starting = starting_status(
        pipeline.name, "local", list(pipeline.sinks), log="log", bootstrap=pipeline.bootstrap
    )
    open_session: Any = lambda: session  # noqa: E731 (a fake session)
    return PipelineDriver(pipeline, open_session, starting, is_once=is_once)


def state(driver: PipelineDriver) -> str:
    return state_of_pipeline(driver.status(), is_running=not driver.is_over)


def wait_for(driver: PipelineDriver, wanted: str) -> None:
    until(lambda: state(driver) == wanted, seconds=WAIT_SECONDS, what=f"it is {wanted}")


def test_paused_pipeline_waits_and_starts_again(
    pipeline: Pipeline, session: FakeSession, fake: FakeSupervisor
) -> None:
    driver = driver_of(pipeline, session)
    driver.start()
    wait_for(driver, "running")
    driver.pause()
    wait_for(driver, "stopped")
    assert not session.is_stopped
    assert not driver.is_over
    driver.resume()
    wait_for(driver, "running")
    driver.stop()
    until(lambda: driver.is_over, seconds=WAIT_SECONDS, what="it ends")
    assert session.is_stopped
    assert driver.failures == []


def test_paused_pipeline_can_be_ended(
    pipeline: Pipeline, session: FakeSession, fake: FakeSupervisor
) -> None:
    driver = driver_of(pipeline, session)
    driver.start()
    wait_for(driver, "running")
    driver.pause()
    wait_for(driver, "stopped")
    driver.stop()
    until(lambda: driver.is_over, seconds=WAIT_SECONDS, what="it ends")


def test_pause_waits_for_the_current_batch(
    pipeline: Pipeline, session: FakeSession, fake: FakeSupervisor
) -> None:
    batch = threading.Event()
    fake.stopping = lambda: batch.wait(WAIT_SECONDS)
    driver = driver_of(pipeline, session)
    driver.start()
    wait_for(driver, "running")
    driver.pause()
    batch.set()
    wait_for(driver, "stopped")
    driver.stop()
    until(lambda: driver.is_over, seconds=WAIT_SECONDS, what="it ends")


def test_run_that_ends_by_itself_is_not_paused(
    pipeline: Pipeline, session: FakeSession, fake: FakeSupervisor
) -> None:
    driver = driver_of(pipeline, session, is_once=True)
    driver.start()
    wait_for(driver, "running")
    driver.pause()
    until(lambda: driver.is_over, seconds=WAIT_SECONDS, what="it ends")


@pytest.mark.timeout(400)
def test_console_shows_stops_and_starts_a_real_pipeline(
    spark_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    bootstrap = spark_cluster.bootstrap
    write(bootstrap, topic, [{"id": number} for number in range(10)])
    file = tmp_path / "seen.toml"
    file.write_text(
        f"""
[pipeline]
name = "{topic}"
bootstrap = "{bootstrap}"
[sources.a]
topic = "{topic}"
schema = "id BIGINT"
[sinks.b]
input = "a"
path = "{tmp_path / "table"}"
trigger = "1 second"
"""
    )
    base = f"http://{spark_cluster.nodes[1].http}/api/v1/clusters/main/pipelines/{topic}"
    with httpx.Client(timeout=60) as client, drive(file, topic) as driver:

        def found() -> dict[str, Any]:
            response = client.get(base)
            return response.json() if response.status_code == 200 else {}

        def wait_for_state(wanted: str) -> dict[str, Any]:
            until(
                lambda: found().get("state") == wanted,
                seconds=STATE_SECONDS_MAX,
                what=f"the console shows {wanted}: {driver.logs()}",
            )
            return found()

        def send(command: str) -> None:
            response = client.post(f"{base}/{command}", json={"dry_run": False})
            assert response.status_code == 200, response.text

        driver.wait_for_rows({"b": 9})
        shown = wait_for_state("running")
        until(lambda: found()["queries"][0]["rows"] == 10, seconds=60, what="its rows are shown")
        assert shown["queries"][0]["source"] == f"topic {topic}"
        send("stop")
        wait_for_state("stopped")
        write(bootstrap, topic, [{"id": number} for number in range(5)])
        send("start")
        wait_for_state("running")
        # The queries continue where they stopped: only the new rows are written.
        until(lambda: driver.rows().get("b") == 5, seconds=120, what=driver.logs())
        driver.process.terminate()
        wait_for_state("ended")
