"""Finds broken promises of transactions in a history, by the names that Jepsen and Adya use.

The final state decides which transactions took effect. A transaction without a confirmed end may
have taken effect or not, but as a whole. Every earlier read and every group's offset is compared
with this state.

Two anomalies of databases are legal in Kafka and not reported: two open transactions may write to
two partitions in opposite orders, and a reader may see a transaction in one partition before it
sees it in another. So a dirty write (G0) is reported only for transactions that did not overlap,
and circular information flow (G1c) only along reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from riverrun.testing.transaction_history import (
    CommittedRead,
    FetchedOffset,
    FinalState,
    GroupKey,
    InputRecord,
    ObservedTransaction,
    Outcome,
    PartitionKey,
    Row,
    TransactionHistory,
    TransactionWrite,
)

FOREVER = float("inf")


class TransactionAnomaly(Enum):
    """The value names the anomaly for people."""

    TORN = "torn transaction: some of its records are visible and others are not"
    LOST = "lost write: a transaction with a confirmed commit is not visible"
    ABORTED_READ = "aborted read (G1a): a record of an aborted transaction is visible"
    DIRTY_READ = "dirty read: a record was visible before its commit was requested"
    INTERMEDIATE_READ = "intermediate read (G1b): a reader skipped records of a transaction"
    DIRTY_WRITE = "dirty write (G0): a later transaction wrote below an earlier one"
    CIRCULAR = "circular information flow (G1c): transactions read each other's writes"
    DOUBLED = "doubled record: a record is visible twice, or an input was processed twice"
    INVENTED = "invented record: a visible record was never written there"
    OFFSET_AHEAD = "offset ahead of its output: an input was skipped"
    OFFSET_BEHIND = "offset behind its output: an input would be processed again"
    DIRTY_OFFSET = "dirty offset: an uncommitted offset of a group was visible"
    STALE_OFFSET = "stale offset: a group's committed offset went back"


@dataclass(frozen=True, slots=True)
class Violation:
    anomaly: TransactionAnomaly
    text: str

    def __str__(self) -> str:
        return f"{self.anomaly.value}: {self.text}"


def check_transactions(history: TransactionHistory, final: FinalState) -> list[Violation]:
    """All violations, the most telling kinds first."""
    known = _Known(history, final)
    found = [
        *_check_records(known),
        *_check_whole(known),
        *_check_inputs(known),
        *_check_reads(known),
        *_check_flow(known),
        *_check_order(known),
        *_check_offsets(known),
    ]
    order = list(TransactionAnomaly)
    return sorted(found, key=lambda each: order.index(each.anomaly))


class _Known:
    """The history and the final state, indexed by value."""

    def __init__(self, history: TransactionHistory, final: FinalState) -> None:
        self.history, self.final = history, final
        self.writers: dict[str, tuple[ObservedTransaction, TransactionWrite]] = {}
        for transaction in history.transactions:
            for write in transaction.writes:
                assert write.value not in self.writers, f"{write.value} was written twice"
                self.writers[write.value] = (transaction, write)
        self.visible: dict[str, tuple[PartitionKey, int]] = {}
        for partition, rows in final.logs.items():
            for offset, value in rows:
                self.visible.setdefault(value, (partition, offset))

    def must_not_show(self, transaction: ObservedTransaction) -> bool:
        """Whether the transaction cannot have been committed."""
        return transaction.commit_requested is None or transaction.outcome is Outcome.ABORTED


# The final log


def _check_records(known: _Known) -> Iterator[Violation]:
    seen: dict[str, str] = {}
    for partition, rows in known.final.logs.items():
        for offset, value in rows:
            place = f"{_name(partition)}@{offset}"
            if value in seen:
                text = f"{value} is at {seen[value]} and at {place}"
                yield Violation(TransactionAnomaly.DOUBLED, text)
            seen.setdefault(value, place)
            if value not in known.writers:
                yield Violation(TransactionAnomaly.INVENTED, f"{value} at {place}")
                continue
            transaction, write = known.writers[value]
            if write.partition != partition:
                text = f"{value} at {place}, written to {_name(write.partition)}"
                yield Violation(TransactionAnomaly.INVENTED, text)
            elif known.must_not_show(transaction):
                text = f"{value} of {transaction.name} at {place} ({transaction.outcome.value})"
                yield Violation(TransactionAnomaly.ABORTED_READ, text)


def _check_whole(known: _Known) -> Iterator[Violation]:
    for transaction in known.history.transactions:
        if known.must_not_show(transaction):
            continue
        missing = [w.value for w in transaction.writes if w.value not in known.visible]
        if not missing:
            continue
        count = len(transaction.writes)
        text = f"{transaction.name} ({transaction.outcome.value})"
        if len(missing) < count:
            text = f"{text}: {len(missing)} of {count} records are missing, such as {missing[0]}"
            yield Violation(TransactionAnomaly.TORN, text)
        elif transaction.outcome is Outcome.COMMITTED:
            yield Violation(TransactionAnomaly.LOST, f"{text}, such as {missing[0]}")


def _check_inputs(known: _Known) -> Iterator[Violation]:
    """Each input below a group's offset has one visible output, each input above it has none."""
    outputs: dict[InputRecord, list[str]] = {}
    for value in known.visible:
        if value in known.writers:
            source = known.writers[value][1].source
            if source is not None:
                outputs.setdefault(source, []).append(value)
    for source, values in outputs.items():
        if len(values) > 1:
            text = f"{_input(source)} was processed to {' and to '.join(values)}"
            yield Violation(TransactionAnomaly.DOUBLED, text)
        committed = known.final.offsets.get((source.group, source.topic, source.partition), 0)
        if source.offset >= committed:
            text = f"{_input(source)} was processed to {values[0]}, the offset is {committed}"
            yield Violation(TransactionAnomaly.OFFSET_BEHIND, text)
    for (group, topic, partition), committed in known.final.offsets.items():
        for offset, value in known.final.logs.get((topic, partition), ()):
            source = InputRecord(group, topic, partition, offset)
            if offset < committed and source not in outputs:
                text = f"{_input(source)} ({value}) has no output, the offset is {committed}"
                yield Violation(TransactionAnomaly.OFFSET_AHEAD, text)


