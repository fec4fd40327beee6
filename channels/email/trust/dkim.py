"""
Verifies DKIM signatures (RFC 6376), more strictly than the standard requires. Pure. Our own, because the
existing library accepts ``l=``, queries DNS itself and answers only yes or no. Identity depends on it, so
refused are ``l=`` (section 8.2), ``rsa-sha1`` and RSA keys below 1024 bits (RFC 8301), keys in testing
(``t=y``), and bare line ends or NULs in the header; ``ed25519-sha256`` is RFC 8463. `check_coverage` has the
required fields.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from channels.email.parse.mail_addresses import mailboxes_or_none, without_tag

MAX_SIGNATURES = 10
MAX_FIELD_BYTES = 16_000
MAX_HEADER_BYTES = 256_000
READ_BYTES = 1_100_000
"""More of a text than anybody is shown (``mime.Caps.text_bytes``)."""
MAX_RSA_BITS = 8192
"""Larger ones only cost time."""
_WSP = re.compile(rb"[ \t]+")
_PIECE = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_TAG = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_FOLDING = re.compile(r"[ \t\r\n]+")
_ONCE = (
    *("from", "to", "cc", "subject", "date", "message-id", "reply-to", "in-reply-to", "references"),
    *("mime-version", "content-type", "content-transfer-encoding", "content-disposition"),
)
_ID = re.compile(rb"\s*<[!-;=?-~]{1,250}>\s*")
_TYPED = re.compile(rb"^content-type[ \t]*:|<[/!]?[a-z][a-z0-9]*[\s/>]", re.IGNORECASE | re.MULTILINE)
"""What a multipart and a page have in them."""
_ENCODED = re.compile(rb"=(?:[0-9A-F]{2}|[ \t]*\r\n)")
"""Quoted-printable: without its soft line ends a quoted line goes on as one that is not quoted."""


@dataclass(frozen=True, slots=True)
class Signature:
    """One DKIM-Signature worth a query: ``raw`` field and ``position`` among the fields."""

    domain: str
    selector: str
    algorithm: str
    body_hash: bytes
    signed: tuple[str, ...]
    value: bytes
    relaxed_header: bool
    relaxed_body: bool
    identity_domain: str
    raw: bytes
    position: int

    @property
    def key_name(self) -> str:
        """The DNS name of the key."""
        return f"{self.selector}._domainkey.{self.domain}"


@dataclass(frozen=True, slots=True)
class SignatureClaim:
    """
    The unverified claims of a DKIM-Signature field.

    ``domain`` is empty if unreadable; ``lacks`` is why it would not vouch for the mail, or ""; ``recipients``
    are in signed fields.
    """

    domain: str
    lacks: str = ""
    recipients: frozenset[str] = frozenset()

    def names(self, address: str) -> bool:
        """Return True if the signed mail is addressed to this address."""
        return without_tag(address) in {without_tag(each) for each in self.recipients}


def claims_of(raw: bytes) -> tuple[SignatureClaim, ...]:
    """Return all signatures of a mail, valid or not, for verification by others. Total."""
    fields = _fields_or_none(raw)
    if fields is None:
        known = b"dkim-signature" in raw[: 8 * MAX_HEADER_BYTES].lower()
        return (SignatureClaim("", "no well-formed header"),) if known else ()
    found: list[SignatureClaim] = []
    for position, (name, field) in enumerate(fields):
        if name == "dkim-signature":
            too_long = len(field) > MAX_FIELD_BYTES
            found.append(SignatureClaim("", "too long") if too_long else _claim(raw, fields, field, position))
        if len(found) > MAX_SIGNATURES:
            return (SignatureClaim("", "too many signatures"),)
    return tuple(found)


def _claim(raw: bytes, fields: Sequence[tuple[str, bytes]], field: bytes, position: int) -> SignatureClaim:
    domain = ""
    try:
        domain = domain_name(parse_tags(field.partition(b":")[2].decode("latin-1")).get("d", ""))
        signature = _parse_signature(field, position, None)
        check_coverage(fields, signature.signed, _body(raw, READ_BYTES))
    except DkimInvalid as exc:
        return SignatureClaim(domain, str(exc))
    return SignatureClaim(domain, "", recipients_of(fields))


def find_signatures(raw: bytes, now: float) -> list[Signature]:
    """Return the signatures that may count, topmost first; ``now`` is Unix time. Total."""
    fields = _fields_or_none(raw)
    if fields is None:
        return []
    found: list[Signature] = []
    for position, (name, field) in enumerate(fields):
        if name == "dkim-signature" and len(field) <= MAX_FIELD_BYTES:
            try:
                signature = _parse_signature(field, position, now)
            except DkimInvalid:
                continue
            found.append(signature)
    return found[:MAX_SIGNATURES]


def _fields_or_none(raw: bytes) -> list[tuple[str, bytes]] | None:
    """Name and bytes (with the last line end) of each field; None for a header that is not well formed."""
    end = raw.find(b"\r\n\r\n", 0, MAX_HEADER_BYTES)
    head = raw[: end + 2] if end >= 0 else raw
    if len(head) > MAX_HEADER_BYTES or not head.endswith(b"\r\n") or b"\0" in head:
        return None
    lines = head.count(b"\r\n")
    if lines > 20_000 or lines != head.count(b"\r") or lines != head.count(b"\n"):
        return None
    fields: list[tuple[str, bytes]] = []
    for line in head[:-2].split(b"\r\n"):
        if line[:1] in (b" ", b"\t"):
            if not fields:
                return None
            name, field = fields[-1]
            fields[-1] = (name, field + line + b"\r\n")
            continue
        before, colon, _ = line.partition(b":")
        name = before.rstrip(b" \t").decode("latin-1").lower()
        if not colon or not name or not name.isascii() or " " in name:
            return None
        fields.append((name, line + b"\r\n"))
    return fields


def _parse_signature(field: bytes, position: int, now: float | None) -> Signature:
    tags = parse_tags(field.partition(b":")[2].decode("latin-1"))
    needed = {name: _needed(tags, name) for name in ("v", "a", "b", "bh", "d", "h", "s")}
    if needed["v"] != "1":
        raise DkimInvalid("not version 1")
    if "l" in tags:
        raise DkimInvalid("only a part of the text is signed (l=)")
    if needed["a"] not in {"rsa-sha256", "ed25519-sha256"}:
        raise DkimInvalid("an algorithm that is not accepted")
    if "dns/txt" not in tags.get("q", "dns/txt").split(":"):
        raise DkimInvalid("the key is not in DNS")
    if now is not None:
        _check_times(tags, now)
    header_form, _, body_form = tags.get("c", "simple/simple").partition("/")
    body_form = body_form or "simple"
    if {header_form, body_form} - {"simple", "relaxed"}:
        raise DkimInvalid("an unknown canonicalisation")
    domain = domain_name(needed["d"])
    identity = domain_name(tags["i"].rpartition("@")[2]) if "i" in tags else domain
    if identity != domain and not identity.endswith(f".{domain}"):
        raise DkimInvalid("i= does not belong to d=")
    signed = tuple(unfold(name).lower() for name in needed["h"].split(":"))
    if "from" not in signed or len(signed) > 500:
        raise DkimInvalid("From is not signed")
    return Signature(
        domain=domain,
        selector=domain_name(needed["s"]),
        algorithm=needed["a"],
        body_hash=decode_base64(needed["bh"]),
        signed=signed,
        value=decode_base64(needed["b"]),
        relaxed_header=header_form == "relaxed",
        relaxed_body=body_form == "relaxed",
        identity_domain=identity,
        raw=field,
        position=position,
    )


def _check_times(tags: Mapping[str, str], now: float) -> None:
    made, ends = _seconds(tags.get("t")), _seconds(tags.get("x"))
    if ends is not None and (now > ends or (made is not None and ends < made)):
        raise DkimInvalid("expired")
    if made is not None and made > now + 3600.0:
        raise DkimInvalid("signed in the future")


def _seconds(text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise DkimInvalid("no time")
    return int(text)


def _needed(tags: Mapping[str, str], name: str) -> str:
    if not tags.get(name):
        raise DkimInvalid(f"{name}= is missing")
    return tags[name]


def check_body(raw: bytes, signature: Signature) -> None:
    """Compare the body with the signature's hash, without a query. Raises DkimInvalid."""
    body = _body(raw)
    found = hashlib.sha256()
    for piece in _relaxed_body(body) if signature.relaxed_body else _simple_body(body):
        found.update(piece)
    if found.digest() != signature.body_hash:
        raise DkimInvalid("the text was changed")


