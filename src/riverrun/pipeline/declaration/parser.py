"""Parses a file into a ``Pipeline``, or reports all problems with line, field and remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from riverrun.cli.support.client_config import ClusterAddress
from riverrun.client.pool import parse_bootstrap
from riverrun.client.security import NAMES as SECURITY_NAMES
from riverrun.pipeline.declaration.document import Document, read_document
from riverrun.pipeline.declaration.model import (
    FILE_FORMATS,
    INFER,
    ON_DATA_LOSS,
    STARTS,
    STOP,
    TABLE_FORMATS,
    TOMBSTONES,
    VALUES,
    FileSource,
    Pipeline,
    PythonTransform,
    Sink,
    Source,
    SqlTransform,
    TableSink,
    TopicSink,
    TopicSource,
    Transform,
    Watermark,
)
from riverrun.pipeline.declaration.section import Reporter, Section
from riverrun.pipeline.declaration.sql_text import (
    ORIGIN,
    check_query,
    declared_columns,
    identifiers_in,
)
from riverrun.pipeline.declaration.value_schema import check_columns, read_value_schema
from riverrun.pipeline.errors import DeclarationError

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"
TRIGGER_DEFAULT = "1 second"
COMPACT_EVERY_DEFAULT = 50
DURATION = re.compile(r"^\s*\d+\s+(millisecond|second|minute|hour|day)s?\s*$")
NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_]*$")
OUR_SETTINGS = {
    "bootstrap.servers": "set bootstrap in [pipeline], so that all parts use one cluster",
    "group.id": "the group is named after the pipeline and the sink",
}
OUTPUTS = ("append", "update", "complete")


def read_pipeline(path: Path, *, bootstrap: str | None = None) -> Pipeline:
    """Parse a file. Raises DeclarationError with all problems."""
    return pipeline_of(read_document(path), path, bootstrap=bootstrap)


def pipeline_of(document: Document, path: Path, *, bootstrap: str | None = None) -> Pipeline:
    reporter = Reporter(document)
    root = Section(reporter, (), document.values)
    head = root.section("pipeline")
    name = head.text("name", path.stem)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        head.report(
            "name", f"{name!r} is not a valid name", "use letters, digits, '.', '_' and '-'"
        )
    folder = path.absolute().parent
    state = folder / head.text("state", f".riverrun/{name}")
    known = dict.fromkeys(part for part in ("sources", "transforms") for part in root.names(part))
    sources = {n: _source(root.section("sources", n), n, folder) for n in root.names("sources")}
    transforms = {
        n: _transform(root.section("transforms", n), n, folder, list(known))
        for n in root.names("transforms")
    }
    sinks = {n: _sink(root.section("sinks", n), n, folder, known) for n in root.names("sinks")}
    if not sources:
        root.report("sources", "no source is declared", "add [sources.NAME]")
    if not sinks:
        root.report("sinks", "no sink is declared", "add [sinks.NAME]")
    declared = head.text("bootstrap", BOOTSTRAP_DEFAULT)
    address = bootstrap or declared
    try:
        parse_bootstrap(address)
    except ValueError as error:
        head.report("bootstrap", str(error), "write host:port, or several separated by commas")
    client = head.pairs("client")
    _check_client(head, client)
    checkpoints = head.optional("checkpoints") or str(state / "checkpoints")
    environment = head.optional("environment")
    pipeline = Pipeline(
        name=name,
        file=path,
        bootstrap=ClusterAddress.of(address, properties=_login(client)),
        state=state,
        checkpoints=checkpoints,
        environment=None if environment is None else _resolved_path(folder, environment),
        spark=head.pairs("spark"),
        client=client,
        sources=sources,
        transforms=transforms,
        sinks=sinks,
    )
    head.finish()
    root.finish()
    _check_references(root, pipeline)
    if reporter.problems:
        raise DeclarationError(document.file, reporter.problems)
    return pipeline


def _login(client: Mapping[str, str]) -> dict[str, str]:
    """The client settings for TLS and logins. The driver itself connects with them too."""
    return {name: text for name, text in client.items() if name in SECURITY_NAMES}


def _check_client(head: Section, client: Mapping[str, str]) -> None:
    """Check each setting separately, so that all invalid ones are reported."""
    for name, value in client.items():
        if name.startswith("kafka."):
            head.report("client", f"{name} must not start with kafka.", f"write {name[6:]}")
        elif name in OUR_SETTINGS:
            head.report("client", f"{name} cannot be set here", OUR_SETTINGS[name])
        elif find_spec("pyspark") is not None:
            remedy = "see the settings of Kafka's consumers and producers"
            head.check("client", partial(_check_setting, name, value), remedy)


def _check_setting(name: str, value: str) -> None:
    from pyspark_riverrun.options import read_options, write_options

    given = {"kafka.bootstrap.servers": "h:1", f"kafka.{name}": value}
    read_options({**given, "subscribe": "t"}, is_streaming=True)
    write_options(given)


def _source(section: Section, name: str, folder: Path) -> Source:
    _check_name(section, name)
    watermark = _watermark(section)
    if section.has("files"):
        format_ = section.choice("format", FILE_FORMATS, "json")
        schema = section.text("schema", "value STRING" if format_ == "text" else "")
        if not schema:
            section.report("schema", "files need a schema", 'add schema = "id BIGINT, name STRING"')
        check_columns(section, schema)
        file_source = FileSource(
            name=name,
            path=_resolved_path(folder, section.text("files")),
            format=format_,
            schema=schema,
            files_per_batch=section.number("files_per_batch", at_least=1),
            watermark=watermark,
        )
        section.finish()
        return file_source
    topics = section.texts("topics")
    if section.has("topic"):
        topics = (*topics, section.text("topic"))
    if not topics:
        section.report("topic", "there is no topic to read", 'add topic = "clicks"')
    values = section.choice("values", VALUES, "json")
    described = read_value_schema(section, values, folder, topics)
    source = TopicSource(
        name=name,
        topics=topics,
        values=values,
        schema=described.text,
        required=section.texts("required"),
        tombstones=section.choice("tombstones", TOMBSTONES, "dead-letter"),
        dead_letters=section.text("dead_letters", f"{topics[0] if topics else name}.dead-letters"),
        start=section.choice("start", STARTS, "earliest"),
        on_data_loss=section.choice("on_data_loss", ON_DATA_LOSS, STOP),
        rows_per_batch=section.number("rows_per_batch", at_least=1),
        watermark=watermark,
        reader=described.reader,
        message=described.message,
        schema_ids=described.ids,
    )
    if source.dead_letters in topics:
        section.report("dead_letters", "is also a source topic", "choose another topic")
    section.finish()
    return source


def _watermark(section: Section) -> Watermark | None:
    if not section.has("watermark"):
        return None
    inner = section.section("watermark")
    watermark = Watermark(column=inner.text("column"), delay=inner.text("delay", "0 seconds"))
    _check_duration(inner, "delay", watermark.delay)
    inner.finish()
    return watermark


def _transform(section: Section, name: str, folder: Path, known: list[str]) -> Transform:
    _check_name(section, name)
    others = [other for other in known if other != name]
    given = section.texts("inputs")
    if section.has("sql") == section.has("python"):
        section.report("", "a transform needs either sql or python", "set exactly one of them")
    if section.has("python"):
        target = section.text("python")
        module, colon, function = target.rpartition(":")
        if not colon or not module or not function:
            section.report(
                "python", f"{target!r} does not name a function", 'write "file.py:function"'
            )
        if module.endswith(".py"):
            module = _resolved_path(folder, module)
            if not Path(module).is_file():
                section.report(
                    "python", f"file {module} does not exist", "paths are relative to this file"
                )
        if not given:
            section.report("inputs", "a function needs inputs", 'add inputs = ["clicks"]')
        transform: Transform = PythonTransform(
            name=name, module=module, function=function, inputs=given
        )
    else:
        sql = section.text("sql")
        found = tuple(word for word in identifiers_in(sql) if word in others)
        if sql:
            section.check("sql", lambda: check_query(sql), "write a query in Spark SQL")
        if not given and not found:
            section.report("sql", "uses no source or transform", f"use one of {', '.join(others)}")
        transform = SqlTransform(name=name, sql=sql, inputs=given or found)
    for needed in given:
        if needed != name:  # reported as a cycle
            section.check_known("inputs", needed, others)
    section.finish()
    return transform


def _sink(section: Section, name: str, folder: Path, known: Mapping[str, None]) -> Sink:
    _check_name(section, name)
    if section.is_empty:
        # All fields have defaults, but an empty sink is certainly a mistake.
        first = next(iter(known), "NAME")
        section.report(
            "",
            "is empty",
            f'add input = "{first}" and path = "tables/{name}", or input = "{first}" and '
            f'topic = "{name}"',
        )
    has_default = len(known) == 1 or section.is_empty
    source = section.text("input", next(iter(known), "") if has_default else None)
    if source:
        section.check_known("input", source, list(known))
    trigger = section.text("trigger", TRIGGER_DEFAULT)
    _check_duration(section, "trigger", trigger)
    output = section.choice("output", OUTPUTS, "append")
    if section.has("topic"):
        sink: Sink = TopicSink(
            name=name,
            input=source,
            topic=section.text("topic"),
            key=section.optional("key"),
            trigger=trigger,
            output=output,
        )
        section.ignore(
            "format",
            allowed=("topic",),
            remedy="remove it: a sink with a topic writes to the topic",
        )
    else:
        sink = _table_sink(section, name, folder, source, trigger, output)
    section.finish()
    return sink


def _table_sink(
    section: Section, name: str, folder: Path, source: str, trigger: str, output: str
) -> TableSink:
    format_ = section.choice("format", (*TABLE_FORMATS, "topic"), "delta")
    if format_ == "topic":
        section.report("format", "needs a topic", 'add topic = "NAME"')
    mode = section.choice("mode", ("append", "merge"), "append")
    keys = section.texts("keys")
    if mode == "merge" and format_ != "delta":
        section.report("mode", f"{format_} tables are append-only", 'use format = "delta"')
    if mode == "merge" and not keys:
        section.report("keys", "a merge needs keys", 'add keys = ["id"]')
    if mode == "append" and output != "append":
        remedy = 'use mode = "merge" with keys'
        section.report("output", f"{output} would append rows repeatedly", remedy)
    path = section.text("path", f"tables/{name}")
    if format_ == "parquet" and "://" in path and not path.startswith("file://"):
        remedy = "use a mounted file system, or Delta"
        section.report("path", "a Parquet table needs a file system with atomic rename", remedy)
    return TableSink(
        name=name,
        input=source,
        format=format_,
        path=_resolved_path(folder, path),
        table=section.text("table", name),
        catalog=section.optional("catalog"),
        is_merged=mode == "merge",
        keys=keys,
        order=section.optional("order"),
        delete=section.optional("delete"),
        compact_every=section.number("compact_every", at_least=0, default=COMPACT_EVERY_DEFAULT)
        or 0,
        trigger=trigger,
        output=output,
    )


def _check_references(root: Section, pipeline: Pipeline) -> None:
    for name in pipeline.transforms:
        if name in pipeline.sources:
            root.report(f"transforms.{name}", "a source has the same name", "rename one of them")
    cycle = _find_cycle(pipeline)
    if cycle:
        where = f"transforms.{cycle[0]}"
        root.report(where, f"{' needs '.join(cycle)}", "break the cycle")
        return
    for source in pipeline.sources.values():
        _check_source(root, source)
    known = [*pipeline.sources, *pipeline.transforms]
    inputs = [name for one in pipeline.transforms.values() for name in one.inputs]
    if any(name not in known for name in inputs):
        return  # already reported; the checks below need valid inputs
    paths: dict[str, str] = {}
    for sink in pipeline.sinks.values():
        if sink.input not in known:
            continue
        _check_sink(root, pipeline, sink)
        if isinstance(sink, TableSink):
            place = f"{sink.path} {sink.table if sink.format == 'iceberg' else ''}"
            if place in paths:
                text = f"writes to the same table as sinks.{paths[place]}"
                root.report(f"sinks.{sink.name}.path", text, "combine them in one transform")
            paths[place] = sink.name


def _check_source(root: Section, source: Source) -> None:
    columns = _declared(source)
    if columns is None:
        return
    where = f"sources.{source.name}"
    if source.watermark is not None:
        _check_column(root, f"{where}.watermark.column", source.watermark.column, columns)
    for name in source.required if isinstance(source, TopicSource) else ():
        _check_column(root, f"{where}.required", name, columns)


def _check_written(root: Section, pipeline: Pipeline, sink: Sink) -> None:
    """Check the columns that a sink names, if the columns of its input are declared."""
    source = pipeline.sources.get(sink.input)
    columns = None if source is None else _declared(source)
    if columns is None:
        return
    where = f"sinks.{sink.name}"
    match sink:
        case TopicSink():
            named = [("key", sink.key)]
        case TableSink():
            named = [("keys", key) for key in sink.keys]
            named += [("order", sink.order), ("delete", sink.delete)]
    for field, name in named:
        if name is not None:
            _check_column(root, f"{where}.{field}", name, columns)


def _check_column(root: Section, where: str, name: str, columns: list[str]) -> None:
    if name.partition(".")[0].strip("`").lower() not in [column.lower() for column in columns]:
        root.report(where, f"column {name} does not exist", f"use one of {', '.join(columns)}")


def _declared(source: Source) -> list[str] | None:
    """The columns of a source; None if they are inferred or invalid."""
    try:
        match source:
            case FileSource():
                return declared_columns(source.schema)
            case TopicSource(values="raw"):
                return ["key", "value", *ORIGIN]
            case TopicSource(values="json") if source.schema not in ("", INFER):
                return [*declared_columns(source.schema), "_key", *ORIGIN]
            case _:
                return None
    except ValueError:
        return None  # already reported


def _check_sink(root: Section, pipeline: Pipeline, sink: Sink) -> None:
    _check_written(root, pipeline, sink)
    sources, _ = pipeline.inputs_of(sink)
    read: dict[str, str] = {}
    for source in sources:
        for topic in source.topics if isinstance(source, TopicSource) else ():
            if topic in read:
                text = f"reads topic {topic} through two sources, {read[topic]} and {source.name}"
                root.report(
                    f"sinks.{sink.name}.input",
                    text,
                    "read it with one source, and use that source twice",
                )
            read[topic] = source.name
    if isinstance(sink, TopicSink) and sink.topic in read:
        remedy = "choose another topic"
        root.report(
            f"sinks.{sink.name}.topic",
            "is also a source topic of this sink, so it would never end",
            remedy,
        )


def _find_cycle(pipeline: Pipeline) -> list[str]:
    done: dict[str, None] = {}

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done or name not in pipeline.transforms:
            return []
        for needed in pipeline.transforms[name].inputs:
            found = visit(needed, [*path, name])
            if found:
                return found
        done[name] = None
        return []

    return next((found for name in pipeline.transforms if (found := visit(name, []))), [])


def _check_name(section: Section, name: str) -> None:
    if not NAME.match(name):
        remedy = "names are used in SQL: use letters, digits and '_', and start with a letter"
        section.report("", f"{name!r} is not a valid name", remedy)


def _check_duration(section: Section, field: str, text: str) -> None:
    if not DURATION.match(text):
        section.report(field, f"{text!r} is not a duration", 'write "10 seconds" or "5 minutes"')


def _resolved_path(folder: Path, path: str) -> str:
    return path if "://" in path else str(folder / path)
