"""riverrun consume with several topics, patterns, times and ends, against a real node."""

import json
import time
from datetime import datetime

import pytest

from riverrun.admin.times import parse_moment
from tests.cli.commands import SECONDS_MAX, Cli

HOUR_MS = 3_600_000
NOW_MS = 1_800_000_000_000


def write_at(cli: Cli, topic: str, *records: tuple[int, str], partition: int = 0) -> None:
    """Write values with timestamps."""
    lines = [
        json.dumps({"value": value, "timestamp": timestamp, "partition": partition})
        for timestamp, value in records
    ]
    cli.write(topic, "\n".join(lines), "--format", "json", "--quiet")


def test_several_topics_are_read_to_their_ends(cli: Cli, name: str) -> None:
    for topic in (f"{name}-a", f"{name}-b"):
        cli.run("topics", "create", topic, "-p", "2")
        cli.write(topic, "0\n", "--partition", "0")
        cli.write(topic, "1\n", "--partition", "1")
    read = cli.process(
        "consume", f"{name}-a", f"{name}-b", "--from-beginning", "--until-end",
        "--format", "%t.%p.%v\\n",
    )  # fmt: skip
    assert sorted(read.split()) == [f"{name}-{x}.{p}.{p}" for x in "ab" for p in (0, 1)]


def test_a_pattern_matches_whole_names_and_no_internal_topics(cli: Cli, name: str) -> None:
    for topic in (f"{name}-1", f"{name}-22", f"x-{name}-1"):
        cli.write(topic, f"{topic}\n")
    read = cli.read_all("--pattern", f"{name}-\\d+", "--from-beginning", "--until-end")
    assert sorted(read.split()) == [f"{name}-1", f"{name}-22"]
    cli.process("consume", f"{name}-1", "--group", f"{name}-g", "--timeout", "0", "--quiet")
    topics = cli.run("topics", "list", "--internal")
    assert "__consumer_offsets" in topics
    read = cli.read_all("--pattern", ".*", "-o", "earliest", "--until-end", "--format", "%t\\n")
    assert "__consumer_offsets" not in read


def test_topics_that_match_later_are_read_from_their_start(cli: Cli, name: str) -> None:
    with cli.started("consume", "--pattern", f"{name}-.*") as reader:
        reader.notice(f"no topics that match {name}-.* yet")
        cli.write(f"{name}-1", "one\n")
        reader.notice(f"topic {name}-1 is new")
        assert reader.line() == "one"
        cli.write(f"{name}-2", "two\n")
        assert reader.line() == "two"
        cli.write(f"{name}-1", "three\n")
        assert reader.line() == "three"
        assert reader.stop() == 0


@pytest.mark.parametrize("group", [[], ["--group", "deleted"]], ids=["alone", "group"])
def test_a_deleted_topic_does_not_stop_the_others_of_a_pattern(
    cli: Cli, name: str, group: list[str]
) -> None:
    cli.run("topics", "create", f"{name}-1")
    cli.run("topics", "create", f"{name}-2")
    words = ["consume", "--pattern", f"{name}-.*", "--from-beginning", *group]
    with cli.started(*words) as reader:
        cli.write(f"{name}-1", "one\n")
        assert reader.line() == "one"
        cli.run("topics", "delete", f"{name}-1", "--yes")
        reader.notice(f"topic {name}-1 was deleted")
        cli.write(f"{name}-2", "two\n")
        assert reader.line() == "two"
        assert reader.stop() == 0


def test_a_group_reads_the_topics_of_a_pattern(cli: Cli, name: str) -> None:
    cli.write(f"{name}-1", "one\n")
    words = ["consume", "--pattern", f"{name}-.*", "--group", name, "--from-beginning"]
    with cli.started(*words) as reader:
        assert reader.line() == "one"
        cli.write(f"{name}-2", "two\n")
        reader.notice(f"topic {name}-2 is new")
        reader.notice(f"reading {name}-1-0, {name}-2-0")
        assert reader.line() == "two"
        assert reader.stop() == 0
    cli.write(f"{name}-2", "three\n")
    assert cli.process(*words, "--until-end", "--quiet") == "three\n"


def test_a_group_member_that_finds_a_new_topic_skips_none_of_its_records(
    cli: Cli, name: str
) -> None:
    """Although it starts with new records in the topics that exist."""
    cli.write(f"{name}-1", "old\n")
    with cli.started("consume", "--pattern", f"{name}-.*", "--group", name) as reader:
        reader.notice("reading partitions 0")
        cli.write(f"{name}-2", "first\nsecond\n")
        assert [reader.line(), reader.line()] == ["first", "second"]
        assert reader.stop() == 0


