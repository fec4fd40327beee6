"""From an accepted submission into mailboxes.

`Delivery` is the one promise that a mail store makes here; Dovecot keeps it through LMTP, the pymap store
in this process. Both write `Return-Path` and `Delivered-To` in front of the message, as mail stores do.
"""

from __future__ import annotations

import asyncio
import smtplib
from typing import Protocol


class Delivery(Protocol):
    """Puts one message into one mailbox, durably, or raises."""

    async def deliver(self, sender: str, recipient: str, raw: bytes) -> None:
        """Deliver; `recipient` exists and may have a plus-tag."""
        ...


class LmtpDelivery:
    """Delivery by LMTP to Dovecot on loopback."""

    def __init__(self, port: int) -> None:
        """Remember where Dovecot listens."""
        self._port = port

    async def deliver(self, sender: str, recipient: str, raw: bytes) -> None:
        """Deliver in a worker thread: once begun it finishes, even when the client has gone."""
        await asyncio.to_thread(lmtp_deliver, self._port, sender, recipient, raw)


def lmtp_deliver(port: int, sender: str, recipient: str, raw: bytes) -> None:
    """Hand one message to an LMTP server on loopback."""
    with smtplib.LMTP("127.0.0.1", port, local_hostname="localhost", timeout=60) as lmtp:
        lmtp.sendmail(sender, [recipient], raw)
