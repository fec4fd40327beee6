"""
Notices in the language of their person: two people of two languages on both channels, two homes in one process,
and the owner, who is asked in the language of the home about what somebody else wants.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from agent_core.tools.effects import Effect
from tests.doubles.agent import StreamingModel, call
from tests.integration.gateway_world import world
from tests.proactive_world import ANN, BOB, house

pytestmark = pytest.mark.smoke

BOB_MAIL, CID, CID_MAIL, ROOM = "bob@mail.test", "@cid:hs.test", "cid@mail.test", "room"
PEOPLE = {
    "bob": {"addresses": [BOB, BOB_MAIL], "language": "de"},
    "cid": {"addresses": [CID, CID_MAIL], "language": "en"},
}
GERMAN, ENGLISH = "Das sind die Befehle.", "These are the commands."
QUIET: Any = {"heartbeat": {"enabled": False}, "checklist": None}


async def by_mail(home: Any, person: str, text: str) -> str:
    place = f"dm-{person}"
    before = len(home.mail.seen(place))
    home.mail.say(person, text)
    return (await home.mail.answers(before + 1, conversation=place))[-1].text


@pytest.mark.parametrize("language", ["en", "de"])
async def test_two_people_of_two_languages_on_both_channels(tmp_path: Path, language: str) -> None:
    """One after the other and at once; the owner, and whoever has no language, hear that of the home."""
    async with house(tmp_path, **QUIET, more={"language": language, "people": PEOPLE}) as home:
        here = {"en": ENGLISH, "de": GERMAN}[language]
        for __ in range(2):
            assert GERMAN in await home.asked(BOB, "!help")
            assert ENGLISH in await home.asked(CID, "!help")
            assert GERMAN in await by_mail(home, BOB_MAIL, "!help")
            assert ENGLISH in await by_mail(home, CID_MAIL, "!help")
            for person in (ANN, "@dan:hs.test"):
                assert here in await home.asked(person, "!help")
        for person in (BOB, CID) * 5:
            home.chat.say(person, "!help")
        for person, told in ((BOB, GERMAN), (CID, ENGLISH)):
            said = await home.chat.answers(7, conversation=f"dm-{person}")
            assert all(told in each.text for each in said)


async def test_two_homes_in_one_process(tmp_path: Path) -> None:
    """Each has its language, also after the other has ended."""
    async with world(tmp_path / "one", settings={"language": "de"}) as one:
        async with world(tmp_path / "two") as two:
            for __ in range(2):
                assert GERMAN in (await one.asked("!help")).text
                assert ENGLISH in (await two.asked("!help")).text
        assert GERMAN in (await one.asked("!help")).text


class Writes(StreamingModel):
    """Sends what it is asked for to somebody."""

    async def answer(self, messages, tools):
        if messages[-1].role == "tool":
            yield "done"
        else:
            yield call("tell", what="a word")


class Tell:
    name, description, effect = "tell", "Tell somebody.", Effect.SEND
    parameters: ClassVar[dict[str, Any]] = {"type": "object", "properties": {"what": {"type": "string"}}}

    async def execute(self, **_: Any) -> Any:
        raise AssertionError("nobody has said yes")


async def test_the_owner_is_asked_in_the_language_of_the_home(tmp_path: Path) -> None:
    """About what a German guest wants; the guest hears in German that the owner was asked."""
    more = {"people": PEOPLE}
    async with house(tmp_path, **QUIET, model=Writes(), more=more, tools=[Tell()]) as home:
        await home.asked(ANN, "!help")
        told = await home.asked(BOB, "tell them")
        question = (await home.chat.answers(2, conversation=f"dm-{ANN}"))[-1].text
        assert "Ich habe meinen Besitzer gefragt" in told
        assert "I need your approval before I use `tell`" in question


async def test_a_reminder_and_its_lists_are_in_the_language_of_their_person(tmp_path: Path) -> None:
    async with house(tmp_path, **QUIET, more={"people": PEOPLE}) as home:
        assert "Ich erinnere dich" in await home.asked(BOB, "!remind morgen um 8 Tee")
        assert "Ich erinnere dich" not in await home.asked(CID, "!remind tomorrow at 8 tea")


async def test_an_operator_reads_english(tmp_path: Path) -> None:
    """A turn that an operator's command begins is in its person's language, and the command in English."""
    from gateway.operations.operation_context import OperationContext

    async with house(tmp_path, **QUIET, more={"language": "de", "people": PEOPLE}) as home:
        context = OperationContext(home.built.store, home.built.memory)
        with pytest.raises(Exception, match="I have no console"):
            await context.call("console_link", {})
        assert GERMAN in await home.asked(BOB, "!help")