def test_a_group_reads_to_the_end_and_continues_there(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name, "-p", "3")
    for partition in "012":
        cli.write(name, f"{partition}\n", "--partition", partition)
    words = ["consume", name, "--group", name, "--from-beginning", "--until-end", "--quiet"]
    assert sorted(cli.process(*words).split()) == ["0", "1", "2"]
    assert cli.process(*words) == ""
    cli.write(name, "more\n", "--partition", "1")
    assert cli.process(*words) == "more\n"


def test_a_range_of_times_selects_records(cli: Cli, name: str) -> None:
    cli.run("topics", "create", name, "-p", "2")
    now_ms = time.time_ns() // 1_000_000
    for partition in (0, 1):
        hours = [(now_ms - ago * HOUR_MS, f"{partition}-{ago}") for ago in (5, 4, 3, 2, 1)]
        write_at(cli, name, *hours, partition=partition)

    def read(*words: str) -> list[str]:
        return sorted(cli.read(name, "--until-end", *words).split())

    assert read("--since", "2h30m") == ["0-1", "0-2", "1-1", "1-2"]
    assert read("--since", "4h5m", "--until", "2h30m") == ["0-3", "0-4", "1-3", "1-4"]
    moment = datetime.fromtimestamp((now_ms - 90 * 60_000) / 1000).isoformat()
    assert read("--since", moment) == ["0-1", "1-1"]
    assert read("--from-beginning", "--until", str(now_ms - 4 * HOUR_MS)) == ["0-5", "1-5"]
    assert read("--since", "1s") == []


def test_the_past_end_of_a_range_needs_no_other_end(cli: Cli, name: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    write_at(cli, name, (now_ms - 2 * HOUR_MS, "old"), (now_ms, "new"))
    assert cli.read(name, "--from-beginning", "--until", "1h") == "old\n"


def test_a_group_commits_nothing_behind_the_end_of_the_range(cli: Cli, name: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    write_at(cli, name, (now_ms - 2 * HOUR_MS, "old"), (now_ms, "new"))
    words = ["consume", name, "--group", name, "--from-beginning", "--quiet"]
    assert cli.process(*words, "--until", "1h") == "old\n"
    assert cli.process(*words, "--until-end") == "new\n"


def test_a_future_end_is_awaited(cli: Cli, name: str) -> None:
    """Records are printed until then; a record of a later time ends its partition."""
    cli.run("topics", "create", name, "-p", "2")
    end_ms = time.time_ns() // 1_000_000 + 3000
    words = ["consume", name, "--from-beginning", "--until", str(end_ms)]
    with cli.started(*words) as reader:
        cli.write(name, "in time\n", "--partition", "0")
        assert reader.line() == "in time"
        write_at(cli, name, (end_ms + 5000, "too late"), partition=1)
        assert reader.process.wait(SECONDS_MAX) == 0
        assert time.time_ns() // 1_000_000 >= end_ms
        assert reader.line() == ""


def test_records_carry_their_leader_epoch_and_size(cli: Cli, name: str) -> None:
    cli.write(name, "k:value\n", "--key-separator", ":", "--header", "h=12")
    read = cli.read(name, "--from-beginning", "--until-end", "--format", "%t %e %s %h\\n")
    assert read == f"{name} 0 9 h=12\n"
    fields = json.loads(cli.read(name, "-o", "0", "--until-end", "--json"))
    assert (fields["leader_epoch"], fields["size"]) == (0, 9)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("1700000000000", 1_700_000_000_000),
        ("90s", NOW_MS - 90_000),
        ("1h30m", NOW_MS - 5_400_000),
        ("1.5d", NOW_MS - 129_600_000),
        ("250ms", NOW_MS - 250),
        ("2w", NOW_MS - 1_209_600_000),
        ("1970-01-01T00:01:00Z", 60_000),
        ("1970-01-01T01:01:00.5+01:00", 60_500),
    ],
)
def test_moments(text: str, milliseconds: int) -> None:
    assert parse_moment(text, NOW_MS) == milliseconds


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2026, 11, 17, 10).timestamp() * 1000
    assert parse_moment("2026-11-17T10:00", NOW_MS) == local


@pytest.mark.parametrize(
    "text", ["", "h", "-5", "1x", "1 h", "1969-12-31T00:00:00Z", "100000w", "9" * 30, "soon"]
)
def test_texts_that_are_no_moments_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a duration|before 1970"):
        parse_moment(text, NOW_MS)
