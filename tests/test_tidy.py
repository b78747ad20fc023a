"""Rules of style that a machine can keep (see CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "riverrun"
SPARK_SOURCE = ROOT / "src" / "pyspark_riverrun"
GENERATED = ("wire/messages", "metadata/schema", "coordinator/schema")
PURE_PACKAGES = (
    "storage",
    "metadata",
    "raft",
    "replication",
    "coordinator",
    "cluster",
    "placement",
    "records",
    "wire",
)
# The modules of pure packages that may await. Everything else takes values and returns values.
ASYNC_MODULES = (
    "cluster/active_controller.py",
    "coordinator/coordinators.py",
    "coordinator/led_shards.py",
    "coordinator/shard_runner.py",
    "coordinator/transactions/coordinators.py",
    "metadata/log_store.py",
    "metadata/metadata_log.py",
    "metadata/publisher.py",
    "metadata/snapshotter.py",
    "raft/driver.py",
    "replication/flusher.py",
    "replication/follower/fetcher.py",
    "replication/isr_sender.py",
    "replication/moves/copy_check.py",
    "replication/moves/rollback.py",
    "replication/moves/verification.py",
    "replication/repair/repairer.py",
    "storage/digests/digester.py",
    "storage/log_creator.py",
    "storage/log_manager.py",
    "storage/recovery/directory_recovery.py",
    "storage/scrubbing/scrubber.py",
)
MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
FOLDER_MODULES_MAX = 22
MODULES = sorted(
    path
    for root in (SOURCE, SPARK_SOURCE)
    for path in root.rglob("*.py")
    if not any(part in path.as_posix() for part in GENERATED)
)
TESTS = sorted(ROOT.joinpath("tests").rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_has_a_docstring_and_a_limited_size(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MODULE_LINES_MAX
    tree = ast.parse(text)
    if tree.body:
        assert ast.get_docstring(tree), "a module opens by saying what it is for"
    for function in functions(tree):
        assert function.end_lineno is not None
        lines = function.end_lineno - function.body[0].lineno + 1
        assert lines <= FUNCTION_LINES_MAX, f"{function.name} has {lines} lines"


@pytest.mark.parametrize("package", PURE_PACKAGES)
def test_only_listed_modules_of_a_pure_package_await(package: str) -> None:
    waiting = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.AsyncFunctionDef)
    for path in sorted((SOURCE / package).rglob("*.py")):
        if path.relative_to(SOURCE).as_posix() in ASYNC_MODULES:
            continue
        tree = ast.parse(path.read_text())
        protocols = {
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            and any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)
            for inner in ast.walk(node)
        }
        found = [n for n in ast.walk(tree) if isinstance(n, waiting) and n not in protocols]
        assert not found, f"{name_of(path)}:{found[0].lineno} awaits"


@pytest.mark.parametrize("path", [*MODULES, *TESTS], ids=name_of)
def test_no_unfinished_markers_are_left(path: Path) -> None:
    if path == Path(__file__):
        return
    text = path.read_text()
    for word in ("TODO", "FIXME", "XXX"):
        assert word not in text, f"{word} in {name_of(path)}"


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_tests_do_not_sleep(path: Path) -> None:
    """A test waits for something to happen, with a limit; virtual time may pass."""
    for function in functions(ast.parse(path.read_text())):
        if function.name.startswith("test_"):
            inside = [node for part in function.body for node in ast.walk(part)]
            calls = [ast.unparse(node.func) for node in inside if isinstance(node, ast.Call)]
            assert "time.sleep" not in calls, f"{function.name} sleeps"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_module_swallows_all_exceptions(path: Path) -> None:
    """The router alone turns a handler's bug into the end of a connection; the simulation, which
    stands for the interpreter's own loop, hands errors on as that does."""
    if path.is_relative_to(SOURCE / "simulation") or path.name == "router.py":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ExceptHandler):
            caught = node.type
            is_broad = caught is None or (
                isinstance(caught, ast.Name) and caught.id in ("Exception", "BaseException")
            )
            reraises = any(isinstance(n, ast.Raise) for n in ast.walk(node))
            assert not is_broad or reraises, f"line {node.lineno}"


DIALECT = re.compile(
    r"\b(whoever|whomever|anew|for ever|shall|be it|many a|amiss|lest|naught)\b"
    r"|, for (it|they|there|what|who|whoever|otherwise|else|then|nobody|nothing) ",
    re.IGNORECASE,
)
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """The comments and strings of a module, or the lines of a document, with their numbers."""
    if path.suffix == ".py":
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type in (tokenize.COMMENT, tokenize.STRING):
                    yield token.start[0], token.string
    else:
        yield from enumerate(path.read_text().splitlines(), start=1)


@pytest.mark.parametrize("path", [*MODULES, *TESTS, *DOCUMENTS], ids=name_of)
def test_prose_is_plain_english(path: Path) -> None:
    if path == Path(__file__):
        return
    for line, text in prose_of(path):
        found = DIALECT.search(" ".join(text.split()))
        assert found is None, f"{name_of(path)}:{line}: {found[0]!r} is not plain English"


def test_a_class_name_exists_once() -> None:
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name_of(path))
    repeated = {name: found for name, found in places.items() if len(found) > 1}
    assert not repeated


@pytest.mark.parametrize("folder", [SOURCE, SPARK_SOURCE], ids=name_of)
def test_a_folder_has_few_modules(folder: Path) -> None:
    """More than this many files want sub-folders. One file per API is the exception."""
    for path in [folder, *(each for each in folder.rglob("*") if each.is_dir())]:
        if path.name in ("requests", "messages", "schema", "private", "__pycache__"):
            continue
        modules = [each for each in path.glob("*.py") if each.name != "__init__.py"]
        assert len(modules) <= FOLDER_MODULES_MAX, f"{name_of(path)} has {len(modules)} modules"
