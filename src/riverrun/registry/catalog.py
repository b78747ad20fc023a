"""Schemas by id: declared in a file, or read from a registry and remembered.

A registry never changes the schema of an id, so a schema is remembered until newer ones take its
place. An unknown id is remembered for a while only. A registry with several nodes may know an id
slightly later than the producer that registered it, so unknown ids are asked for twice.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol, TypeVar

from riverrun.registry.client import RegistryClient
from riverrun.registry.errors import UnknownSchema, UnusableSchema
from riverrun.registry.framing import SchemaId
from riverrun.registry.schema import RegisteredSchema

SCHEMAS_MAX: Final = 1000
UNUSABLE_MAX: Final = 10_000
UNUSABLE_SECONDS: Final = 5.0
SECOND_LOOK_SECONDS: Final = 0.5
SECOND_LOOKS_MAX: Final = 100
"""Per call. More unknown ids than this are not schema ids at all."""

Entry = TypeVar("Entry")


class SchemaCatalog(Protocol):
    def prepare(self, schema_ids: Iterable[SchemaId]) -> None:
        """Look up the schemas of many values at once. Raises RegistryUnavailable."""
        ...

    def find(self, schema_id: SchemaId) -> RegisteredSchema:
        """Raises UnknownSchema, UnusableSchema and RegistryUnavailable."""
        ...


class DeclaredCatalog:
    """The schemas that a declaration lists."""

    def __init__(self, schemas: Mapping[int, RegisteredSchema]) -> None:
        self._schemas = schemas

    def prepare(self, schema_ids: Iterable[SchemaId]) -> None:
        """All schemas are here already."""

    def find(self, schema_id: SchemaId) -> RegisteredSchema:
        found = self._schemas.get(schema_id)
        if found is None:
            declared = ", ".join(str(one) for one in sorted(self._schemas))
            raise UnknownSchema(
                f"schema id {schema_id} is not declared; the declared ids are {declared}"
            )
        return found


class RegistryCatalog:
    """The schemas of a registry. Not for use by several threads at once."""

    def __init__(
        self,
        client: RegistryClient,
        *,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._now = now
        self._pause = pause
        self._known: OrderedDict[SchemaId, RegisteredSchema] = OrderedDict()
        self._unusable: OrderedDict[SchemaId, tuple[float, UnusableSchema]] = OrderedDict()

    def prepare(self, schema_ids: Iterable[SchemaId]) -> None:
        unknown = [one for one in schema_ids if not self._is_remembered(one) and self._look(one)]
        if unknown:
            self._pause(SECOND_LOOK_SECONDS)
            for schema_id in unknown[:SECOND_LOOKS_MAX]:
                self._look(schema_id)

    def find(self, schema_id: SchemaId) -> RegisteredSchema:
        if not self._is_remembered(schema_id):
            self._look(schema_id)
        known = self._known.get(schema_id)
        if known is None:
            _, error = self._unusable[schema_id]
            raise type(error)(*error.args)  # an exception that is raised twice keeps both traces
        self._known.move_to_end(schema_id)
        return known

    def _is_remembered(self, schema_id: SchemaId) -> bool:
        if schema_id in self._known:
            return True
        until, _ = self._unusable.get(schema_id, (0.0, None))
        return self._now() < until

    def _look(self, schema_id: SchemaId) -> bool:
        """Ask the registry. Returns whether the id is unknown."""
        try:
            self._known[schema_id] = self._client.schema(schema_id)
        except UnusableSchema as error:
            self._unusable.pop(schema_id, None)
            self._unusable[schema_id] = (self._now() + UNUSABLE_SECONDS, error)
            _shrink(self._unusable, UNUSABLE_MAX)
            return isinstance(error, UnknownSchema)
        self._unusable.pop(schema_id, None)
        _shrink(self._known, SCHEMAS_MAX)
        return False


def _shrink(entries: OrderedDict[SchemaId, Entry], size: int) -> None:
    while len(entries) > size:
        entries.popitem(last=False)
