"""``df.write.format("riverrun").save()`` appends, as it does with Spark's own Kafka connector.

Spark's default mode is ``error``, which no source written in Python can serve: every ``save()``
would need ``.mode("append")``, and changing the format's name would not be the whole migration.
The writer is made in the user's process, where Spark looks for no plug-in, so ``riverrun.pth``
imports this module at the interpreter's start. It costs one object then; when PySpark's writers are
loaded, naming our format chooses the mode, unless one was chosen.

The same start is the only place where Python processes of Spark can be made quicker (see
``prefer_unpacked``).
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # every interpreter of the environment would pay for importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

FORMAT = "riverrun"
DEFAULT = "error"
"""What PySpark's writers do when nothing is chosen."""
WRITERS = ("pyspark.sql.readwriter", "pyspark.sql.connect.readwriter")
ARCHIVE = "/pyspark/python/lib/pyspark.zip"
"""PySpark for workers, within PySpark as pip installs it."""


def append_by_default(writer: type[Any]) -> None:
    """Let this class of writers append when our format is named and no mode."""
    format_before, mode_before = writer.format, writer.mode

    def mode(self: Any, saveMode: str | None) -> Any:
        self._riverrun_mode = saveMode or getattr(self, "_riverrun_mode", None)
        return mode_before(self, saveMode)

    def format(self: Any, source: str) -> Any:
        named = format_before(self, source)
        if getattr(self, "_riverrun_mode", None) is None:
            is_ours = source.lower() == FORMAT
            if is_ours or getattr(self, "_riverrun_appends", False):
                mode_before(self, "append" if is_ours else DEFAULT)
            self._riverrun_appends = is_ours
        return named

    mode.__doc__, format.__doc__ = mode_before.__doc__, format_before.__doc__
    writer.mode, writer.format = mode, format


class WriterLoader:
    """Loads a module as its own loader does, then looks at its writer; a loader may be shared by
    all modules of an archive, so it is not touched itself."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        writer = getattr(module, "DataFrameWriter", None)
        if writer is not None:
            append_by_default(writer)


class WriterFinder:
    """Finds PySpark's writers as everybody does, and has them looked at when they are loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in WRITERS:
            return None
        # Whoever comes after us is asked, and the list stays as it is: others import meanwhile.
        spec = None
        for finder in list(sys.meta_path):
            if not isinstance(finder, WriterFinder) and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    break
        if spec is not None and spec.loader is not None:
            spec.loader = WriterLoader(spec.loader)  # type: ignore[assignment]
        return spec


def prefer_unpacked(path: list[str]) -> None:
    """Let workers of Spark import PySpark from where pip put it, not from the archive in there that
    Spark names first: Python keeps no bytecode of archives, and would compile PySpark anew at the
    start of every query and every kind of worker (0.7 s of 1 s).
    """
    for entry in path[:]:
        if entry.endswith(ARCHIVE) and entry.removesuffix(ARCHIVE) in path:
            path.remove(entry)


def install() -> None:
    """Idempotent: an interpreter may read several ``.pth`` files that name this module."""
    prefer_unpacked(sys.path)
    if not any(isinstance(finder, WriterFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, WriterFinder())
