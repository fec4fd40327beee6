"""
From a mail to its answer through a real mail server: squidbot, and beside it an echo bot on bare aioimaplib.

Alice writes to them in turn; the clock runs from the moment when the server has taken her mail until the answer
is in her mailbox. She looks every 10 ms, because a server may tell of news by IDLE with a delay of its own: what
that costs the bots is in both figures.
"""

from __future__ import annotations

import imaplib
import secrets
import time

from tests.bench.rig import Rig
from tests.bench.table import Figure, share

__all__ = ["measure"]

_LOOK_EVERY_S = 0.01
_LIMIT_S = 60.0


def measure(rig: Rig) -> list[Figure]:
    """Mails and answers, alternating between the two bots."""
    daemon = rig.daemon()
    daemon.start()
    floor = f"floor-{secrets.token_hex(4)}"
    rig.mail.add_user(floor, "floor")
    rig.helper(
        "tests.bench.echo_email",
        *("--imap-port", str(rig.mail.imap_port), "--smtp-port", str(rig.mail.smtp_port)),
        *("--ca-file", str(rig.mail.ca_file), "--username", floor, "--password", "floor"),
        *("--address", rig.mail.address(floor)),
    )
    addresses = {"squidbot": rig.mail.address(daemon.name), "floor": rig.mail.address(floor)}
    count = 3 if rig.quick else 10
    rig.say(f"{count} mails to each of two bots")
    took: dict[str, list[float]] = {name: [] for name in addresses}
    with rig.mail.peer("alice").imap() as mailbox:
        for number in range(1 + count):
            for name, address in addresses.items():
                took_ms = _ask(rig, mailbox, address, f"question {number}")
                if number:
                    took[name].append(took_ms)
    daemon.stop()
    return [
        Figure(
            f"mail to answer: {label}",
            share(took["squidbot"], part),
            "ms",
            floor=share(took["floor"], part),
            floor_is="an echo bot on bare aioimaplib",
            note=f"of {count}",
        )
        for part, label in ((0.5, "p50"), (0.95, "p95"))
    ]


def _ask(rig: Rig, mailbox: imaplib.IMAP4_SSL, address: str, subject: str) -> float:
    before = _count(mailbox)
    rig.mail.peer("alice").send(address, subject, "How long does this take?")
    begun = time.perf_counter()
    while _count(mailbox) == before:
        if time.perf_counter() - begun > _LIMIT_S:
            raise RuntimeError(f"{address} did not answer")
        time.sleep(_LOOK_EVERY_S)
    return (time.perf_counter() - begun) * 1000


def _count(mailbox: imaplib.IMAP4_SSL) -> int:
    _, answer = mailbox.status("INBOX", "(MESSAGES)")
    return int(bytes(answer[0]).rpartition(b"MESSAGES ")[2].rstrip(b")"))
