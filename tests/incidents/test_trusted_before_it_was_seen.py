"""
``!trust`` says that what has come in is fine. Until it was carried out, behind a busy database or after a restart,
more came in, which the owner had not seen when saying so; it counted as fine, too.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

from agent_core.messages import SessionKey
from agent_core.provenance import since, untrusted_origin
from gateway.store.stores import Turn
from gateway.turns.commands.chat_command_context import CommandContext
from gateway.turns.commands.command_parsing import Command
from gateway.turns.commands.trust_command import TrustCommand
from tests.clock import EPOCH, ManualClock
from tests.inbound import inbound

PLACE = SessionKey("matrix", "dm")


class State:
    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    async def write(self, name: str, value: str) -> None:
        self.kept[name] = value


async def trusted_until(*, taken: datetime, done: datetime) -> datetime:
    """``!trust`` was taken at one time and done at another."""
    state = State()
    nothing: Any = None
    store: Any = SimpleNamespace(state=state)
    message = inbound(PLACE, "@ann:hs.test", "!trust", account="@bot:hs.test", received_at=taken)
    row = SimpleNamespace(id=1, message=message, accepted_at=taken)
    turn = Turn("t", PLACE, 1, (row,), 1, 0)  # type: ignore[arg-type]
    asked = CommandContext(Command("trust", ""), turn, message, SimpleNamespace(), owner=True, is_owner=True)  # type: ignore[arg-type]
    await TrustCommand(store, ManualClock(done), nothing).answer(asked)
    (until,) = state.kept.values()
    return datetime.fromisoformat(until)


async def test_what_came_in_while_the_command_waited_is_not_fine():
    """What came in before it was taken is; and a clock that runs ahead trusts nothing that is still to come."""
    minute = timedelta(minutes=1)
    until = await trusted_until(taken=EPOCH, done=EPOCH + 5 * minute)
    before, meanwhile = (untrusted_origin("mail", str(n), EPOCH + n * minute) for n in (-1, 1))
    assert since((before, meanwhile), until) == (meanwhile,)
    assert await trusted_until(taken=EPOCH + minute, done=EPOCH) == EPOCH
