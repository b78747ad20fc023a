"""The world: virtual time, order of events, randomness, processes and isolation."""

import asyncio
import concurrent.futures
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable

import pytest

from riverrun.simulation.failures import EscapeError, NodeFailure
from riverrun.simulation.world import Environment, World

MakeWorld = Callable[..., World]


def test_events_run_in_order_of_time_and_then_of_scheduling(make_world: MakeWorld) -> None:
    world = make_world()
    seen: list[str] = []
    for when, name in ((0.2, "c"), (0.1, "a"), (0.1, "b")):
        world.at(when, seen.append, name)
    world.run(1.0)
    assert seen == ["a", "b", "c"]
    assert world.now == 1.0


def test_random_streams_are_independent_and_depend_on_the_seed() -> None:
    with World(1) as world, World(1) as same, World(2) as other:
        draws = [w.stream("a").random() for w in (world, same, other)]
        assert draws[0] == draws[1] != draws[2]
        assert world.stream("a").random() != world.stream("b").random()


def _chatter(seed: int) -> str:
    """Two nodes that exchange messages, sleep and wait for sets of tasks."""

    async def serve(environment: Environment) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(64):
                writer.write(data[::-1])
            writer.close()

        server = await asyncio.start_server(answer, "0.0.0.0", 7)
        await server.serve_forever()

    async def ask(environment: Environment) -> None:
        async def one(number: int) -> None:
            await asyncio.sleep(random.random())
            reader, writer = await asyncio.open_connection("server", 7)
            writer.write(f"{number} {uuid.uuid4()} {time.time()}".encode())
            await reader.read(64)
            writer.write_eof()
            await reader.read()
            writer.close()

        tasks = {asyncio.create_task(one(number)) for number in range(8)}
        while tasks:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await task

    with World(seed) as world:
        world.start("server", serve)
        world.start("client", ask)
        world.run(5)
        assert world.hosts["client"].process is None, "the client is done"
        return world.fingerprint()


def test_equal_seeds_give_equal_fingerprints() -> None:
    prints = [_chatter(seed) for seed in (1, 2, 3, 1, 2, 3)]
    assert prints[:3] == prints[3:]
    assert len(set(prints)) == 3


def test_fingerprint_is_equal_in_another_process() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_world as t; print(t._chatter(5))"
    )
    here = os.path.dirname(__file__)
    seen = {
        subprocess.run(
            [sys.executable, "-c", program, here],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        ).stdout
        for _ in range(2)
    }
    assert len(seen) == 1


def test_callbacks_run_in_asyncio_order(make_world: MakeWorld) -> None:
    seen: list[str] = []

    async def main(environment: Environment) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.001, seen.append, "timer")
        loop.call_soon(seen.append, "first")
        loop.call_soon(seen.append, "second")
        loop.call_later(5, seen.append, "never").cancel()
        await asyncio.sleep(0.01)

    world = make_world()
    world.start("node", main)
    world.run(10)
    assert seen == ["first", "second", "timer"]


def test_input_runs_before_timers_after_a_pause(
    make_world: MakeWorld,
) -> None:
    seen: list[str] = []

    async def main(environment: Environment) -> None:
        asyncio.get_running_loop().call_later(1.5, seen.append, "timer")
        await asyncio.sleep(100)

    world = make_world()
    loop = world.start("node", main)
    world.run(1)
    world.pause("node", 3)
    world.at(2.0, loop.arrive, seen.append, "input")
    world.run(2.9)
    assert seen == []
    world.run(0.2)
    assert seen == ["input", "timer"]


def test_killed_process_runs_no_finally_block(make_world: MakeWorld) -> None:
    seen: list[str] = []

    async def main(environment: Environment) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            seen.append("finally")

    world = make_world()
    world.start("node", main)
    world.run(1)
    world.kill("node")
    world.run(200)
    assert seen == []
    world.start("node", main)
    world.run(1)
    assert world.hosts["node"].starts == 2


def test_signal_runs_its_handler(make_world: MakeWorld) -> None:
    seen: list[str] = []

    async def main(environment: Environment) -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await stop.wait()
        seen.append("stopped")

    world = make_world()
    loop = world.start("node", main)
    world.run(1)
    assert loop.signal(signal.SIGTERM)
    world.run(1)
    assert seen == ["stopped"]
    assert world.hosts["node"].process is None


