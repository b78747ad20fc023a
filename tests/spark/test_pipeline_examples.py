"""The examples run unchanged. test_session runs clickstream on a Spark cluster."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riverrun.pipeline.sinks.tables.attempt import open_table
from tests.clusters import Cluster
from tests.processes import outside_make
from tests.spark.pipelines import Runs, read

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def runs(spark: SparkSession, spark_cluster: Cluster, tmp_path: Path) -> Runs:
    return Runs(spark, spark_cluster.bootstrap, tmp_path)


def run_example(runs: Runs, name: str, file: str, count: int) -> None:
    words = [name, "--bootstrap", runs.bootstrap, "--count", str(count)]
    subprocess.run([sys.executable, str(EXAMPLES / "events.py"), *words], check=True)
    supervisor = runs.once((EXAMPLES / name / file).read_text(), file)
    assert supervisor.failures == []


def test_shop_joins_orders_with_payments(runs: Runs) -> None:
    run_example(runs, "shop", "pipeline.toml", 80)
    attempt = open_table("iceberg", str(runs.folder / "tables"), name="paid_orders")
    assert attempt.schema is not None
    assert attempt.schema.names[:2] == ["order_id", "customer"]
    rows = attempt._table.scan().to_arrow().to_pylist()  # type: ignore[attr-defined]
    assert sorted(row["order_id"] for row in rows) == list(range(40))
    assert all(row["ordered"] <= row["paid"] for row in rows)


def test_customers_merges_changes_into_the_current_state(runs: Runs) -> None:
    run_example(runs, "customers", "pipeline.yaml", 300)
    wanted: dict[int, str] = {}
    for record in read(runs.bootstrap, "customers"):
        customer = int(record.key or b"")
        change = None if record.value is None else json.loads(record.value)
        if change is None or change["operation"] == "d":
            wanted.pop(customer, None)
        else:
            wanted[customer] = change["city"]
    assert {row["id"]: row["city"] for row in runs.rows("tables/customers")} == wanted


@pytest.mark.parametrize(("given", "wanted"), [(["PORT=21000"], " --port 21000"), ([], "")])
def test_make_demo_takes_a_port(given: list[str], wanted: str) -> None:
    environment = {name: value for name, value in outside_make().items() if name != "PORT"}
    shown = subprocess.check_output(
        ["make", "--dry-run", "demo", *given], cwd=EXAMPLES.parent, env=environment, text=True
    )
    assert shown.splitlines()[-1].rstrip() == f"exec .venv/bin/python examples/demo.py{wanted}"
