"""``riverrun pipeline run`` around its queries: how it is asked to end, and what it leaves."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from riverrun.pipeline import command, spark, supervisor
from riverrun.pipeline.declaration import Pipeline
from riverrun.pipeline.reading import read_pipeline
from riverrun.pipeline.status import PipelineStatus, QueryStatus, read_status

FILE = '[sources.a]\ntopic = "a"\n[sinks.b]\n'


class FakeSession:
    def __init__(self) -> None:
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


class FakeSupervisor:
    """One sink, whose batch is under way until it is asked to stop."""

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
            name="p", pid=os.getpid(), host=os.uname().nodename, master="local", ui=None,
            since_ms=1, now_ms=2, queries=[QueryStatus(sink="b", state=self.state)],
        )  # fmt: skip


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Handlers belong to the whole process."""
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
    monkeypatch.setattr(supervisor, "Supervisor", made)
    return made


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    file = tmp_path / "p.toml"
    file.write_text(FILE)
    return read_pipeline(file)


def run(pipeline: Pipeline) -> int:
    return command._run(pipeline, "local", is_once=False, ui_port=0, as_json=False)


def state_of(pipeline: Pipeline) -> str:
    found = read_status(pipeline.state)
    assert found is not None
    return found.queries[0].state


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_batch_end(
    session: FakeSession, fake: FakeSupervisor, pipeline: Pipeline, number: int
) -> None:
    fake.ticks = [lambda: os.kill(os.getpid(), number)]
    assert run(pipeline) == 0
    assert (fake.state, state_of(pipeline), session.is_stopped) == ("ended", "ended", True)


def test_a_start_may_be_interrupted(
    monkeypatch: pytest.MonkeyPatch, fake: FakeSupervisor, pipeline: Pipeline
) -> None:
    def open_session(*_: object) -> FakeSession:
        raise KeyboardInterrupt

    monkeypatch.setattr(spark, "open_session", open_session)
    assert run(pipeline) == 130
