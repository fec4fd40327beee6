"""Lists of tags, the notation of DKIM's signatures and keys (RFC 6376, section 3.2). Pure."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

__all__ = ["DkimInvalid", "Key", "decoded", "domain_name", "parse_key", "parse_tags", "unfolded"]

_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_TAG = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_FOLDING = re.compile(r"[ \t\r\n]+")


class DkimInvalid(Exception):
    """This signature proves nothing; the text says why."""


@dataclass(frozen=True, slots=True)
class Key:
    """A public key out of DNS; ``strict`` forbids identities below the domain (``t=s``)."""

    kind: str
    data: bytes
    strict: bool = False


def parse_tags(text: str) -> dict[str, str]:
    """
    A tag list (RFC 6376, section 3.2).

    Raises:
        DkimInvalid: It is none, or a tag stands twice.
    """
    tags: dict[str, str] = {}
    parts = text.split(";")
    for number, part in enumerate(parts):
        name, sign, value = part.partition("=")
        name = name.strip(" \t\r\n")
        if not sign and not name and number == len(parts) - 1:
            break
        if not sign or not _TAG.fullmatch(name) or name in tags:
            raise DkimInvalid("no list of tags")
        tags[name] = value.strip(" \t\r\n")
    return tags


def unfolded(text: str) -> str:
    """Without the spaces and line ends that may stand anywhere in a long value."""
    return _FOLDING.sub("", text)


def domain_name(text: str) -> str:
    """
    A name in DNS, in lower case.

    Raises:
        DkimInvalid: It is none.
    """
    name = text.lower().removesuffix(".")
    if len(name) > 253 or not all(_NAME.fullmatch(label) for label in name.split(".")):
        raise DkimInvalid("no domain name")
    return name


def decoded(text: str) -> bytes:
    """
    Base64 with folding in it.

    Raises:
        DkimInvalid: It is none.
    """
    try:
        return base64.b64decode(unfolded(text), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise DkimInvalid("no base64") from exc


def parse_key(text: str) -> Key:
    """
    Read a key record (RFC 6376, section 3.6.1).

    Raises:
        DkimInvalid: It is none, or it has been revoked.
    """
    tags = parse_tags(text)
    if "v" in tags and (next(iter(tags)) != "v" or tags["v"] != "DKIM1"):
        raise DkimInvalid("not a DKIM key")
    flags = {unfolded(flag) for flag in tags.get("t", "").split(":")}
    if "y" in flags:
        raise DkimInvalid("its owner only tries it out (t=y)")
    if "h" in tags and "sha256" not in {unfolded(name) for name in tags["h"].split(":")}:
        raise DkimInvalid("not for SHA-256")
    if not {unfolded(name) for name in tags.get("s", "*").split(":")} & {"*", "email"}:
        raise DkimInvalid("not for mail")
    kind = tags.get("k", "rsa")
    if kind not in {"rsa", "ed25519"}:
        raise DkimInvalid("an unknown kind of key")
    data = decoded(tags.get("p", ""))
    if not data:
        raise DkimInvalid("revoked")
    return Key(kind, data, strict="s" in flags)
