"""``riverrun pipeline run`` without Spark: signals, stop requests, status and exit codes."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from py4j.protocol import Py4JNetworkError
from typer.testing import CliRunner

from riverrun.cli.main import build
from riverrun.pipeline import command
from riverrun.pipeline.declaration.model import Pipeline
from riverrun.pipeline.declaration.parser import read_pipeline
from riverrun.pipeline.run import cluster_watch as watch
from riverrun.pipeline.run import foreground, supervisor
from riverrun.pipeline.run import session as spark
from riverrun.pipeline.run.display import Display, status_tables, under_way
from riverrun.pipeline.run.foreground import SAME_SIGNAL_SECONDS, StopSignals
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
from tests.processes import until

WAIT_SECONDS = 30
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
        self.stopping: Callable[[], object] = lambda: None
        self.batch: int | None = None

    def __call__(self, _spark: object, pipeline: Pipeline, *, is_once: bool) -> "FakeSupervisor":
        return self

    def tick(self) -> None:
        self.state = "running"
        if self.ticks:
            self.ticks.pop(0)()

    def fail(self, reason: str) -> None:
        self.state = "failed"
        self.failures.append(reason)

    def stop(self) -> None:
        self.stopping()
        if self.state != "failed":
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
            queries=[QueryStatus(sink="b", state=self.state, current_batch=self.batch)],
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

        if threading.current_thread() is threading.main_thread():
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
    display = Display(print, lambda text: print(text, file=sys.stderr), as_json=False)
    return command._run(pipeline, "local", display, is_once=False, ui_port=0)


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


def test_two_signals_at_once_count_as_one() -> None:
    times = [10.0, 10.0 + SAME_SIGNAL_SECONDS[signal.SIGTERM], 20.0]
    received = StopSignals(now=lambda: times.pop(0))
    for _ in range(2):
        received.receive(signal.SIGTERM)
    assert (received.number, received.is_repeated) == (signal.SIGTERM, False)
    received.receive(signal.SIGINT)
    assert (received.number, received.is_repeated) == (signal.SIGINT, True)


class ExitedNow(Exception):
    """Instead of the end of the process."""


@pytest.fixture
def acknowledged(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the user is told that the run ends."""
    told, original = threading.Event(), Display.announce

    def announce(self: Display, text: str) -> None:
        original(self, text)
        told.set()

    monkeypatch.setattr(Display, "announce", announce)
    return told


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    codes: list[int] = []

    def exit_now(code: int) -> None:
        codes.append(code)
        raise ExitedNow

    monkeypatch.setattr(foreground, "exit_now", exit_now)
    return codes


