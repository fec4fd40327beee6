"""
The smallest complete channel, to copy: a folder as a place to talk.

A person drops ``question.txt`` into the folder; the answer appears beside it as ``question.<key>.md``.
Small as it is, it keeps every promise of `channels.base`; the numbered comments say which one and how.
Configuration belongs into a ``config.py`` beside the channel, what only computes into pure modules.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import anyio

from agent_core.messages import InboundMessage, OutboundMessage, Sender, SessionKey
from channels.base import Capabilities, ChannelUnavailable, Inbox, LinkState, Receipt, Redelivery

_MAX_BYTES = 100_000


class FolderChannel:
    """
    Talks through the files of one folder.

    Args:
        folder: Where ``*.txt`` are messages and ``*.md`` answers. Who may write there may talk.
        look_every_s: How often it is looked into. A file is taken once two looks have found it unchanged.
        name, account: As in `channels.base.Channel`.
    """

    # 1. Say honestly what the server can do. Writing the same answer into the same file is one answer, so
    #    a repetition with the same key is harmless. With a server that does not recognise repetitions it is
    #    PROBE (and `probe` looks whether the message is there) or, where nobody can look, REVIEW.
    capabilities = Capabilities(redelivery=Redelivery.SAME_KEY)

    def __init__(
        self, folder: Path, *, look_every_s: float = 1.0, name: str = "folder", account: str = "bot"
    ) -> None:
        self.name, self.account = name, account
        self._folder = folder
        self._claimed = folder / ".claimed"
        self._look_every_s = look_every_s
        self._seen: dict[Path, tuple[int, int]] = {}

    async def run(self, inbox: Inbox) -> None:
        """Receive until cancelled; see `Channel.run`."""
        inbox.report(LinkState.CONNECTING)
        caught_up = False
        try:
            while True:
                # 2. Files and blocking libraries belong into a thread; a socket would get a time limit.
                taken = await anyio.to_thread.run_sync(self._claim)
                for file in taken:
                    message = await anyio.to_thread.run_sync(self._read, file)
                    # 3. Accept first. A server with a position (a sync token, a mail UID) gives it along,
                    #    `inbox.accept([message], {"next": token})`, and asks `inbox.position` at the start.
                    await inbox.accept([message])
                    # 4. Only now tell the server. If the process dies in between, the file is still there
                    #    under the same name, so the same native id comes again, and is known.
                    await anyio.to_thread.run_sync(file.unlink)
                if not (caught_up or taken or self._seen):
                    # 5. UP means: everything that waited has been accepted.
                    caught_up = True
                    inbox.report(LinkState.UP)
                await anyio.sleep(self._look_every_s)
        except OSError as error:
            # 6. Nothing but a `ChannelError` leaves. The supervisor calls `run` again after a while.
            inbox.report(LinkState.DOWN, f"the folder cannot be used: {error.strerror}")
            raise ChannelUnavailable(f"{self._folder}: {error}") from error

    def _claim(self) -> list[Path]:
        """Move finished files aside, under names that are never used twice; the oldest first."""
        self._claimed.mkdir(parents=True, exist_ok=True)
        seen: dict[Path, tuple[int, int]] = {}
        for file in self._folder.glob("*.txt"):
            status = file.lstat()
            if not stat.S_ISREG(status.st_mode) or not os.access(file, os.R_OK):
                continue
            state = (status.st_size, status.st_mtime_ns)
            if self._seen.get(file) == state:
                # 7. A native id is unique for ever: the same file dropped again is a new message.
                file.rename(self._claimed / f"{status.st_ctime_ns}.{file.name}")
            else:
                seen[file] = state
        self._seen = seen
        return sorted(self._claimed.iterdir())

    def _read(self, file: Path) -> InboundMessage:
        with file.open("rb") as opened:
            data = opened.read(_MAX_BYTES + 1)
            written_at = datetime.fromtimestamp(os.fstat(opened.fileno()).st_mtime, UTC)
        # 8. Input is never trusted: any bytes become some text, and nothing is read without a bound.
        text = data[:_MAX_BYTES].decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
        if len(data) > _MAX_BYTES:
            text += f"\n[Only the first {_MAX_BYTES} bytes of this file were read.]"
        return InboundMessage(
            channel=self.name,
            account=self.account,
            native_id=file.name,
            session=SessionKey(self.name, "owner"),
            # 9. ``verified`` is a claim: here the permissions of the folder stand behind it.
            sender=Sender(address="local", verified=True),
            text=text,
            received_at=written_at,
            # 10. What an answer needs to know comes back in `OutboundMessage.context`.
            context={"stem": file.name.split(".", 1)[1].removesuffix(".txt")},
        )

    async def deliver(self, message: OutboundMessage, *, uncertain: Callable[[], Awaitable[None]]) -> Receipt:
        """Send one message; see `Channel.deliver`."""
        # 11. The name on the server is made from the message's id alone: the same in every retry.
        key = hashlib.sha256(message.id.encode()).hexdigest()[:16]
        stem = Path(str(message.context.get("stem") or message.kind)).name[:100]
        target = self._folder / f"{stem}.{key}.md"
        draft = self._folder / f".{key}.draft"
        try:
            await anyio.to_thread.run_sync(self._write, draft, message.text)
            # 12. Everything that can fail harmlessly is done. From here on the server may have it.
            await uncertain()
            await anyio.to_thread.run_sync(draft.replace, target)
        except OSError as error:
            raise ChannelUnavailable(f"{target}: {error}") from error
        return Receipt(provider_id=target.name)

    def _write(self, draft: Path, text: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            file.write(text.encode("utf-8", "replace"))
            file.flush()
            os.fsync(file.fileno())

    async def probe(self, message: OutboundMessage) -> Receipt | None:
        """Never asked, because of `Redelivery.SAME_KEY`."""
        return None

    async def typing(self, session: SessionKey, *, on: bool) -> None:
        """A folder cannot show that."""

    async def preview(self, session: SessionKey, text: str) -> None:
        """A folder cannot show that."""

    async def aclose(self) -> None:
        """There is nothing to let go of."""
