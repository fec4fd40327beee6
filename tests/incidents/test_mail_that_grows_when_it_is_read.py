"""
A mail of 24 MB took 1.5 GB of memory, or 16 times its reading, so that a small machine killed the daemon, which came
back to the same mail: uuencoded lines of one character each stand for 63 zeros, and the text of a signed mail was made
into a list of lines for each signature and each key that the sender's own DNS named.
"""

from __future__ import annotations

import binascii
import hashlib
import random
import re
import tracemalloc
from collections.abc import Callable

import pytest

from channels.email.parse.inbound_mail import parse_mail
from channels.email.parse.transfer_encoding import decode_pieces, decode_transfer
from channels.email.trust import dkim
from channels.email.trust.dkim_alignment import SenderVerifier
from channels.email.trust.dns import TextRecords
from tests.unit.channels.email.test_dkim import NOW, record, signed

SIZE = 4_000_000
BEGIN = b"begin 644 a.bin\n"


def peak_of(work: Callable[[], object]) -> int:
    """How many bytes of memory it takes more than was there before."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def uuencoded(content: bytes) -> bytes:
    lines = [binascii.b2a_uu(content[at : at + 45]) for at in range(0, len(content), 45)]
    return BEGIN + b"".join(lines) + b"`\nend\n"


@pytest.mark.parametrize("line", [b"\n", b"_\n", b"!\n", b"\xff\xff\n", b"#86)C\n"])
def test_an_uuencoded_file_is_never_larger_than_the_mail(line: bytes) -> None:
    """Nor does it take more memory than itself and a few pieces, whatever its lines are."""
    encoded = BEGIN + line * (SIZE // len(line))
    sizes = []
    peak = peak_of(
        lambda: sizes.extend(len(piece) for piece in decode_pieces(memoryview(encoded), "uuencode"))
    )
    assert sum(sizes) <= len(encoded)
    assert max(sizes) < 3_000_000
    assert peak < 3 * SIZE


def test_a_forwarded_mail_is_none_either() -> None:
    """It is decoded whole while the mail is read, before anybody knows who has sent it."""
    inner = BEGIN + b"_\n" * (SIZE // 2)
    raw = (
        b"From: a@b.test\r\nContent-Type: message/rfc822\r\nContent-Transfer-Encoding: x-uue\r\n\r\n" + inner
    )
    assert peak_of(lambda: parse_mail(raw)) < 12 * SIZE


@pytest.mark.parametrize("size", [0, 1, 44, 45, 46, 3_000_000])
def test_uuencoded_files_are_read(size: int) -> None:
    """The control, also of one whose blanks at the ends of lines were lost on the way."""
    content = random.Random(size).randbytes(size // 2) + bytes(size - size // 2)
    encoded = uuencoded(content)
    assert decode_transfer(encoded, "x-uuencode") == content
    blanks = encoded.replace(b"`", b" ")
    assert decode_transfer(blanks, "x-uuencode") == content
    if size < 100:
        assert decode_transfer(re.sub(rb" +\n", b"\n", blanks), "x-uuencode") == content


@pytest.mark.parametrize("line", [b"ab\r\n", b"\r\n", b" a\t", b"\r\n\n\r\n"])
@pytest.mark.parametrize("form", [dkim._relaxed_body, dkim._simple_body])
def test_a_signed_text_is_hashed_in_pieces(line: bytes, form: Callable[[bytes], object]) -> None:
    body = line * (SIZE // len(line))
    digest = hashlib.sha256()

    def work() -> None:
        for piece in form(body):
            digest.update(piece)

    assert peak_of(work) < 4 * SIZE


def as_the_standard_says(body: bytes) -> tuple[bytes, bytes]:
    """RFC 6376, 3.4.3 and 3.4.4, word for word."""
    simple = body
    while simple.endswith(b"\r\n"):
        simple = simple[:-2]
    lines = [re.sub(rb"[ \t]+", b" ", line).rstrip(b" ") for line in body.split(b"\r\n")]
    while lines and not lines[-1]:
        lines.pop()
    return simple + b"\r\n", b"".join(line + b"\r\n" for line in lines)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1 << 20])
def test_the_pieces_are_the_same_text(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever they are cut."""
    monkeypatch.setattr(dkim, "_PIECE", piece)
    chance = random.Random(piece)
    for _ in range(3_000):
        words = [b"\r\n", b"\r\n", b" ", b"\t", b"a", b"\r", b"\n", b"bc"]
        body = b"".join(chance.choices(words, k=chance.randrange(14)))
        simple, relaxed = as_the_standard_says(body)
        assert (b"".join(dkim._simple_body(body)), b"".join(dkim._relaxed_body(body))) == (simple, relaxed)


async def test_one_key_four_times_is_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the text is looked at only where the signature of the header holds: once for each signature."""
    looked_at: list[object] = []
    whole = dkim.check_body

    def counted(raw: bytes, signature: dkim.Signature) -> None:
        looked_at.append(signature)
        whole(raw, signature)

    monkeypatch.setattr(dkim, "check_body", counted)

    async def lookup(_name: str, _limit_s: float) -> list[str]:
        return [record()] * 4

    proof = SenderVerifier(TextRecords(lookup, lambda: 0.0), lambda: NOW, "bot@mail.test")
    assert (await proof.find(signed(), "alice@mail.test")).by == "signed by mail.test"
    assert len(looked_at) == 1
    changed = await proof.find(signed() + b"more\r\n", "alice@mail.test")
    assert changed.lacks == "the text was changed"
    assert len(looked_at) == 2
    await proof.find(signed().replace(b"Subject: ", b"Subject: other "), "alice@mail.test")
    assert len(looked_at) == 2
