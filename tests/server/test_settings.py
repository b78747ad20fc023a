"""Settings from files, the environment and flags."""

import os
from pathlib import Path

import pytest

from riverrun.cluster.configs.node_configs import Configs
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.model.settings import SettingError
from riverrun.server.settings import (
    NodeSettings,
    declared_settings,
    from_environment,
    read_file,
    settings_texts,
    unknown_variables,
)
from riverrun.storage.settings import LogSettings


def refused(**texts: str) -> str:
    with pytest.raises(SettingError) as caught:
        NodeSettings.from_texts({name.replace("_", "."): text for name, text in texts.items()})
    return str(caught.value)


def test_defaults_are_valid() -> None:
    settings = NodeSettings.from_texts({})
    assert [a.port for a in settings.client_addresses()] == [9092]
    controller = settings.controller_address()
    assert controller is not None
    assert controller.port == 9093


def test_unknown_setting_is_rejected_with_the_nearest_name() -> None:
    assert "did you mean num.partitions?" in refused(num_partition="3")


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        ({"num_partitions": "0"}, "at least 1"),
        ({"num_partitions": "many"}, "Not a number"),
        ({"auto_create_topics_enable": "perhaps"}, "true or false"),
        ({"listeners": "127.0.0.1:9092"}, "PLAINTEXT://127.0.0.1:9092"),
        ({"listeners": "CONTROLLER://127.0.0.1:9093"}, "no listener for clients"),
        ({"listeners": "PLAINTEXT://:9092"}, "advertised.listeners"),
        ({"log_dirs": "/a,/b"}, "one data directory"),
        ({"process_roles": ""}, "broker, controller, or both"),
        ({"process_roles": "king"}, "one of: broker, controller"),
        ({"seed_nodes": "node1"}, "a seed looks like node1:9092"),
        ({"seed_nodes": "a:1", "listeners": "PLAINTEXT://a:1"}, "needs a listener CONTROLLER"),
        (
            {"seed_nodes": "a:1", "listeners": "PLAINTEXT://a:1,CONTROLLER://:2"},
            "other nodes cannot connect to a wildcard",
        ),
        ({"log_cleanup_policy": "shred"}, "one of"),
        ({"transaction_two_phase_commit_enable": "true"}, "is not implemented; only false"),
    ],
)
def test_invalid_value_is_rejected_with_the_reason(texts: dict[str, str], error: str) -> None:
    assert error in refused(**texts)


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ({"listeners": "EXTERNAL://127.0.0.1:9092"}, "has no protocol for it"),
        ({"listener.security.protocol.map": "EXTERNAL:TLS"}, "LISTENER:PROTOCOL"),
        ({"inter.broker.listener.name": "SASL_SSL"}, "no such listener"),
        ({"security.inter.broker.protocol": "SSL"}, "no listener has this protocol"),
        ({"ssl.keystore.type": "JKS"}, "PEM"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "Kerberos .* is not supported"),
        ({"authorizer.class.name": "com.example.Authorizer"}, "one of"),
        ({"listener.name.external.principal.builder.class": "x"}, "no Java classes"),
        ({"password.encoder.secret": "x"}, "unknown setting"),
        (
            {"inter.broker.listener.name": "A", "security.inter.broker.protocol": "SSL"},
            "only one of",
        ),
    ],
)
def test_security_settings_that_cannot_hold_are_refused(texts: dict[str, str], reason: str) -> None:
    with pytest.raises(SettingError, match=reason):
        NodeSettings.from_texts(texts)


def test_settings_of_one_listener_are_accepted() -> None:
    made = NodeSettings.from_texts(
        {
            "listeners": "EXTERNAL://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
            "listener.security.protocol.map": "EXTERNAL:SASL_SSL",
            "listener.name.external.ssl.client.auth": "required",
            "listener.name.external.scram-sha-256.sasl.jaas.config": "x",
        }
    )
    assert made.given["listener.name.external.ssl.client.auth"] == "required"


