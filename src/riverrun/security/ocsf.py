"""Audit events in the form of the Open Cybersecurity Schema Framework (OCSF), version 1.4.0.

| event | class |
|---|---|
| login | Authentication (3002), Logon |
| denial | API Activity (6003), Other |
| change | API Activity (6003), Create, Update or Delete |
| change of a user | Account Change (3001), Password Change or Delete, one event for each user |
| lost events | Application Error (6008) |

A change of more users than a summary holds is also an event of API Activity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, assert_never

from msgspec import Struct

from riverrun.model.names import AUDIT_TOPIC
from riverrun.security.audit import (
    ChangeEvent,
    ChangeOutcome,
    DenialEvent,
    Entry,
    LoginEvent,
    LostEvents,
    Origin,
)

SCHEMA_VERSION: Final = "1.4.0"
OTHER: Final = 99
CREATE, UPDATE, DELETE = 1, 3, 4
LOGON: Final = 1
PASSWORD_CHANGE, ACCOUNT_DELETE = 3, 6
GENERAL_ERROR: Final = 1
SUCCESS, FAILURE = 1, 2
INFORMATIONAL, LOW, MEDIUM = 1, 2, 3
SEVERITIES: Final = {INFORMATIONAL: "Informational", LOW: "Low", MEDIUM: "Medium"}
USER_CHANGES: Final = "AlterUserScramCredentials"
USERS: Final = {"upsertions": PASSWORD_CHANGE, "deletions": ACCOUNT_DELETE}

Document = dict[str, Any]


class EventClass(Struct, frozen=True, kw_only=True):
    uid: int
    name: str
    category: str
    activities: Mapping[int, str]


AUTHENTICATION: Final = EventClass(
    uid=3002,
    name="Authentication",
    category="Identity & Access Management",
    activities={LOGON: "Logon"},
)
ACCOUNT_CHANGE: Final = EventClass(
    uid=3001,
    name="Account Change",
    category="Identity & Access Management",
    activities={PASSWORD_CHANGE: "Password Change", ACCOUNT_DELETE: "Delete"},
)
API_ACTIVITY: Final = EventClass(
    uid=6003,
    name="API Activity",
    category="Application Activity",
    activities={CREATE: "Create", UPDATE: "Update", DELETE: "Delete", OTHER: "Denied"},
)
APPLICATION_ERROR: Final = EventClass(
    uid=6008,
    name="Application Error",
    category="Application Activity",
    activities={GENERAL_ERROR: "General Error"},
)


class ReportingNode(Struct, frozen=True, kw_only=True):
    """The node that writes the events."""

    node_id: int
    version: str


def documents(entry: Entry, reporter: ReportingNode) -> Iterator[Document]:
    """The events of one entry, without ``metadata.uid``."""
    event = entry.event
    match event:
        case LoginEvent():
            yield _common(AUTHENTICATION, LOGON, entry, reporter) | _login(event, reporter)
        case DenialEvent():
            yield _common(API_ACTIVITY, OTHER, entry, reporter) | _denial(event, reporter)
        case ChangeEvent():
            yield from _changes(event, entry, reporter)
        case LostEvents():
            yield _common(APPLICATION_ERROR, GENERAL_ERROR, entry, reporter) | {
                "severity_id": MEDIUM,
                "severity": SEVERITIES[MEDIUM],
                "message": f"{event.count} audit events were lost",
                "count": event.count,
            }
        case _:
            assert_never(event)


def _common(kind: EventClass, activity: int, entry: Entry, reporter: ReportingNode) -> Document:
    found: Document = {
        "category_uid": kind.uid // 1000,
        "category_name": kind.category,
        "class_uid": kind.uid,
        "class_name": kind.name,
        "activity_id": activity,
        "activity_name": kind.activities[activity],
        "type_uid": kind.uid * 100 + activity,
        "type_name": f"{kind.name}: {kind.activities[activity]}",
        "severity_id": INFORMATIONAL,
        "severity": SEVERITIES[INFORMATIONAL],
        "time": entry.last_ms,
        "metadata": {
            "version": SCHEMA_VERSION,
            "product": {
                "name": "riverrun",
                "vendor_name": "riverrun",
                "version": reporter.version,
            },
            "log_name": AUDIT_TOPIC,
            "log_provider": f"node-{reporter.node_id}",
        },
    }
    if entry.count > 1:
        found |= {"count": entry.count, "start_time": entry.first_ms, "end_time": entry.last_ms}
    return found


def _login(event: LoginEvent, reporter: ReportingNode) -> Document:
    found = _where(event.origin, reporter) | {
        "user": _user(event.origin.principal),
        "auth_protocol_id": OTHER,
        "auth_protocol": event.mechanism,
        "is_remote": True,
        "service": {"name": "kafka"},
    }
    if not event.failure:
        return found | _status(SUCCESS) | {"message": f"{event.origin.principal} logged in"}
    return (
        found
        | _status(FAILURE, LOW)
        | {
            "status_detail": event.failure,
            "message": f"login of {event.origin.principal or 'an unknown user'} failed",
        }
    )


def _denial(event: DenialEvent, reporter: ReportingNode) -> Document:
    origin = event.origin
    what = f"{event.operation} on {event.resource_type} {event.resource_name}"
    return (
        _where(origin, reporter)
        | _status(FAILURE, LOW)
        | {
            "actor": {"user": _user(origin.principal)},
            "api": {"operation": event.api, "service": {"name": "kafka"}},
            "resources": [{"type": event.resource_type, "name": event.resource_name}],
            "status_detail": f"the right {what} is missing",
            "message": f"{origin.principal} was denied {what}",
            "unmapped": {"operation": event.operation},
        }
    )


def _changes(event: ChangeEvent, entry: Entry, reporter: ReportingNode) -> Iterator[Document]:
    origin, outcome = event.origin, event.read_outcome()
    common = (
        _where(origin, reporter)
        | _result(outcome)
        | {"actor": {"user": _user(origin.principal)}}
        | {"message": f"{origin.principal} called {event.api}{_named(event)}"}
    )
    if event.api == USER_CHANGES:
        is_cut = False
        for field, activity in USERS.items():
            for change in event.request.get(field, ()):
                if not isinstance(change, dict):
                    is_cut = True
                    continue
                yield (
                    _common(ACCOUNT_CHANGE, activity, entry, reporter)
                    | common
                    | {
                        "user": {"name": change["name"], "type_id": 1, "type": "User"},
                        "unmapped": dict(change),
                    }
                )
        if not is_cut:
            return
    response: Document = {"code": outcome.code}
    if outcome.error:
        response |= {"error": outcome.error, "error_message": outcome.message}
    yield (
        _common(API_ACTIVITY, activity_of(event.api), entry, reporter)
        | common
        | {
            "api": {
                "operation": event.api,
                "version": str(event.api_version),
                "service": {"name": "kafka"},
                "request": {"uid": str(event.correlation_id), "data": dict(event.request)},
                "response": response,
            },
            "resources": [{"type": kind, "name": name} for kind, name in event.resources],
            "unmapped": {
                "client_id": event.client_id,
                "succeeded": outcome.succeeded,
                "failed": outcome.failed,
            },
        }
    )


def activity_of(api: str) -> int:
    if api.startswith("Create"):
        return CREATE
    if "Delete" in api or api.startswith(("Unregister", "Expire", "Remove")):
        return DELETE
    return UPDATE


def _named(event: ChangeEvent) -> str:
    if not event.resources:
        return ""
    kind, name = event.resources[0]
    more = len(event.resources) - 1
    return f" on {kind} {name}" + (f" and {more} more" if more else "")


def _result(outcome: ChangeOutcome) -> Document:
    if not outcome.is_known:
        return {"status_id": 0, "status": "Unknown"}
    if not outcome.failed:
        return _status(SUCCESS)
    detail = outcome.message or outcome.error
    if outcome.succeeded:
        detail += f" ({outcome.failed} of {outcome.failed + outcome.succeeded} items failed)"
    return _status(FAILURE) | {"status_code": outcome.error, "status_detail": detail}


def _status(status: int, severity: int = INFORMATIONAL) -> Document:
    return {
        "status_id": status,
        "status": "Success" if status == SUCCESS else "Failure",
        "severity_id": severity,
        "severity": SEVERITIES[severity],
    }


def _where(origin: Origin, reporter: ReportingNode) -> Document:
    return {
        "src_endpoint": {"ip": origin.client_host},
        "dst_endpoint": {"name": f"node-{reporter.node_id}", "svc_name": origin.listener},
    }


def _user(principal: str) -> Document:
    if not principal:
        return {"name": "", "type_id": 0, "type": "Unknown"}
    return {"name": principal.removeprefix("User:"), "type_id": 1, "type": "User"}
