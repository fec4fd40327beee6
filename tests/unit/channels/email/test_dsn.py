"""Reports of mails that did not arrive: the proper ones, and what servers send instead."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.email.parse.dsn import BounceReport, DeliveryStatus, in_words, read_report
from channels.markup import to_html

BOT = "bot@mail.test"
OURS = f"<squidbot.{'a' * 24}.{'b' * 24}@mail.test>"
OTHER = f"<squidbot.{'c' * 24}.{'d' * 24}@mail.test>"
POSTFIX = (Path(__file__).parents[3] / "data/mail/postfix-dsn.eml").read_text()


def report(status: str, *, returned: str = f"Message-ID: {OURS}", kind: str = "text/rfc822-headers") -> bytes:
    return (
        "From: MAILER-DAEMON@x.test\nContent-Type: multipart/report; boundary=b\n\n--b\n\nSorry.\n"
        f"--b\nContent-Type: message/delivery-status\n\nReporting-MTA: dns; x\n\n{status}\n"
        f"--b\nContent-Type: {kind}\n\n{returned}\nReferences: {OTHER}\n\n--b--\n"
    ).encode()


def test_a_real_one() -> None:
    """Postfix: which mail, whose mailbox, in the words of the server that refused it."""
    raw = POSTFIX.replace("RETURNED", OURS).replace("PERSON", "carol@far.test").replace("BOT", BOT).encode()
    found = read_report(raw, account=BOT)
    assert found is not None
    assert (found.message_ids, found.fate, found.recipient) == (
        (OURS,),
        DeliveryStatus.FAILED,
        "carol@far.test",
    )
    assert found.why == (
        "550 5.1.1 <carol@far.test>: Recipient address rejected: User unknown in virtual mailbox table"
    )


@pytest.mark.parametrize("kind", ["message/rfc822", "text/rfc822-headers"])
@pytest.mark.parametrize(
    ("status", "fate"),
    [
        ("Final-Recipient: rfc822; a@b.test\nAction: failed\nStatus: 5.1.1", DeliveryStatus.FAILED),
        ("Final-Recipient: rfc822; a@b.test\nAction: delayed\nStatus: 4.4.1", DeliveryStatus.DELAYED),
        ("Final-Recipient: rfc822; a@b.test\nAction: delivered\nStatus: 2.0.0", DeliveryStatus.ARRIVED),
        ("Status: 5.0.0", DeliveryStatus.FAILED),
        (
            "Action: delivered\nFinal-Recipient: rfc822; x@y\n\nAction: failed\nFinal-Recipient: rfc822; z@y",
            DeliveryStatus.FAILED,
        ),
    ],
)
def test_what_is_said_of_it(status: str, fate: DeliveryStatus, kind: str) -> None:
    """The worst of what is said counts; the mail is the one that came back and not what it answered."""
    found = read_report(report(status, kind=kind), account=BOT)
    assert found is not None
    assert (found.message_ids, found.fate) == ((OURS,), fate)


@pytest.mark.parametrize(
    ("text", "fate"),
    [
        (
            f"Your message\n  Message-ID: {OURS}\ncould not be delivered.\n550 5.7.1 rejected by policy",
            DeliveryStatus.FAILED,
        ),
        (
            f"Hi. This is the qmail-send program.\n<a@b>:\nuser unknown\n--- Below\nMessage-ID: {OURS}",
            DeliveryStatus.FAILED,
        ),
        (
            f"Warning: delayed 4 hours, will retry.\n451 4.4.1 no answer\nMessage-ID: {OURS}",
            DeliveryStatus.DELAYED,
        ),
        (f"Not delivered, reference {OURS}", DeliveryStatus.FAILED),
    ],
)
def test_loose_ones(text: str, fate: DeliveryStatus) -> None:
    """Without any part for machines the words decide."""
    found = read_report(f"From: postmaster@x.test\nSubject: failure\n\n{text}".encode(), account=BOT)
    assert found is not None
    assert (found.message_ids, found.fate) == ((OURS,), fate)


READ = (
    "Content-Type: multipart/report; report-type=disposition-notification; boundary=b\n\n--b\n\nThe mail was read.\n"
    f"--b\nContent-Type: message/disposition-notification\n\nOriginal-Message-ID: {OURS}\n"
    "Disposition: manual-action/MDN-sent-manually; displayed\n\n--b--\n"
)
AWAY = f"Auto-Submitted: auto-replied\nIn-Reply-To: {OURS}\nReferences: {OURS}\n\nI am away until 412 days are over."


@pytest.mark.parametrize("raw", [READ, f"In-Reply-To: {OURS}\n{READ}", AWAY], ids=["read", "answer", "away"])
def test_a_mail_that_was_read_or_answered_has_arrived(raw: str) -> None:
    """A read receipt, and the note of somebody on holiday, were told to the owner as mails that did not arrive."""
    assert read_report(f"Return-Path: <>\nFrom: a@b.test\n{raw}".encode(), account=BOT) is None


def test_a_report_that_names_the_mail_in_its_header_alone_is_one() -> None:
    """The control: the part for machines says that it failed."""
    raw = report("Action: failed", returned="X: y").replace(OTHER.encode(), b"<x@y>")
    found = read_report(f"In-Reply-To: {OURS}\n".encode() + raw, account=BOT)
    assert found is not None and found.fate is DeliveryStatus.FAILED


@pytest.mark.parametrize(
    "returned",
    ["Message-ID: <foreign@x.test>", f"Message-ID: {OURS.replace('mail.test', 'other.test')}", "X: y"],
)
def test_not_about_us(returned: str) -> None:
    """A report on a mail that is not ours is nobody's business."""
    raw = report("Action: failed", returned=returned).replace(OTHER.encode(), b"<x@y>")
    assert read_report(raw, account=BOT) is None


@given(st.binary(max_size=400))
def test_total(raw: bytes) -> None:
    """Anything gives a report or none."""
    found = read_report(raw + OURS.encode(), account=BOT)
    assert found is None or found.message_ids == (OURS,)


@pytest.mark.parametrize(
    "piece", ["Message-ID:\n ", "\n\n", "5.1.1 ", "<squidbot.", "Action: failed\n\n", "550 x"]
)
def test_linear(piece: str) -> None:
    """300 kB of anything take less than a second."""
    begun = time.process_time()
    read_report(report(piece * (300_000 // len(piece))), account=BOT)
    read_report(f"From: x\n\n{OURS}\n{piece * (300_000 // len(piece))}".encode(), account=BOT)
    assert time.process_time() - begun < 1


def test_the_owner_sees_the_words_of_a_report_as_such() -> None:
    """Anybody who got a mail of ours can write a report about it, with links and our voice in it."""
    why = "550 `no` **Your password has expired**, see [here](https://evil.test)"
    shown = in_words(BounceReport((OURS,), DeliveryStatus.FAILED, "bob@mail.test **x**", why))
    html = to_html(shown)
    assert "<a " not in html
    assert "<strong>" not in html
    assert "Your password has expired" in html
    naive = to_html(f"My mail to bob@mail.test did not arrive: {why}")
    assert "<a " in naive, "the control: as it was, it is a link"
    assert (
        in_words(BounceReport((OURS,), DeliveryStatus.FAILED))
        == "My mail to somebody did not arrive: no reason given"
    )
