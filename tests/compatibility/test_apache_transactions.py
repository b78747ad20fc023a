"""kafka-transactions on open and hanging transactions, and kafka-dump-log on their files."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from riverrun.records.record import NewRecord, build_batch
from tests.compatibility.apache import ApacheTools
from tests.compatibility.confluent import consumer, producer, read, value_of
from tests.compatibility.conftest import MakeTopic
from tests.processes import Server, serve, until

pytestmark = pytest.mark.peer
SECONDS_MAX = 30
BIG = 300_000
STATES = {
    "Empty": 0,
    "Ongoing": 1,
    "PrepareCommit": 2,
    "PrepareAbort": 3,
    "CompleteCommit": 4,
    "CompleteAbort": 5,
}


class Tool:
    """kafka-transactions. Rows are split at spaces and begin with the headings."""

    def __init__(self, tools: ApacheTools, server: Server) -> None:
        self._tools = tools
        self._at = ("TransactionsCommand", "--bootstrap-server", server.bootstrap)

    def rows(self, *words: object) -> list[dict[str, str]]:
        text = self._tools.run(*self._at, *words).check().text
        # Cells are separated by tabs and padded.
        lines = [[cell.strip() for cell in line.split("\t")] for line in text.splitlines()]
        headings, *rows = [line for line in lines if any(line)]
        return [dict(zip(headings, row, strict=False)) for row in rows]

    def run(self, *words: object) -> None:
        self._tools.run(*self._at, *words).check()

    def fails(self, *words: object) -> None:
        ran = self._tools.run(*self._at, *words)
        assert ran.code != 0, ran.text

    def producers(self, topic: str) -> list[dict[str, str]]:
        return self.rows("describe-producers", "--topic", topic, "--partition", 0)


@contextmanager
def _open_transaction(server: Server, topic: str) -> Iterator[Producer]:
    """Commit one record, and leave a transaction with another one open."""
    writer = producer(server.bootstrap, transactional_id=f"{topic}-writer")
    writer.init_transactions(SECONDS_MAX)
    for value in (b"committed", b"open"):
        writer.begin_transaction()
        writer.produce(topic, value, partition=0)
        assert writer.flush(SECONDS_MAX) == 0
        if value == b"committed":
            writer.commit_transaction(SECONDS_MAX)
    yield writer


def _committed(server: Server, topic: str, count: int) -> list[bytes]:
    with consumer(server.bootstrap, f"{topic}-reader", isolation_level="read_committed") as reader:
        reader.subscribe([topic])
        return [value_of(message) for message in read(reader, count)]


def test_kafka_transactions_shows_and_aborts_an_open_transaction(
    tools: ApacheTools, server: Server, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    name = f"{topic}-writer"
    tool = Tool(tools, server)
    with _open_transaction(server, topic) as writer:
        (listed,) = [row for row in tool.rows("list") if row["TransactionalId"] == name]
        assert listed["TransactionState"] == "Ongoing"
        assert tool.rows("list", "--transactional-id-pattern", f"{topic}.*") == [listed]
        assert tool.rows("list", "--duration-filter", 3_600_000) == []
        (described,) = tool.rows("describe", "--transactional-id", name)
        assert described["ProducerId"] == listed["ProducerId"]
        assert described["TransactionState"] == "Ongoing"
        assert described["TransactionTimeoutMs"] == "60000"
        assert described["TopicPartitions"] == f"{topic}-0"
        (active,) = tool.producers(topic)
        assert active["ProducerId"] == listed["ProducerId"]
        assert active["CurrentTransactionStartOffset"] == "2"
        hanging = ("find-hanging", "--topic", topic, "--max-transaction-timeout", 0)
        assert tool.rows(*hanging) == [], "its coordinator knows it"
        tool.run("abort", "--topic", topic, "--partition", 0, "--start-offset", 2)
        (active,) = tool.producers(topic)
        assert active["CurrentTransactionStartOffset"] == "None"
        writer.abort_transaction(SECONDS_MAX)
    tool.fails("describe", "--transactional-id", f"{name}-unknown")


def test_kafka_transactions_terminates_a_transaction(
    tools: ApacheTools, server: Server, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    tool = Tool(tools, server)
    with _open_transaction(server, topic) as writer:
        tool.run("forceTerminateTransaction", "--transactionalId", f"{topic}-writer")
        (listed,) = tool.rows("list", "--transactional-id-pattern", f"{topic}.*")
        assert listed["TransactionState"] != "Ongoing"
        with pytest.raises(KafkaException):
            writer.commit_transaction(SECONDS_MAX)
        assert _committed(server, topic, 1) == [b"committed"]


def test_kafka_transactions_finds_and_aborts_a_hanging_transaction(
    tools: ApacheTools, tmp_path: Path
) -> None:
    """A late write that verification would refuse, as brokers without it have in their logs."""
    topic = "hanging"
    with serve(tmp_path / "node", peer="riverrun") as server:
        with server.client() as client:
            row = {"name": topic, "num_partitions": 1, "replication_factor": 1}
            client.request("create_topics", 7, {"topics": [row], "timeout": 10000})
        writer = producer(server.bootstrap)
        writer.produce(topic, b"plain", partition=0)
        assert writer.flush(SECONDS_MAX) == 0
        server.kill()
        late = build_batch(
            [NewRecord(b"late", timestamp=int(time.time() * 1000))],
            base_offset=1,
            leader_epoch=0,
            producer_id=77,
            producer_epoch=3,
            base_sequence=0,
            transactional=True,
        )
        with open(server.data / f"{topic}-0" / f"{0:020d}.log", "ab") as log:
            log.write(late)
        server.restart()
        tool = Tool(tools, server)
        for place in (("--topic", topic), ("--broker-id", 1)):
            (found,) = tool.rows("find-hanging", *place, "--max-transaction-timeout", 0)
            assert (found["Topic"], found["Partition"]) == (topic, "0")
            assert (found["ProducerId"], found["ProducerEpoch"]) == ("77", "3")
            assert found["StartOffset"] == "1"
        tool.run("abort", "--topic", topic, "--partition", 0, "--start-offset", 1)
        again = ("find-hanging", "--topic", topic, "--max-transaction-timeout", 0)
        assert tool.rows(*again) == []
        writer = producer(server.bootstrap)
        writer.produce(topic, b"after", partition=0)
        assert writer.flush(SECONDS_MAX) == 0
        assert _committed(server, topic, 2) == [b"plain", b"after"]


def test_kafka_dump_log_reads_transactions(
    tools: ApacheTools, server: Server, make_topic: MakeTopic
) -> None:
    """Markers, aborted transactions, producer snapshots, and the log of the coordinator."""
    topic = make_topic(configs={"segment.bytes": "1048576"})
    writer = producer(server.bootstrap, transactional_id=f"{topic}-writer")
    writer.init_transactions(SECONDS_MAX)
    for number in range(12):
        writer.begin_transaction()
        writer.produce(topic, bytes(BIG), partition=0)
        assert writer.flush(SECONDS_MAX) == 0
        if number % 2:
            writer.abort_transaction(SECONDS_MAX)
        else:
            writer.commit_transaction(SECONDS_MAX)
    folder = server.data / f"{topic}-0"

    def snapshots() -> list[Path]:
        return [path for path in folder.glob("*.snapshot") if path.stat().st_size]

    def dump(path: Path, *words: str) -> str:
        return tools.run("DumpLogSegments", *words, "--files", path).check().text

    until(snapshots, seconds=SECONDS_MAX, what="a snapshot of the producers")
    logs = "".join(dump(path, "--deep-iteration") for path in sorted(folder.glob("*.log")))
    assert logs.count("endTxnMarker: COMMIT") == logs.count("endTxnMarker: ABORT") == 6
    aborted = [path for path in folder.glob("*.txnindex") if path.stat().st_size]
    assert sum(dump(path).count("producerId: ") for path in aborted) == 6
    for path in snapshots():
        assert "producerId: " in dump(path)
    coordinated = [
        dump(path, "--transaction-log-decoder")
        for path in server.data.glob("__transaction_state-*/*.log")
        if path.stat().st_size
    ]
    (mine,) = [text for text in coordinated if f'"transactionalId":"{topic}-writer"' in text]
    for name, number in STATES.items():
        assert f'"transactionStatus":{number},' in mine, f"{name} is missing in {mine}"
