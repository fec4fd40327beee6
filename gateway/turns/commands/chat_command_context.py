"""A command with who gave it and where, as every handler of a command gets it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent_core.language import gettext_noop
from agent_core.messages import Audience, InboundMessage
from agent_core.models import Session
from gateway.proactive.jobs.job_service import JobPlace
from gateway.routing.access import Access, is_admitted, normalise
from gateway.store.stores import Turn
from gateway.turns.commands.command_parsing import Command
from gateway.turns.questions.decisions import proof_level

NOT_PRIVATE = gettext_noop(
    "That is for a private conversation with me alone, in which it is certain that you are writing. Nothing "
    "was done."
)
NOT_HERE = gettext_noop("Only my owner can do that, in a private conversation with me.")

_SURE = 2
"""The proof that a decision about everything of a person needs; see `proof_level`."""


@dataclass(frozen=True, slots=True)
class CommandContext:
    """A command and who gives it where."""

    command: Command
    turn: Turn
    message: InboundMessage
    session: Session
    """The conversation, with the memory that is shown in it."""
    owner: bool
    """The owner asks, and nobody else reads along."""
    is_owner: bool
    """The owner asks, wherever that is."""

    @property
    def bot_name(self) -> str:
        """The bot's name, if it must stand in front of commands here; else an empty text."""
        context = self.message.context
        return "" if context.not_named else next(iter(context.names), "")


def is_surely_private(asked: CommandContext, access: Access) -> bool:
    """Return True if nobody else reads along, and the message is certainly by its sender."""
    message = asked.message
    return (
        message.audience is Audience.DIRECT
        and normalise(message.context.reply_to) in ("", normalise(message.sender.address))
        and message.sender.verified
        and not is_admitted(message)
        and proof_level(message) >= _SURE
        and not (access.is_apart(message.channel) and not asked.is_owner)
    )


def place_of(asked: CommandContext, owner_addresses: Sequence[str]) -> JobPlace:
    """The place of the person of a command, for their jobs."""
    message = asked.message
    return JobPlace(
        asked.turn.place,
        message.account,
        message.sender.address,
        message.audience,
        replace(message.context, notes=replace(message.notes, job=None)),
        persons=owner_addresses if asked.is_owner else (),
        since=asked.session.since,
    )
