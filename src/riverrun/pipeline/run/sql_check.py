"""Checks transforms and sinks against the declared schemas, without a cluster.

Each source is replaced by a stream without records that has the same columns. Spark's analyzer then
finds the errors that it would find at the start of the query. The columns of some sources are known
only when a run starts: they are inferred from records, or come from a registry. What depends on
them is checked then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pyspark_riverrun.source import FIELDS
from riverrun.pipeline.declaration.model import (
    INFER,
    FileSource,
    Pipeline,
    Sink,
    Source,
    TableSink,
    TopicSink,
    TopicSource,
    Transform,
)
from riverrun.pipeline.errors import CannotContinue, DeclarationError, Problem
from riverrun.pipeline.run.analysis import (
    InvalidTransform,
    ProblemExplainer,
    alike,
    check_streaming,
    file_of,
)
from riverrun.pipeline.run.context import QueryContext
from riverrun.pipeline.run.failures import is_missing_path, transient_errors
from riverrun.pipeline.run.start import with_watermark
from riverrun.pipeline.run.transforms import apply_transform, is_stateful
from riverrun.pipeline.sources.parsing import ValueSchema, parse_records, valid_rows
from riverrun.pipeline.sources.schemas import declared_schema

RECORD_FIELDS = ("key", "value", "topic", "partition", "offset", "timestamp")


def check_pipeline(spark: SparkSession, pipeline: Pipeline) -> None:
    """Raise DeclarationError with all problems."""
    problems = PipelineCheck(spark, pipeline).problems() if pipeline.transforms else []
    if problems:
        raise DeclarationError(file_of(pipeline), problems)


def has_checkable_sql(pipeline: Pipeline) -> bool:
    """Whether a transform reads only sources with a declared schema."""
    return any(not sources_without_columns(pipeline, [name]) for name in pipeline.transforms)


def sources_without_columns(pipeline: Pipeline, transforms: Sequence[str]) -> list[str]:
    """The sources of these transforms whose columns are not declared."""
    found: dict[str, None] = {}

    def visit(name: str) -> None:
        source = pipeline.sources.get(name)
        if source is not None:
            if isinstance(source, TopicSource) and (
                source.follows_registry or _is_inferred(source)
            ):
                found[name] = None
            return
        for needed in pipeline.transforms[name].inputs:
            visit(needed)

    for name in transforms:
        visit(name)
    return list(found)


def _is_inferred(source: TopicSource) -> bool:
    return source.values != "raw" and source.schema == INFER


class PipelineCheck:
    """Analyzes each source and transform once."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._frames: dict[str, DataFrame | None] = {}
        """By source and transform; None if the frame cannot be known."""
        self._problems: list[Problem] = []

    def problems(self) -> list[Problem]:
        try:
            for sink in self._pipeline.sinks.values():
                self._check_sink(sink)
        finally:
            for name, frame in self._frames.items():
                if frame is not None:
                    self._spark.catalog.dropTempView(name)
        return self._problems

    def _check_sink(self, sink: Sink) -> None:
        sources, transforms = self._pipeline.inputs_of(sink)
        for source in sources:
            if source.name not in self._frames:
                self._add(source.name, self._source_frame(source, sink))
        for transform in transforms:
            if transform.name not in self._frames:
                self._add(transform.name, self._transform_frame(transform))
        result = self._frames[sink.input]
        if result is None:
            return
        has_files = any(isinstance(source, FileSource) for source in sources)
        if (has_files or is_stateful(result)) and not self._can_stream(sink, transforms):
            return
        self._check_columns(sink, result)

    def _add(self, name: str, frame: DataFrame | None) -> None:
        self._frames[name] = frame
        if frame is not None:
            frame.createOrReplaceTempView(name)

    def _source_frame(self, source: Source, sink: Sink) -> DataFrame | None:
        stream = self._spark.readStream.format("rate").load()
        match source:
            case FileSource():
                schema = StructType.fromDDL(source.schema)
                assert isinstance(schema, StructType), "a list of columns is a struct"
                columns = {field.name: field.dataType for field in schema.fields}
                return with_watermark(_with_columns(stream, columns), source.watermark)
            case TopicSource():
                known = self._value_schema(source, sink)
                if known is None and source.values != "raw":
                    return None
                records = _with_columns(stream, {name: FIELDS[name] for name in RECORD_FIELDS})
                rows = valid_rows(parse_records(records, source, known))
                return with_watermark(rows, source.watermark)

    def _value_schema(self, source: TopicSource, sink: Sink) -> ValueSchema | None:
        """None if it is not known, and for raw values."""
        if source.values == "raw" or source.follows_registry:
            return None
        if not _is_inferred(source):
            return declared_schema(source)
        pinned = QueryContext(self._spark, self._pipeline, sink).pinned_schema(source).load()
        return None if pinned is None else ValueSchema(pinned)

    def _transform_frame(self, transform: Transform) -> DataFrame | None:
        inputs = {name: self._frames[name] for name in transform.inputs}
        known = {name: frame for name, frame in inputs.items() if frame is not None}
        if len(known) < len(inputs):
            return None
        try:
            return apply_transform(self._spark, transform, known)
        except InvalidTransform as failed:
            self._problems.append(self._explainer().of_transform(failed))
        except CannotContinue as error:  # an error in the function of the user
            where = f"transforms.{transform.name}.python"
            text = str(error).removeprefix(f"{where}: ")
            self._problems.append(self._explainer().of_field(where, text, "correct the function"))
        except transient_errors() as error:
            if isinstance(error, AnalysisException) and not is_missing_path(error):
                invalid = InvalidTransform(transform, error)
                self._problems.append(self._explainer().of_transform(invalid))
        return None

    def _can_stream(self, sink: Sink, transforms: Sequence[Transform]) -> bool:
        """Report the first transform that makes the plan impossible on a stream."""
        for transform in transforms:
            frame = self._frames[transform.name]
            assert frame is not None, "the result depends on it"
            try:
                check_streaming(frame, sink.output)
            except AnalysisException as error:
                failed = InvalidTransform(transform, error)
                self._problems.append(self._explainer().of_sink(sink, failed))
                return False
        return True

    def _check_columns(self, sink: Sink, result: DataFrame) -> None:
        """Check the columns that the sink names, if it writes the result of a transform."""
        if sink.input in self._pipeline.sources:
            return  # the parser has checked them
        columns = result.columns
        match sink:
            case TopicSink():
                named = [("key", sink.key)]
            case TableSink():
                named = [*(("keys", key) for key in sink.keys), ("order", sink.order)]
                self._check_delete(sink, result)
                self._check_names(sink, columns)
        for field, name in named:
            if name is not None and not _has_column(columns, name):
                text = f"column {name} does not exist{alike(name, columns)}"
                self._report(sink, field, text, f"use one of {', '.join(columns)}")

    def _check_delete(self, sink: TableSink, result: DataFrame) -> None:
        if sink.delete is None:
            return
        try:
            result.select(F.coalesce(F.expr(sink.delete), F.lit(False)))
        except AnalysisException as error:
            where = f"sinks.{sink.name}.delete"
            self._problems.append(self._explainer().of_expression(where, error, result.columns))

    def _check_names(self, sink: TableSink, columns: Sequence[str]) -> None:
        names = [name.lower() for name in columns]
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            text = f"two columns are named {name}"
            self._report(sink, "input", text, "rename one of them in the SQL")

    def _report(self, sink: Sink, field: str, text: str, remedy: str) -> None:
        where = f"sinks.{sink.name}.{field}"
        self._problems.append(self._explainer().of_field(where, text, remedy))

    def _explainer(self) -> ProblemExplainer:
        known = {name: frame.columns for name, frame in self._frames.items() if frame is not None}
        return ProblemExplainer(self._pipeline, known)


def _has_column(columns: Sequence[str], name: str) -> bool:
    plain = name.partition(".")[0].strip("`").lower()
    return plain in [column.lower() for column in columns]


def _with_columns(stream: DataFrame, types: Mapping[str, object]) -> DataFrame:
    columns = [F.lit(None).cast(kind).alias(name) for name, kind in types.items()]  # type: ignore[arg-type]
    return stream.select(*columns)
