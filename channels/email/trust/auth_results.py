"""
Reads what the mail provider says about the sender's authenticity in Authentication-Results. Pure. Only the
topmost field of a trusted server counts (RFC 8601, section 5), and it must pass DMARC or, without a policy,
DKIM for the From domain (`verdict_of`); `was_submitted_directly` matters because a signature also fits
copies. The field is parsed by its grammar, as comments and quoted strings may hold anything; an unreadable
one is no evidence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from channels.email.parse.mail_addresses import to_ascii, without_tag

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
    """One field: its author and its results."""

    authserv_id: str
    results: tuple[MethodResult, ...] = field(default=())


class Word(StrEnum):
    """The provider's result for the From domain."""

    VERIFIED = "verified"
    DENIED = "denied"
    """It has looked and says that it is forged: nothing else can make up for that."""
    SILENT = "silent"
    """Nothing that helps; other evidence may."""


@dataclass(frozen=True, slots=True)
class AuthVerdict:
    """
    A result and its author: ``number`` is the position of the field among its like. ``by_dmarc`` says that
    there is a policy which was met; otherwise a signature is all there is.
    """

    word: Word
    server: str = ""
    number: int = 0
    by_dmarc: bool = False


def verdict_of(
    fields: Sequence[str], *, trusted: Sequence[str], domain: str, headerless: bool = False
) -> AuthVerdict:
    """
    Return the trusted server's verdict on ``domain``.

    DMARC decides where the server evaluated it. Without a policy (``dmarc=none``, or none named) an aligned
    ``dkim=pass`` counts as well, as DMARC would have relied on it. Aligned is the From domain or a parent of
    it, a part of relaxed alignment (RFC 7489, section 3.1.1): without a list of public suffixes, siblings and
    children may belong to others.

    Args:
        fields: All Authentication-Results, topmost first. ARC's fields (RFC 8617) are no evidence: anybody
            can seal.
        trusted: The authserv-ids that count, in lower case.
        domain: The From domain, in normal form.
        headerless: The provider writes no authserv-id (Microsoft 365): a topmost field without one is its
            own.
    """
    for number, value in enumerate(fields):
        parsed = parse_auth_results(value, headerless=headerless and number == 0)
        if parsed is None:
            # It may be the provider's own, damaged by somebody's clever text: then nothing below counts.
            return AuthVerdict(Word.SILENT)
        nameless = headerless and number == 0 and not parsed.authserv_id
        if not nameless and parsed.authserv_id not in trusted:
            continue
        by_dmarc = any(result.method == "dmarc" and result.result == "pass" for result in parsed.results)
        server = parsed.authserv_id or "the topmost field"
        return AuthVerdict(_word(parsed, domain), server, number, by_dmarc)
    return AuthVerdict(Word.SILENT)


def was_submitted_directly(fields: Sequence[str], sender: str, *, any_mailbox: bool = False) -> bool:
    """
    Return True if SPF shows that the sender's own server handed in the mail, so it is no copy.

    The envelope must bear the very address: a forwarding provider puts its own domain there, with the
    forwarding mailbox. Some servers report only the domain; see ``any_mailbox``.

    Args:
        fields: The trusted server's Authentication-Results: the believed one and those right below it.
        sender: The From address.
        any_mailbox: Accept the domain alone.
    """
    server: str | None = None
    for value in fields:
        parsed = parse_auth_results(value, headerless=True)
        if parsed is None or server not in (None, parsed.authserv_id) or server == "":
            return False  # of fields without a name only the topmost is believed
        server = parsed.authserv_id
        told = [result for result in parsed.results if result.method == "spf"]
        if told:
            return all(_in_the_name_of(result, sender, any_mailbox=any_mailbox) for result in told)
    return False


def _in_the_name_of(result: MethodResult, sender: str, *, any_mailbox: bool) -> bool:
    envelope = result.property("smtp.mailfrom") or ""
    if result.result != "pass" or not envelope:
        return False
    domain = sender.rpartition("@")[2]
    if any_mailbox or not envelope.rpartition("@")[0]:
        return _is_above(_domain(envelope), domain)
    return without_tag(envelope) == without_tag(sender)


def _word(parsed: AuthResults, domain: str) -> Word:
    verdicts = [result for result in parsed.results if result.method == "dmarc"]
    if any(verdict.result in {"pass", "fail"} for verdict in verdicts):
        passed = all(
            verdict.result == "pass" and _domain(verdict.property("header.from")) == domain
            for verdict in verdicts
        )
        return Word.VERIFIED if passed else Word.DENIED
    signed = any(
        result.method == "dkim" and result.result == "pass" and _is_above(_signer(result), domain)
        for result in parsed.results
    )
    return Word.VERIFIED if signed else Word.SILENT


def _signer(result: MethodResult) -> str | None:
    """Return the signing domain: ``header.d``, or the domain of ``header.i``; both must agree."""
    names = {_domain(value) for key, value in result.properties if key in {"header.d", "header.i"}}
    given = _domain(result.property("header.d"))
    if given is None:
        return names.pop() if len(names) == 1 else None
    fits = all(name is not None and (name == given or name.endswith(f".{given}")) for name in names)
    return given if fits else None


def _is_above(signer: str | None, domain: str) -> bool:
    return signer is not None and "." in signer and (signer == domain or domain.endswith(f".{signer}"))


def _domain(value: str | None) -> str | None:
    return to_ascii(value.rpartition("@")[2].removesuffix(".")) if value else None


def parse_auth_results(value: str, *, headerless: bool = False) -> AuthResults | None:
    """
    Read one field; None if it does not follow the grammar.

    ``headerless``: it may begin with its first result, without the server's name, which is then empty.
    """
    tokens = list(_tokens(value))
    if None in tokens or len(tokens) > MAX_TOKENS:
        return None
    groups: list[list[str]] = [[]]
    for word in tokens:
        if word == ";":
            groups.append([])
        else:
            groups[-1].append(str(word))
    if headerless and "=" in groups[0]:
        groups.insert(0, ['"'])
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
