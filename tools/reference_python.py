"""The reference of the Python API, from signatures and docstrings.

It reads the source and imports nothing, so it needs no Spark.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

SOURCE = Path(__file__).parent.parent / "src"
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Entry(NamedTuple):
    """A class or function that users may use."""

    module: str
    name: str
    public: str = ""
    """The import of it, if it is not the module and the name."""
    members: bool = True
    """Whether to list the members of a class that have no docstring."""
    hidden: tuple[str, ...] = ()
    """Members for other parts of riverrun."""


class Chapter(NamedTuple):
    title: str
    introduction: str
    entries: tuple[Entry, ...]


TESTING = Chapter(
    "riverrun.testing",
    """\
A real cluster in tests. [Test with a real Kafka](../testing.md) explains its use. The fixtures of pytest need no import: `riverrun_cluster`, `riverrun_topic` and
`riverrun_settings`.
""",
    (
        Entry(
            "riverrun.testing.cluster",
            "Cluster",
            "riverrun.testing.Cluster",
            hidden=("of_processes",),
        ),
        Entry(
            "riverrun.testing.async_cluster",
            "AsyncCluster",
            "riverrun.testing.AsyncCluster",
            members=False,
        ),
        Entry(
            "riverrun.testing.case", "ClusterMixin", "riverrun.testing.ClusterMixin", members=False
        ),
        Entry("riverrun.records.record", "NewRecord", "riverrun.testing.NewRecord"),
        Entry("riverrun.testing.operations", "ConsumedRecord", "riverrun.testing.ConsumedRecord"),
        Entry("riverrun.testing.operations", "ConsumerGroup", "riverrun.testing.ConsumerGroup"),
        Entry("riverrun.testing.processes", "ClusterError", "riverrun.testing.ClusterError"),
        Entry("riverrun.testing.containers", "KafkaContainer"),
        Entry("riverrun.testing.transaction_history", "TransactionHistory"),
        Entry("riverrun.testing.transaction_checks", "check_transactions"),
    ),
)
SPARK = Chapter(
    "pyspark_riverrun",
    """\
The data source `format("riverrun")` of Spark, and helpers. [Spark and pipelines](../pipelines.md) explains its use.
""",
    (
        Entry("pyspark_riverrun.session", "session", "pyspark_riverrun.session"),
        Entry(
            "pyspark_riverrun.listener",
            "LagListener",
            "pyspark_riverrun.LagListener",
            members=False,
        ),
        Entry("pyspark_riverrun.listener", "QueryLag", "pyspark_riverrun.QueryLag"),
        Entry("pyspark_riverrun.environment", "pack", "pyspark_riverrun.pack_environment"),
        Entry(
            "pyspark_riverrun.source",
            "RiverrunSource",
            "pyspark_riverrun.RiverrunSource",
            members=False,
        ),
        Entry("pyspark_riverrun.options", "BadOption", "pyspark_riverrun.BadOption"),
        Entry("pyspark_riverrun.writing.task", "BadRow", "pyspark_riverrun.BadRow"),
        Entry("pyspark_riverrun.cluster.planner", "DataLost", "pyspark_riverrun.DataLost"),
    ),
)
CLIENT = Chapter(
    "riverrun.client",
    """\
The asynchronous client of the command line and the nodes. Applications usually take a Kafka client of their choice; use this one for tools that need single requests, or no
further dependency. Its names may change until version 1.0.

```python
import asyncio

from riverrun.client.fetcher import Fetcher
from riverrun.client.pool import ConnectionPool, parse_bootstrap
from riverrun.client.producer import Producer
from riverrun.model.ids import TopicPartition
from riverrun.records.record import NewRecord


async def main(bootstrap: str) -> None:
    async with ConnectionPool(parse_bootstrap(bootstrap)) as pool:
        producer = await Producer.open(pool, "greetings")
        producer.add(NewRecord(b"hello"))
        await producer.flush()
        fetcher = Fetcher(pool)
        fetcher.seek({TopicPartition("greetings", 0): 0})
        for part in await fetcher.poll():
            print([record.value for record in part.records])


asyncio.run(main("127.0.0.1:9092"))
```
""",
    (
        Entry("riverrun.client.pool", "parse_bootstrap"),
        Entry("riverrun.client.pool", "ConnectionPool", members=False),
        Entry("riverrun.client.pool", "ClusterUnreachable"),
        Entry("riverrun.client.retry", "RetryPolicy"),
        Entry("riverrun.client.security", "client_security"),
        Entry("riverrun.client.security", "AuthenticationFailed"),
        Entry("riverrun.client.producer", "Producer"),
        Entry("riverrun.client.transactions", "TransactionalProducer"),
        Entry("riverrun.client.transactions", "GroupMembership"),
        Entry("riverrun.client.transactions", "ProducerFenced"),
        Entry("riverrun.client.fetcher", "Fetcher"),
        Entry("riverrun.client.fetcher", "FetchedRecords"),
        Entry("riverrun.client.offsets", "offsets_at"),
        Entry("riverrun.client.offsets", "committed_offsets"),
        Entry("riverrun.client.offsets", "commit_offsets"),
        Entry("riverrun.client.consumer_member", "ConsumerMember"),
        Entry("riverrun.model.ids", "TopicPartition"),
        Entry("riverrun.model.errors", "KafkaError"),
    ),
)

INTRODUCTION = """\
# Python API

