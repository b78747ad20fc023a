"""A schema as a registry stores it: its format, its text, and the schemas that it refers to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class SchemaFormat(StrEnum):
    """The names of the REST API. A response without a name means Avro."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    format: SchemaFormat
    text: str
    references: tuple[NamedReference, ...] = ()
    descriptor: bytes | None = None
    """Protobuf: the schema as a serialized FileDescriptorProto, if the registry offers it."""

    def dependencies(self) -> Iterator[NamedReference]:
        """All direct and indirect references, each once and after its own references."""
        seen: dict[str, None] = {}

        def visit(references: tuple[NamedReference, ...]) -> Iterator[NamedReference]:
            for reference in references:
                if reference.name not in seen:
                    seen[reference.name] = None
                    yield from visit(reference.schema.references)
                    yield reference

        yield from visit(self.references)


@dataclass(frozen=True, slots=True)
class NamedReference:
    """A schema under the name that others use for it: an Avro type, a Protobuf import, a $ref."""

    name: str
    schema: RegisteredSchema
