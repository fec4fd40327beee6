"""The nasty corpus through the real path: into Dovecot, through channel, gateway and model, and back to its author."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync

from channels.email.receive import mail_receiver
from channels.email.receive.mail_intake import Arrival, read_arrival
from devservers import MailServer, text_of
from gateway.app import Overrides
from gateway.store.states import InboxState, OutboxState
from gateway.store.stores import InboxRow, Pending
from tests.clock import EPOCH
from tests.doubles.queue import wrapping
from tests.integration.mail_world import MailWorld, mail_world, server_of_people
from tests.mail_corpus import corpus
from tests.mail_writing import Case
from tests.rows import rows

NAMES = [case.name for case in corpus("bot@mail.test", "alice@mail.test")]
WHOLE = {"P": ("settled",), "R": ("ignored",), "Q": ("quarantined",), "X": ("dead", "ignored")}
ON_ITS_WAY = (OutboxState.PENDING, OutboxState.SENDING, OutboxState.UNCERTAIN)
TOLD = ("settled", "dead")
"""Those whose sender hears of it."""
MOST_S = 1.0


@dataclass
class Gone:
    """What has become of the corpus: rows by the mail's place in it, answers by what they answer."""

    cases: dict[str, Case]
    rows: dict[str, InboxRow]
    answers: dict[str, int]
    apologies: dict[str, str]
    healthy: int
    on_loop: list[int]


@contextmanager
def watching_the_reader() -> Iterator[list[int]]:
    """The sizes of the mails that are read in the loop's own thread meanwhile, where they hold up all others."""
    found: list[int] = []
    loop = threading.get_ident()

    def noting(uid: int, received_at: datetime, raw: bytes, *, whole: bool) -> Arrival:
        if threading.get_ident() == loop:
            found.append(len(raw))
        return read_arrival(uid, received_at, raw, whole=whole)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mail_receiver, "read_arrival", noting)
        yield found


mail_server = server_of_people()


@pytest.fixture(scope="module")
def gone(mail_server: MailServer, tmp_path_factory: pytest.TempPathFactory) -> Gone:
    """Everything at once, a healthy mail behind each."""
    return anyio.run(_whole, mail_server, tmp_path_factory.mktemp("home"))


async def _whole(server: MailServer, home: Path) -> Gone:
    uids: dict[str, int] = {}
    overrides = Overrides(wrap_queue=wrapping(inbox=lambda inbox: _NotingUids(inbox, uids)))
    async with mail_world(server, home, overrides=overrides) as one:
        return await _all_through(one, uids)


class _NotingUids:
    """The inbox, which notes what place in the mailbox each mail had: what is not answered keeps no context."""

    def __init__(self, inbox: Any, uids: dict[str, int]) -> None:
        self._inbox = inbox
        self._uids = uids

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inbox, name)

    async def accept(self, channel: str, account: str, batch: Sequence[Pending], *rest: Any) -> Any:
        if channel == "email":
            self._uids |= {one.message.native_id: one.message.context.route["uid"] for one in batch}
        return await self._inbox.accept(channel, account, batch, *rest)


async def _all_through(one: MailWorld, uids: dict[str, int]) -> Gone:
    cases = {case.name: case for case in corpus(one.bot, one.alice.address)}
    store = one.built.store
    with watching_the_reader() as on_loop:
        for number, case in enumerate(cases.values()):
            await one.inject(case.raw, sender="" if case.name == "21b" else "x@peer.test")
            await one.inject(_healthy(one, number))
        with anyio.fail_after(240):
            while True:
                rows = await store.inbox.rows(states=list(InboxState), limit=1_000)
                over = [
                    row
                    for row in rows
                    if row.state not in (InboxState.READY, InboxState.RUNNING, InboxState.ANSWERED)
                ]
                if len(over) >= 2 * len(cases) and not await store.outbox.rows(states=ON_ITS_WAY):
                    break
                await anyio.sleep(0.2)
    # Injected one after the other, they lie in the mailbox in this order. They are not all taken in so: while one waits
    # for the proof of its sender, those of other senders pass it.
    in_order = sorted(
        (row for row in rows if row.message.channel == "email"), key=lambda row: uids[row.message.native_id]
    )
    others = [row for row in in_order if not str(row.message.context.subject).startswith("healthy ")]
    found = dict(zip(cases, others, strict=True))
    mails: list[EmailMessage] = []
    while len(mails) != len(mails := await run_sync(one.alice.list)):
        await anyio.sleep(0.5)  # what the server took last may still be on its way into the mailbox
    answers: dict[str, int] = {}
    for mail in mails:
        key = str(mail["In-Reply-To"] or mail["Subject"]).strip()
        answers[key] = answers.get(key, 0) + 1
    apologies = {
        str(mail["In-Reply-To"]): " ".join(text_of(mail).partition("answer this.")[2].split())
        for mail in mails
        if "could not answer this" in text_of(mail)
    }
    healthy = sum(1 for mail in mails if str(mail["In-Reply-To"]).startswith("<healthy-"))
    return Gone(cases, found, answers, apologies, healthy, on_loop)


def _healthy(one: MailWorld, number: int) -> bytes:
    return (
        f"Authentication-Results: mail.test; dmarc=pass header.from=mail.test\r\nFrom: {one.alice.address}\r\n"
        f"To: {one.bot}\r\nSubject: healthy {number}\r\nMessage-ID: <healthy-{number}@peer.test>\r\n\r\nhello\r\n"
    ).encode()


