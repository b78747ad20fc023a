"""Files of Apache Kafka as settings of a node: renamed, ignored, refused and unknown names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from riverrun.model.settings import SettingError
from riverrun.server.kafka_file import texts_of_kafka
from riverrun.server.kafka_settings import IGNORED, REFUSED, RENAMED, ignored_names
from riverrun.server.settings import NodeSettings, is_setting, read_file
from tests.kafka_samples import BROKER, CONTROLLER, SERVER
from tests.peers import find_java, find_kafka, need


def read(text: str, folder: Path) -> NodeSettings:
    path = folder / "server.properties"
    path.write_text(text)
    return NodeSettings.from_texts(read_file(path))


def refused(text: str, folder: Path) -> str:
    with pytest.raises(SettingError) as caught:
        read(text, folder)
    return str(caught.value)


def test_sample_of_a_combined_node_is_read(tmp_path: Path) -> None:
    settings = read(SERVER, tmp_path)
    assert settings.node_id == 1
    assert settings.formation.roles == ("broker", "controller")
    assert settings.formation.seeds() == [("localhost", 9093)]
    assert settings.data_directory == "/tmp/kraft-combined-logs"
    assert [(one.name, one.port) for one in settings.listening()] == [
        ("PLAINTEXT", 9092),
        ("CONTROLLER", 9093),
    ]
    assert settings.log.retention_ms == 168 * 3600 * 1000
    assert settings.network.send_buffer_bytes == 102_400
    assert settings.ignored == (
        "num.network.threads",
        "num.io.threads",
        "share.coordinator.state.topic.replication.factor",
        "share.coordinator.state.topic.min.isr",
    )
    assert not set(settings.ignored) & set(settings.given)


def test_samples_of_separate_roles_do_not_share_an_address(tmp_path: Path) -> None:
    broker, controller = read(BROKER, tmp_path), read(CONTROLLER, tmp_path)
    assert (broker.formation.is_broker, broker.formation.is_controller) == (True, False)
    assert (controller.formation.is_broker, controller.formation.is_controller) == (False, True)
    assert broker.formation.seeds() == controller.formation.seeds() == [("localhost", 9093)]
    address = controller.controller_advertised()
    assert address is not None
    assert (address.host, address.port) == ("localhost", 9093)
    assert broker.identity.http_listener == "127.0.0.1:9094"
    assert controller.identity.http_listener == "127.0.0.1:9095"


def test_http_listener_takes_no_port_of_another_listener() -> None:
    listeners = "PLAINTEXT://:9092,CONTROLLER://:9093,SASL_SSL://:9094"
    assert texts_of_kafka({"listeners": listeners})["http.listener"] == "127.0.0.1:9095"
    given = {"listeners": listeners, "http.listener": "0.0.0.0:8080"}
    assert texts_of_kafka(given)["http.listener"] == "0.0.0.0:8080"
    assert "http.listener" not in texts_of_kafka({})


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"broker.id": "3"}, {"node.id": "3"}),
        ({"broker.id": "3", "node.id": "3"}, {"node.id": "3"}),
        ({"log.dir": "/d"}, {"log.dirs": "/d"}),
        ({"log.dir": "/d", "log.dirs": "/e"}, {"log.dirs": "/e"}),
        ({"log.dirs": "/d", "metadata.log.dir": "/d"}, {"log.dirs": "/d"}),
        ({"controller.quorum.voters": "1@a:9093, 2@b:9093"}, {"seed.nodes": "a:9093,b:9093"}),
        ({"controller.quorum.bootstrap.servers": "a:1,b:1"}, {"seed.nodes": "a:1,b:1"}),
        (
            {"controller.quorum.bootstrap.servers": "a:1", "seed.nodes": "b:1"},
            {"seed.nodes": "b:1"},
        ),
        ({"controller.quorum.bootstrap.servers": ""}, {}),
    ],
)
def test_name_is_renamed(given: dict[str, str], made: dict[str, str]) -> None:
    assert texts_of_kafka(given) == made


OWN = {
    "node.id": "1",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "advertised.listeners": "PLAINTEXT://a:9092,CONTROLLER://A:9093",
}


@pytest.mark.parametrize(
    "given",
    [
        {"node.id": "1", "controller.quorum.voters": "1@kafka:9093"},
        {"broker.id": "1", "controller.quorum.voters": "1@kafka:9093"},
        {**OWN, "controller.quorum.bootstrap.servers": "a:9093"},
        {**OWN, "controller.quorum.bootstrap.servers": "localhost:9093"},
        {"listeners": "CONTROLLER://[fd00::1]:1", "controller.quorum.voters": "7@[fd00::1]:1"},
    ],
)
def test_only_controller_that_is_named_forms_the_cluster(given: dict[str, str]) -> None:
    assert texts_of_kafka(given)["bootstrap.expect"] == "1"


@pytest.mark.parametrize(
    "given",
    [
        {**OWN, "controller.quorum.bootstrap.servers": "kafka:9093"},
        {**OWN, "controller.quorum.bootstrap.servers": "a:9094"},
        {**OWN, "controller.quorum.voters": "2@kafka:9093"},
        {**OWN, "controller.quorum.bootstrap.servers": "a:9093,b:9093"},
        {"controller.quorum.voters": "1@kafka:9093"},
        {
            "node.id": "1",
            "listeners": "CONTROLLER://a:9093",
            "controller.quorum.bootstrap.servers": "localhost:9093",
        },
    ],
)
def test_name_that_may_be_of_several_nodes_needs_their_number(given: dict[str, str]) -> None:
    """A DNS name of three nodes: each of them would form a cluster alone."""
    assert "bootstrap.expect" not in texts_of_kafka(given)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("broker.id=1\nnode.id=2", "node.id is 2"),
        ("controller.quorum.voters=a:9093", "a voter looks like"),
        ("zookeeper.connect=localhost:2181", "there is no ZooKeeper"),
        ("remote.log.storage.system.enable=true", "no tiered storage"),
        ("sasl.kerberos.service.name=kafka", "Kerberos"),
        ("sasl.mechanism.inter.broker.protocol=GSSAPI", "Kerberos"),
        ("listener.name.a.sasl.enabled.mechanisms=PLAIN,GSSAPI", "Kerberos"),
        ("listener.name.a.gssapi.sasl.jaas.config=x", "unknown setting"),
        ("metadata.log.dir=/other", "in the directory that log.dirs names"),
        ("principal.builder.class=com.example.Names", "no Java classes"),
        ("sasl.server.callback.handler.class=com.example.Check", "no Java classes"),
        ("create.topic.policy.class.name=com.example.Policy", "no Java classes"),
        ("config.providers=file", "values are not looked up"),
        ("config.providers.file.class=x", "values are not looked up"),
        ("num.partition=1", "did you mean num.partitions?"),
        ("confluent.license.topic=x", "unknown setting"),
    ],
)
def test_name_that_promises_something_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    assert reason in refused(text, tmp_path)


def test_refused_value_is_not_shown(tmp_path: Path) -> None:
    assert "hunter2" not in refused("sasl.oauthbearer.assertion.file=hunter2", tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "remote.log.storage.system.enable=false",
        "create.topic.policy.class.name=",
        "principal.builder.class="
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        "listener.name.a.oauthbearer.sasl.server.callback.handler.class="
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
        "early.start.listeners=CONTROLLER",
        "queued.max.requests=500",
    ],
)
def test_name_without_a_meaning_is_ignored(text: str, tmp_path: Path) -> None:
    assert read(text, tmp_path).ignored == (text.partition("=")[0],)


def test_renamed_names_are_errors_outside_of_properties_files() -> None:
    for name, ours in RENAMED.items():
        with pytest.raises(SettingError, match=f"here its name is {ours}"):
            NodeSettings.from_texts({name: "x"})


def test_listener_of_controllers_is_renamed() -> None:
    made = texts_of_kafka(
        {
            "controller.listener.names": "QUORUM",
            "listeners": "PLAINTEXT://:9092,quorum://:9093",
            "advertised.listeners": "PLAINTEXT://a:9092,QUORUM://a:9093",
            "listener.security.protocol.map": "QUORUM:SSL,PLAINTEXT:PLAINTEXT",
            "listener.name.quorum.ssl.client.auth": "required",
            "http.listener": "",
        }
    )
    assert made == {
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "advertised.listeners": "PLAINTEXT://a:9092,CONTROLLER://a:9093",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SSL",
        "listener.name.controller.ssl.client.auth": "required",
        "http.listener": "",
    }


def test_listener_of_controllers_that_is_named_by_its_protocol_keeps_it() -> None:
    made = texts_of_kafka(
        {"controller.listener.names": "SSL", "listeners": "PLAINTEXT://:1,SSL://:2"}
    )
    assert made["listener.security.protocol.map"] == "CONTROLLER:SSL"


def test_node_has_one_listener_for_controllers(tmp_path: Path) -> None:
    text = "controller.listener.names=A,B\nlisteners=P://:1,A://:2,B://:3"
    assert "one listener" in refused(text, tmp_path)
    text = "controller.listener.names=A\nlisteners=CONTROLLER://:1,A://:2"
    assert "would be for clients" in refused(text, tmp_path)
    broker = {"controller.listener.names": "A,B", "listeners": "PLAINTEXT://:1"}
    assert texts_of_kafka(broker)["listeners"] == "PLAINTEXT://:1"


def test_no_setting_of_our_own_is_ignored_or_refused() -> None:
    ignored = [name for group in IGNORED for name in group.names]
    refused_names = [name for group in REFUSED for name in group.names]
    for name in (*ignored, *refused_names, *RENAMED):
        assert not is_setting(name), f"{name} is a setting"


def test_every_setting_of_kafka_has_a_meaning_or_a_reason() -> None:
    kafka = need(find_kafka)
    java = need(find_java)
    done = subprocess.run(
        [java, "-cp", f"{kafka}/*", "kafka.server.KafkaConfig"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    names = set(re.findall(r'<a id="brokerconfigs_([^"]+)"', done.stdout))
    assert len(names) > 300
    unknown = []
    for name in sorted(names - set(RENAMED)):
        try:
            if not is_setting(name) and not ignored_names({name: "x"}, ()):
                unknown.append(name)
        except SettingError:
            continue
    assert not unknown
