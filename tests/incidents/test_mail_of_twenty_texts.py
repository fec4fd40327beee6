"""
A stranger's mail of twenty megabytes, all of it text in twenty parts, cost twenty seconds of the processor and
half a gigabyte of memory: each part alone was within its limit. The owner waited behind it.
"""

from __future__ import annotations

import pytest

from channels.email.parse.inbound_mail import parse_mail
from channels.email.parse.mime import Caps

HEADER = b"From: a@b.test\r\nTo: c@d.test\r\nContent-Type: multipart/%s; boundary=X\r\n\r\n"
ROOM = Caps(text_bytes=10_000)


def mail(kind: bytes, *parts: tuple[bytes, bytes]) -> bytes:
    pieces = [b"--X\r\nContent-Type: " + name + b"\r\n\r\n" + body + b"\r\n" for name, body in parts]
    return HEADER % kind + b"".join(pieces) + b"--X--\r\n"


@pytest.mark.parametrize("kind", [b"mixed", b"alternative"])
@pytest.mark.parametrize("name", [b"text/plain", b"text/html"])
def test_all_texts_share_one_limit(kind: bytes, name: bytes) -> None:
    """However many parts there are, so much is read and no more."""
    parsed = parse_mail(mail(kind, *[(name, b"word " * 1000)] * 20), ROOM)

    assert 1000 < len(parsed.text) <= 10_100


def test_usual_mails_are_read_whole() -> None:
    """A text with a text behind it, as lists and signatures make it."""
    parsed = parse_mail(mail(b"mixed", (b"text/plain", b"Hello."), (b"text/plain", b"The list's footer.")))

    assert parsed.text == "Hello.\n\nThe list's footer."


def test_the_plain_version_comes_first() -> None:
    """A huge HTML version takes no room from the plain one, wherever it stands."""
    parsed = parse_mail(mail(b"alternative", (b"text/html", b"x" * 20_000), (b"text/plain", b"Hello.")), ROOM)

    assert parsed.text == "Hello."
