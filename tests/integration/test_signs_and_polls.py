"""Signs put to what the bot said, and messages that are only read, through the whole gateway: noted, never answered."""

from __future__ import annotations

import pytest

from agent_core.messages import Amendment, Audience, InboundMessage, SessionKey
from gateway.system.clock import SystemClock
from tests.inbound import inbound
from tests.integration.command_world import ANN, DM, SETTINGS, Mind, asked, settled, talking, texts
from tests.integration.gateway_world import world

pytestmark = pytest.mark.timeout(1200, func_only=True)


def message(native_id: str, text: str, *, person: str = ANN, **fields: object) -> InboundMessage:
    return inbound(
        SessionKey("matrix", DM), person, text, native_id, received_at=SystemClock().now(), **fields
    )


def sign(native_id: str, key: str, text: str = "👍", **fields: object) -> InboundMessage:
    return message(native_id, text, kind="reaction", context={"outbound": key}, **fields)


async def test_a_sign_is_known_to_the_next_question(tmp_path):
    """It is noted with what it is about, once, and answered by nobody; what is about nothing here is not noted."""
    mind = Mind()
    async with talking(tmp_path, mind) as one:
        told = await asked(one, "remind me of the pills")
        for number, key in ((1, told.key), (1, told.key), (2, "unknown")):
            await one.hand_over(sign(f"$r{number}", key))
        await settled(one, settled=3)
        assert len(mind.asked) == 1
        await asked(one, "did I take them?")
        assert len(texts(one)) == 2
    (noted,) = [line for line in mind.shown[-1].split("\n") if "👍" in line]
    assert noted == "[My reaction to this, which asks nothing:] 👍"
    assert f"{told.text}\n" in mind.shown[-1].partition("👍")[0][-200:]


async def test_a_sign_that_is_taken_back_is_gone(tmp_path):
    """Its redaction takes it out; so does `!undo` of what it was put to, which is still the last question."""
    mind = Mind()
    async with talking(tmp_path, mind) as one:
        told = await asked(one, "a heron")
        await one.hand_over(sign("$r1", told.key, "🎉"), sign("$r2", told.key, "🌻"))
        await settled(one, settled=3)
        gone = Amendment(kind="withdraw", native_id="$r1", sender=ANN)
        await one.hand_over(amendments=[gone])
        await settled(one, settled=4)
        await asked(one, "a crane")
        await asked(one, "!undo")
        assert "heron" in (await asked(one, "!undo")).text
        await asked(one, "and now?")
    assert ("🎉" in mind.shown[1], "🌻" in mind.shown[1]) == (False, True)
    assert "🌻" not in mind.shown[2]


async def test_a_sign_of_the_owner_is_in_the_shared_conversation(tmp_path):
    """With one conversation for all private places it is noted where the answer was given."""
    mind = Mind()
    settings = {"owner": {**SETTINGS["owner"], "conversation": "shared"}}
    async with world(tmp_path, name="matrix", settings=settings, models={"demo": mind}) as one:
        told = await asked(one, "a heron")
        await one.hand_over(sign("$r1", told.key, "🌻"))
        await settled(one, settled=2)
        await asked(one, "and now?")
    assert "🌻" in mind.shown[-1]


async def test_a_sign_of_others_shows_nothing_private(tmp_path):
    """The room was private when the bot spoke: its words are not repeated for those who read along now."""
    mind = Mind()
    async with talking(tmp_path, mind) as one:
        told = await asked(one, "a secret heron")
        shared = {"session": SessionKey("matrix", DM, "shared"), "audience": Audience.GROUP}
        await one.hand_over(sign("$r1", told.key).model_copy(update=shared))
        await settled(one, settled=2)
        await one.hand_over(message("$m2", "and now?").model_copy(update=shared))
        await settled(one, settled=3)
    assert "and now?" in mind.shown[-1]
    assert not any(each in mind.shown[-1] for each in ("heron", "👍"))


async def test_what_is_only_read_is_no_part_of_a_question(tmp_path):
    """It waits with a question of the same person: the question is answered."""
    mind = Mind()
    async with talking(tmp_path, mind) as one:
        one.server.say(ANN, "slow start")
        await mind.thinking.wait()
        mail = {"read_only": True, "reply_to": ANN}
        await one.hand_over(message("$m1", "👏", context=mail), message("$m2", "a question"))
        mind.gate.set()
        await settled(one, settled=3)
        assert len(texts(one)) == 2
    assert ["a question" in each for each in mind.asked] == [False, True]
    assert "👏" in mind.shown[-1]


async def test_what_is_only_read_is_not_the_last_question(tmp_path):
    """A reaction by mail comes after the answer: `!undo` takes back the question before it."""
    mind = Mind()
    async with talking(tmp_path, mind) as one:
        await asked(one, "a heron")
        await one.hand_over(message("$m1", "👏", context={"read_only": True, "reply_to": ANN}))
        await settled(one, settled=2)
        undone = await asked(one, "!undo")
        await asked(one, "and now?")
    assert "`a heron`" in undone.text
    assert ("heron" in mind.shown[-1], "👏" in mind.shown[-1]) == (False, True)
