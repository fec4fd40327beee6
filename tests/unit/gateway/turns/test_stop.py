"""What is answered to ``!stop``; what it withdraws is in the contract of the queue."""

from __future__ import annotations

import pytest

from agent_core.messages import Audience, InboundMessage, SessionKey
from gateway.turns.commands import parse_command
from gateway.turns.commands.command_parsing import is_stop
from gateway.turns.commands.command_text import stopped_text
from tests.inbound import inbound


def message(text: str, audience: Audience = Audience.DIRECT, **notes: object) -> InboundMessage:
    return inbound(
        SessionKey("matrix", "!r"),
        "@ann:hs.test",
        text,
        "$1",
        account="@bot:hs.test",
        verified=False,
        audience=audience,
        context={"notes": notes},
    )


@pytest.mark.parametrize(
    ("text", "expected"), [("!stop", True), ("/STOP now", True), ("!new", False), ("stop", False)]
)
def test_it_is_recognised(text: str, expected: bool) -> None:
    """The command alone, whatever comes behind it."""
    assert is_stop(parse_command(message(text))) is expected


def test_the_answer_counts_what_was_withdrawn() -> None:
    """In a group somebody who is not the owner learns only of their own messages."""
    room, said = Audience.GROUP, [stopped_text(message("!stop", stopped=n), owner=True) for n in (1, 2)]
    assert said == ["Stopped: I do not answer 1 message.", "Stopped: I do not answer 2 messages."]
    nothing = [
        stopped_text(message("!stop", audience), owner=owner)
        for audience, owner in ((Audience.DIRECT, False), (room, True), (room, False))
    ]
    assert [" of yours" in each for each in nothing] == [False, False, True]
