"""Queries that fail are started again, ever later, and say why; what cannot be mended ends."""

import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import DeltaError
from pyspark.errors import AnalysisException, ParseException, StreamingQueryException
from sqlalchemy.exc import OperationalError

from pyspark_riverrun.cluster.planner import DataLost
from pyspark_riverrun.options import BadOption
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.pipeline.declaration.model import Pipeline, PythonTransform
from riverrun.pipeline.errors import CannotContinue
from riverrun.pipeline.run.query import Counts, Handler, NoRecordsYet, Stopped
from riverrun.pipeline.run.status import QueryStatus
from riverrun.pipeline.run.supervisor import PAUSE_SECONDS_MAX, Supervised, Supervisor
from riverrun.pipeline.run.transforms import transformed
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
            "batchId": batch, "processedRowsPerSecond": 5.0, "sources": [],
            "durationMs": {"triggerExecution": 7},
        }  # fmt: skip


class FakeHandler:
    def __init__(self) -> None:
        self.fatal: CannotContinue | None = None
        self.counts = Counts()
        self.busy = threading.Lock()
        self.is_stopping = False
        self.started: list[FakeQuery] = []
        self.refusal: Exception | None = None
        self.is_made_again = False

    def start(self, *, is_once: bool) -> FakeQuery:
        if self.refusal is not None:
            raise self.refusal
        self.started.append(FakeQuery())
        return self.started[-1]

    def has_topics_made_again(self) -> bool:
        return self.is_made_again


@pytest.fixture
def handler() -> FakeHandler:
    return FakeHandler()


@pytest.fixture
def supervised(handler: FakeHandler) -> Supervised:
    return Supervised(handler=handler, is_once=False, status=QueryStatus(sink="s"))  # type: ignore[arg-type]


def fail_and_look(supervised: Supervised, handler: FakeHandler, now: float) -> float:
    """Let the query fail now; gives the pause until it is started again."""
    handler.started[-1].fail("builtins.ConnectionError: no node answers")
    supervised.tick(now)
    return supervised.start_at - now


def test_a_failed_query_is_started_again_ever_later_and_says_why(
    supervised: Supervised, handler: FakeHandler
) -> None:
    now = 100.0
    supervised.tick(now)
    pauses = []
    for _ in range(8):
        pauses.append(fail_and_look(supervised, handler, now))
        assert supervised.status.state == "waiting"
        assert supervised.status.reason == "builtins.ConnectionError: no node answers"
        supervised.tick(now + pauses[-1] - 0.1)
        assert supervised.status.state == "waiting", "it is not time yet"
        now += pauses[-1]
        supervised.tick(now)
        assert supervised.status.state == "running"
    assert pauses == [1, 2, 4, 8, 16, 32, PAUSE_SECONDS_MAX, PAUSE_SECONDS_MAX]
    assert supervised.status.restarts == 8
    handler.started[-1].progress(0)
    supervised.tick(now)
    assert fail_and_look(supervised, handler, now) == 1, "a batch came through"


def test_the_numbers_of_the_last_batch_are_told(
    supervised: Supervised, handler: FakeHandler
) -> None:
    supervised.tick(0.0)
    handler.counts.rows = 42
    handler.started[-1].isActive = False
    supervised.tick(1.0)
    assert (supervised.status.state, supervised.status.rows) == ("ended", 42)


def test_our_own_error_is_told_among_pages_of_others(
    supervised: Supervised, handler: FakeHandler
) -> None:
    supervised.tick(0.0)
    handler.started[-1].fail(
        "riverrun.model.errors.KafkaError: there is no topic t\n"
        "org.apache.spark.SparkException: Job aborted"
    )
    supervised.tick(0.0)
    assert supervised.status.reason == "KafkaError: there is no topic t"


def test_lost_records_end_the_query_with_a_remedy(
    supervised: Supervised, handler: FakeHandler
) -> None:
    supervised.tick(0.0)
    handler.started[-1].fail(f"{DataLost.__module__}.DataLost: offsets 3 to 7 of t-0 are gone")
    supervised.tick(0.0)
    assert supervised.status.state == "failed"
    told = supervised.status.reason or ""
    assert told.startswith("sinks.s: DataLost: offsets 3 to 7 of t-0 are gone")
    assert 'on_data_loss = "go-on"' in told


def test_a_topic_that_was_made_again_is_read_anew(
    supervised: Supervised, handler: FakeHandler
) -> None:
    supervised.tick(0.0)
    handler.is_made_again = True
    handler.started[-1].fail("pyspark_riverrun.cluster.planner.DataLost: topic t was made again")
    supervised.tick(0.0)
    assert supervised.status.state == "waiting"
    supervised.tick(1.0)
    assert supervised.status.state == "running"


