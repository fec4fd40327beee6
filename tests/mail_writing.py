"""Writing the mails of the corpus: one case, its header, its parts, and what they are made of."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agent_core.messages import InboundMessage

EVIDENCE = "Authentication-Results: mail.test; dmarc=pass header.from=mail.test"

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


@dataclass(frozen=True)
class Case:
    """
    One mail.

    Args:
        name: Its number.
        raw: All of it.
        outcome: ``P``, ``R``, ``Q``, ``X``, or both letters where either is right.
        has: What the text must hold.
        lacks: What neither text nor background may hold.
        behind: What the background must hold.
        files: The names of what is attached; None: not looked at.
        check: Whatever else must hold.
        message_id: Its id; None where it has none that can be used.
        subject: What the answer is about, where there is no id to tell it by.
    """

    name: str
    raw: bytes
    outcome: str = "P"
    has: Sequence[str] = ()
    lacks: Sequence[str] = ()
    behind: Sequence[str] = ()
    files: Sequence[str] | None = None
    check: Callable[[InboundMessage], bool] = field(default=lambda _: True)
    message_id: str | None = ""
    subject: str = ""


class Writer:
    """Writes mails from one person to the bot."""

    def __init__(self, bot: str, person: str) -> None:
        self.bot = bot
        self.person = person

    def head(
        self, name: str, *more: str, sender: str | None = "", evidence: str = EVIDENCE, **known: str
    ) -> bytes:
        fields = [evidence] if evidence else []
        if sender is not None:
            fields.append(f"From: {sender or self.person}")
        fields.append(f"To: {known.get('to', self.bot)}")
        if not any(one.lower().startswith("subject:") for one in more):
            fields.append(f"Subject: corpus {name}")
        fields.append("Date: Fri, 02 Jan 2026 03:04:05 +0000")
        if "message_id" not in known:
            fields.append(f"Message-ID: <corpus-{name}@peer.test>")
        elif known["message_id"]:
            fields.append(f"Message-ID: {known['message_id']}")
        return "\r\n".join([*fields, *more]).encode("utf-8", "surrogateescape") + b"\r\n\r\n"

    def case(self, name: str, body: bytes | str, *more: str, outcome: str = "P", **what: object) -> Case:
        head = {key: what.pop(key) for key in ("sender", "evidence", "to", "message_id") if key in what}
        raw = self.head(name, *more, **head) + (body.encode() if isinstance(body, str) else body) + b"\r\n"
        known = head.get("message_id", f"<corpus-{name}@peer.test>")
        return Case(name, raw, outcome, message_id=known if known and known.startswith("<corpus") else None,
                    subject=str(what.pop("subject", f"corpus {name}")), **what)  # fmt: skip


def part(*fields: str, body: bytes | str = b"", boundary: str = "b") -> bytes:
    content = body.encode() if isinstance(body, str) else body
    return (
        f"--{boundary}\r\n".encode()
        + "".join(f"{one}\r\n" for one in fields).encode()
        + b"\r\n"
        + content
        + b"\r\n"
    )


def encoded(content: bytes) -> bytes:
    return base64.encodebytes(content).replace(b"\n", b"\r\n")


MIXED = "Content-Type: multipart/mixed; boundary=b"

B64 = "Content-Transfer-Encoding: base64"

QP = "Content-Transfer-Encoding: quoted-printable"

HTML = "Content-Type: text/html; charset=utf-8"
