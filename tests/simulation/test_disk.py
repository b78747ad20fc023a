"""The simulated disk: its guarantees and its possible failures."""

import asyncio
import errno
from collections.abc import Callable

import pytest

from riverrun.ports.files import Buffer, Files, read_whole, write_atomically
from riverrun.simulation.failures import ProcessDied
from riverrun.simulation.world import Environment, World

MakeWorld = Callable[..., World]
SEEDS = range(40)


def on_disk(world: World, use: Callable[[Files], None]) -> None:
    """Run a function in a process on the only machine."""

    async def main(environment: Environment) -> None:
        use(environment.files)

    world.start("node", main)
    world.run(1)


def outcomes(
    use: Callable[[Files], None], path: str, setup: Callable[[Files], None]
) -> set[bytes | None]:
    """The possible contents of a file after a power loss right after ``use``; None if missing."""
    seen: set[bytes | None] = set()
    for seed in SEEDS:
        with World(seed) as world:
            on_disk(world, setup)
            on_disk(world, use)
            world.power_off("node")
            seen.add(world.hosts["node"].disk.files().get(path))
    return seen


def _nothing(files: Files) -> None: ...


def _durable_file(files: Files) -> None:
    files.make_directory("/d")
    files.sync_directory("/")
    write_atomically(files, "/d/f", b"old")


def test_files_and_directories_behave_like_posix(make_world: MakeWorld) -> None:
    def use(files: Files) -> None:
        files.make_directory("/a/b")
        file = files.open("/a/b/c", create=True)
        file.write_at(0, b"hello")
        file.write_at(7, memoryview(b"world"))
        assert file.read_at(0, 100) == b"hello\0\0world"
        assert file.read_at(3, 5) == b"lo\0\0w"
        assert file.read_at(12, 5) == b""
        file.truncate(5)
        assert file.size() == files.size("/a/b/c") == 5
        assert files.list_directory("/a/b") == ["c"]
        assert files.is_directory("/a/b") and not files.is_directory("/a/b/c")
        files.rename("/a/b/c", "/a/d")
        assert file.read_at(0, 5) == b"hello", "a handle stays valid after a rename"
        assert not files.exists("/a/b/c")
        files.unlink("/a/d")
        assert file.read_at(0, 5) == b"hello", "an unlinked file exists until its handle is closed"
        files.remove_directory("/a/b")
        assert files.list_directory("/a") == []
        file.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            file.read_at(0, 1)
        assert files.modified_ms("/a") > 0

    on_disk(make_world(), use)


@pytest.mark.parametrize(
    ("attempt", "number"),
    [
        (lambda files: files.open("/no"), errno.ENOENT),
        (lambda files: files.open("/no/no", create=True), errno.ENOENT),
        (lambda files: files.open("/d"), errno.EISDIR),
        (lambda files: files.open("/d/f/g", create=True), errno.ENOTDIR),
        (lambda files: files.unlink("/no"), errno.ENOENT),
        (lambda files: files.unlink("/d"), errno.EISDIR),
        (lambda files: files.remove_directory("/d"), errno.ENOTEMPTY),
        (lambda files: files.rename("/no", "/d/f"), errno.ENOENT),
        (lambda files: files.list_directory("/d/f"), errno.ENOTDIR),
        (lambda files: files.sync_directory("/no"), errno.ENOENT),
    ],
)
def test_errors_match_a_real_file_system(
    make_world: MakeWorld, attempt: Callable[[Files], object], number: int
) -> None:
    def use(files: Files) -> None:
        _durable_file(files)
        with pytest.raises(OSError) as caught:
            attempt(files)
        assert caught.value.errno == number

    on_disk(make_world(), use)


def test_page_cache_survives_a_kill_but_not_a_power_loss(make_world: MakeWorld) -> None:
    def write(files: Files) -> None:
        files.open("/d/f").write_at(0, b"new")

    world = make_world()
    on_disk(world, _durable_file)
    on_disk(world, write)
    assert world.hosts["node"].disk.files()["/d/f"] == b"new"
    assert outcomes(write, "/d/f", _durable_file) >= {b"old", b"new"}


def test_sync_makes_content_durable() -> None:
    def write(files: Files) -> None:
        file = files.open("/d/f")
        file.write_at(0, b"new and longer")
        file.sync()

    assert outcomes(write, "/d/f", _durable_file) == {b"new and longer"}


