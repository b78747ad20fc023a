"""Explains errors of Spark's analyzer: the transform, the line in the file, and the remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from riverrun.pipeline.declaration.document import Document, read_document
from riverrun.pipeline.declaration.model import (
    FileSource,
    Pipeline,
    Sink,
    Source,
    SqlTransform,
    TableSink,
    Transform,
)
from riverrun.pipeline.errors import DeclarationError, Problem

NAMES_MAX = 12
"""Columns that a remedy lists."""
UNRESOLVED_COLUMN = "UNRESOLVED_COLUMN"
UNRESOLVED_ROUTINE = "UNRESOLVED_ROUTINE"
NO_TABLE = "TABLE_OR_VIEW_NOT_FOUND"
OUTPUT_MODE = "STREAMING_OUTPUT_MODE"
NO_WATERMARK = "aggregations without watermark"
_HEAD = re.compile(r"^\[[A-Z0-9_.]+\] ")
_TAIL = re.compile(r"\.? SQLSTATE: \w+.*$", re.DOTALL)
_PLACE = re.compile(r"\(line (\d+), pos (\d+)\)")


class InvalidTransform(Exception):
    """Spark rejects the query of a transform, or the whole plan of a sink."""

    def __init__(self, transform: Transform, error: AnalysisException) -> None:
        super().__init__(str(error))
        self.transform = transform
        self.error = error


def check_streaming(frame: DataFrame, output: str) -> None:
    """Raise AnalysisException if a stream cannot be written in this output mode.

    Spark makes this check when a query starts.
    """
    jvm = frame.sparkSession._jvm
    assert jvm is not None, "a session has a JVM"
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, output.capitalize())()
    plan = frame._jdf.queryExecution().analyzed()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(plan, mode)


@dataclass(frozen=True, slots=True)
class ProblemExplainer:
    """Turns errors of one pipeline into problems of its declaration."""

    pipeline: Pipeline
    columns: Mapping[str, Sequence[str]]
    """Columns by source and transform, as far as they are known."""

    def of_transform(self, failed: InvalidTransform) -> Problem:
        transform, error = failed.transform, failed.error
        inputs = [name for name in transform.inputs if name in self.columns]
        known = list(dict.fromkeys(column for name in inputs for column in self.columns[name]))
        text, remedy = self._explain(error, known)
        if not isinstance(transform, SqlTransform):
            where = f"transforms.{transform.name}.python"
            return self._problem(where, text, remedy or "correct the function")
        where = f"transforms.{transform.name}.sql"
        remedy = remedy or "correct the query"
        return self._problem(where, text, remedy, self._line(transform, error))

    def of_sink(self, sink: Sink, failed: InvalidTransform) -> Problem:
        """The plan of a sink cannot run on a stream."""
        transform = failed.transform
        field = "sql" if isinstance(transform, SqlTransform) else "python"
        where = f"transforms.{transform.name}.{field}"
        parameters = failed.error.getMessageParameters() or {}
        if NO_WATERMARK in parameters.get("operation", ""):
            text, remedy = self._aggregate(sink)
            return self._problem(where, text, remedy)
        text = f"{plain_message(failed.error)} (for sinks.{sink.name})"
        if (failed.error.getCondition() or "").startswith(OUTPUT_MODE):
            return self._problem(where, text, f"change output in [sinks.{sink.name}]")
        return self._problem(where, text, "change the query; Spark cannot run it on a stream")

    def of_field(self, where: str, text: str, remedy: str) -> Problem:
        return self._problem(where, text, remedy)

    def of_expression(self, where: str, error: AnalysisException, known: Sequence[str]) -> Problem:
        """A field is an invalid expression over these columns."""
        text, remedy = self._explain(error, known)
        return self._problem(where, text, remedy or "correct the expression")

    def describe(self, problem: Problem) -> str:
        """The problem in one line."""
        place = "" if self.pipeline.file is None else str(self.pipeline.file)
        return problem.describe(place).replace("\n  Remedy:", ". Remedy:")

    def _problem(self, where: str, text: str, remedy: str, line: int | None = None) -> Problem:
        if line is None:
            document = self._document()
            line = None if document is None else document.line_of(tuple(where.split(".")))
        return Problem(field=where, line=line, text=text, remedy=remedy)

    def _explain(self, error: AnalysisException, known: Sequence[str]) -> tuple[str, str]:
        """The text, and the remedy if there is a special one."""
        condition = error.getCondition() or ""
        parameters = error.getMessageParameters() or {}
        if condition.startswith(UNRESOLVED_COLUMN):
            name = _unquoted(parameters.get("objectName", ""))
            proposed = [_unquoted(one) for one in parameters.get("proposal", "").split(", ") if one]
            known = known or [one.rpartition(".")[2] for one in proposed]
            near = alike(name.rpartition(".")[2], known)
            return f"column {name} does not exist{near}", f"use one of {_listed(known)}"
        if condition == NO_TABLE:
            name = _unquoted(parameters.get("relationName", ""))
            names = [*self.pipeline.sources, *self.pipeline.transforms]
            text = f"no source or transform is named {name}{alike(name, names)}"
            return text, f"use one of {_listed(names)}"
        if condition == UNRESOLVED_ROUTINE:
            name = _unquoted(parameters.get("routineName", ""))
            return f"function {name} does not exist", "use a function of Spark SQL"
        return plain_message(error), ""

    def _aggregate(self, sink: Sink) -> tuple[str, str]:
        sources, _ = self.pipeline.inputs_of(sink)
        changes = 'output = "update"'
        if isinstance(sink, TableSink):
            changes = f'mode = "merge", the keys of the groups as keys, and {changes}'
        instead = f"Or write each change of a group: set {changes} in [sinks.{sink.name}]"
        text = "aggregates a stream without a watermark, so the rows of a group are never complete"
        marked = next((one for one in sources if one.watermark is not None), None)
        if marked is not None and marked.watermark is not None:
            text = "groups by no column with a watermark, so the rows of a group are never complete"
            column = marked.watermark.column
            return text, f"group by window({column}, '1 minute') too. {instead}"
        source = sources[0]
        column = _time_column(source)
        watermark = f'watermark = {{ column = "{column}", delay = "1 minute" }}'
        grouped = f"group by window({column}, '1 minute')"
        return text, f"add {watermark} to [sources.{source.name}] and {grouped}. {instead}"

    def _line(self, transform: SqlTransform, error: AnalysisException) -> int | None:
        """The line in the file of the part of the query that is wrong."""
        document = self._document()
        if document is None or self.pipeline.file is None:
            return None
        first = document.line_of(("transforms", transform.name, "sql"))
        fragment = _fragment(transform.sql, error)
        if first is None or fragment is None:
            return first
        return find_line(self.pipeline.file.read_text(), first, transform.sql, *fragment)

    def _document(self) -> Document | None:
        try:
            return None if self.pipeline.file is None else read_document(self.pipeline.file)
        except DeclarationError:
            return None  # the file has changed since


def find_line(text: str, first: int, sql: str, start: int, stop: int) -> int:
    """The line of ``sql[start:stop]`` in a file whose line ``first`` begins the query.

    Quotes, indentation and folding differ between TOML, YAML and the query. So occurrences are
    counted instead of lines.
    """
    fragment = sql[start:stop].partition("\n")[0]
    earlier = sql[:start].count(fragment)
    for number, line in enumerate(text.splitlines()[first - 1 :], first):
        part = re.split("[=:]", line, maxsplit=1)[-1] if number == first else line
        found = part.count(fragment)
        if found > earlier:
            return number
        earlier -= found
    return first


def plain_message(error: AnalysisException) -> str:
    """Spark's message without its codes and the lines that follow."""
    text = (error.getMessage() or str(error)).strip()
    text = _TAIL.sub("", _HEAD.sub("", text)).split("\n")[0].rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def alike(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _fragment(sql: str, error: AnalysisException) -> tuple[int, int] | None:
    for context in error.getQueryContext() or []:
        if context.fragment():
            return context.startIndex(), context.stopIndex() + 1
    place = _PLACE.search(str(error))
    if place is None:
        return None
    lines = sql.split("\n")
    line, position = int(place[1]) - 1, int(place[2])
    if not 0 <= line < len(lines) or not lines[line][position:]:
        return None
    start = sum(len(one) + 1 for one in lines[:line]) + position
    return start, start + len(lines[line][position:].split()[0])


def _unquoted(name: str) -> str:
    return name.replace("`", "")


def _listed(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more


def _time_column(source: Source) -> str:
    """A column that may have a watermark."""
    schema = "" if not source.schema.isascii() else source.schema
    found = re.search(r"(\w+)\s*:?\s+TIMESTAMP\b", schema, re.IGNORECASE)
    if found is not None:
        return found[1]
    return "time" if isinstance(source, FileSource) else "_timestamp"


def file_of(pipeline: Pipeline) -> str:
    return str(pipeline.file or Path("pipeline"))
