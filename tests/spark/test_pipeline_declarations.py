"""A declaration is parsed, or rejected with line, field and remedy."""

from pathlib import Path

import pytest

from riverrun.pipeline.declaration.model import FileSource, TableSink, TopicSink, TopicSource
from riverrun.pipeline.declaration.parser import read_pipeline
from riverrun.pipeline.declaration.sql_text import check_query, declared_columns
from riverrun.pipeline.errors import DeclarationError

GOOD = """\
[pipeline]
name = "shop"
bootstrap = "127.0.0.1:9092"

[sources.orders]
topic = "orders"
schema = "id BIGINT, amount DOUBLE, time TIMESTAMP"
watermark = { column = "time", delay = "10 minutes" }

[transforms.large]
sql = \"\"\"
SELECT id, amount
FROM orders
WHERE amount > 100
\"\"\"

[sinks.large_table]
input = "large"

[sinks.large_topic]
input = "large"
topic = "large-orders"
key = "id"
"""

SAME_IN_YAML = """\
pipeline:
  name: shop
  bootstrap: 127.0.0.1:9092
sources:
  orders:
    topic: orders
    schema: id BIGINT, amount DOUBLE, time TIMESTAMP
    watermark: {column: time, delay: 10 minutes}
transforms:
  large:
    sql: |
      SELECT id, amount
      FROM orders
      WHERE amount > 100
sinks:
  large_table: {input: large}
  large_topic:
    input: large
    topic: large-orders
    key: id
"""


def problems(tmp_path: Path, text: str, name: str = "shop.toml") -> list[str]:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(DeclarationError) as caught:
        read_pipeline(file)
    shown = str(caught.value).replace(f"{tmp_path}/", "")
    assert shown.count("Remedy: ") == len(caught.value.problems)
    return shown.splitlines()


