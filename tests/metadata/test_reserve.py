"""The space that is reserved for the metadata on a full disk."""

from __future__ import annotations

import pytest

from riverrun.metadata.reserve import NAME, PART_BYTES, RESERVE_BYTES, Reserve
from tests.storage.machines import Machine

FOLDER = "/data"
PATH = f"{FOLDER}/{NAME}"


def machine_with_folder() -> Machine:
    machine = Machine()
    machine.files.make_directory(FOLDER)
    machine.disk.capacity_bytes = 10 * RESERVE_BYTES
    return machine


def full_machine() -> tuple[Machine, Reserve]:
    machine = machine_with_folder()
    reserve = Reserve(machine.files, FOLDER)
    reserve.hold()
    assert machine.files.size(PATH) == RESERVE_BYTES
    machine.files.open(f"{FOLDER}/metadata", create=True).close()
    machine.disk.capacity_bytes = machine.disk.used_bytes
    return machine, reserve


def test_other_writers_take_only_a_part_of_the_reserve_at_a_time() -> None:
    machine, reserve = full_machine()
    metadata = machine.files.open(f"{FOLDER}/metadata")
    for number in range(RESERVE_BYTES // PART_BYTES):
        with pytest.raises(OSError, match="No space"):
            metadata.write_at(100 * number, bytes(100))
        assert reserve.release()
        metadata.write_at(100 * number, bytes(100))
        machine.disk.capacity_bytes = machine.disk.used_bytes  # another log takes the rest
        reserve.hold()
    assert not reserve.release()


def test_last_space_of_a_disk_is_left_to_the_metadata() -> None:
    machine = machine_with_folder()
    machine.disk.capacity_bytes = machine.disk.used_bytes + RESERVE_BYTES // 2
    reserve = Reserve(machine.files, FOLDER)
    reserve.hold()
    machine.files.open(f"{FOLDER}/metadata", create=True).write_at(0, bytes(RESERVE_BYTES // 2))


def test_reserve_of_the_previous_run_is_used() -> None:
    machine, _ = full_machine()
    reserve = Reserve(machine.files, FOLDER)
    reserve.hold()
    assert reserve.release()
    assert machine.files.size(PATH) == RESERVE_BYTES - PART_BYTES
    machine.disk.capacity_bytes += 10 * RESERVE_BYTES
    reserve.hold()
    assert machine.files.size(PATH) == RESERVE_BYTES
