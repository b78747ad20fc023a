"""CRC-32C, as records, indexes and snapshots have it: the C function of the ``crc32c`` library.

The library's package also loads a command line and the metadata of installed packages, forty
modules that take a node longer to load than its own storage. So only the compiled part is loaded,
and the package where that is not found: it promises the function, and not where it lies.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crc32c import crc32c

__all__ = ["crc32c"]


def _compiled_part() -> Any:
    package = PathFinder.find_spec("crc32c")
    if package is None or package.submodule_search_locations is None:
        return None
    part = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if part is None or part.loader is None:
        return None
    module = module_from_spec(part)
    part.loader.exec_module(module)
    return module


if not TYPE_CHECKING:
    crc32c = getattr(_compiled_part(), "crc32c", None)
    if crc32c is None:
        from crc32c import crc32c
