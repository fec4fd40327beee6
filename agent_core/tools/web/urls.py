"""
Web addresses: one canonical spelling for each, and the addresses in a text. Pure. Only ``http`` and ``https``
with a plain host are addresses here. What browsers accept besides (user names, hosts of hexadecimal or octal
numbers, line breaks, backslashes) serves to make an address look like another one, so it is refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, urljoin, urlsplit

MAX_CHARS = 4000
"""Longer addresses are refused."""

_UNUSABLE = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029]")
_SCHEME = re.compile(r"https?://", re.IGNORECASE)
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_MAX_NAME = 253
_DEFAULT_PORTS = {"http": 80, "https": 443}
_IN_PATH = "!$&'()*+,;=:@/%-._~"
_IN_QUERY = _IN_PATH + "?"


def normalise_url(address: str) -> str:
    """Return the one spelling of an address: ASCII host, no default port, no fragment. Raises ValueError."""
    address = address.strip()
    if len(address) > MAX_CHARS:
        raise ValueError(f"the address is longer than {MAX_CHARS} characters")
    if not _SCHEME.match(address):
        raise ValueError("the address must begin with https:// or http://")
    if _UNUSABLE.search(address):
        raise ValueError("the address contains blanks or control characters")
    parts = urlsplit(address)
    authority = parts.netloc
    if "@" in authority or "\\" in authority:
        raise ValueError("the address has a user name or a backslash in front of its host")
    host, port = _host_and_port(authority)
    shown = "" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}"
    path = quote(parts.path, safe=_IN_PATH) or "/"
    query = f"?{quote(parts.query, safe=_IN_QUERY)}" if parts.query else ""
    result = f"{parts.scheme}://{host}{shown}{path}{query}"
    if len(result) > MAX_CHARS:
        raise ValueError(f"the address is longer than {MAX_CHARS} characters")
    return result


def resolve_link(base: str, target: str) -> str:
    """Resolve a link of a page at ``base``. Raises ValueError if it cannot be fetched."""
    target = target.strip()
    if len(target) > MAX_CHARS or _UNUSABLE.search(target):
        raise ValueError("the address is too long, or contains blanks or control characters")
    return normalise_url(urljoin(base, target))


def host_of(address: str) -> str:
    """The host of a normalised address, without brackets."""
    return urlsplit(address).hostname or ""


def has_public_name(address: str) -> bool:
    """Return whether the host of a normalised address has a name as it is used on the Internet."""
    host = host_of(address)
    return "." in host and ":" not in host and not _NUMBER.fullmatch(host.rpartition(".")[2])


def is_written(address: str, written: Iterable[str]) -> bool:
    """
    Return True if a person wrote this normalised address.

    Differences that cannot carry data out are ignored: ``www.``, a trailing slash, and TLS where none was
    named.
    """
    spelt = {_plain(each) for each in written}
    plain = _plain(address)
    return plain in spelt or (plain.startswith("https://") and f"http{plain.removeprefix('https')}" in spelt)


def _plain(address: str) -> str:
    parts = urlsplit(address)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc.removeprefix('www.')}{parts.path.removesuffix('/')}{query}"


_STOPS = re.compile(r"""[\s<>"`|\x00-\x1f\x7f]+""")
_BARE = re.compile(r"(?:[\w-]{1,63}\.){1,10}[^\W\d_]{2,63}(?::\d{1,5})?(?=[/?#]|\Z)")
_AROUND = "([{'*_"
_BEHIND = ".,;:!?'*_"
_PAIRS = {")": "(", "]": "[", "}": "{"}


def addresses_in(text: str) -> set[str]:
    """
    All addresses that stand in a text, normalised. Takes time linear in the text.

    A host that stands by itself counts with ``https://`` and with ``http://``, as people write it
    (``example.org/news``). Punctuation around an address does not belong to it.
    """
    found = set()
    for candidate in _candidates(text):
        try:
            found.add(normalise_url(candidate))
        except ValueError:
            continue
    return found


def _candidates(text: str) -> Iterator[str]:
    for word in _STOPS.split(text):
        if "." not in word and ":" not in word:
            continue
        starts = [match.start() for match in _SCHEME.finditer(word)]
        for number, start in enumerate(starts):
            # Links may stand side by side, "[a](https://a.org)[b](https://b.org)", and one address may hold
            # another one: the first is taken as far as it goes, and each up to the next.
            end = starts[number + 1] if number + 1 < len(starts) else len(word)
            yield _trimmed(word[start:end][: MAX_CHARS + 1])
            if number == 0 and len(starts) > 1:
                yield _trimmed(word[start:][: MAX_CHARS + 1])
        if not starts:
            bare = _trimmed(word[: MAX_CHARS + 100].lstrip(_AROUND))
            if len(bare) < MAX_CHARS and _BARE.match(bare):
                yield f"https://{bare}"
                yield f"http://{bare}"


def _trimmed(address: str) -> str:
    """Without what closes a sentence or a bracket that was opened before the address."""
    # Links of Markdown side by side; no address that people use has these marks inside.
    for mark in ("](", ")["):
        address = address.partition(mark)[0]
    counts = {mark: address.count(mark) for pair in _PAIRS.items() for mark in pair}
    end = len(address)
    while end:
        last = address[end - 1]
        if last in _PAIRS and counts[last] > counts[_PAIRS[last]]:
            counts[last] -= 1
        elif last not in _BEHIND:
            break
        end -= 1
    return address[:end]


def _host_and_port(authority: str) -> tuple[str, int | None]:
    if authority.startswith("["):
        inner, closed, rest = authority[1:].partition("]")
        try:
            host = f"[{_compressed(ipaddress.IPv6Address(inner))}]" if closed and "%" not in inner else ""
        except ValueError:
            host = ""
    else:
        name, colon, behind = authority.partition(":")
        rest = colon + behind
        host = _name(name)
    if not host:
        raise ValueError("the address has no valid host")
    if rest in ("", ":"):
        return host, None
    if not re.fullmatch(r":[0-9]{1,5}", rest) or not 0 < int(rest[1:]) < 65_536:
        raise ValueError("the address has no valid port")
    return host, int(rest[1:])


def _compressed(address: ipaddress.IPv6Address) -> str:
    """Write an IPv6 address as browsers do; Python 3.13 writes an embedded IPv4 address with dots."""
    if (inner := address.ipv4_mapped) is not None:
        return f"::ffff:{int(inner) >> 16:x}:{int(inner) & 0xFFFF:x}"
    return address.compressed


def _name(written: str) -> str:
    """A host name or dotted IPv4 address as it is looked up; empty if it is neither."""
    name = written.lower()
    if len(name) > _MAX_NAME:
        return ""
    if not name.isascii():
        import idna  # noqa: PLC0415 - hardly a host needs it

        try:
            name = idna.encode(name, uts46=True).decode("ascii")
        except idna.IDNAError:
            # What looks like digits may stand for digits, which IDNA has nothing to say about.
            try:
                name = idna.uts46_remap(written, std3_rules=True)
            except idna.IDNAError:
                return ""
            if not name.isascii():
                return ""
    name = name.removesuffix(".")
    labels = name.split(".")
    if len(name) > _MAX_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        return ""
    if not _NUMBER.fullmatch(labels[-1]):
        return name
    try:
        return str(ipaddress.IPv4Address(name))
    except ValueError:
        raise ValueError("the host is a number, but not an IPv4 address in its usual form") from None
