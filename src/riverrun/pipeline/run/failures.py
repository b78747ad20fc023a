"""Classifies errors of Spark and of table libraries: transient or permanent.

Table libraries have their own exception types for an unavailable store or catalog. These are not
``OSError``, but mean the same.
"""

from __future__ import annotations

import re
import sys

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, ParseException, PySparkException

from riverrun.model.errors import KafkaError

REASON_CHARACTERS_MAX = 400
FILES_MISSING = "PATH_NOT_FOUND"
"""Spark's error condition for a missing folder. Like a topic, it may appear later."""
ANALYSIS = (AnalysisException.__name__, ParseException.__name__)

_STORES = (
    ("deltalake.exceptions", "DeltaError"),
    ("pyiceberg.exceptions", "RESTError"),
    ("sqlalchemy.exc", "SQLAlchemyError"),
)
_CAUSE = re.compile(r"(?P<module>(?:[A-Za-z_]\w*\.)*)(?P<name>[A-Z]\w*): (?P<text>.*)")
_OUR_MODULES = ("riverrun.", "pyspark_riverrun.")


def transient_errors() -> tuple[type[Exception], ...]:
    """Errors that a retry may resolve.

    A library that is not loaded has raised nothing, so it is not imported here.
    """
    loaded = [(sys.modules.get(module), name) for module, name in _STORES]
    stores = [getattr(module, name) for module, name in loaded if module is not None]
    return (PySparkException, Py4JError, KafkaError, OSError, *stores)


def is_missing_path(error: Exception) -> bool:
    return isinstance(error, AnalysisException) and error.getCondition() == FILES_MISSING


def is_permanent(reason: str) -> bool:
    """Whether a restart would fail in the same way, because of its columns."""
    name = reason.partition(":")[0].rpartition(".")[2]
    return name in ANALYSIS and f"[{FILES_MISSING}]" not in reason


def error_summary(error: BaseException) -> str:
    """The line of a long Spark error that names the cause, usually the last of a traceback."""
    stripped = [line.strip().removeprefix(": ") for line in str(error).splitlines()]
    lines = [line for line in stripped if line]
    named = [found for line in lines if (found := _CAUSE.match(line))]
    ours = [found for found in named if found["module"].startswith(_OUR_MODULES)]
    causes = [found for found in named if found["name"].endswith(("Error", "Exception"))]
    if ours:
        text = f"{ours[-1]['name']}: {ours[-1]['text']}"
    elif causes:
        text = causes[-1].group()
    else:
        text = next(iter(lines), type(error).__name__)
    return text[:REASON_CHARACTERS_MAX]