def _body(raw: bytes, limit: int | None = None) -> bytes:
    start = raw.find(b"\r\n\r\n") + 4
    return raw[start : None if limit is None else start + limit] if start >= 4 else b""


def _simple_body(body: bytes) -> Iterator[bytes]:
    end = _end_without_empty_lines(body)
    for start in range(0, end, _PIECE):
        yield body[start : min(start + _PIECE, end)]
    yield b"\r\n"


def _relaxed_body(body: bytes) -> Iterator[bytes]:
    """Yield the body in pieces of whole lines: a list of short lines takes fifty times the memory."""
    start, empty, is_empty = 0, b"", True
    while start < len(body):
        end = body.rfind(b"\r\n", start, start + _PIECE)
        end = body.find(b"\r\n", start) if end < 0 else end
        piece = body[start : len(body) if end < 0 else end + 2].replace(b"\t", b" ")
        while b"  " in piece:  # each time half as many; a pattern would keep a list of what it leaves
            piece = piece.replace(b"  ", b" ")
        start = len(body) if end < 0 else end + 2
        piece = piece.replace(b" \r\n", b"\r\n") if end >= 0 else piece.removesuffix(b" ")
        kept = _end_without_empty_lines(piece)
        if kept:
            is_empty = False
            yield empty
            yield piece[:kept]
            empty = b""
        empty += piece[kept:]
    if not is_empty:
        yield b"\r\n"


