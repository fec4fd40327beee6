"""
The command ``!trust``: the owner says that what somebody else may have written counts as the owner's words,
as it was when the command was taken: what has come in since, the owner has not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio.to_thread

from agent_core.errors import ToolError
from agent_core.language import _
from agent_core.ports import Clock
from agent_core.provenance import KEPT, describe
from agent_core.text import short_hash
from agent_core.tools.effects import Effect
from gateway.store.model import EffectReceipt
from gateway.store.stores import Queue, Step, Turn
from gateway.turns.commands.chat_command_context import NOT_HERE, CommandContext
from gateway.turns.questions.decisions import clean_name
from gateway.turns.questions.question_text import safe_line
from gateway.turns.user_input import trust_topic, trusted_before

if TYPE_CHECKING:
    from agent_core.tools.files.journaled_files import JournaledFiles


class TrustCommand:
    """Answers ``!trust``."""

    def __init__(self, store: Queue, clock: Clock, files: Callable[[], JournaledFiles]) -> None:
        self._store = store
        self._clock = clock
        self._files = files

    async def answer(self, asked: CommandContext) -> str:
        """Note the owner's word about what has come in, or about one file; doing it twice is harmless."""
        if not asked.owner:
            return NOT_HERE
        what, __, name = asked.command.argument.partition(" ")
        if what.lower() == "file" and name.strip():
            return await self._trust_file(asked, name.strip().strip("`'\""))
        if asked.command.argument:
            return await self._trust_what_was_shown(asked, clean_name(asked.command.argument))
        at = min(asked.turn.head.accepted_at, self._clock.now())
        await self._store.state.write(trust_topic(asked.turn.session), at.isoformat())
        return _(
            "Everything that has come into this conversation until now counts as your own words from now "
            "on. I no longer ask you because of it."
        )

    async def _trust_file(self, asked: CommandContext, name: str) -> str:
        """The owner's word about one content of one file; what stands there later is another one."""
        receipt = EffectReceipt(
            asked.turn.session,
            "trust_file",
            Effect.PERSIST.value,
            {"path": name},
            asked_by=asked.message.sender.address,
        )
        await self._store.turns.record_step_start(asked.turn, Step(0, "command", "trust", {}, None, receipt))
        told, failed = await anyio.to_thread.run_sync(self._trusted_file, asked.turn, name)
        result = {"content": told, "is_error": failed}
        await self._store.turns.record_step_result(asked.turn, Step(0, "command", "trust", {}, result))
        return told

    def _trusted_file(self, turn: Turn, name: str) -> tuple[str, bool]:
        files = self._files()
        try:
            place = files.roots.place(name)
            found = files.read_whole(place)
        except ToolError as error:
            return _("Nothing was done: {error}", error=error), True
        if found is None:
            return _("There is no file `{label}`. Nothing was done.", label=safe_line(place.label)), True
        if found.status.st_ctime > turn.head.accepted_at.timestamp():
            return (
                _(
                    "`{label}` has changed since you wrote that. Look again; nothing was done.",
                    label=safe_line(place.label),
                ),
                True,
            )
        try:
            files.journal.labels.trust(place.label, found.digest)
        except OSError:
            return _("The disk accepts no writes at the moment. Nothing was done."), True
        if found.is_name:
            return (
                _(
                    "The name `{label}` counts as your own words from now on. What is in there does not.",
                    label=safe_line(place.label),
                ),
                False,
            )
        size = len(found.content)
        return (
            _(
                "`{label}` as it is now ({size} bytes, SHA-256 `{short_hash}`) "
                "counts as your own words from now on, until the file changes.",
                label=safe_line(place.label),
                size=size,
                short_hash=short_hash(found.digest),
            )
        ), False

    async def _trust_what_was_shown(self, asked: CommandContext, name: str) -> str:
        """Trust all content that had arrived before a question was asked: the question names that."""
        session = asked.turn.session
        for question in await self._store.approvals.questions():
            if question.name == name and question.session == session and question.at is not None:
                topic = trust_topic(session)
                known = trusted_before(await self._store.state.read(topic), self._clock.now())
                at = max(question.at, known) if known else question.at
                await self._store.state.write(topic, at.isoformat())
                shown = describe(question.origins, most=KEPT) or _("only your own words")
                return _(
                    "Everything that had come in here before I asked `{name}` counts as your own words "
                    "from now on: {shown}. The question still waits for your answer.",
                    name=name,
                    shown=shown,
                )
        told = _("No question named `{name}` waits here now. Nothing was done.", name=safe_line(name))
        return told + _(" If it is a file, write `!trust file {name}`.", name=safe_line(name))
