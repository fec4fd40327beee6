"""A scripted IMAP server with a mailbox, which a test can bend, and an email channel that reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from channels.email.channel import EmailChannel
from channels.email.config import EmailConfig
from tests.clock import LoopClock
from tests.doubles.accounts import email_channel
from tests.doubles.imap_server import Dialogue, fake_imap
from tests.doubles.inbox import MemoryInbox, Run, running

CAPABILITIES = "IMAP4rev1 IDLE UIDPLUS MOVE"


def config(port: int, **changes: Any) -> EmailConfig:
    values: dict[str, Any] = {
        "address": "bot@mail.test",
        "username": "bot",
        "password": "pw-secret",
        "imap": {"host": "127.0.0.1", "port": port, "security": "none"},
        "smtp": {"host": "127.0.0.1", "port": port, "security": "none"},
        "sender_verification": "off",
        "limits": dict.fromkeys(("sender_per_hour", "sender_per_day"), 0),
    }
    return EmailConfig.model_validate(values | changes)


def raw_mail(number: int) -> bytes:
    return (
        f"From: alice@mail.test\r\nTo: bot@mail.test\r\nMessage-ID: <m{number}@p.test>\r\n\r\nnumber {number}\r\n"
    ).encode()


class Store:
    """A scripted server with a mailbox: answers every command properly, unless a test bends it."""

    def __init__(self, *uids: int, capabilities: str = CAPABILITIES) -> None:
        self.uids = list(uids)
        self.capabilities = capabilities
        self.uidvalidity = 7
        self.uidnext: int | None = None
        self.commands: list[str] = []
        self.bend: dict[str, Callable[[Dialogue, str, str], Awaitable[bool]]] = {}
        """By the beginning of a command: says whether it has answered itself."""
        self.dates: dict[int, str] = {}
        self.lines: dict[int, Dialogue] = {}
        self.withheld: dict[int, str] = {}
        """Mails that are not handed out, and in which way: see `_withhold`."""

    async def __call__(self, server: Dialogue) -> None:
        await server.say("* OK hello")
        while True:
            tag, text = await server.command()
            self.commands.append(text)
            for beginning, act in self.bend.items():
                if text.startswith(beginning) and await act(server, tag, text):
                    break
            else:
                await self._answer(server, tag, text)

    async def _answer(self, server: Dialogue, tag: str, text: str) -> None:
        if text == "CAPABILITY":
            await server.say(f"* CAPABILITY {self.capabilities}", f"{tag} OK done")
        elif text.startswith(("SELECT", "EXAMINE")):
            uidnext = self.uidnext or max(self.uids, default=0) + 1
            await server.say(
                f"* {len(self.uids)} EXISTS",
                f"* OK [UIDVALIDITY {self.uidvalidity}] ok",
                f"* OK [UIDNEXT {uidnext}] ok",
                f"{tag} OK [READ-WRITE] done",
            )
        elif text.startswith("UID SEARCH UID "):
            asked = text.removeprefix("UID SEARCH UID ").split(" ")[0]
            if asked.endswith(":*"):
                found = [uid for uid in self.uids if uid >= int(asked[:-2])] or self.uids[-1:]
            else:
                found = self._chosen(asked)
            await server.say(f"* SEARCH {' '.join(map(str, found))}", f"{tag} OK done")
        elif text.startswith("UID FETCH"):
            await self._fetch(server, tag, text)
        elif text == "IDLE":
            await server.say("+ idling")
            assert await server.line() == "DONE"
            await server.say(f"{tag} OK done")
        elif text.startswith("FETCH"):
            await server.say(f"{tag} OK done")
        else:
            await server.say(f"{tag} OK done")

    async def _fetch(self, server: Dialogue, tag: str, text: str) -> None:
        _, _, uids, items = text.split(" ", 3)
        for uid in self._chosen(uids):
            if await self._withhold(server, tag, uid, items):
                if self.withheld[uid] in ("no", "no size", "hangs up"):
                    return
            elif "BODY" not in items:
                size = len(raw_mail(uid))
                date = self.dates.get(uid)
                more = f' INTERNALDATE "{date}"' if date else ""
                await server.say(f"* {uid} FETCH (UID {uid} RFC822.SIZE {size}{more})")
            elif "[HEADER]" in items:
                head = raw_mail(uid).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
                await server.say(f"* {uid} FETCH (UID {uid} BODY[HEADER]<0> {{{len(head)}}}")
                await server.raw(head + b")\r\n")
            else:
                await server.say(f"* {uid} FETCH (UID {uid} BODY[] {{{len(raw_mail(uid))}}}")
                await server.raw(raw_mail(uid) + b")\r\n")
        await server.say(f"{tag} OK done")

    async def _withhold(self, server: Dialogue, tag: str, uid: int, items: str) -> bool:
        """
        Answer for a mail that is not handed out, as servers do: Dovecot says NO for a file that it cannot
        read, or closes the connection in the middle; Exchange says NO or nothing for an item that it cannot
        convert; others say NIL, or an empty text.
        """
        way = self.withheld.get(uid, "")
        about_size = way in ("no size", "nothing at all")
        if not way or ("[HEADER]" in items and not about_size) or ("BODY" not in items and not about_size):
            return False
        if way in ("no", "no size"):
            await server.say(f"{tag} NO [UNAVAILABLE] cannot read it")
        elif way == "nil":
            await server.say(f"* {uid} FETCH (UID {uid} BODY[] NIL)")
        elif way == "empty":
            await server.say(f'* {uid} FETCH (UID {uid} BODY[] "")')
        elif way == "hangs up":
            await server.say(f"* {uid} FETCH (UID {uid} BODY[] {{{len(raw_mail(uid))}}}", "From: ali")
            server.hang_up()
        return True

    def _chosen(self, uids: str) -> list[int]:
        chosen: list[int] = []
        for item in uids.split(","):
            low, _, high = item.partition(":")
            chosen += [uid for uid in self.uids if int(low) <= uid <= int(high or low)]
        return chosen


class Post:
    """A channel on a scripted store, with an inbox that outlives both."""

    def __init__(self, store: Store, tmp_path: Path) -> None:
        self.store = store
        self.inbox = MemoryInbox()
        self._tmp_path = tmp_path

    @asynccontextmanager
    async def running(self, *, started: bool = True) -> AsyncIterator[tuple[EmailChannel, Run]]:
        async with fake_imap(self.store) as port:
            channel = email_channel("email", config(port), state_dir=self._tmp_path, clock=LoopClock())
            self.inbox.states.clear()
            async with running(channel, self.inbox) as run:
                if started:
                    await self.inbox.until_up(within_s=3600)
                yield channel, run
