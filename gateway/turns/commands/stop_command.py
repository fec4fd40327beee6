"""
``!stop``: what waits or is in progress before it gets no answer. Pure.

``routing/intake.py`` recognises it (`is_stop`) and withdraws earlier messages of the session (others than the
owner only their own) in the accepting transaction (``store/sql/amendments.py``); the signal ``stopped`` lets
``turns/handler.py`` cancel the running turn; its own turn answers with the number (`stopped_text`).
"""

from __future__ import annotations

from agent_core.language import _, ngettext
from agent_core.messages import Audience, InboundMessage
from gateway.turns.commands.command_parsing import Command, Misread


def is_stop(command: Command | Misread | None) -> bool:
    """Return True for the stop command."""
    return isinstance(command, Command) and command.name == "stop"


def stopped_text(message: InboundMessage, *, owner: bool) -> str:
    """The answer to an accepted ``!stop``, with which the queue has noted how many messages it withdrew."""
    count = message.notes.stopped
    if count == 0:
        of = "" if owner or message.audience is Audience.DIRECT else _(" of yours")
        return _("Nothing{of} was waiting or in progress here.", of=of)
    return ngettext("Stopped: I do not answer 1 message.", "Stopped: I do not answer {n} messages.", count)
