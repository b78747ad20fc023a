"""The identity of a peer, and how it is derived from a certificate.

A principal is written ``User:name``. The name of a peer with a certificate is its distinguished
name in the form of RFC 2253 (most specific part first), changed by ``ssl.principal.mapping.rules``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

USER: Final = "User"


class Principal(Struct, frozen=True):
    """Frozen, so it can be a key of caches."""

    kind: str
    name: str
    is_token: bool = False
    """Authenticated by a delegation token, which must not create other tokens."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Principal:
        """Raises ValueError."""
        kind, colon, name = text.strip().partition(":")
        if not colon or not kind or not name:
            raise ValueError(f"{text!r} is not a principal like User:alice")
        return cls(kind, name)


NODE_KIND: Final = "Node"
ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
NODE: Final = Principal(NODE_KIND, "internal")
"""A node, for requests that it makes on its own behalf. Clients are always of the kind User."""

_KEYWORDS: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""Python's names of attributes, and those of RFC 2253."""
_SPECIAL: Final = re.compile(r'[,=+<>#;"\\]')
_OUTER_SPACE: Final = " \r"

Subject = Sequence[Sequence[tuple[str, str]]]


def distinguished_name(subject: Subject, read_certificate: Callable[[], bytes]) -> str:
    """The subject of ``SSLSocket.getpeercert`` as Java's ``X500Principal`` writes it.

    ``read_certificate`` returns the certificate in DER form. It is called for attributes that have
    no keyword in RFC 2253: they are written as in the certificate, with their numbers.
    """
    has_numbers = any(name not in _KEYWORDS for attributes in subject for name, _ in attributes)
    numbers = _written_as_numbers(read_certificate()) if has_numbers else ()
    parts = [
        "+".join(
            f"{_KEYWORDS[name]}={_escaped(value)}" if name in _KEYWORDS else numbers[place][at]
            for at, (name, value) in enumerate(attributes)
        )
        for place, attributes in enumerate(subject)
    ]
    return ",".join(reversed(parts))


def _escaped(value: str) -> str:
    text = value.lstrip(_OUTER_SPACE)
    before = value[: len(value) - len(text)]
    inner = text.rstrip(_OUTER_SPACE)
    after = text[len(inner) :]
    escaped = _SPECIAL.sub(lambda found: "\\" + found[0], inner).replace("\0", "\\00")
    return "".join((*(f"\\{one}" for one in before), escaped, *(f"\\{one}" for one in after)))


def _written_as_numbers(certificate: bytes) -> list[list[str]]:
    """Each attribute of the subject as the number of its type and the bytes of its value."""
    # Most certificates have only attributes with keywords, and do without this import.
    from cryptography import x509  # noqa: PLC0415

    found = x509.load_der_x509_certificate(certificate).subject
    return [
        [
            f"{one.oid.dotted_string}=#{_value(x509.Name([one]).public_bytes()).hex()}"
            for one in part
        ]
        for part in found.rdns
    ]


def _value(name: bytes) -> bytes:
    """The encoded value of the only attribute of a name.

    A name is a sequence of sets of pairs, each of the type and the value.
    """
    pair = name
    for _ in ("name", "set", "pair"):
        pair, _rest = _content(pair)
    _type, value = _content(pair)
    return value


def _content(element: bytes) -> tuple[bytes, bytes]:
    """The content of an element in DER form, and the bytes after it."""
    size, start = element[1], 2
    if size & 0x80:  # the length has so many bytes of its own
        start += size & 0x7F
        size = int.from_bytes(element[2:start])
    return element[start : start + size], element[start + size :]


class MappingRuleError(ValueError):
    """An invalid ``ssl.principal.mapping.rules``."""


class MappingRule(Struct, frozen=True, kw_only=True):
    """``DEFAULT`` has no pattern and keeps the name."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """The mapped name; None if the rule does not match."""
        if self.pattern is None:
            return name
        matched = self.pattern.fullmatch(name)
        if matched is None:
            return None
        groups = (name, *matched.groups(default=""))

        def group(reference: re.Match[str]) -> str:
            number = int(reference[1])
            return groups[number] if number < len(groups) else reference[0]

        mapped = re.sub(r"\$(\d)", group, self.replacement)
        return {"L": mapped.lower(), "U": mapped.upper()}.get(self.case, mapped)


def parse_mapping_rules(text: str) -> tuple[MappingRule, ...]:
    """Parse ``RULE:pattern/replacement/[LU],DEFAULT``. Raises ``MappingRuleError``.

    A backslash before ``/`` makes it part of the pattern. A comma separates rules only before
    ``RULE:`` or ``DEFAULT``, because patterns contain commas too.
    """
    rules: list[MappingRule] = []
    for part in re.split(r",\s*(?=RULE:|DEFAULT\b)", text.strip()):
        one = part.strip()
        if one in ("DEFAULT", ""):
            rules.append(MappingRule(pattern=None))
            continue
        match = re.fullmatch(r"RULE:((?:[^/\\]|\\.)*)/((?:[^/\\]|\\.)*)/([LU]?)", one)
        if match is None:
            raise MappingRuleError(f"{one} is not RULE:pattern/replacement/[LU] or DEFAULT")
        pattern, replacement, case = match.groups()
        try:
            compiled = re.compile(pattern.replace("\\/", "/"))
        except re.error as error:
            raise MappingRuleError(f"{one}: {error}") from None
        rules.append(
            MappingRule(pattern=compiled, replacement=replacement.replace("\\/", "/"), case=case)
        )
    return tuple(rules)


def mapped_principal(name: str, rules: Iterable[MappingRule]) -> Principal | None:
    """The principal by the first rule that matches; None refuses the connection."""
    for rule in rules:
        mapped = rule.apply(name)
        if mapped is not None:
            return Principal(USER, mapped)
    return None
