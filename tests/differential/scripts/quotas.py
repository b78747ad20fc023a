"""Client quotas: set, change, remove, describe by filters, and rejected requests."""

from collections.abc import Sequence
from typing import Any

from tests.differential.script import Script

EXACT, DEFAULT, ANY = 0, 1, 2
USER, CLIENT, IP = "user", "client-id", "ip"
MANY = 1e9

Entity = Sequence[tuple[str, str | None]]
Change = tuple[str, float | None]
Filters = dict[str, list[tuple[str, int, str | None]]]


def alter(script: Script) -> None:
    user, client = script.topic("user"), script.topic("client")
    _alter(script, "a user", [(USER, user)], ("producer_byte_rate", MANY))
    _alter(script, "change", [(USER, user)], ("producer_byte_rate", 2 * MANY))
    both = [(USER, user), (CLIENT, client)]
    _alter(script, "user and client", both, ("consumer_byte_rate", MANY))
    _alter(script, "in the other order", list(reversed(both)), ("request_percentage", 12.5))
    _alter(script, "fraction of a double", [(USER, user)], ("controller_mutation_rate", 1000.5))
    keys = ("producer_byte_rate", "consumer_byte_rate")
    _alter(script, "several keys", [(CLIENT, client)], *((key, MANY) for key in keys))
    _alter(script, "an address", [(IP, "10.1.2.3")], ("connection_creation_rate", 100.0))
    _alter(script, "remove", [(IP, "10.1.2.3")], ("connection_creation_rate", None))
    _alter(script, "remove what is not set", [(USER, user)], ("request_percentage", None))
    _alter(script, "remove from nobody", [(USER, script.topic("nobody"))], (keys[0], None))
    _alter(script, "remove an unknown key", [(USER, user)], ("no_such_key", None))
    _alter(script, "nothing to change", [(USER, user)])
    _alter(script, "set and remove a key", [(USER, user)], (keys[0], MANY), (keys[0], None))
    _alter(script, "a key twice", [(USER, user)], (keys[0], MANY), (keys[0], 2 * MANY))
    is_tried = {"validate_only": True}
    _alter(script, "only tried", [(USER, script.topic("tried"))], (keys[0], MANY), **is_tried)
    _alter(script, "only tried, bad", [(USER, user)], (keys[0], 0.0), **is_tried)
    _describe(script, "what is left", [(USER, ANY, None)], [user, script.topic("tried")])
    _clean(script, [(USER, user)], both, [(CLIENT, client)])


def refused(script: Script) -> None:
    user, rate = script.topic("user"), ("producer_byte_rate", MANY)
    for label, change in {
        "zero": ("producer_byte_rate", 0.0),
        "negative": ("producer_byte_rate", -1.0),
        "a fraction of bytes": ("producer_byte_rate", 1.5),
        "nearly a whole number": ("producer_byte_rate", 1000.0000001),
        "zero percent": ("request_percentage", 0.0),
        "negative mutations": ("controller_mutation_rate", -1.0),
        "unknown key": ("no_such_key", 1.0),
        "key of addresses": ("connection_creation_rate", 1.0),
        "empty key": ("", 1.0),
    }.items():
        _alter(script, label, [(USER, user)], change)
    entities: dict[str, Entity] = {
        "no entity": [],
        "unknown type": [("group", "g")],
        "empty type": [("", "x")],
        "empty name": [(USER, "")],
        "a type twice": [(USER, user), (USER, "other")],
        "address and user": [(IP, "10.0.0.1"), (USER, user)],
        "user and unknown type": [(USER, user), ("group", "g")],
    }
    for label, entity in entities.items():
        _alter(script, label, entity, rate)
    _alter(script, "key of users", [(IP, "10.0.0.1")], rate)
    connections = ("connection_creation_rate", 10.0)
    _alter(script, "no such address", [(IP, "no such host.invalid")], connections)
    _alter(script, "fraction of connections", [(IP, "10.0.0.1")], (connections[0], 1.5))
    _alter(script, "one of two keys is bad", [(USER, user)], rate, ("no_such_key", 1.0))
    entries = [_entry([(USER, user)], rate), _entry([(USER, user)], ("no_such_key", 1.0))]
    script.request("an entity twice", "alter_client_quotas", _fields(entries))
    entries = [_entry([(USER, script.topic("other"))], rate), _entry([("group", "g")], rate)]
    script.request("one good, one bad", "alter_client_quotas", _fields(entries))
    _describe(script, "what was stored", [(USER, ANY, None)], [user, script.topic("other")])
    script.request("no entries", "alter_client_quotas", _fields([]))
    others = (script.topic("other"), "other")
    _clean(script, [(USER, user)], *([(USER, name)] for name in others))


