"""DKIM: what is believed, what is not, and that another implementation agrees about the signatures."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence

import dkim
import pytest
from Crypto.PublicKey import RSA
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from channels.email.trust.dkim import DkimInvalid, find_signatures, parse_key, parse_tags, verify
from channels.email.trust.dkim_alignment import SenderVerifier
from channels.email.trust.dns import MAX_TEXTS, NamesUnavailable, NoSuchName, TextRecords
from tests.clock import LoopClock
from tests.rows import rows

pytestmark = pytest.mark.virtual_time
NOW = 1_800_000_000.0


def _rsa_key(*primes: str) -> RSA.RsaKey:
    """A key of known primes: to find new ones takes a quarter of a second each time that this is imported."""
    p, q = (int(prime, 16) for prime in primes)
    return RSA.construct((p * q, 65537, pow(65537, -1, (p - 1) * (q - 1)), p, q), consistency_check=False)


PRIVATE = _rsa_key(
    "da574258f5107257098656ae150fed03e809f7e7fd5abb9e5a267c769670de8a"
    "66a0523a60ed9121bf2c05c023fb24a36d7993483280973d2bf6cdb93dccabd3",
    "c82e16dd573f657ba6ec032e43f4c201747eb9ba6f40635d41520714ac698472"
    "e15e787f0489aecf4f4d4185fe6dd1a551d6691b3db139b0f7526e88da94793f",
)
SMALL = _rsa_key(  # stands for a key of another owner
    "ee2645f3b215b99e20f3d5dc2cf5de9b6449393eb56eeea173badd1246c079be"
    "68e8384ec39fcf235267fdc267d4b6a25f48c1843143c572b98c8e22bfe6f679",
    "f418767c8e5c72c267e6e2499ccfec9e35ae83e7ebceba6b05a616506374eb4f"
    "1fb171951a7b633e48cb487d13804350c1dab2b9635a1cc1c3cc20b0b630cd2d",
)

ED = SigningKey(b"7" * 32)
MAIL = (
    b"From: Alice <alice@mail.test>\r\nTo: bot@mail.test\r\nSubject: Hello   there\r\n"
    b"Date: Fri, 02 Jan 2026 03:04:05 +0000\r\nMessage-ID: <one@mail.test>\r\n\r\n"
    b"Hello  bot \r\n\r\nsecond line\r\n\r\n\r\n"
)
INCLUDED = [b"from", b"to", b"subject", b"date", b"message-id"]


def record(key: RSA.RsaKey = PRIVATE, more: str = "") -> str:
    return f"v=DKIM1; {more}p={base64.b64encode(key.public_key().export_key('DER')).decode()}"


def signed(
    raw: bytes = MAIL,
    *,
    domain: bytes = b"mail.test",
    canon: tuple[bytes, bytes] = (b"relaxed", b"relaxed"),
    key: RSA.RsaKey = PRIVATE,
    include: Sequence[bytes] = tuple(INCLUDED),
    length: bool = False,
) -> bytes:
    return (
        dkim.sign(
            raw,
            b"sel",
            domain,
            key.export_key("PEM"),
            canonicalize=canon,
            include_headers=list(include),
            length=length,
        )
        + raw
    )


def believed(raw: bytes, text: str | None = None, now: float = NOW) -> bool:
    """Whether a signature of mail.test in this mail is good."""
    for signature in find_signatures(raw, now=now):
        try:
            verify(raw, signature, parse_key(text or record()))
        except DkimInvalid:
            continue
        return signature.domain == "mail.test"
    return False


def other_says(raw: bytes, text: str | None = None) -> bool:
    return bool(dkim.verify(raw, dnsfunc=lambda name, timeout=5: (text or record()).encode()))


FORMS = [(a, b) for a in (b"simple", b"relaxed") for b in (b"simple", b"relaxed")]


@rows("canon", FORMS)
def test_all_four_canonicalisations(canon: tuple[bytes, bytes]) -> None:
    """What another program has signed is verified, in each form."""
    assert believed(signed(canon=canon))


@rows("body", [b"", b"\r\n", b"\r\n\r\n", b"x", b" \t\r\n", b"a\t\tb \r\n \r\n\r\n"])
@rows("canon", FORMS)
def test_odd_bodies(body: bytes, canon: tuple[bytes, bytes]) -> None:
    """Empty ones, blank lines at the end, white space, no line end."""
    raw = signed(MAIL.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" + body, canon=canon)

    assert other_says(raw)
    assert believed(raw)


def test_ed25519() -> None:
    """The other algorithm (RFC 8463)."""
    text = f"v=DKIM1; k=ed25519; p={base64.b64encode(bytes(ED.verify_key)).decode()}"
    head = dkim.sign(
        MAIL,
        b"sel",
        b"mail.test",
        base64.b64encode(bytes(ED)),
        signature_algorithm=b"ed25519-sha256",
        canonicalize=(b"relaxed", b"relaxed"),
        include_headers=INCLUDED,
    )

    assert believed(head + MAIL, text)
    assert not believed(head + MAIL, record())
    assert not believed(head + MAIL.replace(b"Hello  bot", b"Hello you"), text)


def _altered(raw: bytes, before: bytes, after: bytes) -> bytes:
    assert before in raw
    return raw.replace(before, after, 1)


@rows(
    ("before", "after"),
    [
        (b"Hello  bot", b"Hello cat"),
        (b"Subject: Hello", b"Subject: Hullo"),
        (b"alice@mail.test", b"alicf@mail.test"),
        (b"From: Alice", b"From: Mallory <m@evil.test>\r\nFrom: Alice"),
        (b"\r\n\r\nHello", b"\r\nFrom: Mallory <m@evil.test>\r\n\r\nHello"),
        (b"Subject: Hello", b"Subject: other\r\nSubject: Hello"),
        (b"\r\n\r\nHello", b"\r\nReply-To: m@mail.test\r\n\r\nHello"),
        (b"\r\n\r\nHello", b"\r\nMessage-ID: <two@mail.test>\r\n\r\nHello"),
        (b"\r\n\r\nHello", b"\r\nX: a\rb\r\n\r\nHello"),
        (b"\r\n\r\nHello", b"\r\nX: a\nb\r\n\r\nHello"),
        (b"\r\n\r\nHello", b"\r\nX: \0\r\n\r\nHello"),
        (b"second line\r\n", b"second line\r\nand a third\r\n"),
        (b"a=rsa-sha256", b"a=rsa-sha1"),
        (b"d=mail.test", b"d=evil.test"),
        (b"v=1", b"v=2"),
    ],
)
def test_whatever_is_changed_or_added_is_noticed(before: bytes, after: bytes) -> None:
    """One changed byte, one more field that acts, a line end that others read differently: not believed."""
    raw = signed()
    assert believed(raw)

    assert not believed(_altered(raw, before, after))


def test_a_text_that_is_signed_in_part_is_not_believed() -> None:
    """With ``l=`` anybody can append; the other program falls for it, so this is the control."""
    raw = signed(length=True)

    assert other_says(raw + b"and send me all your money\r\n")
    assert not believed(raw + b"and send me all your money\r\n")
    assert not believed(raw)


@rows("left_out", [b"subject", b"date", b"message-id"])
def test_what_acts_must_be_signed(left_out: bytes) -> None:
    """Without it a copy with another subject or id would be as good as the mail."""
    raw = signed(include=[name for name in INCLUDED if name != left_out])

    assert other_says(raw)
    assert not believed(raw)


def test_times() -> None:
    """Expired, and from the future; an hour of clock difference is nothing."""
    raw = signed()
    made = int(re.search(rb"; t=(\d+)", raw)[1]) if re.search(rb"; t=(\d+)", raw) else None

    def with_tags(tags: bytes) -> list[object]:
        return list(find_signatures(_altered(raw, b"v=1;", b"v=1; " + tags), now=NOW))

    raw = re.sub(rb" t=\d+;", b"", raw)
    assert made is None or made > 0
    assert with_tags(b"x=1799999999;") == []
    assert with_tags(b"x=1800000001;") != []
    assert with_tags(b"t=1800003599;") != []
    assert with_tags(b"t=1800003700;") == []
    assert with_tags(b"t=5; x=4;") == []
    assert with_tags(b"x=soon;") == []


@rows(
    ("text", "why"),
    [
        ("v=DKIM1; p=", "revoked"),
        ("v=DKIM2; p=AAAA", "not a DKIM key"),
        ("p=AAAA; v=DKIM1", "not a DKIM key"),
        ("v=DKIM1; t=y; p=AAAA", "only testing it"),
        ("v=DKIM1; h=sha1; p=AAAA", "not for SHA-256"),
        ("v=DKIM1; s=tlsrpt; p=AAAA", "not for mail"),
        ("v=DKIM1; k=dsa; p=AAAA", "unknown type"),
        ("v=DKIM1; p=%%%", "no base64"),
        ("spf1 all", "not a list"),
        ("v=DKIM1; p=AAAA; p=BBBB", "not a list"),
    ],
)
def test_keys_that_are_none(text: str, why: str) -> None:
    """Revoked, on trial, for something else, or garbage."""
    with pytest.raises(DkimInvalid, match=why):
        parse_key(text)


def test_the_size_of_a_key() -> None:
    """RSA below 1024 bits is not believed (RFC 8301), and a damaged key is no crash."""
    numbers = RSA.construct((PRIVATE.n >> 600 | 1, 65537)).export_key("DER")
    raw = signed()
    for data in (numbers, b"\x30\x03\x02\x01\x01", b"x" * 5000):
        assert not believed(raw, f"v=DKIM1; p={base64.b64encode(data).decode()}")


def test_a_strict_key_forbids_identities_below() -> None:
    """``t=s``: i= must be the domain itself."""
    raw = dkim.sign(
        MAIL,
        b"sel",
        b"mail.test",
        PRIVATE.export_key("PEM"),
        identity=b"@sub.mail.test",
        include_headers=INCLUDED,
    )

    assert believed(raw + MAIL)
    assert not believed(raw + MAIL, record(more="t=s; "))


@given(st.binary(max_size=400))
def test_total(junk: bytes) -> None:
    """Whatever stands in a mail: a list of signatures, perhaps empty."""
    assert find_signatures(b"DKIM-Signature: " + junk + b"\r\nFrom: a@b.test\r\n\r\n" + junk, now=NOW) == []
    assert isinstance(find_signatures(junk, now=NOW), list)


@given(st.text(alphabet="ab=; \t\r\nvp1", max_size=60))
def test_tags_are_total(text: str) -> None:
    """A dictionary, or our error."""
    try:
        tags = parse_tags(text)
    except DkimInvalid:
        return
    assert all(value == value.strip() for value in tags.values())


class Zone:
    """DNS in memory: answers, counts, and fails on request."""

    def __init__(self, texts: dict[str, str], failures: int = 0) -> None:
        self.texts = texts
        self.failures = failures
        self.asked: list[str] = []

    async def __call__(self, name: str, limit_s: float) -> Sequence[str]:
        self.asked.append(name)
        if self.failures:
            self.failures -= 1
            raise NamesUnavailable(name)
        if name not in self.texts:
            raise NoSuchName(name)
        return [self.texts[name]]


KEY_NAME = "sel._domainkey.mail.test"


def proof(zone: Zone, knows: bool = True) -> SenderVerifier:
    records = TextRecords(zone, LoopClock().monotonic)
    return SenderVerifier(records, lambda: NOW, "bot@mail.test", knows=lambda _: knows)


class TestProof:
    async def test_a_signature_of_the_very_domain(self) -> None:
        """Proven, by one question, which the next mail need not ask again."""
        zone = Zone({KEY_NAME: record()})
        prover = proof(zone)

        assert (await prover.find(signed(), "alice@mail.test")).by == "signed by mail.test"
        assert (await prover.find(signed(), "alice@mail.test")).by
        assert zone.asked == [KEY_NAME]

    async def test_dns_is_asked_again(self) -> None:
        """Two failures are no answer; a third one is remembered by nobody, so the next mail has another chance."""
        assert (await proof(Zone({KEY_NAME: record()}, failures=2)).find(signed(), "a@mail.test")).by
        zone = Zone({KEY_NAME: record()}, failures=3)
        prover = proof(zone)
        assert not (await prover.find(signed(), "a@mail.test")).by
        assert (await prover.find(signed(), "a@mail.test")).by

    async def test_dns_that_hangs_is_given_up(self) -> None:
        """Each try has its limit, and the mail, too."""

        async def never(name: str, limit_s: float) -> Sequence[str]:
            await __import__("anyio").sleep_forever()
            return []

        clock = LoopClock()
        began = clock.monotonic()
        prover = SenderVerifier(TextRecords(never, clock.monotonic), lambda: NOW, "bot@mail.test")

        assert not (await prover.find(signed(), "a@mail.test")).by
        assert clock.monotonic() - began < 16

    async def test_a_name_with_thousands_of_texts_is_remembered_with_a_few(self) -> None:
        """Whoever owns a domain chooses how many there are; more than these are never tried."""

        async def many(_name: str, _limit_s: float) -> list[str]:
            return ["v=DKIM1", "x" * 9_000, *map(str, range(5_000))]

        records = TextRecords(many, LoopClock().monotonic)
        assert await records.get("a.test") == ("v=DKIM1", *map(str, range(MAX_TEXTS - 1)))

    async def test_people_who_may_not_write_cost_nothing(self) -> None:
        """No question to DNS because of a stranger."""
        zone = Zone({KEY_NAME: record()})

        assert not (await proof(zone, knows=False).find(signed(), "a@mail.test")).by
        assert zone.asked == []

    @pytest.mark.parametrize(
        ("signer", "domain", "good"),
        [
            ("mail.test", "mail.test", True),
            ("out.mail.test", "mail.test", False),
            ("mail.test", "sub.mail.test", False),
            ("evilmail.test", "mail.test", False),
        ],
    )
    async def test_only_the_very_domain(self, signer: str, domain: str, good: bool) -> None:
        """What lies below or above it may be somebody else's, whatever DMARC would allow; nobody is asked."""
        raw = signed(MAIL.replace(b"alice@mail.test", f"alice@{domain}".encode()), domain=signer.encode())
        zone = Zone({f"sel._domainkey.{signer}": record(), "_dmarc.mail.test": "v=DMARC1; p=none"})

        assert bool((await proof(zone).find(raw, f"alice@{domain}")).by) is good
        assert bool(zone.asked) is good

    async def test_a_valid_signature_of_somebody_else(self) -> None:
        """It proves that somebody signed it, and not who wrote it."""
        zone = Zone({"sel._domainkey.evil.test": record()})

        assert not (await proof(zone).find(signed(domain=b"evil.test"), "alice@mail.test")).by

    async def test_the_second_signature_counts_as_well(self) -> None:
        """A mailing service signs on top; the one of the author's domain is found below."""
        inner = signed()
        zone = Zone({KEY_NAME: record(), "sel._domainkey.other.test": record(SMALL)})

        assert (await proof(zone).find(signed(inner, domain=b"other.test", key=SMALL), "a@mail.test")).by
