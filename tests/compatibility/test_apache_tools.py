"""Apache Kafka's tools, and with them its Java client, on the server and on its files."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compatibility.apache import ApacheTools
from tests.compatibility.confluent import consumer, producer, read, send
from tests.compatibility.conftest import MakeTopic
from tests.processes import Server, until

pytestmark = pytest.mark.peer


def test_kafka_topics(tools: ApacheTools, server: Server, make_name: Callable[[], str]) -> None:
    name = make_name()
    at = ("TopicCommand", "--bootstrap-server", server.bootstrap)
    create = ("--create", "--topic", name, "--partitions", 3, "--replication-factor", 1)
    made = tools.run(*at, *create, "--config", "segment.bytes=1048576").check()
    assert f"Created topic {name}" in made.text
    assert tools.run(*at, *create).code == 1
    tools.run(*at, *create, "--if-not-exists").check()
    described = tools.run(*at, "--describe", "--topic", name).check().text
    assert "PartitionCount: 3" in described
    assert "ReplicationFactor: 1" in described
    assert "segment.bytes=1048576" in described
    assert described.count("Isr: 1") == 3
    tools.run(*at, "--alter", "--topic", name, "--partitions", 5).check()
    until(
        lambda: "PartitionCount: 5" in tools.run(*at, "--describe", "--topic", name).text,
        seconds=20,
        what="five partitions",
    )
    assert name in tools.run(*at, "--list").check().text.split()
    for kind in ("--under-replicated-partitions", "--unavailable-partitions"):
        assert name not in tools.run(*at, "--describe", kind).check().text
    tools.run(*at, "--delete", "--topic", name).check()
    until(lambda: name not in tools.run(*at, "--list").text.split(), seconds=20, what="it is gone")


def test_kafka_configs(tools: ApacheTools, server: Server, make_topic: MakeTopic) -> None:
    name = make_topic()
    at = ("kafka.admin.ConfigCommand", "--bootstrap-server", server.bootstrap)
    topic = ("--entity-type", "topics", "--entity-name", name)
    add = "retention.ms=3600000,cleanup.policy=[compact,delete]"
    changed = tools.run(*at, "--alter", *topic, "--add-config", add).check()
    assert "Completed updating config" in changed.text
    until(
        lambda: "retention.ms=3600000" in tools.run(*at, "--describe", *topic).text,
        seconds=20,
        what="the setting",
    )
    everything = tools.run(*at, "--describe", *topic, "--all").check().text
    assert "cleanup.policy=compact,delete" in everything
    assert "max.message.bytes=1048588" in everything
    tools.run(*at, "--alter", *topic, "--delete-config", "retention.ms").check()
    assert tools.run(*at, "--alter", *topic, "--add-config", "retention.ms=x").code != 0
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    assert "log.retention.hours=168" in tools.run(*at, "--describe", *broker, "--all").check().text
    tools.run(*at, "--alter", *broker, "--add-config", "log.cleaner.backoff.ms=250").check()
    until(
        lambda: "log.cleaner.backoff.ms=250" in tools.run(*at, "--describe", *broker).text,
        seconds=20,
        what="the broker's setting",
    )
    tools.run(*at, "--alter", *broker, "--delete-config", "log.cleaner.backoff.ms").check()


def test_java_producer_and_consumer(
    tools: ApacheTools, server: Server, make_topic: MakeTopic
) -> None:
    name = make_topic(partitions=3, configs={"segment.bytes": "1048576"})
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        props = (f"bootstrap.servers={server.bootstrap}", "acks=all", f"compression.type={codec}")
        size = ("--num-records", 4000, "--record-size", 500, "--throughput", -1)
        ran = tools.run("ProducerPerformance", "--topic", name, *size, "--producer-props", *props)
        assert "4000 records sent" in ran.check().text
    offsets = tools.run("GetOffsetShell", "--bootstrap-server", server.bootstrap, "--topic", name)
    ends = [int(line.rsplit(":", 1)[1]) for line in offsets.check().text.splitlines()]
    assert sum(ends) == 20000
    measured = tools.run(
        *("ConsumerPerformance", "--bootstrap-server", server.bootstrap, "--topic", name),
        *("--messages", 20000, "--group", f"{name}-group"),
    )
    assert "MB.sec" in measured.check().text
    _check_files(tools, server, name)


def test_kafka_get_offsets(tools: ApacheTools, server: Server, make_topic: MakeTopic) -> None:
    name = make_topic()
    send(server.bootstrap, name, [b"a", b"b", b"c"])
    at = ("GetOffsetShell", "--bootstrap-server", server.bootstrap, "--topic", name, "--time")
    assert tools.run(*at, -1).check().text == f"{name}:0:3"
    assert tools.run(*at, "earliest").check().text == f"{name}:0:0"
    assert tools.run(*at, "earliest-local").check().text == f"{name}:0:0"
    newest = tools.run(*at, "max-timestamp").check().text
    assert newest.startswith(f"{name}:0:")
    assert tools.run(*at, 1).check().text == f"{name}:0:0"


def test_kafka_consumer_groups(tools: ApacheTools, server: Server, make_topic: MakeTopic) -> None:
    name = make_topic()
    send(server.bootstrap, name, [b"%d" % number for number in range(10)])
    group = f"{name}-group"
    at = ("consumer.group.ConsumerGroupCommand", "--bootstrap-server", server.bootstrap)
    with consumer(server.bootstrap, group, client_id="seen") as reader:
        reader.subscribe([name])
        last = read(reader, 4)[-1]
        reader.commit(message=last, asynchronous=False)
        described = tools.run(*at, "--describe", "--group", group).check().text
        row = next(line.split() for line in described.splitlines() if line.startswith(group))
        assert row[:6] == [group, name, "0", "4", "10", "6"]
        assert row[-1] == "seen"
        assert "seen" in tools.run(*at, "--describe", "--group", group, "--members").check().text
        state = tools.run(*at, "--describe", "--group", group, "--state").check().text
        assert "Stable" in state
    assert group in tools.run(*at, "--list").check().text.split()
    reset = ("--reset-offsets", "--group", group, "--topic", name)
    assert " 0" in tools.run(*at, *reset, "--to-earliest", "--execute").check().text
    dry = tools.run(*at, *reset, "--shift-by", 3, "--dry-run").check().text
    assert dry.split()[-1] == "3"
    exported = tools.run(*at, *reset, "--to-latest", "--execute").check().text
    assert exported.split()[-1] == "10"
    forgot = tools.run(*at, "--delete-offsets", "--group", group, "--topic", name).check()
    assert "Successful" in forgot.text
    assert "success" in tools.run(*at, "--delete", "--group", group).check().text
    assert group not in tools.run(*at, "--list").check().text.split()


def test_kafka_delete_records(
    tools: ApacheTools, server: Server, make_topic: MakeTopic, tmp_path: Path
) -> None:
    name = make_topic()
    send(server.bootstrap, name, [b"%d" % number for number in range(10)])
    wanted = {"partitions": [{"topic": name, "partition": 0, "offset": 6}], "version": 1}
    (tmp_path / "offsets.json").write_text(json.dumps(wanted))
    at = ("DeleteRecordsCommand", "--bootstrap-server", server.bootstrap)
    ran = tools.run(*at, "--offset-json-file", tmp_path / "offsets.json").check()
    assert f"partition: {name}-0\tlow_watermark: 6" in ran.text


def test_kafka_log_dirs(tools: ApacheTools, server: Server, make_topic: MakeTopic) -> None:
    name = make_topic()
    send(server.bootstrap, name, [b"x" * 1000])
    ran = tools.run("LogDirsCommand", "--bootstrap-server", server.bootstrap, "--describe").check()
    (broker,) = json.loads(ran.text.splitlines()[-1])["brokers"]
    (folder,) = broker["logDirs"]
    assert folder["error"] is None
    sizes = {row["partition"]: row["size"] for row in folder["partitions"]}
    assert sizes[f"{name}-0"] > 1000


def test_cluster_tools(tools: ApacheTools, server: Server) -> None:
    at = ("--bootstrap-server", server.bootstrap)
    versions = tools.run("BrokerApiVersionsCommand", *at).check().text
    assert "Produce(0): 0 to 13 [usable: 13]" in versions
    assert "Fetch(1): 4 to 18 [usable: 18]" in versions
    assert "Cluster ID: " in tools.run("ClusterTool", "cluster-id", *at).check().text
    status = tools.run("MetadataQuorumCommand", *at, "describe", "--status").check().text
    assert "LeaderId:" in status
    assert "metadata.version" in tools.run("FeatureCommand", *at, "describe").check().text


def test_console_tools(tools: ApacheTools, server: Server, make_topic: MakeTopic) -> None:
    name = make_topic()
    at = ("--bootstrap-server", server.bootstrap, "--topic", name)
    keys = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    tools.run("ConsoleProducer", *at, *keys, given="a:1\nb:2\nc:3\n").check()
    form = ("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true")
    ran = tools.run(
        *("consumer.ConsoleConsumer", *at, "--from-beginning", "--max-messages", 3, *form)
    )
    assert ran.check().text.splitlines()[:3] == [
        "Offset:0\ta\t1",
        "Offset:1\tb\t2",
        "Offset:2\tc\t3",
    ]


def test_verifiable_clients(tools: ApacheTools, server: Server, make_topic: MakeTopic) -> None:
    name = make_topic()
    at = ("--bootstrap-server", server.bootstrap, "--topic", name)
    sent = tools.run_alone("VerifiableProducer", *at, "--max-messages", 300).check()
    rows = [json.loads(line) for line in sent.text.splitlines() if line.startswith("{")]
    assert [row["offset"] for row in rows if row["name"] == "producer_send_success"] == [
        *range(300)
    ]
    got = tools.run_alone(
        *("VerifiableConsumer", *at, "--group-id", f"{name}-group", "--max-messages", 300),
        *("--reset-policy", "earliest", "--group-instance-id", "one"),
    ).check()
    rows = [json.loads(line) for line in got.text.splitlines() if line.startswith("{")]
    assert sum(row["count"] for row in rows if row["name"] == "records_consumed") == 300
    committed = [row for row in rows if row["name"] == "offsets_committed"]
    assert committed[-1]["offsets"][0]["offset"] == 300


def test_kafka_dump_log_reads_all_files(
    tools: ApacheTools, server: Server, make_topic: MakeTopic
) -> None:
    """Segments of several codecs and producers, indexes, snapshots, offsets and metadata."""
    name = make_topic(configs={"segment.bytes": "1048576", "index.interval.bytes": "500"})
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        sender = producer(server.bootstrap, compression_type=codec, enable_idempotence=True)
        for number in range(800):
            headers: list[tuple[str, str | bytes | None]] = [("number", b"%d" % number)]
            value = random.Random(number).randbytes(900)
            sender.produce(name, value, b"key", partition=0, headers=headers)
        assert sender.flush(30) == 0
    with consumer(server.bootstrap, f"{name}-group") as reader:
        reader.subscribe([name])
        reader.commit(message=read(reader, 100)[-1], asynchronous=False)
    _check_files(tools, server, name)
    dump = ("DumpLogSegments", "--files")
    offsets = _files(server, "__consumer_offsets-*", "*.log")
    for path in offsets:
        text = tools.run(*dump, path, "--offsets-decoder").check().text
        if f'"group":"{name}-group"' in text:
            break
    else:
        raise AssertionError(f"no commit of the group in {len(offsets)} files")
    metadata = [
        tools.run(*dump, path, "--cluster-metadata-decoder").check().text
        for path in _files(server, "__cluster_metadata-0", "*.log")
    ]
    assert any(f'"name":"{name}"' in text for text in metadata)
    for path in _files(server, "__cluster_metadata-0", "*.checkpoint"):
        tools.run(*dump, path, "--cluster-metadata-decoder").check()


def _check_files(tools: ApacheTools, server: Server, topic: str) -> None:
    """Run kafka-dump-log on all files of a topic, including records and CRCs."""
    paths = [
        path
        for kind in ("*.log", "*.index", "*.timeindex", "*.snapshot", "*.txnindex")
        for path in _files(server, f"{topic}-*", kind)
    ]
    logs = [path for path in paths if path.suffix == ".log"]
    assert len(logs) > 2, f"no rolled segments in {paths}"
    for path in paths:
        if path.stat().st_size:
            tools.run("DumpLogSegments", "--deep-iteration", "--files", path).check()


def _files(server: Server, folder: str, kind: str) -> list[Path]:
    found = sorted(server.data.glob(f"**/{folder}/{kind}"))
    return [path for path in found if path.stat().st_size or kind == "*.log"]
