"""Intended differences between responses of riverrun and Apache Kafka, with reasons.

All other responses must be equal, and every listed difference must still exist.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from tests.differential.compare import MISSING, Mismatch

ANY = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference, by glob patterns and optionally by the two values."""

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
        reason="The default is empty: the names of protocols mean themselves.",
        script="configs-broker",
        path="*.configs[[]listener.security.protocol.map].*",
    ),
    Difference(
        reason="GSSAPI is not supported, so the defaults differ.",
        script="configs-broker",
        path="*.configs[[]sasl.enabled.mechanisms].*",
    ),
    Difference(
        reason="GSSAPI is not supported, so the defaults differ.",
        script="configs-broker",
        path="*.configs[[]sasl.mechanism.*].*",
    ),
    Difference(
        reason="Only certificates of a listener change at run time.",
        script="configs-broker",
        path="*.configs[[]sasl.jaas.config].read_only",
    ),
    Difference(
        reason="The default is the protocol of the first listener.",
        script="configs-broker",
        path="*.configs[[]security.inter.broker.protocol].*",
    ),
    Difference(
        reason="Only certificates of a listener change at run time.",
        script="configs-broker",
        path="*.configs[[]ssl.c*].read_only",
    ),
    Difference(
        reason="Only certificates of a listener change at run time.",
        script="configs-broker",
        path="*.configs[[]ssl.en*].read_only",
    ),
    Difference(
        reason="Only certificates of a listener change at run time.",
        script="configs-broker",
        path="*.configs[[]ssl.protocol].read_only",
    ),
    Difference(
        reason="Stores are PEM files.",
        script="configs-broker",
        path="*.configs[[]ssl.*store.type].*",
    ),
    Difference(
        reason="flush.before.ack is a setting of riverrun: fsync before an acknowledgement.",
        script="configs-topic",
        path="*.configs[[]flush.before.ack]",
        theirs=MISSING,
    ),
    Difference(
        reason="riverrun.table is a setting of riverrun: the topic is stored as a table.",
        script="configs-topic",
        path="*.configs[[]riverrun.table]",
        theirs=MISSING,
    ),
    Difference(
        reason="riverrun adds an error message where Kafka sends only the error code.",
        script="produce*",
        path="*.error_message",
        theirs=None,
        ours="<words>",
    ),
    Difference(
        reason="riverrun adds an error message to refused transactional batches.",
        script="transactions-*",
        path="*.error_message",
        theirs=None,
        ours="<words>",
    ),
    Difference(
        reason="riverrun recognises a retry after the end of its transaction, which Kafka refuses.",
        script="transactions-produced",
        ask="* a duplicate after the end",
    ),
    Difference(
        reason="riverrun refuses a stale epoch itself; Kafka asks the coordinator first.",
        script="transactions-*",
        ask="* epoch*",
        path="*.log_start_offset",
        theirs=-1,
    ),
    Difference(
        reason="riverrun does not decompress batches; Kafka does and fails without a message.",
        script="produce-broken-inside",
    ),
    Difference(
        reason="Kafka rejects an unknown isolation level; riverrun reads uncommitted.",
        script="*",
        ask="* unknown isolation level",
    ),
    Difference(
        reason="Kafka rejects a negative size; riverrun returns the first batch only.",
        script="fetch-sizes",
        ask="* negative limit",
    ),
    Difference(
        reason="Kafka adds a message to updates that succeed.",
        script="transactions-features",
        ask="update_features *",
        path="results[[]*].error_message",
        ours=None,
    ),
    Difference(
        reason="Kafka refuses EndTxn 5 at level 0 of transaction.version, which no client sends.",
        script="transactions-features",
        ask="end_txn v5: version 2",
    ),
    Difference(
        reason="Kafka refuses EndTxn 5 at level 0 of transaction.version, which no client sends.",
        script="transactions-features",
        ask="describe_transactions v0: version 2",
    ),
    Difference(
        reason="Kafka never answers a request of a broker without transactions.",
        script="transactions-brokers",
        ask="* no transactions",
    ),
    Difference(
        reason="riverrun uses the maximum timestamp of the header; Kafka reads the records.",
        script="produce-broken",
        ask="* what was taken",
        path="*.max_timestamp",
    ),
    Difference(
        reason="A lagging follower leaves the ISR after 10 s instead of 30 s.",
        script="configs-broker",
        path="*.configs[[]replica.lag.time.max.ms].*",
    ),
    Difference(
        reason="Brokers send four heartbeats per second, so that failures are detected soon.",
        script="configs-broker",
        path="*.configs[[]broker.heartbeat.interval.ms].*",
    ),
    Difference(
        reason="A broker session expires after 2 s instead of 9 s.",
        script="configs-broker",
        path="*.configs[[]broker.session.timeout.ms].*",
    ),
    Difference(
        reason="Quorum elections are retried sooner.",
        script="configs-broker",
        path="*.configs[[]controller.quorum.election.backoff.max.ms].*",
    ),
    Difference(
        reason="Voters start an election after 1 s without a fetch response, instead of 2 s.",
        script="configs-broker",
        path="*.configs[[]controller.quorum.fetch.timeout.ms].*",
    ),
    Difference(
        reason="Fetch requests of followers time out after 5 s instead of 30 s.",
        script="configs-broker",
        path="*.configs[[]replica.socket.timeout.ms].*",
    ),
    Difference(
        reason="The number of fetchers cannot be changed at run time.",
        script="configs-broker",
        path="*.configs[[]num.replica.fetchers].read_only",
    ),
    Difference(
        reason="A node has both roles by default; Kafka requires the setting.",
        script="configs-broker",
        path="*.configs[[]process.roles].*",
    ),
    Difference(
        reason="A waiting fetch of a deleted topic gets the same response as a later fetch.",
        script="fetch-waiting",
        ask="* the topic is deleted meanwhile",
    ),
    Difference(
        reason="Listeners cannot be changed at run time; in Kafka they can.",
        script="configs-broker",
        path="*.configs[[]listeners].read_only",
    ),
    Difference(
        reason="riverrun leaves the size of socket buffers to the kernel.",
        script="configs-broker",
        path="*.configs[[]socket.*.buffer.bytes].*",
    ),
    Difference(
        reason="Kafka returns the newest record although DeleteRecords has deleted it.",
        script="offsets-delete",
        ask="* no newest",
    ),
    Difference(
        reason="Produce 0 to 2 get UNSUPPORTED_VERSION; Kafka closes the connection.",
        script="bad-frames",
        ask="produce 0",
    ),
    Difference(
        reason="Kafka fails with UNKNOWN_SERVER_ERROR, or closes the connection, for values of "
        "rules and filters that the client must not send.",
        script="secured-rules",
        ours="INVALID_REQUEST",
    ),
    Difference(
        reason="The same: the message of INVALID_REQUEST.",
        script="secured-rules",
        theirs=None,
        ours="<words>",
    ),
    Difference(
        reason="The same: a response instead of a closed connection.",
        script="secured-rules",
        theirs="closed",
    ),
    Difference(
        reason="Regular expressions are resolved in the request that brings them.",
        script="consumers-expressions",
        ask="consumer_group_heartbeat v1: joins by an expression",
    ),
    Difference(
        reason="An empty group has no old target, so its next member does not wait (KAFKA-20442).",
        script="consumers-*",
        ask="consumer_group_describe *: empty",
        path="*.assignment_epoch",
    ),
    Difference(
        reason="Kafka fails on an epoch without a member id.",
        script="consumers-offsets",
        ask="offset_fetch *: an epoch without member",
        theirs="UNKNOWN_SERVER_ERROR",
        ours="UNKNOWN_MEMBER_ID",
    ),
    Difference(
        reason="One request may change several mechanisms of a user, as kafka-configs sends it.",
        script="secured-scram-users",
        ask="*: two mechanisms",
    ),
    Difference(
        reason="The same: the user has both mechanisms.",
        script="secured-scram-users",
        path="*.credential_infos[[]1]",
        theirs=MISSING,
    ),
    Difference(
        reason="The same: the user loses both mechanisms.",
        script="secured-scram-users",
        ask="*: delete all",
    ),
    Difference(
        reason="riverrun explains missing rights in words where Kafka sends only the error code.",
        script="secured-*",
        path="*error_message",
        theirs=None,
        ours="<words>",
    ),
    Difference(
        reason="Kafka repeats the missing right for a user without a name.",
        script="secured-matrix-cluster",
        ask="describe_user_scram_credentials *",
        path="results[[]0]",
        ours=MISSING,
    ),
    Difference(
        reason="Kafka explains in words that a voter belongs to another cluster.",
        script="secured-matrix-cluster",
        ask="*_raft_voter *: alter cluster",
        path="error_message",
        theirs="<words>",
    ),
    Difference(
        reason="Kafka explains in words that a voter belongs to another cluster.",
        script="secured-matrix-controllers",
        ask="*_raft_voter *: alter cluster",
        path="error_message",
        theirs="<words>",
    ),
    Difference(
        reason="A response about another cluster's voter does not name the leader.",
        script="secured-matrix-controllers",
        ask="update_raft_voter *: cluster action cluster",
        path="current_leader.*",
    ),
    Difference(
        reason="A controller must support the features of the cluster to register.",
        script="secured-matrix-controllers",
        ask="controller_registration *: cluster action cluster",
    ),
    Difference(
        reason="A fetch of metadata without the right is refused as a whole.",
        script="secured-matrix-controllers",
        ask="fetch v12: *",
        path="responses[[]0]",
        ours=MISSING,
    ),
    Difference(
        reason="Client metrics are not served, so their settings are unknown.",
        script="secured-matrix-cluster",
        ask="*alter_configs *: of client metrics, alter configs cluster",
        ours="INVALID_CONFIG",
    ),
    Difference(
        reason="Client metrics are not served, by controllers neither.",
        script="secured-matrix-administration",
        ask="*alter_configs *: of client metrics, alter configs cluster",
        ours="INVALID_CONFIG",
    ),
    Difference(
        reason="The levels of loggers do not change at run time.",
        script="secured-matrix-cluster",
        ask="incremental_alter_configs *: of loggers, alter configs cluster",
        ours="INVALID_REQUEST",
    ),
    Difference(
        reason="The error of a group is repeated for each partition up to OffsetFetch 7, because "
        "some clients ignore that of the group.",
        script="secured-matrix-groups",
        ask="offset_fetch v6: *",
        theirs=MISSING,
    ),
    Difference(
        reason="A refused join has an empty protocol name, which only successful joins use.",
        script="secured-matrix-groups",
        ask="join_group v9: *",
        path="protocol_name",
        theirs=None,
        ours="",
    ),
    Difference(
        reason="One missing right refuses a whole transactional Produce request, because its "
        "transaction must be aborted anyway.",
        script="secured-matrix-transactions",
        ask="produce *: and others, *",
    ),
    Difference(
        reason="Brokers that are not registered get NOT_LEADER_OR_FOLLOWER for all partitions.",
        script="secured-matrix-topics",
        ask="fetch *: as a replica, cluster action cluster",
        ours="NOT_LEADER_OR_FOLLOWER",
    ),
    Difference(
        reason="Followers do not use aborted transactions, so the field is null.",
        script="secured-matrix-topics",
        ask="fetch *: as a replica, *",
        path="*.aborted_transactions",
        ours=None,
    ),
    Difference(
        reason="Kafka does not answer at all.",
        script="secured-without-rights",
        ask="describe_user_scram_credentials *",
        theirs="silence",
    ),
)
