"""Settings of the verification of transactions, with Kafka's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass

from riverrun.model.settings import SettingKind, Settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationSettings(Settings):
    """The questions of leaders to transaction coordinators."""

    is_enabled: bool = setting(
        True,
        name="transaction.partition.verification.enable",
        live=True,
        doc="Whether leaders ask the coordinator before the first batch of a transaction in a "
        "partition, if its client uses transaction version 1. Without it, a batch that arrives "
        "after its transaction has ended may hold back readers until the transaction is swept. "
        "In version 2 the question adds the partition, so it is always asked.",
    )
    retry_ms: int = setting(
        20,
        name="add.partitions.to.txn.retry.backoff.ms",
        kind=SettingKind.INT,
        at_least=1,
        doc="How long a leader waits before it asks again, while the coordinator ends the previous "
        "transaction of the producer.",
    )
    retry_max_ms: int = setting(
        100,
        name="add.partitions.to.txn.retry.backoff.max.ms",
        kind=SettingKind.INT,
        at_least=0,
        doc="How long a leader repeats such questions before the client gets "
        "CONCURRENT_TRANSACTIONS or another retriable error.",
    )
