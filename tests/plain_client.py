"""A minimal Kafka client on a socket and kio, which also sends invalid requests.

Requests are dicts with the field names of Kafka's schemas (snake_case, times in milliseconds). They
may contain the fields of all versions; fields that a version lacks are left out. Responses are
plain values: error codes by name, times in milliseconds, bytes unchanged.
"""

import dataclasses
import datetime
import io
import socket
import struct
import types
import typing
import uuid
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer

API_KEYS = {name: key for key, name in api_key_map.items()}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
CLIENT_ID = "plain-client"


class ConnectionClosed(Exception):
    """The server closed the connection without a response."""


def request_body(api: str, version: int, fields: dict[str, Any]) -> bytes:
    schema = load_request_schema(API_KEYS[api], version)
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, _entity(schema, fields))
    return buffer.getvalue()


def request_frame(
    api: str, version: int, fields: dict[str, Any], *, correlation_id: int = 1
) -> bytes:
    """A frame including its length."""
    schema = load_request_schema(API_KEYS[api], version)
    header = io.BytesIO()
    names = {"request_api_key": API_KEYS[api], "request_api_version": version}
    values = {**names, "correlation_id": correlation_id, "client_id": CLIENT_ID}
    header_schema = schema.__header_schema__
    entity_writer(header_schema)(header, _entity(header_schema, values))
    frame = header.getvalue() + request_body(api, version, fields)
    return struct.pack(">i", len(frame)) + frame


def parse_response(api: str, version: int, frame: bytes) -> tuple[int, dict[str, Any]]:
    """Parse a frame without its length into (correlation id, response); no byte may be left."""
    schema = load_response_schema(API_KEYS[api], version)
    header, size = entity_reader(schema.__header_schema__)(frame, 0)
    response, body_size = entity_reader(schema)(frame, size)
    left = len(frame) - size - body_size
    assert left == 0, f"{left} bytes are left after the {api} response in version {version}"
    return header.correlation_id, plain(response)


class PlainClient:
    def __init__(self, address: tuple[str, int], *, timeout_seconds: float = 30) -> None:
        self._socket = socket.create_connection(address, timeout_seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> "PlainClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def request(self, api: str, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        correlation_id = self.send(api, version, fields)
        received_id, response = self.receive(api, version)
        assert received_id == correlation_id, f"sent {correlation_id}, received {received_id}"
        return response

    def send(self, api: str, version: int, fields: dict[str, Any]) -> int:
        self._correlation_id += 1
        self.send_raw(request_frame(api, version, fields, correlation_id=self._correlation_id))
        return self._correlation_id

    def receive(self, api: str, version: int) -> tuple[int, dict[str, Any]]:
        return parse_response(api, version, self.receive_frame())

    def send_raw(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except (ConnectionError, BrokenPipeError) as error:
            raise ConnectionClosed(str(error)) from error

    def receive_frame(self) -> bytes:
        (length,) = struct.unpack(">i", self._receive(4))
        return self._receive(length)

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._socket.recv(size - len(data))
            except ConnectionError as error:
                raise ConnectionClosed(str(error)) from error
            if not part:
                raise ConnectionClosed(f"closed after {len(data)} of {size} bytes")
            data += part
        return bytes(data)

    def settimeout(self, seconds: float) -> None:
        self._socket.settimeout(seconds)


def _entity(schema: type, fields: dict[str, Any]) -> Any:
    hints = typing.get_type_hints(schema)
    values = {
        field.name: _value(hints[field.name], fields[field.name])
        for field in dataclasses.fields(schema)
        if field.name in fields
    }
    for field in dataclasses.fields(schema):
        if field.name not in values and field.default is dataclasses.MISSING:
            values[field.name] = _zero(hints[field.name])
    return schema(**values)


def _value(hint: Any, value: Any) -> Any:
    """The value in the type that kio expects."""
    if value is None:
        return None
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        return tuple(_value(typing.get_args(hint)[0], item) for item in value)
    if dataclasses.is_dataclass(hint):
        return _entity(typing.cast(type, hint), value)
    if hint is uuid.UUID:
        return uuid.UUID(value)
    if issubclass(hint, datetime.timedelta):
        return datetime.timedelta(milliseconds=value)
    if issubclass(hint, datetime.datetime):
        return EPOCH + datetime.timedelta(milliseconds=value)
    return value


def _zero(hint: Any) -> Any:
    """The default of a field whose schema has none."""
    if typing.get_origin(hint) is tuple:
        return ()
    if isinstance(hint, types.UnionType) and types.NoneType in typing.get_args(hint):
        return None
    if dataclasses.is_dataclass(hint):
        return _entity(typing.cast(type, hint), {})
    if issubclass(hint, datetime.timedelta):
        return datetime.timedelta()
    return next(zero() for zero in (bool, int, float, str, bytes) if issubclass(hint, zero))


def plain(value: Any) -> Any:
    """A kio message as dicts, lists, numbers, strings and bytes."""
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, ErrorCode):
        return value.name.upper()
    if isinstance(value, datetime.timedelta):
        return round(value / datetime.timedelta(milliseconds=1))
    if isinstance(value, datetime.datetime):
        return round((value - EPOCH) / datetime.timedelta(milliseconds=1))
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    return value if value is None else str(value)