@pytest.mark.parametrize("name", ["ssl.key.passwort", "my.secret", "sasl.jaas.confg"])
def test_error_about_an_unknown_setting_hides_secrets(name: str) -> None:
    with pytest.raises(SettingError) as caught:
        NodeSettings.from_texts({name: "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_security_settings_may_come_from_the_environment() -> None:
    texts = from_environment({"RIVERRUN_SSL_KEYSTORE_LOCATION": "/key", "SSL_CERT_FILE": "/etc"})
    assert texts == {"ssl.keystore.location": "/key"}


def test_names_in_a_file_may_be_quoted(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text('node.id = 7\n"log.retention.ms" = 5\nlog.flush.before.ack = true\n')
    texts = read_file(path)
    assert texts == {"node.id": "7", "log.retention.ms": "5", "log.flush.before.ack": "true"}
    settings = NodeSettings.from_texts(texts)
    assert (settings.node_id, settings.log.flush_before_ack) == (7, True)


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"^cannot read .*missing.toml: no such file$"):
        read_file(tmp_path / "missing.toml")
    with pytest.raises(SettingError, match="is a directory"):
        read_file(tmp_path)
    (tmp_path / "broken.toml").write_text("listeners = 1\nlisteners.more = 2")
    with pytest.raises(SettingError, match=r"not TOML: .*; quote names that extend another name"):
        read_file(tmp_path / "broken.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(SettingError, match="not UTF-8 text"):
        read_file(tmp_path / "bytes.toml")


def test_environment_variable_sets_a_setting() -> None:
    given = from_environment({"RIVERRUN_MIN_INSYNC_REPLICAS": "2", "HOME": "/", "RIVERRUN_X": "1"})
    assert given == {"min.insync.replicas": "2"}


def test_environment_variable_may_use_a_synonym() -> None:
    texts = from_environment({"RIVERRUN_LOG_RETENTION_HOURS": "2"})
    assert texts == {"log.retention.hours": "2"}
    assert NodeSettings.from_texts(texts).log.retention_ms == 2 * 3600 * 1000


def test_unknown_variables_are_listed_with_the_nearest_name() -> None:
    environment = {
        "RIVERRUN_LOG_DIR": "x",
        "RIVERRUN_BOOTSTRAP": "x",
        "RIVERRUN_REGISTRY": "x",
        "RIVERRUN_REGISTRY_USER_INFO": "x",
        "RIVERRUN_XYZZY": "x",
        "X": "",
    }
    assert unknown_variables(environment | {"RIVERRUN_LOG_DIRS": "x"}) == [
        "RIVERRUN_LOG_DIR (did you mean RIVERRUN_LOG_DIRS?)",
        "RIVERRUN_XYZZY",
    ]


HOUR_MS = 3600 * 1000


@pytest.mark.parametrize(
    ("file", "environment", "flags", "milliseconds"),
    [
        ("ms = 5", "", {}, 5),
        ("ms = 5\nlog.retention.hours = 1", "", {}, 5),
        ("ms = 5", "1", {}, HOUR_MS),
        ("ms = 5", "1", {"log.retention.minutes": "1"}, 60_000),
        ("hours = 7", "1", {"log.retention.ms": "9"}, 9),
        ("ms = 5", "", {"log.retention.hours": "2"}, 2 * HOUR_MS),
    ],
)
def test_synonym_from_a_source_of_higher_precedence_wins(
    file: str,
    environment: str,
    flags: dict[str, str],
    milliseconds: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "node.toml"
    path.write_text(f"log.retention.{file}\n")
    if environment:
        monkeypatch.setenv("RIVERRUN_LOG_RETENTION_HOURS", environment)
    settings = NodeSettings.from_texts(settings_texts(path, flags, os.environ))
    assert settings.log.retention_ms == milliseconds


@pytest.mark.parametrize("text", ["soon", "-5", "99999999999999999999"])
def test_error_names_the_synonym_that_was_used(text: str) -> None:
    assert f"Invalid value {text} for configuration log.retention.hours" in refused(
        log_retention_hours=text
    )


def test_synonyms_of_kafka_are_accepted() -> None:
    settings = NodeSettings.from_texts({"log.retention.hours": "2"})
    assert settings.log.retention_ms == 2 * 3600 * 1000


def test_transaction_settings_of_a_kafka_file_are_accepted() -> None:
    settings = NodeSettings.from_texts(
        {
            "transaction.partition.verification.enable": "false",
            "transaction.two.phase.commit.enable": "false",
            "transaction.state.log.load.buffer.size": "4096",
            "add.partitions.to.txn.retry.backoff.ms": "5",
            "add.partitions.to.txn.retry.backoff.max.ms": "50",
        }
    )
    assert not settings.verification.is_enabled
    assert (settings.verification.retry_ms, settings.verification.retry_max_ms) == (5, 50)
    assert settings.transaction.load_buffer_bytes == 4096


def test_every_setting_has_a_unique_name_a_description_and_a_valid_default() -> None:
    names = [declared.name for declared in declared_settings()]
    assert len(names) == len(set(names))
    assert all(declared.doc for declared in declared_settings())
    for declared in declared_settings():
        assert declared.parse(declared.render(declared.default)) == declared.default


def test_mode_of_a_broker_is_refused_in_a_nodes_own_settings() -> None:
    with pytest.raises(SettingError, match=r"broker.mode: .*riverrun cluster maintenance"):
        NodeSettings.from_texts({"broker.mode": "maintenance"})


def test_cordoned_directory_is_the_data_directory_or_all() -> None:
    """A relative path means the same directory as an absolute one (compare KAFKA-20901)."""
    for text in ("*", "data/n", os.path.abspath("data/n")):
        settings = NodeSettings.from_texts({"log.dirs": "data/n", "cordoned.log.dirs": text})
        assert settings.directory.is_cordoned(settings.data_directory)
    assert not NodeSettings.from_texts({}).directory.is_cordoned("/data")
    message = refused(log_dirs="/d1", cordoned_log_dirs="/d2")
    assert "/d2 is not the data directory /d1, nor *" in message


def test_limits_of_addresses_that_cannot_be_read_cannot_be_set() -> None:
    name = "max.connections.per.ip.overrides"
    assert "an override looks like" in refused(**{name: "10.0.0.1:many"})
    configs = Configs(declared_settings(), given={}, node_id=NodeId(1), log=LogSettings())
    with pytest.raises(KafkaError) as error:
        configs.check_broker({name: "10.0.0.1:many"})
    assert error.value.code is ErrorCode.INVALID_REQUEST
    assert error.value.message == (
        f"Invalid value 10.0.0.1:many for configuration {name}: an override looks like 10.0.0.1:100"
    )
    configs.check_broker({name: "10.0.0.1:5,[::1]:7"})
