"""Every client over SASL_SSL: it logs in, administers, writes, and reads in a group."""

import asyncio
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AiokafkaTopic
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic as ConfluentTopic
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic as PythonTopic

from tests.compatibility.apache import ApacheTools, Ran
from tests.compatibility.confluent import read
from tests.compatibility.test_javascript import check_kafkajs, check_platformatic, run_script
from tests.processes import until
from tests.secure_node import SecureNode

SECONDS_MAX = 30
VALUES = [b"%d" % number for number in range(200)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    started = SecureNode(tmp_path_factory.mktemp("secure") / "data")
    yield started
    assert started.stop() == 0


def test_confluent_kafka(node: SecureNode) -> None:
    login: dict[str, Any] = {
        "bootstrap.servers": node.bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": node.security["user"],
        "sasl.password": node.security["password"],
        "ssl.ca.location": node.security["ca"],
    }
    admin = AdminClient(login)
    admin.create_topics([ConfluentTopic("confluent", 1, 1)])["confluent"].result(SECONDS_MAX)
    producer = Producer({**login, "enable.idempotence": True})
    for value in VALUES:
        producer.produce("confluent", value)
    assert producer.flush(SECONDS_MAX) == 0
    consumer = Consumer({**login, "group.id": "confluent", "auto.offset.reset": "earliest"})
    consumer.subscribe(["confluent"])
    assert [message.value() for message in read(consumer, len(VALUES))] == VALUES
    consumer.close()


def test_aiokafka(node: SecureNode) -> None:
    login: dict[str, Any] = {
        "bootstrap_servers": node.bootstrap,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": node.security["user"],
        "sasl_plain_password": node.security["password"],
        "ssl_context": ssl.create_default_context(cafile=node.security["ca"]),
    }

    async def story() -> list[bytes]:
        admin = AIOKafkaAdminClient(**login)
        await admin.start()
        await admin.create_topics([AiokafkaTopic("aiokafka", 1, 1)])
        await admin.close()
        async with AIOKafkaProducer(**login, enable_idempotence=True) as producer:
            for sent in [await producer.send("aiokafka", value) for value in VALUES]:
                await sent
        async with AIOKafkaConsumer(
            "aiokafka", group_id="aiokafka", auto_offset_reset="earliest", **login
        ) as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    async def limited() -> list[bytes]:
        async with asyncio.timeout(SECONDS_MAX):
            return await story()

    assert asyncio.run(limited()) == VALUES


def test_kafka_python(node: SecureNode) -> None:
    login: dict[str, Any] = {
        "bootstrap_servers": node.bootstrap,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": node.security["user"],
        "sasl_plain_password": node.security["password"],
        "ssl_cafile": node.security["ca"],
    }
    admin = KafkaAdminClient(**login)
    admin.create_topics([PythonTopic("kafka-python", 1, 1)])
    admin.close()
    producer = KafkaProducer(**login)
    for sent in [producer.send("kafka-python", value) for value in VALUES]:
        sent.get(SECONDS_MAX)
    producer.close()
    consumer = KafkaConsumer(
        "kafka-python",
        group_id="kafka-python",
        auto_offset_reset="earliest",
        consumer_timeout_ms=SECONDS_MAX * 1000,
        **login,
    )
    assert [record.value for record, _ in zip(consumer, VALUES, strict=False)] == VALUES
    consumer.close()


@pytest.mark.peer
def test_kafkajs(node: SecureNode, tmp_path: Path) -> None:
    login = json.dumps(node.security)
    check_kafkajs(run_script("kafkajs.mjs", tmp_path, node.bootstrap, "kafkajs", login))


@pytest.mark.peer
def test_platformatic(node: SecureNode, tmp_path: Path) -> None:
    login = json.dumps(node.security)
    seen = run_script("platformatic.mjs", tmp_path, node.bootstrap, "platformatic", login)
    check_platformatic(seen, "platformatic")


class Tools:
    """Apache's tools as the administrator of the node."""

    def __init__(self, tools: ApacheTools, node: SecureNode) -> None:
        self._tools = tools
        properties = node.security["properties"]
        self._login = ("--bootstrap-server", node.bootstrap, "--command-config", properties)

    def run(self, main: str, *words: object, given: str = "") -> Ran:
        return self._tools.run(main, *self._login, *words, given=given).check()


@pytest.fixture
def administrator(tools: ApacheTools, node: SecureNode) -> Tools:
    return Tools(tools, node)


@pytest.mark.peer
def test_java_clients_write_and_read_in_a_group(administrator: Tools) -> None:
    administrator.run("TopicCommand", "--create", "--topic", "java", "--partitions", 2)
    lines = "".join(f"java-{number}\n" for number in range(50))
    administrator.run("ConsoleProducer", "--topic", "java", given=lines)
    shown = administrator.run(
        "consumer.ConsoleConsumer", "--topic", "java", "--group", "java", "--from-beginning",
        "--max-messages", 50, "--timeout-ms", SECONDS_MAX * 1000,
    )  # fmt: skip
    assert {line for line in shown.text.splitlines() if line.startswith("java-")} == set(
        lines.split()
    )
    listed = administrator.run("consumer.group.ConsumerGroupCommand", "--list")
    assert "java" in listed.text.split()


@pytest.mark.peer
def test_apache_tools_give_a_user_rights(administrator: Tools, node: SecureNode) -> None:
    administrator.run("TopicCommand", "--create", "--topic", "given")
    user = ("--entity-type", "users", "--entity-name", "jane")
    scram = "SCRAM-SHA-512=[password=jane-secret]"
    config = "kafka.admin.ConfigCommand"
    administrator.run(config, "--alter", *user, "--add-config", scram)
    administrator.run(config, "--alter", *user, "--add-config", "producer_byte_rate=1000000")
    described = administrator.run(config, "--describe", *user).text
    assert "SCRAM-SHA-512=iterations=4096" in described
    assert "producer_byte_rate=1000000" in described
    assert node.produce("jane", "jane-secret", "given") == "TOPIC_AUTHORIZATION_FAILED"
    rule = ("--allow-principal", "User:jane", "--producer", "--topic", "given")
    administrator.run("AclCommand", "--add", *rule)
    assert "User:jane" in administrator.run("AclCommand", "--list", "--topic", "given").text
    until(
        lambda: node.produce("jane", "jane-secret", "given") == "",
        seconds=SECONDS_MAX,
        what="the rule holds",
    )
    quorum = administrator.run("MetadataQuorumCommand", "describe", "--status")
    assert "LeaderId:" in quorum.text
