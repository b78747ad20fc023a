"""The mixin for unittest and the replacement of testcontainers' class."""

import unittest

import pytest

from riverrun.testing import ClusterError, ClusterMixin
from riverrun.testing.containers import KafkaContainer, setting_of


def test_the_mixin_starts_one_cluster_for_all_tests_of_a_class() -> None:
    class OrdersCase(ClusterMixin, unittest.TestCase):
        riverrun_settings = {"num.partitions": 2}  # noqa: RUF012

        def test_first(self) -> None:
            self.kafka.produce(self.kafka.topic(name="orders", partitions=-1), ["one"])

        def test_second(self) -> None:
            assert len(self.kafka.records("orders")) == 1
            assert self.kafka.leader("orders", 1) == 1

    suite = unittest.defaultTestLoader.loadTestsFromTestCase(OrdersCase)
    result = unittest.TestResult()
    suite.run(result)
    assert result.testsRun == 2
    assert not result.errors and not result.failures


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("KAFKA_NUM_PARTITIONS", "num.partitions"),
        ("KAFKA_A__B_C", "a_b.c"),
        ("KAFKA_A___B_C", "a-b.c"),
    ],
)
def test_variables_of_containers_name_settings(variable: str, name: str) -> None:
    assert setting_of(variable) == name


@pytest.mark.parametrize(
    "variable", ["KAFKA_REMOTE_LOG_READER_THREADS", "KAFKA_SCHEMA_REGISTRY_URL"]
)
def test_an_unknown_setting_is_ignored_with_a_warning(variable: str) -> None:
    with pytest.warns(UserWarning, match=f"{variable} has no effect"):
        container = KafkaContainer().with_env(variable, "1")
    with container as kafka:
        assert kafka.get_bootstrap_server()


@pytest.mark.parametrize(
    ("variable", "value", "saying"),
    [
        ("KAFKA_NUM_PARTITIONS", "many", "num.partitions"),
        ("KAFKA_SASL_ENABLED_MECHANISMS", "GSSAPI", "sasl.enabled.mechanisms"),
    ],
)
def test_an_invalid_or_security_setting_stops_the_start(
    variable: str, value: str, saying: str
) -> None:
    container = KafkaContainer().with_env(variable, value)
    with pytest.raises(ClusterError, match=saying):
        container.start()


def test_the_methods_of_testcontainers_work() -> None:
    container = (
        KafkaContainer("confluentinc/cp-kafka:7.6.0")
        .with_kraft()
        .with_env("KAFKA_NUM_PARTITIONS", 3)
        .with_env("KAFKA_HEAP_OPTS", "-Xmx1g")
        .with_env("KAFKA_LISTENERS", "PLAINTEXT://0.0.0.0:9093")
        .with_exposed_ports(9093)
    )
    with container as kafka:
        host, port = kafka.get_bootstrap_server().split(":")
        assert (kafka.get_container_host_ip(), kafka.get_exposed_port(9093)) == (host, int(port))
        topic = kafka.cluster.topic(partitions=-1)
        assert kafka.cluster.leader(topic, 2) == 1
        assert b"node is up" in kafka.get_logs()[1]
