"""
A guest with a domain and a DNS server of their own sent fifty signed mails, each with another selector, and let every
question hang: receiving stood still for 70 s, with the owner's mail behind them, and as long again for the next fifty.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from channels.email.trust.dkim_alignment import LIMIT_S, SLOW_LIMIT_S, SenderVerifier
from channels.email.trust.dns import NoSuchName, TextRecords
from channels.email.verification_queue import VERIFICATIONS_AT_ONCE
from tests.unit.channels.email.test_dkim import KEY_NAME, NOW, record, signed

pytestmark = pytest.mark.virtual_time
FIFTY = range(50)


class Dns:
    """That of ``mail.test`` answers after some time, that of ``slow.test`` never while it ``hangs``."""

    def __init__(self) -> None:
        self.hangs = True
        self.takes_s = 0.0

    async def __call__(self, name: str, limit_s: float) -> Sequence[str]:
        if name.endswith("slow.test") and self.hangs:
            await anyio.sleep_forever()
        await anyio.sleep(self.takes_s)
        if not name.endswith(KEY_NAME.partition(".")[2]) and "slow" not in name:
            raise NoSuchName(name)
        return [record()]


def mail(number: int) -> bytes:
    domain = "slow.test"
    raw = (
        f"From: alice@{domain}\r\nTo: bot@mail.test\r\nSubject: Hi\r\nDate: now\r\n"
        f"Message-ID: <{number}@{domain}>\r\n\r\nhello\r\n"
    ).encode()
    return signed(raw, domain=domain.encode())


def with_selector(number: int) -> bytes:
    return mail(number).replace(b"s=sel;", f"s=sel{number};".encode())


async def batch(prover: SenderVerifier) -> float:
    """How long the receiver is busy with fifty mails of the slow domain."""
    began, room = anyio.current_time(), anyio.CapacityLimiter(VERIFICATIONS_AT_ONCE)

    async def ask(number: int) -> None:
        async with room:
            assert not (await prover.find(with_selector(number), "alice@slow.test")).by

    async with anyio.create_task_group() as tasks:
        for number in FIFTY:
            tasks.start_soon(ask, number)
    return anyio.current_time() - began


async def test_a_domain_that_hangs_gets_little_time() -> None:
    """The first time what anybody gets; then hardly any. Others get what they got before."""
    dns = Dns()
    prover = SenderVerifier(TextRecords(dns, anyio.current_time), lambda: NOW, "bot@mail.test")
    rounds = -(-len(FIFTY) // VERIFICATIONS_AT_ONCE)
    assert await batch(prover) < LIMIT_S + rounds * SLOW_LIMIT_S + 1
    assert await batch(prover) < rounds * SLOW_LIMIT_S + 1
    dns.takes_s = SLOW_LIMIT_S + 0.5
    assert (await prover.find(signed(), "alice@mail.test")).by == "signed by mail.test"


async def test_it_is_forgiven() -> None:
    """As soon as it answers."""
    dns = Dns()
    prover = SenderVerifier(TextRecords(dns, anyio.current_time), lambda: NOW, "bot@mail.test")
    raw = mail(1)
    assert not (await prover.find(raw, "alice@slow.test")).by
    dns.hangs = False
    assert (await prover.find(raw, "alice@slow.test")).by
    assert not prover._slow