def _end_without_empty_lines(text: bytes) -> int:
    """Return the offset of the trailing empty lines, which both canonicalisations drop."""
    end = len(text.rstrip(b"\r\n"))
    tail = text[end:]
    if not tail.endswith(b"\n"):
        return len(text)
    # What follows on the last bare one of them are whole ones.
    start = max(tail.rfind(b"\n\n"), tail.rfind(b"\r\r")) + 1
    return end + start + tail.startswith(b"\n", start)


def verify(raw: bytes, signature: Signature, key: Key) -> frozenset[str]:
    """Verify that the domain signed this mail; returns the signed recipients. Raises `DkimInvalid`."""
    fields = _fields_or_none(raw)
    if fields is None:
        raise DkimInvalid("no well-formed header")
    if key.strict and signature.identity_domain != signature.domain:
        raise DkimInvalid("i= must be the domain itself (t=s)")
    if signature.algorithm != f"{key.kind}-sha256":
        raise DkimInvalid("the key is of another type")
    check_coverage(fields, signature.signed, _body(raw, READ_BYTES))
    data = _signed_data(fields, signature)
    if key.kind == "rsa":
        _verify_rsa(data, signature.value, key.data)
    else:
        _verify_ed25519(data, signature.value, key.data)
    check_body(raw, signature)  # what costs most comes last
    return recipients_of(fields)


def _signed_data(fields: Sequence[tuple[str, bytes]], signature: Signature) -> bytes:
    """Return the signed data: the lowest unused instance of each named field, then the signature field."""
    left: dict[str, list[bytes]] = {}
    for position, (name, field) in enumerate(fields):
        if position != signature.position:
            left.setdefault(name, []).append(field)
    form = _relaxed_field if signature.relaxed_header else _simple_field
    chosen = []
    for name in signature.signed:
        instances = left.get(name)
        if instances:  # a name without an instance says that there is none; it adds nothing
            chosen.append(form(instances.pop()))
    return b"".join(chosen) + form(_without_value(signature.raw)).removesuffix(b"\r\n")


def _simple_field(field: bytes) -> bytes:
    return field


def _relaxed_field(field: bytes) -> bytes:
    name, _, value = field.partition(b":")
    flat = _WSP.sub(b" ", value.replace(b"\r\n", b"")).strip(b" \t")
    return name.strip(b" \t").lower() + b":" + flat + b"\r\n"


def _without_value(field: bytes) -> bytes:
    """The field with an empty ``b=``; everything else to the byte."""
    name, _, value = field.partition(b":")
    parts = value.split(b";")
    for number, part in enumerate(parts):
        tag, sign, rest = part.partition(b"=")
        if sign and tag.strip(b" \t\r\n") == b"b":
            # The line end behind the field is none of the tag's.
            end = b"\r\n" if number == len(parts) - 1 and rest.endswith(b"\r\n") else b""
            parts[number] = tag + b"=" + end
    return name + b":" + b";".join(parts)


def _verify_rsa(data: bytes, value: bytes, key: bytes) -> None:
    # Loaded for the first signature only.
    from Crypto.Hash import SHA256  # noqa: PLC0415
    from Crypto.PublicKey import RSA  # noqa: PLC0415
    from Crypto.Signature import pkcs1_15  # noqa: PLC0415

    if len(key) > 4 * MAX_RSA_BITS // 8:
        raise DkimInvalid("an oversized key")
    try:
        public = RSA.import_key(key)
    except (ValueError, IndexError, TypeError) as exc:
        raise DkimInvalid("not an RSA key") from exc
    if not 1024 <= public.size_in_bits() <= MAX_RSA_BITS or public.e > 0xFFFFFFFF:
        raise DkimInvalid(f"an RSA key of {public.size_in_bits()} bits")
    try:
        pkcs1_15.new(public).verify(SHA256.new(data), value)
    except ValueError as exc:
        raise DkimInvalid("the signature does not match") from exc


