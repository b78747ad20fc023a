"""What executors on other machines need, as one archive: our packages and those they import.

Much smaller than a packed virtualenv, for workers of Spark have Spark: no jars, nothing that only
drivers use. It brings no interpreter: a Python of the same minor version has to be on the path of
the workers, as Spark demands the same version anyway. Nothing in it needs to be executable, for
Spark forgets modes when it unpacks some kinds of archives.
"""

from __future__ import annotations

import os
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

NAME: Final = "environment"
PYTHON: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"
MODULES: Final = ("riverrun", "pyspark_riverrun")
"""Packed from where they are imported: an editable installation lists no files."""
NEEDED: Final = ("riverrun", "pyarrow", "numpy", "pandas", "fastavro")
BROUGHT_BY_SPARK: Final = ("pyspark", "py4j")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def pack(path: Path, more: Iterable[str] = ()) -> int:
    """Write the archive (.tar, or .tar.gz, which is slower); gives the number of packages.

    ``more`` names further packages, for functions of users; they come with what they need.
    PackageNotFoundError when one is not installed.
    """
    names = _with_requirements((*NEEDED, *more))
    mode = "w:gz" if path.name.endswith(("gz", "tgz")) else "w"
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    with tarfile.open(aside, mode) as archive:  # type: ignore[call-overload]
        for module in MODULES:
            root = Path(str(import_module(module).__file__)).parent
            archive.add(root, module, filter=_without_caches)
        for name in names:
            for source, place in _files(name):
                archive.add(source, place, recursive=False)
    aside.replace(path)
    return len(names)


def settings(path: str) -> dict[str, str]:
    """What a session says so that executors use an archive."""
    return {"spark.archives": f"{path}#{NAME}", "spark.executorEnv.PYTHONPATH": f"./{NAME}"}


def prepare_driver() -> None:
    """Spark runs an interpreter by the same words in the driver and in executors, and there is no
    path that is right in both: so it is a name that each finds on its own path.
    """
    folder = Path(sys.executable).parent
    if not (folder / PYTHON).exists():
        raise RuntimeError(f"there is no {PYTHON} in {folder}, by which Spark would run Python")
    os.environ["PATH"] = f"{folder}:{os.environ.get('PATH', '')}"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = PYTHON


def _with_requirements(names: Iterable[str]) -> list[str]:
    found: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop(0)
        plain = name.lower().replace("_", "-")
        if plain in found or plain in BROUGHT_BY_SPARK:
            continue
        found[plain] = None
        waiting += _requirements(plain, is_needed=name in names)
    return list(found)


def _requirements(name: str, *, is_needed: bool) -> list[str]:
    """Those that are installed; others are for other systems, or nobody has missed them."""
    try:
        wanted = distribution(name).requires or []
    except PackageNotFoundError:
        if is_needed:
            raise
        return []
    matches = [_NAME.match(text) for text in wanted if "extra ==" not in text]
    return [match.group() for match in matches if match is not None and _is_installed(match)]


def _is_installed(match: re.Match[str]) -> bool:
    try:
        distribution(match.group())
    except PackageNotFoundError:
        return False
    return True


def _files(name: str) -> Iterator[tuple[Path, str]]:
    for file in distribution(name).files or []:
        place = str(file)
        source = Path(str(file.locate()))
        is_ours = place.startswith(MODULES) or place.endswith(".pth")
        is_outside = place.startswith(("..", "/"))
        if not is_ours and not is_outside and "__pycache__" not in place and source.is_file():
            yield source, place


def _without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if entry.name.endswith("__pycache__") else entry
