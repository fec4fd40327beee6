"""
One broken byte made a whole mail unreadable: a text in UTF-8 in which a single sequence was cut was read as
Latin-1, and every umlaut in it became two wrong characters. So were headers, quoted mails and text files.
"""

from __future__ import annotations

import pytest

from agent_core.tools.plain_text import text_in
from channels.email.parse.inbound_mail import parse_mail
from channels.email.parse.mime import decode_text

HEAD = b"From: a@mail.test\r\nTo: bot@mail.test\r\n"
GOOD = "Grüße aus Österreich, ok é"
BAD = GOOD.encode() + b" \xc3"
KOI = "Привет, как дела".encode("koi8-r")


def mail(*fields: bytes, body: bytes) -> bytes:
    return HEAD + b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body + b"\r\n"


@pytest.mark.parametrize("charset", [b"utf-8", b"us-ascii", b""])
def test_the_text_keeps_its_encoding(charset: bytes) -> None:
    """Declared, wrongly declared or not at all: all but the broken byte is read."""
    label = b"Content-Type: text/plain" + (b"; charset=" + charset if charset else b"")

    assert parse_mail(mail(label, body=BAD)).text == f"{GOOD} \ufffd"


def test_the_smallest_case() -> None:
    """One character that fits and one that does not: the declared encoding stays."""
    assert decode_text(b"ok \xc3\xa9 \xc3", "utf-8") == "ok é \ufffd"


@pytest.mark.parametrize(
    ("charset", "text", "broken"),
    [
        ("shift_jis", "これは日本語です", b"\xfd"),
        ("euc-kr", "안녕하세요", b"\xff"),
        ("gb18030", "你好世界", b"\xff"),
        ("utf-16", "plain letters only", b"x"),
        ("cp1252", "Grüße", b"\x81"),
    ],
)
def test_other_encodings(charset: str, text: str, broken: bytes) -> None:
    """The rule is not one for UTF-8 alone."""
    assert decode_text(text.encode(charset) + broken, charset).startswith(text)


def test_html_and_quoted_mails() -> None:
    """A page, and a mail inside of the mail."""
    page = mail(b"Content-Type: text/html; charset=utf-8", body=b"<p>" + BAD + b"</p>")
    inner = b"From: =?utf-8?q?J=C3=BCrgen=C3?= <j@x.test>\r\nSubject: \xc3\xbcber\xc3\r\n\r\n" + BAD
    outer = mail(
        b"Content-Type: multipart/mixed; boundary=b",
        body=b"--b\r\n\r\nsee below\r\n--b\r\nContent-Type: message/rfc822\r\n\r\n" + inner + b"\r\n--b--",
    )

    assert parse_mail(page).text == f"{GOOD} \ufffd"
    [forwarded] = parse_mail(outer).forwarded
    assert forwarded.sender.startswith("Jürgen\ufffd")
    assert (forwarded.subject, forwarded.text) == ("über\ufffd", f"{GOOD} \ufffd")


@pytest.mark.parametrize(
    ("field", "subject"),
    [
        (b"Subject: Gr\xc3\xbc\xc3\x9fe \xc3", "Grüße \ufffd"),
        (b"Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe_=C3?=", "Grüße \ufffd"),
        (b"Subject: \xe6\x97\xa5\xe6\x9c\xac =?utf-8?q?=C3=BC?= \xc3", "日本 ü \ufffd"),
    ],
    ids=["raw", "encoded", "both"],
)
def test_a_header(field: bytes, subject: str) -> None:
    """Whether it is written as it is, in encoded words, or half and half."""
    assert parse_mail(mail(field, body=b"x")).headers.subject() == subject


@pytest.mark.parametrize(
    "name",
    [
        b"filename*=utf-8''Gr%C3%BC%C3%9Fe%C3.txt",
        b'filename="Gr\xc3\xbc\xc3\x9fe\xc3.txt"',
        b'filename="=?utf-8?q?Gr=C3=BC=C3=9Fe=C3.txt?="',
    ],
    ids=["RFC 2231", "raw", "encoded word"],
)
def test_the_name_of_a_file(name: bytes) -> None:
    """In each of the ways in which programs write it."""
    raw = mail(b"Content-Type: text/csv", b"Content-Disposition: attachment; " + name, body=b"x")

    [note] = parse_mail(raw).attachments
    assert note.name == "Grüße\ufffd.txt"


def test_an_attached_text() -> None:
    """A file of text in UTF-8, read by a tool."""
    lines = f"{GOOD}\n" * 3

    assert text_in(lines.encode() + BAD + b" and more") == f"{lines}{GOOD} \ufffd and more"


@pytest.mark.parametrize(
    ("data", "charset", "text"),
    [
        ("Grüße an Jörg".encode("latin-1"), "utf-8", "Grüße an Jörg"),
        (b"don\x92t", "utf-8", "don’t"),
        ("Grüße".encode("latin-1"), "iso-8859-1", "Grüße"),
        (KOI, "klingon-42", KOI.decode("cp1252")),
    ],
)
def test_a_wrong_label_is_still_a_wrong_label(data: bytes, charset: str, text: str) -> None:
    """Where hardly anything fits, it is another encoding: the negative control."""
    assert decode_text(data, charset) == text
    if charset == "utf-8":
        assert text_in(data) == text
