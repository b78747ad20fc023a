"""Errors of others by what helps against them: another try, or a person.

Libraries that tables lie in have errors of their own, which are no ``OSError`` though they mean
one: a store or a catalog that is away for a moment.
"""

from __future__ import annotations

import re
import sys

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, ParseException, PySparkException

from riverrun.model.errors import KafkaError

REASON_CHARACTERS_MAX = 400
FILES_MISSING = "PATH_NOT_FOUND"
"""What Spark calls a folder that is not there; it may come, as a topic may."""
ANALYSIS = (AnalysisException.__name__, ParseException.__name__)

_STORES = (
    ("deltalake.exceptions", "DeltaError"),
    ("pyiceberg.exceptions", "RESTError"),
    ("sqlalchemy.exc", "SQLAlchemyError"),
)
_CAUSE = re.compile(r"(?P<module>(?:[A-Za-z_]\w*\.)*)(?P<name>[A-Z]\w*): (?P<text>.*)")
_OUR_MODULES = ("riverrun.", "pyspark_riverrun.")


def passing_errors() -> tuple[type[Exception], ...]:
    """What may be gone when the same is tried again. A library that was not loaded has raised
    nothing, and is not loaded for this.
    """
    loaded = [(sys.modules.get(module), name) for module, name in _STORES]
    stores = [getattr(module, name) for module, name in loaded if module is not None]
    return (PySparkException, Py4JError, KafkaError, OSError, *stores)


def is_missing_files(error: Exception) -> bool:
    return isinstance(error, AnalysisException) and error.getCondition() == FILES_MISSING


def is_final(reason: str) -> bool:
    """Whether a failed query would fail again in the same way: it does not fit its columns."""
    name = reason.partition(":")[0].rpartition(".")[2]
    return name in ANALYSIS and f"[{FILES_MISSING}]" not in reason


def in_words(error: BaseException) -> str:
    """The sentence that helps, out of the pages that Spark writes: the last line of a Python
    traceback, which names the error.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
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