def test_wall_clock_jumps_and_monotonic_time_does_not(make_world: MakeWorld) -> None:
    seen: list[tuple[int, float, float]] = []

    async def main(environment: Environment) -> None:
        for _ in range(2):
            seen.append((environment.clock.now_ms(), environment.clock.monotonic(), time.time()))
            await asyncio.sleep(1)

    world = make_world()
    world.start("node", main)
    world.at(0.5, world.jump_clock, "node", -3600.0)
    world.run(3)
    (wall, monotonic, foreign), (wall_later, monotonic_later, foreign_later) = seen
    assert -3_599_100 < wall_later - wall < -3_598_900
    assert abs(foreign_later - foreign + 3599) < 0.1
    assert 1 <= monotonic_later - monotonic < 1.1


def test_each_start_has_its_own_deterministic_randomness(make_world: MakeWorld) -> None:
    def draw(world: World) -> list[uuid.UUID]:
        seen: list[uuid.UUID] = []

        async def main(environment: Environment) -> None:
            seen.append(environment.randomness.uuid())
            assert 0 <= environment.randomness.below(3) < 3
            assert 1 <= environment.randomness.between(1, 2) <= 2

        for _ in range(2):
            world.start("node", main)
            world.run(1)
        return seen

    first, second = draw(make_world(1)), draw(make_world(1))
    assert first == second
    assert first[0] != first[1]


def test_exception_of_a_node_fails_the_run(make_world: MakeWorld) -> None:
    async def main(environment: Environment) -> None:
        await asyncio.sleep(1)
        raise ValueError("broken")

    world = make_world(7)
    world.start("node", main)
    with pytest.raises(NodeFailure, match="broken") as caught:
        world.run(2)
    assert "seed 7" in caught.value.__notes__[0]
    assert any("FAILED" in line for line in world.story)


@pytest.mark.parametrize(
    "escape",
    [
        lambda: threading.Thread(target=print).start(),
        socket.socket,
        lambda: subprocess.run(["true"], check=False),
        lambda: concurrent.futures.ThreadPoolExecutor().submit(print),
        lambda: os.open("/tmp/escaped", os.O_RDWR | os.O_CREAT),
        lambda: time.sleep(1),
    ],
)
def test_real_resources_are_forbidden(make_world: MakeWorld, escape: Callable[[], object]) -> None:
    caught: list[EscapeError] = []

    async def main(environment: Environment) -> None:
        try:
            escape()
        except EscapeError as error:
            caught.append(error)

    world = make_world()
    world.start("node", main)
    world.run(1)
    assert len(caught) == 1
    threading.Thread(target=lambda: None).start()  # allowed outside of a run


def test_pool_runs_as_many_jobs_as_its_executor_has_threads(make_world: MakeWorld) -> None:
    spans: list[tuple[float, float]] = []

    async def main(environment: Environment) -> None:
        loop = asyncio.get_running_loop()
        executor = concurrent.futures.ThreadPoolExecutor(max_workers=1)
        file = environment.files.open("/file", create=True)

        def work() -> None:
            began = world.now
            file.sync()
            spans.append((began, world.now))

        await asyncio.gather(*(loop.run_in_executor(executor, work) for _ in range(4)))
        executor.shutdown()

    world = make_world()
    world.start("node", main)
    world.run(5)
    assert len(spans) == 4
    for (_, end), (begin, _) in itertools.pairwise(spans):
        assert end <= begin


def test_loop_runs_while_a_thread_waits_for_the_disk(make_world: MakeWorld) -> None:
    seen: list[str] = []

    async def main(environment: Environment) -> None:
        file = environment.files.open("/file", create=True)

        def work() -> str:
            seen.append("sync begins")
            file.sync()
            seen.append("sync ends")
            return "result"

        async def tick() -> None:
            while "sync ends" not in seen:
                seen.append("tick")
                await asyncio.sleep(20e-6)

        ticking = asyncio.create_task(tick())
        assert await asyncio.to_thread(work) == "result"
        await ticking

    world = make_world()
    world.start("node", main)
    world.run(5)
    begin, end = seen.index("sync begins"), seen.index("sync ends")
    assert "tick" in seen[begin:end]


def test_thread_of_a_killed_process_stops_at_its_next_operation(make_world: MakeWorld) -> None:
    seen: list[str] = []

    async def main(environment: Environment) -> None:
        file = environment.files.open("/file", create=True)

        def work() -> None:
            for _ in range(1000):
                file.sync()
                seen.append("synced")

        await asyncio.to_thread(work)

    world = make_world()
    world.start("node", main)
    world.run_until(lambda: len(seen) == 3, 5)
    world.kill("node")
    world.run(5)
    assert len(seen) == 3


def test_exception_of_a_thread_is_raised_in_its_caller(make_world: MakeWorld) -> None:
    async def main(environment: Environment) -> None:
        with pytest.raises(FileNotFoundError):
            await asyncio.to_thread(environment.files.open, "/absent")

    world = make_world()
    world.start("node", main)
    world.run(1)
    assert world.hosts["node"].process is None
