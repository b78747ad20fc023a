"""Settings of client connections: their number, sizes and timeouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from riverrun.model.settings import (
    INT_MAX,
    MINUTE_MS,
    SECOND_MS,
    MiB,
    SettingError,
    SettingKind,
    Settings,
    is_count,
    setting,
)

OVERRIDES: Final = "max.connections.per.ip.overrides"


def parse_overrides(text: str) -> dict[str, int]:
    """Raises ``SettingError``."""
    found: dict[str, int] = {}
    for part in text.split(","):
        if not part.strip():
            continue
        address, colon, count = part.strip().rpartition(":")
        if not colon or not address or not is_count(count.strip()):
            raise SettingError(OVERRIDES, text, "an override looks like 10.0.0.1:100")
        found[address.strip().strip("[]")] = int(count)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings(Settings):
    """Limits and sizes of client connections."""

    request_bytes_max: int = setting(
        100 * MiB,
        name="socket.request.max.bytes",
        kind=SettingKind.INT,
        at_least=1,
        doc="The largest request; a larger one closes its connection.",
    )
    connections_max: int = setting(
        INT_MAX,
        name="max.connections",
        at_least=0,
        live=True,
        doc="Open connections of the node; further ones are closed at once. With the prefix of a"
        " listener: open connections of that listener. Listeners between nodes are not limited by"
        " the number for the whole node, unless clients use them too.",
    )
    connections_per_ip_max: int = setting(
        INT_MAX,
        name="max.connections.per.ip",
        at_least=0,
        live=True,
        doc="Open connections from one address; further ones are closed at once.",
    )
    connections_per_ip_overrides: str = setting(
        "",
        name=OVERRIDES,
        live=True,
        check=parse_overrides,
        doc="Other limits for some addresses, as ADDRESS:COUNT,ADDRESS:COUNT. The count follows the"
        " last colon.",
    )
    connection_rate_max: int = setting(
        INT_MAX,
        name="max.connection.creation.rate",
        at_least=0,
        live=True,
        doc="New connections in a second; further ones wait. With the prefix of a listener: new"
        " connections of that listener.",
    )
    queued_bytes_max: int = setting(
        -1,
        name="queued.max.request.bytes",
        kind=SettingKind.LONG,
        at_least=-1,
        doc=(
            "Memory for requests that are being received, over all connections. While it is"
            " exceeded, only one connection may receive a larger request. -1 for no limit."
        ),
    )
    idle_ms_max: int = setting(
        10 * MINUTE_MS,
        name="connections.max.idle.ms",
        kind=SettingKind.LONG,
        at_least=1,
        doc="A connection that sends nothing for this time is closed.",
    )
    send_buffer_bytes: int = setting(
        -1,
        name="socket.send.buffer.bytes",
        kind=SettingKind.INT,
        at_least=-1,
        doc="The kernel's send buffer of a connection (SO_SNDBUF); -1 for the system default.",
    )
    receive_buffer_bytes: int = setting(
        -1,
        name="socket.receive.buffer.bytes",
        kind=SettingKind.INT,
        at_least=-1,
        doc="The kernel's receive buffer of a connection (SO_RCVBUF); -1 for the system default.",
    )
    tls_handshakes_per_ip_max: int = setting(
        100,
        name="max.tls.handshakes.per.ip",
        at_least=1,
        doc="Unfinished TLS handshakes of one address with one listener; further connections are"
        " closed at once. Raise it if many clients share an address, such as that of a NAT gateway"
        " or a proxy. Kafka has no such setting.",
    )
    backlog: int = setting(
        50,
        name="socket.listen.backlog.size",
        at_least=1,
        doc="Connections that the kernel queues until the node accepts them.",
    )
    in_flight_max: int = setting(
        64,
        name="max.requests.in.flight.per.connection",
        at_least=1,
        doc=(
            "Pending requests of one connection; further ones wait in the socket. Kafka has no such"
            " setting and handles one."
        ),
    )
    frame_ms_max: int = setting(
        2 * MINUTE_MS,
        name="socket.request.receive.timeout.ms",
        kind=SettingKind.LONG,
        at_least=SECOND_MS,
        doc="The time in which a request must arrive completely, from its first byte on.",
    )
    login_ms_max: int = setting(
        MINUTE_MS,
        name="socket.login.timeout.ms",
        kind=SettingKind.LONG,
        at_least=SECOND_MS,
        doc="The time in which a client of a listener with SASL must log in. Kafka has no such"
        " limit.",
    )
    retained_bytes_max: int = setting(
        64 * MiB,
        name="socket.buffers.retained.max.bytes",
        kind=SettingKind.LONG,
        at_least=0,
        doc=(
            "Receive buffers grow with the requests of their connection. They are kept for the next"
            " request while all of them take less than this."
        ),
    )
    unsent_bytes_max: int = setting(
        64 * MiB,
        name="socket.unsent.max.bytes",
        kind=SettingKind.LONG,
        at_least=0,
        doc=(
            "Memory for responses that clients do not read. One fetch response takes at most a"
            " quarter of the free part, but always at least one batch."
        ),
    )
    stop_ms_max: int = setting(
        3 * SECOND_MS,
        name="socket.stop.timeout.ms",
        kind=SettingKind.LONG,
        at_least=0,
        doc="How long a stopping node waits for requests in flight to complete.",
    )