def _verify_ed25519(data: bytes, value: bytes, key: bytes) -> None:
    from Crypto.Signature import eddsa  # noqa: PLC0415 - loaded for the first signature only

    try:
        public = eddsa.import_public_key(key)
        # RFC 8463, section 3: what is signed is the hash.
        eddsa.new(public, "rfc8032").verify(hashlib.sha256(data).digest(), value)
    except ValueError as exc:
        raise DkimInvalid("the signature does not match") from exc


class DkimInvalid(Exception):
    """This signature proves nothing; the text says why."""


@dataclass(frozen=True, slots=True)
class Key:
    """A public key from DNS; ``strict`` forbids identities below the domain (``t=s``)."""

    kind: str
    data: bytes
    strict: bool = False


def parse_tags(text: str) -> dict[str, str]:
    """A tag list (RFC 6376, section 3.2). Raises `DkimInvalid`: it is not one, or a tag occurs twice."""
    tags: dict[str, str] = {}
    parts = text.split(";")
    for number, part in enumerate(parts):
        name, sign, value = part.partition("=")
        name = name.strip(" \t\r\n")
        if not sign and not name and number == len(parts) - 1:
            break
        if not sign or not _TAG.fullmatch(name) or name in tags:
            raise DkimInvalid("not a list of tags")
        tags[name] = value.strip(" \t\r\n")
    return tags


def unfold(text: str) -> str:
    """Without the spaces and line ends that may stand anywhere in a long value."""
    return _FOLDING.sub("", text)


def domain_name(text: str) -> str:
    """A DNS name, in lower case. Raises `DkimInvalid`: it is not one."""
    name = text.lower().removesuffix(".")
    if len(name) > 253 or not all(_NAME.fullmatch(label) for label in name.split(".")):
        raise DkimInvalid("not a domain name")
    return name


def decode_base64(text: str) -> bytes:
    """Decode folded base64. Raises `DkimInvalid`: it is not base64."""
    try:
        return base64.b64decode(unfold(text), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise DkimInvalid("no base64") from exc


def parse_key(text: str) -> Key:
    """Parse a key record (RFC 6376, section 3.6.1). Raises DkimInvalid, also for a revoked key."""
    tags = parse_tags(text)
    if "v" in tags and (next(iter(tags)) != "v" or tags["v"] != "DKIM1"):
        raise DkimInvalid("not a DKIM key")
    flags = {unfold(flag) for flag in tags.get("t", "").split(":")}
    if "y" in flags:
        raise DkimInvalid("its owner is only testing it (t=y)")
    if "h" in tags and "sha256" not in {unfold(name) for name in tags["h"].split(":")}:
        raise DkimInvalid("not for SHA-256")
    if not {unfold(name) for name in tags.get("s", "*").split(":")} & {"*", "email"}:
        raise DkimInvalid("not for mail")
    kind = tags.get("k", "rsa")
    if kind not in {"rsa", "ed25519"}:
        raise DkimInvalid("an unknown type of key")
    data = decode_base64(tags.get("p", ""))
    if not data:
        raise DkimInvalid("revoked")
    return Key(kind, data, strict="s" in flags)


def check_coverage(fields: Sequence[tuple[str, bytes]], signed: Sequence[str], body: bytes) -> None:
    """
    Check the parts that a signature does not cover. Raises DkimInvalid if one has a meaning.

    ``fields`` are the whole header and ``signed`` the covered names, both in lower case; ``body`` is as much
    of the text as anybody is shown.
    """
    there = dict(fields)
    names = [name for name, _ in fields]
    if names.count("from") != 1:
        raise DkimInvalid("there is not exactly one From")
    if not _ID.fullmatch(there.get("message-id", b"").partition(b":")[2]):
        # Then the mail would be known by its text, in which a copy may differ by blanks.
        raise DkimInvalid("there is no usable message-id")
    for name in _ONCE:
        if names.count(name) > min(signed.count(name), 1):
            raise DkimInvalid(f"{name} is not signed, or occurs more than once")
    if "content-type" not in signed and _TYPED.search(body):
        raise DkimInvalid("content-type is not signed and may have been removed")
    in_parts = there.get("content-type", b"").partition(b":")[2].strip().lower().startswith(b"multipart/")
    if "content-transfer-encoding" not in signed and not in_parts and _ENCODED.search(body):
        raise DkimInvalid("content-transfer-encoding is not signed and may have been removed")


def recipients_of(fields: Sequence[tuple[str, bytes]]) -> frozenset[str]:
    """The addresses in To and Cc; none of a field that cannot be read."""
    values = [
        field.partition(b":")[2].replace(b"\r\n", b"").decode("utf-8", "replace")
        for name, field in fields
        if name in {"to", "cc"}
    ]
    return frozenset(address for value in values for address in mailboxes_or_none([value]) or ())
