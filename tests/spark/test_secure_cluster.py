"""Spark over TLS with a login: our data source, Spark's own connector, and the audit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.secure_node import SecureNode

SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    started = SecureNode(tmp_path_factory.mktemp("secure") / "data")
    yield started
    assert started.stop() == 0


def common_options(node: SecureNode) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": node.bootstrap,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.ssl.truststore.location": node.security["ca"],
    }


def test_source_reads_and_writes_a_secure_cluster(spark: SparkSession, node: SecureNode) -> None:
    assert node.run("topics", "create", "ours", "--partitions", "2").returncode == 0
    options = {
        **common_options(node),
        "kafka.sasl.username": node.security["user"],
        "kafka.sasl.password": node.security["password"],
    }
    rows = spark.range(200).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("riverrun").mode("append").options(**options, topic="ours").save()
    read = spark.read.format("riverrun").options(**options, subscribe="ours").load()
    found = [int(bytes(row.value)) for row in read.select("value").collect()]
    assert sorted(found) == list(range(200))
    wrong = options | {"kafka.sasl.password": "guessed-password"}
    with pytest.raises(PySparkException) as caught:
        spark.read.format("riverrun").options(**wrong, subscribe="ours").load().count()
    assert "refuses the login" in str(caught.value)
    assert "guessed-password" not in str(caught.value)


@pytest.mark.peer
@pytest.mark.usefixtures("connector")
def test_connector_of_spark_reads_and_writes_a_secure_cluster(
    spark: SparkSession, node: SecureNode
) -> None:
    assert node.run("topics", "create", "theirs", "--partitions", "2").returncode == 0
    user, password = node.security["user"], node.security["password"]
    options = {
        **common_options(node),
        "kafka.ssl.truststore.type": "PEM",
        "kafka.sasl.jaas.config": (
            f'{SCRAM_MODULE} required username="{user}" password="{password}";'
        ),
    }
    rows = spark.range(200).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("kafka").mode("append").options(**options, topic="theirs").save()
    read = spark.read.format("kafka").options(**options, subscribe="theirs").load()
    found = [int(bytes(row.value)) for row in read.select("value").collect()]
    assert sorted(found) == list(range(200))


def test_audit_reads_the_copies_of_a_secure_cluster(node: SecureNode) -> None:
    assert node.run("topics", "create", "audited").returncode == 0
    assert node.run("produce", "audited", given="first\nsecond\n").returncode == 0
    audited = node.run("audit", "replicas", "audited", "--master", "local[1]")
    assert audited.returncode == 0, audited.stderr
    assert "1 copies of 1 partitions are equal" in audited.stdout
    assert node.security["password"] not in audited.stdout + audited.stderr