@pytest.mark.parametrize(
    ("refusal", "state", "restarts"),
    [
        (NoRecordsYet("there is no topic t yet"), "waiting", 0),
        (CannotContinue("delete the table"), "failed", 0),
        (KafkaError(ErrorCode.REQUEST_TIMED_OUT, "nobody answers"), "waiting", 1),
        (OSError("no route"), "waiting", 1),
        (DeltaError("the store is away"), "waiting", 1),
        (OperationalError("SELECT 1", None, OSError("the catalog is away")), "waiting", 1),
        (AnalysisException("[UNRESOLVED_COLUMN] there is no column x"), "failed", 0),
        (ParseException("[PARSE_SYNTAX_ERROR] at or near SELEC"), "failed", 0),
        (MissingFiles("[PATH_NOT_FOUND] /in"), "waiting", 0),
        (BadOption("there is no setting kafka.x"), "failed", 0),
    ],
)
def test_a_start_that_is_refused_waits_or_ends(
    supervised: Supervised, handler: FakeHandler, refusal: Exception, state: str, restarts: int
) -> None:
    handler.refusal = refusal
    supervised.tick(0.0)
    assert (supervised.status.state, supervised.status.restarts) == (state, restarts)
    assert str(refusal).splitlines()[0] in (supervised.status.reason or "")


@pytest.mark.parametrize(
    "refusal", [NoRecordsYet("there is no topic t yet"), MissingFiles("[PATH_NOT_FOUND] /in")]
)
def test_once_ends_where_there_is_nothing_to_do(
    supervised: Supervised, handler: FakeHandler, refusal: Exception
) -> None:
    supervised.is_once, handler.refusal = True, refusal
    supervised.tick(0.0)
    assert (supervised.status.state, supervised.status.reason) == ("ended", str(refusal))


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        ("captured.AnalysisException: [UNRESOLVED_COLUMN] there is no column key", "failed"),
        ("captured.AnalysisException: [PATH_NOT_FOUND] file:/in", "waiting"),
        ("captured.PythonException: worker failed to connect back", "waiting"),
        ("pyspark_riverrun.options.BadOption: startingOffsets; missing: t-1", "waiting"),
    ],
)
def test_a_batch_that_does_not_fit_its_columns_ends_the_query(
    supervised: Supervised, handler: FakeHandler, cause: str, state: str
) -> None:
    supervised.tick(0.0)
    handler.started[-1].fail(f"pyspark.errors.exceptions.{cause}")
    supervised.tick(0.0)
    assert supervised.status.state == state


def test_what_a_batch_cannot_decide_ends_the_query(
    supervised: Supervised, handler: FakeHandler
) -> None:
    supervised.tick(0.0)
    handler.fatal = CannotContinue("sinks.s: the table was restored")
    handler.started[-1].fail("riverrun.pipeline.errors.CannotContinue: the table was restored")
    supervised.tick(0.0)
    assert (supervised.status.state, supervised.is_over) == ("failed", True)


def test_a_query_is_stopped_between_two_batches(
    supervised: Supervised, handler: FakeHandler
) -> None:
    supervised.tick(0.0)
    query = handler.started[-1]
    query.status["isTriggerActive"] = True
    handler.busy.acquire()
    stopper = threading.Thread(target=supervised.stop)
    stopper.start()
    until(lambda: handler.is_stopping, seconds=10, what="no batch begins any more")
    assert query.stops == [], "a batch is under way"
    handler.busy.release()
    query.status["isTriggerActive"] = False
    stopper.join(10)
    assert (query.stops, supervised.status.state) == ([False], "ended")


def test_no_batch_begins_when_the_query_shall_end() -> None:
    handler = Handler(spark=None, pipeline=None, sink=None)  # type: ignore[arg-type]
    handler.is_stopping = True
    with pytest.raises(Stopped):
        handler._handle(None, 5)  # type: ignore[arg-type]
    assert not handler.busy.locked()


@pytest.mark.parametrize(
    ("code", "line", "said"),
    [
        ("def f():\n    return {}['x']\n", 2, "KeyError: 'x'"),
        ("import nothing_of_that_name\n", 1, "ModuleNotFoundError"),
        ("def f():\n    return (\n", 2, "SyntaxError"),
    ],
)
def test_a_function_that_fails_is_named_with_its_line(
    tmp_path: Path, code: str, line: int, said: str
) -> None:
    file = tmp_path / "own.py"
    file.write_text(code)
    transform = PythonTransform(name="t", module=str(file), function="f", inputs=())
    with pytest.raises(CannotContinue) as caught:
        transformed(None, {}, [transform], "t")  # type: ignore[arg-type]
    assert str(caught.value).startswith("transforms.t.python: ")
    assert f"{file}:{line}: {said}" in str(caught.value)


def test_what_may_pass_in_a_function_is_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def f():\n    raise ConnectionError('the network')\n")
    transform = PythonTransform(name="t", module=str(file), function="f", inputs=())
    with pytest.raises(ConnectionError):
        transformed(None, {}, [transform], "t")  # type: ignore[arg-type]


def test_the_last_status_is_told_without_java() -> None:
    class Context:
        master, uiWebUrl = "local", "http://here"

    class Session:
        sparkContext: Context | None = Context()

    spark = Session()
    pipeline = Pipeline(name="p", file=None, bootstrap="", state=Path(), checkpoints="")
    supervisor = Supervisor(spark, pipeline)  # type: ignore[arg-type]
    spark.sparkContext = None
    assert (supervisor.status().master, supervisor.status().ui) == ("local", "http://here")
