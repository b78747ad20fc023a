"""Remembers what was built from each schema, such as a decoder."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from riverrun.registry.catalog import SchemaCatalog
from riverrun.registry.errors import UnusableSchema
from riverrun.registry.framing import SchemaId, has_header, schema_id_of
from riverrun.registry.schema import RegisteredSchema

CODECS_MAX: Final = 1000

Codec = TypeVar("Codec")


class CodecCache(Generic[Codec]):
    """One codec for each schema id.

    :param build: makes a codec of a schema. Gets the name of the schema for reasons, and raises
        ValueError if the schema is invalid, UnusableSchema if it cannot be used here.
    """

    def __init__(
        self, catalog: SchemaCatalog, build: Callable[[RegisteredSchema, str], Codec]
    ) -> None:
        self._catalog = catalog
        self._build = build
        self._codecs: OrderedDict[SchemaId, Codec | UnusableSchema] = OrderedDict()

    def prepare(self, values: Iterable[bytes]) -> None:
        """Look up the schemas that these values name. Raises RegistryUnavailable."""
        headed = [schema_id_of(data) for data in values if has_header(data)]
        self._catalog.prepare([one for one in dict.fromkeys(headed) if one not in self._codecs])

    def get(self, schema_id: SchemaId) -> Codec:
        """Raises UnusableSchema and RegistryUnavailable."""
        found = self._codecs.get(schema_id)
        if found is None:
            found = self._built(schema_id)
            self._codecs[schema_id] = found
            if len(self._codecs) > CODECS_MAX:
                self._codecs.popitem(last=False)
        if isinstance(found, UnusableSchema):
            raise UnusableSchema(*found.args)
        return found

    def _built(self, schema_id: SchemaId) -> Codec | UnusableSchema:
        what = f"schema id {schema_id}"
        schema = self._catalog.find(schema_id)
        try:
            return self._build(schema, what)
        except UnusableSchema as error:
            return error
        except ValueError as error:
            return UnusableSchema(f"{what} cannot be used: {error}")
