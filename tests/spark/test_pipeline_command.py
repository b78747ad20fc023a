"""``riverrun pipeline run`` without Spark: signals, stop requests, status and exit codes."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from py4j.protocol import Py4JNetworkError

from riverrun.pipeline import command
from riverrun.pipeline.declaration.model import Pipeline
from riverrun.pipeline.declaration.parser import read_pipeline
from riverrun.pipeline.run import cluster_watch as watch
from riverrun.pipeline.run import session as spark
from riverrun.pipeline.run import supervisor
from riverrun.pipeline.run.display import Display, status_tables
from riverrun.pipeline.run.status import (
    SILENT_SECONDS_MAX,
    AlreadyRunning,
    PipelineStatus,
    QueryStatus,
    is_alive,
    is_stop_requested,
    process_started,
    read_status,
    request_stop,
    run_lock,
    write_status,
)

FILE = '[sources.a]\ntopic = "a"\n[sinks.b]\ninput = "a"\n'


class FakeSession:
    def __init__(self) -> None:
        self.is_stopped = False
        self.ending: Callable[[], None] = lambda: None

    def stop(self) -> None:
        self.is_stopped = True
        self.ending()


class FakeSupervisor:
    """One sink, whose batch runs until the supervisor is stopped."""

    def __init__(self) -> None:
        self.is_over = False
        self.failures: list[str] = []
        self.state = "starting"
        self.ticks: list[Callable[[], None]] = []

    def __call__(self, _spark: object, pipeline: Pipeline, *, is_once: bool) -> "FakeSupervisor":
        return self

    def tick(self) -> None:
        self.state = "running"
        self.ticks.pop(0)()

    def stop(self) -> None:
        self.state = "ended"

    def status(self) -> PipelineStatus:
        return PipelineStatus(
            name="p",
            pid=os.getpid(),
            host=os.uname().nodename,
            master="local",
            ui=None,
            since_ms=1,
            now_ms=2,
            queries=[QueryStatus(sink="b", state=self.state)],
        )


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Restore the signal handlers, which belong to the process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    made = FakeSession()

    def open_session(*_: object) -> FakeSession:
        def cancel_all(_number: int, _frame: object) -> None:
            raise KeyboardInterrupt

        signal.signal(signal.SIGINT, cancel_all)  # as PySpark does
        return made

    monkeypatch.setattr(spark, "open_session", open_session)
    return made


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeSupervisor:
    made = FakeSupervisor()
    monkeypatch.setattr(supervisor, "PipelineSupervisor", made)
    return made


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    file = tmp_path / "p.toml"
    file.write_text(FILE)
    return read_pipeline(file)


def file_of(pipeline: Pipeline) -> Path:
    assert pipeline.file is not None
    return pipeline.file


def run(pipeline: Pipeline) -> int:
    return command._run(pipeline, "local", is_once=False, ui_port=0, as_json=False)


def state_of(pipeline: Pipeline) -> str:
    found = read_status(pipeline.state)
    assert found is not None
    return found.queries[0].state


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_after_the_current_batch(
    session: FakeSession, fake: FakeSupervisor, pipeline: Pipeline, number: int
) -> None:
    fake.ticks = [lambda: os.kill(os.getpid(), number)]
    assert run(pipeline) == 0
    assert (fake.state, state_of(pipeline), session.is_stopped) == ("ended", "ended", True)


def gone() -> None:
    raise Py4JNetworkError("Error while receiving")


def test_signal_that_also_ends_java_is_no_failure(
    session: FakeSession, fake: FakeSupervisor, pipeline: Pipeline
) -> None:
    """timeout(1) and systemd send it to all processes of a group."""

    def end_all() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        gone()

    fake.ticks, session.ending = [end_all], gone
    assert run(pipeline) == 0
    assert (session.is_stopped, state_of(pipeline)) == (True, "ended")


def test_unexpected_end_of_java_is_reported(
    session: FakeSession,
    fake: FakeSupervisor,
    pipeline: Pipeline,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake.ticks, session.ending = [gone], gone
    assert run(pipeline) == 1
    assert "Spark's Java process has ended; run the pipeline again" in capsys.readouterr().err


def test_two_signals_at_once_count_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: list[int] = []
    times = [10.0, 10.1, 20.0]
    monkeypatch.setattr(os, "_exit", ends.append)
    monkeypatch.setattr(time, "monotonic", lambda: times.pop(0))
    received = command._install_signal_handlers()
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
    assert (received, ends) == ([signal.SIGTERM] * 2, [])
    os.kill(os.getpid(), signal.SIGTERM)
    assert ends == [128 + signal.SIGTERM], "a later signal exits at once"


def test_run_shows_queries_as_waiting_while_the_cluster_is_unreachable(
    session: FakeSession,
    fake: FakeSupervisor,
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreachable(_: object, status: PipelineStatus) -> PipelineStatus:
        return replace(status, queries=[replace(status.queries[0], state="waiting")])

    def check_and_stop() -> None:
        assert state_of(pipeline) == "waiting"
        request_stop(pipeline.state)

    monkeypatch.setattr(watch.ClusterWatch, "adjusted", unreachable)
    fake.ticks = [lambda: None, check_and_stop]
    assert run(pipeline) == 0
    assert state_of(pipeline) == "ended"


def test_start_can_be_interrupted(
    monkeypatch: pytest.MonkeyPatch, fake: FakeSupervisor, pipeline: Pipeline
) -> None:
    def open_session(*_: object) -> FakeSession:
        raise KeyboardInterrupt

    monkeypatch.setattr(spark, "open_session", open_session)
    assert run(pipeline) == 130
    found = read_status(pipeline.state)
    assert found is not None
    assert (found.has_ended, found.queries[0].state) == (True, "ended")


def test_starting_pipeline_has_a_status_and_can_be_stopped(
    monkeypatch: pytest.MonkeyPatch,
    fake: FakeSupervisor,
    pipeline: Pipeline,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """This holds even while Spark is starting, and after an earlier run."""
    write_status(pipeline.state, status_with(pid=2**22 + 1, has_ended=True))
    made = FakeSession()

    def open_session(*_: object) -> FakeSession:
        found = read_status(pipeline.state)
        assert found is not None
        (table,) = status_tables(found, is_running=is_alive(found))
        assert (table.title or "").startswith(f"p: starting as process {os.getpid()} on ")
        known = f"as process {os.getpid()} on "
        with pytest.raises(AlreadyRunning, match=known), run_lock(pipeline.state):
            pass
        with monkeypatch.context() as patched:
            patched.setattr(command, "STOP_SECONDS_MAX", -1)
            with pytest.raises(typer.Exit):
                command.stop(file_of(pipeline))
        return made

    monkeypatch.setattr(spark, "open_session", open_session)
    fake.ticks = []
    assert run(pipeline) == 0, "no query was started"
    assert f"process {os.getpid()}" in capsys.readouterr().err
    assert made.is_stopped
    assert state_of(pipeline) == "ended"


def test_internal_error_ends_the_status(
    session: FakeSession, fake: FakeSupervisor, pipeline: Pipeline
) -> None:
    def broken() -> None:
        raise AssertionError("a bug")

    fake.ticks = [broken]
    with pytest.raises(AssertionError, match="a bug"):
        run(pipeline)
    found = read_status(pipeline.state)
    assert found is not None
    assert (found.has_ended, is_alive(found)) == (True, False)
    assert session.is_stopped


def test_second_run_of_a_pipeline_is_refused(
    session: FakeSession,
    fake: FakeSupervisor,
    pipeline: Pipeline,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with run_lock(pipeline.state):
        request_stop(pipeline.state)
        with pytest.raises(typer.Exit) as caught:
            run(pipeline)
        assert is_stop_requested(pipeline.state), "the request is for the other run"
    assert caught.value.exit_code == 1
    assert "it is already running" in capsys.readouterr().err
    fake.ticks = [lambda: request_stop(pipeline.state)]
    assert run(pipeline) == 0, "the old request is not for this run"
    assert fake.ticks == []


def status_with(**more: Any) -> PipelineStatus:
    fields: dict[str, Any] = {
        "name": "p",
        "pid": os.getpid(),
        "host": os.uname().nodename,
        "master": "local",
        "ui": None,
        "since_ms": 1,
        "now_ms": 1000,
        "queries": [],
    }
    return PipelineStatus(**fields | more)


def test_remote_pipeline_is_alive_while_its_status_is_recent() -> None:
    elsewhere = status_with(host="another")
    assert is_alive(elsewhere, now_s=1.0 + SILENT_SECONDS_MAX - 1)
    assert not is_alive(elsewhere, now_s=1.0 + SILENT_SECONDS_MAX)
    assert not is_alive(status_with(host="another", has_ended=True), now_s=1.0)


def test_reused_process_id_is_not_alive() -> None:
    assert is_alive(status_with(process_started=process_started(os.getpid())))
    assert not is_alive(status_with(process_started="1"))
    assert not is_alive(status_with(pid=2**22 + 1))


def test_stop_works_for_a_pipeline_on_another_machine(pipeline: Pipeline) -> None:
    now_ms = int(time.time() * 1000)
    write_status(pipeline.state, status_with(host="another", now_ms=now_ms))

    def end(_: float) -> None:
        assert is_stop_requested(pipeline.state)
        write_status(pipeline.state, status_with(host="another", now_ms=now_ms, has_ended=True))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "sleep", end)
        command.stop(file_of(pipeline))


def test_lines_always_have_a_failure_column() -> None:
    lines: list[str] = []
    with Display(lines.append, as_json=False) as display:
        display.show(status_with(queries=[QueryStatus(sink="b")]))
        display.show(status_with(queries=[QueryStatus(sink="b", reason="one\tand another\nline")]))
    assert [line.split("\t")[-1] for line in lines] == ["-", "one\\tand another\\nline"]
    assert [line.count("\t") for line in lines] == [8, 8]


def test_status_of_another_version_is_readable(tmp_path: Path) -> None:
    write_status(tmp_path, status_with(queries=[QueryStatus(sink="b")]))
    file = tmp_path / "status.json"
    file.write_text(file.read_text().replace('"sink"', '"mood": 5, "sink"', 1))
    found = read_status(tmp_path)
    assert found is not None
    assert found.queries[0].sink == "b"
