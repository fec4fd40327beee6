"""What a turn shows while it works, on virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio
import pytest

from agent_core.messages import SessionKey
from channels.base import Capabilities, Redelivery
from channels.matrix.client.homeserver import HttpAnswer
from channels.matrix.send.typing_and_receipts import TypingAndReceipts
from gateway.turns.model_run import ReplySink
from tests.doubles.homeserver import ScriptedHomeserver

pytestmark = pytest.mark.virtual_time
ROOM = SessionKey("matrix", "!room:hs.test")


@dataclass
class Typing:
    """A channel that shows typing by the hints of Matrix."""

    hints: TypingAndReceipts
    name: str = "matrix"
    hangs: bool = False
    capabilities: Capabilities = field(
        default_factory=lambda: Capabilities(redelivery=Redelivery.SAME_KEY, typing=True)
    )

    async def typing(self, session, *, on):
        if self.hangs:
            await anyio.sleep_forever()
        self.hints.typing(session.conversation, on=on, who=str(session))


class TypingServer(ScriptedHomeserver):
    """Notes when typing was asked for, and for how long."""

    def __init__(self):
        super().__init__()
        self.typing = []
        self.on("PUT", "/typing/", HttpAnswer(200, {}))

    async def request(self, method, path, body=None, **options):
        if "/typing/" in path:
            self.typing.append((anyio.current_time(), body))
        return await super().request(method, path, body, **options)


async def test_typing_is_seen_as_long_as_a_turn_takes():
    """Said again before it fades, for all of two minutes; gone when the turn has ended."""
    server = TypingServer()
    hints = TypingAndReceipts(server, "@bot:hs.test")
    sink = ReplySink(Typing(hints), ROOM)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hints.run)
        begun = anyio.current_time()
        async with sink.show_typing():
            await anyio.sleep(120)
        await sink.hide()
        await anyio.sleep(5)
        tasks.cancel_scope.cancel()

    *shown, (ended_at, ended) = server.typing
    assert ended == {"typing": False}
    assert ended_at - begun < 122
    assert all(body["typing"] is True for _, body in shown)
    fades = [at + body["timeout"] / 1000 for at, body in shown]
    again = [at for at, _ in shown[1:]] + [begun + 120]
    assert all(after < fade for after, fade in zip(again, fades, strict=True))


async def test_a_sign_that_hangs_costs_a_turn_nothing():
    """A channel that does not come back from showing it: the turn ends when it ends."""
    sink = ReplySink(Typing(TypingAndReceipts(TypingServer(), "@bot:hs.test"), hangs=True), ROOM)
    begun = anyio.current_time()
    async with sink.show_typing():
        await anyio.sleep(30)
    assert anyio.current_time() - begun < 31
    await sink.hide()
    assert anyio.current_time() - begun < 45
