"""In a room where everything goes to the bot the model may leave alone what does not name it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent_core.messages import Audience, InboundMessage, SessionKey
from gateway.turns.user_input import NO_REPLY
from tests.doubles.agent import StreamingModel
from tests.inbound import inbound
from tests.integration.command_world import settled, talking

pytestmark = pytest.mark.smoke
ROOM = SessionKey("matrix", "room")


class Says(StreamingModel):
    """A model that says what the last line of the question asks for, and keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    async def answer(self, messages, tools):
        self.shown.append("\n".join(each.content for each in messages))
        yield messages[-1].content.rpartition("say: ")[2]


def said(number: int, text: str, **context: object) -> InboundMessage:
    return inbound(
        ROOM,
        "@bob:hs.test",
        f"say: {text}",
        f"$n{number}",
        received_at=datetime(2026, 2, 1, tzinfo=UTC),
        audience=Audience.GROUP,
        context={**context, "route": {"event_id": f"$n{number}"}},
    )


async def answers(root: Path, *messages: InboundMessage) -> tuple[list[str], Says]:
    """What is sent for messages that come one after the other, and what the model was shown."""
    model = Says()
    async with talking(root, model) as here:
        for number, message in enumerate(messages, 1):
            await here.hand_over(message)
            await settled(here, settled=number)
        return [each.text for each in here.server.seen(ROOM.conversation)], model


async def test_the_model_leaves_alone_what_does_not_name_it(tmp_path: Path) -> None:
    """Nothing is sent, each is answered once, and the next prompt knows that the bot was silent."""
    sent, model = await answers(
        tmp_path,
        said(1, NO_REPLY, not_named=True),
        said(2, f"**{NO_REPLY}**.", not_named=True),
        said(3, "hello", not_named=True),
    )
    assert sent == ["hello"]
    assert len(model.shown) == 3
    assert all("does not name you" in shown for shown in model.shown)
    assert "does not name you" not in model.shown[2].rpartition("[This")[0]
    assert f"\n{NO_REPLY}\n" in model.shown[2]


@pytest.mark.parametrize(
    ("text", "context"),
    [
        (NO_REPLY, {}),  # it was named
        (f"I say {NO_REPLY}", {"not_named": True}),
        (f"{NO_REPLY} and this", {"not_named": True}),
    ],
)
async def test_anything_else_is_sent(tmp_path: Path, text: str, context: dict[str, object]) -> None:
    sent, model = await answers(tmp_path, said(1, text, **context))
    assert [each.startswith(text) for each in sent] == [True]
    assert ("does not name you" in model.shown[0]) is (context == {"not_named": True})
