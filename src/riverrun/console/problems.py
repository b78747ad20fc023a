"""Errors of the REST API: a status, a code for programs, a message and a remedy for people."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, ValidationError

from riverrun.admin.requests import REMEDIES, NotFound
from riverrun.client.connection import UnsupportedApi
from riverrun.client.pool import ClusterUnreachable
from riverrun.client.security import AuthenticationFailed
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicPartition

LOGIN_REQUIRED: Final = "login_required"
STATUS_OF_CODE: Final = {
    "invalid": 400,
    LOGIN_REQUIRED: 401,
    "forbidden": 403,
    "not_found": 404,
    "conflict": 409,
    "too_many": 429,
    "error": 500,
    "not_supported": 501,
    "cluster_unreachable": 503,
    "timeout": 504,
}
"""The codes of errors. ``ApiProblem`` may use another status with one of them."""

FORBIDDEN_CODES: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        ErrorCode.SECURITY_DISABLED,
    }
)
NOT_FOUND_CODES: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.BROKER_ID_NOT_REGISTERED,
    }
)
CONFLICT_CODES: Final = frozenset(
    {
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.REASSIGNMENT_IN_PROGRESS,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.DUPLICATE_RESOURCE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
INVALID_CODES: Final = frozenset(
    {
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.UNACCEPTABLE_CREDENTIAL,
        ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        ErrorCode.INVALID_REGULAR_EXPRESSION,
    }
)
TIMEOUT_CODES: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION})


class ApiProblem(Exception):
    """Raised by handlers. ``code`` is one of ``STATUS_OF_CODE``."""

    def __init__(self, status: int, code: str, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.remedy = remedy


class ErrorDetails(Struct, frozen=True, kw_only=True):
    """Why a request failed, and what to do about it."""

    code: str
    message: str
    remedy: str | None = None


class ErrorBody(Struct, frozen=True, kw_only=True):
    """The body of every response with an error."""

    error: ErrorDetails


def body_of(problem: ApiProblem) -> ErrorBody:
    """The JSON form of a problem."""
    details = ErrorDetails(code=problem.code, message=problem.message, remedy=problem.remedy)
    return ErrorBody(error=details)


def problem(code: str, message: str, remedy: str | None = None) -> ApiProblem:
    """A problem with the usual status of its code."""
    return ApiProblem(STATUS_OF_CODE[code], code, message, remedy)


HANDLED: Final = (ApiProblem, KafkaError, NotFound, OSError, UnsupportedApi, ValidationError)
"""Failures that ``as_problem`` explains. Others are bugs, which the server logs."""


def as_problem(failure: BaseException) -> ApiProblem:
    """Explain a failure of a handler."""
    match failure:
        case ApiProblem():
            return failure
        case KafkaError():
            return _of_kafka(failure)
        case NotFound():
            message, _, remedy = str(failure).partition("\n")
            return problem("not_found", _sentence(message), remedy.strip() or None)
        case ValidationError():
            return problem("invalid", _sentence(str(failure)))
        case AuthenticationFailed():
            return problem(LOGIN_REQUIRED, _sentence(str(failure)), "Log in again.")
        case ClusterUnreachable():
            return problem(
                "cluster_unreachable",
                _sentence(str(failure)),
                "Check that the nodes run and that their advertised addresses can be reached.",
            )
        case UnsupportedApi():
            return problem("not_supported", _sentence(str(failure)))
        case TimeoutError():
            return problem(
                "timeout",
                _sentence(str(failure) or "the cluster did not answer in time"),
                "Try again. A node may be down or busy.",
            )
        case OSError():
            return problem(
                "cluster_unreachable",
                _sentence(str(failure) or type(failure).__name__),
                "Try again. A node may be down.",
            )
        case _:
            raise failure


def _of_kafka(error: KafkaError) -> ApiProblem:
    code = "error"
    for name, codes in (
        ("forbidden", FORBIDDEN_CODES),
        ("not_found", NOT_FOUND_CODES),
        ("conflict", CONFLICT_CODES),
        ("invalid", INVALID_CODES),
        ("timeout", TIMEOUT_CODES),
        ("not_supported", frozenset({ErrorCode.UNSUPPORTED_VERSION})),
    ):
        if error.code in codes:
            code = name
    remedy = _sentence(REMEDIES.get(error.code, ""))
    return problem(code, _sentence(error.message or error.code.name), remedy or None)


def _sentence(text: str) -> str:
    """Start with a capital letter and end with a full stop. A name keeps its letters: a word with
    other characters than letters, such as ``orders-0:`` or ``min.insync.replicas``."""
    text = text.strip()
    if not text:
        return text
    first = text.split(maxsplit=1)[0]
    start = text[0].upper() if first.rstrip(",.").isalpha() else text[0]
    return start + text[1:] + ("" if text[-1] in ".?!" else ".")


def partition_failure(code: ErrorCode, at: TopicPartition, right: str) -> KafkaError:
    """The failure of a request to a partition that needs a right on its topic."""
    if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return KafkaError(code, f"your user lacks the right {right} on topic {at.topic}")
    return KafkaError(code, f"{at}: {code.name}")
