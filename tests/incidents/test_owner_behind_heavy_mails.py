"""
Twenty mails of a megabyte of HTML, which anybody can send, were read one after the other, each whole, before the mail
of the owner behind them: that took ten seconds, and a minute on a busy machine.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from channels.email.receive import mail_fetching
from channels.email.receive.mail_receiver import BATCH_MAILS
from tests.clock import LoopClock
from tests.doubles import mailbox
from tests.doubles.accounts import email_channel
from tests.doubles.imap_server import Dialogue, fake_imap
from tests.doubles.inbox import MemoryInbox, running
from tests.doubles.mailbox import Store, config

pytestmark = pytest.mark.virtual_time
OWNER, GUEST = "alice@mail.test", "bob@mail.test"
SIZE, COUNT = 1_000, 8


def mail(number: int, sender: str, *, verdict: str = "pass", size: int = 0) -> bytes:
    return (
        f"Authentication-Results: mx.test; dmarc={verdict} header.from=mail.test\r\nFrom: {sender}\r\n"
        f"To: bot@mail.test\r\nMessage-ID: <{number}@mail.test>\r\n\r\n{'x' * size}\r\n"
    ).encode()


class Searching(Store):
    """Searches for senders as servers do, by what stands in the field; ``late`` comes with the first batch."""

    def __init__(self, mails: dict[int, bytes], late: dict[int, bytes]) -> None:
        super().__init__()
        self.mails, self.late = mails, late
        self.fetched: list[str] = []
        self.bend = {"UID SEARCH UID": self._search, "UID FETCH": self._deliver}

    async def _search(self, server: Dialogue, tag: str, text: str) -> bool:
        first, _, sender = text.removeprefix("UID SEARCH UID ").partition(" FROM ")
        found = [uid for uid in self.uids if uid >= int(first.partition(":")[0])] or self.uids[-1:]
        if sender:
            wanted = b"\r\nFrom: ", sender.strip('"').encode()
            found = [
                uid for uid in found if wanted[1] in self.mails[uid].partition(wanted[0])[2].split(b"\r\n")[0]
            ]
        await server.say(f"* SEARCH {' '.join(map(str, found))}", f"{tag} OK done")
        return True

    async def _deliver(self, server: Dialogue, tag: str, text: str) -> bool:
        if "BODY.PEEK[]" in text:
            self.mails.update(self.late)
            self.late.clear()
            self.uids = sorted(self.mails)
        return False


async def accepted(
    folder: Path,
    patch: pytest.MonkeyPatch,
    mails: list[bytes],
    late: list[bytes],
    *,
    owners: list[str],
    commands: list[str] | None = None,
) -> tuple[list[str], MemoryInbox]:
    """The ids of what was accepted, in that order."""
    patch.setattr(mail_fetching, "BATCH_BYTES", 2 * SIZE)
    there = dict(enumerate(mails, start=1))
    store = Searching(there, dict(enumerate(late, start=len(mails) + 1)))
    patch.setattr(mailbox, "raw_mail", there.__getitem__)
    inbox = MemoryInbox()
    inbox.positions |= {"uidvalidity": "7", "uid": "0"}

    def goes_past_none() -> None:
        taken = {one.context.route["uid"] for one in inbox.accepted}
        assert taken.issuperset(range(1, int(inbox.positions["uid"]) + 1)), "after a crash it would be lost"

    inbox.on_accepted = goes_past_none
    store.uids = sorted(there)
    async with fake_imap(store) as port:
        settings = config(port, sender_verification="enforce", trusted_authserv_ids=["mx.test"])
        channel = email_channel(
            "email",
            settings,
            state_dir=folder,
            clock=LoopClock(datetime.now(UTC)),
            is_owner=OWNER.__eq__,
            owners=owners,
        )
        async with running(channel, inbox):
            await inbox.until(lambda one: len(one.accepted) == len(mails) + len(late), within_s=600)
            await inbox.until(lambda one: one.positions["uid"] == str(len(mails) + len(late)), within_s=600)
    if commands is not None:
        commands += store.commands
    return [str(one.context.route["message_id"]) for one in inbox.accepted], inbox


HEAVY = [mail(number, GUEST, size=SIZE) for number in range(COUNT)]
MINE = [mail(number, OWNER) for number in (100, 101)]


async def test_the_owners_mails_are_read_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that comes meanwhile; each once, in their order, and the rest follows in its own."""
    ids, inbox = await accepted(
        tmp_path, monkeypatch, [*HEAVY, MINE[0]], [mail(200, GUEST, size=SIZE), MINE[1]], owners=[OWNER]
    )
    assert ids[0] == "<100@mail.test>"
    assert "<101@mail.test>" in ids[:4]
    rest = [each for each in ids if each not in {"<100@mail.test>", "<101@mail.test>"}]
    assert rest == [*(f"<{number}@mail.test>" for number in range(COUNT)), "<200@mail.test>"]
    assert len(inbox.offered) == len(ids), "nothing is taken in twice"


async def test_what_only_says_so_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name, and an address that the provider calls forged."""
    forged = [mail(300, OWNER, verdict="fail"), mail(301, f'"{OWNER}" <{GUEST}>')]
    ids, _ = await accepted(tmp_path, monkeypatch, [*HEAVY, *forged, MINE[0]], [], owners=[OWNER])
    assert ids[0] == "<100@mail.test>"
    assert ids[-2:] == ["<300@mail.test>", "<301@mail.test>"]


async def test_a_thousand_that_only_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked at by fifties: no command to the server names more of them."""
    forged = [
        mail(number, (OWNER, GUEST)[number % 2], verdict="fail") for number in range(2 * 3 * BATCH_MAILS)
    ]
    commands: list[str] = []
    ids, _ = await accepted(tmp_path, monkeypatch, [*forged, MINE[0]], [], owners=[OWNER], commands=commands)
    assert len(ids) == len(forged) + 1
    sets = [text.split(" ")[2] for text in commands if text.startswith("UID FETCH")]
    assert max(each.count(",") for each in sets) < BATCH_MAILS


async def test_many_that_only_say_so_are_passed_at_one_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty of them at each look, and a heavy mail between two looks, made the owner wait for 13 seconds."""
    forged = [mail(number, OWNER, verdict="fail") for number in range(300, 300 + 6 * BATCH_MAILS)]
    ids, _ = await accepted(tmp_path, monkeypatch, [*HEAVY, *forged, MINE[0]], [], owners=[OWNER])
    assert ids[0] == "<100@mail.test>"


async def test_the_control_of_mails_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, _ = await accepted(tmp_path, monkeypatch, [*HEAVY, MINE[0]], [], owners=[])
    assert ids[-1] == "<100@mail.test>"
