"""Which incarnations of its topics a sink has read: a topic that is deleted and made again has
other records under the same name and the same offsets, and a checkpoint knows names only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path


class Incarnations:
    """The ids of a sink's topics, beside the pinned schemas."""

    def __init__(self, folder: Path, sink: str) -> None:
        self._path = folder / "topics" / f"{sink}.json"

    def made_again(self, ids: Mapping[str, str]) -> list[str]:
        """Topics that are others now than when the sink read them."""
        known = self._load()
        return sorted(name for name, now in ids.items() if known.get(name, now) != now)

    def store(self, ids: Mapping[str, str]) -> None:
        known = self._load()
        wanted = {**known, **ids}
        if wanted == known:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        aside = self._path.with_suffix(".new")
        with aside.open("w") as file:
            json.dump(wanted, file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self._path)

    def _load(self) -> dict[str, str]:
        if not self._path.exists():
            return {}
        found: dict[str, str] = json.loads(self._path.read_text())
        return found