def test_first_signal_is_acknowledged_and_a_second_one_ends_at_once(
    session: FakeSession,
    fake: FakeSupervisor,
    pipeline: Pipeline,
    exits: list[int],
    acknowledged: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(SAME_SIGNAL_SECONDS, signal.SIGINT, -1)
    has_ended = threading.Event()

    def batch() -> None:
        assert acknowledged.wait(WAIT_SECONDS), "before the batch ends"
        os.kill(os.getpid(), signal.SIGINT)
        has_ended.wait(WAIT_SECONDS)

    fake.batch = 3
    fake.ticks, fake.stopping = [lambda: os.kill(os.getpid(), signal.SIGINT)], batch
    with pytest.raises(ExitedNow):
        run(pipeline)
    has_ended.set()
    assert exits == [130]
    assert "ending after this batch; Ctrl-C again ends at once" in capsys.readouterr().err
    found = read_status(pipeline.state)
    assert found is not None
    assert (found.has_ended, found.queries[0].state) == (True, "ended")
    assert "the next run repeats" in (found.queries[0].reason or "")


def test_run_shows_queries_as_waiting_while_the_cluster_is_unreachable(
    session: FakeSession,
    fake: FakeSupervisor,
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreachable(_: object, status: PipelineStatus) -> PipelineStatus:
        if status.queries[0].state != "running":
            return status
        return replace(status, queries=[replace(status.queries[0], state="waiting")])

    def check_and_stop() -> None:
        until(lambda: state_of(pipeline) == "waiting", seconds=WAIT_SECONDS, what="it is shown")
        request_stop(pipeline.state)

    monkeypatch.setattr(watch.ClusterWatch, "adjusted", unreachable)
    fake.ticks = [check_and_stop]
    assert run(pipeline) == 0
    assert state_of(pipeline) == "ended"


def test_closed_pipe_ends_the_run_after_the_batch(
    session: FakeSession,
    fake: FakeSupervisor,
    pipeline: Pipeline,
    acknowledged: threading.Event,
) -> None:
    """As in ``riverrun pipeline run FILE | head``."""

    def closed(_: str) -> None:
        raise BrokenPipeError

    fake.stopping = lambda: acknowledged.wait(WAIT_SECONDS)
    display = Display(closed, lambda _: None, as_json=False)
    assert command._run(pipeline, "local", display, is_once=False, ui_port=0) == 0
    assert (acknowledged.is_set(), state_of(pipeline)) == (True, "ended")


def test_start_can_be_interrupted(
    monkeypatch: pytest.MonkeyPatch, fake: FakeSupervisor, pipeline: Pipeline, exits: list[int]
) -> None:
    """No exception is raised inside a call to Java: that would print pages of errors."""
    interrupted, errors = threading.Event(), list[BaseException]()

    def open_session(*_: object) -> FakeSession:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            interrupted.wait(WAIT_SECONDS)
        except BaseException as error:
            errors.append(error)
            raise
        return FakeSession()

    monkeypatch.setattr(spark, "open_session", open_session)
    with pytest.raises(ExitedNow):
        run(pipeline)
    interrupted.set()
    assert (exits, errors) == ([130], [])
    found = read_status(pipeline.state)
    assert found is not None
    assert (found.has_ended, found.queries[0].state) == (True, "ended")


def test_failed_start_of_spark_is_reported_with_its_log(
    monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    def open_session(*_: object) -> FakeSession:
        raise RuntimeError("Spark needs Java 17 or newer")

    monkeypatch.setattr(spark, "open_session", open_session)
    assert run(pipeline) == 1
    log = pipeline.state / "spark.log"
    wanted = f"Spark cannot start: Spark needs Java 17 or newer\n  Its log is {log}"
    assert wanted in capsys.readouterr().err
    assert state_of(pipeline) == "failed"


def test_starting_pipeline_has_a_status_and_can_be_stopped(
    monkeypatch: pytest.MonkeyPatch,
    fake: FakeSupervisor,
    pipeline: Pipeline,
    acknowledged: threading.Event,
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
        assert f"Spark's log is {pipeline.state}/spark.log" in (table.title or "")
        known = f"as process {os.getpid()} on "
        with pytest.raises(AlreadyRunning, match=known), run_lock(pipeline.state):
            pass
        with monkeypatch.context() as patched:
            patched.setattr(command, "STOP_SECONDS_MAX", -1)
            with pytest.raises(typer.Exit):
                command.stop(file_of(pipeline))
        assert acknowledged.wait(WAIT_SECONDS)
        return made

    monkeypatch.setattr(spark, "open_session", open_session)
    fake.ticks = [lambda: pytest.fail("a query was started")]
    assert run(pipeline) == 0
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


def lines_of(*statuses: PipelineStatus, as_json: bool = False) -> list[str]:
    """Lines of a run without a terminal. The last status is the last one of the run."""
    lines: list[str] = []
    with Display(lines.append, lines.append, as_json=as_json, has_headings=False) as display:
        for status in statuses:
            display.show(status, is_last=status is statuses[-1])
    return lines


def test_lines_always_have_a_failure_column() -> None:
    lines = lines_of(
        status_with(queries=[QueryStatus(sink="b")]),
        status_with(queries=[QueryStatus(sink="b", reason="one\tand another\nline")]),
    )
    assert [line.split("\t")[-1] for line in lines] == ["-", "one\\tand another\\nline"]
    assert [line.count("\t") for line in lines] == [11, 11]


def test_lines_start_with_headings() -> None:
    lines: list[str] = []
    with Display(lines.append, lines.append, as_json=False) as display:
        for state in ("starting", "running"):
            display.show(status_with(queries=[QueryStatus(sink="b", state=state)]))
    headings, *rows = [line.split("\t") for line in lines]
    assert headings[:4] == ["SINK", "STATE", "ROWS", "TOTAL"]
    assert [len(row) for row in rows] == [len(headings)] * 2


def test_last_line_of_a_sink_is_printed_once() -> None:
    def at(first: str, second: str, lag: int | None) -> PipelineStatus:
        queries = [
            QueryStatus(sink="a", state=first, lag=lag),
            QueryStatus(sink="b", state=second, reason="no disk" if second == "failed" else None),
        ]
        return status_with(queries=queries)

    statuses = [
        at("running", "running", None),
        at("running", "failed", 3),
        at("waiting", "failed", 3),
        at("ended", "failed", 3),
        at("ended", "failed", 0),
    ]
    shown = [line.split("\t")[:2] for line in lines_of(*statuses)]
    assert shown == [
        ["a", "running"],
        ["b", "running"],
        ["a", "running"],
        ["b", "failed"],
        ["a", "waiting"],
        ["a", "ended"],
    ]
    states = [
        [query["state"] for query in json.loads(line)["queries"]]
        for line in lines_of(*statuses, as_json=True)
    ]
    assert states[-2:] == [["waiting", "failed"], ["ended", "failed"]]


def test_batch_under_way_is_described() -> None:
    query = QueryStatus(sink="b", current_batch=3, current_records=48006, current_since_ms=1000)
    assert under_way(query, 35_999) == "batch 3 under way for 34 s, 48,006 records"
    assert under_way(QueryStatus(sink="b"), 0) is None
    files = QueryStatus(sink="b", current_batch=3, current_since_ms=1000)
    assert under_way(files, 2000) == "batch 3 under way for 1 s"
    (line,) = lines_of(status_with(now_ms=35_999, queries=[query]))
    assert line.split("\t")[-3:] == ["48006", "34", "-"]


def test_status_of_another_version_is_readable(tmp_path: Path) -> None:
    write_status(tmp_path, status_with(queries=[QueryStatus(sink="b")]))
    file = tmp_path / "status.json"
    file.write_text(file.read_text().replace('"sink"', '"mood": 5, "sink"', 1))
    found = read_status(tmp_path)
    assert found is not None
    assert found.queries[0].sink == "b"


def shown_status(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str], *, as_json: bool = False
) -> tuple[int, str]:
    capsys.readouterr()
    code = 0
    try:
        command.status(file_of(pipeline), as_json=as_json, no_headers=True)
    except typer.Exit as ended:
        code = ended.exit_code
    return code, capsys.readouterr().out


def test_dead_pipeline_is_reported_in_pipes_and_by_exit_code(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    query = QueryStatus(
        sink="b", state="running", rows=5, total=7, lag=0, current_batch=1, current_since_ms=1
    )
    killed = status_with(pid=2**22 + 1, log="/x/spark.log", queries=[query])
    write_status(pipeline.state, killed)
    code, shown = shown_status(pipeline, capsys)
    assert code == 1
    assert shown.splitlines() == [
        f"pipeline\tp\tdead\t{2**22 + 1}\t{os.uname().nodename}\t-\t/x/spark.log",
        "sink\tb\tdead\t5\t7\t0\t-\t-\t0\t0",
    ], "the lag of a dead pipeline is unknown without a cluster"
    code, shown = shown_status(pipeline, capsys, as_json=True)
    found = json.loads(shown)
    assert (code, found["state"], found["is_running"]) == (1, "dead", False)
    assert (found["queries"][0]["state"], found["queries"][0]["lag"]) == ("dead", None)


@pytest.mark.parametrize(
    ("state", "code", "shown"), [("ended", 0, "ended"), ("failed", 1, "failed")]
)
def test_exit_code_of_an_ended_pipeline_tells_whether_it_failed(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str], state: str, code: int, shown: str
) -> None:
    ended = status_with(has_ended=True, queries=[QueryStatus(sink="b", state=state)])
    write_status(pipeline.state, ended)
    found, text = shown_status(pipeline, capsys)
    assert (found, text.split("\t")[2]) == (code, shown)


def test_running_pipeline_has_exit_code_0(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    query = QueryStatus(
        sink="b", state="running", current_batch=2, current_records=9, current_since_ms=-4000
    )
    write_status(pipeline.state, status_with(queries=[query]))
    code, shown = shown_status(pipeline, capsys)
    assert (code, shown.split("\t")[2]) == (0, "running")
    assert "batch\tb\t2\t9\t5" in shown.splitlines()


@pytest.mark.parametrize(
    "words",
    [
        ["pipeline"],
        *(
            ["pipeline", name]
            for name in (
                "init",
                "validate",
                "run",
                "status",
                "stop",
                "pause",
                "resume",
                "tables",
                "pack",
            )
        ),
        ["audit", "replicas"],
    ],
    ids=lambda words: words[-1],
)
def test_help_fits_80_columns_and_names_arguments_in_upper_case(words: list[str]) -> None:
    shown = CliRunner().invoke(build(words), [*words, "--help"], terminal_width=80).stdout
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    assert "..." not in shown.partition("Commands:")[2], "descriptions are complete"
    assert "<" not in shown, "no <str>"
    usage = shown.splitlines()[0].split(words[-1])[1].split()
    assert all(word == word.upper() for word in usage), usage
