"""The rules of a turn: of all who speak in it, and of its room."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from agent_core.language import _, use_language
from agent_core.messages import Audience, InboundMessage, Sender, SessionKey
from channels.base import PlaceRules
from gateway.routing.access import Access, Alias
from gateway.routing.household import Household, HouseholdRole, PersonRules
from gateway.store.background_job_rows import KIND, own_session
from gateway.store.model import Turn
from gateway.turns.questions.questions import OWNER_QUESTIONS
from gateway.turns.turn_rules import TurnRules, rules_of_turn, use_turn_language

ANN, BOB, CID = "@ann:hs.test", "@bob:hs.test", "@cid:hs.test"
BOBS = PersonRules(name="bob", addresses=(BOB,), language="de", persona="Be kind.", pool="big", share=0.9)
CIDS = replace(PersonRules.default(HouseholdRole.GUEST), addresses=(CID,), language="en")
KITCHEN = PlaceRules(("web_search",), "fr", "Be brief.", "small")
ACCESS = Access([Alias("matrix", ANN)], {"matrix": ("*",)}, household=Household({"bob": BOBS, "cid": CIDS}))
GROUP = Audience.GROUP


class Rooms:
    """A channel with one room that has rules."""

    def place_rules(self, conversation: str) -> PlaceRules:
        return KITCHEN if conversation == "!kitchen" else PlaceRules()


CHANNELS: Any = {"matrix": Rooms()}


def turn(*people: str, place: str = "!dm", audience: Audience = Audience.DIRECT, **more: Any) -> Turn:
    given = {
        "channel": "matrix", "account": "bot", "session": SessionKey("matrix", place), "text": "hello",
        "received_at": datetime.now(UTC), "audience": audience, **more,
    }  # fmt: skip
    said = [
        InboundMessage(**given, native_id=person, sender=Sender(address=person, verified=True))
        for person in people
    ]
    rows: Any = tuple(SimpleNamespace(id=number, message=message) for number, message in enumerate(said))
    return Turn("1-x", given["session"], 1, rows, 1, 0)


def rules(*people: str, **more: Any) -> TurnRules:
    return rules_of_turn(turn(*people, **more), ACCESS, CHANNELS)


def test_in_private_a_persons_own_count() -> None:
    found = rules(BOB)
    assert (found.language, found.place.persona, found.place.pool, found.share) == (
        "de",
        "Be kind.",
        "big",
        0.9,
    )
    assert found.permits("shell")
    assert not rules(CID).permits("shell")


def test_the_owner_and_whoever_has_no_entry_have_none() -> None:
    for person in (ANN, "@eve:hs.test"):
        found = rules(person)
        assert (found.language, found.place.persona, found.place.pool, found.share) == ("", "", "", None)
        assert found.permits("shell")


def test_of_several_people_the_strictest_tools_and_the_greatest_share_count() -> None:
    together = rules(BOB, CID, audience=GROUP, place="!room")
    assert not together.permits("shell") and together.permits("schedule")
    assert (together.language, together.share) == ("", 0.9)
    assert rules(BOB, ANN, audience=GROUP, place="!room").share is None


def test_in_a_room_its_own_count_and_no_persons_manner() -> None:
    found = rules(BOB, place="!kitchen", audience=GROUP)
    assert (found.language, found.place) == ("fr", KITCHEN)
    assert [tool for tool in ("web_search", "shell") if found.permits(tool)] == ["web_search"]
    assert not rules(ANN, place="!kitchen", audience=GROUP).permits("shell")
    other = rules(BOB, place="!room", audience=GROUP)
    assert (other.language, other.place.persona, other.place.pool) == ("de", "", "")


def test_a_background_job_has_the_rules_of_where_it_was_wished_for() -> None:
    """Its own session is in that room."""
    session = own_session(SessionKey("matrix", "!kitchen"), "abc")
    assert not rules(BOB, session=session, audience=GROUP, kind=KIND).permits("shell")


def test_what_waits_for_the_owner_is_said_in_the_language_of_the_home() -> None:
    """And a turn that somebody of another language has woken in that of its own person."""
    others = PersonRules(language="de")
    access = Access([], {"matrix": ("*",)}, household=Household({"others": others}))
    asked = replace(turn(BOB), session=OWNER_QUESTIONS)
    with use_language("de"):
        for each, told in ((asked, "done"), (turn(BOB), "erledigt")):
            with use_turn_language(each, access, CHANNELS):
                assert _("done") == told
