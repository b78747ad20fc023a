"""The checks find every planted anomaly, and none in correct histories."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from riverrun.chaos.checks.anomalies import Anomaly
from riverrun.chaos.checks.availability import longest_silence, silences, throughput
from riverrun.chaos.checks.metadata_checks import check_metadata
from riverrun.chaos.checks.record_checks import check_records
from riverrun.chaos.history import (
    Action,
    History,
    Operation,
    OperationKind,
    read_history,
    write_history,
)


class HistoryBuilder:
    """Builds a history with one operation per 10 ms."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def add(
        self, process: str, action: Action, kind: OperationKind = OperationKind.OK, **more: Any
    ) -> "HistoryBuilder":
        time = len(self.operations) / 100
        operation = Operation(time=time, process=process, action=action, kind=kind, **more)
        self.operations.append(operation)
        return self

    def sent(self, value: str, offset: int | None, *, refused: bool = False) -> "HistoryBuilder":
        partition = int(value.split("/")[1])
        fields = {"partition": partition, "value": value}
        self.add("p", Action.SEND, OperationKind.INVOKE, **fields)
        if refused:
            return self.add("p", Action.SEND, OperationKind.FAIL, **fields)
        if offset is None:
            return self.add("p", Action.SEND, OperationKind.INFO, **fields)
        return self.add("p", Action.SEND, OperationKind.OK, offset=offset, **fields)

    def read(self, reader: str, *records: tuple[int, str], **more: Any) -> "HistoryBuilder":
        return self.add(reader, Action.READ, partition=0, records=records, **more)

    def read_back(self, *records: tuple[int, str], reader: str = "end") -> "HistoryBuilder":
        return self.add(reader, Action.READ_BACK, partition=0, records=records)

    def committed(self, offset: int) -> "HistoryBuilder":
        self.add("auditor", Action.COMMITTED, OperationKind.INVOKE, group="g", partition=0)
        return self.add("auditor", Action.COMMITTED, group="g", partition=0, offset=offset)

    def commit(self, offset: int, kind: OperationKind = OperationKind.OK) -> "HistoryBuilder":
        return self.add("c", Action.COMMIT, kind, group="g", partition=0, offset=offset)

    def three(self) -> "HistoryBuilder":
        for number in range(3):
            self.sent(f"p/0/{number}", number)
        return self

    def anomalies(self) -> list[Anomaly]:
        return list(check_records(self.operations).counts)

    def metadata_anomalies(self) -> list[Anomaly]:
        return list(check_metadata(self.operations).counts)


THREE = ((0, "p/0/0"), (1, "p/0/1"), (2, "p/0/2"))


def test_correct_history_has_no_anomaly() -> None:
    history = HistoryBuilder().three()
    history.read("c", *THREE[:2], high_watermark=2).commit(2).committed(2)
    history.add("c", Action.ASSIGN, partition=0).read("c", *THREE[1:], high_watermark=3)
    history.sent("p/0/3", None).sent("p/0/4", None).sent("p/0/5", None, refused=True)
    history.read_back(*THREE, (3, "p/0/4")).read_back(*THREE, (3, "p/0/4"), reader="other")
    assert history.anomalies() == []


