"""
From a mail to its answer through a real mail server: squidbot, and beside it an echo bot on bare aioimaplib.

Alice writes to them in turn; the clock runs from the moment when the server has taken her mail until the answer
is in her mailbox. She looks every 10 ms, because a server may tell of news by IDLE with a delay of its own: what
that costs the bots is in both figures. Then mails of twenty threads come at the same moment; and a thousand that
have waited while the bot was down.
"""

from __future__ import annotations

import imaplib
import re
import secrets
import time
from collections.abc import Sequence

from tests.bench.rig import Rig
from tests.bench.table import Figure, share

CROWD = 20
WAITING = 1_000
_CHECK_EVERY_S = 0.01
_LIMIT_S = 60.0


def measure(rig: Rig) -> list[Figure]:
    """Mails and answers, alternating between the two bots."""
    daemon = rig.daemon()
    daemon.start()
    addresses = {
        "squidbot": rig.mail.address(daemon.name),
        "floor": _echo(rig),
        "all at once": _echo(rig, "--concurrent"),
    }
    count = 3 if rig.quick else 10
    rig.say(f"{count} mails to each of two bots")
    took: dict[str, list[float]] = {name: [] for name in addresses}
    with rig.mail.peer("alice").imap() as mailbox:
        for number in range(1 + count):
            for name in ("squidbot", "floor"):
                took_ms = _ask(rig, mailbox, addresses[name], f"question {number}")
                if number:
                    took[name].append(took_ms)
        crowd: dict[str, list[float]] = {"squidbot": [], "all at once": []}
        rig.say(f"{CROWD} threads at the same moment")
        for number in range(2 if rig.quick else 5):
            for name, times in crowd.items():
                found = _crowd(rig, mailbox, addresses[name], f"crowd-{number}-{name[:3]}")
                times += found if number else []
        daemon.stop()
        waiting = 100 if rig.quick else WAITING
        rig.say(f"{waiting} mails that waited")
        ids = [_inject(rig, addresses["squidbot"], f"waiting-{number}") for number in range(waiting)]
        begun = time.perf_counter()
        daemon.start()
        _until_answered(mailbox, ids, limit_s=300)
        waited_s = time.perf_counter() - begun
    daemon.stop()
    more = [
        Figure(
            f"{CROWD} threads at once, mail to answer: {label}",
            share(crowd["squidbot"], part),
            "ms",
            floor=share(crowd["all at once"], part),
            floor_is="the echo bot, without waiting for the previous answer",
            note=f"of {len(crowd['squidbot'])}",
        )
        for part, label in ((0.5, "p50"), (0.95, "p95"))
    ]
    more.append(Figure(f"{waiting} mails that waited, answered", waiting / waited_s, "mails/s"))
    return more + [
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


def _echo(rig: Rig, *options: str) -> str:
    """An echo bot with a mailbox of its own; its address."""
    name = f"floor-{secrets.token_hex(4)}"
    rig.mail.add_user(name, "floor")
    rig.helper(
        "tests.bench.echo_email",
        *("--imap-port", str(rig.mail.imap_port), "--smtp-port", str(rig.mail.smtp_port)),
        *("--ca-file", str(rig.mail.ca_file), "--username", name, "--password", "floor"),
        *("--address", rig.mail.address(name), *options),
    )
    return rig.mail.address(name)


def _inject(rig: Rig, address: str, key: str) -> str:
    """A mail of Alice's in a new thread, straight into the mailbox; its Message-ID."""
    message_id = f"<{key}-{secrets.token_hex(4)}@bench.test>"
    raw = (
        f"Authentication-Results: {rig.mail.domain}; dmarc=pass header.from={rig.mail.domain}\r\n"
        f"From: {rig.mail.address('alice')}\r\nTo: {address}\r\nSubject: {key}\r\nMessage-ID: {message_id}\r\n"
        "Date: Fri, 02 Jan 2026 03:04:05 +0000\r\n\r\nHow long does this take?\r\n"
    )
    rig.mail.inject(address, raw.encode(), sender=rig.mail.address("alice"))
    return message_id


def _crowd(rig: Rig, mailbox: imaplib.IMAP4_SSL, address: str, key: str) -> list[float]:
    """Milliseconds from each mail to its answer."""
    sent: dict[str, float] = {}
    for number in range(CROWD):
        message_id = _inject(rig, address, f"{key}-{number}")
        sent[message_id] = time.perf_counter()
    seen = _until_answered(mailbox, list(sent), limit_s=_LIMIT_S)
    return [(seen[message_id] - begun) * 1000 for message_id, begun in sent.items()]


def _until_answered(mailbox: imaplib.IMAP4_SSL, ids: Sequence[str], *, limit_s: float) -> dict[str, float]:
    """When each answer was seen."""
    mailbox.select("INBOX", readonly=True)
    seen: dict[str, float] = {}
    wanted, last, begun = set(ids), 0, time.perf_counter()
    while len(seen) < len(wanted):
        if time.perf_counter() - begun > limit_s:
            raise RuntimeError(f"{len(wanted) - len(seen)} mails were not answered")
        mailbox.noop()
        fields = "(UID BODY.PEEK[HEADER.FIELDS (IN-REPLY-TO)])"
        _, parts = mailbox.uid("FETCH", f"{last + 1}:*", fields)
        now = time.perf_counter()
        for part in parts:
            if isinstance(part, tuple):
                uid = re.search(rb"UID (\d+)", part[0])
                last = max(last, int(uid[1])) if uid else last
                answered = re.search(rb"<[^>]*>", part[1])
                if answered and answered[0].decode() in wanted:
                    seen.setdefault(answered[0].decode(), now)
        time.sleep(_CHECK_EVERY_S)
    return seen


def _ask(rig: Rig, mailbox: imaplib.IMAP4_SSL, address: str, subject: str) -> float:
    before = _count(mailbox)
    rig.mail.peer("alice").send(address, subject, "How long does this take?")
    begun = time.perf_counter()
    while _count(mailbox) == before:
        if time.perf_counter() - begun > _LIMIT_S:
            raise RuntimeError(f"{address} did not answer")
        time.sleep(_CHECK_EVERY_S)
    return (time.perf_counter() - begun) * 1000


def _count(mailbox: imaplib.IMAP4_SSL) -> int:
    _, answer = mailbox.status("INBOX", "(MESSAGES)")
    return int(bytes(answer[0]).rpartition(b"MESSAGES ")[2].rstrip(b")"))
