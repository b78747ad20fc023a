"""The start offset of each leader epoch, which replicas compare to find where they diverge.

Kept in memory and in ``leader-epoch-checkpoint``. Entries increase in epoch and offset (KIP-101).
"""

from __future__ import annotations

from bisect import bisect_right

from riverrun.model.ids import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from riverrun.storage.checkpoints import CorruptCheckpoint


class LeaderEpochs:
    __slots__ = ("_epochs", "_starts", "begun_at", "is_dirty", "latest")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = NO_EPOCH
        self.is_dirty = False
        """Whether the file must be written."""
        self.begun_at = -1
        """The start of an epoch without records, which need not be in the file yet."""

    @property
    def entries(self) -> list[tuple[LeaderEpoch, Offset]]:
        pairs = zip(self._epochs, self._starts, strict=True)
        return [(LeaderEpoch(epoch), Offset(start)) for epoch, start in pairs]

    def assign(self, epoch: int, start: int) -> None:
        """Start an epoch at an offset. Older entries that contradict it are dropped."""
        if epoch <= self.latest or epoch < 0:
            return
        while self._starts and self._starts[-1] >= start:
            # An epoch without records is not in the log, so it need not be here.
            del self._starts[-1], self._epochs[-1]
        self._epochs.append(epoch)
        self._starts.append(start)
        self.latest = LeaderEpoch(epoch)
        self.is_dirty = True

    def begin(self, epoch: int, start: int) -> None:
        """Start the epoch of a leader, which may never append anything.

        No higher epoch exists. A batch with a higher one is corrupt, because the CRC does not cover
        the epoch.
        """
        while self._epochs and self._epochs[-1] > epoch:
            del self._starts[-1], self._epochs[-1]
            self.is_dirty = True
        self.latest = LeaderEpoch(self._epochs[-1]) if self._epochs else NO_EPOCH
        is_dirty = self.is_dirty
        self.assign(epoch, start)
        if not is_dirty and self.is_dirty:
            self.is_dirty = False
            self.begun_at = start

    def start_above(self, epoch: int) -> Offset | None:
        """The start of the first epoch above this one, if there is one."""
        place = bisect_right(self._epochs, epoch)
        return Offset(self._starts[place]) if place < len(self._starts) else None

    def end_of(self, epoch: int, end_offset: int) -> tuple[LeaderEpoch, Offset]:
        """The largest epoch that is not above the requested one, and its end offset (KIP-279).

        (-1, -1) for an epoch above the latest.
        """
        if epoch == self.latest and epoch >= 0:
            return LeaderEpoch(epoch), Offset(end_offset)
        place = bisect_right(self._epochs, epoch)
        if epoch < 0 or place == len(self._epochs):
            return NO_EPOCH, NO_OFFSET
        end = Offset(self._starts[place])
        if place == 0:
            return LeaderEpoch(epoch), end
        return LeaderEpoch(self._epochs[place - 1]), end

    def epoch_at(self, offset: int) -> LeaderEpoch:
        """The epoch in which an offset was appended; -1 if unknown."""
        place = bisect_right(self._starts, offset)
        return LeaderEpoch(self._epochs[place - 1]) if place else NO_EPOCH

    def truncate_end(self, end_offset: int) -> None:
        """Drop epochs that start at or above an offset."""
        place = len(self._starts)
        while place and self._starts[place - 1] >= end_offset:
            place -= 1
        if place < len(self._starts):
            del self._starts[place:], self._epochs[place:]
            self.latest = LeaderEpoch(self._epochs[-1]) if place else NO_EPOCH
            self.is_dirty = True

    def truncate_start(self, start_offset: int) -> None:
        """Drop epochs that ended before an offset; the epoch of that offset now starts there."""
        place = bisect_right(self._starts, start_offset)
        if place and self._starts[0] < start_offset:
            del self._starts[: place - 1], self._epochs[: place - 1]
            self._starts[0] = start_offset
            self.is_dirty = True

    def clear(self) -> None:
        self._epochs, self._starts, self.latest = [], [], NO_EPOCH
        self.is_dirty = True

    def encode(self) -> bytes:
        lines = [f"{epoch} {start}" for epoch, start in self.entries]
        return "\n".join(["0", str(len(lines)), *lines, ""]).encode()

    @classmethod
    def parse(cls, data: bytes) -> LeaderEpochs:
        """Parse the file. Raises ``CorruptCheckpoint``."""
        epochs = cls()
        try:
            version, count, *lines = data.decode().split("\n")
            if int(version) != 0 or int(count) != len([line for line in lines if line]):
                raise CorruptCheckpoint(f"version {version}, {count} entries declared")
            for line in lines:
                if line:
                    epoch, start = line.split(" ")
                    epochs.assign(int(epoch), int(start))
        except ValueError as error:
            raise CorruptCheckpoint(f"not a leader epoch checkpoint: {error}") from None
        epochs.is_dirty = False
        return epochs