def test_toml_declaration_is_parsed(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(GOOD)
    pipeline = read_pipeline(file)
    source = pipeline.sources["orders"]
    assert isinstance(source, TopicSource)
    assert (source.topics, source.values, source.dead_letters) == (
        ("orders",),
        "json",
        "orders.dead-letters",
    )
    table, topic = pipeline.sinks["large_table"], pipeline.sinks["large_topic"]
    assert isinstance(table, TableSink)
    assert isinstance(topic, TopicSink)
    assert (table.format, table.path) == ("delta", str(tmp_path / "tables/large_table"))
    sources, transforms = pipeline.inputs_of(table)
    assert [each.name for each in sources] == ["orders"]
    assert [each.name for each in transforms] == ["large"]


def test_yaml_and_toml_are_equivalent(tmp_path: Path) -> None:
    toml, yaml = tmp_path / "shop.toml", tmp_path / "shop.yaml"
    toml.write_text(GOOD)
    yaml.write_text(SAME_IN_YAML)
    one, other = read_pipeline(toml), read_pipeline(yaml)
    assert one.sources == other.sources
    assert one.sinks == other.sinks
    assert one.name == other.name


def test_files_can_be_a_source(tmp_path: Path) -> None:
    file = tmp_path / "in.toml"
    file.write_text(
        '[sources.lines]\nfiles = "in/*.csv"\nformat = "csv"\nschema = "a INT"\n'
        '[sinks.out]\ntopic = "lines"\n'
    )
    source = read_pipeline(file).sources["lines"]
    assert isinstance(source, FileSource)
    assert source.path == str(tmp_path / "in/*.csv")


def test_unknown_field_is_reported_with_its_line(tmp_path: Path) -> None:
    shown = problems(tmp_path, GOOD.replace("watermark =", "watermarks ="))
    assert shown == [
        "shop.toml:8: sources.orders.watermarks: is not a field; did you mean watermark?",
        "  Remedy: use one of dead_letters, files, message, on_data_loss, registry, "
        "registry_header, registry_user_info, required, rows_per_batch, schema, schemas, start, "
        "subject, tombstones, topic, topics, values, watermark.",
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("FROM orders", "FROM nothing", "transforms.large.sql: uses no source or transform"),
        (
            "[transforms.large]",
            '[transforms.large]\ninputs = ["odd"]',
            "transforms.large.inputs: no source or transform is named odd",
        ),
    ],
)
def test_remedy_does_not_suggest_the_transform_itself(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    shown = problems(tmp_path, GOOD.replace(old, new))
    assert shown[0].endswith(message)
    assert shown[1:] == ["  Remedy: use one of orders."]


@pytest.mark.parametrize("other", ["", '\n[sources.more]\ntopic = "more"\nvalues = "raw"\n'])
def test_empty_sink_is_rejected_with_an_example(tmp_path: Path, other: str) -> None:
    shown = problems(tmp_path, GOOD + other + "\n[sinks.b]\n")
    line = (GOOD + other).count("\n") + 2
    assert shown == [
        f"shop.toml:{line}: sinks.b: is empty",
        '  Remedy: add input = "orders" and path = "tables/b", '
        'or input = "orders" and topic = "b".',
    ]
    read = tmp_path / "good.toml"
    read.write_text(GOOD + other + '\n[sinks.b]\ninput = "orders"\npath = "tables/b"\n')
    assert "b" in read_pipeline(read).sinks


def test_transform_that_reads_itself_is_a_cycle(tmp_path: Path) -> None:
    text = GOOD.replace("[transforms.large]", '[transforms.large]\ninputs = ["large"]')
    shown = problems(tmp_path, text)
    assert shown[0].endswith("transforms.large: large needs large")
    assert len(shown) == 2


def test_lines_after_a_multi_line_string_are_correct(tmp_path: Path) -> None:
    shown = problems(tmp_path, GOOD.replace('key = "id"', "key = 5"))
    assert shown == [
        "shop.toml:23: sinks.large_topic.key: 5 is not a string",
        '  Remedy: write key = "...".',
    ]


def test_yaml_problems_have_lines(tmp_path: Path) -> None:
    text = SAME_IN_YAML.replace("key: id", "kee: id")
    assert problems(tmp_path, text, "shop.yaml")[0].startswith(
        "shop.yaml:20: sinks.large_topic.kee: is not a field; did you mean key?"
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('input = "large"', 'input = "lage"', "no source or transform is named lage; did you mean"),
        ('bootstrap = "127.0.0.1:9092"', 'bootstrap = "here"', "'here' is not an address"),
        ('delay = "10 minutes"', 'delay = "soon"', "'soon' is not a duration"),
        ('topic = "large-orders"', 'topic = "orders"', "is also a source topic of this sink"),
        ("FROM orders", "FROM nothing", "uses no source or transform"),
        ("[sinks.large_table]", "[sinks.large-table]", "'large-table' is not a valid name"),
        ('topic = "orders"', "", "there is no topic to read"),
        ("[sinks.large_table]", '[sinks.large_table]\nformat = "orc"', "'orc' is unknown"),
        (
            "[sinks.large_table]",
            '[sinks.large_table]\nmode = "merge"\nformat = "iceberg"',
            "iceberg tables are append-only",
        ),
        (
            "[sinks.large_table]",
            '[sinks.large_table]\noutput = "update"',
            "would append rows repeatedly",
        ),
        ('topic = "orders"', 'topic = "orders"\nvalues = "avro"\nschema_file = "x"', "x: No such"),
        ("id BIGINT", "id BIGNT", "'BIGNT' is not a type; did you mean BIGINT?"),
        ("SELECT id", "SELEC id", "a query cannot start with 'SELEC'; did you mean SELECT?"),
        (
            'schema = "id BIGINT, amount DOUBLE, time TIMESTAMP"',
            'values = "avro"\nschema = \'"string"\'',
            "must be a record",
        ),
        ('column = "time"', 'column = "tine"', "column tine does not exist"),
        ('topic = "orders"', 'topic = "orders"\nrequired = ["none"]', "column none does not exist"),
        (
            'topic = "orders"',
            'topic = "orders"\nrows_per_batch = 99999999999999999999',
            "99999999999999999999 is too large",
        ),
        (
            "[sinks.large_table]",
            '[sinks.m]\ninput = "orders"\nmode = "merge"\nkeys = ["nokey"]\n[sinks.large_table]',
            "column nokey does not exist",
        ),
        (
            "[sources.orders]",
            '[pipeline.client]\n"kafka.linger.ms" = 5\n[sources.orders]',
            "kafka.linger.ms must not start with kafka.",
        ),
        (
            "[sources.orders]",
            '[pipeline.client]\n"linger" = 5\n[sources.orders]',
            "Kafka clients have no setting kafka.linger",
        ),
        (
            "[sources.orders]",
            '[pipeline.client]\n"bootstrap.servers" = "other:1"\n[sources.orders]',
            "bootstrap.servers cannot be set here",
        ),
    ],
)
def test_problem_is_described(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    assert any(message in line for line in problems(tmp_path, GOOD.replace(old, new, 1)))


def test_names_in_literals_and_comments_are_not_inputs(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(
        '[sources.a]\ntopic = "a"\n[sources.b]\ntopic = "b"\n[sinks.d]\ninput = "x"\n'
        "[transforms.x]\nsql = \"SELECT 'it''s b' s /* b */ FROM a WHERE k = 'b' -- b\"\n"
    )
    assert read_pipeline(file).transforms["x"].inputs == ("a",)


@pytest.mark.parametrize(
    ("ddl", "names"),
    [
        ("id BIGINT, `a b` STRING NOT NULL COMMENT 'x, y'", ["id", "a b"]),
        ("a: struct<b: array<int>, c map<string, decimal(10, 2)>>, d decimal(3,1)", ["a", "d"]),
        ("struct<a:int,b:timestamp_ntz>", ["a", "b"]),
        ("i INTERVAL DAY TO SECOND, s STRING COLLATE UTF8_LCASE, v VARCHAR(5)", ["i", "s", "v"]),
    ],
)
def test_declared_columns_are_parsed(ddl: str, names: list[str]) -> None:
    assert declared_columns(ddl) == names


@pytest.mark.parametrize("sql", ["(SELECT 1)", "with a as (select 1) select * from a", "FROM a"])
def test_query_may_start_with_parentheses_with_or_from(sql: str) -> None:
    check_query(f"-- why\n  {sql}")


def test_cycle_is_reported(tmp_path: Path) -> None:
    text = (
        '[sources.a]\ntopic = "a"\n[transforms.b]\nsql = "SELECT * FROM a JOIN c"\n'
        '[transforms.c]\nsql = "SELECT * FROM b"\n[sinks.d]\ninput = "c"\n'
    )
    assert problems(tmp_path, text)[0] == "shop.toml:3: transforms.b: b needs c needs b"


def test_invalid_file_is_rejected_with_its_line(tmp_path: Path) -> None:
    assert problems(tmp_path, "[pipeline]\nname = \n")[0].startswith("shop.toml:2: invalid TOML")
    assert problems(tmp_path, "a: [1", "shop.yaml")[0].startswith("shop.yaml:1: invalid YAML")


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    shown = problems(tmp_path, GOOD.replace('key = "id"', 'keys = "id"').replace('"shop"', "7"))
    assert len(shown) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x: 2024-99-99", "shop.yaml: invalid YAML: month must be in 1..12"),
        ("sources: &a\n  b: *a\n", "shop.yaml: invalid YAML: an anchor refers to itself"),
    ],
)
def test_invalid_yaml_values_are_rejected(tmp_path: Path, text: str, message: str) -> None:
    assert problems(tmp_path, text, "shop.yaml")[0].startswith(message)


def test_nested_anchors_parse_in_linear_time(tmp_path: Path) -> None:
    nested = ["a0: &a0 {x: 1}"]
    nested += [f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}" for n in range(1, 40)]
    shown = problems(tmp_path, "\n".join(nested), "shop.yaml")
    assert any("is not a field" in line for line in shown)
