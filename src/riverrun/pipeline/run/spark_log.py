"""The log file of a run: the output of Spark's processes and of the loggers in this process.

Java, Python workers and py4j write to standard error, in successful runs too: warnings at the
start, and tracebacks of workers whose task was cancelled. On the terminal they would hide the
status.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from pathlib import Path
from typing import Self

from pyspark.logger import PySparkLogger

NAME = "spark.log"
PREVIOUS_SUFFIX = ".1"
LOG_BYTES_MAX = 16 * 1024 * 1024
"""Per file. One older file is kept."""
PYSPARK_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark logs each error of the analyzer with one of them, to standard error."""


class SparkLog:
    """``with SparkLog(path) as log`` starts a new file and keeps the one before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self.path.replace(self._previous)
        self.path.touch()
        formatter = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
        handler = self._handle(logging.getLogger())
        handler.setFormatter(formatter)
        for name in PYSPARK_LOGGERS:
            logger = PySparkLogger.getLogger(name)
            for other in list(logger.handlers):
                logger.removeHandler(other)
                self._cleanup.callback(logger.addHandler, other)
            self._handle(logger)
        logging.captureWarnings(True)
        self._cleanup.callback(logging.captureWarnings, False)
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def _handle(self, logger: logging.Logger) -> logging.Handler:
        handler = logging.FileHandler(self.path)
        logger.addHandler(handler)
        self._cleanup.callback(handler.close)
        self._cleanup.callback(logger.removeHandler, handler)
        return handler

    def limit(self) -> None:
        """Empty a file that is too long. All writers append, so they continue at its start."""
        if self.path.stat().st_size > LOG_BYTES_MAX:
            shutil.copyfile(self.path, self._previous)
            with self.path.open("r+") as file:
                file.truncate()

    @property
    def _previous(self) -> Path:
        return self.path.with_name(self.path.name + PREVIOUS_SUFFIX)
