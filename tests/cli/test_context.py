"""`riverrun context`: the file, the address that a command uses, and errors with the name."""

import json
import os
import stat
import subprocess
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from riverrun.cli.main import build
from riverrun.cli.support.contexts import choose, config_path
from tests.cli.commands import Cli
from tests.processes import executable, free_ports


class Contexts:
    """`riverrun` with a configuration file of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "folder" / "config.toml"
        self.env: dict[str, str | None] = {
            "RIVERRUN_CONFIG": str(self.path),
            "RIVERRUN_BOOTSTRAP": None,
            "RIVERRUN_CONTEXT": None,
        }

    def result(self, *words: str, **env: str) -> Result:
        return CliRunner().invoke(build(list(words)), list(words), env={**self.env, **env})

    def run(self, *words: str, code: int = 0, **env: str) -> str:
        result = self.result(*words, **env)
        assert result.exit_code == code, (words, result.output, result.exception)
        return result.stdout if code == 0 else result.stderr

    def content(self) -> dict[str, object]:
        return tomllib.loads(self.path.read_text())


@pytest.fixture
def contexts(tmp_path: Path) -> Contexts:
    return Contexts(tmp_path)


def test_contexts_are_added_used_listed_and_removed(contexts: Contexts) -> None:
    contexts.run("context", "add", "staging", "--bootstrap", "a:1,b:2")
    contexts.run("context", "add", "production", "-b", "c:3", "--use")
    rows = contexts.run("context", "list").splitlines()
    assert rows[-2:] == ["production\tc:3\tyes", "staging\ta:1,b:2\t-"]
    assert "staging is the current" in contexts.run("context", "use", "staging")
    shown = json.loads(contexts.run("context", "show", "--json"))
    assert shown == {"context": "staging", "bootstrap": "a:1,b:2", "source": str(contexts.path)}
    assert "no current context now" in contexts.run("context", "remove", "staging")
    assert json.loads(contexts.run("context", "list", "--json")) == {
        "file": str(contexts.path),
        "current": None,
        "contexts": [{"name": "production", "bootstrap": "c:3"}],
    }
    contexts.run("context", "use", "production")
    contexts.run("context", "use", "--none")
    assert "default" in contexts.run("context", "show")


def test_the_first_source_of_the_address_decides(contexts: Contexts) -> None:
    """Flag, variable, current context, default."""
    for name in ("flag", "variable", "current"):
        contexts.run("context", "add", name, "--bootstrap", f"{name}:1")
    contexts.run("context", "use", "current")
    variables = {"RIVERRUN_CONFIG": str(contexts.path)}

    def address(flag: str | None = None, **given: str) -> str:
        return choose({**variables, **given}, flag).address

    both = {"RIVERRUN_BOOTSTRAP": "other:1", "RIVERRUN_CONTEXT": "variable"}
    assert address("flag", **both) == "flag:1"
    assert address(**both) == "other:1"
    assert address(RIVERRUN_CONTEXT="variable") == "variable:1"
    assert address() == "current:1"
    contexts.run("context", "use", "--none")
    assert address() == "127.0.0.1:9092"


def test_commands_reach_the_cluster_of_the_context(contexts: Contexts, cli: Cli) -> None:
    contexts.run("context", "add", "here", "--bootstrap", cli.bootstrap)
    contexts.run("context", "add", "gone", "--bootstrap", "127.0.0.1:1", "--use")
    words = ("cluster", "status", "--json")
    assert json.loads(contexts.run(*words, "--context", "here"))["healthy"] is True
    assert json.loads(contexts.run(*words, RIVERRUN_CONTEXT="here"))["healthy"] is True
    assert json.loads(contexts.run(*words, "--bootstrap", cli.bootstrap))["healthy"] is True
    contexts.run("context", "use", "here")
    assert json.loads(contexts.run(*words))["healthy"] is True


def test_a_group_that_is_a_command_takes_a_context(contexts: Contexts, cli: Cli) -> None:
    contexts.run("context", "add", "here", "--bootstrap", cli.bootstrap)
    contexts.run("context", "add", "gone", "--bootstrap", "127.0.0.1:1", "--use")
    moves = ["cluster", "moves"]
    found = json.loads(contexts.run(*moves, "--context", "here", "--json"))
    assert (found["plans"], found["moves"]) == ([], [])
    contexts.run(*moves, "cancel", "--all", "--context", "here", "--yes")
    contexts.run(*moves, "--context", "here", "cancel", "--all", "--yes")
    told = contexts.run(*moves, "--context", "here", "--bootstrap", "a:1", code=2)
    assert "use either --bootstrap or --context" in told


def test_errors_name_the_context(contexts: Contexts) -> None:
    address = f"127.0.0.1:{free_ports(1)}"
    contexts.run("context", "add", "staging", "--bootstrap", address)
    told = contexts.run("topics", "list", "--context", "staging", code=3)
    assert "cannot reach the cluster of context staging" in told
    told = contexts.run("topics", "list", "--context", "stagin", code=4)
    assert "there is no context stagin" in told and "did you mean staging?" in told
    assert "there is no context x" in contexts.run("topics", "list", code=4, RIVERRUN_CONTEXT="x")
    contexts.path.write_text('[contexts.odd]\nbootstrap = "nowhere"\n[contexts.none]\n')
    told = contexts.run("topics", "list", "--context", "odd", code=2)
    assert "context odd in" in told and "'nowhere' is not an address" in told
    assert "context none in" in contexts.run("context", "use", "none", code=2)


@pytest.mark.parametrize(
    ("words", "code", "saying"),
    [
        (["context", "add", "a b", "-b", "x:1"], 2, "letters, digits"),
        (["context", "add", "a", "-b", "x"], 2, "not an address"),
        (["context", "add", "known", "-b", "x:1"], 1, "--replace"),
        (["context", "use"], 2, "name a context, or use --none"),
        (["context", "use", "known", "--none"], 2, "name a context, or use --none"),
        (["context", "remove", "nosuch"], 4, "there is no context nosuch"),
        (["topics", "list", "--context", "known", "-b", "x:1"], 2, "either"),
    ],
)
def test_mistakes_are_explained(
    contexts: Contexts, words: list[str], code: int, saying: str
) -> None:
    contexts.run("context", "add", "known", "--bootstrap", "k:1")
    before = contexts.path.read_text()
    assert saying in contexts.run(*words, code=code)
    assert contexts.path.read_text() == before


@pytest.mark.parametrize(
    ("text", "saying"),
    [
        (b"current = ", "not TOML"),
        (b"\xff", "not UTF-8"),
        (b"contexts = 3", "contexts are tables"),
        (b"contexts.a = 3", "contexts are tables"),
        (b"current = 3", "name of a context"),
    ],
)
def test_an_invalid_file_is_named(contexts: Contexts, text: bytes, saying: str) -> None:
    contexts.path.parent.mkdir()
    contexts.path.write_bytes(text)
    for words in (["topics", "list"], ["context", "add", "a", "-b", "x:1"]):
        told = contexts.run(*words, code=2)
        assert str(contexts.path) in told and saying in told
    assert contexts.path.read_bytes() == text


def test_replacing_keeps_unknown_entries_and_comments(contexts: Contexts) -> None:
    contexts.path.parent.mkdir()
    contexts.path.write_text(
        '# mine\n[contexts.a]\nbootstrap = "x:1"  # first\n[contexts.a.client]\nlinger = 5\n'
    )
    contexts.run("context", "add", "a", "--bootstrap", "y:2", "--replace", "--use")
    text = contexts.path.read_text()
    assert "# mine" in text and "# first" in text
    assert contexts.content() == {
        "current": "a",
        "contexts": {"a": {"bootstrap": "y:2", "client": {"linger": 5}}},
    }


def test_only_the_user_can_read_the_file(contexts: Contexts) -> None:
    contexts.path.parent.mkdir()
    contexts.path.write_text("")
    contexts.path.chmod(0o644)
    contexts.run("context", "add", "a", "--bootstrap", "x:1")
    assert stat.S_IMODE(contexts.path.stat().st_mode) == 0o600
    assert [path.name for path in contexts.path.parent.iterdir()] == ["config.toml"]


def test_a_link_to_the_file_stays_a_link(contexts: Contexts, tmp_path: Path) -> None:
    contexts.path.parent.mkdir()
    (tmp_path / "dotfiles").mkdir()
    contexts.path.symlink_to(tmp_path / "dotfiles" / "riverrun.toml")
    contexts.run("context", "add", "a", "--bootstrap", "x:1")
    assert contexts.path.is_symlink()
    assert "x:1" in (tmp_path / "dotfiles" / "riverrun.toml").read_text()


def test_concurrent_changes_are_all_kept(contexts: Contexts) -> None:
    names = [f"c{number}" for number in range(6)]

    def add(name: str) -> int:
        return subprocess.run(
            [executable(), "context", "add", name, "--bootstrap", "x:1"],
            env={**os.environ, "RIVERRUN_CONFIG": str(contexts.path)},
            capture_output=True, timeout=60, check=False,
        ).returncode  # fmt: skip

    with ThreadPoolExecutor(len(names)) as pool:
        assert list(pool.map(add, names)) == [0] * len(names)
    assert sorted(contexts.content()["contexts"]) == names  # type: ignore[call-overload]


def test_the_shell_completes_names(contexts: Contexts) -> None:
    for name in ("staging", "store", "production"):
        contexts.run("context", "add", name, "--bootstrap", "x:1")
    for words in ("topics list --context st", "context use st", "context show st"):
        line = f"riverrun {words}"
        done = subprocess.run(
            [executable()],
            env={
                **os.environ, "RIVERRUN_CONFIG": str(contexts.path), "COMP_WORDS": line,
                "COMP_CWORD": str(len(line.split()) - 1), "_RIVERRUN_COMPLETE": "complete_bash",
            },
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.stdout.split(), done.stderr) == (["staging", "store"], ""), words


def test_topics_of_the_context_are_completed(contexts: Contexts, cli: Cli, name: str) -> None:
    cli.run("topics", "create", name)
    contexts.run("context", "add", "here", "--bootstrap", cli.bootstrap)
    line = f"riverrun consume --context here {name}"
    environment = {key: text for key, text in os.environ.items() if key != "RIVERRUN_BOOTSTRAP"}
    done = subprocess.run(
        [executable()],
        env={
            **environment, "RIVERRUN_CONFIG": str(contexts.path), "COMP_WORDS": line,
            "COMP_CWORD": "4", "_RIVERRUN_COMPLETE": "complete_bash",
        },
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr) == ([name], "")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_matters_only_to_those_who_name_a_context(tmp_path: Path) -> None:
    (tmp_path / "riverrun").mkdir(mode=0)
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert choose(home, None).address == "127.0.0.1:9092"
    with pytest.raises(typer.Exit):
        choose(home, "staging")
    (tmp_path / "riverrun").chmod(0o700)


def test_the_file_is_in_the_xdg_configuration_directory() -> None:
    home = {"RIVERRUN_CONFIG": "", "XDG_CONFIG_HOME": "relative"}
    assert config_path(home) == Path.home() / ".config/riverrun/config.toml"
    assert config_path({"XDG_CONFIG_HOME": "/x"}) == Path("/x/riverrun/config.toml")
    assert config_path({"RIVERRUN_CONFIG": "/y/c.toml"}) == Path("/y/c.toml")
