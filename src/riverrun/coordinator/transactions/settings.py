"""Settings of the transaction coordinator, with Kafka's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from riverrun.model.settings import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    MiB,
    SettingError,
    SettingKind,
    Settings,
    setting,
)

TWO_PHASE_COMMIT: Final = "transaction.two.phase.commit.enable"


def _check_two_phase_commit(text: str) -> None:
    if text.lower() != "false":
        reason = "two-phase commit (KIP-939) is not implemented; only false is accepted"
        raise SettingError(TWO_PHASE_COMMIT, text, reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings(Settings):
    """Transactions and transactional ids."""

    timeout_max_ms: int = setting(
        15 * MINUTE_MS,
        name="transaction.max.timeout.ms",
        kind=SettingKind.INT,
        at_least=1,
        doc="The longest transaction timeout that a producer may request.",
    )
    id_expiration_ms: int = setting(
        7 * DAY_MS,
        name="transactional.id.expiration.ms",
        kind=SettingKind.INT,
        at_least=1,
        doc="How long a transactional id without an open transaction is kept after its last use.",
    )
    expired_check_interval_ms: int = setting(
        HOUR_MS,
        name="transaction.remove.expired.transaction.cleanup.interval.ms",
        kind=SettingKind.INT,
        at_least=1,
        doc="How often expired transactional ids are removed.",
    )
    abort_retry_ms: int = setting(
        10_000,
        name="transaction.abort.timed.out.transaction.cleanup.interval.ms",
        kind=SettingKind.INT,
        at_least=1,
        doc="How long to wait before another attempt to abort a transaction that has timed out. "
        "The first attempt is made when it times out; Kafka checks at this interval.",
    )
    sweep_interval_ms: int = setting(
        MINUTE_MS,
        name="transaction.sweeper.interval.ms",
        kind=SettingKind.INT,
        at_least=1,
        doc="How often leaders look for transactions that are open longer than "
        "transaction.max.timeout.ms and five minutes, and abort those that no coordinator knows "
        "(Kafka leaves them to kafka-transactions).",
    )
    topic_partitions: int = setting(
        50,
        name="transaction.state.log.num.partitions",
        at_least=1,
        doc="The number of partitions of __transaction_state. It applies when the topic is "
        "created.",
    )
    topic_replication_factor: int = setting(
        3,
        name="transaction.state.log.replication.factor",
        kind=SettingKind.SHORT,
        at_least=1,
        doc="The replication factor of __transaction_state, at most the number of brokers.",
    )
    topic_min_isr: int = setting(
        2,
        name="transaction.state.log.min.isr",
        at_least=1,
        doc="min.insync.replicas of __transaction_state, at most its replication factor.",
    )
    topic_segment_bytes: int = setting(
        100 * MiB,
        name="transaction.state.log.segment.bytes",
        kind=SettingKind.INT,
        at_least=1,
        doc="The segment size of __transaction_state. Small segments are compacted soon, which "
        "keeps loading fast.",
    )
    load_buffer_bytes: int = setting(
        5 * MiB,
        name="transaction.state.log.load.buffer.size",
        kind=SettingKind.INT,
        at_least=1,
        doc="How many bytes of __transaction_state are read at once when its state is loaded. More "
        "than 1 MiB is read in steps of 1 MiB, so that other requests are served in between.",
    )
    has_two_phase_commit: bool = setting(
        False,
        name=TWO_PHASE_COMMIT,
        check=_check_two_phase_commit,
        doc="Two-phase commit (KIP-939). Only false is accepted: it is not implemented.",
    )
    partitions_max: int = setting(
        10_000,
        name="transaction.max.partitions",
        at_least=1,
        doc="The maximum number of partitions of one transaction. More are refused with "
        "POLICY_VIOLATION (unlimited in Kafka).",
    )
    ids_max: int = setting(
        100_000,
        name="transaction.coordinator.max.ids",
        at_least=1,
        doc="The maximum number of transactional ids in one partition of __transaction_state. A "
        "producer with a new id is refused with POLICY_VIOLATION (unlimited in Kafka).",
    )
    hold_ms: int = setting(
        900,
        name="transaction.coordinator.hold.max.ms",
        kind=SettingKind.INT,
        at_least=0,
        doc="How long a request waits for the end of the previous transaction before it is "
        "answered with CONCURRENT_TRANSACTIONS (at once in Kafka, so clients poll).",
    )
