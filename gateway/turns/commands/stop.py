"""
``!stop``: what waits or is in progress before it gets no answer. Pure.

It is done in three places, and the first two do not wait for a turn:

- ``routing/inbox.py`` recognises it (`is_stop`) and has the queue withdraw earlier messages of the session,
  in the transaction that accepts it (``queue/sql/amendments.py``); whoever is not the owner, only their own.
- That commit fires the signal ``stopped``; ``turns/handler.py`` cuts the running turn off.
- The message itself has a turn like any command, which answers how many messages that were (`stopped_text`).
"""

from __future__ import annotations

from agent_core.messages import Audience, InboundMessage
from gateway.turns.commands.parsing import Command, Misread


def is_stop(command: Command | Misread | None) -> bool:
    """Return True for the stop command."""
    return isinstance(command, Command) and command.name == "stop"


def stopped_text(message: InboundMessage, *, owner: bool) -> str:
    """The answer to an accepted ``!stop``, with which the queue has noted how many messages it withdrew."""
    stopped = message.context.get("stopped")
    count = stopped if isinstance(stopped, int) else 0
    if count == 0:
        of = "" if owner or message.audience is Audience.DIRECT else " of yours"
        return f"Nothing{of} was waiting or in progress here."
    return f"Stopped: I do not answer {count} {'message' if count == 1 else 'messages'}."
