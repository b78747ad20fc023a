"""The log file of a run: the output of Spark's processes and of the loggers in this process.

Java, Python workers and py4j write to standard error, in successful runs too: warnings at the
start, and tracebacks of workers whose task was cancelled. On the terminal they would hide the
status.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Self

NAME = "spark.log"
PREVIOUS_SUFFIX = ".1"
LOG_BYTES_MAX = 16 * 1024 * 1024
"""Per file. One older file is kept."""
PYSPARK_LOGGER = "SQLQueryContextLogger"
"""PySpark creates this logger with a handler for standard error, unless it exists."""


class SparkLog:
    """``with SparkLog(path) as log`` starts a new file and keeps the one before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handler: logging.Handler | None = None

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self.path.replace(self._previous)
        self.path.touch()
        self._handler = logging.FileHandler(self.path)
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.getLogger().addHandler(self._handler)
        logging.getLogger(PYSPARK_LOGGER)
        logging.captureWarnings(True)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._handler is not None, "the log was opened"
        logging.captureWarnings(False)
        logging.getLogger().removeHandler(self._handler)
        self._handler.close()

    def limit(self) -> None:
        """Empty a file that is too long. All writers append, so they continue at its start."""
        if self.path.stat().st_size > LOG_BYTES_MAX:
            shutil.copyfile(self.path, self._previous)
            with self.path.open("r+") as file:
                file.truncate()

    @property
    def _previous(self) -> Path:
        return self.path.with_name(self.path.name + PREVIOUS_SUFFIX)
