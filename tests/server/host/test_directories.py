"""The directories of earlier runs of a unit."""

from pathlib import Path

import pytest

from riverrun.ports.files import OsFiles
from riverrun.server.host.directories import (
    HostDirectoryError,
    check_bases,
    check_shrinking,
    held_partitions,
    is_base_of_unit,
    placed_members,
)
from riverrun.server.host.members import members_of


def make(base: Path, node_id: int, *partitions: str) -> None:
    (base / f"node-{node_id}").mkdir(parents=True)
    (base / f"node-{node_id}" / "meta.properties").touch()
    for name in ("__cluster_metadata-0", *partitions):
        (base / f"node-{node_id}" / name).mkdir()


def test_data_of_this_unit_is_found_on_all_disks(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    make(one, 1)
    make(two, 1001)
    make(two, 2)
    (two / "node-2001").mkdir()  # a start that failed early
    assert placed_members([str(one), str(two)], 1) == {1: str(one), 1001: str(two)}
    make(two, 1)
    with pytest.raises(HostDirectoryError, match="hold data of node 1;"):
        placed_members([str(one), str(two)], 1)


def test_a_broker_that_holds_partitions_is_not_left_out(tmp_path: Path) -> None:
    for node_id in (1, 1001, 2001):
        make(tmp_path, node_id, "orders-0", "orders-1")
    make(tmp_path, 3001)
    placed = placed_members([str(tmp_path)], 1)
    texts = {"node.id": "1", "log.dirs": str(tmp_path)}
    for enough in (3, 4, 5):
        check_shrinking(members_of(texts, enough, placed), placed)
    with pytest.raises(HostDirectoryError) as caught:
        check_shrinking(members_of(texts, 1, placed), placed)
    message = str(caught.value)
    assert "1001 (2 partitions), 2001 (2 partitions)" in message
    assert "Start with processes=3" in message
    assert "riverrun cluster decommission 1001; riverrun cluster decommission 2001" in message


def test_deleted_partitions_and_metadata_do_not_count(tmp_path: Path) -> None:
    make(tmp_path, 1, "orders-0", "orders-1.0123456789abcdef0123456789abcdef-delete")
    assert held_partitions(str(tmp_path / "node-1")) == 1


def test_directory_of_a_single_node_is_refused_with_the_remedy(tmp_path: Path) -> None:
    base = tmp_path / "data"
    base.mkdir()
    (base / "meta.properties").touch()
    with pytest.raises(HostDirectoryError, match=f"mv {base}.moved {base}/node-1"):
        check_bases([str(base)], 1)
    assert not is_base_of_unit(str(base))


def test_directory_in_use_is_refused(tmp_path: Path) -> None:
    lock = OsFiles().lock(str(tmp_path / ".lock"))
    try:
        with pytest.raises(HostDirectoryError, match="riverrun stop --data"):
            check_bases([str(tmp_path)], 1)
    finally:
        lock.release()
    check_bases([str(tmp_path)], 1)


def test_base_of_a_unit_is_no_data_directory(tmp_path: Path) -> None:
    assert not is_base_of_unit(str(tmp_path))
    assert not is_base_of_unit(str(tmp_path / "missing"))
    make(tmp_path, 1)
    assert is_base_of_unit(str(tmp_path))
