"""Where there is no Java, scenarios run without its chain, and say so."""

from pathlib import Path

import pytest

from riverrun.chaos.transactions.java_chain import java_command
from riverrun.cli.benchmark.peers import PeerUnavailable
from tests.peers import find_jdk, need


def test_missing_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PeerUnavailable, match="JDK"):
        java_command()


def test_missing_kafka_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in ("java", "javac"):
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(PeerUnavailable, match="mvn"):
        java_command()


def test_command_names_the_jars_and_the_program() -> None:
    need(find_jdk)
    *_, classpath, program = java_command()
    assert list(Path(classpath).parent.glob("kafka-clients-*.jar"))
    assert Path(program).name == "JavaChain.java" and Path(program).is_file()
