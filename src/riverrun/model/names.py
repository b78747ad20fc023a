"""Names that several packages share: topics of the cluster itself and files of a data directory."""

from typing import Final

METADATA_TOPIC: Final = "__cluster_metadata"
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
AUDIT_TOPIC: Final = "__riverrun_audit"
"""Only brokers write it. No client may change or delete it, not even a super user."""
PIPELINES_TOPIC: Final = "__riverrun_pipelines"
"""Running pipelines publish their state to it, and get commands from it."""
REPORTS_TOPIC: Final = "__riverrun_reports"
"""Reports of chaos runs and audits."""
INTERNAL_TOPICS: Final = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "__share_group_state", AUDIT_TOPIC)
META_PROPERTIES: Final = "meta.properties"
"""The file that identifies a data directory."""
LOCK: Final = ".lock"
"""The file in a data directory that the node locks."""
