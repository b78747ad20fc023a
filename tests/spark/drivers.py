"""A pipeline driver as a separate process, for tests that kill it or its children."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.processes import executable, until
from tests.spark.java import java_environment

ROWS_SECONDS_MAX = 200
STOP_SECONDS_MAX = 20
LOG_TAIL_CHARACTERS = 4000


class Driver:
    """``riverrun pipeline run`` with all processes that Spark starts for it."""

    def __init__(
        self, file: Path, state: Path, words: list[str], environment: Mapping[str, str]
    ) -> None:
        self._status = state / "status.json"
        self._log = file.with_suffix(".log")
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [executable(), "pipeline", "run", str(file), "--ui-port", "0", *words],
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=file.parent,
                env={**os.environ, **java_environment(), **environment},
            )

    def queries(self) -> dict[str, dict[str, Any]]:
        """The status of its sinks."""
        assert self.process.poll() is None, self.logs()
        if not self._status.exists():
            return {}
        status = json.loads(self._status.read_text())
        if status["pid"] != self.process.pid:
            return {}
        return {query["sink"]: query for query in status["queries"]}

    def rows(self) -> dict[str, int]:
        return {sink: query["rows"] for sink, query in self.queries().items()}

    def wait_for_rows(self, more_than: Mapping[str, int]) -> dict[str, int]:
        """Wait until each sink has more rows than given."""

        def new_rows() -> dict[str, int] | None:
            rows = self.rows()
            has_grown = all(rows.get(sink, 0) > count for sink, count in more_than.items())
            return rows if has_grown else None

        what = f"more rows than {dict(more_than)}: {self.logs()}"
        found: dict[str, int] = until(new_rows, seconds=ROWS_SECONDS_MAX, what=what)
        return found

    def parts(self, words: str) -> list[psutil.Process]:
        """Descendants of the driver whose command line contains these words."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if words in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def executors(self) -> list[psutil.Process]:
        return self.parts("CoarseGrainedExecutorBackend")

    def workers(self) -> list[psutil.Process]:
        """Python processes that run tasks. A daemon forks them and shares their command line. Other
        daemons fork the processes that plan queries.
        """
        found = self.parts("-m pyspark.daemon pyspark.worker")
        daemons = {process.pid for process in found}
        with contextlib.suppress(psutil.NoSuchProcess):
            return [each for each in found if each.ppid() in daemons]
        return []

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_SECONDS_MAX)

    def logs(self) -> str:
        return self._log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]


@contextlib.contextmanager
def drive(
    file: Path, name: str, *words: str, environment: Mapping[str, str] | None = None
) -> Iterator[Driver]:
    driver = Driver(file, file.parent / ".riverrun" / name, list(words), environment or {})
    try:
        yield driver
    finally:
        driver.kill()