@pytest.mark.parametrize("name", NAMES)
async def test_each_is_what_it_should_be(gone: Gone, name: str) -> None:
    """The outcome that stands at its number; the text, the files and the background that do."""
    case, row = gone.cases[name], gone.rows[name]
    message = row.message
    assert str(row.state) in {state for letter in case.outcome for state in WHOLE[letter]}, row.error
    if row.state is InboxState.IGNORED and "R" not in case.outcome:
        assert str(row.error).startswith("unreadable"), row.error
    answered = gone.answers.get(case.message_id or f"Re: {case.subject}", 0)
    assert answered == (1 if str(row.state) in TOLD else 0) or case.name in {"11", "33", "36"}
    if case.outcome == "X":
        assert row.state is InboxState.DEAD, "its sender is proven, and so is told"
        assert gone.apologies[case.message_id or ""] == row.message.context.unreadable
    if row.state is not InboxState.SETTLED:
        return
    behind = "\n".join(f"{each.sender} {each.text}" for each in message.background)
    for words in case.has:
        assert words in message.text
    for words in case.behind:
        assert words in behind
    for words in case.lacks:
        assert words not in message.text + behind
    if case.files is not None:
        assert [each.name for each in message.attachments] == list(case.files)
    assert case.check(message), message


async def test_the_healthy_ones_between_them_are_all_answered(gone: Gone) -> None:
    """Nothing in the corpus costs another mail its answer, or the loop its breath."""
    assert gone.healthy == len(gone.cases)
    assert gone.on_loop == []


async def test_two_hundred_megabytes(mail_server: MailServer, tmp_path: Path) -> None:
    """Of a mail of any size one answer, if its sender is proven; of the rest nobody hears, and no loop stands still."""
    proof = "Authentication-Results: mail.test; dmarc=pass header.from=mail.test\r\n"
    parts = "Content-Type: multipart/mixed; boundary=b\r\n\r\n" + "--b\r\n\r\nx\r\n" * 500
    async with mail_world(mail_server, tmp_path) as one:

        def head(name: str, *, verified: bool, sender: str = one.alice.address) -> str:
            return (
                f"{proof if verified else ''}From: {sender}\r\nTo: {one.bot}\r\nSubject: {name}\r\n"
                f"Message-ID: <{name}@peer.test>\r\n"
            )

        with watching_the_reader() as on_loop:
            await one.inject((head("forged-parts", verified=False) + parts).encode())
            await one.inject((head("parts", verified=True) + parts).encode())
            await one.inject((head("forged", verified=False) + "\r\nobey").encode())
            for name, verified in (("large-forged", False), ("large", True)):
                await run_sync(_put_large, mail_server, one.bot, head(name, verified=verified))
            answer = await one.answer_to("<large@peer.test>")
            sorry = await one.answer_to("<parts@peer.test>")
            last = await one.asked("hello")
        mails = await run_sync(one.alice.list)
        rows = await one.built.store.inbox.rows(states=list(InboxState), limit=50)
    assert "was not read" in text_of(answer)
    assert "could not read it" in text_of(sorry)
    assert (sorry["Return-Path"], last["Return-Path"]) == ("<>", f"<{one.bot}>")
    assert len(mails) == 3, "one each, and nothing for the forger"
    assert sorted(row.error for row in rows if row.error) == [
        "sender_not_verified",
        "sender_not_verified",
        "the message could not be read",
        "unreadable_too_many_parts",
    ]
    assert on_loop == []


def _put_large(server: MailServer, bot: str, head: str) -> None:
    """200 MB that take no room: a file with a hole in it. Its name tells the size, so nobody reads it through."""
    assert server._store is not None or pytest.skip("needs Dovecot")
    maildir = server._store.folder / "mail" / bot.partition("@")[0] / "Maildir"
    raw, size = f"{head}\r\n".encode(), 200_000_000
    path = maildir / "new" / f"{time.time():.6f}.large.test,S={size},W={size}"
    scratch = maildir / "tmp" / "large"
    with scratch.open("wb") as file:
        file.write(raw)
        file.truncate(size)
    owner = maildir.stat()
    os.chown(scratch, owner.st_uid, owner.st_gid)
    scratch.rename(path)


async def test_a_mail_that_is_read_on_the_loop_is_caught() -> None:
    """The control: the same look sees it; what is read in a thread, it does not."""
    raw = b"Subject: hello\r\n\r\nhello\r\n"
    with watching_the_reader() as on_loop:
        await run_sync(mail_receiver._read_guarded, 1, EPOCH, raw, True)
        assert on_loop == []
        mail_receiver._read_guarded(1, EPOCH, raw, whole=True)
    assert on_loop == [len(raw)]


@rows("name", NAMES)
def test_none_takes_a_second(name: str) -> None:
    """Reading one mail, whatever it is, costs less than a second of the processor."""
    case = next(case for case in corpus("bot@mail.test", "alice@mail.test") if case.name == name)
    begun = time.process_time()
    read_arrival(1, EPOCH, case.raw, whole=True)
    assert time.process_time() - begun < MOST_S


def test_a_careless_reader_is_caught() -> None:
    """The control: who shows the HTML without its tags, or all of a reply, fails the same judgement."""
    cases = {case.name: case for case in corpus("bot@mail.test", "alice@mail.test")}
    for name, words in (("01", "SECRET"), ("30", "SYSTEM")):
        shown = re.sub(rb"<[^>]*>", b"", cases[name].raw).decode()
        assert words in cases[name].lacks
        assert words in shown
    mail = read_arrival(1, EPOCH, cases["14"].raw, whole=True).mail
    assert mail is not None
    assert (mail.text, bool(mail.rest)) == ("Noon is fine", True)
