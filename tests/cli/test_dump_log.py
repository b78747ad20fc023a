"""dump-log shows the content of files and finds damage."""

import json
import struct
from pathlib import Path

import typer
from typer.testing import CliRunner

from riverrun.cli.records.dump_log import dump, register
from riverrun.records.compression import Compression
from riverrun.records.record import ControlType, NewRecord, build_batch

BASE = "00000000000000000100"
TIME = 1_700_000_000_123


def log_bytes() -> tuple[bytes, list[int]]:
    parts = [
        build_batch(
            [
                NewRecord(b"hello", b"key", TIME, (("h", b"1"), ("h", None))),
                NewRecord(None, b"\xff\x00", TIME),
            ],
            base_offset=100, leader_epoch=4, compression=Compression.ZSTD,
        ),
        build_batch(
            [NewRecord(b"\0\0\0\0\0\x09", ControlType.ABORT.key(), TIME)],
            base_offset=102, leader_epoch=4, producer_id=7, producer_epoch=1, transactional=True,
            control=True,
        ),
        build_batch([NewRecord(b"x" * 500, b"k", TIME)], base_offset=110, delete_horizon_ms=5),
    ]  # fmt: skip
    positions = [sum(map(len, parts[:place])) for place in range(3)]
    return b"".join(parts), positions


def run(path: Path, *, deep: bool = True) -> tuple[int, list[dict[str, object]]]:
    lines: list[str] = []
    problems = dump([str(path)], deep=deep, json=True, write=lines.append)
    return problems, [json.loads(line) for line in lines]


def test_segment_with_its_records(tmp_path: Path) -> None:
    path = tmp_path / f"{BASE}.log"
    path.write_bytes(log_bytes()[0])
    problems, rows = run(path)
    assert problems == 0
    batches = [row for row in rows if row["kind"] == "batch"]
    assert [(row["base_offset"], row["last_offset"]) for row in batches] == [
        (100, 101), (102, 102), (110, 110),
    ]  # fmt: skip
    assert batches[0]["compression"] == "zstd"
    assert batches[1]["control"] is True
    assert batches[1]["producer_id"] == 7
    assert batches[2]["delete_horizon"] == 5
    records = [row for row in rows if row["kind"] == "record"]
    assert records[0]["key"] == "key"
    assert records[0]["headers"] == [["h", "1"], ["h", None]]
    assert records[1]["key"] == "0xff00"
    assert records[1]["value"] is None
    assert records[2]["control_type"] == "ABORT"
    assert records[2]["coordinator_epoch"] == 9
    assert rows[-1] == {
        "file": str(path), "kind": "total", "batches": 3, "records": 4,
        "bytes": path.stat().st_size,
    }  # fmt: skip


def test_shallow_dump_has_only_control_records(tmp_path: Path) -> None:
    path = tmp_path / f"{BASE}.log"
    path.write_bytes(log_bytes()[0])
    _, rows = run(path, deep=False)
    assert [row["offset"] for row in rows if row["kind"] == "record"] == [102]


def test_damage_is_a_problem(tmp_path: Path) -> None:
    data, positions = log_bytes()
    path = tmp_path / f"{BASE}.log"
    flipped = bytearray(data)
    flipped[positions[1] + 70] ^= 1
    path.write_bytes(flipped)
    problems, rows = run(path)
    assert problems == 1
    (problem,) = [row for row in rows if "problem" in row]
    assert problem["base_offset"] == 102
    path.write_bytes(data[:-1])
    assert run(path)[0] == 1
    path.write_bytes(data + bytes(100))
    assert run(path)[0] == 1
    path.write_bytes(data[positions[1] :] + data[: positions[1]])
    assert run(path)[0] == 1


def test_indexes_are_compared_with_their_log(tmp_path: Path) -> None:
    data, positions = log_bytes()
    (tmp_path / f"{BASE}.log").write_bytes(data)
    index = tmp_path / f"{BASE}.index"
    index.write_bytes(struct.pack(">IIII", 2, positions[1], 10, positions[2]))
    problems, rows = run(index)
    assert problems == 0
    assert [(row["offset"], row["position"]) for row in rows] == [
        (102, positions[1]), (110, positions[2]),
    ]  # fmt: skip
    for entry in ((3, positions[1]), (2, positions[1] + 1), (2, 10_000)):
        index.write_bytes(struct.pack(">II", *entry))
        assert run(index)[0] == 1
    index.write_bytes(struct.pack(">IIII", 10, positions[2], 2, positions[1]))
    assert run(index)[0] == 1
    index.write_bytes(b"\0" * 7)
    assert run(index)[0] == 1


def test_other_indexes(tmp_path: Path) -> None:
    times = tmp_path / f"{BASE}.timeindex"
    times.write_bytes(struct.pack(">qIqI", TIME, 1, TIME + 1, 10))
    problems, rows = run(times)
    assert problems == 0
    assert [(row["timestamp"], row["offset"]) for row in rows] == [(TIME, 101), (TIME + 1, 110)]
    times.write_bytes(struct.pack(">qIqI", TIME, 1, TIME, 10))
    assert run(times)[0] == 1
    aborted = tmp_path / f"{BASE}.txnindex"
    aborted.write_bytes(struct.pack(">hqqqq", 0, 7, 100, 102, 103))
    problems, rows = run(aborted)
    assert problems == 0
    assert rows[0]["first_offset"] == 100


def test_checkpoints(tmp_path: Path) -> None:
    epochs = tmp_path / "leader-epoch-checkpoint"
    epochs.write_text("0\n2\n0 0\n4 100\n")
    problems, rows = run(epochs)
    assert problems == 0
    assert rows[1] == {"file": str(epochs), "kind": "entry", "epoch": "4", "start_offset": "100"}
    epochs.write_text("0\n3\n0 0\n4 100\n")
    assert run(epochs)[0] == 1
    epochs.write_text("nonsense")
    assert run(epochs)[0] == 1


def test_garbage_raises_no_exception(tmp_path: Path) -> None:
    for suffix in ("log", "index", "timeindex", "txnindex", "snapshot", "checkpoint", "else"):
        for size in (0, 1, 11, 200):
            path = tmp_path / f"{BASE}.{suffix}"
            path.write_bytes(bytes(range(200))[:size])
            run(path)


def test_command_prints_for_people_and_fails_on_damage(tmp_path: Path) -> None:
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    data, _ = log_bytes()
    path = tmp_path / f"{BASE}.log"
    path.write_bytes(data)
    result = CliRunner().invoke(app, ["dump-log", "--deep", str(tmp_path)])
    assert result.exit_code == 0
    assert "batch offsets=100..101 count=2" in result.output
    assert "2023-11-14T22:13:20.123Z" in result.output
    assert "key=key value=hello" in result.output
    path.write_bytes(data[:-1])
    result = CliRunner().invoke(app, ["dump-log", str(path), str(tmp_path / "missing.log")])
    assert result.exit_code == 4
    assert "!! no whole batch" in result.stdout
    assert f"there is no file {tmp_path / 'missing.log'}" in result.stderr
    assert CliRunner().invoke(app, ["dump-log", str(path)]).exit_code == 1


def test_a_named_file_of_an_unknown_type_is_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    problems, rows = run(path)
    assert problems == 1
    assert rows[0]["note"] == "unknown file type"
    assert run(tmp_path)[0] == 0, "a directory may have files of other programs"
