"""Errors of schemas and of values, grouped by remedy: retry, or set the record aside."""

from __future__ import annotations


class RegistryUnavailable(OSError):
    """The registry gave no usable answer. A later attempt may succeed, so no record is rejected.

    :param status: the HTTP status, if there was a response.
    """

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class UnusableSchema(Exception):
    """A schema id for which values cannot be decoded. The text is the reason of a dead letter."""


class UnknownSchema(UnusableSchema):
    """There is no schema with this id."""


class UnknownSubject(OSError):
    """The registry has no such subject. A producer may register it later."""


class UndecodableValue(Exception):
    """A value that is truncated or does not match its schema. The text is the reason."""
