"""A member of a consumer group for the scripts, on its own connection."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.differential.script import Script

# ConsumerProtocolSubscription v0 of the topic "t", with user data. It must be valid: Kafka never
# responds to a join whose subscription it cannot parse.
SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x04"
PROTOCOLS = {"range": SUBSCRIPTION + b"rnge", "roundrobin": SUBSCRIPTION + b"rrob"}


@dataclass(slots=True)
class Member:
    script: Script
    group: str
    name: str
    instance: str | None = None
    session_ms: int = 30000
    rebalance_ms: int = 30000
    protocol_type: str = "consumer"
    protocols: dict[str, bytes] = field(default_factory=lambda: dict(PROTOCOLS))
    member_id: str = ""
    generation: int = -1

    def join_fields(self, **other: Any) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "session_timeout": self.session_ms,
            "rebalance_timeout": self.rebalance_ms,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "protocol_type": self.protocol_type,
            "protocols": [
                {"name": name, "metadata": metadata} for name, metadata in self.protocols.items()
            ],
            "reason": "a reason",
            **other,
        }

    def join(self, label: str) -> Any:
        """Join like clients do: again with the assigned member id if the server requires it."""
        return self.begin_join(label)()

    def begin_join(self, label: str) -> Callable[[], Any]:
        if not self.member_id and self.instance is None and self.script.at_least("join_group", 4):
            fields = self.join_fields()
            response = self.script.request(f"{label}, first", "join_group", fields, on=self.name)
            self._is_called(response["member_id"])
        finish = self.script.begin(label, "join_group", self.join_fields(), on=self.name)

        def joined() -> Any:
            response = finish()
            if response["error_code"] == "NONE":
                self._is_called(response["member_id"])
                self.generation = response["generation_id"]
            return response

        return joined

    def _is_called(self, member_id: str) -> None:
        self.member_id = member_id
        self.script.note_id("member-id", member_id)

    def sync_fields(self, assignments: dict[str, bytes] | None = None) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "protocol_type": self.protocol_type,
            "protocol_name": next(iter(self.protocols)),
            "assignments": [
                {"member_id": member, "assignment": assignment}
                for member, assignment in (assignments or {}).items()
            ],
        }

    def sync(self, label: str, assignments: dict[str, bytes] | None = None) -> Any:
        return self.begin_sync(label, assignments)()

    def begin_sync(
        self, label: str, assignments: dict[str, bytes] | None = None
    ) -> Callable[[], Any]:
        fields = self.sync_fields(assignments)
        return self.script.begin(label, "sync_group", fields, on=self.name)

    def heartbeat(self, label: str, **other: Any) -> Any:
        fields = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            **other,
        }
        return self.script.request(label, "heartbeat", fields, on=self.name)

    def leave(self, label: str) -> Any:
        member = {"member_id": self.member_id, "group_instance_id": self.instance}
        fields = {
            "group_id": self.group,
            "member_id": self.member_id,
            "members": [{**member, "reason": "done"}],
        }
        return self.script.request(label, "leave_group", fields, on=self.name)
