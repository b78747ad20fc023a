"""Where riverrun answers otherwise than Apache Kafka on purpose, each with its reason.

The list stays short: whatever is not in it must be equal, and what is in it must still differ.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from tests.differential.compare import MISSING, Mismatch

ANY = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Patterns as in file names; `theirs` and `ours` are the answers where they matter."""

    reason: str
    script: str
    ask: str = "*"
    path: str = "*"
    theirs: Any = ANY
    ours: Any = ANY

    def covers(self, mismatch: Mismatch) -> bool:
        return (
            fnmatchcase(mismatch.script, self.script)
            and fnmatchcase(mismatch.ask, self.ask)
            and fnmatchcase(mismatch.path, self.path)
            and self.theirs in (ANY, mismatch.theirs)
            and self.ours in (ANY, mismatch.ours)
        )


DIFFERENCES = (
    Difference(
        reason="flush.before.ack is a setting of ours: fsync before an acknowledgement.",
        script="configs-topic",
        path="*.configs[[]flush.before.ack]",
        theirs=MISSING,
    ),
    Difference(
        reason="riverrun.table is a setting of ours: the topic is kept as a table.",
        script="configs-topic",
        path="*.configs[[]riverrun.table]",
        theirs=MISSING,
    ),
    Difference(
        reason="We say why a batch was refused also where Kafka gives only the code.",
        script="produce*",
        path="*.error_message",
        theirs=None,
        ours="<words>",
    ),
    Difference(
        reason="We do not open compressed batches; Kafka does and fails without a word of its own.",
        script="produce-broken-inside",
    ),
    Difference(
        reason="Kafka fails at an isolation level that does not exist; we read uncommitted.",
        script="*",
        ask="* unknown isolation level",
    ),
    Difference(
        reason="Kafka fails at a negative size; we take it for no bytes beyond the first batch.",
        script="fetch-sizes",
        ask="* negative limit",
    ),
    Difference(
        reason="Transactions come later: whatever needs one is refused for good.",
        script="transactions",
    ),
    Difference(
        reason="We believe the newest time in a batch's header; Kafka opens the records for it.",
        script="produce-broken",
        ask="* what was taken",
        path="*.max_timestamp",
    ),
    Difference(
        reason="A follower that stays behind leaves the in-sync replicas after 10 s, not after 30.",
        script="configs-broker",
        path="*.configs[[]replica.lag.time.max.ms].*",
    ),
    Difference(
        reason="Brokers are heard four times a second, so that one that dies is replaced soon.",
        script="configs-broker",
        path="*.configs[[]broker.heartbeat.interval.ms].*",
    ),
    Difference(
        reason="A silent broker is replaced after 2 s, not after 9.",
        script="configs-broker",
        path="*.configs[[]broker.session.timeout.ms].*",
    ),
    Difference(
        reason="Elections of controllers are tried again sooner.",
        script="configs-broker",
        path="*.configs[[]controller.quorum.election.backoff.max.ms].*",
    ),
    Difference(
        reason="A silent leader of the quorum is replaced after 1 s, not after 2.",
        script="configs-broker",
        path="*.configs[[]controller.quorum.fetch.timeout.ms].*",
    ),
    Difference(
        reason="Followers give up a silent leader after 5 s, not after 30.",
        script="configs-broker",
        path="*.configs[[]replica.socket.timeout.ms].*",
    ),
    Difference(
        reason="The number of fetchers is fixed at the start.",
        script="configs-broker",
        path="*.configs[[]num.replica.fetchers].read_only",
    ),
    Difference(
        reason="A node has both roles by default; Kafka must be told.",
        script="configs-broker",
        path="*.configs[[]process.roles].*",
    ),
    Difference(
        reason="A fetch whose topic is deleted while it waits is answered like a later one.",
        script="fetch-waiting",
        ask="* the topic is deleted meanwhile",
    ),
    Difference(
        reason="Listeners are fixed at the start; Kafka can change them while it runs.",
        script="configs-broker",
        path="*.configs[[]listeners].read_only",
    ),
    Difference(
        reason="The kernel sizes socket buffers better than a fixed number does.",
        script="configs-broker",
        path="*.configs[[]socket.*.buffer.bytes].*",
    ),
    Difference(
        reason="Kafka names the newest record although DeleteRecords has taken it away.",
        script="offsets-delete",
        ask="* no newest",
    ),
    Difference(
        reason="Produce 0 to 2 get UNSUPPORTED_VERSION; Kafka hangs up.",
        script="bad-frames",
        ask="produce 0",
    ),
)
