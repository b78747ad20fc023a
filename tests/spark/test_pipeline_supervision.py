"""The supervisor restarts failed queries with a back-off, and ends those that cannot recover."""

import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JNetworkError
from pyspark.errors import AnalysisException, ParseException, StreamingQueryException
from sqlalchemy.exc import OperationalError

from pyspark_riverrun.cluster.planner import DataLost
from pyspark_riverrun.options import BadOption
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.pipeline.declaration.model import Pipeline, PythonTransform
from riverrun.pipeline.errors import CannotContinue
from riverrun.pipeline.run.batches import BatchUnderWay, QueryCounts
from riverrun.pipeline.run.query import QueryStopping, SinkQuery
from riverrun.pipeline.run.supervisor import PipelineSupervisor, QuerySupervisor
from riverrun.pipeline.run.transforms import run_transforms
from riverrun.pipeline.sources.schemas import NoRecordsYet
from tests.processes import until

PAGES = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: An exception was \
thrown from the Python worker.
Traceback (most recent call last):
  File "worker.py", line 7, in main
    reader.latestOffset()
{cause}

=== Streaming Query ===
Identifier: [id = 1]
SQLSTATE: XXKST
"""


class MissingFiles(AnalysisException):
    def getCondition(self) -> str:
        return "PATH_NOT_FOUND"


class FakeQuery:
    def __init__(self) -> None:
        self.status: dict[str, Any] = {"message": "Processing new data", "isTriggerActive": False}
        self.stops: list[bool] = []
        self.isActive = True
        self.lastProgress: dict[str, Any] | None = None
        self.error: StreamingQueryException | None = None

    def exception(self) -> StreamingQueryException | None:
        return self.error

    def stop(self) -> None:
        self.stops.append(bool(self.status["isTriggerActive"]))
        self.isActive = False

    def fail(self, cause: str) -> None:
        self.isActive, self.error = False, StreamingQueryException(PAGES.format(cause=cause))

    def progress(self, batch: int) -> None:
        self.lastProgress = {
            "batchId": batch,
            "processedRowsPerSecond": 5.0,
            "sources": [],
            "durationMs": {"triggerExecution": 7},
        }


class FakeSinkQuery:
    def __init__(self) -> None:
        self.fatal: CannotContinue | None = None
        self.counts = QueryCounts()
        self.batch = threading.Lock()
        self.refuses_batches = False
        self.started: list[FakeQuery] = []
        self.refusal: Exception | None = None
        self.is_recreated = False

    def start(self, *, is_once: bool) -> FakeQuery:
        if self.refusal is not None:
            raise self.refusal
        self.started.append(FakeQuery())
        return self.started[-1]

    def has_recreated_topics(self) -> bool:
        return self.is_recreated

    def refuse_batches(self) -> None:
        self.refuses_batches = True

    def wait_for_batch(self) -> None:
        with self.batch:
            pass

    def publish_positions(self) -> None:
        pass


class FakeContext:
    master, uiWebUrl = "local", "http://here"


class FakeSession:
    def __init__(self) -> None:
        self.sparkContext: FakeContext | None = FakeContext()


@pytest.fixture
def sink_query() -> FakeSinkQuery:
    return FakeSinkQuery()


@pytest.fixture
def supervisor(sink_query: FakeSinkQuery) -> QuerySupervisor:
    return QuerySupervisor(sink_query, "s", is_once=False)  # type: ignore[arg-type]


def fail_once(supervisor: QuerySupervisor, sink_query: FakeSinkQuery, now: float) -> float:
    """Let the query fail now. Returns the pause before its restart."""
    sink_query.started[-1].fail("builtins.ConnectionError: no node responds")
    supervisor.tick(now)
    return supervisor.start_at - now


def test_failed_query_restarts_with_exponential_backoff(
    supervisor: QuerySupervisor, sink_query: FakeSinkQuery
) -> None:
    now = 100.0
    supervisor.tick(now)
    pauses = []
    for _ in range(8):
        pauses.append(fail_once(supervisor, sink_query, now))
        assert supervisor.status.state == "waiting"
        assert supervisor.status.reason == "builtins.ConnectionError: no node responds"
        supervisor.tick(now + pauses[-1] - 0.1)
        assert supervisor.status.state == "waiting", "the pause is not over"
        now += pauses[-1]
        supervisor.tick(now)
        assert supervisor.status.state == "running"
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert supervisor.status.restarts == 8
    sink_query.started[-1].progress(0)
    supervisor.tick(now)
    assert fail_once(supervisor, sink_query, now) == 1, "a batch succeeded"


def test_counts_of_the_last_batch_are_reported(
    supervisor: QuerySupervisor, sink_query: FakeSinkQuery
) -> None:
    supervisor.tick(0.0)
    sink_query.counts.rows = 42
    sink_query.started[-1].isActive = False
    supervisor.tick(1.0)
    assert (supervisor.status.state, supervisor.status.rows) == ("ended", 42)


def test_own_error_is_extracted_from_a_long_spark_error(
    supervisor: QuerySupervisor, sink_query: FakeSinkQuery
) -> None:
    supervisor.tick(0.0)
    sink_query.started[-1].fail(
        "riverrun.model.errors.KafkaError: topic t does not exist\n"
        "org.apache.spark.SparkException: Job aborted"
    )
    supervisor.tick(0.0)
    assert supervisor.status.reason == "KafkaError: topic t does not exist"


def test_lost_records_end_the_query_with_a_remedy(
    supervisor: QuerySupervisor, sink_query: FakeSinkQuery
) -> None:
    supervisor.tick(0.0)
    sink_query.started[-1].fail(
        f"{DataLost.__module__}.DataLost: offsets 3 to 7 of t-0 were deleted"
    )
    supervisor.tick(0.0)
    assert supervisor.status.state == "failed"
    reason = supervisor.status.reason or ""
    assert reason.startswith("sinks.s: DataLost: offsets 3 to 7 of t-0 were deleted")
    assert 'on_data_loss = "go-on"' in reason


def test_recreated_topic_restarts_the_query(
    supervisor: QuerySupervisor, sink_query: FakeSinkQuery
) -> None:
    supervisor.tick(0.0)
    sink_query.is_recreated = True
    sink_query.started[-1].fail("pyspark_riverrun.cluster.planner.DataLost: topic t was recreated")
    supervisor.tick(0.0)
    assert supervisor.status.state == "waiting"
    supervisor.tick(1.0)
    assert supervisor.status.state == "running"


@pytest.mark.parametrize(
    ("refusal", "state", "restarts"),
    [
        (NoRecordsYet("topic t does not exist yet"), "waiting", 0),
        (CannotContinue("delete the table"), "failed", 0),
        (KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no response"), "waiting", 1),
        (OSError("no route"), "waiting", 1),
        (DeltaError("the store is unavailable"), "waiting", 1),
        (OperationalError("SELECT 1", None, OSError("the catalog is unavailable")), "waiting", 1),
        (AnalysisException("[UNRESOLVED_COLUMN] no column x"), "failed", 0),
        (ParseException("[PARSE_SYNTAX_ERROR] at or near SELEC"), "failed", 0),
        (MissingFiles("[PATH_NOT_FOUND] /in"), "waiting", 0),
        (BadOption("no setting kafka.x"), "failed", 0),
    ],
)
def test_failed_start_waits_or_ends(
    supervisor: QuerySupervisor,
    sink_query: FakeSinkQuery,
    refusal: Exception,
    state: str,
    restarts: int,
) -> None:
    sink_query.refusal = refusal
    supervisor.tick(0.0)
    assert (supervisor.status.state, supervisor.status.restarts) == (state, restarts)
    assert str(refusal).splitlines()[0] in (supervisor.status.reason or "")


@pytest.mark.parametrize(
    "refusal", [NoRecordsYet("topic t does not exist yet"), MissingFiles("[PATH_NOT_FOUND] /in")]
)
def test_once_ends_without_input(sink_query: FakeSinkQuery, refusal: Exception) -> None:
    supervisor = QuerySupervisor(sink_query, "s", is_once=True)  # type: ignore[arg-type]
    sink_query.refusal = refusal
    supervisor.tick(0.0)
    assert (supervisor.status.state, supervisor.status.reason) == ("ended", str(refusal))


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        ("captured.AnalysisException: [UNRESOLVED_COLUMN] no column key", "failed"),
        ("captured.AnalysisException: [PATH_NOT_FOUND] file:/in", "waiting"),
        ("captured.PythonException: worker failed to connect back", "waiting"),
        ("pyspark_riverrun.options.BadOption: startingOffsets; missing: t-1", "waiting"),
    ],
)
def test_analysis_errors_end_the_query(
    supervisor: QuerySupervisor, sink_query: FakeSinkQuery, cause: str, state: str
) -> None:
    supervisor.tick(0.0)
    sink_query.started[-1].fail(f"pyspark.errors.exceptions.{cause}")
    supervisor.tick(0.0)
    assert supervisor.status.state == state


def test_fatal_error_of_a_batch_ends_the_query(
    supervisor: QuerySupervisor, sink_query: FakeSinkQuery
) -> None:
    supervisor.tick(0.0)
    sink_query.fatal = CannotContinue("sinks.s: the table was restored")
    sink_query.started[-1].fail("riverrun.pipeline.errors.CannotContinue: the table was restored")
    supervisor.tick(0.0)
    assert (supervisor.status.state, supervisor.is_over) == ("failed", True)


def test_query_is_stopped_between_two_batches(
    supervisor: QuerySupervisor, sink_query: FakeSinkQuery
) -> None:
    supervisor.tick(0.0)
    query = sink_query.started[-1]
    query.status["isTriggerActive"] = True
    sink_query.batch.acquire()
    stopper = threading.Thread(target=supervisor.stop)
    stopper.start()
    until(lambda: sink_query.refuses_batches, seconds=10, what="batches are refused")
    assert query.stops == [], "a batch is running"
    sink_query.batch.release()
    query.status["isTriggerActive"] = False
    stopper.join(10)
    assert (query.stops, supervisor.status.state) == ([False], "ended")


def test_rows_of_the_batch_that_ends_during_the_stop_are_counted(
    supervisor: QuerySupervisor, sink_query: FakeSinkQuery
) -> None:
    supervisor.tick(0.0)
    query, counts = sink_query.started[-1], sink_query.counts
    counts.under_way = BatchUnderWay(id=0, records=42, since_ms=5)
    sink_query.batch.acquire()
    stopper = threading.Thread(target=supervisor.stop)
    stopper.start()
    until(lambda: sink_query.refuses_batches, seconds=10, what="batches are refused")
    shown = supervisor.snapshot()
    assert (shown.state, shown.rows, shown.current_records) == ("ending", 0, 42)
    counts.rows, counts.total, counts.positions, counts.under_way = 42, 142, {"t-0": 42}, None
    sink_query.batch.release()
    stopper.join(10)
    last = supervisor.status
    assert (last.state, last.rows, last.total, last.positions) == ("ended", 42, 142, {"t-0": 42})
    assert (last.current_batch, query.stops) == (None, [False])


def test_java_that_ends_with_the_stop_does_not_hide_the_rows(
    supervisor: QuerySupervisor, sink_query: FakeSinkQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor.tick(0.0)
    sink_query.counts.rows = 42

    def gone(_: FakeQuery) -> None:
        raise Py4JNetworkError("Java is gone")

    monkeypatch.setattr(FakeQuery, "stop", gone)
    supervisor.stop()
    assert (supervisor.status.state, supervisor.status.rows) == ("ended", 42)


def test_all_queries_refuse_batches_before_the_first_is_stopped() -> None:
    pipeline = Pipeline(name="p", file=None, bootstrap="", state=Path(), checkpoints="")
    whole = PipelineSupervisor(FakeSession(), pipeline)  # type: ignore[arg-type]
    fakes = [FakeSinkQuery(), FakeSinkQuery()]
    refused: list[bool] = []
    fakes[0].wait_for_batch = lambda: refused.append(  # type: ignore[method-assign]
        fakes[1].refuses_batches
    )
    whole.queries = [QuerySupervisor(one, "s", is_once=False) for one in fakes]  # type: ignore[arg-type]
    whole.tick()
    whole.stop()
    assert refused == [True]


def test_stopping_query_refuses_batches() -> None:
    query = SinkQuery(None)  # type: ignore[arg-type]
    query.refuse_batches()
    with pytest.raises(QueryStopping):
        query.process_batch(None, None, 5)  # type: ignore[arg-type]
    query.wait_for_batch()


@pytest.mark.parametrize(
    ("code", "line", "message"),
    [
        ("def f():\n    return {}['x']\n", 2, "KeyError: 'x'"),
        ("import nothing_of_that_name\n", 1, "ModuleNotFoundError"),
        ("def f():\n    return (\n", 2, "SyntaxError"),
    ],
)
def test_failing_function_is_reported_with_its_line(
    tmp_path: Path, code: str, line: int, message: str
) -> None:
    file = tmp_path / "own.py"
    file.write_text(code)
    transform = PythonTransform(name="t", module=str(file), function="f", inputs=())
    with pytest.raises(CannotContinue) as caught:
        run_transforms(None, {}, [transform], "t")  # type: ignore[arg-type]
    assert str(caught.value).startswith("transforms.t.python: ")
    assert f"{file}:{line}: {message}" in str(caught.value)


def test_transient_errors_of_a_function_are_not_wrapped(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def f():\n    raise ConnectionError('the network')\n")
    transform = PythonTransform(name="t", module=str(file), function="f", inputs=())
    with pytest.raises(ConnectionError):
        run_transforms(None, {}, [transform], "t")  # type: ignore[arg-type]


def test_last_status_needs_no_java() -> None:
    spark = FakeSession()
    pipeline = Pipeline(name="p", file=None, bootstrap="", state=Path(), checkpoints="")
    supervisor = PipelineSupervisor(spark, pipeline)  # type: ignore[arg-type]
    spark.sparkContext = None
    assert (supervisor.status().master, supervisor.status().ui) == ("local", "http://here")