def test_unsynced_sectors_are_lost_kept_or_torn_independently() -> None:
    old, new = b"\1" * 2048, b"\2" * 2048

    def setup(files: Files) -> None:
        write_atomically(files, "/f", old)

    def write(files: Files) -> None:
        files.open("/f").write_at(0, new)

    seen = outcomes(write, "/f", setup)
    assert old in seen and new in seen
    sectors = {content[at : at + 512] for content in seen if content for at in range(0, 2048, 512)}
    assert any(sector not in (old[:512], new[:512]) for sector in sectors), "none was torn"
    mixed = [c for c in seen if c and c[:512] == old[:512] and c[512:1024] == new[:512]]
    assert mixed, "sectors were never written out of order"


def test_torn_sector_does_not_affect_synced_bytes() -> None:
    def setup(files: Files) -> None:
        write_atomically(files, "/f", b"\1" * 700)

    def append(files: Files) -> None:
        files.open("/f").write_at(700, b"\2" * 700)

    assert all(
        content and content[:700] == b"\1" * 700 for content in outcomes(append, "/f", setup)
    )


def test_lost_append_may_leave_zeros() -> None:
    def append(files: Files) -> None:
        files.open("/d/f").write_at(3, b"x" * 600)

    seen = outcomes(append, "/d/f", _durable_file)
    assert any(content and len(content) > 3 and content.endswith(b"\0" * 88) for content in seen)


def test_created_file_may_be_lost_until_its_directory_is_synced() -> None:
    def create(files: Files) -> None:
        file = files.open("/d/new", create=True)
        file.write_at(0, b"x")
        file.sync()

    assert outcomes(create, "/d/new", _durable_file) == {None, b"x"}

    def create_and_sync(files: Files) -> None:
        create(files)
        files.sync_directory("/d")

    assert outcomes(create_and_sync, "/d/new", _durable_file) == {b"x"}


def test_synced_directory_keeps_the_name_of_an_unsynced_file() -> None:
    def create(files: Files) -> None:
        files.open("/d/new", create=True).write_at(0, b"x")
        files.sync_directory("/d")

    assert outcomes(create, "/d/new", _durable_file) >= {b"", b"x"}


def test_file_in_an_unsynced_directory_may_be_lost_with_it() -> None:
    def create(files: Files) -> None:
        files.make_directory("/d/sub")
        write_atomically(files, "/d/sub/f", b"x")

    assert outcomes(create, "/d/sub/f", _durable_file) == {None, b"x"}


def test_rename_is_atomic_but_not_durable() -> None:
    def rename(files: Files) -> None:
        file = files.open("/d/g", create=True)
        file.write_at(0, b"new")
        file.sync()
        files.sync_directory("/d")
        files.rename("/d/g", "/d/f")

    assert outcomes(rename, "/d/f", _durable_file) == {b"old", b"new"}
    assert outcomes(rename, "/d/g", _durable_file) == {None, b"new"}

    def rename_and_sync(files: Files) -> None:
        rename(files)
        files.sync_directory("/d")

    assert outcomes(rename_and_sync, "/d/f", _durable_file) == {b"new"}


def test_unsynced_unlink_and_truncation_may_be_undone() -> None:
    assert outcomes(lambda files: files.unlink("/d/f"), "/d/f", _durable_file) == {None, b"old"}
    assert outcomes(lambda files: files.open("/d/f").truncate(1), "/d/f", _durable_file) == {
        b"o",
        b"old",
    }

    def unlink(files: Files) -> None:
        files.unlink("/d/f")
        files.sync_directory("/d")

    assert outcomes(unlink, "/d/f", _durable_file) == {None}


def test_name_changes_are_ordered_within_a_directory_only() -> None:
    def make_directories(files: Files) -> None:
        for name in ("d", "e"):
            files.make_directory(f"/{name}")
        files.sync_directory("/")

    def create(files: Files) -> None:
        for path in ("/d/1", "/e/2", "/d/3"):
            files.open(path, create=True).sync()

    seen: set[tuple[str, ...]] = set()
    for seed in range(100):
        with World(seed) as world:
            on_disk(world, make_directories)
            on_disk(world, create)
            world.power_off("node")
            seen.add(tuple(sorted(world.hosts["node"].disk.files())))
    possible = {(), ("/d/1",), ("/e/2",), ("/d/1", "/d/3"), ("/d/1", "/e/2")}
    assert seen == possible | {("/d/1", "/d/3", "/e/2")}


