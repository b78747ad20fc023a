"""The worker process compacts like an inline job, and ends on abort and with its parent."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from riverrun.records.batch import CorruptBatch
from riverrun.records.record import NewRecord
from riverrun.storage.cleaning.compaction import CompactionAborted, CompactionResult, CompactionTask
from riverrun.storage.worker import CompactionJob, InlineCompaction, ProcessJob

from .logs_to_compact import LogToCompact

pytestmark = pytest.mark.slow


def task_in(tmp_path: Path) -> tuple[LogToCompact, CompactionTask]:
    log = LogToCompact()
    for number in range(6):
        log.write(NewRecord(b"%d" % number, b"key-%d" % (number % 2), 5), producer=3)
        log.roll()
    for path, content in log.files.contents.items():
        (tmp_path / os.path.basename(path)).write_bytes(content)
    return log, log.task(directory=str(tmp_path), segment_bytes_max=150)


def results(job: CompactionJob) -> list[CompactionResult]:
    found = []
    while (cleaned := job.next()) is not None:
        found.append(cleaned)
    return found


def test_worker_process_writes_the_same_files_as_an_inline_job(tmp_path: Path) -> None:
    log, task = task_in(tmp_path)
    inline = InlineCompaction(log.files, log.task(segment_bytes_max=150))
    found = results(ProcessJob(task, 0))
    assert len(found) == 3
    assert found == results(inline)
    for path, content in log.files.contents.items():
        assert (tmp_path / os.path.basename(path)).read_bytes() == content


def test_worker_process_raises_errors_of_the_compaction(tmp_path: Path) -> None:
    _, task = task_in(tmp_path)
    first = tmp_path / "00000000000000000000.log"
    content = bytearray(first.read_bytes())
    content[-1] ^= 1
    first.write_bytes(content)
    with pytest.raises(CorruptBatch):
        results(ProcessJob(task, 0))
    first.unlink()
    with pytest.raises(FileNotFoundError):
        results(ProcessJob(task, 0))


def test_abort_ends_a_job(tmp_path: Path) -> None:
    log, task = task_in(tmp_path)
    slow = ProcessJob(task, 1)  # so slow that it would take minutes
    slow._start()
    slow.abort()
    with pytest.raises(CompactionAborted):
        slow.next()
    early = ProcessJob(task, 0)
    early.abort()
    with pytest.raises(CompactionAborted):
        early.next()
    inline = InlineCompaction(log.files, log.task())
    inline.abort()
    with pytest.raises(CompactionAborted):
        inline.next()


def test_worker_process_ends_with_its_parent(tmp_path: Path) -> None:
    _, task = task_in(tmp_path)
    not_its_parent = 2**22
    request = pickle.dumps((task, not_its_parent, 0))
    done = subprocess.run(
        [sys.executable, "-m", "riverrun.storage.worker"],
        input=request,
        capture_output=True,
        check=True,
    )
    response = pickle.loads(done.stdout[4:])
    assert isinstance(response, CompactionAborted)
    assert not list(tmp_path.glob("*.cleaned"))
