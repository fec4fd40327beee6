"""What the settings say of single people: by whom an address is proven, and what is gained by it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from agent_core.messages import Audience, InboundMessage, Sender, SessionKey
from gateway.routing.access import Access, Alias
from gateway.routing.household import GUEST_TOOLS, OTHERS, Household, HouseholdRole, PersonRules
from gateway.settings import Settings
from gateway.settings.accounts import access_of

BOB, BOB_MAIL, CID = "@bob:hs.test", "bob@mail.test", "@cid:hs.test"
BOBS = PersonRules(
    name="bob", addresses=(BOB, BOB_MAIL), role=HouseholdRole.OWNER, share=1.0, persona="Be kind.", pool="big"
)
CIDS = replace(PersonRules.default(HouseholdRole.GUEST), name="cid", addresses=(CID,))


def message(address: str, *, channel: str = "matrix", verified: bool = True, **more: Any) -> InboundMessage:
    return InboundMessage(
        channel=channel, account="bot", native_id="1", session=SessionKey(channel, "room"), text="hello",
        sender=Sender(address=address, verified=verified), received_at=datetime.now(UTC),
        audience=Audience.DIRECT, **more,
    )  # fmt: skip


def access(**people: PersonRules) -> Access:
    return Access(
        [Alias("matrix", "@ann:hs.test")],
        {"matrix": ("*",), "weak": ("*",), "email": ("*",)},
        kinds={"matrix": "matrix", "weak": "matrix", "email": "email"},
        apart=["weak"],
        household=Household(people),
    )


def test_without_settings_everybody_is_an_adult_with_none() -> None:
    """As it was before there were any."""
    assert access().rules(message(BOB)) == PersonRules()
    assert PersonRules().permits("shell")
    assert access().rules(message("@ann:hs.test")) is None


def test_each_address_of_a_person_has_their_settings() -> None:
    found = access(bob=BOBS)
    assert found.rules(message(BOB)) == found.rules(message(BOB_MAIL.upper(), channel="email")) == BOBS
    assert found.rules(message(CID)) == PersonRules()


def test_others_are_all_without_an_entry() -> None:
    found = access(**{"bob": BOBS, OTHERS: PersonRules.default(HouseholdRole.GUEST)})
    assert found.rules(message(CID)).role is HouseholdRole.GUEST
    assert found.rules(message(BOB)) == BOBS
    assert found.rules(message("@ann:hs.test")) is None


@pytest.mark.parametrize(
    "doubtful",
    [message(BOB, verified=False), message(BOB, channel="weak")],
    ids=["nothing proves it", "an account that verifies less"],
)
def test_an_address_that_may_be_anothers_gains_nothing(doubtful: InboundMessage) -> None:
    """No second owner, no memory, no larger share; a guest stays one. The control: proven, it does."""
    found = access(bob=BOBS, cid=CIDS)
    rules = found.rules(doubtful)
    assert rules is not None
    assert (rules.role, rules.addresses, rules.share) == (HouseholdRole.ADULT, (), None)
    assert (rules.persona, rules.pool) == ("", "")
    sender = doubtful.sender.model_copy(update={"address": CID})
    guest = found.rules(doubtful.model_copy(update={"sender": sender}))
    assert guest.role is HouseholdRole.GUEST
    assert not guest.permits("shell")
    assert found.rules(message(BOB)).role is HouseholdRole.OWNER


def test_a_message_that_was_released_by_hand_gains_nothing() -> None:
    admitted = message(BOB)
    admitted = admitted.with_notes(replace(admitted.notes, admitted=True))
    assert access(bob=BOBS).rules(admitted).role is HouseholdRole.ADULT


def test_tools_are_named_or_begin_with_a_text() -> None:
    rules = PersonRules(tools=("web_search", "home__*"))
    tried = ("web_search", "home__light", "web_search2", "web_fetch", "home", "xhome__a")
    assert [tool for tool in tried if rules.permits(tool)] == ["web_search", "home__light"]
    assert not any(PersonRules(tools=()).permits(tool) for tool in tried)


def test_a_setting_of_a_person_goes_before_that_of_the_role() -> None:
    settings = Settings.model_validate(
        {
            "language": "de",
            "people": {
                "bob": {"addresses": [BOB, "BOB@Mail.test"], "role": "guest", "tools": ["web_search"]},
                "cid": {"addresses": [CID], "role": "guest"},
                "dan": {"addresses": ["@dan:hs.test"], "role": "owner", "share": 0.4, "language": "en"},
            },
        }
    )
    house = access_of(settings).household
    assert house.language == "de"
    assert house.rules(BOB_MAIL).addresses == (BOB, BOB_MAIL)
    assert house.rules(BOB).tools == ("web_search",)
    assert (house.rules(CID).tools, house.rules(CID).share) == (GUEST_TOOLS, 0.25)
    assert (house.rules("@dan:hs.test").share, house.rules("@dan:hs.test").language) == (0.4, "en")
    assert house.same_person(["x", BOB_MAIL]) == {"x", BOB, BOB_MAIL}


def test_links_join_people_and_take_nobody_from_the_settings() -> None:
    """Nor from the owner, who is none of them; without them, everybody is as before."""
    found = access(bob=BOBS, cid=CIDS)
    dan, dan_mail, eve = "@dan:hs.test", "dan@mail.test", "@eve:hs.test"
    found.link({dan_mail: dan, "cid@mail.test": CID, BOB_MAIL: eve, eve: "@ann:hs.test", "@ann:hs.test": dan})
    house = found.household
    assert house.rules(dan_mail).addresses == house.rules(dan).addresses == (dan, dan_mail)
    assert house.rules(dan_mail).role is HouseholdRole.ADULT
    assert house.rules("cid@mail.test").tools == GUEST_TOOLS
    assert house.same_person([CID]) == {CID, "cid@mail.test"}
    assert house.rules(BOB_MAIL) == BOBS
    assert house.main_address(eve) == eve
    assert found.rules(message(dan_mail, channel="email", verified=False)).addresses == ()
    assert found.rules(message("@ann:hs.test")) is None
    found.link({})
    assert found.household == access(bob=BOBS, cid=CIDS).household
