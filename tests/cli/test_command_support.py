"""Code shared by commands: lines, tables, flags, pipes."""

import asyncio
import contextlib
import io
import os
import pty
import tempfile
from collections.abc import Iterator

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from riverrun.admin.groups.admin import Target, new_offset
from riverrun.admin.records.formats import BadInput
from riverrun.admin.requests import alike, in_words
from riverrun.admin.tables import Bad, ByteCount, Good, Table, bytes_in_words, counted
from riverrun.cli.groups.command import parse_states
from riverrun.cli.records.descriptors import OutputFailed, Reader, Writer
from riverrun.cli.records.producing import LINE_BYTES_MAX, LineBuffer
from riverrun.cli.support.options import USAGE, parse_datetime, parse_settings, parse_topics
from riverrun.cli.support.output import DEFAULT_LAYOUT, Layout, plain_lines, plain_row, print_pretty
from riverrun.client.partitions import EARLIEST
from riverrun.model.errors import ErrorCode, KafkaError


@contextlib.contextmanager
def refused() -> Iterator[None]:
    with pytest.raises(typer.Exit) as end:
        yield
    assert end.value.exit_code == USAGE


@settings(deadline=None)
@given(st.lists(st.binary(max_size=8), max_size=8), st.lists(st.integers(1, 5), min_size=1))
def test_lines_do_not_depend_on_chunk_boundaries(parts: list[bytes], sizes: list[int]) -> None:
    text = b"\n".join(parts)
    buffer, lines, at = LineBuffer(), list[bytes](), 0
    while at < len(text):
        size = sizes[at % len(sizes)]
        lines += buffer.feed(text[at : at + size])
        at += size
    lines += buffer.finish()
    expected = text.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert lines == [line.removesuffix(b"\r") for line in expected]
    assert buffer.number == len(lines)


def test_an_endless_line_is_rejected() -> None:
    buffer = LineBuffer()
    list(buffer.feed(b"x" * LINE_BYTES_MAX))
    with pytest.raises(BadInput, match="line 1 is longer than"):
        list(buffer.feed(b"x"))


def test_plain_rows_escape_tabs_and_newlines() -> None:
    assert plain_row(["a\tb\n", 5, None, ""]) == "a\\tb\\n\t5\t-\t"


def printed(table: Table, layout: Layout = DEFAULT_LAYOUT) -> list[str]:
    """The lines on a terminal of 20 columns, without colours."""
    screen = io.StringIO()
    print_pretty(Console(file=screen, width=20), table, layout)
    return screen.getvalue().splitlines()


def test_a_narrow_terminal_loses_no_value() -> None:
    rows: list[tuple[str | int, ...]] = [("1", "127.0.0.1:20501", "x" * 60, 5), ("2", "-", "y", 6)]
    table = Table(columns=("node", "endpoint", "directory", "lag"), rows=list(rows))
    assert [line.split() for line in printed(table)] == [
        ["NODE", "ENDPOINT", "DIRECTORY", "LAG"],
        ["1", "127.0.0.1:20501", "x" * 60, "5"],
        ["2", "-", "y", "6"],
    ]


def test_a_long_last_value_adds_no_spaces_to_other_rows() -> None:
    table = Table(columns=("group", "topics"), rows=[("a", "x" * 60), ("b", "y")])
    assert printed(table) == ["GROUP  TOPICS", f"a      {'x' * 60}", "b      y"]


def test_wide_columns_are_shown_on_demand() -> None:
    table = Table(columns=("node", "in sync", "id"), rows=[("1", 2, "abc")], wide=("id",))
    assert printed(table) == ["NODE  IN-SYNC", "1           2"]
    wide = Layout(is_wide=True)
    assert printed(table, wide) == ["NODE  IN-SYNC  ID", "1           2  abc"]
    assert list(plain_lines(table)) == ["NODE\tIN-SYNC", "1\t2"]
    assert list(plain_lines(table, wide)) == ["NODE\tIN-SYNC\tID", "1\t2\tabc"]


def test_plain_rows_of_a_kind_have_headings_too() -> None:
    table = Table(kind="node", columns=("node", "size"), rows=[("1", ByteCount(2048))])
    assert list(plain_lines(table)) == ["KIND\tNODE\tSIZE", "node\t1\t2048"]
    assert list(plain_lines(table, Layout(has_headings=False))) == ["node\t1\t2048"]
    assert list(plain_lines(Table(columns=("", ""), rows=[("health", "fine")]))) == ["health\tfine"]
    assert list(plain_lines(Table(columns=("node",)))) == ["NODE"], "headings without rows"
    assert list(plain_lines(Table(columns=("node",)), Layout(has_headings=False))) == []


def test_control_characters_do_not_reach_a_terminal() -> None:
    table = Table(columns=("group",), rows=[("a\x1b[2Jb\n",)])
    assert printed(table) == ["GROUP", "a\\x1b[2Jb\\n"]


def test_good_and_bad_texts_have_colours_on_a_terminal_only() -> None:
    table = Table(columns=("", ""), rows=[("health", Good("healthy")), ("state", Bad("fenced"))])
    out = io.StringIO()
    print_pretty(Console(file=out, force_terminal=True, color_system="standard"), table)
    assert "\x1b[32mhealthy\x1b[0m" in out.getvalue()
    assert "\x1b[31mfenced\x1b[0m" in out.getvalue()
    assert plain_row(table.rows[0]) == "health\thealthy"