def test_sync_after_a_failed_sync_does_not_make_pages_durable() -> None:
    def write(files: Files) -> None:
        file = files.open("/d/f")
        file.write_at(0, b"new")
        with pytest.raises(OSError) as caught:
            file.sync()
        assert caught.value.errno == errno.EIO
        file.sync()  # the pages are clean for the kernel

    seen: set[bytes | None] = set()
    for seed in SEEDS:
        with World(seed) as world:
            on_disk(world, _durable_file)
            world.hosts["node"].disk.syncs_to_fail = 1
            on_disk(world, write)
            world.power_off("node")
            seen.add(world.hosts["node"].disk.files().get("/d/f"))
    assert seen == {b"old", b"new"}


def test_directory_sync_can_fail(make_world: MakeWorld) -> None:
    world = make_world()
    on_disk(world, _durable_file)
    world.hosts["node"].disk.syncs_to_fail = 1

    def use(files: Files) -> None:
        with pytest.raises(OSError, match="Input/output error"):
            files.sync_directory("/d")

    on_disk(world, use)


def test_write_to_a_full_disk_fails_and_is_truncated() -> None:
    def fill(files: Files) -> None:
        file = files.open("/d/f")
        with pytest.raises(OSError) as caught:
            file.write_at(3, b"x" * 100)
        assert caught.value.errno == errno.ENOSPC
        assert file.read_at(0, 100) == b"old"
        assert files.free_bytes("/d") == 10
        file.write_at(3, b"x" * 10)
        assert files.free_bytes("/d") == 0
        with pytest.raises(OSError) as caught:
            files.open("/d/g", create=True)
        assert caught.value.errno == errno.ENOSPC
        file.truncate(3)
        assert files.free_bytes("/d") == 10

    seen: set[bytes | None] = set()
    for seed in SEEDS:
        with World(seed) as world:
            on_disk(world, _durable_file)
            disk = world.hosts["node"].disk
            disk.capacity_bytes = disk.used_bytes + 10
            on_disk(world, fill)
            world.power_off("node")
            seen.add(disk.files()["/d/f"])
    assert b"old" in seen
    assert any(content != b"old" for content in seen), "a short write never survived the truncation"


def test_removed_files_free_their_space(make_world: MakeWorld) -> None:
    world = make_world()
    on_disk(world, _durable_file)
    disk = world.hosts["node"].disk

    def use(files: Files) -> None:
        before = disk.used_bytes
        files.open("/d/g", create=True).write_at(0, b"x" * 1000)
        assert disk.used_bytes == before + 1000
        files.open("/d/h", create=True).write_at(0, b"x" * 10)
        files.rename("/d/h", "/d/g")
        assert disk.used_bytes == before + 10
        files.unlink("/d/g")
        assert disk.used_bytes == before
        assert files.total_bytes("/d") == disk.capacity_bytes

    on_disk(world, use)


def test_write_error_truncates_to_the_old_size(make_world: MakeWorld) -> None:
    world = make_world()
    on_disk(world, _durable_file)
    world.hosts["node"].disk.writes_to_fail = 1

    def use(files: Files) -> None:
        file = files.open("/d/f")
        with pytest.raises(OSError) as caught:
            file.write_at(3, b"x" * 100)
        assert caught.value.errno == errno.EIO
        assert file.size() == 3
        file.write_at(3, b"y")
        assert file.read_at(0, 10) == b"oldy"

    on_disk(world, use)


def test_bit_rot_flips_one_bit(make_world: MakeWorld) -> None:
    world = make_world()
    on_disk(world, _durable_file)
    world.hosts["node"].disk.rot("/d/f", 1, 0)
    on_disk(world, lambda files: _expect(read_whole(files, "/d/f"), b"omd"))


def _expect(found: Buffer | None, expected: bytes) -> None:
    assert found == expected


def test_read_cached_at_returns_none_for_cold_pages(make_world: MakeWorld) -> None:
    world = make_world()
    on_disk(world, _durable_file)
    disk = world.hosts["node"].disk
    disk.cold_probability = 0.0
    on_disk(world, lambda files: _expect(files.open("/d/f").read_cached_at(0, 3), b"old"))
    world.power_off("node")

    def use(files: Files) -> None:
        file = files.open("/d/f")
        assert file.read_cached_at(0, 3) is None
        assert file.read_at(0, 3) == b"old"
        assert file.read_cached_at(0, 3) == b"old"
        disk.evict()
        assert file.read_cached_at(0, 3) is None
        disk.cold_probability = 1.0
        assert file.read_at(0, 3) == b"old"
        assert file.read_cached_at(0, 3) is None

    on_disk(world, use)


