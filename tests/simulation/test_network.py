"""The simulated network: order, delays, partitions and resets."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from riverrun.simulation.failures import BufferReused
from riverrun.simulation.world import Environment, World

MakeWorld = Callable[..., World]
PORT = 7


class Recorder(asyncio.Protocol):
    """Records received data and events."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.pieces: list[int] = []
        self.events: list[str] = []
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.pieces.append(len(data))

    def eof_received(self) -> bool:
        self.events.append("eof")
        return False

    def connection_lost(self, error: BaseException | None) -> None:
        self.events.append(f"lost {type(error).__name__}")

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class Pair:
    """A world with a listener on ``server`` and a connection to it from ``client``."""

    def __init__(self, world: World, *, here: Any = None, there: Any = None) -> None:
        self.world = world
        self.here: Any = here or Recorder()
        self.there: Any = there or Recorder()
        self.error: BaseException | None = None
        world.start("server", self._serve)
        world.start("client", self._connect)
        world.run(0.5)

    def has_received(self, count: int) -> bool:
        """Whether the server has received this many bytes."""
        return len(self.there.received) >= count

    async def _serve(self, environment: Environment) -> None:
        server = await environment.loop.create_server(lambda: self.there, "0.0.0.0", PORT)
        await server.serve_forever()

    async def _connect(self, environment: Environment) -> None:
        await asyncio.sleep(0.1)
        try:
            await environment.loop.create_connection(lambda: self.here, "server", PORT)
        except OSError as error:
            self.error = error
        await asyncio.sleep(1000)


def test_bytes_arrive_in_order_in_different_pieces(make_world: MakeWorld) -> None:
    pair = Pair(make_world())
    sent = b"".join(b"%d," % number for number in range(2000))
    for at in range(0, len(sent), 100):
        pair.here.transport.write(sent[at : at + 100])
    pair.world.run(1)
    assert bytes(pair.there.received) == sent
    assert any(size != 100 for size in pair.there.pieces)


def test_each_message_has_its_own_delay(make_world: MakeWorld) -> None:
    world = make_world()
    pair = Pair(world)
    arrivals = []
    for _ in range(20):
        began, count = world.now, len(pair.there.received)
        pair.here.transport.write(b"x")
        world.run_until(partial(pair.has_received, count + 1), 1)
        arrivals.append(world.now - began)
    assert len(set(arrivals)) == 20
    assert min(arrivals) >= world.network.conditions.latency_min


def test_paused_reader_pauses_the_writer(make_world: MakeWorld) -> None:
    pair = Pair(make_world())
    pair.there.transport.pause_reading()
    pair.here.transport.write(bytes(1_000_000))
    assert pair.here.events == ["made", "pause"]
    pair.world.run(5)
    assert pair.there.received == b""
    assert pair.here.transport.get_write_buffer_size() > 0
    pair.there.transport.resume_reading()
    pair.world.run(5)
    assert len(pair.there.received) == 1_000_000
    assert pair.here.events == ["made", "pause", "resume"]
    assert pair.here.transport.get_write_buffer_size() == 0


