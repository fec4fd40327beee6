"""Whose mail is it, and what does the server say about that: pure functions on raw bytes.

A submission server knows its user, so it can vouch for the From address by comparing it with the login.
It says so the way large providers do, with an `Authentication-Results` field (RFC 8601) at the top. A
reader believes the field by its first word, the authserv-id; so a server must remove any such field that
came in with its own id (RFC 8601, section 5), otherwise everybody could vouch for himself.

The bytes of a message are never re-serialised: fields are cut out and put in front, the rest stays as it
came.
"""

from __future__ import annotations

import re
from email.parser import BytesHeaderParser
from email.utils import getaddresses

_END_OF_HEADER = re.compile(rb"(?:\A|\n)\r?\n")
_FIELD_START = re.compile(rb"(?<=\n)(?![ \t])")
_COMMENT = re.compile(rb"\([^()]*\)")


def split_message(raw: bytes) -> tuple[list[bytes], bytes]:
    """Cut a message into its header fields (with line ends, unfolded they are not) and everything after."""
    end = _END_OF_HEADER.search(raw)
    if end is None:
        return [field for field in _FIELD_START.split(raw) if field], b""
    cut = end.start() + 1 if raw[end.start() : end.start() + 1] == b"\n" and end.start() else end.start()
    head, rest = raw[:cut], raw[cut:]
    return [field for field in _FIELD_START.split(head) if field], rest


def without_results_of(raw: bytes, authserv_id: str) -> bytes:
    """Remove every Authentication-Results field that claims to be from this server."""
    fields, rest = split_message(raw)
    kept = [field for field in fields if _authserv_id_or_none(field) != authserv_id.lower()]
    return b"".join(kept) + rest


def with_results(raw: bytes, authserv_id: str, from_domain: str) -> bytes:
    """Put our verdict on top: the sender is who the From field says."""
    field = f"Authentication-Results: {authserv_id}; dmarc=pass header.from={from_domain}\r\n"
    return field.encode("ascii") + raw


def with_message_id(raw: bytes, message_id: str) -> bytes:
    """Set the Message-ID in the place of the client's."""
    fields, rest = split_message(raw)
    kept = [field for field in fields if not field.lower().startswith(b"message-id:")]
    return f"Message-ID: {message_id}\r\n".encode("ascii") + b"".join(kept) + rest


def from_addresses(raw: bytes) -> list[str]:
    """List the addresses of all From fields, in lower case."""
    fields, _ = split_message(raw)
    message = BytesHeaderParser().parsebytes(b"".join(fields) + b"\r\n")
    values = [str(value) for value in message.get_all("From", [])]
    return [address.lower() for _, address in getaddresses(values)]


def mailbox_of(address: str) -> str:
    """Give an address in lower case and without its plus-tag: the mailbox it belongs to."""
    local, at, domain = address.strip().lower().rpartition("@")
    return f"{local.partition('+')[0]}{at}{domain}"


def _authserv_id_or_none(field: bytes) -> str | None:
    name, colon, value = field.partition(b":")
    if not colon or name.strip().lower() != b"authentication-results":
        return None
    while (shorter := _COMMENT.sub(b" ", value)) != value:
        value = shorter
    first = value.partition(b";")[0].split()
    return first[0].strip(b'"').lower().decode("latin-1") if first else None
