"""The log file of a run has all output of Spark, and a limited size."""

import logging
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from pyspark.logger import PySparkLogger

from riverrun.pipeline.run import spark_log
from riverrun.pipeline.run.spark_log import PYSPARK_LOGGERS, SparkLog


def test_loggers_and_warnings_write_to_the_file_only(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = list(logging.getLogger().handlers)
    with SparkLog(tmp_path / "state/spark.log") as log:
        logging.getLogger("py4j.clientserver").error("a callback failed")
        warnings.warn("a column changed", stacklevel=1)
        for name in PYSPARK_LOGGERS:
            logger = PySparkLogger.getLogger(name)
            logger.propagate = False  # as PySpark does
            logger.error("no column x", errorClass="UNRESOLVED_COLUMN")
    text = log.path.read_text()
    assert "ERROR a callback failed" in text
    assert "a column changed" in text
    assert text.count("no column x") == len(PYSPARK_LOGGERS)
    assert capfd.readouterr().err == ""
    assert logging.getLogger().handlers == before


def test_log_of_the_previous_run_is_kept(tmp_path: Path) -> None:
    for run in ("first", "second", "third"):
        with SparkLog(tmp_path / "spark.log") as log:
            log.path.write_text(run)
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept == {"spark.log": "third", "spark.log.1": "second"}


def test_log_has_a_maximum_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes append to it, so they continue at its start."""
    monkeypatch.setattr(spark_log, "LOG_BYTES_MAX", 1000)
    with SparkLog(tmp_path / "spark.log") as log, log.path.open("ab") as file:

        def print_in_another_process(text: str) -> None:
            code = f"print({text!r})"
            subprocess.run([sys.executable, "-c", code], stdout=file, check=True)

        print_in_another_process("x" * 1200)
        log.limit()
        assert log.path.stat().st_size == 0
        print_in_another_process("after")
        log.limit()
        assert log.path.read_text() == "after\n"
    assert (tmp_path / "spark.log.1").stat().st_size == 1201
