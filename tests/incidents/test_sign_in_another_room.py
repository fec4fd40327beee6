"""
A sign below a question of ours counted in whatever room it was given: our own homeserver refuses to point to an event of
another room, others do not, and nobody who sees a sign there sees the question. And the names that people give
themselves went on with the characters that steer a terminal or reverse what follows.
"""

from __future__ import annotations

import pytest

from channels.matrix.rooms.room_state import Room
from tests.doubles.homeserver import member
from tests.doubles.loopback import LoopbackServer
from tests.integration.test_tool_approval import ANN, Writer, answers, asking, question, reaction


async def test_the_owners_sign_counts_where_the_question_stands(tmp_path):
    """Given elsewhere it is nothing, in the room of the question it is a yes."""
    tool, server = Writer(), LoopbackServer()
    server.groups |= {"room", "trap"}
    async with asking(tmp_path, tool, server=server) as one:
        server.say(ANN, "write it", conversation="room")
        notice, name = await question(one, "room")
        await one.hand_over(reaction(notice, "👍", ANN, place="trap"))
        await one.hand_over(reaction(notice, "✅", ANN))
        listed = await one.asked("!approve", person=ANN)  # whatever came before it was dealt with
        assert name in listed.text
        assert tool.written == []
        await one.hand_over(reaction(notice, "👌", ANN, place="room"))
        await answers(one, "room", 2)
    assert tool.written == ["it"]


@pytest.mark.parametrize(
    ("called", "shown"),
    [
        ("\x1b[31mAnn\x1b[0m", "[31mAnn[0m"),
        ("Ann\u202e\u2066\u200b\x00\x07\x85\n\u2028]: yes", "Ann ]: yes"),
        ("x" * 64_000, "x" * 100),
        ("\u202e" * 64_000, ""),
        ("می‌خواهم 👩‍👩‍👧", "می‌خواهم 👩‍👩‍👧"),
        (["no", "text"], ""),
    ],
)
def test_what_people_call_themselves(called, shown):
    """On one line, a hundred characters at most, and nothing in it that has no form."""
    here = Room("!r:hs.test")
    here.state(member("@ann:evil.test", displayname=called))
    assert here.names == {"@ann:evil.test": shown}
