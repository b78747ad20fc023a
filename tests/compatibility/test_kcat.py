"""kcat, the usual command-line client."""

import json
import subprocess
from collections.abc import Callable

import pytest

from tests.compatibility.conftest import MakeTopic
from tests.peers import find_kcat, need
from tests.processes import Server

pytestmark = pytest.mark.peer


@pytest.fixture
def kcat(server: Server) -> Callable[..., str]:
    program = need(find_kcat)

    def run(*arguments: str, given: str = "") -> str:
        done = subprocess.run(
            [program, "-b", server.bootstrap, *arguments],
            input=given,
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return run


def test_what_is_written_is_read(kcat: Callable[..., str], make_topic: MakeTopic) -> None:
    topic = make_topic()
    lines = "".join(f"key-{number}:value-{number}\n" for number in range(100))
    kcat("-P", "-t", topic, "-p", "0", "-K", ":", "-z", "lz4", "-H", "a=b", given=lines)
    form = "%o %k %s %h\n"
    read = kcat("-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", form).splitlines()
    assert read == [f"{number} key-{number} value-{number} a=b" for number in range(100)]
    tail = kcat("-C", "-t", topic, "-o", "-3", "-e", "-q", "-f", "%o\n")
    assert tail.split() == ["97", "98", "99"]


def test_kcat_lists_the_cluster(
    kcat: Callable[..., str], make_topic: MakeTopic, server: Server
) -> None:
    topic = make_topic(partitions=3)
    listed = json.loads(kcat("-L", "-J", "-t", topic))
    assert [row["name"] for row in listed["brokers"]] == [server.bootstrap]
    assert len(listed["topics"][0]["partitions"]) == 3


def test_offsets_by_time(kcat: Callable[..., str], make_topic: MakeTopic) -> None:
    topic = make_topic()
    kcat("-P", "-t", topic, "-p", "0", given="one\ntwo\n")
    assert f"{topic} [0] offset 0" in kcat("-Q", "-t", f"{topic}:0:1")
    assert f"{topic} [0] offset 2" in kcat("-Q", "-t", f"{topic}:0:-1")


def test_kcat_reads_as_a_group_member(kcat: Callable[..., str], make_topic: MakeTopic) -> None:
    topic = make_topic()
    kcat("-P", "-t", topic, "-p", "0", given="one\ntwo\nthree\n")
    group = f"{topic}-group"
    read = kcat("-G", group, "-e", "-q", "-c", "3", "-X", "auto.offset.reset=earliest", topic)
    assert read.split() == ["one", "two", "three"]
