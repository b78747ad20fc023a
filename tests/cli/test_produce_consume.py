"""riverrun produce and riverrun consume, as processes with pipes, against a real node."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.commands import Cli
from tests.compatibility.confluent import producer, read_partition, send
from tests.processes import Server, free_ports


def test_lines_round_trip(cli: Cli, name: str) -> None:
    done = cli.done("produce", name, text="one\ntwo\r\n\nlast without end")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.startswith(f"4 records to {name}".encode())
    read = cli.process("consume", name, "--from-beginning", "--until-end")
    assert read == "one\ntwo\n\nlast without end\n"


def test_keys_headers_and_compression_reach_another_client(cli: Cli, name: str) -> None:
    words = ["--key-separator", "\\t", "--header", "a=1", "--header", "b"]
    cli.write(name, "k1\tv1\nk2\tv2\twith tab\n", *words, "--compression", "zstd", "--quiet")
    messages = read_partition(cli.bootstrap, name, 2)
    assert [(message.key(), message.value()) for message in messages] == [
        (b"k1", b"v1"), (b"k2", b"v2\twith tab"),
    ]  # fmt: skip
    assert messages[0].headers() == [("a", b"1"), ("b", None)]


def test_json_round_trips(cli: Cli, name: str) -> None:
    send(cli.bootstrap, name, [b"\xff\x00", None, "ü".encode()])  # type: ignore[list-item]
    lines = cli.read(name, "--json", "-o", "earliest", "--until-end")
    rows = [json.loads(line) for line in lines.splitlines()]
    assert [row.get("value_base64", row.get("value")) for row in rows] == ["/wA=", None, "ü"]
    summary = cli.process("produce", f"{name}-copy", "--format", "json", "--json", text=lines)
    assert json.loads(summary)["partitions"] == [
        {"partition": 0, "records": 3, "first_offset": 0, "end_offset": 3}
    ]
    copied = cli.read(f"{name}-copy", "--json", "-o", "earliest", "--until-end")
    for row, copy in zip(rows, map(json.loads, copied.splitlines()), strict=True):
        assert {**copy, "topic": name} == row


def test_keys_use_kafkas_partitioner(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name, "--partitions", "7")
    keys = [f"key-{number}" for number in range(50)]
    cli.write(name, "".join(f"{key}:ours\n" for key in keys), "-K", ":")
    theirs = producer(cli.bootstrap, partitioner="murmur2_random")
    for key in keys:
        theirs.produce(name, b"theirs", key=key)
    theirs.flush(10)
    read = cli.read(name, "--from-beginning", "--until-end", "--format", "%k %p %v\\n")
    places: dict[str, dict[str, str]] = {"ours": {}, "theirs": {}}
    for line in read.splitlines():
        key, partition, value = line.split(" ")
        places[value][key] = partition
    assert len(places["ours"]) == 50
    assert places["ours"] == places["theirs"]
    assert len(set(places["ours"].values())) > 1


def test_many_lines_make_few_batches(cli: Cli, node: Server, name: str) -> None:
    text = "".join(f"line {number}\n" for number in range(50_000))
    cli.write(name, text, "--compression", "lz4")
    assert cli.read(name, "--from-beginning", "--until-end") == text
    segment = node.data / f"{name}-0" / f"{0:020}.log"
    rows = [json.loads(row) for row in cli.run("dump-log", str(segment), "--json").splitlines()]
    batches = [row for row in rows if row["kind"] == "batch"]
    assert sum(row["count"] for row in batches) == 50_000
    assert 1 <= len(batches) <= 5
    assert {row["compression"] for row in batches} == {"lz4"}


def test_where_to_start_and_when_to_end(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name, "-p", "2")
    for partition in ("0", "1"):
        text = "".join(f"{partition}.{number}\n" for number in range(5))
        cli.write(name, text, "--partition", partition)

    def read(*words: str) -> list[str]:
        return sorted(cli.read(name, *words).split())

    assert read("--offset", "3", "--until-end") == ["0.3", "0.4", "1.3", "1.4"]
    assert read("--offset", "-1", "--until-end") == ["0.4", "1.4"]
    assert read("--offset", "-99", "--until-end", "-p", "1") == [f"1.{n}" for n in range(5)]
    assert read("--from-beginning", "-n", "2", "--partition", "0") == ["0.0", "0.1"]
    assert read("--timeout", "0") == []


def test_a_timeout_before_enough_records_is_a_failure(cli: Cli, name: str) -> None:
    cli.write(name, "one\n")
    done = cli.done("consume", name, "--from-beginning", "-n", "2", "--timeout", "0.2")
    assert (done.returncode, done.stdout) == (1, b"one\n")
    assert b"1 of 2 records arrived before the timeout" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_following_until_stopped(cli: Cli, name: str, number: signal.Signals) -> None:
    """Both sides stay open: a line is sent, read and printed while they run."""
    cli.run("topics", "create", name)
    with (
        cli.started("produce", name) as writer,
        cli.started("consume", name, "--from-beginning") as reader,
    ):
        for text in ("first", "second"):
            writer.say(f"{text}\n")
            assert reader.line() == text
        assert reader.stop(number) == 0
        assert reader.process.stdout is not None
        assert reader.process.stderr is not None
        assert reader.process.stdout.read() == b""
        assert reader.process.stderr.read() == b""
        writer.say("third, without end")
        assert writer.stop(number) == 0
        writer.notice("3 records")
    read = cli.read(name, "--from-beginning", "--until-end")
    assert read == "first\nsecond\nthird, without end\n"


def test_a_closed_pipe_ends_consume_quietly(cli: Cli, name: str) -> None:
    """Without further output that could fail."""
    cli.write(name, "one\n")
    done = subprocess.run(
        f"{cli.executable} consume {name} --from-beginning | head -1; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", env=cli.env, capture_output=True, timeout=30,
        check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (b"one\n0\n", b"")


def test_a_slow_reader_gets_everything(cli: Cli, name: str) -> None:
    text = "".join(f"{number:0100}\n" for number in range(3000))
    cli.write(name, text)
    with cli.started("consume", name, "--from-beginning", "-n", "3000") as reader:
        assert reader.process.stdout is not None
        read = reader.process.stdout.read(1)  # the rest waits in a pipe of 64 KB
        assert reader.process.poll() is None
        while part := reader.process.stdout.read(65536):
            read += part
        assert read.decode() == text
        assert reader.process.wait(10) == 0


def test_a_bad_line_is_named_and_earlier_lines_are_written(cli: Cli, name: str) -> None:
    done = cli.done("produce", name, "-K", ":", text="a:1\nb:2\nc\nd:4\n")
    assert done.returncode == 1
    assert b"line 3: no key separator ':' in 'c'" in done.stderr
    assert b"2 records before that were written" in done.stderr
    read = cli.read(name, "--from-beginning", "--until-end", "--format", "%k%v ")
    assert read == "a1 b2 "


def test_a_small_message_limit_gets_smaller_batches(cli: Cli, name: str, tmp_path: Path) -> None:
    cli.run("topics", "create", name, "--config", "max.message.bytes=1000")
    text = "".join(f"{number:050}\n" for number in range(100))
    cli.write(name, text)
    assert cli.read(name, "-o", "0", "--until-end") == text
    (tmp_path / "line").write_text("x" * 2000)
    result = cli.result("produce", name, "--file", str(tmp_path / "line"))
    assert result.exit_code == 1
    assert "MESSAGE_TOO_LARGE" in result.stderr
    assert "--config max.message.bytes=BYTES" in result.stderr


@pytest.mark.parametrize("acks", ["0", "1"])
def test_fewer_acks(cli: Cli, name: str, acks: str) -> None:
    cli.write(name, "one\n", "--acks", acks)
    assert cli.read(name, "--from-beginning", "-n", "1") == "one\n"


@pytest.mark.parametrize(
    ("words", "code", "saying"),
    [
        (["consume", "nosuch"], 4, "there is no topic nosuch"),
        (["consume", "{}", "--partition", "9"], 4, "has 1 partition, numbered from 0"),
        (["consume", "{}", "--offset", "99"], 4, "ends at offset 0"),
        (["consume", "{}", "--offset", "soon"], 2, "expected a number"),
        (["consume", "{}", "--format", "%q"], 2, "%q is unknown"),
        (["consume", "{}", "--group", "g", "--offset", "1"], 2, "reset-offsets"),
        (["consume", "{}", "--from-beginning", "--offset", "1"], 2, "only one of"),
        (["consume", "{}", "--since", "1h", "--from-beginning"], 2, "only one of"),
        (["consume"], 2, "name topics, or use --pattern"),
        (["consume", "{}", "--pattern", "x"], 2, "name topics, or use --pattern"),
        (["consume", "{}", "nosuch"], 4, "there is no topic nosuch"),
        (["consume", "{}", "other", "--partition", "0"], 2, "--partition is for one topic"),
        (["consume", "--pattern", "x", "--partition", "0"], 2, "--partition is for one topic"),
        (["consume", "--pattern", "a(b"], 2, "not a regular expression"),
        (["consume", "--pattern", "nosuch-.*", "--until-end"], 4, "no topics that match nosuch-.*"),
        (["consume", "{}", "--since", "soon"], 2, "--since soon: expected a duration such as"),
        (["consume", "{}", "--until", "-1h"], 2, "--until -1h: expected a duration such as"),
        (["consume", "{}", "--since", "1h", "--until", "2h"], 2, "is not after --since 1h"),
        (["consume", "{}", "--since", "1950-01-01"], 2, "before 1970"),
        (["produce", "{}", "--partition", "9", "--file", "/dev/null"], 4, "there is no 9"),
        (["produce", "{}", "--compression", "zip"], 2, "none, gzip, snappy, lz4, zstd"),
        (["produce", "{}", "--acks", "2"], 2, "0, 1 or all"),
        (["produce", "{}", "--format", "xml"], 2, "text or json"),
        (["produce", "{}", "--format", "json", "-K", ":"], 2, "a field"),
        (["produce", "{}", "--header", "=x"], 2, "NAME=VALUE"),
        (["produce", "{}", "--file", "/no/such/file"], 2, "No such file"),
        (["produce", "bad/name", "--file", "/dev/null"], 1, "INVALID_TOPIC_EXCEPTION"),
    ],
)
def test_mistakes_are_explained(cli: Cli, words: list[str], code: int, saying: str) -> None:
    topic = "test_mistakes"
    cli.run("topics", "create", topic, "--if-not-exists")
    result = cli.result(*(word.format(topic) for word in words))
    assert result.exit_code == code, result.output
    assert saying in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_names_that_are_not_utf8_and_closed_descriptors(cli: Cli) -> None:
    script = f"{cli.executable} produce $'caf\\xe9' </dev/null; echo $?\n"
    script += f"{cli.executable} produce t <&-; echo $?\n"
    script += f"({cli.executable} consume t >&-); echo $?\n"
    done = subprocess.run(
        ["bash", "-c", script], env=cli.env, capture_output=True, timeout=30, check=False
    )
    assert done.stdout == b"2\n2\n2\n"
    assert done.stderr.splitlines() == [
        b"riverrun: 'caf\\udce9' is not UTF-8 text",
        b"riverrun: standard input is closed; use --file",
        b"riverrun: standard output is closed",
    ]


def test_no_cluster(cli: Cli) -> None:
    address = f"127.0.0.1:{free_ports(1)}"
    for words in (["consume", "t"], ["produce", "t", "--file", "/dev/null"]):
        result = cli.result(*words, "--bootstrap", address)
        assert result.exit_code == 3, result.output
        assert "Start one with `riverrun up`" in result.stderr