def describe(script: Script) -> None:
    ann, bob = script.topic("ann"), script.topic("bob")
    app, web = script.topic("app"), script.topic("web")
    entities: list[Entity] = [
        [(USER, ann)],
        [(USER, bob)],
        [(USER, ann), (CLIENT, app)],
        [(USER, bob), (CLIENT, None)],
        [(USER, None), (CLIENT, app)],
        [(CLIENT, app)],
        [(CLIENT, web)],
        [(USER, None)],
        [(USER, None), (CLIENT, None)],
        [(CLIENT, None)],
    ]
    script.quietly(
        "alter_client_quotas",
        _fields([_entry(entity, ("consumer_byte_rate", MANY)) for entity in entities]),
    )
    names = [ann, bob, app, web, None]
    for is_strict in (False, True):
        how = "strictly" if is_strict else "loosely"
        filters: Filters = {
            "everything": [],
            "one user": [(USER, EXACT, ann)],
            "unknown user": [(USER, EXACT, script.topic("nobody"))],
            "default user": [(USER, DEFAULT, None)],
            "default user with a name": [(USER, DEFAULT, ann)],
            "any user": [(USER, ANY, None)],
            "any client": [(CLIENT, ANY, None)],
            "default client": [(CLIENT, DEFAULT, None)],
            "user and client": [(USER, EXACT, ann), (CLIENT, EXACT, app)],
            "user and default client": [(USER, EXACT, bob), (CLIENT, DEFAULT, None)],
            "any of both": [(USER, ANY, None), (CLIENT, ANY, None)],
            "any user of one client": [(USER, ANY, None), (CLIENT, EXACT, app)],
            "any address": [(IP, ANY, None)],
        }
        for label, components in filters.items():
            _describe(script, f"{label}, {how}", components, names, is_strict=is_strict)
        bad: Filters = {
            "unknown match": [(USER, 3, None)],
            "negative match": [(USER, -1, None)],
            "exact without a name": [(USER, EXACT, None)],
            "any with a name": [(USER, ANY, ann)],
            "unknown type": [("group", ANY, None)],
            "empty type": [("", ANY, None)],
            "a type twice": [(USER, EXACT, ann), (USER, EXACT, bob)],
            "address and user": [(IP, ANY, None), (USER, ANY, None)],
        }
        for label, components in bad.items():
            _describe(script, f"{label}, {how}", components, names, is_strict=is_strict)
    _clean(script, *entities)


def _describe(
    script: Script,
    label: str,
    components: Sequence[tuple[str, int, str | None]],
    names: Sequence[str | None],
    *,
    is_strict: bool = False,
) -> None:
    rows = [
        {"entity_type": kind, "match_type": match, "match": name}
        for kind, match, name in components
    ]

    def own(response: Any) -> Any:
        """Entries of this script: another era or script may have some of its own."""
        kept = [
            entry
            for entry in response["entries"] or ()
            if all(part["entity_name"] in names for part in entry["entity"])
        ]
        return {**response, "entries": None if response["entries"] is None else kept}

    fields = {"components": rows, "strict": is_strict}
    script.request(label, "describe_client_quotas", fields, only=own)


def _alter(
    script: Script, label: str, entity: Entity, *changes: Change, validate_only: bool = False
) -> None:
    fields = _fields([_entry(entity, *changes)], validate_only=validate_only)
    script.request(label, "alter_client_quotas", fields)


def _entry(entity: Entity, *changes: Change) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "ops": [
            {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
            for key, value in changes
        ],
    }


def _fields(entries: list[dict[str, Any]], *, validate_only: bool = False) -> dict[str, Any]:
    return {"entries": entries, "validate_only": validate_only}


def _clean(script: Script, *entities: Entity) -> None:
    keys = (
        "producer_byte_rate",
        "consumer_byte_rate",
        "request_percentage",
        "controller_mutation_rate",
    )
    changes = [(key, None) for key in keys]
    script.quietly("alter_client_quotas", _fields([_entry(one, *changes) for one in entities]))
