"""Bytes that are nearly right: seeded, so that every find can be had again."""

from __future__ import annotations

import random
from collections.abc import Sequence

_TOKENS = (
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b"(", b")", b'"', b"\\", b";", b"=", b"<", b">", b"@", b",", b":",
    b"{5}\r\n", b"{0}\r\n", b"{99999999999}\r\n", b"* ", b"+ ", b"NIL", b"From: evil@x.test\r\n", b"=?utf-8?b?", b"?=",
    b"--b1\r\n", b"--b1--", b"Content-Type: multipart/mixed; boundary=b1\r\n\r\n", b"dmarc=pass header.from=mail.test",
    b"\xff\xfe", b"\xc3", "\u202e".encode(), b"<b", b"<!--", b"On ", b"> ", b"-- \n", b"&", b"A" * 300, b"(" * 200,
)  # fmt: skip


def mutated(seeds: Sequence[bytes], number: int, *, longest: int = 20_000) -> bytes:
    """The input of this number: a seed with some bytes changed, cut, doubled, or tokens put in."""
    chance = random.Random(number)
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 2, 4, 8, 32))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(7):
            case 0 if data:
                data[at % len(data)] = chance.randrange(256)
            case 1:
                del data[at : at + chance.choice((1, 2, 10, 100))]
            case 2:
                data[at:at] = chance.choice(_TOKENS)
            case 3:
                data[at:at] = chance.choice(_TOKENS) * chance.choice((2, 10, 50))
            case 4:
                other = chance.choice(seeds)
                start = chance.randrange(len(other) + 1)
                data[at:at] = other[start : start + chance.choice((5, 50, 500))]
            case 5:
                data[at:at] = data[at : at + chance.choice((10, 100, 1000))] * chance.choice((1, 5))
            case _ if data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
    return bytes(data[:longest])
