"""Transactions: the states of an id, fencing, retries, requests of brokers, and invalid requests.

EndTxn has transaction version 1 up to version 4 of the API, and transaction version 2 from version
5 on. Scripts about states use both. Kafka answers CONCURRENT_TRANSACTIONS while the markers of the
last transaction are written, so those requests are repeated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.differential.script import SETTLE_SECONDS_MAX, Script
from tests.processes import until

SOON = (
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "CONCURRENT_TRANSACTIONS",
)
VERSION_1_NEWEST = {"end_txn": 4, "add_partitions_to_txn": 3}
BROKERS_SINCE = 4


def is_settled(response: Any) -> bool:
    return not any(code in str(response) for code in SOON)


@dataclass(slots=True)
class Producer:
    """A transactional id and its current producer."""

    script: Script
    name: str
    producer_id: int = -1
    epoch: int = -1

    @classmethod
    def start(cls, script: Script, name: str) -> "Producer":
        """A producer whose coordinator is ready."""
        producer = cls(script, script.topic(name))
        find = {"key_type": 1, "coordinator_keys": [producer.name]}
        until(
            lambda: is_settled(script.quietly("find_coordinator", find, version=4)),
            seconds=SETTLE_SECONDS_MAX,
            what="transaction coordinator",
        )
        return producer

    def init(self, label: str, *, continues: tuple[int, int] | None = None, **more: Any) -> Any:
        fields = {"transactional_id": self.name, "transaction_timeout": 60000, **more}
        version = None
        if continues is not None:
            fields |= {"producer_id": continues[0], "producer_epoch": continues[1]}
            version = max(self.script.version("init_producer_id"), 3)
        response = self.script.request(
            label, "init_producer_id", fields, version=version, settled=is_settled
        )
        if response["error_code"] == "NONE":
            self.producer_id, self.epoch = response["producer_id"], response["producer_epoch"]
        return response

    def _fields(self, prefix: str = "", **more: Any) -> dict[str, Any]:
        return {
            f"{prefix}transactional_id": self.name,
            f"{prefix}producer_id": self.producer_id,
            f"{prefix}producer_epoch": self.epoch,
            **more,
        }

    def add(self, label: str, *topics: tuple[str, list[int]], **more: Any) -> Any:
        fields = self._fields("v3_and_below_")
        fields["v3_and_below_topics"] = _topics(topics)
        fields |= {f"v3_and_below_{key}": value for key, value in more.items()}
        return self._ask(label, "add_partitions_to_txn", fields)

    def add_offsets(self, label: str, group: str, **more: Any) -> Any:
        return self._ask(label, "add_offsets_to_txn", self._fields(group_id=group, **more))

    def end(self, label: str, *, committed: bool, version: int | None = None, **more: Any) -> Any:
        fields = self._fields(committed=committed, **more)
        response = self._ask(label, "end_txn", fields, version)
        if response["error_code"] == "NONE" and response.get("producer_epoch", -1) >= 0:
            self.producer_id, self.epoch = response["producer_id"], response["producer_epoch"]
        return response

    def _ask(self, label: str, api: str, fields: dict[str, Any], version: int | None = None) -> Any:
        newest = VERSION_1_NEWEST.get(api)
        chosen = self.script.version(api) if version is None else version
        if version is None and newest is not None:
            chosen = min(chosen, newest)
        return self.script.request(label, api, fields, version=chosen, settled=is_settled)

    def describe(self, label: str, state: str) -> None:
        """Describe the transaction once it has reached a state."""
        self.script.request(
            label,
            "describe_transactions",
            {"transactional_ids": [self.name]},
            only=_in_order,
            settled=lambda response: state in str(response),
        )

    def list(self, label: str, state: str) -> None:
        """The same from ListTransactions. kio cannot read the start of an empty transaction."""

        def mine(response: Any) -> Any:
            rows = response["transaction_states"]
            return [row for row in rows if row["transactional_id"] == self.name]

        self.script.request(
            label,
            "list_transactions",
            {"state_filters": [], "producer_id_filters": []},
            version=0,
            only=mine,
            settled=lambda response: state in str(mine(response)),
        )


def _in_order(response: Any) -> Any:
    """Kafka lists partitions in the order of their hashes."""
    for state in response["transaction_states"]:
        for topic in state["topics"]:
            topic["partitions"] = sorted(topic["partitions"])
    return response


def _topics(topics: tuple[tuple[str, list[int]], ...]) -> list[dict[str, Any]]:
    return [{"name": name, "partitions": indexes} for name, indexes in topics]


def begin(script: Script) -> None:
    name = script.topic("id")
    find = {"key": name, "key_type": 1, "coordinator_keys": [name]}
    script.request("of a transaction", "find_coordinator", find, settled=is_settled)
    fields = {"transactional_id": name, "transaction_timeout": 60000}
    script.request("transactional", "init_producer_id", fields, settled=is_settled)


def states_of_version_1(script: Script) -> None:
    topic = script.topic("t")
    script.make_topic(topic, partitions=3)
    producer = Producer.start(script, "app")
    producer.init("a new id")
    producer.list("empty", "Empty")
    producer.end("commit without partitions", committed=True)
    producer.end("abort without partitions", committed=False)
    producer.add("first partitions", (topic, [0, 1]))
    producer.add("the same partition", (topic, [1]))
    producer.add("another one", (topic, [2]))
    producer.add_offsets("offsets", script.topic("group"))
    producer.describe("ongoing", "Ongoing")
    producer.end("commit", committed=True)
    producer.describe("committed", "CompleteCommit")
    producer.end("commit again", committed=True)
    producer.end("abort of what is committed", committed=False)
    producer.add("the next transaction", (topic, [0]))
    producer.end("abort", committed=False)
    producer.describe("aborted", "CompleteAbort")
    producer.end("abort again", committed=False)
    producer.end("commit of what is aborted", committed=True)
    producer.init("the next instance")
    producer.list("empty again", "Empty")


def states_of_version_2(script: Script) -> None:
    topic = script.topic("t")
    script.make_topic(topic, partitions=3)
    producer = Producer.start(script, "app")

    def end(label: str, *, committed: bool, back: int = 0) -> None:
        producer.end(label, committed=committed, version=5, producer_epoch=producer.epoch - back)

    producer.init("a new id")
    end("empty: commit", committed=True)
    end("empty: abort of the last epoch", committed=False, back=1)
    end("empty: abort", committed=False)
    producer.describe("aborted without partitions", "CompleteAbort")
    end("aborted: abort again", committed=False, back=1)
    end("aborted: commit of the last epoch", committed=True, back=1)
    end("aborted: commit", committed=True)
    producer.add("a transaction", (topic, [0, 2]))
    end("ongoing: the last epoch", committed=True, back=1)
    end("ongoing: commit", committed=True)
    producer.describe("committed", "CompleteCommit")
    end("committed: commit again", committed=True, back=1)
    end("committed: abort of the last epoch", committed=False, back=1)
    end("committed: commit", committed=True)
    end("committed: two epochs ago", committed=True, back=2)
    end("committed: the next epoch", committed=True, back=-1)
    end("committed: abort", committed=False)
    producer.describe("aborted", "CompleteAbort")
    producer.add("an older version of EndTxn", (topic, [1]))
    producer.end("commit without a bump", committed=True)
    producer.describe("committed without a bump", "CompleteCommit")


def fencing(script: Script) -> None:
    topic = script.topic("t")
    script.make_topic(topic, partitions=2)
    producer = Producer.start(script, "app")
    producer.init("the first instance")
    producer.add("its transaction", (topic, [0]))
    old = Producer(script, producer.name, producer.producer_id, producer.epoch)
    producer.init("the second instance", transaction_timeout=30000)
    producer.list("the transaction was aborted", "Empty")
    old.add("the first instance adds", (topic, [1]))
    old.add_offsets("the first instance adds offsets", script.topic("group"))
    old.end("the first instance commits", committed=True)
    old.end("the first instance commits in version 2", committed=True, version=5)
    producer.add("another producer id", (topic, [1]), producer_id=producer.producer_id + 7)
    producer.add_offsets("another producer id", "g", producer_id=producer.producer_id + 7)
    producer.end("another producer id", committed=True, producer_id=producer.producer_id + 7)
    producer.add("a later epoch", (topic, [1]), producer_epoch=producer.epoch + 1)
    producer.end("a later epoch", committed=True, producer_epoch=producer.epoch + 1)
    producer.add("the second instance", (topic, [1]))
    producer.end("the second instance", committed=True)


def retries(script: Script) -> None:
    """KIP-360: a producer continues with its id and epoch."""
    producer = Producer.start(script, "app")
    producer.init("a new id")
    first = (producer.producer_id, producer.epoch)
    producer.init("continues", continues=first)
    producer.init("a retry", continues=first)
    second = (producer.producer_id, producer.epoch)
    producer.init("continues again", continues=second)
    producer.init("one that is two epochs behind", continues=first)
    producer.init("another instance")
    producer.init("one that is fenced", continues=second)
    producer.init("another producer id", continues=(first[0] + 100, 0))
    producer.init("an epoch of the future", continues=(first[0], producer.epoch + 5))
    unknown = Producer.start(script, "unknown")
    unknown.init("an unknown id continues", continues=(first[0], 3))


def brokers(script: Script) -> None:
    """Versions of AddPartitionsToTxn for brokers: several transactions, verification."""
    topic = script.topic("t")
    script.make_topic(topic, partitions=3)
    one, two = Producer.start(script, "one"), Producer.start(script, "two")
    one.init("one")
    two.init("two")
    one.add("partition of one", (topic, [0]))

    def row(producer: Producer, *indexes: int, verify: bool, **more: Any) -> dict[str, Any]:
        return {
            "transactional_id": producer.name,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "verify_only": verify,
            "topics": [{"name": more.pop("topic", topic), "partitions": list(indexes)}],
            **more,
        }

    def ask(label: str, *rows: dict[str, Any]) -> None:
        version = max(script.version("add_partitions_to_txn"), BROKERS_SINCE)
        script.request(
            label,
            "add_partitions_to_txn",
            {"transactions": list(rows)},
            version=version,
            settled=is_settled,
        )

    ask("verified and not", row(one, 0, 1, verify=True))
    ask("added for two", row(two, 0, 2, verify=False), row(one, 0, verify=True))
    ask("verified for two", row(two, 2, verify=True))
    ask("fenced", row(one, 0, verify=True, producer_epoch=one.epoch + 1))
    ask("another producer id", row(one, 0, verify=True, producer_id=one.producer_id + 50))
    ask("an unknown id", row(one, 0, verify=True, transactional_id=script.topic("nobody")))
    ask("an empty id", row(one, 0, verify=True, transactional_id=""))
    ask("an unknown partition", row(one, 0, 9, verify=False))
    ask("an unknown topic", row(one, 0, verify=True, topic=script.topic("nothing")))
    ask("no transactions")
    one.end("end of one", committed=True, version=5)
    one.describe("one is complete", "CompleteCommit")
    ask("verified after the end", row(one, 0, verify=True))


def refused(script: Script) -> None:
    topic = script.topic("t")
    script.make_topic(topic, partitions=1)
    producer = Producer.start(script, "app")
    producer.init("timeout of zero", transaction_timeout=0)
    producer.init("negative timeout", transaction_timeout=-5)
    producer.init("timeout too long", transaction_timeout=900001)
    producer.init("longest timeout", transaction_timeout=900000)
    producer.add("unknown partition", (topic, [0, 5, -1]))
    producer.add("unknown topic", (topic, [0]), (script.topic("nothing"), [0]))
    producer.add("no partitions", (topic, []))
    producer.add("no topics")
    producer.list("after them", "transaction_state")
    for label, name in (("an unknown id", script.topic("nobody")), ("an empty id", "")):
        producer.add(label, (topic, [0]), transactional_id=name)
        producer.add_offsets(label, "group", transactional_id=name)
        producer.end(label, committed=True, transactional_id=name)
        producer.end(f"{label}, version 2", committed=True, version=5, transactional_id=name)
    producer.add_offsets("empty group", "")
    script.request(
        "unknown and empty ids",
        "describe_transactions",
        {"transactional_ids": [script.topic("nobody"), ""]},
    )
    script.request("no ids", "describe_transactions", {"transactional_ids": []})


def lists(script: Script) -> None:
    topic = script.topic("t")
    script.make_topic(topic, partitions=1)
    idle, busy = Producer.start(script, "idle"), Producer.start(script, "busy")
    idle.init("idle")
    busy.init("busy")
    busy.add("busy", (topic, [0]))
    names = (idle.name, busy.name)

    def mine(response: Any) -> Any:
        rows = response["transaction_states"]
        return {
            **response,
            "transaction_states": [row for row in rows if row["transactional_id"] in names],
        }

    def ask(label: str, version: int | None = None, **fields: Any) -> None:
        base: dict[str, Any] = {"state_filters": [], "producer_id_filters": []}
        script.request(label, "list_transactions", {**base, **fields}, version=version, only=mine)

    ask("all")
    ask("ongoing", state_filters=["Ongoing"])
    ask("two states", state_filters=["Ongoing", "Empty"])
    ask("unknown states", state_filters=["Strange", "ongoing"])
    ask("an unknown and a known state", state_filters=["Strange", "Empty"])
    ask("never stored states", state_filters=["Dead", "PrepareEpochFence"])
    ask("by producer", producer_id_filters=[busy.producer_id])
    ask("by an unknown producer", producer_id_filters=[987654321])
    ask("by state and producer", state_filters=["Empty"], producer_id_filters=[busy.producer_id])
    for duration in (-1, 0, 600000):
        ask(f"longer than {duration}", 1, duration_filter=duration)
    for pattern in (".*busy", "nothing.*", "", "lists", "(", "[a", None):
        ask(f"pattern {pattern}", 2, duration_filter=-1, transactional_id_pattern=pattern)


SCRIPTS: dict[str, Callable[[Script], None]] = {
    "transactions": begin,
    "transactions-version-1": states_of_version_1,
    "transactions-version-2": states_of_version_2,
    "transactions-fencing": fencing,
    "transactions-retries": retries,
    "transactions-brokers": brokers,
    "transactions-refused": refused,
    "transactions-lists": lists,
}
