"""
Is the sender's address forged? What one's own mail provider says about it, in Authentication-Results. Pure.

Only the **topmost** field of a trusted server counts (RFC 8601, section 5): anybody can write such a field
into a mail, and the provider puts its own on top. It must say ``dmarc=pass`` for the very domain of the From
field. The field is read with its grammar and not with a pattern, because comments and quoted strings may
hold anything, such as ``(dmarc=pass header.from=bank.example)``; what cannot be read is no evidence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

__all__ = ["AuthResults", "MethodResult", "parse_auth_results", "proven_by"]

MAX_TOKENS = 2_000
_WORD = re.compile(r"[^\s;=()\"]+")
# The local part of an address may hold a "=", and providers do not quote it.
_VALUE = re.compile(r"[^\s;()\"]+")


@dataclass(frozen=True, slots=True)
class MethodResult:
    """One ``method=result`` with its properties, all in lower case."""

    method: str
    result: str
    properties: tuple[tuple[str, str], ...] = ()

    def property(self, name: str) -> str | None:
        """The value of a property that is there exactly once."""
        found = [value for key, value in self.properties if key == name]
        return found[0] if len(found) == 1 else None


@dataclass(frozen=True, slots=True)
class AuthResults:
    """One field: who says it, and what."""

    authserv_id: str
    results: tuple[MethodResult, ...] = field(default=())


def proven_by(fields: Sequence[str], *, trusted: Sequence[str], domain: str) -> str | None:
    """
    The trusted server that vouches for ``domain``, or None.

    Args:
        fields: The values of all Authentication-Results fields, topmost first.
        trusted: Whose word counts, in lower case.
        domain: The domain of the From address, in normal form.
    """
    for value in fields:
        parsed = parse_auth_results(value)
        if parsed is None:
            # It may be the provider's own, damaged by somebody's clever text: then nothing below counts.
            return None
        if parsed.authserv_id not in trusted:
            continue
        verdicts = [result for result in parsed.results if result.method == "dmarc"]
        passed = verdicts and all(
            verdict.result == "pass" and _domain(verdict.property("header.from")) == domain
            for verdict in verdicts
        )
        return parsed.authserv_id if passed else None
    return None


def _domain(value: str | None) -> str | None:
    return value.rpartition("@")[2].removesuffix(".") if value else None


def parse_auth_results(value: str) -> AuthResults | None:
    """Read one field; None if it does not follow the grammar."""
    tokens = list(_tokens(value))
    if None in tokens or len(tokens) > MAX_TOKENS:
        return None
    groups: list[list[str]] = [[]]
    for word in tokens:
        if word == ";":
            groups.append([])
        else:
            groups[-1].append(str(word))
    head = groups[0]
    # The server's name and, rarely, the version of the format.
    if not head or len(head) > 2 or "=" in head or (len(head) == 2 and not head[1].isdigit()):
        return None
    results = []
    for group in groups[1:]:
        if not group or group == ["none"]:
            continue
        result = _method_result(group)
        if result is None:
            return None
        results.append(result)
    return AuthResults(_bare(head[0]).lower(), tuple(results))


def _method_result(group: list[str]) -> MethodResult | None:
    """``dmarc = pass reason = "x" header.from = host …``: triples of word, equals sign, word."""
    if len(group) % 3 or any(sign != "=" for sign in group[1::3]) or "=" in group[0::3] or "=" in group[2::3]:
        return None
    pairs = [
        (name.lower(), _bare(value).lower()) for name, value in zip(group[0::3], group[2::3], strict=True)
    ]
    method, result = pairs[0]
    return MethodResult(method.partition("/")[0], result, tuple(pairs[1:]))


def _bare(token: str) -> str:
    return token.removeprefix('"')


def _tokens(value: str) -> Iterator[str | None]:
    """Words, ``;`` and ``=``; a quoted string keeps its opening quote as a mark. None: not the grammar."""
    position = 0
    after_sign = False
    while position < len(value):
        char = value[position]
        if char.isspace():
            position += 1
            continue
        if char == "(":
            position = _after_comment(value, position)
            if position < 0:
                yield None
                return
            continue
        word = _VALUE if after_sign else _WORD
        after_sign = False
        if char == '"':
            text, position = _quoted(value, position + 1)
            if position < 0:
                yield None
                return
            yield '"' + text
        elif char in ";=" and word is _WORD:
            yield char
            position += 1
            after_sign = char == "="
        else:
            match = word.match(value, position)
            if match is None:
                yield None
                return
            yield match.group(0)
            position = match.end()


def _after_comment(value: str, position: int) -> int:
    depth = 0
    while position < len(value):
        char = value[position]
        if char == "\\":
            position += 1
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if depth == 0:
                return position + 1
        position += 1
    return -1


def _quoted(value: str, position: int) -> tuple[str, int]:
    out: list[str] = []
    while position < len(value):
        char = value[position]
        if char == '"':
            return "".join(out), position + 1
        if char == "\\" and position + 1 < len(value):
            position += 1
            char = value[position]
        out.append(char)
        position += 1
    return "", -1
