"""The topics in a consumer's subscription: the one part of a member's metadata that we look into.

Every version of the subscription begins with the fields of version 0, so reading these serves all
of them, future ones included.
"""

import struct

_HEAD = struct.Struct(">hi")
_SHORT = struct.Struct(">h")


def subscribed_topics(subscription: bytes) -> tuple[str, ...] | None:
    """The topics, or None when it is no subscription."""
    topics = []
    try:
        version, count = _HEAD.unpack_from(subscription)
        if version < 0 or count < 0 or count > len(subscription):
            return None
        at = _HEAD.size
        for _ in range(count):
            (size,) = _SHORT.unpack_from(subscription, at)
            end = at + _SHORT.size + size
            if size < 0 or end > len(subscription):
                return None
            topics.append(subscription[at + _SHORT.size : end].decode())
            at = end
    except (struct.error, UnicodeDecodeError):
        return None
    return tuple(topics)
