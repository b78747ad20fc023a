"""Normalizes responses: replaces values that may differ between two correct servers.

- An id becomes the number of its first appearance in the script, so equal ids stay equal.
- Times of the server's clock, addresses, paths and free space become placeholders.
- Messages for people become a placeholder.
- The order of rows is ignored, except for records and plain numbers.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.differential.batches import read_batches

# Fields with ids that the server assigns; values that mean "none" are kept.
IDS = {
    "topic_id": "topic-id",
    "producer_id": "producer-id",
    "member_id": "member-id",
    "leader": "member-id",
    "session_id": "session-id",
    "cluster_id": "cluster-id",
    "replica_directory_id": "directory-id",
    "token_id": "token-id",
    "hmac": "hmac",
}
NO_ID = (None, "", -1)
TIMES = (
    *("log_append_time", "append_time", "transaction_start_time"),
    *("issue_timestamp", "expiry_timestamp"),
)
PLACES = ("host", "port", "log_dir", "total_bytes", "usable_bytes")
PLACE_SETTINGS = (
    *("listeners", "advertised.listeners", "controller.quorum.voters"),
    *("log.dirs", "log.dir", "metadata.log.dir"),
)
WORDS = ("error_message", "documentation", "batch_index_error_message")


@dataclass(slots=True)
class Normaliser:
    seen: dict[tuple[str, Any], str] = field(default_factory=dict)

    @classmethod
    def knowing(cls, ids: Iterable[tuple[str, str]]) -> "Normaliser":
        normaliser = cls()
        for kind, value in ids:
            normaliser._token(kind, value)
        return normaliser

    def normal(self, value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            row = {key: self.normal(item, key) for key, item in value.items()}
            if row.get("name") in PLACE_SETTINGS and row.get("value"):
                row["value"] = "<place>"
            if "token_id" in row and row["max_timestamp"] > 0:  # that of a batch is the client's
                row["max_timestamp"] = "<time>"
            return row
        if isinstance(value, list):
            rows = [self.normal(item, name) for item in value]
            is_table = name != "records" and all(isinstance(row, dict) for row in rows)
            return sorted(rows, key=json.dumps) if is_table else rows
        if isinstance(value, bytes):
            if name == "records":
                return [self.normal(row) for row in read_batches(value)]
            return self._word(value.decode("latin-1"), name)
        return self._word(value, name)

    def _word(self, value: Any, name: str) -> Any:
        if name in IDS and value not in NO_ID and (value != 0 or name == "producer_id"):
            return self._token(IDS[name], value)
        if name in TIMES and isinstance(value, int) and value > 0:
            return "<time>"
        if name in PLACES and value not in (None, "", -1, 0):
            return f"<{name}>"
        if name in WORDS and value:
            return "<words>"
        return value

    def _token(self, kind: str, value: Any) -> str:
        number = 1 + sum(key[0] == kind for key in self.seen)
        return self.seen.setdefault((kind, value), f"<{kind} {number}>")