def test_buffered_protocol_receives_at_most_its_buffer_size(make_world: MakeWorld) -> None:
    class Buffered(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.buffer = bytearray(10)
            self.sizes: list[int] = []
            self.received = bytearray()

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.buffer

        def buffer_updated(self, nbytes: int) -> None:
            self.sizes.append(nbytes)
            self.received += self.buffer[:nbytes]

    pair = Pair(make_world(), there=Buffered())
    pair.here.transport.write(bytes(range(100)))
    pair.world.run(1)
    assert bytes(pair.there.received) == bytes(range(100))
    assert max(pair.there.sizes) <= 10


def test_partition_delays_bytes_until_it_heals(make_world: MakeWorld) -> None:
    pair = Pair(make_world())
    partition = pair.world.network.partition(["client"], ["server"])
    pair.here.transport.write(b"there")
    pair.there.transport.write(b"back")
    pair.world.run(5)
    assert pair.there.received == b"" and pair.here.received == b""
    partition.heal()
    pair.world.run(1)
    assert pair.there.received == b"there" and pair.here.received == b"back"


def test_one_way_partition_does_not_block_the_other_direction(make_world: MakeWorld) -> None:
    pair = Pair(make_world())
    pair.world.network.partition(["client"], ["server"], one_way=True)
    pair.here.transport.write(b"there")
    pair.there.transport.write(b"back")
    pair.world.run(5)
    assert pair.there.received == b"" and pair.here.received == b"back"


def test_overlapping_partitions_heal_independently(make_world: MakeWorld) -> None:
    pair = Pair(make_world())
    first = pair.world.network.partition(["client"], ["server"])
    second = pair.world.network.partition(["server"], ["client"], one_way=True)
    first.heal()
    pair.there.transport.write(b"back")
    pair.world.run(3)
    assert pair.here.received == b""
    second.heal()
    second.heal()
    pair.world.run(3)
    assert pair.here.received == b"back"


def test_connection_times_out_in_a_long_partition(make_world: MakeWorld) -> None:
    pair = Pair(make_world())
    pair.world.network.partition(["client"], ["server"])
    pair.here.transport.write(b"x")
    pair.world.run(30)
    assert pair.here.events[-1] == "lost TimeoutError"
    assert pair.there.events == ["made"], "the side that sends nothing does not time out"


def test_connect_succeeds_after_a_partition_heals(make_world: MakeWorld) -> None:
    world = make_world()
    world.host("server"), world.host("client")
    partition = world.network.partition(["client"], ["server"])
    pair = Pair(world)
    assert pair.here.events == []
    partition.heal()
    world.run(5)
    assert pair.here.events == ["made"]


def test_connect_is_refused_without_a_listener_and_times_out_without_power(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    errors: list[type[BaseException]] = []

    async def main(environment: Environment) -> None:
        for host in ("empty", "dead", "unknown"):
            try:
                await environment.loop.create_connection(Recorder, host, PORT)
            except OSError as error:
                errors.append(type(error))
        await asyncio.sleep(1000)

    world.host("empty")
    world.host("dead")
    world.power_off("dead")
    world.start("client", main)
    world.run(120)
    assert errors[:2] == [ConnectionRefusedError, TimeoutError]
    assert errors[2].__name__ == "gaierror"


def test_close_delivers_all_bytes_and_then_eof(make_world: MakeWorld) -> None:
    pair = Pair(make_world())
    pair.here.transport.write(bytes(500_000))
    pair.here.transport.close()
    pair.here.transport.write(b"too late")
    pair.world.run(5)
    assert len(pair.there.received) == 500_000
    assert pair.there.events == ["made", "eof", "lost NoneType"]
    assert pair.here.events[-1] == "lost NoneType"


def test_half_closed_connection_delivers_the_other_direction(make_world: MakeWorld) -> None:
    class Patient(Recorder):
        def eof_received(self) -> bool:
            self.events.append("eof")
            return True

    pair = Pair(make_world(), there=Patient())
    pair.here.transport.write_eof()
    pair.world.run(1)
    assert pair.there.events == ["made", "eof"]
    pair.there.transport.write(b"answer")
    pair.world.run(1)
    assert pair.here.received == b"answer"


def test_abort_resets_the_peer(make_world: MakeWorld) -> None:
    pair = Pair(make_world())
    pair.here.transport.abort()
    pair.world.run(1)
    assert pair.here.events == ["made", "lost NoneType"]
    assert pair.there.events == ["made", "lost ConnectionResetError"]


def test_network_reset_breaks_both_ends(make_world: MakeWorld) -> None:
    pair = Pair(make_world())
    pair.world.network.reset_connections("client", "server")
    pair.world.run(1)
    assert pair.here.events[-1] == pair.there.events[-1] == "lost ConnectionResetError"


def test_kill_closes_connections_and_power_loss_resets_them_after_the_restart() -> None:
    endings = set()
    for seed in range(10):
        with World(seed) as world:
            pair = Pair(world)
            world.kill("server")
            world.run(1)
            endings.add(pair.here.events[-1])
    assert endings == {"lost NoneType", "lost ConnectionResetError"}

    with World(1) as world:
        pair = Pair(world)
        world.power_off("server")
        world.run(1)
        pair.here.transport.write(b"hello?")
        world.run(5)
        assert pair.here.events == ["made"]
        world.start("server", pair._serve)
        world.run(1)
        assert pair.here.events == ["made", "lost ConnectionResetError"]


def test_paused_process_still_accepts_connections(make_world: MakeWorld) -> None:
    world = make_world()
    world.host("server")
    world.at(0.05, world.pause, "server", 10.0)
    pair = Pair(world)
    assert pair.here.events == ["made"] and pair.there.events == []
    pair.here.transport.write(b"hello")
    world.run(9)
    assert pair.there.received == b""
    world.run(1)
    assert pair.there.received == b"hello"


def test_slow_link_multiplies_delays(make_world: MakeWorld) -> None:
    took = {}
    for factor in (1.0, 100.0):
        world = make_world()
        pair = Pair(world)
        world.network.slow_down("client", "server", factor)
        began = world.now
        pair.here.transport.write(b"x" * 1000)
        world.run_until(partial(pair.has_received, 1000), 60)
        took[factor] = world.now - began
    assert took[100.0] > 10 * took[1.0]


def test_buffer_reuse_before_delivery_fails_the_run(make_world: MakeWorld) -> None:
    pair = Pair(make_world())
    buffer = bytearray(b"hello")
    pair.here.transport.write(memoryview(buffer))
    buffer[:] = b"HELLO"
    with pytest.raises(BufferReused, match="5 bytes"):
        pair.world.run(1)


def test_buffer_may_be_reused_after_delivery(make_world: MakeWorld) -> None:
    pair = Pair(make_world())
    buffer = bytearray(b"hello")
    pair.here.transport.writelines([memoryview(buffer), b" world"])
    with pytest.raises(BufferError):
        buffer.clear()  # as with uvloop, the view is held
    pair.world.run(1)
    buffer[:] = b"HELLO"
    pair.here.transport.write(memoryview(buffer))
    pair.world.run(1)
    assert pair.there.received == b"hello worldHELLO"


def test_exception_of_a_protocol_aborts_the_connection(make_world: MakeWorld) -> None:
    class Broken(Recorder):
        def data_received(self, data: bytes) -> None:
            raise ValueError("bad input")

    world = make_world()
    world.tolerates_failures_on = lambda host: host == "server"
    pair = Pair(world, there=Broken())
    pair.here.transport.write(b"x")
    world.run(1)
    assert pair.here.events[-1] == "lost ConnectionResetError"
    assert any("bad input" in line for line in world.story)


def test_port_can_be_reused_after_its_listener_closes(make_world: MakeWorld) -> None:
    async def main(environment: Environment) -> None:
        loop = environment.loop
        server = await loop.create_server(Recorder, "0.0.0.0", PORT)
        with pytest.raises(OSError, match="in use"):
            await loop.create_server(Recorder, "0.0.0.0", PORT)
        server.close()
        await server.wait_closed()
        again = await loop.create_server(Recorder, "0.0.0.0", PORT)
        assert again.sockets[0].getsockname()[1] == PORT
        chosen = await loop.create_server(Recorder, "0.0.0.0", 0)
        assert chosen.sockets[0].getsockname()[1] > 0

    world = make_world()
    world.start("server", main)
    world.run(1)
    assert world.hosts["server"].process is None
