"""
A stranger's mail with ``charset="punycode_"`` took quadratic time, 46 s for a megabyte, in a thread that nothing can
end: the list of charsets that are refused knew one spelling of each, and Python knows any.
"""

from __future__ import annotations

import base64
import codecs

from channels.email.parse.inbound_mail import parse_mail
from channels.email.parse.mime import decode_text, decoded_header
from tests.rows import rows

SLOW = {"punycode", "idna", "unicode-escape", "raw-unicode-escape", "undefined"}
SPELLINGS = [
    "punycode",
    "PunyCode",
    "punycode_",
    "-punycode",
    "punycode--",
    "idna_",
    "IDNA",
    "unicode escape",
]
SPELLINGS += ["unicode_escape", "raw-unicode-escape", "raw unicode__escape", "undefined-"]
DATA = b"Caf\\u00e9 caf-dma"


@rows("label", SPELLINGS)
def test_no_spelling_gets_through(label: str) -> None:
    """What the text says is read as it stands, in the text and in a header."""
    assert codecs.lookup(label).name in SLOW, "the control: Python takes it"
    assert decode_text(DATA, label) == DATA.decode()
    mail = f'From: a@b.test\r\nContent-Type: text/plain; charset="{label}"\r\n\r\n'.encode() + DATA
    assert parse_mail(mail).text == DATA.decode()
    if " " not in label:
        assert decoded_header(f"=?{label}?q?caf-dma?=") == "caf-dma"


@rows(
    ("label", "data", "text"),
    [
        ("KOI8-R", "привет".encode("koi8-r"), "привет"),
        ("iso-2022-jp", "日本".encode("iso-2022-jp"), "日本"),
        ("UTF-16", "größe".encode("utf-16"), "größe"),
        ("iso_8859-1", "größe".encode(), "größe"),
        ("windows-1252", "größe".encode("cp1252"), "größe"),
        ("x" * 300, b"plain", "plain"),
        ("no\0name", b"plain", "plain"),
        ("no\ud800name", b"plain", "plain"),
        ("base64", b"plain", "plain"),
    ],
)
def test_charsets_are_read(label: str, data: bytes, text: str) -> None:
    """The control: others count, also under other spellings; what is none does not."""
    assert decode_text(data, label) == text


@rows(
    ("data", "text"),
    [
        (b"\x1b$B-!-j\x1b(B 3", "①㈱ 3"),
        (b"\x1b$B|b\x1b(B", "髙"),
        (b"\x1b(I6@6E\x1b(B!", "ｶﾀｶﾅ!"),
        ("明日の予定、ABC\n田中".encode("iso-2022-jp"), "明日の予定、ABC\n田中"),
        (b"\x1b$B-", ""),
    ],
)
def test_japanese_mails_have_the_characters_of_windows(data: bytes, text: str) -> None:
    """Circled numbers, company signs and names, which Python's codec replaced; so in subjects and names."""
    assert decode_text(data, "ISO-2022-JP") == text
    word = base64.b64encode(data).decode()
    assert decoded_header(f"=?ISO-2022-JP?B?{word}?=") == text
