"""A fetch session as the follower sees it (KIP-227).

The first requests of a session name every partition, later requests name only changed ones. The
leader responds only with news. A lost response is lost news, so after any failure the session
starts again with a full request.
"""

from __future__ import annotations

from riverrun.model.errors import ErrorCode

NO_SESSION = 0
INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1
SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)


class FollowerFetchSession:
    """Id and epoch of the session with one leader."""

    __slots__ = ("epoch", "id", "is_kept")

    def __init__(self) -> None:
        self.id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self.is_kept = True
        """Whether the leader keeps sessions. Otherwise each request names every partition."""

    @property
    def is_full(self) -> bool:
        """Whether the next request must name every partition."""
        return self.epoch == INITIAL_EPOCH

    def restart(self) -> None:
        """Start a new session. The next request carries the old id, which the leader closes."""
        self.epoch = INITIAL_EPOCH

    def accepted(self, session_id: int) -> None:
        """The leader accepted the request."""
        self.is_kept = session_id != NO_SESSION
        if session_id == NO_SESSION:
            # The leader keeps no session for us: every request is a full one.
            self.id, self.epoch = NO_SESSION, INITIAL_EPOCH
        elif session_id != self.id or self.is_full:
            self.id, self.epoch = session_id, 1
        else:
            self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1

    def rejected(self, error_code: int) -> bool:
        """Whether the error concerns only the session, which then starts again."""
        if error_code not in SESSION_ERRORS:
            return False
        if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.id = NO_SESSION
        self.restart()
        return True
