"""SQL, functions and columns are checked against the declared schemas, without a cluster."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riverrun.cli.support.options import USAGE
from riverrun.pipeline.declaration.parser import read_pipeline
from riverrun.pipeline.errors import DeclarationError, Problem
from riverrun.pipeline.run import driver, foreground, supervisor
from riverrun.pipeline.run.analysis import find_line
from riverrun.pipeline.run.sql_check import (
    PipelineCheck,
    check_pipeline,
    has_checkable_sql,
    sources_without_columns,
)
from riverrun.pipeline.run.status import starting_status
from riverrun.pipeline.sources.schemas import PinnedSchema
from riverrun.pipeline.state.versioned_file import LocalFiles
from tests.processes import until

EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCE = """\
[sources.orders]
topic = "orders"
schema = "id BIGINT, amount DOUBLE, name STRING, time TIMESTAMP"
"""
SINK = """
[sinks.out]
input = "t"
path = "table"
"""


def problems_in(spark: SparkSession, folder: Path, text: str) -> list[Problem]:
    file = folder / "p.toml"
    file.write_text(text)
    return PipelineCheck(spark, read_pipeline(file)).problems()


def with_sql(sql: str, *, source: str = SOURCE, sink: str = SINK) -> str:
    return f'{source}[transforms.t]\nsql = """\n{sql}\n"""\n{sink}'


@pytest.mark.parametrize(
    ("sql", "line", "text", "remedy"),
    [
        (
            "SELECT id,\n  sum(amuont) AS s\nFROM orders GROUP BY id",
            7,
            "column amuont does not exist; did you mean amount?",
            "use one of id, amount, name, time, _key, _topic, _partition, _offset, _timestamp",
        ),
        (
            "SELECT o.nane FROM orders o",
            6,
            "column o.nane does not exist; did you mean name?",
            "use one of id, amount",
        ),
        (
            "SELECT id FROM orders\nJOIN oders USING (id)",
            7,
            "no source or transform is named oders; did you mean orders?",
            "use one of orders",
        ),
        (
            "SELECT id,\n\n  amount + true AS x FROM orders",
            8,
            'cannot resolve "(amount + true)" due to data type mismatch: the left and right '
            'operands of the binary operator have incompatible types ("DOUBLE" and "BOOLEAN")',
            "correct the query",
        ),
        (
            "SELECT id FROM orders\nWHERE id = )",
            7,
            "syntax error at or near ')'",
            "correct the query",
        ),
        ("SELECT frob(id) AS x FROM orders", 6, "function frob does not exist", "use a function"),
    ],
)
def test_invalid_sql_is_reported_with_its_line(
    spark: SparkSession, tmp_path: Path, sql: str, line: int, text: str, remedy: str
) -> None:
    (problem,) = problems_in(spark, tmp_path, with_sql(sql))
    assert (problem.field, problem.line, problem.text) == ("transforms.t.sql", line, text)
    assert problem.remedy.startswith(remedy)


WITH_WATERMARK = f'{SOURCE}watermark = {{ column = "time", delay = "1 minute" }}\n'
MERGED = f'{SINK}mode = "merge"\nkeys = ["id"]\noutput = "update"\n'


@pytest.mark.parametrize(
    ("source", "sql", "text", "remedies"),
    [
        (
            SOURCE,
            "SELECT id, sum(amount) AS s FROM orders GROUP BY id",
            "aggregates a stream without a watermark",
            (
                'add watermark = { column = "time", delay = "1 minute" } to [sources.orders] and '
                "group by window(time, '1 minute')",
                'mode = "merge", the keys of the groups as keys, and output = "update" in '
                "[sinks.out]",
            ),
        ),
        (
            WITH_WATERMARK,
            "SELECT id, sum(amount) AS s FROM orders GROUP BY id",
            "groups by no column with a watermark",
            ("group by window(time, '1 minute') too",),
        ),
        (
            WITH_WATERMARK,
            "SELECT * FROM orders ORDER BY id",
            "sorting is not supported on streaming DataFrames/Datasets",
            ("change the query",),
        ),
    ],
)
def test_query_that_cannot_stream_is_reported_with_a_remedy(
    spark: SparkSession,
    tmp_path: Path,
    source: str,
    sql: str,
    text: str,
    remedies: tuple[str, ...],
) -> None:
    (problem,) = problems_in(spark, tmp_path, with_sql(sql, source=source))
    assert problem.field == "transforms.t.sql"
    assert problem.text.startswith(text)
    for remedy in remedies:
        assert remedy in problem.remedy


def test_output_mode_that_does_not_fit_the_query_is_reported(
    spark: SparkSession, tmp_path: Path
) -> None:
    join = "SELECT a.id FROM orders a JOIN orders b ON a.id = b.id"
    sink = MERGED.replace("update", "complete")
    (problem,) = problems_in(spark, tmp_path, with_sql(join, sink=sink))
    assert problem.field == "transforms.t.sql"
    assert "complete" in problem.text
    assert problem.remedy == "change output in [sinks.out]"


@pytest.mark.parametrize(
    "text",
    [
        with_sql("SELECT id, sum(amount) AS s FROM orders GROUP BY id", sink=MERGED),
        with_sql(
            "SELECT window(time, '1 minute') AS w, count(*) AS n FROM orders GROUP BY 1",
            source=WITH_WATERMARK,
        ),
        with_sql("SELECT id, upper(name) AS name FROM orders WHERE amount > 3"),
        with_sql("SELECT key, value, _offset FROM raw", source='[sources.raw]\ntopic="r"\n'
                 'values="raw"\n'),
        with_sql("SELECT id FROM f", source='[sources.f]\nfiles = "nowhere"\nschema = "id INT"\n'),
    ],
)  # fmt: skip
def test_valid_sql_is_accepted(spark: SparkSession, tmp_path: Path, text: str) -> None:
    assert problems_in(spark, tmp_path, text) == []


@pytest.mark.parametrize(
    "file", sorted(EXAMPLES.glob("*/pipeline.*")), ids=lambda file: file.parent.name
)
def test_sql_of_the_examples_is_valid(spark: SparkSession, file: Path) -> None:
    pipeline = read_pipeline(file)
    assert has_checkable_sql(pipeline)
    check_pipeline(spark, pipeline)


def test_problem_of_a_shared_transform_is_reported_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    text = with_sql("SELECT idd FROM orders") + (
        '[transforms.next]\nsql = "SELECT * FROM t"\n[sinks.other]\ninput = "next"\npath = "o"\n'
        '[transforms.good]\nsql = "SELECT id FROM orders"\n[sinks.copy]\ninput = "good"\n'
        'topic = "copy"\nkey = "idd"\n'
    )
    found = problems_in(spark, tmp_path, text)
    assert [(problem.field, problem.text) for problem in found] == [
        ("transforms.t.sql", "column idd does not exist; did you mean id?"),
        ("sinks.copy.key", "column idd does not exist; did you mean id?"),
    ]
    assert [problem.line for problem in found] == [6, 22]


@pytest.mark.parametrize(
    ("sink", "field", "text"),
    [
        ('mode = "merge"\nkeys = ["idd"]\n', "keys", "column idd does not exist; did you mean id?"),
        ('mode = "merge"\nkeys = ["id"]\norder = "x"\n', "order", "column x does not exist"),
        ('mode = "merge"\nkeys = ["id"]\ndelete = "gone"\n', "delete", "column gone does not"),
    ],
)
def test_columns_that_a_sink_names_are_checked(
    spark: SparkSession, tmp_path: Path, sink: str, field: str, text: str
) -> None:
    (problem,) = problems_in(
        spark, tmp_path, with_sql("SELECT id FROM orders", sink=f"{SINK}{sink}")
    )
    assert problem.field == f"sinks.out.{field}"
    assert problem.text.startswith(text)


def test_two_columns_of_one_name_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    (problem,) = problems_in(spark, tmp_path, with_sql("SELECT id, amount AS ID FROM orders"))
    assert (problem.field, problem.text) == ("sinks.out.input", "two columns are named id")


def test_functions_are_called_with_the_declared_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(
        "def good(orders):\n    return orders.select('id')\n"
        "def bad(orders):\n    return orders.select('idd')\n"
        "def broken(orders):\n    return orders.nothing()\n"
    )
    parts = [
        f'[transforms.{name}]\npython = "own.py:{name}"\ninputs = ["orders"]\n'
        f'[sinks.{name}_table]\ninput = "{name}"\npath = "{name}"\n'
        for name in ("good", "bad", "broken")
    ]
    found = problems_in(spark, tmp_path, SOURCE + "".join(parts))
    assert [problem.field for problem in found] == [
        "transforms.bad.python",
        "transforms.broken.python",
    ]
    assert found[0].text == "column idd does not exist; did you mean id?"
    assert f"{tmp_path}/own.py:6: PySparkAttributeError" in found[1].text


def test_sql_over_an_inferred_schema_is_checked_once_it_is_known(
    spark: SparkSession, tmp_path: Path
) -> None:
    text = with_sql("SELECT idd FROM orders", source='[sources.orders]\ntopic = "orders"\n')
    assert problems_in(spark, tmp_path, text) == []
    pipeline = read_pipeline(tmp_path / "p.toml")
    assert not has_checkable_sql(pipeline)
    assert sources_without_columns(pipeline, ["t"]) == ["orders"]
    known = spark.createDataFrame([], "id BIGINT").schema
    PinnedSchema(LocalFiles(), str(pipeline.state), "orders").extend(known)
    (problem,) = problems_in(spark, tmp_path, text)
    assert problem.text == "column idd does not exist; did you mean id?"


def test_all_problems_are_raised_with_the_file(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(with_sql("SELECT idd FROM orders"))
    with pytest.raises(DeclarationError) as caught:
        check_pipeline(spark, read_pipeline(file))
    wanted = f"{file}:6: transforms.t.sql: column idd does not exist; did you mean id?\n  Remedy: "
    assert str(caught.value).startswith(wanted)
    assert not spark.catalog.tableExists("orders"), "the check leaves no views"


def test_run_with_invalid_sql_starts_no_query(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "p.toml"
    valid = '[sinks.copy]\ninput = "orders"\npath = "copy"\n'
    file.write_text(with_sql("SELECT idd FROM orders") + valid)
    pipeline = read_pipeline(file)
    monkeypatch.setattr(driver, "close_session", lambda _: None)  # other tests use it
    monkeypatch.setattr(
        supervisor, "PipelineSupervisor", lambda *_, **__: pytest.fail("a query starts")
    )
    sinks = list(pipeline.sinks)
    starting = starting_status("p", "local", sinks, log="spark.log", bootstrap="b:1")
    whole = driver.PipelineDriver(pipeline, lambda: spark, starting, is_once=True)
    whole.start()
    until(lambda: whole.is_over, seconds=100, what="the SQL is checked")
    outcome = foreground.outcome_of(whole)
    assert outcome.code == USAGE
    assert f"{file}:6: transforms.t.sql: column idd does not exist" in outcome.messages[0]
    assert [query.state for query in whole.status().queries] == ["failed", "failed"]


def test_line_is_found_in_folded_yaml() -> None:
    text = "transforms:\n  t:\n    sql: >\n      SELECT a,\n        b, a\n      FROM b\n"
    sql = "SELECT a, b, a FROM b"
    assert find_line(text, 3, sql, sql.index("b"), sql.index("b") + 1) == 5
    assert find_line(text, 3, sql, sql.rindex("b"), sql.rindex("b") + 1) == 6
    assert find_line(text, 3, sql, 0, 6) == 4
    assert find_line('x\nsql = "SELECT s FROM t"', 2, "SELECT s FROM t", 7, 8) == 2
    assert find_line("sql = 'elsewhere'", 1, "SELECT 1", 0, 8) == 1
