"""The cluster as the group coordinator sees it: topics, and the settings of groups."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol
from uuid import UUID


class CatalogTopic(NamedTuple):
    name: str
    id: UUID
    partitions: int


class GroupCatalog(Protocol):
    """A view of the newest published metadata."""

    @property
    def version(self) -> int:
        """Rises with every change of the metadata."""
        ...

    def topic(self, name: str) -> CatalogTopic | None: ...

    def topic_by_id(self, topic_id: UUID) -> CatalogTopic | None: ...

    def topic_names(self) -> Iterable[str]: ...

    def group_config(self, group_id: str) -> Mapping[str, str]:
        """The settings that were set for a group."""
        ...


class EmptyCatalog:
    """A cluster without topics and settings."""

    version = 0

    def topic(self, name: str) -> CatalogTopic | None:
        return None

    def topic_by_id(self, topic_id: UUID) -> CatalogTopic | None:
        return None

    def topic_names(self) -> Iterable[str]:
        return ()

    def group_config(self, group_id: str) -> Mapping[str, str]:
        return {}


def metadata_hash(view: GroupCatalog, names: Iterable[str]) -> int:
    """A hash of the subscribed topics that exist; 0 if there are none.

    It is compared only with its own former value, so it need not equal the one that Kafka would
    compute: a group that moves between the two gets one more epoch.
    """
    hashed = hashlib.blake2b(digest_size=8)
    found = False
    for name in sorted(names):
        topic = view.topic(name)
        if topic is not None:
            found = True
            hashed.update(topic.id.bytes + b"%d:" % topic.partitions + name.encode())
    return int.from_bytes(hashed.digest(), "big", signed=True) if found else 0