# Earlier reads


def _check_reads(known: _Known) -> Iterator[Violation]:
    logs = {partition: dict(rows) for partition, rows in known.final.logs.items()}
    offsets = {partition: sorted(rows) for partition, rows in logs.items()}
    for read in known.history.reads:
        for row in read.rows:
            yield from _check_row(known, read, row, logs.get(read.partition, {}))
        got = {offset for offset, _ in read.rows}
        skipped = [
            offset
            for offset in offsets.get(read.partition, [])
            if read.start <= offset < read.end and offset not in got
        ]
        if skipped:
            text = (
                f"{read.reader} read {_name(read.partition)} from {read.start} to {read.end} "
                f"without offset {skipped[0]}"
            )
            yield Violation(TransactionAnomaly.INTERMEDIATE_READ, text)


def _check_row(
    known: _Known, read: CommittedRead, row: Row, log: dict[int, str]
) -> Iterator[Violation]:
    offset, value = row
    text = f"{read.reader} read {value} at {_name(read.partition)}@{offset}"
    if value not in known.writers:
        yield Violation(TransactionAnomaly.INVENTED, text)
        return
    transaction = known.writers[value][0]
    requested = transaction.commit_requested
    if log.get(offset) != value:
        text += f", which {'is gone' if offset not in log else 'has another record now'}"
        yield Violation(TransactionAnomaly.ABORTED_READ, text)
    elif requested is not None and read.now < requested:
        text += f" at {read.now:.4f}, the commit was requested at {requested:.4f}"
        yield Violation(TransactionAnomaly.DIRTY_READ, text)


def _check_flow(known: _Known) -> Iterator[Violation]:
    """Find cycles of transactions that read each other's writes."""
    sources: dict[str, dict[str, None]] = {}
    for transaction in known.history.transactions:
        for value in transaction.seen:
            if value in known.writers and known.writers[value][0] is not transaction:
                sources.setdefault(transaction.name, {})[known.writers[value][0].name] = None
    for cycle in _cycles(sources):
        yield Violation(TransactionAnomaly.CIRCULAR, " read from ".join([*cycle, cycle[0]]))


def _cycles(edges: dict[str, dict[str, None]]) -> Iterator[list[str]]:
    """One cycle from each node that a depth-first search finds to be on one."""
    done: dict[str, None] = {}
    for start in edges:
        path: dict[str, Iterator[str]] = {}
        following: str | None = start
        while following is not None:
            if following in path:
                names = list(path)
                yield names[names.index(following) :]
                done.update(dict.fromkeys(names))
                break
            if following not in done:
                path[following] = iter(edges.get(following, {}))
            following = _advance(path, done)


def _advance(path: dict[str, Iterator[str]], done: dict[str, None]) -> str | None:
    """The next node of the search; finished nodes leave the path."""
    while path:
        last = next(reversed(path))
        found = next(path[last], None)
        if found is not None:
            return found
        done[last] = None
        del path[last]
    return None


def _check_order(known: _Known) -> Iterator[Violation]:
    """A transaction that began after another had ended writes behind it in every partition."""
    for partition, rows in known.final.logs.items():
        earliest_end, below = FOREVER, ""
        for offset, value in sorted(rows, reverse=True):
            if value not in known.writers:
                continue
            transaction = known.writers[value][0]
            if transaction.began > earliest_end:
                text = f"{value} at {_name(partition)}@{offset} is below {below}"
                yield Violation(TransactionAnomaly.DIRTY_WRITE, text)
            if transaction.ended is not None and transaction.ended < earliest_end:
                earliest_end, below = transaction.ended, value


# Offsets of groups


def _check_offsets(known: _Known) -> Iterator[Violation]:
    commits: dict[GroupKey, list[tuple[ObservedTransaction, int]]] = {}
    for transaction in known.history.transactions:
        for group, offset in transaction.offsets.items():
            commits.setdefault(group, []).append((transaction, offset))
    for fetched in known.history.fetched_offsets:
        yield from _check_fetched(fetched, commits.get(fetched.group, []))


def _check_fetched(
    fetched: FetchedOffset, commits: Iterable[tuple[ObservedTransaction, int]]
) -> Iterator[Violation]:
    possible: dict[int, None] = {}
    least = -1
    for transaction, offset in commits:
        requested = transaction.commit_requested
        if requested is not None and requested < fetched.now:
            possible[offset] = None
        is_confirmed = transaction.outcome is Outcome.COMMITTED
        if is_confirmed and transaction.ended is not None and transaction.ended < fetched.began:
            least = max(least, offset)
    group, topic, partition = fetched.group
    where = f"group {group} at {topic}-{partition} is at {fetched.offset}"
    if fetched.offset is not None and fetched.offset not in possible:
        yield Violation(TransactionAnomaly.DIRTY_OFFSET, where)
    elif (-1 if fetched.offset is None else fetched.offset) < least:
        yield Violation(TransactionAnomaly.STALE_OFFSET, f"{where}, {least} was committed")


def _input(source: InputRecord) -> str:
    return f"{source.topic}-{source.partition}@{source.offset} for group {source.group}"


def _name(partition: PartitionKey) -> str:
    return f"{partition[0]}-{partition[1]}"
