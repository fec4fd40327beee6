"""
``!export me`` and ``!forget me``: what is stored about the person who asks. Both are for a private
conversation with a message that certainly is theirs, because the file has everything that they have said
here. To be forgotten is confirmed with a code, and is done in the coming night (``erasure_requests.py``).
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from agent_core.language import _, gettext_noop, show_time
from agent_core.ports import Clock
from channels.attachments.attachment_storage import AttachmentsUnavailable
from channels.base import AttachmentRefused
from gateway.errors import GatewayError
from gateway.operations.privacy.erasure_requests import (
    EXPORT_NAME,
    EXPORTS,
    ErasureRequest,
    add_request,
    next_night,
    request_of,
    withdraw,
)
from gateway.proactive.owner_alerts import forget_alert
from gateway.routing.access import Access, Role, normalise
from gateway.store.stores import StateStore
from gateway.store.wakeups import Alert
from gateway.turns.commands.chat_command_context import NOT_PRIVATE, CommandContext, is_surely_private
from gateway.turns.commands.conversation_commands import KeepFile
from gateway.turns.questions.questions import CommandReply

_HOW = gettext_noop(
    "`!forget me` erases all that I have stored about you. For less than that: `!undo` takes back your last "
    "question, `!memory undo` the last change of my notes, and `!new` begins a new conversation. Nothing was "
    "done."
)
_WRONG_CODE = gettext_noop(
    "That is not the code, or it is too old. `!forget me` gives you a new one. Nothing was done."
)
_OWNER = gettext_noop(
    "You are my owner: at the machine, stop me and run `squidbot forget owner`. Nothing was done."
)
_log = structlog.get_logger(__name__)


@dataclass(eq=False, kw_only=True)
class OwnExport:
    """
    Answers ``!export``. One instance for all sessions.

    Args:
        conversation: Exports the conversation alone.
        export: Writes all data of a person of these addresses into a new folder; blocks.
        can_send: Returns True for a channel that can send files.
    """

    home: Path
    access: Access
    keep: KeepFile
    conversation: Callable[[CommandContext], Awaitable[CommandReply]]
    export: Callable[[frozenset[str], Path], None]
    can_send: Callable[[str], bool]
    most_bytes: int
    _one: anyio.Lock = field(default_factory=anyio.Lock)

    async def answer(self, asked: CommandContext) -> CommandReply | str:
        """Send this conversation, or all that is stored about the person, as a file."""
        wanted = asked.command.argument.lower()
        if not wanted:
            return await self.conversation(asked)
        if wanted != "me":
            return _(
                "Write `!export`, or `!export me` for all that I have stored about you. Nothing was done."
            )
        return await self._export(asked) if _is_private(asked, self.access, self.can_send) else NOT_PRIVATE

    async def _export(self, asked: CommandContext) -> CommandReply | str:
        try:
            async with self._one:  # there is one folder for it
                content = await anyio.to_thread.run_sync(
                    partial(self._packed, _addresses(asked, self.access))
                )
            name = f"{EXPORT_NAME}{asked.message.received_at:%Y-%m-%d}.zip"
            file = await self.keep(name, "application/zip", content)
        except AttachmentRefused as error:
            return _("I cannot create the file: {public}", public=error.public)
        except AttachmentsUnavailable as error:
            return _("I cannot create the file now: {public}", public=error.public)
        except (OSError, GatewayError) as error:
            _log.warning("export.failed", error=str(error))
            return _("I cannot create the file now. Ask my owner for it: `squidbot export` makes it, too.")
        told = _("This is all that I have stored about you. README.md in it says what is where.")
        return CommandReply(told, attachments=(file,))

    def _packed(self, addresses: frozenset[str]) -> bytes:
        folder = self.home / EXPORTS
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        try:
            self.export(addresses, folder / "squidbot-export")
            packed = shutil.make_archive(str(folder / "export"), "zip", folder, "squidbot-export")
            if Path(packed).stat().st_size > self.most_bytes:
                raise OSError("the archive is too large to be sent")
            return Path(packed).read_bytes()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(eq=False, kw_only=True)
class OwnErasure:
    """
    Answers ``!forget``. One instance for all sessions.

    Args:
        home: Keeps requests; None: the next start cannot carry them out, so the owner does.
        report: Tells the owner.
        can_send: As above.
        zone: Has the night.
    """

    home: Path | None
    state: StateStore
    access: Access
    report: Callable[[Alert], None]
    can_send: Callable[[str], bool]
    clock: Clock
    zone: tzinfo | None
    _one: anyio.Lock = field(default_factory=anyio.Lock)

    async def answer(self, asked: CommandContext) -> str:
        """Ask for a confirmation, note the request, or take it back."""
        word, __, code = asked.command.argument.strip().lower().partition(" ")
        if word not in ("me", "cancel"):
            return _HOW
        if not _is_private(asked, self.access, self.can_send):
            return NOT_PRIVATE
        if asked.is_owner:
            return _OWNER
        addresses, code = _addresses(asked, self.access), code.strip().strip("`")
        async with self._one:  # there is one file of them
            if word == "cancel":
                home = self.home
                gone = home is not None and await anyio.to_thread.run_sync(withdraw, home, addresses)
                return _("Done: I forget nothing.") if gone else _("Nothing of yours is to be forgotten.")
            return await (self._confirmed(asked, addresses, code) if code else self._ask(asked))

    async def _ask(self, asked: CommandContext) -> str:
        code = secrets.token_hex(3)
        await self.state.write(_topic(asked), f"{code} {self.clock.now().isoformat()}")
        return _(
            "I would erase all that I have stored about you, for good: what you have said and my answers, my "
            "notes about you, your files and reminders. What others have said stays. `!export me` sends it "
            "to you before. If you are sure, write within an hour: `!forget me {code}`",
            code=code,
        )

    async def _confirmed(self, asked: CommandContext, addresses: frozenset[str], code: str) -> str:
        home, alert = self.home, forget_alert(sorted(addresses), automatic=self.home is not None)
        known = None if home is None else await anyio.to_thread.run_sync(request_of, home, addresses)
        if (known is None or known.code != code) and not await self._is_code(asked, code):
            return _WRONG_CODE
        if home is None:
            self.report(alert)
            return _("I have told my owner, who does it at the machine.")
        if known is None or known.code != code:
            due = next_night(self.clock.now(), self.zone).isoformat()
            known = ErasureRequest(sorted(addresses), code, due)
            await anyio.to_thread.run_sync(add_request, home, known)
            await self.state.write(_topic(asked), "")
        self.report(alert)
        return _(
            "I erase it {when}, with all that is said until then. `!forget cancel` takes that back.",
            when=show_time(datetime.fromisoformat(known.due), gettext_noop("on %A at %H:%M")),
        )

    async def _is_code(self, asked: CommandContext, code: str) -> bool:
        """Return True for the code that this person was last given, for an hour."""
        said, __, at = (await self.state.read(_topic(asked)) or "").partition(" ")
        if not said or not secrets.compare_digest(said.encode(), code.encode()):
            return False
        age_s = (self.clock.now() - datetime.fromisoformat(at)).total_seconds()
        return 0 <= age_s <= 3600.0


def _is_private(asked: CommandContext, access: Access, can_send: Callable[[str], bool]) -> bool:
    return can_send(asked.message.channel) and is_surely_private(asked, access)


def _addresses(asked: CommandContext, access: Access) -> frozenset[str]:
    if access.decide(asked.message).role is Role.OWNER:
        return frozenset({"owner"})
    return access.household.same_person([normalise(asked.message.sender.address)])


def _topic(asked: CommandContext) -> str:
    who = normalise(asked.message.sender.address)
    return f"forget {hashlib.sha256(who.encode()).hexdigest()[:32]}"
