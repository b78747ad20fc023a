"""A fetch session from the follower's side (KIP-227): what the leader remembers of our wishes.

The first request of a session names every partition, the later ones only what changed; the leader
answers only with what is new. A lost answer is lost news, so after any doubt all is named again.
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
    """Its number, and how many requests it has had."""

    __slots__ = ("epoch", "id")

    def __init__(self) -> None:
        self.id = NO_SESSION
        self.epoch = INITIAL_EPOCH

    @property
    def is_full(self) -> bool:
        """Whether the next request must name every partition."""
        return self.epoch == INITIAL_EPOCH

    def restart(self) -> None:
        """Begin anew; the old id is named once more, so that the leader need not keep it."""
        self.epoch = INITIAL_EPOCH

    def answered(self, session_id: int) -> None:
        """The leader took the request."""
        if session_id == NO_SESSION:
            # It keeps no session for us: every request is a full one.
            self.id, self.epoch = NO_SESSION, INITIAL_EPOCH
        elif session_id != self.id or self.is_full:
            self.id, self.epoch = session_id, 1
        else:
            self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1

    def refused(self, error_code: int) -> bool:
        """Whether the session is lost, and only the session."""
        if error_code not in SESSION_ERRORS:
            return False
        if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.id = NO_SESSION
        self.restart()
        return True
