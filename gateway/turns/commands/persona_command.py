"""The command ``!persona``: the owner shows, sets and takes away the assistant's name and manner."""

from __future__ import annotations

import anyio.to_thread

from agent_core.language import _, gettext_noop
from agent_core.persona import Persona
from gateway.turns.commands.chat_command_context import NOT_HERE, CommandContext
from gateway.turns.questions.question_text import visible

_HOW = gettext_noop(
    "`!persona You are Ada, warm and brief.` sets it; it counts for everybody who talks to me."
)


class PersonaCommand:
    """Answers ``!persona``."""

    def __init__(self, persona: Persona) -> None:
        self._persona = persona

    async def answer(self, asked: CommandContext) -> str:
        """Show the persona, or replace it by what stands behind the command; doing it twice is harmless."""
        if not asked.owner:
            return NOT_HERE
        wanted = asked.command.argument
        if not wanted:
            text, how = await anyio.to_thread.run_sync(self._persona.text), _(_HOW)
            return f"{visible(text)}\n\n{how}" if text else _("I have no persona of my own. {how}", how=how)
        remove = wanted.lower() == "remove"
        try:
            await anyio.to_thread.run_sync(self._persona.write, "" if remove else wanted)
        except ValueError as error:
            return _("Not changed: that is too long ({error}).", error=error)
        except OSError as error:
            return _(
                "Not changed: the file PERSONA.md cannot be written ({strerror}).", strerror=error.strerror
            )
        if remove:
            return _("Done: I have no persona of my own any more.")
        return _(
            "Done. I write like that from the next message on, to everybody. `!persona remove` takes it away."
            " In rooms call me by the display name of my account."
        )