Planting = Callable[[HistoryBuilder], object]
PLANTED: list[tuple[Anomaly, Planting]] = [
    (Anomaly.LOST, lambda s: s.three().read_back(*THREE[:2])),
    (Anomaly.LOST, lambda s: s.three().read_back((0, "p/0/0"), (1, "p/0/2"))),
    (Anomaly.CHANGED, lambda s: s.three().read_back(*((n + 1, v) for n, v in THREE))),
    (Anomaly.DUPLICATED, lambda s: s.three().read_back(*THREE, (3, "p/0/1"))),
    (
        Anomaly.REORDERED,
        lambda s: s.sent("p/0/0", 1).sent("p/0/1", 0).read_back((0, "p/0/1"), (1, "p/0/0")),
    ),
    (Anomaly.INVENTED, lambda s: s.three().read_back(*THREE, (3, "p/0/9"))),
    (Anomaly.INVENTED, lambda s: s.sent("p/1/0", 0).read_back((0, "p/1/0"))),
    (Anomaly.INVENTED, lambda s: s.sent("p/0/0", None, refused=True).read_back((0, "p/0/0"))),
    (Anomaly.INCONSISTENT, lambda s: s.three().read("c", (2, "p/0/1")).read_back(*THREE)),
    (
        Anomaly.INCONSISTENT,
        lambda s: s.three().sent("p/0/3", None).read("c", (3, "p/0/3")).read_back(*THREE),
    ),
    (
        Anomaly.INCONSISTENT,
        lambda s: s.three().read_back(*THREE).read_back((0, "p/0/1"), reader="other"),
    ),
    (
        Anomaly.INCONSISTENT,
        lambda s: s.three().read("c", (0, "p/0/0")).read("d", (0, "p/0/1")),
    ),
    (
        Anomaly.ABOVE_HIGH_WATERMARK,
        lambda s: s.three().read("c", *THREE, high_watermark=2).read_back(*THREE),
    ),
    (
        Anomaly.NON_MONOTONIC,
        lambda s: s.three().read("c", *THREE[:2]).read("c", *THREE[1:]).read_back(*THREE),
    ),
    (Anomaly.SKIPPED, lambda s: s.three().read("c", THREE[0], THREE[2]).read_back(*THREE)),
    (Anomaly.COMMIT_WENT_BACK, lambda s: s.commit(2).committed(2).committed(1)),
    (Anomaly.COMMIT_VANISHED, lambda s: s.commit(2).committed(-1)),
]


@pytest.mark.parametrize(("anomaly", "plant"), PLANTED)
def test_planted_anomaly_is_found(anomaly: Anomaly, plant: Planting) -> None:
    history = HistoryBuilder()
    plant(history)
    assert anomaly in history.anomalies()


def test_truncation_to_the_high_watermark_is_reported_as_loss() -> None:
    """A follower that truncates to its high watermark and then leads lacks acknowledged records."""
    history = HistoryBuilder().three().read_back(*THREE[:2])
    history.sent("p/0/3", 2).read_back((2, "p/0/3"))
    assert Anomaly.LOST in history.anomalies()


def test_acknowledgement_before_replication_is_reported_as_loss() -> None:
    history = HistoryBuilder().three().sent("p/0/3", 2).read_back(*THREE[:2], (2, "p/0/3"))
    assert Anomaly.LOST in history.anomalies()


def test_missing_epoch_check_is_reported_as_two_values_at_an_offset() -> None:
    history = HistoryBuilder().three().sent("q/0/0", 2).read("c", (2, "p/0/2"), high_watermark=3)
    history.read_back(*THREE[:2], (2, "q/0/0"))
    assert {Anomaly.LOST, Anomaly.INCONSISTENT} <= set(history.anomalies())


def test_commit_with_unknown_result_may_take_effect_late() -> None:
    history = HistoryBuilder().commit(1, OperationKind.INFO).commit(2).committed(1)
    assert history.anomalies() == []


def test_commit_confirmed_during_a_request_may_be_missing_in_its_response() -> None:
    history = HistoryBuilder().commit(1)
    history.add("auditor", Action.COMMITTED, OperationKind.INVOKE, group="g", partition=0).commit(2)
    history.add("auditor", Action.COMMITTED, group="g", partition=0, offset=1)
    assert history.anomalies() == []


def _created(history: HistoryBuilder, name: str) -> HistoryBuilder:
    return history.add("a", Action.CREATE, value=name)


