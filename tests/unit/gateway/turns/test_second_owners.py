"""Which message of a second owner decides which question."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from agent_core.messages import Audience, InboundMessage, Sender, SessionKey
from gateway.routing.access import Access, Alias
from gateway.routing.household import Household, HouseholdRole, PersonRules
from gateway.store.model import Question
from gateway.turns.questions.second_owners import may_decide_for

ANN, BOB, BOB_MAIL, CID, EVE = (
    "@ann:hs.test", "@bob:hs.test", "bob@mail.test", "@cid:hs.test", "@eve:hs.test",
)  # fmt: skip
CHAT, MAIL = SessionKey("matrix", "!dm-bob"), SessionKey("email", "about-a1b2c3", BOB_MAIL)
QUESTION = Question(
    "a1b2c3", SessionKey("matrix", "!dm-cid"), (), "tell", datetime.now(UTC), None, (CID,), (CHAT, MAIL)
)


def access() -> Access:
    owner = PersonRules.default(HouseholdRole.OWNER)
    people = {"bob": replace(owner, addresses=(BOB, BOB_MAIL)), "eve": replace(owner, addresses=(EVE,))}
    lists = {"matrix": (BOB, CID, EVE), "email": (BOB_MAIL,), "weak": (BOB,)}
    kinds = {"matrix": "matrix", "email": "email", "weak": "matrix"}
    return Access([Alias("matrix", ANN)], lists, kinds=kinds, apart=["weak"], household=Household(people))


def message(session: SessionKey = CHAT, address: str = BOB, **more: Any) -> InboundMessage:
    given = {
        "channel": session.channel, "account": "bot", "native_id": "1", "session": session, "text": "yes",
        "sender": Sender(address=address, verified=True), "received_at": datetime.now(UTC),
        "audience": Audience.DIRECT, **more,
    }  # fmt: skip
    return InboundMessage(**given)


@pytest.mark.parametrize(
    "said",
    [
        message(),
        message(SessionKey("matrix", "!dm-bob", "$thread")),
        message(MAIL, BOB_MAIL),
        message(SessionKey("email", "another", BOB_MAIL), BOB_MAIL),
    ],
    ids=["there", "in a thread there", "by a reply to the mail", "by another mail from that mailbox"],
)
def test_where_it_was_put_a_second_owner_decides(said: InboundMessage) -> None:
    assert may_decide_for(access(), QUESTION, said)


@pytest.mark.parametrize(
    "said",
    [
        message(audience=Audience.GROUP),
        message(SessionKey("matrix", "!elsewhere")),
        message(address=CID),
        message(SessionKey("matrix", "!dm-eve"), EVE),
        message(sender=Sender(address=BOB, verified=False)),
        message(SessionKey("weak", "!dm-bob")),
        message(MAIL, BOB_MAIL, sender=Sender(address=BOB_MAIL, verified=False)),
        message(address="@BOB:hs.test"),
    ],
    ids=[
        "among others", "elsewhere", "a guest there", "an owner who was not asked", "not proven",
        "an account that verifies less", "a mail without proof", "a name that is like it",
    ],
)  # fmt: skip
def test_nothing_else_decides(said: InboundMessage) -> None:
    assert not may_decide_for(access(), QUESTION, said)


@pytest.mark.parametrize("person", [EVE, BOB, BOB_MAIL.upper()])
def test_not_what_an_owner_wants(person: str) -> None:
    """Who is an owner answers for themselves; the first owner's turns never come here."""
    assert not may_decide_for(access(), replace(QUESTION, people=(CID, person)), message())


def test_not_without_leave_to_write() -> None:
    """An entry of ``people`` lets nobody in."""
    people = {"bob": replace(PersonRules.default(HouseholdRole.OWNER), addresses=(BOB,))}
    shut = Access([Alias("matrix", ANN)], {"matrix": (CID,)}, household=Household(people))
    assert not may_decide_for(shut, QUESTION, message())
