"""
Does a signature cover all of a mail that means anything here, and for whom is the mail? Pure and linear.

A signature names the fields that it covers (RFC 6376, section 5.4); whoever has a copy of the mail may add,
change and take away all others. So every field that acts here must be signed wherever it stands, and stand
there once (`_ONCE`): who it is from, whom it is for, what is answered, and how the text is to be read. A
signature over a field that does not stand there says that none was taken away. Many signers do not say that,
so a text without the fields of MIME must not look as if it had had them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from channels.email.parsing.addresses import mailboxes_or_none
from channels.email.trust.dkim_tags import DkimInvalid

__all__ = ["check_coverage", "recipients_of"]

_ONCE = (
    *("from", "to", "cc", "subject", "date", "message-id", "reply-to", "in-reply-to", "references"),
    *("mime-version", "content-type", "content-transfer-encoding", "content-disposition"),
)
_ID = re.compile(rb"\s*<[!-;=?-~]{1,250}>\s*")
_TYPED = re.compile(rb"^content-type[ \t]*:|<[/!]?[a-z][a-z0-9]*[\s/>]", re.IGNORECASE | re.MULTILINE)
"""What a multipart and a page have in them."""
_ENCODED = re.compile(rb"=(?:[0-9A-F]{2}|[ \t]*\r\n)")
"""Quoted-printable: without its soft line ends a quoted line goes on as one that is not quoted."""


def check_coverage(fields: Sequence[tuple[str, bytes]], signed: Sequence[str], body: bytes) -> None:
    """
    Look at what a signature leaves out.

    Args:
        fields: The whole header: names in lower case, and the fields as they stand there.
        signed: The names that the signature covers, in lower case, as often as it does.
        body: The text as it came, as much of it as anybody is shown.

    Raises:
        DkimInvalid: Something that means anything; what, in a few words.
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
            raise DkimInvalid(f"{name} is not signed, or stands there more than once")
    if "content-type" not in signed and _TYPED.search(body):
        raise DkimInvalid("content-type is not signed, and may have been taken away")
    in_parts = there.get("content-type", b"").partition(b":")[2].strip().lower().startswith(b"multipart/")
    if "content-transfer-encoding" not in signed and not in_parts and _ENCODED.search(body):
        raise DkimInvalid("content-transfer-encoding is not signed, and may have been taken away")


def recipients_of(fields: Sequence[tuple[str, bytes]]) -> frozenset[str]:
    """Whom To and Cc name; of a field that cannot be read nobody."""
    values = [
        field.partition(b":")[2].replace(b"\r\n", b"").decode("utf-8", "replace")
        for name, field in fields
        if name in {"to", "cc"}
    ]
    return frozenset(address for value in values for address in mailboxes_or_none([value]) or ())
