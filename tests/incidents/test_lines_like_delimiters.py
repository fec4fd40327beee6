"""
A stranger's mail of 24 MB took 15 s to be taken apart, and nobody else's was read meanwhile: nineteen multiparts in one
another, each with a boundary that begins like that of the next, and a million lines that begin like all of them.
"""

from __future__ import annotations

import pytest

from channels.email.parsing import mime
from channels.email.parsing.message import parse_mail
from channels.email.parsing.mime import Caps, Unreadable, normalised, parse_structure
from channels.email.parsing.unreadable import apology_of


def nested(levels: int, leaf: bytes) -> bytes:
    """Multiparts in one another; the boundary of each begins like those outside."""
    raw = b'From: a@b.test\r\nContent-Type: multipart/mixed; boundary="a"\r\n\r\n'
    for level in range(1, levels):
        inner = "a" * (level + 1)
        raw += f'--{"a" * level}\r\nContent-Type: multipart/mixed; boundary="{inner}"\r\n\r\n'.encode()
    raw += b"--" + b"a" * levels + b"\r\nContent-Type: text/plain\r\n\r\n" + leaf
    for level in range(levels, 0, -1):
        raw += b"\r\n--" + b"a" * level + b"--"
    return raw + b"\r\n"


@pytest.mark.parametrize("levels", [1, 19])
def test_they_are_counted(levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of them there are, and in however many multiparts, there is an end."""
    seen = 0
    whole = mime._pieces

    def counted(*args: object) -> object:
        nonlocal seen
        for each in whole(*args):
            seen += 1
            yield each

    monkeypatch.setattr(mime, "_pieces", counted)
    raw = nested(levels, b"--" + b"a" * 30 + b"X\r\n" + (b"--" + b"a" * 30 + b"X\r\n") * 20_000)
    with pytest.raises(Unreadable) as caught:
        parse_structure(normalised(raw), Caps())
    assert caught.value.reason == "too_many_parts"
    assert "more parts than I take apart" in apology_of(caught.value.reason)
    assert seen < 2 * Caps().near_delimiters


def test_boundaries_that_begin_alike_are_read() -> None:
    """The control: programs that number their boundaries write such mails, and people paste raw ones."""
    pasted = b"--a is what it says\r\n" * 100
    mail = parse_mail(nested(10, b"hello\r\n" + pasted + b"the end"))
    assert mail.text.startswith("hello")
    assert mail.text.endswith("the end")
    assert not mail.attachments
