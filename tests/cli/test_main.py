"""The command table: complete, with examples, and with shell completion."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from riverrun.cli.main import COMMANDS, build

NEEDS_EXAMPLES = [
    ["topics", "list"], ["topics", "create"], ["topics", "describe"], ["topics", "alter"],
    ["topics", "delete"], ["produce"], ["consume"], ["groups", "list"], ["groups", "describe"],
    ["groups", "reset-offsets"], ["groups", "delete"], ["bench", "produce"], ["bench", "consume"],
    ["bench", "end-to-end"], ["topics", "trim"], ["groups", "delete-offsets"],
    ["transactions", "list"], ["transactions", "describe"], ["transactions", "hanging"],
    ["transactions", "abort"],
    ["cluster", "status"], ["cluster", "nodes"], ["cluster", "describe"], ["cluster", "logdirs"],
    ["cluster", "elect-leaders"], ["cluster", "unregister"], ["cluster", "config", "get"],
    ["cluster", "config", "set"], ["cluster", "config", "unset"], ["quorum", "status"],
    ["quorum", "add"], ["quorum", "remove"], ["top"], ["generate", "prometheus"],
    ["doctor"],
]  # fmt: skip
GROUPS = [
    [], ["topics"], ["groups"], ["transactions"], ["bench"], ["cluster"], ["cluster", "config"],
    ["quorum"], ["context"], ["pipeline"], ["audit"], ["chaos"], ["generate"],
]  # fmt: skip
WITHOUT_CLUSTER = [
    ["up"], ["down"], ["start"], ["context", "add"], ["context", "use"], ["context", "list"],
    ["context", "show"], ["context", "remove"], ["dump-log"], ["simulate"], ["bench", "compare"],
    ["generate", "alerts"], ["generate", "grafana"], ["help"],
]  # fmt: skip


def invoke(*words: str, env: dict[str, str] | None = None) -> str:
    result = CliRunner().invoke(build(list(words)), list(words), env=env)
    assert result.exit_code == 0, result.output
    return result.output


def test_help_lists_every_command_in_order() -> None:
    lines = invoke("--help").partition("Commands:")[2].splitlines()
    assert [line.split()[0] for line in lines if line.strip()] == list(COMMANDS)


@pytest.mark.parametrize("words", NEEDS_EXAMPLES + WITHOUT_CLUSTER, ids=" ".join)
def test_help_teaches_with_examples(words: list[str]) -> None:
    text = invoke(*words, "-h")
    assert f"riverrun {' '.join(words)}" in text.partition("\n\n")[2]
    assert ("RIVERRUN_BOOTSTRAP" in text) == (words in NEEDS_EXAMPLES)


def test_help_fits_a_terminal() -> None:
    for words in NEEDS_EXAMPLES + WITHOUT_CLUSTER:
        assert max(map(len, invoke(*words, "--help").splitlines())) <= 100


@pytest.mark.parametrize("words", GROUPS, ids=" ".join)
def test_descriptions_of_commands_are_not_cut(words: list[str]) -> None:
    commands = invoke(*words, "-h", env={"COLUMNS": "80"}).partition("Commands:")[2]
    assert commands
    assert "..." not in commands


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("topics create", "TOPIC..."),
        ("topics alter", "TOPIC"),
        ("topics list", "[PATTERN...]"),
        ("topics trim", "TOPIC[:0,1]..."),
        ("consume", "[TOPIC...]"),
        ("groups describe", "GROUP..."),
        ("quotas set", "QUOTA=VALUE..."),
        ("quotas remove", "[QUOTA...]"),
        ("transactions abort", "[TRANSACTIONAL-ID]"),
        ("docs", "[PAGE]"),
        ("cluster config set", "NAME=VALUE..."),
        ("quorum add", "NODE"),
        ("dump-log", "FILE..."),
        ("chaos run", "SCENARIO..."),
        ("audit replicas", "[TOPIC...]"),
        ("help", "[COMMAND...]"),
    ],
)
def test_usage_names_arguments_in_upper_case(command: str, arguments: str) -> None:
    usage = invoke(*command.split(), "-h").splitlines()[0]
    assert usage.endswith(f" {command} [OPTIONS] {arguments}")


def test_version_and_help_are_commands_too() -> None:
    assert invoke("version") == invoke("--version")
    assert invoke("help") == invoke("--help").replace("root", "riverrun", 1)
    assert invoke("help", "topics", "create").startswith("Usage: riverrun topics create [OPTIONS]")
    unknown = CliRunner().invoke(build(["help", "nosuch"]), ["help", "nosuch"])
    assert (unknown.exit_code, "No such command 'nosuch'" in unknown.output) == (2, True)


def complete(line: str) -> list[str]:
    """The completions that bash would get for this line."""
    env = {
        **os.environ,
        "_RIVERRUN_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    done = subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "riverrun")],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


def test_the_shell_completes_commands_and_options() -> None:
    assert complete("riverrun ") == list(COMMANDS)
    assert complete("riverrun groups re") == ["reset-offsets"]
    assert complete("riverrun consume t --from") == ["--from-beginning"]


def test_completion_scripts_can_be_shown() -> None:
    done = subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "riverrun"), "--show-completion", "bash"],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "complete_bash" in done.stdout, done.stderr


@pytest.mark.parametrize("module", ["riverrun", "riverrun.cli"])
def test_the_package_runs_as_a_program(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("riverrun ")


def test_a_command_loads_neither_the_node_nor_rich_nor_pydantic() -> None:
    program = "import sys\nfrom riverrun.cli.main import build\nbuild(['up'])\nprint(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    loaded = found.stdout.decode().split()
    unwanted = ("pydantic", "rich", "asyncio", "structlog", "riverrun.server")
    assert [name for name in unwanted if name in loaded] == []
