"""The data source over TLS with a login."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.secure_node import SecureNode


def test_source_reads_and_writes_a_secure_cluster(spark: SparkSession, tmp_path: Path) -> None:
    node = SecureNode(tmp_path / "data")
    try:
        assert node.run("topics", "create", "orders", "--partitions", "2").returncode == 0
        options = {
            "kafka.bootstrap.servers": node.bootstrap,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.username": node.security["user"],
            "kafka.sasl.password": node.security["password"],
            "kafka.ssl.truststore.location": node.security["ca"],
        }
        rows = spark.range(200).selectExpr("CAST(id AS STRING) AS value")
        rows.write.format("riverrun").mode("append").options(**options, topic="orders").save()
        read = spark.read.format("riverrun").options(**options, subscribe="orders").load()
        found = [int(bytes(row.value)) for row in read.select("value").collect()]
        assert sorted(found) == list(range(200))
        wrong = options | {"kafka.sasl.password": "guessed-password"}
        with pytest.raises(PySparkException) as caught:
            spark.read.format("riverrun").options(**wrong, subscribe="orders").load().count()
        assert "refuses the login" in str(caught.value)
        assert "guessed-password" not in str(caught.value)
    finally:
        assert node.stop() == 0
