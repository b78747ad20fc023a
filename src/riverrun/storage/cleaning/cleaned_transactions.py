"""The transactions that compaction passes, in the order of their batches.

Aborted records are removed at once. A marker stays as long as a record of its transaction stays,
because readers need it to see where the transaction ended.
"""

from __future__ import annotations

from riverrun.records.batch import BatchHeader
from riverrun.records.record import ControlType, read_records
from riverrun.storage.segment.index import AbortedTransaction


class CleanedTransactions:
    """Decides which batches are aborted, and which markers are still needed."""

    def __init__(self, aborted: tuple[AbortedTransaction, ...], start_offset: int) -> None:
        # A transaction that ended before the first batch must not hide the next one of the same
        # producer.
        coming = [each for each in aborted if each.last_offset >= start_offset]
        self._coming = sorted(coming, key=lambda each: each.first_offset, reverse=True)
        self._aborting: dict[int, AbortedTransaction] = {}
        self._has_data: dict[int, bool] = {}
        self._committing: dict[int, bool] = {}
        self.kept: list[AbortedTransaction] = []
        """Aborted transactions with remaining batches, for the new transaction index."""

    def _advance(self, last_offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= last_offset:
            transaction = self._coming.pop()
            self._aborting.setdefault(transaction.producer_id, transaction)

    def pass_data(self, header: BatchHeader) -> bool:
        """Account for a data batch. Returns whether it was aborted."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborting:
            self._has_data[header.producer_id] = True
            return True
        self._committing[header.producer_id] = True
        return False

    def pass_marker(self, header: BatchHeader, batch: memoryview) -> bool:
        """Account for a control batch. Returns whether it is no longer needed."""
        self._advance(header.last_offset)
        if header.count == 0:
            return True
        producer_id = header.producer_id
        match ControlType.of(read_records(batch)[0].key):
            case ControlType.ABORT:
                transaction = self._aborting.pop(producer_id, None)
                has_data = self._has_data.pop(producer_id, False)
                if transaction is not None and has_data:
                    self.kept.append(transaction)
                return not has_data
            case ControlType.COMMIT:
                return not self._committing.pop(producer_id, False)
            case _:
                return False