def test_slow_disk_makes_syncs_slow(make_world: MakeWorld) -> None:
    took: dict[float, float] = {}

    for slowness in (1.0, 100.0):

        async def main(environment: Environment, slowness: float = slowness) -> None:
            file = environment.files.open("/f", create=True)
            began = environment.clock.monotonic()
            for _ in range(20):
                await asyncio.to_thread(file.sync)
            took[slowness] = environment.clock.monotonic() - began

        world = make_world()
        world.host("node").disk.slowness = slowness
        world.start("node", main)
        world.run(100)
    assert took[100.0] > 20 * took[1.0]


def test_sync_in_the_event_loop_blocks_the_loop(make_world: MakeWorld) -> None:
    woke: list[float] = []

    async def main(environment: Environment) -> None:
        asyncio.get_running_loop().call_later(0.001, lambda: woke.append(world.now))
        environment.files.open("/f", create=True).sync()
        await asyncio.sleep(100)

    world = make_world()
    world.host("node").disk.slowness = 1000.0
    world.start("node", main)
    world.run(50)
    assert woke[0] > 0.1


def test_locks_are_exclusive_and_released_by_a_kill(make_world: MakeWorld) -> None:
    async def hold(environment: Environment) -> None:
        environment.files.lock("/lock")
        with pytest.raises(BlockingIOError):
            environment.files.lock("/lock")
        await asyncio.sleep(1000)

    world = make_world()
    for stop in (world.kill, world.power_off, world.kill):
        world.start("node", hold)
        world.run(1)
        stop("node")

    def use(files: Files) -> None:
        lock = files.lock("/lock")
        lock.release()
        files.lock("/lock").release()

    on_disk(world, use)


def test_files_of_a_killed_process_raise(make_world: MakeWorld) -> None:
    kept: list[Files] = []

    async def main(environment: Environment) -> None:
        kept.append(environment.files)
        await asyncio.sleep(1000)

    world = make_world()
    world.start("node", main)
    world.run(1)
    world.kill("node")
    with pytest.raises(ProcessDied):
        kept[0].open("/f", create=True)
    assert world.hosts["node"].disk.files() == {}


@pytest.mark.parametrize("stop", ["kill", "power_off"])
def test_process_can_stop_at_any_disk_operation(stop: str) -> None:
    """A kill between the steps of an atomic replacement leaves the old or the new content."""
    seen: set[tuple[bytes | None, bool]] = set()
    for after in range(1, 16):
        with World(after) as world:
            on_disk(world, _durable_file)
            disk = world.hosts["node"].disk
            die = getattr(world, stop)
            disk.at_operation = (disk.operations + after, lambda die=die: die("node"))
            on_disk(world, lambda files: write_atomically(files, "/d/f", b"new"))
            world.kill("node")
            content = disk.files()
            seen.add((content.get("/d/f"), "/d/f.tmp" in content))
    assert {content for content, _ in seen} == {b"old", b"new"}
    assert (b"old", True) in seen, "it never stopped between the write and the rename"


def test_sync_covers_only_earlier_writes() -> None:
    """Bytes appended while a sync runs are not made durable by it."""
    survived: set[bytes | None] = set()
    for seed in SEEDS:
        with World(seed) as world:

            async def main(environment: Environment) -> None:
                write_atomically(environment.files, "/f", b"")
                file = environment.files.open("/f")
                file.write_at(0, b"before")
                syncing = asyncio.ensure_future(asyncio.to_thread(file.sync))
                await asyncio.sleep(5e-3)
                file.write_at(6, b"during")
                await syncing
                await asyncio.sleep(100)

            world.host("node").disk.slowness = 100.0  # a sync takes 20 ms or more
            world.start("node", main)
            world.run(20)
            world.power_off("node")
            survived.add(world.hosts["node"].disk.files()["/f"])
    assert all(content and content.startswith(b"before") for content in survived)
    assert b"before" in survived and b"beforeduring" in survived


def test_durable_files_are_certain_to_survive(make_world: MakeWorld) -> None:
    def use(files: Files) -> None:
        _durable_file(files)
        files.open("/d/f").write_at(0, b"NEW")
        files.open("/d/g", create=True).sync()

    world = make_world()
    on_disk(world, use)
    assert world.hosts["node"].disk.durable_files() == {"/d/f": b"old"}
    assert world.hosts["node"].disk.files() == {"/d/f": b"NEW", "/d/g": b""}
