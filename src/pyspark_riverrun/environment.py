"""Packs the packages that executors on other machines need into one archive.

The archive is much smaller than a packed virtualenv: it has no Spark, because workers have Spark,
and nothing that only drivers use. It has no interpreter either. A Python of the same minor version,
which Spark requires anyway, must be on the path of the workers. No file in it has to be executable,
because Spark loses file modes when it unpacks some kinds of archives.
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
"""Packed from their import location, because an editable installation lists no files."""
NEEDED: Final = (
    "riverrun", "pyarrow", "numpy", "pandas", "fastavro", "protobuf", "grpcio-tools",
    "googleapis-common-protos", "jsonschema-rs",
)  # fmt: skip
PROVIDED_BY_SPARK: Final = ("pyspark", "py4j")
NOT_IMPORTED: Final = ("grpcio", "setuptools")
"""Requirements of grpcio-tools, whose protoc uses neither."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def pack(path: Path, more: Iterable[str] = ()) -> int:
    """Write the archive and return the number of packages in it.

    :param path: ``NAME.tar``, or ``NAME.tar.gz``, which is smaller and slower.
    :param more: further packages that your functions need. Their dependencies are added.
    :raises importlib.metadata.PackageNotFoundError: if a package is not installed.
    """
    names = _with_requirements((*NEEDED, *more))
    mode = "w:gz" if path.name.endswith(("gz", "tgz")) else "w"
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with tarfile.open(temporary, mode) as archive:  # type: ignore[call-overload]
        for module in MODULES:
            root = Path(str(import_module(module).__file__)).parent
            archive.add(root, module, filter=_without_caches)
        for name in names:
            for source, target in _files(name):
                archive.add(source, target, recursive=False)
    temporary.replace(path)
    return len(names)


def settings(path: str) -> dict[str, str]:
    """Spark settings that make executors use an archive."""
    return {"spark.archives": f"{path}#{NAME}", "spark.executorEnv.PYTHONPATH": f"./{NAME}"}


def prepare_driver() -> None:
    """Let Spark find Python by name.

    Spark runs the same command in the driver and in executors. No absolute path is right in both,
    so the command is a name that each finds on its own path.
    """
    folder = Path(sys.executable).parent
    if not (folder / PYTHON).exists():
        raise RuntimeError(f"{folder} has no {PYTHON}, which Spark would run")
    os.environ["PATH"] = f"{folder}:{os.environ.get('PATH', '')}"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = PYTHON


def _with_requirements(names: Iterable[str]) -> list[str]:
    found: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop(0)
        plain = name.lower().replace("_", "-")
        if plain in found or plain in (*PROVIDED_BY_SPARK, *NOT_IMPORTED):
            continue
        found[plain] = None
        waiting += _requirements(plain, is_needed=name in names)
    return list(found)


def _requirements(name: str, *, is_needed: bool) -> list[str]:
    """Installed requirements only. The others are for other systems or optional."""
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
        target = str(file)
        source = Path(str(file.locate()))
        is_ours = target.startswith(MODULES) or target.endswith(".pth")
        is_outside = target.startswith(("..", "/"))
        if not is_ours and not is_outside and "__pycache__" not in target and source.is_file():
            yield source, target


def _without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if entry.name.endswith("__pycache__") else entry
