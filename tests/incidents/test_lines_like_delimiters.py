"""
A stranger's mail of 24 MB took 15 s to be taken apart, and nobody else's was read meanwhile: nineteen multiparts in one
another, each with a boundary that begins like that of the next, and a million lines that begin like all of them.
"""

from __future__ import annotations

import email.message
import urllib.parse

import pytest

from channels.email.parse import mime
from channels.email.parse.inbound_mail import parse_mail
from channels.email.parse.mime import Caps, Unreadable, normalise_lines, parse_structure
from channels.email.parse.unreadable import apology_of


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
        parse_structure(normalise_lines(raw), Caps())
    assert caught.value.reason == "too_many_parts"
    assert "too many parts" in apology_of(caught.value.reason)
    assert seen < 2 * Caps().near_delimiters


def test_parameters_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Thirteen hundred parameters in each of two hundred parts took nearly three seconds a mail: of a field that has more
    than anybody writes the type alone is read. A long name of a file, in pieces, is read as ever.
    """
    read = 0
    whole = email.message._parseparam

    def counted(text: str) -> list[str]:
        nonlocal read
        found = whole(text)
        read += len(found)
        return found

    monkeypatch.setattr(email.message, "_parseparam", counted)
    parts = (b"--q\r\nContent-Type: text/plain; " + b'x="\\";' * 1_300 + b"\r\n\r\nhello\r\n") * 199
    head = b"From: a@b.test\r\nContent-Type: multipart/mixed; boundary=q\r\n\r\n"
    mail = parse_mail(head + parts + b"--q--\r\n")
    assert "hello" in mail.text
    assert read < 20_000

    name = "长" * 80 + ".txt"
    quoted = urllib.parse.quote(name)
    pieces = "".join(
        f";\r\n filename*{number}*={'' if number else chr(39).join(('utf-8', '', ''))}{quoted[at : at + 60]}"
        for number, at in enumerate(range(0, len(quoted), 60))
    )
    file = f"--q\r\nContent-Type: text/plain\r\nContent-Disposition: attachment{pieces}\r\n\r\nhello\r\n--q--"
    [note] = parse_mail(head + file.encode()).attachments
    assert note.name == name


def test_boundaries_that_begin_alike_are_read() -> None:
    """The control: programs that number their boundaries write such mails, and people paste raw ones."""
    pasted = b"--a is what it says\r\n" * 100
    mail = parse_mail(nested(10, b"hello\r\n" + pasted + b"the end"))
    assert mail.text.startswith("hello")
    assert mail.text.endswith("the end")
    assert not mail.attachments
