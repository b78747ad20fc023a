"""Decodes keys and values for ``riverrun consume --registry``, and notes those that it cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from riverrun.admin.records.formats import JsonText
from riverrun.ports.aio import LogLimiter
from riverrun.ports.clock import Clock
from riverrun.records.record import Record
from riverrun.registry.errors import UndecodableValue, UnusableSchema
from riverrun.registry.framing import has_header
from riverrun.registry.rendering import JsonRenderer

NOTE_EVERY_SECONDS = 5.0


class RecordDecoder:
    """Replaces keys and values that start with a schema registry header by their JSON.

    Others stay as they are: a zero byte at the start may also be binary data without a schema.

    :param tell: prints a note for people.
    """

    def __init__(self, renderer: JsonRenderer, clock: Clock, tell: Callable[[str], None]) -> None:
        self._renderer = renderer
        self._tell = tell
        self._notes = LogLimiter(clock, interval_seconds=NOTE_EVERY_SECONDS)

    def decode(self, partition: str, records: Sequence[Record]) -> list[Record]:
        """Waits for the registry, so it must not run in the event loop.

        Raises RegistryUnavailable.
        """
        parts = [data for record in records for data in (record.key, record.value)]
        self._renderer.prepare([data for data in parts if data is not None])
        return [
            replace(
                record,
                key=self._decoded("key", partition, record, record.key),
                value=self._decoded("value", partition, record, record.value),
            )
            for record in records
        ]

    def _decoded(
        self, part: str, partition: str, record: Record, data: bytes | None
    ) -> bytes | None:
        if data is None or not has_header(data):
            return data
        try:
            return JsonText(self._renderer.render(data).encode("utf-8", "surrogatepass"))
        except (UndecodableValue, UnusableSchema) as error:
            self._note(part, f"{partition} offset {record.offset}: {part} not decoded: {error}")
            return data

    def _note(self, part: str, text: str) -> None:
        left_out = self._notes.admit(part)
        if left_out is not None:
            more = f" ({left_out} more before this)" if left_out else ""
            self._tell(f"{text}{more}")