def test_a_table_without_headings_has_no_line_for_them() -> None:
    assert printed(Table(columns=("", ""), rows=[("health", "fine")])) == ["health  fine"]


@pytest.mark.parametrize(
    ("rack", "lines"),
    [(None, ["NODE  LAG", "1       5"]), ("r1", ["NODE  RACK  LAG", "1     r1      5"])],
)
def test_an_empty_optional_column_is_hidden_on_a_terminal(
    rack: str | None, lines: list[str]
) -> None:
    table = Table(columns=("node", "rack", "lag"), rows=[("1", rack, 5)], optional=("rack",))
    assert printed(table) == lines


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 2**30, "3.0 GiB"), (2**42, "4.0 TiB")],
)
def test_bytes_in_words(size: int, words: str) -> None:
    assert bytes_in_words(size) == words


def test_counted() -> None:
    assert [counted(1, "record"), counted(1200, "record")] == ["1 record", "1,200 records"]


def test_errors_have_their_name_and_a_remedy() -> None:
    text = in_words(KafkaError(ErrorCode.NON_EMPTY_GROUP, "group g has members"))
    assert text.startswith("group g has members (NON_EMPTY_GROUP)\n  Remedy: stop its members")
    assert in_words(KafkaError(ErrorCode.INVALID_CONFIG, "bad")) == "bad (INVALID_CONFIG)"
    assert alike("gretings", ["greetings", "other"]) == "; did you mean greetings?"
    assert alike("x", ["greetings"]) == ""


def test_setting_without_equals_sign_is_rejected() -> None:
    assert parse_settings(["a=1", "b = x=y "]) == {"a": "1", "b": "x=y"}
    with refused():
        parse_settings(["a"], "--config")


def test_topic_may_list_partitions() -> None:
    assert parse_topics(["a", "b:0,2"]) == {"a": None, "b": frozenset({0, 2})}
    for text in ("a:", "a:x", ":1", "a:1,"):
        with refused():
            parse_topics([text])


def test_unknown_states_are_rejected() -> None:
    assert parse_states(["stable", "Empty"]) == ["Stable", "Empty"]
    with refused():
        parse_states(["Foo"])


def test_datetime_with_zone_becomes_milliseconds() -> None:
    assert parse_datetime("1970-01-01T00:01:00Z") == 60_000
    assert parse_datetime("1970-01-01T01:01:00.5+01:00") == 60_500
    for text in ("yesterday", "1969-12-31T00:00:00Z"):
        with refused():
            parse_datetime(text)


@pytest.mark.parametrize(
    ("target", "at_time", "new"),
    [
        (Target(offset=50), None, 50),
        (Target(offset=500), None, 100),
        (Target(offset=1), None, 10),
        (Target(shift=5), None, 25),
        (Target(shift=-50), None, 10),
        (Target(time=EARLIEST), 10, 10),
        (Target(time=1234), 30, 30),
        (Target(time=1234), -1, 100),
    ],
)
def test_new_offsets_stay_within_the_log(target: Target, at_time: int | None, new: int) -> None:
    assert new_offset(target, old=20, start=10, end=100, at_time=at_time) == new


def test_shifting_an_uncommitted_partition_starts_at_the_end() -> None:
    assert new_offset(Target(shift=-3), old=None, start=0, end=100, at_time=None) == 97


def test_a_full_pipe_blocks_the_writer_and_not_the_loop() -> None:
    async def scenario() -> None:
        reading, writing = os.pipe()
        data = os.urandom(1_000_000)
        write = asyncio.create_task(Writer(writing).write(data))
        await asyncio.sleep(0)
        assert not write.done()
        reader, received = Reader(reading), bytearray()
        while len(received) < len(data):
            received += await reader.read()
        await write
        os.close(writing)
        assert received == data
        assert await reader.read() == b""
        os.close(reading)

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_idle_writer_detects_a_closed_pipe() -> None:
    async def scenario() -> None:
        reading, writing = os.pipe()
        waiting = asyncio.create_task(Writer(writing).wait_reader_closed())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        os.close(reading)
        await waiting
        with pytest.raises(BrokenPipeError):
            await Writer(writing).write(b"x")
        os.close(writing)

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_reader_polls_with_a_timeout() -> None:
    async def scenario() -> None:
        reading, writing = os.pipe()
        reader = Reader(reading)
        assert not await reader.is_ready_within(0.001)
        os.write(writing, b"x")
        assert await reader.is_ready_within(0.001)
        os.close(reading)
        os.close(writing)

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_files_and_terminals_are_supported() -> None:
    async def scenario() -> None:
        with tempfile.TemporaryFile() as file:
            await Writer(file.fileno()).write(b"x" * 100_000)
            file.seek(0)
            assert await Reader(file.fileno()).read() == b"x" * 100_000
        master, terminal = pty.openpty()
        await Writer(terminal).write(b"hello")
        assert await Reader(master).read() == b"hello"
        os.close(terminal)
        os.close(master)

    asyncio.run(asyncio.wait_for(scenario(), 20))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has /dev/full")
def test_a_full_disk_is_reported() -> None:
    with open("/dev/full", "wb") as full, pytest.raises(OutputFailed, match="No space left"):
        asyncio.run(Writer(full.fileno()).write(b"x"))