METADATA: list[tuple[Anomaly, Planting]] = [
    (
        Anomaly.METADATA_LOST,
        lambda s: _created(_created(s, "t"), "u").add("a", Action.FOUND, value="u"),
    ),
    (
        Anomaly.METADATA_REVIVED,
        lambda s: (
            _created(s, "t")
            .add("a", Action.DELETE, value="t")
            .add("a", Action.FOUND, value="t")
        ),
    ),
    (
        Anomaly.METADATA_LOST,
        lambda s: (
            s.add("a", Action.SET, OperationKind.INVOKE, value="t", offset=5)
            .add("a", Action.SET, value="t", offset=5)
            .add("a", Action.FOUND, value="t", offset=4)
        ),
    ),
    (
        Anomaly.INVENTED,
        lambda s: (
            s.add("a", Action.SET, OperationKind.INVOKE, value="t", offset=5)
            .add("a", Action.SET, value="t", offset=5)
            .add("a", Action.FOUND, value="t", offset=6)
        ),
    ),
    (
        Anomaly.TWO_LEADERS,
        lambda s: (
            s.add("q", Action.LEADER, node=1, epoch=4, offset=1)
            .add("q", Action.LEADER, node=2, epoch=4, offset=2)
        ),
    ),
    (
        Anomaly.EPOCH_WENT_BACK,
        lambda s: (
            s.add("q", Action.LEADER, node=1, epoch=4, offset=1)
            .add("q", Action.LEADER, node=1, epoch=3, offset=2)
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("anomaly", "plant"), METADATA)
def test_planted_metadata_anomaly_is_found(anomaly: Anomaly, plant: Planting) -> None:
    history = HistoryBuilder()
    plant(history)
    assert history.metadata_anomalies() == [anomaly]


def test_correct_metadata_has_no_anomaly() -> None:
    history = _created(_created(HistoryBuilder(), "t"), "u").add("a", Action.DELETE, value="u")
    history.add("a", Action.SET, OperationKind.INVOKE, value="t", offset=1).add(
        "a", Action.SET, value="t", offset=1
    )
    history.add("a", Action.SET, OperationKind.INVOKE, value="t", offset=2).add(
        "a", Action.SET, OperationKind.INFO, value="t", offset=2
    )
    history.add("q", Action.LEADER, node=1, epoch=3, offset=1)
    history.add("q", Action.LEADER, node=2, epoch=4, offset=2)
    history.add("q", Action.LEADER, node=3, epoch=4, offset=-1)
    history.add("a", Action.FOUND, value="t", offset=2)
    assert history.metadata_anomalies() == []


def test_setting_with_unknown_result_may_take_effect_after_a_later_one() -> None:
    history = HistoryBuilder()
    for number, kind in ((1, OperationKind.INFO), (2, OperationKind.OK)):
        history.add("a", Action.SET, OperationKind.INVOKE, value="t", offset=number)
        history.add("a", Action.SET, kind, value="t", offset=number)
    history.add("a", Action.FOUND, value="t", offset=1)
    assert history.metadata_anomalies() == []


def test_partition_that_was_not_read_back_is_not_reported_as_lost() -> None:
    assert HistoryBuilder().three().sent("p/1/0", 0).read_back(*THREE).anomalies() == []


def test_history_round_trips_through_a_file(tmp_path: Path) -> None:
    history = History()
    history.add("p", Action.SEND, OperationKind.INVOKE, partition=0, value="p/0/0")
    history.add("c", Action.READ, partition=2, records=((0, "ä"), (1, "b")), high_watermark=9)
    operations = history.operations()
    write_history(tmp_path / "h.jsonl", operations)
    found = list(read_history(tmp_path / "h.jsonl"))
    assert [o.as_line() for o in found] == [o.as_line() for o in operations]
    assert found[1].records == ((0, "ä"), (1, "b"))


def test_silences_are_pauses_between_acknowledgements() -> None:
    times = [0.0, 0.1, 0.2, 2.0, 2.1]
    operations = [
        Operation(time=time, process="p", action=Action.SEND, partition=number % 2)
        for number, time in enumerate(times)
    ]
    assert [(w.start, w.end) for w in silences(operations)] == [(0.2, 2.0)]
    assert longest_silence(operations, until=5.0) == pytest.approx(2.9)
    assert [w.start for w in silences(operations, partition=1)] == [0.1]
    assert throughput(times, end=2.2, slice_seconds=1.0) == [3, 0, 2]
