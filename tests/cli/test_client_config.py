"""Properties files of ``--command-config``: unknown names are reported, foreign files refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import Result

from tests.cli.commands import Cli


def listed(cli: Cli, path: Path, text: str, *words: str) -> Result:
    path.write_text(text)
    return cli.result(*(words or ("topics", "list")), "--command-config", str(path))


def test_file_without_any_client_setting_is_refused(cli: Cli, tmp_path: Path) -> None:
    done = listed(cli, tmp_path / "passwd", "root:x:0:0:root:/root:/bin/bash\nhunter2\n")
    assert done.exit_code == 2
    assert "passwd has no setting of a Kafka client" in done.stderr
    assert "hunter2" not in done.stderr
    assert "root:" not in done.stderr


def test_unknown_names_are_named_with_a_suggestion(cli: Cli, tmp_path: Path) -> None:
    text = "security.protocol=PLAINTEXT\nsecurity.protocl=SSL\na=1\nb=2\nc=3\n"
    done = listed(cli, tmp_path / "client.properties", text)
    assert done.exit_code == 0, done.stderr
    assert "security.protocl; did you mean security.protocol?; a; b; and 1 more" in done.stderr


def test_command_of_a_group_with_the_option_warns_once(cli: Cli, tmp_path: Path) -> None:
    text = "security.protocol=PLAINTEXT\nsecurity.protocl=SSL\n"
    words = ("cluster", "moves", "cancel", "--all", "--yes")
    done = listed(cli, tmp_path / "client.properties", text, *words)
    assert done.exit_code == 0, done.stderr
    assert done.stderr.count("warning:") == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing is set\n",
        "bootstrap.servers=x:1\nclient.id=app\nauto.offset.reset=earliest\nlinger.ms=5\n",
        "queue.buffering.max.ms=5\ndebug=broker\nschema.registry.url=http://x\n",
    ],
)
def test_names_of_kafka_clients_are_accepted_silently(cli: Cli, tmp_path: Path, text: str) -> None:
    done = listed(cli, tmp_path / "client.properties", text)
    assert (done.exit_code, done.stderr) == (0, "")