The classes and functions that programs may use. Everything else is internal and may change with any version.
"""
OPTIONS = "pyspark_riverrun.options"


def python_api() -> str:
    """The page, without its first line."""
    lines = [INTRODUCTION]
    for chapter in (TESTING, SPARK, CLIENT):
        lines += [f"## {chapter.title}", "", chapter.introduction]
        for entry in chapter.entries:
            lines += [*_entry(entry), ""]
        if chapter is SPARK:
            lines += [*_options(), ""]
    return "\n".join(lines).rstrip() + "\n"


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(SOURCE.joinpath(*module.split(".")).with_suffix(".py").read_text())


def _entry(entry: Entry) -> Iterator[str]:
    node = next(
        node
        for node in _tree(entry.module).body
        if isinstance(node, ast.ClassDef | Function) and node.name == entry.name
    )
    module, _, name = (entry.public or f"{entry.module}.{entry.name}").rpartition(".")
    yield from (f"### {name}", "", "```python", f"from {module} import {name}")
    if isinstance(node, Function):
        yield from (f"{name}{_call(node)}", "```", "", *_prose(node))
        return
    initial = next((each for each in _methods(node) if each.name == "__init__"), None)
    text = _prose(node)
    if initial is not None and not text[0].startswith("Created by"):
        yield f"{name}{_call(initial).removesuffix(' -> None')}"
        text += ["", *_prose(initial)] if ast.get_docstring(initial) else []
    yield from ("```", "", *text)
    rows = [*_fields(node)] if initial is None else []
    for method in _methods(node):
        is_listed = entry.members or ast.get_docstring(method)
        if is_listed and not method.name.startswith("_") and method.name not in entry.hidden:
            rows.append((_member(method), " ".join(_prose(method))))
    if rows:
        yield from ("", "| member | |", "|---|---|")
        for member, about in rows:
            yield f"| `{_cell(member)}` | {_cell(about)} |"


def _methods(node: ast.ClassDef) -> list[Function]:
    return [each for each in node.body if isinstance(each, Function)]


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Annotated fields, with the text that follows each."""
    for at, each in enumerate(node.body):
        if not isinstance(each, ast.AnnAssign):
            continue
        following = node.body[at + 1 : at + 2]
        text = ""
        if following and isinstance(following[0], ast.Expr):
            text = inspect.cleandoc(str(ast.literal_eval(following[0].value)))
        default = f" = {_value(each.value)}" if each.value is not None else ""
        yield f"{ast.unparse(each.target)}: {ast.unparse(each.annotation)}{default}", _markup(text)


def _member(method: Function) -> str:
    """A method with its types, or a property."""
    if "property" in [ast.unparse(each) for each in method.decorator_list]:
        return f"{method.name}: {ast.unparse(method.returns) if method.returns else 'object'}"
    prefix = "async " if isinstance(method, ast.AsyncFunctionDef) else ""
    return f"{prefix}{method.name}{_call(method)}"


def _call(function: Function) -> str:
    """The parameters and the result, without ``self`` and ``cls``."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults))
    words = [
        _parameter(each, default)
        for each, default in zip(positional, [*missing, *given.defaults], strict=True)
        if each.arg not in ("self", "cls")
    ]
    if given.vararg is not None:
        words.append(f"*{_parameter(given.vararg, None)}")
    elif given.kwonlyargs:
        words.append("*")
    for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        words.append(_parameter(each, default))
    if given.kwarg is not None:
        words.append(f"**{_parameter(given.kwarg, None)}")
    returned = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"({', '.join(words)}){returned}"


def _parameter(parameter: ast.arg, default: ast.expr | None) -> str:
    text = parameter.arg
    if parameter.annotation is not None:
        text += f": {ast.unparse(parameter.annotation)}"
    return text if default is None else f"{text} = {_value(default)}"


def _value(value: ast.expr) -> str:
    """A default; names and functions of the module are shown as dots."""
    is_plain = not any(isinstance(node, ast.Name | ast.Lambda) for node in ast.walk(value))
    return ast.unparse(value) if is_plain else "..."


def _prose(node: ast.ClassDef | Function) -> list[str]:
    return _markup(ast.get_docstring(node) or "").splitlines()


def _markup(text: str) -> str:
    """A docstring as Markdown: code in single backticks, and parameters as a list."""
    text = text.replace("``", "`")
    text = re.sub(r"^::\n\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^:param (\w+): ", r"- `\1`: ", text, flags=re.MULTILINE)
    text = re.sub(r"^:raises ([\w.]+): ", r"- raises `\1` ", text, flags=re.MULTILINE)
    return re.sub(r"::$", ":", text, flags=re.MULTILINE)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _options() -> Iterator[str]:
    """The options of the data source."""
    found = _constants(OPTIONS)
    yield from (
        "### Options of the data source",
        "",
        "Names are those of Spark's Kafka connector, in any case. [Spark and pipelines](../pipelines.md#the-data-source) says what they do.",
        "",
        "| options of | |",
        "|---|---|",
        f"| reads | {_names(found['READ_OPTIONS'])} |",
        f"| writes | {_names(found['WRITE_OPTIONS'])} |",
        f"| clients, with the prefix `kafka.` | {_names(found['USED_SETTINGS'])}, and those of [security](../security.md) |",
        f"| clients, accepted without effect | {_names(found['IGNORED_SETTINGS'])} |",
        "",
        "These settings of clients are refused:",
        "",
        "| setting | instead |",
        "|---|---|",
    )
    for name in ("FIXED_SETTINGS", "REFUSED_SETTINGS"):
        refused = found[name]
        assert isinstance(refused, dict)
        for setting, reason in refused.items():
            yield f"| `kafka.{setting}` | {reason} |"


def _names(names: object) -> str:
    assert isinstance(names, tuple)
    return ", ".join(f"`{name}`" for name in names)


def _constants(module: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for node in _tree(module).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            try:
                found[node.target.id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found
